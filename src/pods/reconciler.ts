/**
 * The loop around the planner: observe, plan, do one action, observe again, for one pod UID at a time. Level-triggered:
 * it may be called for any UID at any moment, any number of times, and does only what is still to be done.
 *
 * Everything that it does to the world goes through `kube` and `provider`, each effect once per step, so a simulation can
 * fail, delay or repeat any of them. Losing this object and its memory at any instant loses nothing.
 */
import { aboutPod } from "../kube/about-pod.ts";
import type { Kube } from "../kube/kube.ts";
import { isKubeApiError } from "../kube/errors.ts";
import type { Pod } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import { fieldPathOf } from "../podspec/render/render.ts";
import {
  isKnownOver,
  isOver,
  type Machine,
  type MachineNotice,
  type MachinePatch,
  type MachineSpec,
} from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import type { PodEvent, ResizeOutlook } from "../podspec/types.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { MachineCreation } from "./creation.ts";
import type { PodHooks } from "./hooks.ts";
import type { LossBrake } from "./loss-brake.ts";
import type { MachineCache } from "./machines.ts";
import {
  DEADLINE,
  LOST,
  newMemory,
  plan,
  PREEMPTED,
  type Action,
  type Desired,
  type Observed,
  type PodMemory,
} from "./planner.ts";
import { ANNOTATIONS } from "./api-reactions.ts";
import { PodApi } from "./pod-api.ts";
import { ResizeTracker } from "./resize-tracker.ts";
import { payStatus, withUnwritable } from "./status-write.ts";
import { hasRun, isTerminal } from "./status/facts.ts";
import type { Verdict } from "./status/input.ts";

/** The pods that the API server wants on this node, by UID. */
export interface PodSource {
  readonly synced: boolean;
  get(uid: string): Pod | undefined;
}

/** What became of turning a pod into a machine's spec. */
export type Rendered =
  /** `waiting`: ephemeral containers that cannot be started and are left out. */
  | {
      kind: "ready";
      spec: MachineSpec;
      /** What `Renderer.version` was when everything had been read that this is made from. */
      version: string | undefined;
      events?: readonly PodEvent[];
      waiting?: ReadonlyMap<string, { reason: string; message: string }>;
    }
  /** Something that the pod refers to is missing or could not be read: the containers wait, and it is tried again. */
  | {
      kind: "wait";
      waiting: ReadonlyMap<string, { reason: string; message: string }>;
      /** Volumes that are at fault. */
      unmountedVolumes?: readonly string[];
      events: readonly PodEvent[];
    }
  /** A critical pod for which these have to make room first. */
  | { kind: "preempt"; victims: readonly Pod[] }
  /** The pod can never run here; `missing` names capabilities that the backend lacks. */
  | { kind: "reject"; reason: string; message: string; missing?: readonly string[] };

/** What must change on a machine that runs. */
export interface Difference {
  /** Undefined when nothing must. */
  patch: MachinePatch | undefined;
  /** What becomes of the resources that it asks for; absent is `none`. */
  resize?: ResizeOutlook;
  events?: readonly PodEvent[];
  /** Ephemeral containers that cannot be started. */
  waiting?: ReadonlyMap<string, { reason: string; message: string }>;
  /** As of `Rendered`. */
  version: string | undefined;
}

/** Says which containers of a machine are ready where the backend itself cannot tell. */
export interface ReadinessSource {
  /** The machine with `ready` filled in. Called at each look at a pod; begins and ends whatever it takes to know. */
  apply(pod: Pod, machine: Machine): Machine;
  release(podUid: string): void;
}

/** Turns pods into machine specs: admission, references, capabilities. */
export interface Renderer {
  render(pod: Pod, signal: AbortSignal): Promise<Rendered>;
  /** Changes whenever `diff` might find something to do; undefined when not known. */
  version(pod: Pod, machine: Machine): string | undefined;
  diff(pod: Pod, machine: Machine, signal: AbortSignal): Promise<Difference>;
  /** True when `withoutSecrets` needs `learn` first. */
  mustLearn?(pod: Pod, machine: Machine): boolean;
  /** Reads what the pod keeps secret. @throws the signal's reason */
  learn?(pod: Pod, signal: AbortSignal): Promise<void>;
  /** The machine, whose texts quote nothing that the pod keeps secret: they go into its status and its events. */
  withoutSecrets?(pod: Pod, machine: Machine): Machine;
  /** A text about a pod, likewise. */
  redact?(podUid: string, text: string): string;
  /** Holds nothing of this pod any more. */
  release?(podUid: string): void;
}

