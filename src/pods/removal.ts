/**
 * The steps from a machine to nothing: stop it, bury it under a tombstone, remove the pod's object, and take away
 * machines whose pods are gone. Called by the reconciler when the planner asks for it.
 */
import { aboutPod } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { LABEL_NAMESPACE, LABEL_POD } from "../podspec/machine-id.ts";
import { isProviderError } from "../provider/errors.ts";
import { isKnownOver, type Machine } from "../provider/machine.ts";
import type { DeleteOptions } from "../provider/provider.ts";
import type { Observed } from "./decision.ts";
import { EVICT_AGAIN_MS } from "./disruption.ts";
import type { Outcome } from "./reconciler-options.ts";
import { reported, type StepContext } from "./step-context.ts";

/**
 * A machine that does not go is deleted again after this long, doubling; its user is told when the longest is reached.
 */
const BURIAL_RETRY_MS = { first: 200, max: 30_000 };

/** So long an event of a tombstone is waited for; then the backend is asked. */
const TOMBSTONE_TOLD_MS = 50;

/** The removal of a pod's object that stays is repeated after this long, doubling: no reply is proof for ever. */
const FINALIZE_AGAIN_MS = { first: 30_000, max: 600_000 };

export class MachineRemoval {
  readonly #context: StepContext;

  constructor(context: StepContext) {
    this.#context = context;
  }

