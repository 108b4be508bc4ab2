/**
 * Counts the long-lived sessions of the kubelet API (exec, attach, port-forward, followed logs) and refuses those
 * beyond the limits of a node, namespace, pod or user.
 */
import type { Pod } from "../kube/wire.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { HttpError } from "../http/http-error.ts";

export type SessionType = "exec" | "attach" | "port-forward" | "logs";

/**
 * How many long-lived sessions there may be. Logs are counted apart: they are many and cheap. There is a bound per
 * namespace because one tenant must not take all of them with a few pods, and one per user because one script must not,
 * but that is wide: to us every user of the API server is the API server.
 */
export interface SessionLimits {
  perNode: number;
  perNamespace: number;
  perPod: number;
  perUser: number;
  logsPerNode: number;
  logsPerNamespace: number;
  logsPerPod: number;
}

export const DEFAULT_SESSION_LIMITS: SessionLimits = {
  perNode: 256,
  perNamespace: 160,
  perPod: 128,
  perUser: 256,
  logsPerNode: 256,
  logsPerNamespace: 160,
  logsPerPod: 64,
};

export class Sessions {
  readonly #limits: SessionLimits;
  readonly #metrics: Metrics;
  readonly #counts = new Map<string, number>();

  constructor(limits: SessionLimits, metrics: Metrics) {
    this.#limits = limits;
    this.#metrics = metrics;
  }

  /**
   * Takes a place for a session, which is given back once: `using session = sessions.open(...)`.
   *
   * @throws HttpError 429 when there is none
   */
  open(type: SessionType, pod: Pod["metadata"], user: string): Disposable {
    const l = this.#limits;
    const { uid: podUid = "", namespace = "" } = pod ?? {};
    const bounds: [key: string, limit: number, reason: string][] =
      type === "logs"
        ? [
            ["logs", l.logsPerNode, "node"],
            [`logs/namespace/${namespace}`, l.logsPerNamespace, "namespace"],
            [`logs/pod/${podUid}`, l.logsPerPod, "pod"],
          ]
        : [
            ["streams", l.perNode, "node"],
            [`streams/namespace/${namespace}`, l.perNamespace, "namespace"],
            [`streams/pod/${podUid}`, l.perPod, "pod"],
            [`streams/user/${user}`, l.perUser, "user"],
          ];
    for (const [key, limit, reason] of bounds) {
      if ((this.#counts.get(key) ?? 0) < limit) continue;
      this.#metrics.streamsRejected.inc({ reason });
      throw new HttpError(429, `too many ${type} sessions: the limit per ${reason} is ${limit}`, [
        ["Retry-After", "5"],
      ]);
    }
    for (const [key] of bounds) this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
    this.#metrics.streams.inc({ type });
    let open = true;
    const leave = () => {
      if (!open) return;
      open = false;
      this.#metrics.streams.dec({ type });
      for (const [key] of bounds) {
        const left = this.#counts.get(key)! - 1;
        if (left === 0) this.#counts.delete(key);
        else this.#counts.set(key, left);
      }
    };
    return { [Symbol.dispose]: leave };
  }
}
