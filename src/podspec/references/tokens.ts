/**
 * Service-account tokens of pods (pkg/kubelet/token): bound to the pod's UID, kept in memory only, never logged, and
 * replaced before they end. A refresh that fails leaves the old token in use while it is valid.
 *
 * Each token has a timer, whose firing is what makes the refresh: it may be early, and asks no clock whether it is
 * right. A token can also become due without a timer (the host slept, the wall clock was set forwards): the next look
 * at the pod finds that in `version`.
 */
import { hoursToMilliseconds } from "date-fns/hoursToMilliseconds";
import { aboutPod, uidOf } from "../../kube/pod.ts";
import type { Kube } from "../../kube/kube.ts";
import { requestToken, type IssuedToken } from "../../kube/tokens.ts";
import type { Pod } from "../../kube/wire.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { unlessAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { tokenKey, type Lookup, type TokenWish } from "../types.ts";

const MAX_AGE_MS = hoursToMilliseconds(24);
const MAX_JITTER_MS = 10_000;
const RETRY_MS = 30_000;
/** However short the life that a server names, no token is asked for more often. */
const MIN_REFRESH_MS = 10_000;

interface TokenManagerOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** A token of the pod with this UID was replaced: its files are to be written again. */
  onChange: (podUid: string) => void;
  /** A token was asked for in vain: for metrics. */
  onFailure?: (() => void) | undefined;
}

/**
 * A moment that has come when either clock has reached it: one may be set, the other stands still while the host
 * sleeps.
 */
interface Moment {
  wall: number;
  monotonic: number;
}

interface Held {
  token: string;
  expiry: Moment;
  refresh: Moment;
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
  readonly #options: TokenManagerOptions;
  readonly #pods = new Map<string, PodTokens>();
  readonly #closed = new AbortController();

  constructor(options: TokenManagerOptions) {
    this.#options = options;
  }

  /** The wanted tokens by `tokenKey`, requested from the API server where there is none or one that is due. */
  async get(pod: Pod, wishes: readonly TokenWish[], signal: AbortSignal): Promise<Map<string, Lookup<string>>> {
    return this.#all(wishes, (wish) => this.#getOne(pod, wish), signal);
  }

