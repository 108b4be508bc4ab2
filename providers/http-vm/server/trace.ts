/**
 * Requests as parts of traces: of their callers', by the headers of W3C Trace Context, or of their own where the
 * request changes something or opens a session. What only looks begins no trace: an agent looks all the time.
 */
import type { IncomingMessage } from "node:http";
import { type RouteMatch, readTraceContext, traced, type Tracing } from "../../../src/provider/kit/index.ts";
import type { AuditedRoute } from "./audit.ts";

interface TracedRequest {
  request: IncomingMessage;
  match: RouteMatch<AuditedRoute> | undefined;
  requestId: string;
  /** Of the configuration. */
  client: string;
  /** What was answered; undefined while that is not known. */
  status(): number | undefined;
}

export async function traceRequest(
  tracing: Tracing | undefined,
  { request, match, requestId, client, status }: TracedRequest,
  work: () => Promise<void>,
): Promise<void> {
  const parent = tracing && readTraceContext(request.headers);
  if (match === undefined || (parent === undefined && match.route.audit === undefined)) return await work();
  const { route, params } = match;
  const name = `${request.method ?? ""} ${route.pattern}`;
  const attributes = {
    "http.request.method": request.method,
    "http.route": route.pattern,
    "vmlet.client": client,
    "vmlet.request.id": requestId,
    "vmlet.machine.id": route.pattern.startsWith("/v1/machines/") ? params["id"] : undefined,
    "k8s.container.name": params["container"],
  };
  await traced(tracing, name, { kind: "server", parent, attributes }, async (span) => {
    await work();
    span?.set({ "http.response.status_code": status() });
  });
}
