/**
 * Keeps a store equal to a collection of the API server: list, then watch for ever. The contract and the numbers are
 * client-go's. What is not obvious:
 *
 * - Lists are quorum reads (no resourceVersion): a list from a lagging cache could go back in time.
 * - resourceVersions are opaque; they are kept and sent back, never compared.
 * - Only "expired" leads to a new list. Every other fault resumes the watch where it was, so an API server that
 *   restarts is not met by a storm of lists.
 * - A watch that says nothing, not even a bookmark (about one a minute), is taken for dead.
 * - A list of any size comes in: a page that is too large, or too slow, is asked for again with fewer items.
 */
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { timeLimit } from "../util/time-limit.ts";
import {
  KubeApiError,
  ReplyTooLargeError,
  isGone,
  isKubeApiError,
  isTooLargeResourceVersion,
  type TransportReason,
} from "./errors.ts";
import type { Kube, WatchEvent, WatchRequest } from "./kube.ts";
import type { SkippedItem } from "./list-decoder.ts";
import type { Store } from "./store.ts";
import type { KubeObject } from "./wire.ts";

type RelistReason =
  | "expired"
  | "too_large_resource_version"
  | "invalid_resource_version"
  /** The watch sent an event of more bytes than are taken: resuming it would bring the same event for ever. */
  | "too_large_event";

export interface ReflectorOptions<T extends KubeObject> {
  kube: Kube;
  /** The collection: see `paths.ts`. */
  path: string;
  query?: { fieldSelector?: string; labelSelector?: string } | undefined;
  store: Store<T>;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Objects that this refuses are skipped and counted: a server that sends another node's pods is not believed. */
  accept?: ((object: T) => boolean) | undefined;
  onError?: ((error: Error) => void) | undefined;
  /** Reconnect after this long without any event. Default 180 s. */
  inactivityMs?: number | undefined;
  /** Default 500. */
  pageSize?: number | undefined;
}

/** What has happened so far, for metrics. */
export interface ReflectorCounters {
  lists: number;
  relists: Record<RelistReason, number>;
  watches: number;
  watchErrors: number;
  events: number;
  bookmarks: number;
  /** Events of unknown type, objects without UID, that are larger than any legal one or that `accept` refused. */
  skipped: number;
}

interface ListReply<T> {
  kind?: string;
  apiVersion?: string;
  metadata?: { resourceVersion?: string; continue?: string };
  items?: T[] | null;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** client-go calls this "very short watch": a server that accepts and drops watches at once must not be hammered. */
const SHORT_WATCH_MS = 1_000;
/**
 * A watch that held for so long ends a row of broken lists and expired versions. client-go waits for two minutes
 * without any: when an API server restarts a few times within them, its informers see nothing for up to a minute.
 */
const SOUND_WATCH_MS = 10_000;

export class Reflector<T extends KubeObject> {
  readonly #options: ReflectorOptions<T>;
  /** Two, as in client-go: a server that is away for a while does not delay the list that is due when it is back. */
  readonly #watchBackoff: Backoff;
  readonly #listBackoff: Backoff;
  readonly #counters: ReflectorCounters = {
    lists: 0,
    relists: { expired: 0, too_large_resource_version: 0, invalid_resource_version: 0, too_large_event: 0 },
    watches: 0,
    watchErrors: 0,
    events: 0,
    bookmarks: 0,
    skipped: 0,
  };
  #resourceVersion: string | undefined;
  #lastActivityAt: number | undefined;
  /** Set when a page of the last list had expired: then the whole list is asked for at once, which cannot. */
  #unpaged = false;
  /** Items to ask for at once: fewer than wanted while pages turn out too large or too slow. */
  #pageSize: number;

  constructor(options: ReflectorOptions<T>) {
    this.#options = options;
    const { clock, random, pageSize = 500 } = options;
    this.#pageSize = pageSize;
    const backoff = () =>
      new Backoff({ initialMs: 800, maxMs: 30_000, jitter: "up", resetAfterMs: 120_000, clock, random });
    this.#watchBackoff = backoff();
    this.#listBackoff = backoff();
  }

  get counters(): Readonly<ReflectorCounters> {
    return this.#counters;
  }

  /** Monotonic time of the last sign of life (list, event or bookmark), in milliseconds; undefined before the first. */
  get lastActivityAt(): number | undefined {
    return this.#lastActivityAt;
  }

