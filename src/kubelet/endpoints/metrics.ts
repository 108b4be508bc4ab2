import type { Metrics } from "../../telemetry/metrics.ts";
import type { Handler } from "../router.ts";

/** `/metrics`: the agent's own. */
export function agentMetrics(metrics: Metrics): Handler {
  return {
    kind: "plain",
    handle: async () => ({ status: 200, contentType: metrics.registry.contentType, body: await metrics.render() }),
  };
}