export interface ReconcilerOptions {
  kube: Kube;
  provider: Provider;
  pods: PodSource;
  machines: MachineCache;
  renderer: Renderer;
  machineId: (podUid: string) => string;
  /** Labels that mark a machine as this cluster's and this node's. */
  ownerLabels: Readonly<Record<string, string>>;
  nodeName: string;
  hostIPs: () => readonly string[];
  /** Looks at another pod soon, because something was decided about it. */
  poke?: (uid: string) => void;
  /** Says something about a pod to its user. Must not block. */
  event: (pod: Pod, event: PodEvent) => void;
  /** Orphans of which this process never saw a pod: true when one more may be removed in this sweep. */
  mayReap: () => boolean;
  /** Doubts the backend when it has lost too much at once. */
  losses?: LossBrake | undefined;
  /** Throws when this agent may not act any more (lost leadership). Called before each effect that changes something. */
  guard?: () => void;
  /** The decision; a simulation puts a broken one here to see it caught. Default: the planner's. */
  plan?: typeof plan;
  readiness?: ReadinessSource;
  /** Annotate pods of ReplicaSets so that scale-in removes them before pods of other nodes. */
  markCheapToDelete?: boolean;
  hooks?: PodHooks;
  clock: Clock;
  logger: Logger;
}

export type Outcome =
  | { kind: "settled" }
  | { kind: "after"; ms: number }
  | { kind: "retry"; error: Error; afterMs?: number };

/** Reason of the events that say what the API server does not take. */
const STATUS_REFUSED = "FailedStatusUpdate";

/** Actions that one call carries out before it yields to other pods. */
const MAX_STEPS = 12;
/** How soon a machine is looked for again that is missing with too many others. */
const DOUBT_MS = 60_000;

/** A machine that does not go is deleted again after this long, doubling; its user is told when the longest is reached. */
const BURIAL_RETRY_MS = { first: 200, max: 30_000 };

/** The removal of a pod's object that stays is repeated after this long, doubling: no reply is proof for ever. */
const FINALIZE_AGAIN_MS = { first: 30_000, max: 600_000 };

/** A newer copy of a pod than the cache holds, known from a reply. */
interface Overlay {
  /** What the cache held when the newer object became known, and versions in between. */
  olderVersions: Set<string>;
  pod: Pod;
}

export class PodReconciler {
  readonly #o: ReconcilerOptions;
  readonly #memory = new Map<string, PodMemory>();
  readonly #overlays = new Map<string, Overlay>();
  readonly #lastSeen = new Map<string, Pod>();
  /** Of each machine, the newest notice that was passed on or is old news. */
  readonly #noticeSeq = new Map<string, number>();
  /** Monotonic time of the first look at a pod that has not run. */
  readonly #firstLook = new Map<string, number>();
  readonly #resize: ResizeTracker;
  readonly #api: PodApi;
  readonly #creation: MachineCreation;

