/**
 * Service-account tokens of pods (pkg/kubelet/token): bound to the pod's UID, kept in memory only, never logged, and
 * replaced before they end. A refresh that fails leaves the old token in use while it is valid.
 */
import { hoursToMilliseconds } from "date-fns/hoursToMilliseconds";
import type { Kube } from "../kube/kube.ts";
import { requestToken } from "../kube/tokens.ts";
import type { Pod } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { tokenKey, type Lookup, type TokenWish } from "./inputs.ts";

const MAX_AGE_MS = hoursToMilliseconds(24);
const MAX_JITTER_MS = 10_000;
const RETRY_MS = 30_000;

export interface TokenManagerOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** A token of the pod with this UID was replaced: its files are to be written again. */
  onChange: (podUid: string) => void;
}

interface Held {
  token: string;
  /** Wall-clock milliseconds. */
  expiresAt: number;
  refreshAt: number;
  /** Grows with each refresh. */
  serial: number;
}

interface PodTokens {
  pod: Pod;
  held: Map<string, Held>;
  pending: Map<string, Promise<Lookup<string>>>;
  cancelRefresh: Map<string, () => void>;
  gone: AbortController;
}

export class TokenManager {
  readonly #o: TokenManagerOptions;
  readonly #pods = new Map<string, PodTokens>();

  constructor(options: TokenManagerOptions) {
    this.#o = options;
  }

  /** The tokens that are wished for, asked of the API server where there is none or an old one; by `tokenKey`. */
  async get(pod: Pod, wishes: readonly TokenWish[], signal: AbortSignal): Promise<Map<string, Lookup<string>>> {
    const pairs = await Promise.all(
      wishes.map(async (wish) => {
        const lookup = await abortable(this.#getOne(pod, wish), signal);
        return [tokenKey(wish), lookup] as const;
      }),
    );
    return new Map(pairs);
  }

  /** Changes when a token of the pod was replaced; undefined while one of those wished for was never fetched. */
  version(podUid: string, wishes: readonly TokenWish[]): string | undefined {
    const held = this.#pods.get(podUid)?.held;
    const parts = wishes.map((wish) => held?.get(tokenKey(wish))?.serial);
    return parts.includes(undefined) ? undefined : parts.join(",");
  }

  /** Drops the tokens of a pod that is gone. */
  release(podUid: string): void {
    const tokens = this.#pods.get(podUid);
    if (tokens === undefined) return;
    for (const cancel of tokens.cancelRefresh.values()) cancel();
    tokens.gone.abort();
    this.#pods.delete(podUid);
  }

  async #getOne(pod: Pod, wish: TokenWish): Promise<Lookup<string>> {
    const uid = pod.metadata?.uid ?? "";
    let tokens = this.#pods.get(uid);
    if (tokens === undefined) {
      tokens = { pod, held: new Map(), pending: new Map(), cancelRefresh: new Map(), gone: new AbortController() };
      this.#pods.set(uid, tokens);
    }
    const key = tokenKey(wish);
    const held = tokens.held.get(key);
    if (held !== undefined && this.#o.clock.now() < held.refreshAt) return { kind: "found", object: held.token };
    // One request at a time per token, however many ask for it.
    let pending = tokens.pending.get(key);
    if (pending === undefined) {
      const { pending: requests } = tokens;
      pending = this.#fetch(tokens, wish).finally(() => requests.delete(key));
      requests.set(key, pending);
    }
    return pending;
  }

  async #fetch(tokens: PodTokens, wish: TokenWish): Promise<Lookup<string>> {
    const { kube, clock, random, logger } = this.#o;
    const key = tokenKey(wish);
    const { name = "", namespace = "", uid = "" } = tokens.pod.metadata ?? {};
    const before = tokens.held.get(key);
    try {
      const issued = await requestToken(
        kube,
        {
          namespace,
          serviceAccount: tokens.pod.spec?.serviceAccountName ?? "default",
          audiences: wish.audience === "" ? [] : [wish.audience],
          expirationSeconds: wish.expirationSeconds,
          pod: { name, uid },
        },
        tokens.gone.signal,
      );
      const now = clock.now();
      const lifeMs = wish.expirationSeconds * 1000;
      // The server may have extended the token; it is replaced by the life that the pod asked for all the same.
      const refreshMs = Math.min(lifeMs * 0.8, MAX_AGE_MS) - random() * MAX_JITTER_MS;
      tokens.held.set(key, {
        token: issued.token,
        expiresAt: Date.parse(issued.expirationTimestamp),
        refreshAt: now + Math.max(0, refreshMs),
        serial: (before?.serial ?? 0) + 1,
      });
      this.#schedule(tokens, wish, Math.max(1_000, refreshMs));
      return { kind: "found", object: issued.token };
    } catch (thrown) {
      const error = toError(thrown);
      if (tokens.gone.signal.aborted) return { kind: "unknown", message: "the pod is gone" };
      logger.warn(
        { pod: `${namespace}/${name}`, uid, audience: wish.audience, err: error.message },
        "Service-account token was not issued",
      );
      this.#schedule(tokens, wish, RETRY_MS * (1 + random() / 2));
      if (before === undefined) return { kind: "unknown", message: error.message };
      if (clock.now() >= before.expiresAt)
        return { kind: "unknown", message: `token expired and refresh failed: ${error.message}` };
      return { kind: "found", object: before.token };
    }
  }

  #schedule(tokens: PodTokens, wish: TokenWish, delayMs: number): void {
    const key = tokenKey(wish);
    const uid = tokens.pod.metadata?.uid ?? "";
    tokens.cancelRefresh.get(key)?.();
    if (tokens.gone.signal.aborted) return;
    const cancel = this.#o.clock.after(delayMs, () => {
      const serial = tokens.held.get(key)?.serial;
      void this.#getOne(tokens.pod, wish).then(() => {
        if (tokens.held.get(key)?.serial !== serial && !tokens.gone.signal.aborted) this.#o.onChange(uid);
      });
    });
    tokens.cancelRefresh.set(key, cancel);
  }
}

/** The shared request lives on when one of those who wait for it gives up. */
async function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  let onAbort: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason as Error);
    signal.addEventListener("abort", onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    if (onAbort) signal.removeEventListener("abort", onAbort);
  }
}
