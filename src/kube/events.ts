/**
 * Events, without ever delaying the code that reports them: `event` only queues. What is sent is thinned out as
 * client-go's correlator does it: repeated events raise a count, many similar ones become one, an object that goes on
 * and on is cut off. Events are a service to people; losing some is better than delaying a pod. A namespace's events
 * are sent one after another, those of several namespaces at once: one whose events are refused or slow delays only its
 * own.
 */
import { Backoff } from "../queue/backoff.ts";
import { TokenBucket } from "../queue/rate-limit.ts";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import { rfc3339, type Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { trimEnd } from "../util/text.ts";
import { isKubeApiError, isNamespaceTerminating, isNotFound } from "./errors.ts";
import { EventQueue } from "./event-queue.ts";
import type { Kube } from "./kube.ts";
import { mergePatch } from "./patch.ts";
import { eventsPath } from "./paths.ts";
import type { KubeObject } from "./wire.ts";
import { Pulse } from "../util/pulse.ts";

type EventType = "Normal" | "Warning";

/** The object that an event is about, as `involvedObject`. */
interface ObjectReference {
  readonly apiVersion: string;
  readonly kind: string;
  /** Absent for objects of the cluster; their events are kept in `default`. */
  readonly namespace?: string;
  readonly name: string;
  readonly uid?: string;
  readonly resourceVersion?: string;
  /** For example `spec.containers{app}`. */
  readonly fieldPath?: string;
}

interface EventLimits {
  /**
   * Events that wait at most; beyond that some are dropped, normal ones first. Default 10,000: client-go's 1000 lose
   * some of a burst of pods.
   */
  queue?: number | undefined;
  /** Default 50/s, bursts of 100. */
  perSecond?: number | undefined;
  burst?: number | undefined;
}

export interface EventRecorderOptions {
  kube: Kube;
  clock: Clock;
  logger: Logger;
  /** Spreads the retries of several agents; without it they are not spread. */
  random?: Random | undefined;
  /** `source.component`: "kubelet", which is what tools look for. */
  component: string;
  /** `source.host`: the node's name. */
  host: string;
  limits?: EventLimits | undefined;
  /** Whether there is more urgent work: an event then waits for a quieter moment, but not for long. */
  isBusy?: (() => boolean) | undefined;
  onDropped?: ((reason: DropReason) => void) | undefined;
}

export type DropReason = "queue_full" | "spam" | "rejected" | "unreachable";

interface PendingEvent {
  reference: ObjectReference;
  /** The event's own. */
  namespace: string;
  type: EventType;
  reason: string;
  message: string;
  at: number;
}

interface Sent {
  name: string;
  namespace: string;
  count: number;
}

// client-go's numbers (tools/record/events_cache.go).
const SIMILAR_LIMIT = 10;
const SIMILAR_WINDOW_MS = 600_000;
const SPAM_BURST = 25;
const SPAM_PER_SECOND = 1 / 300;
const CACHE_SIZE = 4096;
const ATTEMPTS = 12;
/** Namespaces whose events are sent at once. */
const SENDERS = 32;
/** Of an object's name, an event's as well as that of what it is about. */
const NAME_LIMIT = 253;
/**
 * How long events wait for a quieter moment, and how often they look. A warning may be what somebody waits for; that
 * all goes well is told when the statuses are written that say so.
 */
const PATIENCE_MS = { Warning: 200, Normal: 10_000 };
const LOOK_MS = 20;
/**
 * What exceeds the limit is sent so often, as much as there may be by then: one by one would cost three times the CPU.
 */
const TOGETHER_MS = 500;

export class EventRecorder {
  readonly #options: EventRecorderOptions;
  readonly #bucket: TokenBucket;
  readonly #queue: EventQueue<PendingEvent>;
  /** Namespaces of which an event is being sent. */
  readonly #sending = new Set<string>();
  /** How many of those that wait may be sent without looking for a quieter moment. */
  #released = 0;
  /** There may be something to send. */
  readonly #work = new Pulse();
  readonly #idle = new Pulse();

  readonly #similar = new LruMap<string, { messages: Set<string>; lastAt: number }>(CACHE_SIZE);
  readonly #sent = new LruMap<string, Sent>(CACHE_SIZE);
  readonly #spam = new LruMap<string, TokenBucket>(CACHE_SIZE);
  #serial = 0;

  constructor(options: EventRecorderOptions) {
    this.#options = options;
    const { queue = 10_000, perSecond = 50, burst = 100 } = options.limits ?? {};
    this.#queue = new EventQueue(queue);
    this.#bucket = new TokenBucket({ perSecond, burst, stepMs: TOGETHER_MS, clock: options.clock });
  }

  /** Queues an event; returns at once and never throws. */
  event(about: ObjectReference | KubeObject, type: EventType, reason: string, message: string): void {
    const reference = referenceTo(about);
    const namespace = reference.namespace || "default";
    const at = this.#options.clock.now();
    const hadRoom = this.#queue.add({ reference, namespace, type, reason, message, at });
    if (!hadRoom) this.#options.onDropped?.("queue_full");
    this.#work.fire();
  }

  /** Events that wait to be sent. */
  get depth(): number {
    return this.#queue.size;
  }

  /** Sends what is queued, for ever. Resolves when `signal` aborts; what is left is not sent. */
  async run(signal: AbortSignal): Promise<void> {
    const underWay = new Set<Promise<void>>();
    while (!signal.aborted) {
      if (this.#released === 0 && this.#queue.size > 0) {
        await this.#quieterMoment(signal);
        this.#released = this.#queue.size;
      }
      const next = this.#released > 0 ? this.#takeNext() : undefined;
      if (next === undefined) {
        // What was let go of may have made way for others meanwhile.
        if (this.#queue.size === 0) this.#released = 0;
        if (this.#isIdle()) this.#idle.fire();
        await this.#work.wait(signal);
        continue;
      }
      this.#released--;
      this.#sending.add(next.namespace);
      const sending = this.#sendOrReport(next, signal).finally(() => {
        underWay.delete(sending);
        this.#sending.delete(next.namespace);
        this.#work.fire();
      });
      underWay.add(sending);
    }
    await Promise.all(underWay);
  }

  #takeNext(): PendingEvent | undefined {
    if (this.#sending.size >= SENDERS) return undefined;
    return this.#queue.next((namespace) => !this.#sending.has(namespace));
  }

  #isIdle(): boolean {
    return this.#queue.size === 0 && this.#sending.size === 0;
  }

  async #sendOrReport(event: PendingEvent, signal: AbortSignal): Promise<void> {
    try {
      await this.#send(event, signal);
    } catch (thrown) {
      if (!signal.aborted) this.#options.logger.error({ err: thrown }, "Sending an event failed");
    }
  }

  /**
   * Resolves when everything queued so far and since was sent or dropped; `run` must be running.
   * @throws the signal's reason
   */
  async flush(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#isIdle()) return;
    await this.#idle.wait(signal);
    signal.throwIfAborted();
  }

  async #send(event: PendingEvent, signal: AbortSignal): Promise<void> {
    const { clock, onDropped, logger } = this.#options;
    const { key, message } = this.#aggregate(event);
    if (!this.#mayGoOn(event.reference)) {
      onDropped?.("spam");
      return;
    }
    const backoff = new Backoff({
      initialMs: 500,
      maxMs: 10_000,
      clock,
      random: this.#options.random ?? (() => 0),
      jitter: "up",
    });
    for (let attempt = 1; ; attempt++) {
      await this.#bucket.take(signal);
      try {
        await this.#write(event, key, message, signal);
        return;
      } catch (thrown) {
        if (signal.aborted) throw thrown;
        // As client-go: what the API server has refused, for whatever reason, it is not asked for again, unless it said
        // when.
        const mayHeal = isKubeApiError(thrown) && (thrown.status === 0 || thrown.retryAfterMs !== undefined);
        if (!mayHeal || attempt === ATTEMPTS) {
          onDropped?.(mayHeal ? "unreachable" : "rejected");
          // A terminating namespace takes no events: expected at every deletion of a namespace.
          const level = isNamespaceTerminating(thrown) ? "debug" : "warn";
          logger[level]({ err: thrown, reason: event.reason, about: event.reference.name }, "Dropped an event");
          return;
        }
        await clock.sleep(Math.max(backoff.next(), thrown.retryAfterMs ?? 0), signal);
      }
    }
  }

  async #quieterMoment(signal: AbortSignal): Promise<void> {
    const { clock, isBusy } = this.#options;
    const normalAt = clock.monotonic() + PATIENCE_MS.Normal;
    let dueAt = normalAt;
    while (clock.monotonic() < dueAt && isBusy?.() === true && !signal.aborted) {
      const warningAt = this.#queue.warnings > 0 ? clock.monotonic() + PATIENCE_MS.Warning : normalAt;
      dueAt = Math.min(dueAt, warningAt);
      await pause(clock, LOOK_MS, signal);
    }
  }

  /** Counts up the event that was sent before under `key`, or creates a new one. */
  async #write(event: PendingEvent, key: string, message: string, signal: AbortSignal): Promise<void> {
    const { kube } = this.#options;
    const sent = this.#sent.get(key);
    if (sent) {
      try {
        await kube.request({
          ...mergePatch(`${eventsPath(sent.namespace)}/${encodeURIComponent(sent.name)}`, {
            count: sent.count + 1,
            lastTimestamp: rfc3339(event.at),
            message,
          }),
          signal,
          lane: "event",
          metadataOnly: true,
        });
        sent.count++;
        return;
      } catch (thrown) {
        // Events live for an hour; this one is over, so begin a new one.
        if (!isNotFound(thrown)) throw thrown;
        this.#sent.delete(key);
      }
    }
    const body = this.#build(event, message);
    const { name, namespace } = body.metadata;
    await kube.request({
      method: "POST",
      path: eventsPath(namespace),
      body,
      signal,
      lane: "event",
      metadataOnly: true,
    });
    this.#sent.set(key, { name, namespace, count: 1 });
  }

  #build({ reference, namespace, type, reason, at }: PendingEvent, message: string) {
    const { component, host } = this.#options;
    // client-go: object name and the time in hexadecimal nanoseconds; the serial stands for the nanoseconds.
    const unique = (BigInt(at) * 1_000_000n + BigInt(this.#serial++ % 1_000_000)).toString(16);
    const time = rfc3339(at);
    return {
      apiVersion: "v1",
      kind: "Event",
      metadata: { name: `${cut(reference.name, NAME_LIMIT - 1 - unique.length)}.${unique}`, namespace },
      involvedObject: reference,
      type,
      reason,
      message,
      source: { component, host },
      firstTimestamp: time,
      lastTimestamp: time,
      count: 1,
      reportingComponent: component,
      reportingInstance: host,
    };
  }

  /** From the tenth differing message on, events of one object, type and reason share one key and say so. */
  #aggregate({ reference, type, reason, message, at }: PendingEvent): { key: string; message: string } {
    const group = JSON.stringify([objectKey(reference), type, reason]);
    let similar = this.#similar.get(group);
    if (!similar || at - similar.lastAt > SIMILAR_WINDOW_MS) {
      similar = { messages: new Set(), lastAt: at };
      this.#similar.set(group, similar);
    }
    similar.lastAt = at;
    similar.messages.add(message);
    if (similar.messages.size < SIMILAR_LIMIT) {
      return { key: JSON.stringify([group, reference.fieldPath, message]), message };
    }
    // Bounds the set, and lets the group fall below the limit again when messages stop differing.
    const [oldest] = similar.messages;
    similar.messages.delete(oldest!);
    return { key: group, message: `(combined from similar events): ${message}` };
  }

  #mayGoOn(reference: ObjectReference): boolean {
    const key = objectKey(reference);
    let bucket = this.#spam.get(key);
    if (!bucket) {
      bucket = new TokenBucket({ perSecond: SPAM_PER_SECOND, burst: SPAM_BURST, clock: this.#options.clock });
      this.#spam.set(key, bucket);
    }
    return bucket.tryTake();
  }
}

