/** Counts, times and traces every call of a provider, and holds it to its deadline; changes nothing else about it. */
import { onAbort } from "../util/abort.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { tracedStep, type Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import { isProviderError, ProviderError } from "./errors.ts";
import type { CallOptions, Provider } from "./provider.ts";

/** How long a provider may take to answer. It need not have done by then what it was asked for. */
const DEADLINE_MS = 60_000;

/** Calls that end with their answer. kubelet's dashboards know these names of runtime operations. */
const CALLS: Readonly<Record<string, string>> = {
  getInfo: "get_info",
  createPod: "create_machine",
  getPod: "get_machine",
  getPods: "list_machines",
  stopPod: "stop_machine",
  deletePod: "delete_machine",
  updatePod: "update_machine",
  getCapacity: "get_capacity",
  getStats: "get_stats",
};
/** Calls for volumes. */
const VOLUME_CALLS: Readonly<Record<string, string>> = {
  create: "create_volume",
  get: "get_volume",
  list: "list_volumes",
  resize: "resize_volume",
  delete: "delete_volume",
  reserve: "reserve_volume",
  release: "release_volume",
  getCapacity: "get_volume_capacity",
};
/** Calls for images. */
const IMAGE_CALLS: Readonly<Record<string, string>> = {
  create: "create_image",
  get: "get_image",
  list: "list_images",
  delete: "delete_image",
};
/** Calls for the ranges of addresses. */
const POD_RANGE_CALLS: Readonly<Record<string, string>> = {
  put: "put_pod_ranges",
  get: "get_pod_ranges",
  delete: "delete_pod_ranges",
};
/** Calls for the cluster's Services. */
const SERVICE_CALLS: Readonly<Record<string, string>> = { put: "put_services" };
/** By the part of a provider that has them. */
const OF_PARTS = {
  volumes: VOLUME_CALLS,
  images: IMAGE_CALLS,
  podRanges: POD_RANGE_CALLS,
  services: SERVICE_CALLS,
} as const;
/** Calls that open a session, for as long as the client that asked for it waits. */
const SESSIONS: Readonly<Record<string, string>> = { exec: "exec", attach: "attach", portForward: "port_forward" };

/** @param tracing each call that is part of a trace becomes a span of that; absent: nothing is traced */
export function instrument(provider: Provider, metrics: Metrics, clock: Clock, tracing?: Tracing): Provider {
  return instrumented(provider, { ...CALLS, ...SESSIONS }, { metrics, clock, tracing });
}

interface Observers {
  metrics: Metrics;
  clock: Clock;
  tracing: Tracing | undefined;
}

function instrumented<T extends object>(
  target: T,
  operations: Readonly<Record<string, string>>,
  observers: Observers,
): T {
  const { metrics, clock, tracing } = observers;
  return new Proxy(target, {
    get(target, property) {
      const member: unknown = Reflect.get(target, property, target);
      const calls = OF_PARTS[property as keyof typeof OF_PARTS];
      if (calls !== undefined && typeof member === "object" && member !== null)
        return instrumented(member, calls, observers);
      if (typeof member !== "function") return member;
      const call = member as (...args: unknown[]) => unknown;
      const name = String(property);
      const op = operations[name];
      if (op === undefined) return call.bind(target);
      const observed = async (...args: unknown[]) => {
        const start = clock.monotonic();
        metrics.backendInflight.inc();
        let code = "ok";
        try {
          if (name in SESSIONS) return await call.apply(target, args);
          const options = args.pop() as CallOptions;
          return await answerInTime(clock, name, options.signal, (signal) =>
            call.apply(target, [...args, { ...options, signal }]),
          );
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
      if (tracing === undefined) return observed;
      return async (...args: unknown[]) => {
        const [id] = args;
        const attributes = { "vmlet.machine.id": typeof id === "string" ? id : undefined };
        return await tracedStep(tracing, op, { kind: "client", attributes }, () => observed(...args));
      };
    },
  });
}

/**
 * A call that never settles would hold one of the few places for pods for ever, and nothing would report it. So it is
 * given up: its signal aborts, and the caller takes it for `unavailable`, as it does where a reply is lost on the way.
 * What the call did or still does is as unknown then as it is there; every call can be repeated, and a create that
 * comes after the delete finds the tombstone.
 */
async function answerInTime(
  clock: Clock,
  name: string,
  caller: AbortSignal,
  call: (signal: AbortSignal) => unknown,
): Promise<unknown> {
  const limit = new AbortController();
  const gaveUp = Promise.withResolvers<never>();
  using _ = onAbort(caller, () => limit.abort(caller.reason));
  const cancel = clock.after(DEADLINE_MS, () => {
    const seconds = DEADLINE_MS / 1000;
    const error = new ProviderError("unavailable", `the provider did not answer ${name} within ${seconds} s`);
    gaveUp.reject(error);
    limit.abort(error);
  });
  try {
    return await Promise.race([call(limit.signal), gaveUp.promise]);
  } finally {
    cancel();
  }
}
