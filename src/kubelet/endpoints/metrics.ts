import type { Metrics } from "../../telemetry/metrics.ts";
import type { Handler } from "../router.ts";

/** `/metrics`: the agent's own, as far as they are of this node. */
export function agentMetrics(metrics: Metrics, nodeName: string): Handler {
  return {
    kind: "plain",
    handle: async () => ({
      status: 200,
      contentType: metrics.registry.contentType,
      body: await metrics.render(nodeName),
    }),
  };
}
