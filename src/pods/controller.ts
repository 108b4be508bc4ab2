/**
 * The pods of one node: keeps the list of pods that are bound to it, the list of machines that the backend runs for it,
 * and calls the reconciler for every UID that either side says something new about. What is decided lies in
 * `planner.ts`, what is written in `status/pod-status.ts`, what is done in `reconciler.ts`; here is only the wiring and
 * the clockwork.
 */
import { aboutPod, uidOf } from "../kube/pod.ts";
import { isConflict } from "../kube/errors.ts";
import type { EventRecorder } from "../kube/events.ts";
import type { Kube } from "../kube/kube.ts";
import { podsPath } from "../kube/paths.ts";
import { Reflector } from "../kube/reflector.ts";
import { Store } from "../kube/store.ts";
import type { Pod } from "../kube/wire.ts";
import { LABEL_NAMESPACE, LABEL_UID, machineId, ownerLabels, parseMachineId } from "../podspec/machine-id.ts";
import type { Provider, ProviderInfo } from "../provider/provider.ts";
import { KeyedQueue, type QueueMetrics, type Urgency } from "../queue/keyed-queue.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { cutBytes } from "../util/text.ts";
import type { Random } from "../util/random.ts";
import { MachineCache, MachineObserver } from "./machines.ts";
import type { Observed } from "./decision.ts";
import type { plan } from "./planner.ts";
import type { PodEvent } from "../podspec/types.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { PodHooks } from "./hooks.ts";
import { type EvictionBrake, EvictionZones } from "./eviction-brake.ts";
import { LossBrake } from "./loss-brake.ts";
import { isUrgent } from "./urgency.ts";
import type { Outcome, ReadinessSource, Renderer } from "./reconciler-options.ts";
import { PodReconciler } from "./reconciler.ts";

export interface PodControllerOptions {
  kube: Kube;
  provider: Provider;
  renderer: Renderer;
  events: EventRecorder;
  nodeName: string;
  clusterId: string;
  hostIPs: () => readonly string[];
  /** Whether a machine can have this address. Default: any. */
  acceptsAddress?: ((ip: string) => boolean) | undefined;
  /** Pods worked on at once. */
  concurrency: number;
  sweep: { enabled: boolean; maxPerMinute: number };
  /** Annotate pods of ReplicaSets so that scale-in removes them first. */
  markCheapToDelete?: boolean | undefined;
  /** Those of all nodes that this process serves. Default: this node is the only one. */
  evictions?: EvictionZones | undefined;
  /** Throws when this agent has lost its leadership. */
  guard?: (() => void) | undefined;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Told what the backend is and can do, at the start and each time that it is asked again. */
  onInfo?: ((info: ProviderInfo) => void) | undefined;
  readiness?: ReadinessSource | undefined;
  /**
   * How a machine's id is made of a pod's UID, and what is decided: a simulation puts broken ones here to see them
   * caught.
   */
  machineId?: ((podUid: string) => string) | undefined;
  plan?: typeof plan | undefined;
  /** For metrics. */
  hooks?: PodHooks | undefined;
  queueMetrics?: QueueMetrics | undefined;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
}

/**
 * The API server sends a bookmark each minute. What is silent for longer may be a proxy that keeps the connection
 * though its own to the server is gone: taking the watch up again costs one request, and a pod should not wait for it
 * for long.
 */
const WATCH_SILENCE_MS = 75_000;
/** Every pod is looked at this often even when nothing happens (kubelet: syncFrequency). */
export const RESYNC_MS = 60_000;
/** Some at a time: a timer for each of thousands of pods would keep an idle process awake. */
const RESYNC_STEP_MS = 500;
/**
 * So much time for each pod that is looked at for the first time and runs as it should: most of the API server's rate
 * is left.
 */
const FIRST_LOOK_MS = 40;
/** A backend that says "again at once" must not be asked in a loop. */
const MIN_RETRY_MS = 1_000;
/** A backend, a tenant or a webhook may have written some of it. */
const MAX_EVENT_BYTES = 4096;
/** With the queue's back-off, two to four minutes of failures. */
const STUCK_FAILURES = 10;

