import { healthQuery, type HealthChecks } from "../../telemetry/health.ts";
import { HttpError } from "../../http/http-error.ts";
import type { Handler } from "../router.ts";

/** `/healthz` and `/healthz/NAME`: the agent's liveness checks under the kubelet's endpoint. */
export function healthz(checks: HealthChecks): Handler {
  return {
    kind: "plain",
    async handle({ params, query }) {
      const only = params["check"];
      if (only !== undefined && !checks.names().includes(only)) throw new HttpError(404, "404 page not found");
      const { healthy, text } = await checks.report({ ...healthQuery(query), only });
      return { status: healthy ? 200 : 500, contentType: "text/plain; charset=utf-8", body: text };
    },
  };
}
