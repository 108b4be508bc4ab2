/**
 * The loop around the planner: observe, plan, do one action, observe again, for one pod UID at a time. Level-triggered:
 * it may be called for any UID at any moment, any number of times, and does only what is still to be done.
 *
 * Everything that it does to the world goes through `kube` and `provider`, each effect once per step, so a simulation
 * can fail, delay or repeat any of them. Losing this object and its memory at any instant loses nothing.
 */
import { aboutPod, isDeleting, isTerminal, uidOf } from "../kube/pod.ts";
import { isKubeApiError } from "../kube/errors.ts";
import type { Pod } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import { fieldPathOf } from "../podspec/render/render.ts";
import { isOver, type Machine, type MachineNotice } from "../provider/machine.ts";
import type { PodEvent } from "../podspec/types.ts";
import { onAbort } from "../util/abort.ts";
import { toError } from "../util/errors.ts";
import { MachineCreation } from "./creation.ts";
import { DEADLINE, LOST, PREEMPTED } from "./verdicts.ts";
import { plan } from "./planner.ts";
import type { Action, Desired, Observed } from "./decision.ts";
import { OUT_OF_TIME } from "./disruption.ts";
import type { PodMemory } from "./pod-memory.ts";
import { PodApi } from "./pod-api.ts";
import { PodCopies } from "./pod-copies.ts";
import { PodRecords } from "./pod-record.ts";
import type { Outcome, ReconcilerOptions } from "./reconciler-options.ts";
import { MachineRemoval } from "./removal.ts";
import { StatusStep } from "./status-step.ts";
import { hasRun } from "./status/facts.ts";
import type { Verdict } from "./status/input.ts";
import { reported, type StepContext } from "./step-context.ts";
import { SyncTrace } from "./sync-trace.ts";
import { MachineUpdate } from "./update.ts";

/** Actions that one call carries out before it yields to other pods. */
const MAX_STEPS = 12;
/** How soon a machine is looked for again that is missing with too many others. */
const DOUBT_MS = 60_000;

/** A machine that its backend has not admitted: the pods that its owner makes next may fare as it did. */
const REFUSED = "UnexpectedAdmissionError";

