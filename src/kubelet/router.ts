/**
 * The one table of the kubelet API: which method and path, who may, and what serves it. What is not in the table is
 * authorised as `proxy`, like the kubelet does, and then not found.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { HttpError } from "../http/http-error.ts";
import type { RouteMatch, RoutePattern } from "../http/routes.ts";
import type { UpgradeRequest } from "../streaming/upgrade.ts";
import type { UserInfo } from "../kube/reviews.ts";
import type { AccessAttributes } from "./auth.ts";

/** What an endpoint tells of a session, for the audit. */
export interface SessionNotes {
  podUid?: string | undefined;
  tty?: boolean;
  stdin?: boolean;
  /** Something was done in the machine: a command was started, a connection opened. */
  begun?: boolean;
  exitCode?: number;
  /** Why it ended otherwise than in good order. */
  failure?: string;
  ports?: Set<number>;
}

export interface RequestContext {
  params: Readonly<Record<string, string>>;
  query: URLSearchParams;
  user: UserInfo;
  request: IncomingMessage;
  /** Aborts when the client is gone or the server stops. */
  signal: AbortSignal;
  notes: SessionNotes;
}

interface Reply {
  status: number;
  contentType: string;
  body: string;
}

/** Plain handlers return a reply; stream handlers write one as it comes; upgrade handlers take the connection over. */
export type Handler =
  | { kind: "plain"; handle(context: RequestContext): Promise<Reply> }
  | { kind: "stream"; handle(context: RequestContext, response: ServerResponse): Promise<void> }
  | { kind: "upgrade"; handle(context: RequestContext, upgrade: UpgradeRequest): Promise<void> };

export type AuditedAction = "exec" | "attach" | "port-forward" | "run";

export interface Route extends RoutePattern {
  /** Any one of them suffices, asked in this order. */
  subresources: readonly string[];
  /** Instead of the HTTP method's verb. */
  verb?: "create";
  /** The action's name in the audit. Absent: it is not audited. */
  audit?: AuditedAction;
  handler: Handler;
}

export type Match = RouteMatch<Route>;

/**
 * Path and query of a request, or 400 for anything that two parsers could read differently: no encoded slashes, no dot
 * segments, no control characters, no absolute form. Names of Kubernetes objects need none of them.
 */
export function parseTarget(url: string): { path: string; query: URLSearchParams } {
  const mark = url.indexOf("?");
  const path = mark < 0 ? url : url.slice(0, mark);
  if (!/^(\/[A-Za-z0-9._~:@!$&'()*+,=-]*)+$/.test(path) || /(^|\/)\.{1,2}(\/|$)/.test(path) || path.includes("//")) {
    throw new HttpError(400, "invalid path");
  }
  return { path, query: new URLSearchParams(mark < 0 ? "" : url.slice(mark + 1)) };
}

const VERBS: Readonly<Record<string, string>> = {
  GET: "get",
  HEAD: "get",
  POST: "create",
  PUT: "update",
  PATCH: "patch",
  DELETE: "delete",
};

/**
 * What to ask of the authoriser. exec, attach, portForward and run are `create` whatever the method: a WebSocket
 * upgrade is a GET, and rights to read must not become rights to run commands.
 */
export function accessOf(
  match: Match | "method not allowed" | undefined,
  method: string,
  path: string,
): AccessAttributes {
  if (typeof match === "object")
    return { verb: match.route.verb ?? VERBS[method] ?? "", subresources: match.route.subresources };
  const first = path.split("/")[1] ?? "";
  const subresources = Object.hasOwn(SUBRESOURCES_BY_PREFIX, first) ? SUBRESOURCES_BY_PREFIX[first]! : ["proxy"];
  return { verb: VERBS[method] ?? "", subresources };
}

/** By the first segment of the path, as pkg/kubelet/server/auth.go does. */
export const SUBRESOURCES_BY_PREFIX: Readonly<Record<string, readonly string[]>> = {
  stats: ["stats"],
  metrics: ["metrics"],
  logs: ["log"],
  checkpoint: ["checkpoint"],
  statusz: ["statusz"],
  flagz: ["configz"],
  pods: ["pods", "proxy"],
  runningpods: ["pods", "proxy"],
  healthz: ["healthz", "proxy"],
  configz: ["configz", "proxy"],
};