  constructor(options: ReconcilerOptions) {
    this.#o = options;
    this.#resize = new ResizeTracker(options);
    this.#api = new PodApi(options);
    this.#creation = new MachineCreation({
      ...options,
      api: this.#api,
      memory: { get: (uid) => this.#remember(uid), update: (uid, change) => this.#update(uid, change) },
      look: (uid, signal) => this.#look(uid, signal),
      onRead: (uid, pod, cachedBefore) => this.#overlay(uid, pod, cachedBefore),
      onPreempt: (victim) => this.#preempt(victim),
    });
  }

  /** UIDs of which this process remembers something. */
  knownUids(): IterableIterator<string> {
    return this.#memory.keys();
  }

  /** Whether this process has looked at it. */
  knows(uid: string): boolean {
    return this.#memory.has(uid);
  }

  /** The pod object went: by a DELETED event or because a complete list lacks it. A last quorum GET will verify it. */
  podGone(pod: Pod): void {
    const uid = pod.metadata!.uid!;
    this.#lastSeen.set(uid, pod);
    this.#update(uid, { podSeenGone: true });
  }

  /** Forgets a UID that is over on both sides, as a look at it would: for a standby, which looks at none. */
  forgetGone(uid: string): void {
    const observed = this.#observed(uid);
    const isGone = observed.kind === "absent" || (observed.kind === "found" && observed.machine.state === "deleted");
    if (this.#memory.has(uid) && isGone && this.#desired(uid).kind === "none") this.#forget(uid);
  }

  /** The newest copy of this pod that is known: a reply's, when the cache has not caught up with it. */
  latest(pod: Pod): Pod {
    const desired = this.#desired(pod.metadata!.uid!);
    return desired.kind === "pod" ? desired.pod : pod;
  }

  async reconcile(uid: string, signal: AbortSignal): Promise<Outcome> {
    for (let step = 0; step < MAX_STEPS; step++) {
      await this.#learnSecrets(uid, signal);
      const desired = this.#desired(uid);
      const observed = this.#withReadiness(desired, this.#withoutSecrets(desired, this.#observed(uid)));
      if (desired.kind === "none" && observed.kind === "found" && !this.#remember(uid).podSeenGone) {
        const since = this.#remember(uid).orphanSince;
        if (since === undefined) this.#update(uid, { orphanSince: this.#o.clock.monotonic() });
      }
      if (observed.kind === "found" || !isToRun(desired)) this.#o.losses?.settled(uid);
      // However it was found: only what stays away from one look to the next is lost.
      if (observed.kind === "found" && this.#remember(uid).missedAt.length > 0) this.#update(uid, { missedAt: [] });
      // Buried, and it runs all the same: its backend was restored from a copy of its data.
      const state = observed.kind === "absent" ? undefined : observed.machine?.state;
      if (state !== undefined && !isOver({ state }) && this.#remember(uid).buried) this.#update(uid, { buried: false });
      // A stop is of one life of the machine: one that runs again is given its grace again.
      if (state !== undefined && isOver({ state }) && this.#remember(uid).stopDeadline !== undefined)
        this.#update(uid, { stopDeadline: undefined });
      if (desired.kind === "pod" && observed.kind === "found") this.#forwardNotices(desired.pod, observed.machine);
      if (desired.kind === "pod" && !this.#firstLook.has(uid) && !hasRun(desired.pod) && !isTerminal(desired.pod)) {
        this.#firstLook.set(uid, this.#o.clock.monotonic());
      }
      if (desired.kind === "pod" && this.#remember(uid).seenAt === undefined)
        this.#update(uid, { seenAt: this.#o.clock.monotonic() });
      const action = (this.#o.plan ?? plan)(desired, observed, this.#remember(uid), {
        now: this.#o.clock.now(),
        monotonic: this.#o.clock.monotonic(),
        hostIPs: this.#o.hostIPs(),
        markCheapToDelete: this.#o.markCheapToDelete,
        version:
          desired.kind === "pod" && observed.kind === "found"
            ? this.#o.renderer.version(desired.pod, observed.machine)
            : undefined,
      });
      if (action.do === "wait")
        return action.afterMs === undefined ? { kind: "settled" } : { kind: "after", ms: action.afterMs };
      if (action.do === "forget") {
        this.#forget(uid);
        return { kind: "settled" };
      }
      const outcome = await this.#act(uid, action, desired, signal);
      if (outcome !== undefined) return outcome;
    }
    return { kind: "after", ms: 0 };
  }

  // ---------------------------------------------------------------------------------------------------------- observe

  #desired(uid: string): Desired {
    if (!this.#o.pods.synced) return { kind: "unknown" };
    const cached = this.#o.pods.get(uid);
    if (cached === undefined) {
      this.#overlays.delete(uid);
      return { kind: "none" };
    }
    const overlay = this.#overlays.get(uid);
    if (overlay !== undefined) {
      if (overlay.olderVersions.has(cached.metadata!.resourceVersion!)) return { kind: "pod", pod: overlay.pod };
      this.#overlays.delete(uid);
    }
    return { kind: "pod", pod: cached };
  }

  #observed(uid: string): Observed {
    return this.#o.machines.observe(this.#o.machineId(uid));
  }

  /** A process that has just been started does not know yet what the texts of a backend must not quote. */
  async #learnSecrets(uid: string, signal: AbortSignal): Promise<void> {
    const [desired, observed] = [this.#desired(uid), this.#observed(uid)];
    if (desired.kind !== "pod" || observed.kind !== "found") return;
    if (this.#o.renderer.mustLearn?.(desired.pod, observed.machine))
      await this.#o.renderer.learn?.(desired.pod, signal);
  }

  #withoutSecrets(desired: Desired, observed: Observed): Observed {
    if (desired.kind !== "pod" || observed.kind !== "found") return observed;
    const { machine } = observed;
    return { ...observed, machine: this.#o.renderer.withoutSecrets?.(desired.pod, machine) ?? machine };
  }

  #withReadiness(desired: Desired, observed: Observed): Observed {
    const { readiness } = this.#o;
    if (readiness === undefined || desired.kind !== "pod" || observed.kind === "unknown") return observed;
    if (observed.kind === "absent") {
      // Its address may be another machine's soon, while the pod may stay for long, as a failed one does.
      readiness.release(desired.pod.metadata!.uid!);
      return observed;
    }
    return { kind: "found", machine: readiness.apply(desired.pod, observed.machine) };
  }

  #cachedVersion(uid: string): string | undefined {
    return this.#o.pods.get(uid)?.metadata!.resourceVersion;
  }

  /**
   * Uses a newer copy of the pod, from a reply, until the cache has moved on from what it holds now. A cache that moved
   * while the reply travelled may hold something newer still, so the reply is not used then.
   */
  #overlay(uid: string, pod: Pod, cachedBefore: string | undefined): void {
    const cached = this.#o.pods.get(uid);
    if (cached === undefined || cached.metadata!.resourceVersion !== cachedBefore) return;
    if (cached.metadata!.resourceVersion === pod.metadata!.resourceVersion) return;
    const before = this.#overlays.get(uid);
    const olderVersions = before?.olderVersions ?? new Set<string>();
    if (before !== undefined) olderVersions.add(before.pod.metadata!.resourceVersion!);
    olderVersions.add(cached.metadata!.resourceVersion!);
    olderVersions.delete(pod.metadata!.resourceVersion!);
    this.#overlays.set(uid, { olderVersions, pod });
  }

  // -------------------------------------------------------------------------------------------------------------- act

  /** Undefined means: observe and plan again. */
  async #act(
    uid: string,
    action: Exclude<Action, { do: "wait" | "forget" }>,
    desired: Desired,
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    try {
      switch (action.do) {
        case "look":
          await this.#look(uid, signal);
          return undefined;
        case "create":
          return await this.#creation.create(uid, podOf(desired), signal);
        case "stop":
          await this.#stop(uid, action.graceSeconds, signal);
          if (action.verdict !== undefined) this.#announce(podOf(desired), action.verdict);
          return undefined;
        case "bury":
          if (action.verdict !== undefined) this.#update(uid, { verdict: action.verdict });
          await this.#bury(uid, action.force, signal);
          if (action.verdict !== undefined) this.#announce(podOf(desired), action.verdict);
          return undefined;
        case "status":
          if (action.verdict === LOST && this.#isDoubtful(uid)) return { kind: "after", ms: DOUBT_MS };
          return await this.#writeStatus(uid, podOf(desired), action, signal);
        case "update":
          return await this.#updateMachine(uid, podOf(desired), signal);
        case "finalize":
          return await this.#finalize(uid, podOf(desired), signal);
        case "reap":
          return await this.#reap(uid, signal);
      }
    } catch (thrown) {
      // Whoever ends the agent is no failure of anybody's.
      if (signal.aborted) return { kind: "retry", error: toError(thrown) };
      if (this.#distrust(thrown)) return undefined;
      const error = toError(thrown);
      if (desired.kind === "pod" && isProviderError(thrown) && isPartOfKilling(desired.pod, action))
        this.#told(desired.pod, "FailedKillPod", "error killing pod", error);
      const retryAfterMs = isProviderError(thrown) || isKubeApiError(thrown) ? thrown.retryAfterMs : undefined;
      this.#o.logger.debug(
        { ...this.#about(uid), op: action.do, err: error.message },
        "Step failed and will be tried again",
      );
      return { kind: "retry", error, ...(retryAfterMs !== undefined && { afterMs: retryAfterMs }) };
    }
  }

  /** Whether it cannot be believed yet that this machine is lost: then it is looked for again before anybody says so. */
  #isDoubtful(uid: string): boolean {
    if (this.#o.losses?.mayLose(uid) !== false) return false;
    this.#update(uid, { missedAt: this.#remember(uid).missedAt.slice(-1) });
    return true;
  }

  /** Asks the backend directly. "Absent" counts only when the backend itself said so. */
  async #look(uid: string, signal: AbortSignal): Promise<Observed> {
    const id = this.#o.machineId(uid);
    const { machines } = this.#o;
    const knownBefore = machines.revision;
    try {
      const machine = await this.#o.provider.getPod(id, { signal });
      machines.put(machine, knownBefore);
      // The cache may have something newer yet: then that is what the answer has not contradicted.
      const known = machines.observe(id);
      const confirmedVersion = known.kind === "found" ? known.machine.version : machine.version;
      const desired = this.#desired(uid);
      const confirmedFor = desired.kind === "pod" ? desired.pod.metadata!.resourceVersion : undefined;
      this.#update(uid, { missedAt: [], confirmedVersion, confirmedFor });
      return { kind: "found", machine };
    } catch (thrown) {
      if (isProviderError(thrown) && this.#distrust(thrown))
        return { kind: "unknown", machine: thrown.unknownMachine! };
      if (!isProviderError(thrown, "not_found")) throw thrown;
      // It has been made, or been seen, while the answer was on its way.
      if (!machines.drop(id, knownBefore)) return machines.observe(id);
      this.#update(uid, { missedAt: [...this.#remember(uid).missedAt, this.#o.clock.monotonic()].slice(-2) });
      return { kind: "absent" };
    }
  }

  /**
   * The backend answered, and what it said of the machine cannot be believed: that is known then, and asking again would not
   * help. False for any other failure.
   */
  #distrust(thrown: unknown): boolean {
    if (!isProviderError(thrown) || thrown.unknownMachine === undefined) return false;
    this.#o.machines.distrust(thrown.unknownMachine);
    return this.#o.machines.observe(thrown.unknownMachine.id).kind === "unknown";
  }

  /** kubelet tells of a deadline by an event; what else ends a pod was announced by whoever decided it. */
  #announce(pod: Pod, verdict: Verdict): void {
    if (verdict === DEADLINE) this.#o.event(pod, { type: "Normal", reason: verdict.reason, message: verdict.message });
    if (verdict !== LOST) return;
    this.#creation.lost(pod);
    this.#o.hooks?.onLost?.();
  }

  #preempt(victim: Pod): void {
    const uid = victim.metadata!.uid!;
    this.#o.event(victim, { type: "Warning", reason: PREEMPTED.reason, message: PREEMPTED.message });
    this.#update(uid, { verdict: PREEMPTED });
    this.#o.poke?.(uid);
  }

  async #stop(uid: string, graceSeconds: number, signal: AbortSignal): Promise<void> {
    this.#o.guard?.();
    const id = this.#o.machineId(uid);
    const { machines } = this.#o;
    const knownBefore = machines.revision;
    try {
      const machine = await this.#o.provider.stopPod(id, { graceSeconds, signal });
      this.#update(uid, { stopDeadline: this.#o.clock.monotonic() + graceSeconds * 1000 });
      if (machine !== undefined) machines.put(machine, knownBefore);
    } catch (thrown) {
      if (!isProviderError(thrown, "not_found")) throw thrown;
      machines.drop(id, knownBefore);
    }
  }

  /** DELETE, whether the machine exists or not: the tombstone keeps a late create from reviving it. Then make sure. */
  async #bury(uid: string, force: boolean, signal: AbortSignal): Promise<void> {
    this.#o.guard?.();
    await this.#o.provider.deletePod(this.#o.machineId(uid), { force, signal });
    const seen = await this.#look(uid, signal);
    if (seen.kind === "absent" || seen.machine?.state === "deleted")
      this.#update(uid, { burial: undefined, buried: true, stopDeadline: undefined });
    else this.#buryAgain(uid, seen.machine?.state ?? "in a state that cannot be told");
  }

  #buryAgain(uid: string, state: string): void {
    const now = this.#o.clock.monotonic();
    const burial = this.#remember(uid).burial ?? { since: now, pauseMs: BURIAL_RETRY_MS.first / 2, retryAt: now };
    const pauseMs = Math.min(burial.pauseMs * 2, BURIAL_RETRY_MS.max);
    this.#update(uid, { burial: { since: burial.since, pauseMs, retryAt: now + pauseMs } });
    if (pauseMs < BURIAL_RETRY_MS.max || burial.pauseMs === pauseMs) return;
    const seconds = Math.round((now - burial.since) / 1000);
    const message = `Machine was deleted ${seconds} s ago and is still there: ${state}`;
    this.#o.logger.warn(
      { ...this.#about(uid), machine: this.#o.machineId(uid), state },
      "Machine does not go and is deleted again",
    );
    const desired = this.#desired(uid);
    if (desired.kind === "pod") this.#o.event(desired.pod, { type: "Warning", reason: "FailedKillPod", message });
  }

  async #writeStatus(
    uid: string,
    pod: Pod,
    { patch, annotations, verdict }: Extract<Action, { do: "status" }>,
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    this.#o.guard?.();
    const cachedBefore = this.#cachedVersion(uid);
    const begun = this.#o.clock.monotonic();
    const fields = { ...patch, ...(annotations && { [ANNOTATIONS]: annotations }) };
    const result = await this.#api.writeStatus(pod, patch, annotations, signal);
    const { unwritable, statusPaidUntil, statusDeniedSince } = this.#remember(uid);
    switch (result.kind) {
      case "written": {
        this.#overlay(uid, result.pod, cachedBefore);
        const now = this.#o.clock.monotonic();
        // A server that drops a field that it does not know takes a write that changes nothing.
        const isFutile = result.pod.metadata!.resourceVersion === pod.metadata!.resourceVersion;
        this.#update(uid, {
          statusPaidUntil: payStatus(statusPaidUntil, now),
          statusDeniedSince: undefined,
          ...(isFutile && { unwritable: withUnwritable(unwritable, fields, Object.keys(fields)) }),
        });
        if (verdict !== undefined) this.#announce(pod, verdict);
        this.#o.hooks?.onStatusWritten?.((now - begun) / 1000);
        if (patch["phase"] === "Running") this.#measureStart(uid, pod);
        return undefined;
      }
      case "stale":
        this.#overlay(uid, result.pod, cachedBefore);
        return undefined;
      case "gone":
        // The watch will say so.
        return { kind: "after", ms: 1_000 };
      case "refused": {
        const without = `The API server refuses the status of this pod, which is written without ${result.fields.join(", ")}`;
        this.#o.event(pod, { type: "Warning", reason: STATUS_REFUSED, message: `${without}: ${result.message}` });
        this.#update(uid, { unwritable: withUnwritable(unwritable, fields, result.fields) });
        return undefined;
      }
      case "denied":
        this.#update(uid, { statusDeniedSince: statusDeniedSince ?? this.#o.clock.monotonic() });
        throw this.#told(pod, STATUS_REFUSED, "The API server does not take the status of this pod", result.error);
    }
  }

  /** @returns the error, which the pod's author has been told of */
  #told(pod: Pod, reason: string, what: string, error: Error): Error {
    this.#o.event(pod, { type: "Warning", reason, message: `${what}: ${error.message}` });
    return error;
  }

  #applied(uid: string, pod: Pod, version: string | undefined): void {
    this.#update(uid, { appliedVersion: version, appliedGeneration: pod.metadata?.generation });
  }

  async #updateMachine(uid: string, pod: Pod, signal: AbortSignal): Promise<Outcome | undefined> {
    const observed = this.#observed(uid);
    if (observed.kind !== "found") return undefined;
    const difference = await this.#o.renderer.diff(pod, observed.machine, signal);
    const { patch, resize = { kind: "none" }, events, waiting, version } = difference;
    for (const event of events ?? []) this.#o.event(pod, event);
    const { resources, ...rest } = patch ?? {};
    if (Object.keys(rest).length > 0) await this.#patchMachine(pod, observed.machine.id, rest, signal);
    const before = this.#remember(uid).resize;
    this.#update(uid, await this.#resize.follow(pod, observed.machine.id, resize, resources ?? [], before, signal));
    this.#applied(uid, pod, version);
    this.#update(uid, { waiting });
    return undefined;
  }

  /** What the backend refuses for good is told and left out; it must not keep the rest of the change away. */
  async #patchMachine(pod: Pod, id: string, patch: MachinePatch, signal: AbortSignal): Promise<void> {
    if (this.#o.provider.updatePod === undefined) return;
    this.#o.guard?.();
    try {
      this.#o.machines.put(await this.#o.provider.updatePod(id, patch, { signal }));
    } catch (thrown) {
      // A machine that is not there any more refuses nothing; the cache will say so soon.
      if (!isProviderError(thrown) || thrown.retryable || thrown.code === "not_found") throw thrown;
      const parts = partsOf(patch);
      if (parts.length > 1) for (const part of parts) await this.#patchMachine(pod, id, part, signal);
      else this.#o.event(pod, { type: "Warning", reason: "FailedUpdate", message: thrown.message });
    }
  }

  async #finalize(uid: string, pod: Pod, signal: AbortSignal): Promise<Outcome | undefined> {
    this.#o.guard?.();
    const result = await this.#api.remove(pod, signal);
    if (result.kind === "denied")
      throw this.#told(pod, "FailedDelete", "The API server does not let this pod be removed", result.error);
    const now = this.#o.clock.monotonic();
    const { since, pauseMs } = this.#remember(uid).finalized ?? { since: now, pauseMs: FINALIZE_AGAIN_MS.first / 2 };
    const next = Math.min(pauseMs * 2, FINALIZE_AGAIN_MS.max);
    this.#update(uid, { finalized: { since, pauseMs: next, retryAt: now + next } });
    return undefined;
  }

  /** A machine whose pod is gone from the cache: the API server has the last word before anything is destroyed. */
  async #reap(uid: string, signal: AbortSignal): Promise<Outcome | undefined> {
    const observed = this.#observed(uid);
    const memory = this.#remember(uid);
    const machine = observed.kind === "found" ? observed.machine : undefined;
    if (machine !== undefined && !Object.entries(this.#o.ownerLabels).every(([k, v]) => machine.labels[k] === v))
      return { kind: "settled" };
    if (!memory.podSeenGone && !memory.mayBeReaped) {
      if (!this.#o.mayReap()) return { kind: "after", ms: 30_000 };
      this.#update(uid, { mayBeReaped: true });
    }
    const last = this.#lastSeen.get(uid);
    const namespace = last?.metadata?.namespace ?? machine?.labels["vmlet.dev/namespace"];
    const name = last?.metadata?.name ?? machine?.labels["vmlet.dev/pod"];
    if (namespace === undefined || name === undefined) {
      this.#o.logger.warn({ ...this.#about(uid), machine: machine?.id }, "Machine names no pod and is left alone");
      return { kind: "settled" };
    }
    const current = await this.#api.read({ metadata: { namespace, name } }, signal);
    if (current?.metadata!.uid === uid) {
      // The cache was wrong; it will catch up.
      this.#update(uid, { podSeenGone: false, orphanSince: undefined, mayBeReaped: false });
      return { kind: "after", ms: 5_000 };
    }
    const mayRun = observed.kind !== "absent" && observed.machine !== undefined && !isKnownOver(observed.machine);
    if (mayRun && memory.stopDeadline === undefined) {
      this.#o.logger.info(
        { namespace, pod: name, uid, machine: this.#o.machineId(uid) },
        "Stopping a machine whose pod is gone",
      );
      this.#o.hooks?.onOrphan?.(memory.podSeenGone);
      await this.#stop(uid, 2, signal);
      return undefined;
    }
    await this.#bury(uid, true, signal);
    return undefined;
  }

  #measureStart(uid: string, pod: Pod): void {
    const seenAt = this.#firstLook.get(uid);
    const created = pod.metadata?.creationTimestamp;
    if (seenAt === undefined || this.#o.hooks?.onRunning === undefined) return;
    this.#firstLook.delete(uid);
    const sinceSeen = (this.#o.clock.monotonic() - seenAt) / 1000;
    const sinceCreated = created === undefined ? sinceSeen : (this.#o.clock.now() - Date.parse(created)) / 1000;
    const observed = this.#observed(uid);
    // The backend's own times, so that its clock need not agree with this one.
    const started = observed.kind === "found" ? Date.parse(observed.machine.started_at ?? "") : Number.NaN;
    const boot = observed.kind === "found" ? (started - Date.parse(observed.machine.created_at)) / 1000 : 0;
    this.#o.hooks.onRunning({
      sinceSeen,
      sinceCreated: Math.max(0, sinceCreated),
      withoutBoot: Math.max(0, sinceSeen - (Number.isNaN(boot) ? 0 : boot)),
    });
  }

  /**
   * Passes on what the backend has to say about a machine, once per process. What a machine that this process did not make
   * had to say at the first sight of it is old news. The times of the notices are by the backend's clock and decide nothing.
   */
  #forwardNotices(pod: Pod, machine: Machine): void {
    const uid = pod.metadata!.uid!;
    const notices = machine.notices ?? [];
    const newest = notices.at(-1)?.seq ?? -1;
    const last = this.#noticeSeq.get(uid) ?? (this.#remember(uid).created ? -1 : newest);
    this.#noticeSeq.set(uid, Math.max(last, newest));
    for (const notice of notices) if (notice.seq > last) this.#o.event(pod, noticeEvent(pod, notice));
  }

  // ----------------------------------------------------------------------------------------------------------- memory

  /** Names the pod in the log. */
  #about(uid: string): object {
    const pod = this.#o.pods.get(uid) ?? this.#lastSeen.get(uid);
    return pod === undefined ? { uid } : aboutPod(pod);
  }

  #remember(uid: string): PodMemory {
    let memory = this.#memory.get(uid);
    if (memory === undefined) this.#memory.set(uid, (memory = newMemory()));
    return memory;
  }

  #update(uid: string, change: Partial<PodMemory>): void {
    this.#memory.set(uid, { ...this.#remember(uid), ...change });
  }

  #forget(uid: string): void {
    this.#memory.delete(uid);
    this.#overlays.delete(uid);
    this.#lastSeen.delete(uid);
    this.#noticeSeq.delete(uid);
    this.#creation.release(uid);
    this.#o.losses?.settled(uid);
    this.#firstLook.delete(uid);
    this.#o.readiness?.release(uid);
    // Again: a render that was under way when the pod went may have taken hold of what it refers to only afterwards.
    this.#o.renderer.release?.(uid);
    const id = this.#o.machineId(uid);
    const observed = this.#o.machines.observe(id);
    if (observed.kind === "found" && observed.machine.state === "deleted") this.#o.machines.forget(id);
  }
}

