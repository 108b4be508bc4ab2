/**
 * The audit of the kubelet API: one line for each exec, attach, port-forward and run, also for one that was refused.
 */
import type { IncomingMessage } from "node:http";
import type { HttpError } from "../http/http-error.ts";
import { matchRoute } from "../http/routes.ts";
import type { UserInfo } from "../kube/reviews.ts";
import type { AuditLog } from "../telemetry/audit.ts";
import { parseTarget, type Route, type SessionNotes } from "./router.ts";

export interface AuditedRequest {
  /** What the endpoint adds. */
  readonly notes: SessionNotes;
  /** Who it turned out to be. */
  user: UserInfo | undefined;
  /** Writes the line. @param error that the request was answered or ended with */
  end(error?: HttpError): void;
}

/** @returns undefined for what is not audited */
export function auditRequest(
  audit: AuditLog,
  routes: readonly Route[],
  request: IncomingMessage,
): AuditedRequest | undefined {
  const { method = "", url = "" } = request;
  const target = targetOf(url);
  const match = target && matchRoute(routes, method, target.path);
  if (target === undefined || typeof match !== "object" || match.route.audit === undefined) return undefined;
  const since = audit.now();
  const action = match.route.audit;
  const { params } = match;
  const { query } = target;
  const words = action === "run" ? (query.get("cmd") ?? "").split(" ") : query.getAll("command");
  const source = [request.socket.remoteAddress, request.socket.remotePort].join(" ");
  const forwardedFor = request.headers["x-forwarded-for"];
  const notes: SessionNotes = {};
  return {
    notes,
    user: undefined,
    end(error) {
      const { username, groups, uid } = this.user ?? {};
      const failed = error !== undefined || notes.failure !== undefined;
      audit.write(action, since, {
        result: !failed ? "ok" : notes.begun === true ? "failed" : "refused",
        status: error?.status,
        reason: error?.message ?? notes.failure,
        user: username,
        userUid: uid,
        groups,
        source,
        // Believed only from the API server, which names its own caller: any other client could send any text here.
        forwardedFor: Array.isArray(forwardedFor) ? forwardedFor.join(", ") : forwardedFor,
        namespace: params["namespace"],
        pod: params["pod"],
        podUid: notes.podUid ?? params["uid"],
        container: params["container"],
        ...(action === "exec" || action === "run" ? audit.command(words) : {}),
        tty: notes.tty,
        stdin: notes.stdin,
        exitCode: notes.exitCode,
        ports: notes.ports && [...notes.ports].slice(0, 64),
      });
    },
  };
}

function targetOf(url: string): { path: string; query: URLSearchParams } | undefined {
  try {
    return parseTarget(url);
  } catch {
    return undefined;
  }
}