/** The first letters of a name, as a name. */
function cut(name: string, length: number): string {
  return name.length <= length ? name : trimEnd(name.slice(0, length), "-.");
}

function objectKey(r: ObjectReference): string {
  return JSON.stringify([r.kind, r.namespace, r.name, r.uid, r.apiVersion]);
}

function referenceTo(about: ObjectReference | KubeObject): ObjectReference {
  if ("name" in about) return about;
  const { apiVersion, kind, metadata } = about;
  return {
    apiVersion: apiVersion ?? "v1",
    kind: kind ?? "",
    name: metadata?.name ?? "",
    ...(metadata?.namespace !== undefined && { namespace: metadata.namespace }),
    ...(metadata?.uid !== undefined && { uid: metadata.uid }),
    ...(metadata?.resourceVersion !== undefined && { resourceVersion: metadata.resourceVersion }),
  };
}

/** A Map that forgets what was used longest ago. */
class LruMap<K, V> {
  readonly #entries = new Map<K, V>();
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get(key: K): V | undefined {
    const value = this.#entries.get(key);
    if (value === undefined) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, value);
    return value;
  }

  set(key: K, value: V): void {
    this.#entries.delete(key);
    this.#entries.set(key, value);
    if (this.#entries.size > this.#limit) this.#entries.delete(this.#entries.keys().next().value!);
  }

  delete(key: K): void {
    this.#entries.delete(key);
  }
}