/** kubelet tells of what keeps a pod from ending by event FailedKillPod (`FailedToKillPod`). */
function isPartOfKilling(pod: Pod, action: Action): boolean {
  if (action.do === "look") return pod.metadata?.deletionTimestamp !== undefined;
  return action.do === "stop" || action.do === "bury";
}

function isToRun(desired: Desired): boolean {
  return desired.kind === "pod" && !isTerminal(desired.pod) && desired.pod.metadata?.deletionTimestamp === undefined;
}

function podOf(desired: Desired): Pod {
  if (desired.kind !== "pod") throw new Error("planner asked for a pod action without a pod");
  return desired.pod;
}

/** The changes of which a patch consists, each as a patch of its own. */
function partsOf({ files, containers, ephemeral_containers, ...rest }: MachinePatch): MachinePatch[] {
  return [
    ...(files ?? []).map((each) => ({ files: [each] })),
    ...(containers ?? []).map((each) => ({ containers: [each] })),
    ...(ephemeral_containers ?? []).map((each) => ({ ephemeral_containers: [each] })),
    ...(Object.keys(rest).length > 0 ? [rest] : []),
  ];
}

function noticeEvent(pod: Pod, notice: MachineNotice): PodEvent {
  const { type, reason, message, container } = notice;
  return { type, reason, message, ...(container !== undefined && { fieldPath: fieldPathOf(pod, container) }) };
}