  /** Resolves when `signal` aborts; never rejects. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (this.#resourceVersion === undefined) this.#resourceVersion = await this.#list(signal);
        // A listener of the store may have seen all that it wanted.
        if (signal.aborted) return;
        await this.#watch(this.#resourceVersion, signal);
      } catch (thrown) {
        if (signal.aborted) return;
        const delayMs = this.#afterFault(toError(thrown));
        try {
          await this.#options.clock.sleep(delayMs, signal);
        } catch {
          return; // aborted while waiting
        }
      }
    }
  }

  /** Decides whether the watch resumes or a new list is needed. Returns how long to wait first. */
  #afterFault(error: Error): number {
    const { path, logger, onError } = this.#options;
    const retryAfterMs = isKubeApiError(error) ? (error.retryAfterMs ?? 0) : 0;
    const relist = this.#resourceVersion === undefined ? undefined : relistReason(error);
    if (relist) {
      this.#resourceVersion = undefined;
      this.#counters.relists[relist]++;
    }
    const backoff = this.#resourceVersion === undefined ? this.#listBackoff : this.#watchBackoff;
    const delayMs = Math.max(backoff.next(), retryAfterMs);
    const level = relist === "expired" ? "info" : "warn";
    logger[level](
      { err: error, path, delayMs, relist: relist ?? false },
      this.#resourceVersion === undefined ? "List is due again" : "Watch broke and will be resumed",
    );
    onError?.(error);
    return delayMs;
  }

  /** Lists all pages into the store. Returns the list's resourceVersion. */
  async #list(signal: AbortSignal): Promise<string> {
    const { path, store, pageSize = 500, clock } = this.#options;
    this.#counters.lists++;
    const items: T[] = [];
    let token: string | undefined;
    do {
      const page = await this.#page(token, signal);
      if (page === undefined) continue;
      this.#lastActivityAt = clock.monotonic();
      for (const item of page.items ?? []) {
        const object = withKind(item, page);
        if (this.#isWanted(object)) items.push(object);
      }
      token = page.metadata?.continue || undefined;
      if (token === undefined) {
        this.#unpaged = false;
        this.#pageSize = Math.min(pageSize, this.#pageSize * 2);
        const { resourceVersion } = page.metadata ?? {};
        if (!resourceVersion) throw failure("Malformed", `The list ${path} has no metadata.resourceVersion`);
        store.replace(items);
        return resourceVersion;
      }
    } while (!signal.aborted);
    throw signal.reason;
  }

  /**
   * One page, or the whole list when a page had expired. Undefined when it is to be asked for with fewer items at once.
   */
  async #page(token: string | undefined, signal: AbortSignal): Promise<ListReply<T> | undefined> {
    const { kube, path, query } = this.#options;
    const limit = this.#unpaged ? undefined : this.#pageSize;
    try {
      return await kube.request<ListReply<T>>({
        method: "GET",
        path,
        query: { ...query, ...(limit !== undefined && { limit }), continue: token },
        signal,
        list: { onSkipped: (item) => this.#skipped(item) },
      });
    } catch (thrown) {
      if (token !== undefined && isGone(thrown)) this.#unpaged = true;
      if (!isTooMuch(thrown) || limit === 1) throw thrown;
      // The whole list is too much: a page may expire again, but there is no other way.
      if (limit === undefined) this.#unpaged = false;
      else this.#pageSize = Math.max(1, Math.floor(limit / 4));
      // Silence has many causes, so it is met with a pause as any other fault.
      if (!(thrown instanceof ReplyTooLargeError)) throw thrown;
      this.#options.logger.info(
        { path, limit: this.#pageSize },
        "A list is too large at once and comes in smaller pages",
      );
      return undefined;
    }
  }

  #skipped({ namespace, name, bytes }: SkippedItem): void {
    this.#counters.skipped++;
    this.#options.logger.error(
      { path: this.#options.path, namespace, name, bytes },
      "Skipped an object that is larger than any legal one",
    );
  }

  /** One watch connection. Returns when the server ended it in its time, throws when anything else ended it. */
  async #watch(resourceVersion: string, signal: AbortSignal): Promise<void> {
    const { kube, path, query, clock, random, inactivityMs = 180_000 } = this.#options;
    this.#counters.watches++;
    const startedAt = clock.monotonic();
    const connection = timeLimit(clock, signal, { silenceMs: inactivityMs }, (ms) =>
      failure("Timeout", `Watch ${path}: no event and no bookmark for ${ms / 1000} s`),
    );
    let events = 0;
    let openedAt: number | undefined;
    try {
      const request: WatchRequest = {
        path,
        query: {
          ...query,
          resourceVersion,
          allowWatchBookmarks: true,
          timeoutSeconds: Math.floor(300 * (1 + random())),
        },
        signal: connection.signal,
        onOpen: () => (openedAt = clock.monotonic()),
      };
      for await (const event of kube.watch<T>(request)) {
        if (signal.aborted) return;
        events++;
        connection.touch();
        this.#lastActivityAt = clock.monotonic();
        this.#apply(event);
      }
      signal.throwIfAborted();
      if (events === 0 && clock.monotonic() - startedAt < SHORT_WATCH_MS) {
        throw failure("Malformed", `Watch ${path}: the server ended it at once`);
      }
    } catch (thrown) {
      if (!signal.aborted) this.#counters.watchErrors++;
      const heldMs = openedAt === undefined ? 0 : clock.monotonic() - openedAt;
      // client-go takes up a watch that was longer than very short without any pause.
      if (heldMs >= SHORT_WATCH_MS) this.#watchBackoff.reset();
      if (heldMs >= SOUND_WATCH_MS) this.#listBackoff.reset();
      throw thrown;
    } finally {
      connection.release();
    }
  }

  #apply(event: WatchEvent<T>): void {
    const { store, path, logger } = this.#options;
    switch (event.type) {
      case "ADDED":
      case "MODIFIED":
      case "DELETED":
        this.#counters.events++;
        if (this.#isWanted(event.object)) {
          if (event.type === "DELETED") store.remove(event.object);
          else store.upsert(event.object);
        }
        this.#resourceVersion = event.object?.metadata?.resourceVersion ?? this.#resourceVersion;
        return;
      case "BOOKMARK":
        this.#counters.bookmarks++;
        this.#resourceVersion = event.object?.metadata?.resourceVersion ?? this.#resourceVersion;
        return;
      case "ERROR":
        throw inStreamError(path, event.object);
      default:
        this.#counters.skipped++;
        logger.warn({ path, type: (event as { type?: unknown }).type }, "Skipped a watch event of unknown type");
    }
  }

  #isWanted(object: T): boolean {
    const { accept, path, logger } = this.#options;
    if (object?.metadata?.uid && (accept?.(object) ?? true)) return true;
    this.#counters.skipped++;
    const { namespace, name } = object?.metadata ?? {};
    logger.warn({ path, namespace, name }, "Skipped an object that does not belong here or has no UID");
    return false;
  }
}