export class PodReconciler {
  readonly #options: ReconcilerOptions;
  readonly #records: PodRecords;
  readonly #copies: PodCopies;
  readonly #creation: MachineCreation;
  readonly #status: StatusStep;
  readonly #update: MachineUpdate;
  readonly #removal: MachineRemoval;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#records = new PodRecords((uid, { dropped }) => void onAbort(dropped, () => this.#release(uid)));
    this.#copies = new PodCopies(options.pods, this.#records);
    const context: StepContext = {
      ...options,
      api: new PodApi(options),
      records: this.#records,
      copies: this.#copies,
      look: (uid, signal) => this.#look(uid, signal),
    };
    this.#creation = new MachineCreation(context, (victim) => this.#preempt(victim));
    this.#status = new StatusStep(context, (pod, verdict) => this.#announce(pod, verdict));
    this.#update = new MachineUpdate(context);
    this.#removal = new MachineRemoval(context);
  }

  /** UIDs of which this process remembers something. */
  knownUids(): IterableIterator<string> {
    return this.#records.uids();
  }

  /** Whether this process has looked at it. */
  knows(uid: string): boolean {
    return this.#records.find(uid) !== undefined;
  }

  /** The pod object went: by a DELETED event or because a complete list lacks it. A last quorum GET will verify it. */
  podGone(pod: Pod): void {
    const record = this.#records.of(uidOf(pod));
    record.lastSeen = pod;
    record.update({ podSeenGone: true });
  }

  /** Forgets a UID that is over on both sides, as a look at it would: for a standby, which looks at none. */
  forgetGone(uid: string): void {
    const observed = this.#observed(uid);
    const isGone = observed.kind === "absent" || (observed.kind === "found" && observed.machine.state === "deleted");
    if (this.knows(uid) && isGone && this.#copies.desired(uid).kind === "none") this.#forget(uid);
  }

  /**
   * Whether this copy, which the cache has just got, is no more than what a write of this process made of the pod, so
   * that the look after that write has seen it.
   */
  isOwnWrite(pod: Pod): boolean {
    return this.#copies.caughtUp(pod);
  }

  /** The newest copy of this pod that is known: a reply's, when the cache has not caught up with it. */
  latest(pod: Pod): Pod {
    const desired = this.#copies.desired(uidOf(pod));
    return desired.kind === "pod" ? desired.pod : pod;
  }

  async reconcile(uid: string, signal: AbortSignal): Promise<Outcome> {
    const { tracing } = this.#options;
    if (tracing === undefined) return await this.#reconcile(uid, signal);
    using trace = new SyncTrace(tracing);
    return await this.#reconcile(uid, signal, trace);
  }

  async #reconcile(uid: string, signal: AbortSignal, trace?: SyncTrace): Promise<Outcome> {
    for (let step = 0; step < MAX_STEPS; step++) {
      await this.#learnSecrets(uid, signal);
      this.#options.onLook?.(uid);
      const desired = this.#copies.desired(uid);
      const observed = this.#withReadiness(desired, this.#withoutSecrets(desired, this.#observed(uid)));
      this.#notice(uid, desired, observed);
      const action = this.#plan(uid, desired, observed);
      if (action.do === "wait")
        return action.afterMs === undefined ? { kind: "settled" } : { kind: "after", ms: action.afterMs };
      if (action.do === "forget") {
        this.#forget(uid);
        return { kind: "settled" };
      }
      const act = () => this.#act(uid, action, { desired, observed }, signal);
      const outcome = await (trace === undefined ? act() : trace.step(this.#traced(uid, desired), action.do, act));
      if (outcome !== undefined) return outcome;
    }
    return { kind: "after", ms: 0 };
  }

  #traced(uid: string, desired: Desired) {
    const pod = desired.kind === "pod" ? desired.pod : this.#records.find(uid)?.lastSeen;
    return { uid, pod, nodeName: this.#options.nodeName };
  }

  // ---------------------------------------------------------------------------------------------------------- observe

  #observed(uid: string): Observed {
    return this.#options.machines.observe(this.#options.machineId(uid));
  }

  /** A process that has just been started does not know yet what the texts of a backend must not quote. */
  async #learnSecrets(uid: string, signal: AbortSignal): Promise<void> {
    const [desired, observed] = [this.#copies.desired(uid), this.#observed(uid)];
    if (desired.kind !== "pod" || observed.kind !== "found") return;
    if (this.#options.renderer.mustLearn?.(desired.pod, observed.machine))
      await this.#options.renderer.learn?.(desired.pod, signal);
  }

  #withoutSecrets(desired: Desired, observed: Observed): Observed {
    if (desired.kind !== "pod" || observed.kind !== "found") return observed;
    const { machine } = observed;
    return { ...observed, machine: this.#options.renderer.withoutSecrets?.(desired.pod, machine) ?? machine };
  }

  #withReadiness(desired: Desired, observed: Observed): Observed {
    const { readiness } = this.#options;
    if (readiness === undefined || desired.kind !== "pod" || observed.kind === "unknown") return observed;
    if (observed.kind === "absent") {
      // Its address may be another machine's soon, while the pod may stay for long, as a failed one does.
      readiness.release(uidOf(desired.pod));
      return observed;
    }
    return { kind: "found", machine: readiness.apply(desired.pod, observed.machine) };
  }

  /** Takes down what this look shows, before anything is decided. */
  #notice(uid: string, desired: Desired, observed: Observed): void {
    if (observed.kind === "found" || !isToRun(desired)) this.#options.losses?.settled(uid);
    this.#records.update(uid, this.#learned(uid, desired, observed));
    if (desired.kind !== "pod") return;
    const { pod } = desired;
    if (observed.kind === "found") {
      this.#forwardNotices(pod, observed.machine);
      this.#options.hooks?.onMachine?.(pod, observed.machine);
    }
    const record = this.#records.of(uid);
    const now = this.#options.clock.monotonic();
    if (!hasRun(pod) && !isTerminal(pod)) record.firstLook ??= now;
    if (record.memory.seenAt === undefined) record.update({ seenAt: now });
  }

  /** What this look changes in what was remembered of the machine. */
  #learned(uid: string, desired: Desired, observed: Observed): Partial<PodMemory> {
    const { podSeenGone, orphanSince, missedAt, buried, stopDeadline } = this.#records.memory(uid);
    const isFound = observed.kind === "found";
    const isOrphan = desired.kind === "none" && isFound && !podSeenGone;
    const state = observed.kind === "absent" ? undefined : observed.machine?.state;
    const hasEnded = state !== undefined && isOver({ state });
    return {
      ...(isOrphan && orphanSince === undefined && { orphanSince: this.#options.clock.monotonic() }),
      // However it was found: only what stays away from one look to the next is lost.
      ...(isFound && missedAt.length > 0 && { missedAt: [] }),
      // Buried, and it runs all the same: its backend was restored from a copy of its data.
      ...(state !== undefined && !hasEnded && buried && { buried: false }),
      // A stop is of one life of the machine: one that runs again is given its grace again.
      ...(hasEnded && stopDeadline !== undefined && { stopDeadline: undefined }),
    };
  }

  #plan(uid: string, desired: Desired, observed: Observed): Action {
    const isThere = desired.kind === "pod" && observed.kind === "found";
    return (this.#options.plan ?? plan)(desired, observed, this.#records.memory(uid), {
      now: this.#options.clock.now(),
      monotonic: this.#options.clock.monotonic(),
      hostIPs: this.#options.hostIPs(),
      markCheapToDelete: this.#options.markCheapToDelete,
      version: isThere ? this.#options.renderer.version(desired.pod, observed.machine) : undefined,
    });
  }

  // -------------------------------------------------------------------------------------------------------------- act

  /** Undefined means: observe and plan again. */
  async #act(
    uid: string,
    action: Exclude<Action, { do: "wait" | "forget" }>,
    { desired, observed }: { desired: Desired; observed: Observed },
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    try {
      switch (action.do) {
        case "look":
          await this.#look(uid, signal);
          return undefined;
        case "create":
          return await this.#creation.create(uid, podOf(desired), signal);
        case "evict":
          return await this.#evict(uid, podOf(desired), observed, signal);
        case "stop":
          if (action.verdict !== undefined && action.verdict !== DEADLINE)
            this.#records.update(uid, { verdict: action.verdict });
          await this.#removal.stop(uid, action.graceSeconds, signal);
          if (action.verdict !== undefined) this.#announce(podOf(desired), action.verdict);
          return undefined;
        case "bury":
          if (action.verdict !== undefined) this.#records.update(uid, { verdict: action.verdict });
          if (!(await this.#removal.bury(uid, action, signal))) return undefined;
          if (action.verdict !== undefined) this.#announce(podOf(desired), action.verdict);
          return undefined;
        case "status":
          if (action.verdict === LOST && this.#isDoubtful(uid)) return { kind: "after", ms: DOUBT_MS };
          if (action.patch["reason"] === REFUSED) this.#creation.lost(podOf(desired));
          return await this.#status.write(uid, podOf(desired), action, signal);
        case "update":
          await this.#update.update(uid, podOf(desired), signal);
          return undefined;
        case "finalize":
          return await this.#removal.finalize(uid, podOf(desired), signal);
        case "reap":
          return await this.#removal.reap(uid, signal);
      }
    } catch (thrown) {
      return this.#failed(uid, action, desired, thrown, signal);
    }
  }

  async #evict(uid: string, pod: Pod, observed: Observed, signal: AbortSignal): Promise<undefined> {
    if (await this.#removal.evict(uid, pod, observed, signal)) this.#creation.lost(pod);
    return undefined;
  }

  #failed(uid: string, action: Action, desired: Desired, thrown: unknown, signal: AbortSignal): Outcome | undefined {
    // That the agent is being stopped is not a failure.
    if (signal.aborted) return { kind: "retry", error: toError(thrown) };
    if (this.#recordUnknown(thrown)) return undefined;
    const error = toError(thrown);
    if (desired.kind === "pod" && isProviderError(thrown) && isPartOfKilling(desired.pod, action))
      reported(this.#options, desired.pod, "FailedKillPod", "error killing pod", error);
    const retryAfterMs = isProviderError(thrown) || isKubeApiError(thrown) ? thrown.retryAfterMs : undefined;
    const pod = this.#options.pods.get(uid) ?? this.#records.find(uid)?.lastSeen;
    this.#options.logger.debug(
      { ...(pod === undefined ? { uid } : aboutPod(pod)), op: action.do, err: error },
      "Step failed and will be tried again",
    );
    return { kind: "retry", error, ...(retryAfterMs !== undefined && { afterMs: retryAfterMs }) };
  }

  /**
   * Whether it cannot be believed yet that this machine is lost: then it is looked for again before its pod is failed.
   */
  #isDoubtful(uid: string): boolean {
    if (this.#options.losses?.mayLose(uid) !== false) return false;
    this.#records.update(uid, { missedAt: this.#records.memory(uid).missedAt.slice(-1) });
    return true;
  }

  /** Asks the backend directly. "Absent" counts only when the backend itself said so. */
  async #look(uid: string, signal: AbortSignal): Promise<Observed> {
    const id = this.#options.machineId(uid);
    const { machines } = this.#options;
    const knownBefore = machines.revision;
    // What was written of the pod while the question was under way, the answer may be older than.
    const desired = this.#copies.desired(uid);
    const confirmedFor = desired.kind === "pod" ? desired.pod.metadata!.resourceVersion : undefined;
    try {
      const machine = await this.#options.provider.getPod(id, { signal });
      machines.put(machine, knownBefore);
      // The cache may have something newer yet: then that is what the answer has not contradicted.
      const known = machines.observe(id);
      const confirmedVersion = known.kind === "found" ? known.machine.version : machine.version;
      this.#records.update(uid, { missedAt: [], confirmedVersion, confirmedFor });
      return { kind: "found", machine };
    } catch (thrown) {
      if (isProviderError(thrown) && this.#recordUnknown(thrown))
        return { kind: "unknown", machine: thrown.unknownMachine! };
      if (!isProviderError(thrown, "not_found")) throw thrown;
      // It has been made, or been seen, while the answer was on its way.
      if (!machines.drop(id, knownBefore)) return machines.observe(id);
      this.#records.update(uid, {
        missedAt: [...this.#records.memory(uid).missedAt, this.#options.clock.monotonic()].slice(-2),
      });
      return { kind: "absent" };
    }
  }

  /**
   * The backend answered, and what it said of the machine cannot be believed: that is known then, and asking again
   * would not help. False for any other failure.
   */
  #recordUnknown(thrown: unknown): boolean {
    if (!isProviderError(thrown) || thrown.unknownMachine === undefined) return false;
    this.#options.machines.putUnknown(thrown.unknownMachine);
    return this.#options.machines.observe(thrown.unknownMachine.id).kind === "unknown";
  }

  /** kubelet tells of a deadline by an event; other ends of a pod were announced where they were decided. */
  #announce(pod: Pod, verdict: Verdict): void {
    if (verdict === DEADLINE)
      this.#options.event(pod, { type: "Normal", reason: verdict.reason, message: verdict.message });
    // Its controller replaces it at once, and a backend may take the next one's machine away as soon.
    if (verdict === LOST || verdict.reason === OUT_OF_TIME) this.#creation.lost(pod);
    if (verdict !== LOST) return;
    this.#options.event(pod, { type: "Warning", reason: LOST.reason, message: LOST.message });
    this.#options.logger.warn(aboutPod(pod), LOST.message);
    this.#options.hooks?.onLost?.();
  }

  #preempt(victim: Pod): void {
    const uid = uidOf(victim);
    this.#options.event(victim, { type: "Warning", reason: PREEMPTED.reason, message: PREEMPTED.message });
    this.#records.update(uid, { verdict: PREEMPTED });
    this.#options.requeue?.(uid);
  }

  /**
   * Passes on what the backend has to say about a machine, once per process. What a machine that this process did not
   * make had to say at the first sight of it is old news. The times of the notices are by the backend's clock and
   * decide nothing.
   */
  #forwardNotices(pod: Pod, machine: Machine): void {
    const record = this.#records.of(uidOf(pod));
    const notices = machine.notices ?? [];
    const newest = notices.at(-1)?.seq ?? -1;
    const last = record.noticeSeq ?? (record.memory.created ? -1 : newest);
    record.noticeSeq = Math.max(last, newest);
    for (const notice of notices) if (notice.seq > last) this.#options.event(pod, noticeEvent(pod, notice));
  }

  // ----------------------------------------------------------------------------------------------------------- forget

  /** The one place where everything that is held of a pod goes. */
  #forget(uid: string): void {
    this.#records.drop(uid);
    const id = this.#options.machineId(uid);
    const observed = this.#options.machines.observe(id);
    if (observed.kind === "found" && observed.machine.state === "deleted") this.#options.machines.forget(id);
  }

  /** Releases what others hold for the pod. */
  #release(uid: string): void {
    this.#options.losses?.settled(uid);
    this.#options.readiness?.release(uid);
    // Again: a render that was under way when the pod went may have taken hold of what it refers to only afterwards.
    this.#options.renderer.release?.(uid);
  }
}

/** kubelet tells of what keeps a pod from ending by event FailedKillPod (`FailedToKillPod`). */
function isPartOfKilling(pod: Pod, action: Action): boolean {
  if (action.do === "look") return isDeleting(pod);
  return action.do === "stop" || action.do === "bury";
}

function isToRun(desired: Desired): boolean {
  return desired.kind === "pod" && !isTerminal(desired.pod) && !isDeleting(desired.pod);
}

function podOf(desired: Desired): Pod {
  if (desired.kind !== "pod") throw new Error("planner asked for a pod action without a pod");
  return desired.pod;
}

function noticeEvent(pod: Pod, notice: MachineNotice): PodEvent {
  const { type, reason, message, container } = notice;
  return { type, reason, message, fieldPath: container === undefined ? undefined : fieldPathOf(pod, container) };
}