  /** Has the API server delete the pod, whose machine its backend is about to take away. @returns whether it does */
  async evict(uid: string, pod: Pod, observed: Observed, signal: AbortSignal): Promise<boolean> {
    this.#context.guard?.();
    const { records, clock } = this.#context;
    const disruption = observed.kind === "absent" ? undefined : observed.machine?.disruption;
    const isUnseen = observed.kind === "unknown";
    if (isUnseen && this.#isHeld(uid, pod)) return false;
    const isFirst = records.memory(uid).evictionTold !== "asked";
    records.update(uid, { evictAgainAt: clock.monotonic() + EVICT_AGAIN_MS, evictionTold: "asked" });
    if (isFirst && disruption !== undefined) {
      const message = `Pod is evicted, for the backend is about to take its machine away: ${disruption.reason}: ${disruption.message}`;
      this.#context.event(pod, { type: "Warning", reason: "MachineDisruption", message });
    }
    const result = await this.#context.api.evict(pod, signal);
    if (isUnseen && result.kind !== "evicted") this.#context.evictions?.giveBack();
    const isRefused = result.kind === "denied" || result.kind === "refused";
    if (isRefused && isFirst) reported(this.#context, pod, "FailedEviction", "Pod cannot be evicted yet", result.error);
    return result.kind === "evicted";
  }

  /** Whether this pod has to wait because so many others are out of sight as well. */
  #isHeld(uid: string, pod: Pod): boolean {
    const { records, clock, evictions, event } = this.#context;
    const hold = evictions?.take();
    if (hold === undefined) return false;
    const { afterMs, doubt } = hold;
    const isTold = doubt === undefined || records.memory(uid).evictionTold === "held";
    if (!isTold)
      event(pod, { type: "Warning", reason: "EvictionHeld", message: `Pod is not evicted for now: ${doubt}` });
    const told = doubt === undefined ? {} : ({ evictionTold: "held" } as const);
    records.update(uid, { evictAgainAt: clock.monotonic() + afterMs, ...told });
    return true;
  }

  /** Asks the machine to end within its grace period. @throws ProviderError: to be tried again */
  async stop(uid: string, graceSeconds: number, signal: AbortSignal): Promise<void> {
    this.#context.guard?.();
    const id = this.#context.machineId(uid);
    const { machines } = this.#context;
    const knownBefore = machines.revision;
    try {
      const machine = await this.#context.provider.stopPod(id, { graceSeconds, signal });
      this.#context.records.update(uid, { stopDeadline: this.#context.clock.monotonic() + graceSeconds * 1000 });
      if (machine !== undefined) machines.put(machine, knownBefore);
    } catch (thrown) {
      if (!isProviderError(thrown, "not_found")) throw thrown;
      machines.drop(id, knownBefore);
    }
  }

  /**
   * DELETE, whether the machine exists or not: the tombstone keeps a late create from reviving it. Then make sure.
   *
   * @returns false when only an absent machine was to be buried, and another agent has made it meanwhile
   */
  async bury(
    uid: string,
    { force, ifAbsent }: Pick<DeleteOptions, "force" | "ifAbsent">,
    signal: AbortSignal,
  ): Promise<boolean> {
    this.#context.guard?.();
    const id = this.#context.machineId(uid);
    const { machines } = this.#context;
    const before = machines.observe(id);
    const mayBeTold = before.kind === "found" && before.machine.state !== "deleted";
    try {
      await this.#context.provider.deletePod(id, { force, ifAbsent, signal });
    } catch (thrown) {
      if (ifAbsent !== true || !isProviderError(thrown, "conflict")) throw thrown;
      const { kind } = await this.#context.look(uid, signal);
      // A backend that says both is asked again later, and no sooner.
      if (kind === "absent") throw thrown;
      return false;
    }
    // Its event comes at about the same time as the reply, and says what the backend would have to be asked for.
    if (mayBeTold && !this.#showsTombstone(id)) await machines.news(id, TOMBSTONE_TOLD_MS, signal);
    const isTold = mayBeTold && this.#showsTombstone(id);
    const seen = isTold ? machines.observe(id) : await this.#context.look(uid, signal);
    if (seen.kind === "absent" || seen.machine?.state === "deleted")
      this.#context.records.update(uid, { burial: undefined, buried: true, stopDeadline: undefined });
    else this.#buryAgain(uid, seen.machine?.state ?? "in a state that cannot be told");
    return true;
  }

  #showsTombstone(id: string): boolean {
    const observed = this.#context.machines.observe(id);
    return observed.kind === "found" && observed.machine.state === "deleted";
  }

  #buryAgain(uid: string, state: string): void {
    const now = this.#context.clock.monotonic();
    const burial = this.#context.records.memory(uid).burial ?? {
      since: now,
      pauseMs: BURIAL_RETRY_MS.first / 2,
      retryAt: now,
    };
    const pauseMs = Math.min(burial.pauseMs * 2, BURIAL_RETRY_MS.max);
    this.#context.records.update(uid, { burial: { since: burial.since, pauseMs, retryAt: now + pauseMs } });
    if (pauseMs < BURIAL_RETRY_MS.max || burial.pauseMs === pauseMs) return;
    const seconds = Math.round((now - burial.since) / 1000);
    const message = `Machine was deleted ${seconds} s ago and is still there: ${state}`;
    this.#context.logger.warn(
      { ...this.#about(uid), machine: this.#context.machineId(uid), state },
      "Machine does not go and is deleted again",
    );
    const desired = this.#context.copies.desired(uid);
    if (desired.kind === "pod") this.#context.event(desired.pod, { type: "Warning", reason: "FailedKillPod", message });
  }

  /** Removes the object of a pod whose machine is over. @throws what is to be tried again */
  async finalize(uid: string, pod: Pod, signal: AbortSignal): Promise<Outcome | undefined> {
    this.#context.guard?.();
    const result = await this.#context.api.remove(pod, signal);
    if (result.kind === "denied")
      throw reported(
        this.#context,
        pod,
        "FailedDelete",
        "The API server does not let this pod be removed",
        result.error,
      );
    const now = this.#context.clock.monotonic();
    const { since, pauseMs } = this.#context.records.memory(uid).finalized ?? {
      since: now,
      pauseMs: FINALIZE_AGAIN_MS.first / 2,
    };
    const next = Math.min(pauseMs * 2, FINALIZE_AGAIN_MS.max);
    this.#context.records.update(uid, { finalized: { since, pauseMs: next, retryAt: now + next } });
    return undefined;
  }

  /** A machine whose pod is gone from the cache: the API server has the last word before anything is destroyed. */
  async reap(uid: string, signal: AbortSignal): Promise<Outcome | undefined> {
    const observed = this.#context.machines.observe(this.#context.machineId(uid));
    const memory = this.#context.records.memory(uid);
    const machine = observed.kind === "found" ? observed.machine : undefined;
    if (machine !== undefined && !this.#isOwn(machine)) return { kind: "settled" };
    if (!memory.podSeenGone && !memory.mayBeReaped) {
      if (!this.#context.mayReap()) return { kind: "after", ms: 30_000 };
      this.#context.records.update(uid, { mayBeReaped: true });
    }
    const where = this.#whereabouts(uid, machine);
    if (where === undefined) {
      this.#context.logger.warn(
        { ...this.#about(uid), machine: machine?.id },
        "Machine names no pod and is left alone",
      );
      return { kind: "settled" };
    }
    const { namespace, name } = where;
    const current = await this.#context.api.read({ metadata: { namespace, name } }, signal);
    if (current?.metadata!.uid === uid) {
      // The cache was wrong; it will catch up.
      this.#context.records.update(uid, { podSeenGone: false, orphanSince: undefined, mayBeReaped: false });
      return { kind: "after", ms: 5_000 };
    }
    if (mayRun(observed) && memory.stopDeadline === undefined) {
      this.#context.logger.info(
        { namespace, pod: name, uid, machine: this.#context.machineId(uid) },
        "Stopping a machine whose pod is gone",
      );
      this.#context.hooks?.onOrphan?.(memory.podSeenGone);
      await this.stop(uid, 2, signal);
      return undefined;
    }
    await this.bury(uid, { force: true }, signal);
    return undefined;
  }

  #isOwn({ labels }: Machine): boolean {
    return Object.entries(this.#context.ownerLabels).every(([key, value]) => labels[key] === value);
  }

  /** Namespace and name of a pod that is gone: as it was last seen, or as its machine says. */
  #whereabouts(uid: string, machine: Machine | undefined): { namespace: string; name: string } | undefined {
    const last = this.#context.records.find(uid)?.lastSeen;
    const namespace = last?.metadata?.namespace ?? machine?.labels[LABEL_NAMESPACE];
    const name = last?.metadata?.name ?? machine?.labels[LABEL_POD];
    return namespace === undefined || name === undefined ? undefined : { namespace, name };
  }

  /** Names the pod in the log. */
  #about(uid: string): object {
    const pod = this.#context.pods.get(uid) ?? this.#context.records.find(uid)?.lastSeen;
    return pod === undefined ? { uid } : aboutPod(pod);
  }
}

/** Unless the backend says for certain that nothing of the machine runs. */
function mayRun(observed: Observed): boolean {
  return observed.kind !== "absent" && observed.machine !== undefined && !isKnownOver(observed.machine);
}
