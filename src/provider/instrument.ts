/** Counts and times every call of a provider; changes nothing about it. */
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import { isProviderError } from "./errors.ts";
import type { Provider } from "./provider.ts";

/** kubelet's dashboards know these names of runtime operations. */
const TIMED = {
  getInfo: "get_info",
  createPod: "create_machine",
  getPod: "get_machine",
  getPods: "list_machines",
  stopPod: "stop_machine",
  deletePod: "delete_machine",
  updatePod: "update_machine",
  getCapacity: "get_capacity",
  getStats: "get_stats",
  exec: "exec",
  attach: "attach",
  portForward: "port_forward",
} as const;

export function instrument(provider: Provider, metrics: Metrics, clock: Clock): Provider {
  return new Proxy(provider, {
    get(target, property) {
      const member: unknown = Reflect.get(target, property, target);
      if (typeof member !== "function") return member;
      const call = member as (...args: unknown[]) => unknown;
      const op = (TIMED as Record<string, string | undefined>)[String(property)];
      if (op === undefined) return call.bind(target);
      return async (...args: unknown[]) => {
        const start = clock.monotonic();
        metrics.backendInflight.inc();
        let code = "ok";
        try {
          return await call.apply(target, args);
        } catch (thrown) {
          code = isProviderError(thrown) ? thrown.code : "unknown";
          if (code !== "not_found") metrics.runtimeOperationErrors.inc({ operation_type: op });
          throw thrown;
        } finally {
          const seconds = (clock.monotonic() - start) / 1000;
          metrics.backendInflight.dec();
          metrics.backendRequests.inc({ op, code });
          metrics.backendDuration.observe({ op }, seconds);
          metrics.runtimeOperations.inc({ operation_type: op });
          metrics.runtimeOperationDuration.observe({ operation_type: op }, seconds);
        }
      };
    },
  });
}
