/**
 * The audit of the Machine API: one line for each machine or volume that is created, changed, stopped or deleted, for
 * ranges of addresses that are told or given back, and for each exec, attach and connection to a port, also for one
 * that was refused.
 */
import type { IncomingMessage } from "node:http";
import {
  AuditLog,
  LABEL_CLUSTER,
  LABEL_NODE,
  matchRoute,
  type Provider,
  type ProviderError,
  type RoutePattern,
} from "../../../src/provider/kit/index.ts";
import { STATUS_OF_CODE } from "../wire.ts";

export type AuditedAction =
  | "create"
  | "update"
  | "stop"
  | "delete"
  | "exec"
  | "attach"
  | "port-forward"
  | `${"create" | "resize" | "delete" | "reserve" | "release"}-volume`
  | `${"create" | "delete"}-image`
  | `${"tell" | "give-back"}-ranges`
  | "tell-services";

/** A route that may be audited. */
export interface AuditedRoute extends RoutePattern {
  /** Absent: it is not. */
  audit?: AuditedAction | undefined;
}

type Labels = Readonly<Record<string, string>>;

export interface AuditedCall {
  /** Who it turned out to be. */
  client: string | undefined;
  /** Of the machine or volume that was asked for, when the request says them. */
  labels: Labels | undefined;
  /** Of a command. */
  exitCode: number | undefined;
  /** The session's channel was opened. */
  opened: boolean;
  /** Writes the line, once. @param error that the call was answered or ended with */
  end(error?: ProviderError): void;
}

export class CallAudit {
  readonly #log: AuditLog;
  readonly #routes: readonly AuditedRoute[];
  readonly #provider: Provider;

  /** @param provider asked for the labels of machines: whose they are */
  constructor(log: AuditLog, routes: readonly AuditedRoute[], provider: Provider) {
    this.#log = log;
    this.#routes = routes;
    this.#provider = provider;
  }

  /** @returns undefined for what is not audited */
  begin(request: IncomingMessage, requestId: string): AuditedCall | undefined {
    // Read as the routes read it, or another spelling of a path would pass by.
    const url = URL.parse(request.url ?? "/", "http://backend");
    if (url === null) return undefined;
    const match = matchRoute(this.#routes, request.method ?? "", url.pathname);
    if (typeof match !== "object" || match.route.audit === undefined) return undefined;
    const action = match.route.audit;
    const { id = "", container, port, reservation } = match.params;
    const isVolume = action.endsWith("-volume");
    const since = this.#log.now();
    const { remoteAddress, remotePort } = request.socket;
    const write = (call: AuditedCall, labels: Labels, error: ProviderError | undefined) => {
      const wasDone = call.opened || error?.code === "unavailable";
      this.#log.write(action, since, {
        result: error === undefined ? "ok" : wasDone ? "failed" : "refused",
        status: error === undefined || call.opened ? undefined : STATUS_OF_CODE[error.code],
        reason: error?.message,
        client: call.client,
        source: remoteAddress === undefined ? "socket" : `${remoteAddress} ${remotePort}`,
        ...(id === "" ? {} : { [isVolume ? "volume" : "machine"]: decoded(id) }),
        ...(reservation === undefined ? {} : { reservation: decoded(reservation) }),
        cluster: labels[LABEL_CLUSTER],
        node: labels[LABEL_NODE],
        ...(container === undefined ? {} : { container: decoded(container) }),
        ...(action === "exec" ? this.#log.command(url.searchParams.getAll("command")) : {}),
        ...(port === undefined ? {} : { port: decoded(port) }),
        exitCode: call.exitCode,
        requestId,
      });
    };
    let ended = false;
    const call: AuditedCall = {
      client: undefined,
      labels: undefined,
      exitCode: undefined,
      opened: false,
      end: (error) => {
        if (!ended) void this.#finish(call, { id: decoded(id), isVolume }, (labels) => write(call, labels, error));
        ended = true;
      },
    };
    return call;
  }

  async #finish(
    call: AuditedCall,
    what: { id: string; isVolume: boolean },
    write: (labels: Labels) => void,
  ): Promise<void> {
    // A stranger is not to make the provider work.
    const isKnown = call.labels !== undefined || call.client === undefined;
    write(isKnown ? (call.labels ?? {}) : await this.#labelsOf(what));
  }

  async #labelsOf({ id, isVolume }: { id: string; isVolume: boolean }): Promise<Labels> {
    const signal = AbortSignal.timeout(LOOKUP_MS);
    try {
      if (isVolume) return (await this.#provider.volumes?.get(id, { signal }))?.labels ?? {};
      return (await this.#provider.getPod(id, { signal })).labels;
    } catch {
      return {};
    }
  }
}

/** A line waits no longer for the machine's labels. */
export const LOOKUP_MS = 5_000;

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