export class PodController {
  readonly store: Store<Pod>;
  readonly machines: MachineCache;
  readonly observer: MachineObserver;
  readonly losses: LossBrake;
  readonly reflector: Reflector<Pod>;
  readonly queue: KeyedQueue;
  readonly #options: PodControllerOptions;
  readonly #machineId: (podUid: string) => string;
  readonly #reconciler: PodReconciler;
  readonly #evictions: EvictionBrake;
  /** Monotonic time at which a pod was first heard of, until it is looked at. */
  readonly #newAt = new Map<string, number>();
  /** UIDs at whose last look something was thrown, so that their users are told once. */
  readonly #broken = new Set<string>();
  /** What is not believed of the machines of these UIDs, as their users were told. */
  readonly #doubts = new Map<string, string>();
  #reapBudget: number;
  /** A standby must not gather what it does not work on: pods come and go for as long as it waits. */
  #acts = false;

  constructor(options: PodControllerOptions) {
    this.#options = options;
    this.#machineId = options.machineId ?? ((uid) => machineId(options.clusterId, uid));
    const { clock, random, logger, kube, provider, clusterId, nodeName } = options;
    const owner = ownerLabels(clusterId, nodeName);
    this.#reapBudget = options.sweep.maxPerMinute;
    this.store = new Store<Pod>({ logger });
    this.machines = new MachineCache({
      clock,
      onChange: (id) => this.#machineChanged(id),
      acceptsAddress: options.acceptsAddress,
    });
    this.queue = new KeyedQueue({
      clock,
      random,
      concurrency: options.concurrency,
      groupOf: (uid) => this.#namespaceOf(uid),
      metrics: options.queueMetrics,
      handle: (uid, signal) => this.#reconcile(uid, signal),
      logger,
    });
    this.reflector = new Reflector<Pod>({
      kube,
      path: podsPath(),
      query: { fieldSelector: `spec.nodeName=${nodeName}` },
      store: this.store,
      clock,
      random,
      logger,
      accept: (pod) => pod.spec?.nodeName === nodeName,
      inactivityMs: WATCH_SILENCE_MS,
    });
    this.observer = new MachineObserver({
      provider,
      cache: this.machines,
      labels: owner,
      clock,
      random,
      logger,
      onInfo: options.onInfo,
      onSynced: () => this.resyncAll(),
      onListed: options.hooks?.onListed,
    });
    this.losses = new LossBrake({ clock, pods: () => this.store.size });
    this.#evictions = (options.evictions ?? new EvictionZones({ clock })).zone(() => this.machines.sights);
    this.#reconciler = new PodReconciler({
      losses: this.losses,
      evictions: this.#evictions,
      kube,
      provider,
      pods: this.store,
      machines: this.machines,
      renderer: options.renderer,
      machineId: this.#machineId,
      ownerLabels: owner,
      nodeName,
      hostIPs: options.hostIPs,
      event: (pod, event) => this.event(pod, event),
      onLook: (uid) => this.queue.seen(uid),
      requeue: (uid) => this.requeue(uid),
      markCheapToDelete: options.markCheapToDelete ?? false,
      mayReap: () => options.sweep.enabled && this.#reapBudget-- > 0,
      guard: options.guard,
      plan: options.plan,
      readiness: options.readiness,
      hooks: options.hooks,
      tracing: options.tracing,
      clock,
      logger,
    });
    this.store.onChange((change) => {
      const uid = uidOf(change.object);
      if (change.type === "delete") {
        this.#doubts.delete(uid);
        if (this.#acts || this.machines.has(this.#machineId(uid))) this.#reconciler.podGone(change.object);
      } else if (this.#acts && !this.#newAt.has(uid) && change.previous === undefined)
        this.#newAt.set(uid, clock.monotonic());
      if (change.type === "upsert" && this.#reconciler.isOwnWrite(change.object)) return;
      // A full list repeats everything.
      const isRepeated =
        change.type === "upsert" &&
        change.previous?.metadata?.resourceVersion === change.object.metadata?.resourceVersion;
      this.#add(uid, isRepeated);
    });
  }

  /** The pod with the newest status that this process knows of: its own writes come back late. */
  latest(pod: Pod): Pod {
    return this.#reconciler.latest(pod);
  }

  /** The node is served no more. */
  close(): void {
    this.#evictions.close();
  }

  /** UIDs that are being worked on or waited for. */
  get working(): number {
    return [...this.#reconciler.knownUids()].length;
  }

  /** How many pods failed so often in a row that waiting for the next try has not helped for minutes. */
  get stuck(): number {
    return this.store.list().filter((pod) => this.queue.failures(uidOf(pod)) >= STUCK_FAILURES).length;
  }

  /** Looks at a pod again soon: something that it refers to has changed. */
  requeue(uid: string): void {
    this.#add(uid);
  }

  /** Looks at everything again that is known of on either side, as soon as that is due. */
  resyncAll(): void {
    for (const uid of this.#everyUid()) this.#add(uid);
  }

  #everyUid(): Set<string> {
    const uids = new Set(this.#reconciler.knownUids());
    for (const pod of this.store.list()) uids.add(uidOf(pod));
    for (const id of this.machines.ids()) {
      const uid = this.#uidOf(id);
      if (uid !== undefined) uids.add(uid);
    }
    return uids;
  }

  /** Of the pod, or of the machine that it has left. */
  #namespaceOf(uid: string): string {
    const pod = this.store.get(uid);
    if (pod !== undefined) return pod.metadata!.namespace!;
    const observed = this.machines.observe(this.#machineId(uid));
    return (observed.kind === "found" && observed.machine.labels[LABEL_NAMESPACE]) || "";
  }

  /**
   * @param mayWait nothing new is known. So it is with pods that ran when this process started and still do: looking at
   *   each for the first time costs requests, which must not stand in the way of those for whom somebody waits.
   */
  #add(uid: string, mayWait = !this.#reconciler.knows(uid)): void {
    if (!this.#acts) return;
    const urgency = this.#urgencyOf(uid);
    if (urgency === "high" || !mayWait) this.queue.add(uid, urgency);
    else {
      const withinMs = Math.min(RESYNC_MS, this.store.size * FIRST_LOOK_MS);
      this.queue.addAfter(uid, withinMs * this.#options.random(), "low");
    }
  }

  #urgencyOf(uid: string): Urgency {
    const pod = this.store.get(uid);
    const isHigh =
      pod === undefined
        ? this.store.synced
        : isUrgent(pod, this.machines.observe(machineId(this.#options.clusterId, uid)));
    return isHigh ? "high" : "normal";
  }

  /** Keeps what is known of both sides up to date, without changing anything: all that a standby does. */
  async observe(signal: AbortSignal): Promise<void> {
    await Promise.all([this.reflector.run(signal), this.observer.run(signal)]);
  }

  /** Brings pods and machines together. Needs `observe` beside it; may be called once. */
  async act(signal: AbortSignal): Promise<void> {
    this.#acts = true;
    await Promise.all([this.queue.run(signal), this.#tick(signal)]);
  }

  /**
   * The periodic part: everything is looked at again, a few at a time over the period, and the sweep may remove a few
   * more orphans.
   */
  async #tick(signal: AbortSignal): Promise<void> {
    await this.store.hasSynced(signal).catch(() => undefined);
    this.resyncAll();
    while (!signal.aborted) {
      this.#reapBudget = this.#options.sweep.maxPerMinute;
      await this.#options.clock.sleep(RESYNC_MS, signal).catch(() => undefined);
      const uids = this.#everyUid();
      let turn = 0;
      for (const uid of uids) {
        const atMs = (RESYNC_MS * turn++) / uids.size;
        this.queue.addAfter(uid, Math.floor(atMs / RESYNC_STEP_MS) * RESYNC_STEP_MS, "low");
      }
    }
  }

  async #reconcile(uid: string, signal: AbortSignal): Promise<void> {
    const start = this.#options.clock.monotonic();
    const newAt = this.#newAt.get(uid);
    if (newAt !== undefined) {
      this.#newAt.delete(uid);
      this.#options.hooks?.onFirstLook?.((start - newAt) / 1000);
    }
    const outcome = await this.#look(uid, signal);
    const urgency = this.#urgencyOf(uid);
    this.#options.hooks?.onReconciled?.((this.#options.clock.monotonic() - start) / 1000, outcome.kind);
    switch (outcome.kind) {
      case "settled":
        this.queue.forget(uid);
        return;
      case "after":
        this.queue.forget(uid);
        this.queue.addAfter(uid, outcome.ms, urgency);
        return;
      case "retry":
        if (signal.aborted) return;
        // Losing a write to another writer is normal; the next visit sees what it wrote.
        this.#options.logger[isConflict(outcome.error) ? "debug" : "warn"](
          { ...this.#about(uid), err: outcome.error },
          "Pod could not be brought forward and will be tried again",
        );
        if (outcome.afterMs !== undefined) this.queue.addAfter(uid, Math.max(outcome.afterMs, MIN_RETRY_MS), urgency);
        else this.queue.retry(uid, urgency);
    }
  }

  #about(uid: string): object {
    const pod = this.store.get(uid);
    return pod === undefined ? { namespace: this.#namespaceOf(uid), uid } : aboutPod(pod);
  }

  /** What no step of the reconciler catches is a mistake, here or in the pod; its user sees it nowhere else. */
  async #look(uid: string, signal: AbortSignal): Promise<Outcome> {
    try {
      const outcome = await this.#reconciler.reconcile(uid, signal);
      this.#broken.delete(uid);
      return outcome;
    } catch (thrown) {
      const error = toError(thrown);
      const pod = this.store.get(uid);
      if (pod !== undefined && !this.#broken.has(uid) && !signal.aborted) {
        this.#broken.add(uid);
        this.event(pod, { type: "Warning", reason: "FailedSync", message: `Error syncing pod: ${error.message}` });
      }
      return { kind: "retry", error };
    }
  }

  #machineChanged(id: string): void {
    const observed = this.machines.observe(id);
    const uid = this.#uidOf(id);
    if (uid === undefined) return;
    this.#tellOfDoubt(uid, id, observed);
    if (!this.#acts) this.#reconciler.forgetGone(uid);
    this.#add(uid);
  }

  /** Of the pod that a machine is for; undefined for one that is not of this cluster. */
  #uidOf(id: string): string | undefined {
    const observed = this.machines.observe(id);
    return (
      parseMachineId(this.#options.clusterId, id) ??
      (observed.kind === "found" ? observed.machine.labels[LABEL_UID] : undefined)
    );
  }

  /** Tells a pod's user, once for each reason, what of its machine's description is not believed. */
  #tellOfDoubt(uid: string, id: string, observed: Observed): void {
    const stray = this.machines.strayAddresses(id);
    const doubt =
      observed.kind === "unknown"
        ? doubtOf("MachineUnknown", observed.machine?.reason)
        : doubtOf("AddressIgnored", stray.join(", "));
    if (doubt === undefined) this.#doubts.delete(uid);
    const pod = this.store.get(uid);
    if (doubt === undefined || pod === undefined || !this.#acts || this.#doubts.get(uid) === doubt.message) return;
    this.#doubts.set(uid, doubt.message);
    if (doubt.reason === "AddressIgnored") this.#options.hooks?.onAddressIgnored?.(stray.length);
    this.event(pod, { type: "Warning", ...doubt });
  }

  /** Says something about a pod to its user; returns at once. */
  event(pod: Pod, event: PodEvent): void {
    const { namespace, name, uid } = pod.metadata!;
    this.#options.events.event(
      {
        apiVersion: "v1",
        kind: "Pod",
        namespace: namespace!,
        name: name!,
        uid: uid!,
        ...(event.fieldPath && { fieldPath: event.fieldPath }),
      },
      event.type,
      event.reason,
      cutBytes(this.#options.renderer.redact?.(uid!, event.message) ?? event.message, MAX_EVENT_BYTES),
    );
  }
}

const DOUBTS = {
  MachineUnknown: (what: string) =>
    `What the backend says of the pod's machine cannot be used, so its status stays as it is: ${what}`,
  AddressIgnored: (what: string) =>
    `The backend says that the pod's machine has the address ${what}, which lies in none of the node's podCIDRs: it is not used`,
};

/** Undefined where there is nothing to doubt. */
function doubtOf(
  reason: keyof typeof DOUBTS,
  what: string | undefined,
): { reason: keyof typeof DOUBTS; message: string } | undefined {
  return what ? { reason, message: DOUBTS[reason](what) } : undefined;
}