/** Whether a smaller page may arrive where this one did not. */
function isTooMuch(error: unknown): boolean {
  return isKubeApiError(error) && error.status === 0 && (error.reason === "Malformed" || error.reason === "Timeout");
}

function relistReason(error: Error): RelistReason | undefined {
  if (isGone(error)) return "expired";
  if (isTooLargeResourceVersion(error)) return "too_large_resource_version";
  if (isKubeApiError(error) && error.status === 400) return "invalid_resource_version";
  if (error instanceof ReplyTooLargeError) return "too_large_event";
  return undefined;
}

/** Items of a list lack kind and apiVersion, objects of a watch have them; all other code sees one shape. */
function withKind<T extends KubeObject>(item: T, list: ListReply<T>): T {
  const mutable = item as Mutable<T>;
  if (mutable && mutable.kind === undefined && list.kind?.endsWith("List")) {
    mutable.kind = list.kind.slice(0, -"List".length);
    mutable.apiVersion = list.apiVersion;
  }
  return item;
}

function inStreamError(path: string, status: Extract<WatchEvent<unknown>, { type: "ERROR" }>["object"]): KubeApiError {
  const { code, reason, message, details } = status ?? {};
  return new KubeApiError(`Watch ${path}: ${message ?? reason ?? "the server sent an error"}`, {
    status: code ?? 500,
    reason: reason ?? `HTTP${code ?? 500}`,
    details,
    retryAfterMs: details?.retryAfterSeconds === undefined ? undefined : details.retryAfterSeconds * 1000,
  });
}

function failure(reason: TransportReason, message: string): KubeApiError {
  return new KubeApiError(message, { status: 0, reason });
}