  /** Tokens that are used once: each is asked for now, and neither kept nor renewed. By `tokenKey`. */
  async issue(pod: Pod, wishes: readonly TokenWish[], signal: AbortSignal): Promise<Map<string, Lookup<string>>> {
    const until = AbortSignal.any([signal, this.#closed.signal]);
    const one = async (wish: TokenWish): Promise<Lookup<string>> => {
      try {
        return { kind: "found", object: (await this.#request(pod, wish, until)).token };
      } catch (thrown) {
        return { kind: "unknown", message: toError(thrown).message };
      }
    };
    return this.#all(wishes, one, signal);
  }

  /** One such token, with its end. @throws KubeApiError */
  async issueOne(pod: Pod, wish: TokenWish, signal: AbortSignal): Promise<IssuedToken> {
    return await this.#request(pod, wish, AbortSignal.any([signal, this.#closed.signal]));
  }

  /**
   * Changes when a token of the pod was replaced, is due or is over; undefined while one of those wished for was never
   * fetched.
   */
  version(podUid: string, wishes: readonly TokenWish[]): string | undefined {
    const held = this.#pods.get(podUid)?.held;
    const parts: string[] = [];
    for (const wish of wishes) {
      const one = held?.get(tokenKey(wish));
      if (one === undefined) return undefined;
      const state = this.#hasCome(one.expiry) ? " over" : this.#hasCome(one.refresh) ? " due" : "";
      parts.push(`${one.serial}${state}`);
    }
    return parts.join(",");
  }

  /** Drops the tokens of a pod that is gone. */
  release(podUid: string): void {
    const tokens = this.#pods.get(podUid);
    if (tokens === undefined) return;
    for (const cancel of tokens.cancelRefresh.values()) cancel();
    tokens.gone.abort();
    this.#pods.delete(podUid);
  }

  /** Ends every request and every timer; from now on, callers are told that the agent is shutting down. */
  close(): void {
    this.#closed.abort();
    for (const uid of this.#pods.keys()) this.release(uid);
  }

  async #all(
    wishes: readonly TokenWish[],
    one: (wish: TokenWish) => Promise<Lookup<string>>,
    signal: AbortSignal,
  ): Promise<Map<string, Lookup<string>>> {
    const lookups = wishes.map(async (wish) => [tokenKey(wish), await unlessAborted(one(wish), signal)] as const);
    return new Map(await Promise.all(lookups));
  }

  async #getOne(pod: Pod, wish: TokenWish): Promise<Lookup<string>> {
    if (this.#closed.signal.aborted) return { kind: "unknown", message: "the agent is shutting down" };
    const uid = uidOf(pod);
    let tokens = this.#pods.get(uid);
    if (tokens === undefined) {
      tokens = { pod, held: new Map(), pending: new Map(), cancelRefresh: new Map(), gone: new AbortController() };
      this.#pods.set(uid, tokens);
    }
    const held = tokens.held.get(tokenKey(wish));
    if (held !== undefined && !this.#hasCome(held.refresh)) return { kind: "found", object: held.token };
    return this.#fetchOnce(tokens, wish);
  }

  /** One request at a time per token, however many ask for it. */
  #fetchOnce(tokens: PodTokens, wish: TokenWish): Promise<Lookup<string>> {
    const key = tokenKey(wish);
    const { pending } = tokens;
    let fetch = pending.get(key);
    if (fetch === undefined) {
      fetch = this.#fetch(tokens, wish).finally(() => pending.delete(key));
      pending.set(key, fetch);
    }
    return fetch;
  }

  async #fetch(tokens: PodTokens, wish: TokenWish): Promise<Lookup<string>> {
    const { random, logger } = this.#options;
    const key = tokenKey(wish);
    const before = tokens.held.get(key);
    try {
      const issued = await this.#request(tokens.pod, wish, tokens.gone.signal);
      tokens.gone.signal.throwIfAborted();
      const lifeMs = this.#lifeMs(wish, issued);
      const refreshMs = Math.max(MIN_REFRESH_MS, Math.min(lifeMs * 0.8, MAX_AGE_MS) - random() * MAX_JITTER_MS);
      tokens.held.set(key, {
        token: issued.token,
        expiry: this.#in(lifeMs),
        refresh: this.#in(refreshMs),
        serial: (before?.serial ?? 0) + 1,
      });
      this.#schedule(tokens, wish, refreshMs);
      return { kind: "found", object: issued.token };
    } catch (thrown) {
      const error = toError(thrown);
      if (tokens.gone.signal.aborted) return { kind: "unknown", message: "the pod is gone" };
      this.#options.onFailure?.();
      logger.warn(
        { ...aboutPod(tokens.pod), audience: wish.audience, err: error },
        "Service-account token was not issued",
      );
      this.#schedule(tokens, wish, RETRY_MS * (1 + random() / 2));
      if (before === undefined) return { kind: "unknown", message: error.message };
      if (this.#hasCome(before.expiry))
        return { kind: "unknown", message: `token expired and refresh failed: ${error.message}` };
      return { kind: "found", object: before.token };
    }
  }

  #request(pod: Pod, wish: TokenWish, signal: AbortSignal): Promise<IssuedToken> {
    const { name = "", namespace = "", uid = "" } = pod.metadata ?? {};
    return requestToken(
      this.#options.kube,
      {
        namespace,
        serviceAccount: pod.spec?.serviceAccountName ?? "default",
        audiences: wish.audience === "" ? [] : [wish.audience],
        expirationSeconds: wish.expirationSeconds,
        pod: { name, uid },
      },
      signal,
    );
  }

  /**
   * Milliseconds that a token has to live. The server may have shortened it (`--service-account-max-token-expiration`);
   * one that it extended is replaced by the life that the pod asked for all the same. The own clock is asked only where
   * the server does not say when it issued the token, and not believed when by it the token were over already.
   */
  #lifeMs(wish: TokenWish, issued: IssuedToken): number {
    const askedMs = wish.expirationSeconds * 1000;
    const expiresAt = Date.parse(issued.expirationTimestamp);
    for (const issuedAt of [Date.parse(issued.creationTimestamp ?? ""), this.#options.clock.now()]) {
      if (expiresAt - issuedAt > 0) return Math.min(askedMs, expiresAt - issuedAt);
    }
    return askedMs;
  }

  #schedule(tokens: PodTokens, wish: TokenWish, delayMs: number): void {
    const key = tokenKey(wish);
    tokens.cancelRefresh.get(key)?.();
    if (tokens.gone.signal.aborted) return;
    tokens.cancelRefresh.set(
      key,
      this.#options.clock.after(delayMs, () => void this.#renew(tokens, wish)),
    );
  }

  /** Fetches without looking at a clock: it is called by the timer that was set for it, and no other timer follows. */
  async #renew(tokens: PodTokens, wish: TokenWish): Promise<void> {
    const held = () => tokens.held.get(tokenKey(wish));
    const before = held();
    await this.#fetchOnce(tokens, wish);
    if (tokens.gone.signal.aborted) return;
    // One that is over and was not replaced is told too: the machine keeps a file that nobody accepts.
    if (held() !== before || (before !== undefined && this.#hasCome(before.expiry)))
      this.#options.onChange(uidOf(tokens.pod));
  }

  #in(ms: number): Moment {
    return { wall: this.#options.clock.now() + ms, monotonic: this.#options.clock.monotonic() + ms };
  }

  #hasCome(moment: Moment): boolean {
    return this.#options.clock.monotonic() >= moment.monotonic || this.#options.clock.now() >= moment.wall;
  }
}
