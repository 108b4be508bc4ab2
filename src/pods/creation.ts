/**
 * The step from a pod to its machine: a read of the pod that no cache may answer, rendering, the PUT, and what becomes
 * of it when it must wait or is refused. Called by the reconciler when the planner asks for it; the memory of a pod is
 * the reconciler's.
 */
import { controllerOf, isDeleting, isTerminal, uidOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { daemonSetHeld, isDaemonSetPod } from "../podspec/admission/admission.ts";
import type { PodEvent, Rendered } from "../podspec/types.ts";
import { ProviderError } from "../provider/errors.ts";
import { tracedStep } from "../telemetry/tracing.ts";
import type { MachineSpec } from "../provider/machine.ts";
import type { PodMemory } from "./pod-memory.ts";
import type { HeldCreate } from "./pod-record.ts";
import type { Outcome } from "./reconciler-options.ts";
import { OwnerBackoff, refusalPolicy } from "./refusals.ts";
import { hasRun } from "./status/facts.ts";
import type { Verdict } from "./status/input.ts";
import type { StepContext } from "./step-context.ts";
import { doubledMs } from "../util/doubled.ts";
import { toError } from "../util/errors.ts";

type Waiting = Extract<Rendered, { kind: "wait" }>;
interface Refusal {
  reason: string;
  message: string;
}

/**
 * A create that waits for something is tried again when that changes, and after this long, doubling. kubelet: 2 m 2 s
 * at most.
 */
const CREATE_RETRY_MS = { first: 5_000, max: 122_000 };
/** kubelet: podAttachAndMountTimeout. */
const MOUNT_TIMEOUT_MS = 123_000;
/** How often a critical pod looks whether those that make room for it are gone. */
const PREEMPTION_RETRY_MS = 1_000;
/** As the back-off of a container that crashes. */
const OWNER_BACKOFF = { firstMs: 10_000, maxMs: 300_000, forgetMs: 600_000 };
/** A machine that is lost so soon after its pod's start may be lost again. */
const EARLY_LOSS_MS = 600_000;

const MACHINE_DELETED: Verdict = {
  reason: "MachineLost",
  message: "The machine of this pod was deleted outside of Kubernetes",
  ofNoMachine: true,
};

export class MachineCreation {
  readonly #context: StepContext;
  readonly #onPreempt: (victim: Pod) => void;
  /** Of pods that could not run here just now. */
  readonly #refusals: OwnerBackoff;
  /** Of pods that lost their machines soon. */
  readonly #losses: OwnerBackoff;

  /** @param onPreempt called for each pod that has to go, so that a critical one finds room */
  constructor(context: StepContext, onPreempt: (victim: Pod) => void) {
    this.#context = context;
    this.#onPreempt = onPreempt;
    this.#refusals = new OwnerBackoff({ ...OWNER_BACKOFF, clock: context.clock });
    this.#losses = new OwnerBackoff({ ...OWNER_BACKOFF, clock: context.clock, freeRounds: 1 });
  }

  /** Undefined means: observe and plan again. @throws what is to be tried again */
  async create(uid: string, pod: Pod, signal: AbortSignal): Promise<Outcome | undefined> {
    const waitMs = this.#delay(this.#losses, uid, pod);
    if (waitMs > 0) return this.#pause(uid, pod, LOST_TOO_OFTEN, waitMs);
    const cachedBefore = this.#context.copies.cachedVersion(uid);
    const fresh = await this.#context.api.read(pod, signal);
    if (fresh === undefined || fresh.metadata!.uid !== uid) return { kind: "after", ms: 1_000 };
    this.#context.copies.learn(uid, fresh, cachedBefore);
    if (!mayStillBeMade(fresh, pod)) return undefined;
    if (fresh.spec?.nodeName !== this.#context.nodeName) return { kind: "settled" };

    const { renderer, tracing } = this.#context;
    const render = () => renderer.render(fresh, signal);
    const rendered = await (tracing === undefined ? render() : tracedStep(tracing, "render", {}, render));
    // All this took its time, in which the watch may have brought something newer.
    const cached = this.#context.pods.get(uid);
    if (cached === undefined || !mayStillBeMade(cached, pod)) return undefined;
    switch (rendered.kind) {
      case "reject": {
        const mayBeMade = this.#context.records.memory(uid).created;
        return await this.#refuse(uid, fresh, rendered, { missing: rendered.missing, mayBeMade }, signal);
      }
      case "preempt":
        for (const victim of rendered.victims) this.#onPreempt(victim);
        return { kind: "after", ms: PREEMPTION_RETRY_MS };
      case "wait":
        return this.#wait(uid, fresh, rendered);
      case "ready":
        return await this.#put(uid, fresh, rendered, signal);
    }
  }

  /** The pod's machine is gone, or was not admitted: its owner's next pods may be waiting for the same. */
  lost(pod: Pod): void {
    const owner = controllerOf(pod);
    if (owner === undefined || refusalPolicy(pod, MACHINE_DELETED.reason) !== "pace") return;
    const startTime = pod.status?.startTime;
    const livedMs = startTime === undefined ? 0 : this.#context.clock.now() - Date.parse(startTime);
    if (livedMs < EARLY_LOSS_MS) this.#losses.failed(owner.uid, this.#seenAt(uidOf(pod)));
  }

  #seenAt(uid: string): number {
    return this.#context.records.memory(uid).seenAt ?? 0;
  }

  async #put(
    uid: string,
    pod: Pod,
    rendered: Extract<Rendered, { kind: "ready" }>,
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    const { provider, machines, machineId, records, event, hooks } = this.#context;
    const before = records.memory(uid);
    records.update(uid, { waiting: rendered.waiting, created: true });
    this.#context.guard?.();
    try {
      const machine = await provider.createPod(machineId(uid), rendered.spec, { signal });
      records.of(uid).held = undefined;
      machines.put(machine);
      records.update(uid, {
        // Not the version of now: whatever changed while the create was under way is still to be applied.
        appliedVersion: rendered.version,
        appliedGeneration: pod.metadata?.generation,
        resize: {},
      });
      // Said when it is done, so that a create that had to be repeated does not say it twice.
      for (const each of rendered.events) event(pod, each);
      const where = machine.host ? ` on ${machine.host}` : "";
      event(pod, { type: "Normal", reason: "MachineCreated", message: `Created machine ${machine.id}${where}` });
      hooks?.onCreate?.({ ok: true }, pod);
      return undefined;
    } catch (thrown) {
      // That the agent is being stopped is not a failure of the backend.
      signal.throwIfAborted();
      if (!(thrown instanceof ProviderError)) {
        // A mistake of the provider's own. Its words are for its author: who reads the pod's events may not read them.
        const { name } = toError(thrown);
        const message = `The backend could not create a machine yet: its provider failed with ${name}; the agent's log has the reason`;
        event(pod, { type: "Warning", reason: "FailedCreate", message });
        throw thrown;
      }
      hooks?.onCreate?.({ ok: false, code: thrown.code }, pod);
      if (thrown.unknownMachine !== undefined) throw thrown;
      return await this.#failed(uid, pod, thrown, { before, spec: rendered.spec }, signal);
    }
  }

  /**
   * `before`: what was remembered before this create. An earlier one may have made a machine, whatever came of this.
   */
  async #failed(
    uid: string,
    pod: Pod,
    error: ProviderError,
    { before, spec }: { before: PodMemory; spec: MachineSpec },
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    const { records, event, machineId } = this.#context;
    const { message } = error;
    const disk = diskAt(spec, error);
    if (disk !== undefined) {
      // It says that this create made nothing. The pod waits: its next one would want the same volume.
      records.update(uid, { created: before.created, waiting: before.waiting });
      const text = `MountVolume.SetUp failed for volume "${disk}" : ${message}`;
      return this.#wait(uid, pod, {
        kind: "wait",
        waiting: new Map(),
        unmountedVolumes: [disk],
        events: [{ type: "Warning", reason: "FailedMount", message: text }],
      });
    }
    switch (error.code) {
      case "conflict": {
        // The id is taken by a machine of another spec: ours, made before something it refers to changed.
        const text = `The backend has machine ${machineId(uid)} of this pod with another specification, and it is kept as it is: ${message}`;
        event(pod, { type: "Warning", reason: "SpecConflict", message: text });
        await this.#context.look(uid, signal);
        return undefined;
      }
      case "gone":
        records.update(uid, { verdict: MACHINE_DELETED });
        this.lost(pod);
        return undefined;
      case "invalid":
      case "unsupported": {
        // It says that this create made nothing.
        records.update(uid, { created: before.created, waiting: before.waiting });
        const reason = error.code === "invalid" ? "InvalidSpec" : "UnsupportedFeature";
        return await this.#refuse(
          uid,
          pod,
          { reason, message },
          { mayBeMade: before.created, event: "FailedCreate" },
          signal,
        );
      }
      case "not_found":
      case "in_use":
      case "out_of_zone":
      case "quota":
      case "rate_limited":
      case "unauthorized":
      case "unavailable":
        event(pod, {
          type: "Warning",
          reason: "FailedCreate",
          message: `The backend could not create a machine yet: ${message}`,
        });
        throw error;
    }
  }

  /**
   * The pod cannot run here: it fails, or stays Pending where its failure would only make its controller replace it.
   * One that was taken in and may have a machine is not refused any more, whatever has changed since.
   */
  async #refuse(
    uid: string,
    pod: Pod,
    { reason, message }: Refusal,
    details: { mayBeMade: boolean; missing?: readonly string[] | undefined; event?: string },
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    const seen = await this.#context.look(uid, signal);
    if (seen.kind === "unknown" || (seen.kind === "found" && seen.machine.state !== "deleted")) return undefined;
    const warning: PodEvent = { type: "Warning", reason: details.event ?? reason, message };
    const hold = (event: PodEvent) =>
      this.#wait(uid, pod, {
        kind: "wait",
        waiting: allWait(pod, { reason, message }),
        unmountedVolumes: [],
        events: [event],
      });
    if (details.mayBeMade)
      return hold({
        ...warning,
        message: `${message}. The pod stays Pending: it was taken in before, and its machine may still come`,
      });

    const policy = refusalPolicy(pod, reason);
    const record = this.#context.records.of(uid);
    if (!record.isRefusalCounted) this.#context.hooks?.onRejected?.(reason, details.missing ?? []);
    record.isRefusalCounted = true;
    if (policy === "hold" && isDaemonSetPod(pod)) return hold(daemonSetHeld(message));
    const owner = controllerOf(pod);
    if (policy === "hold")
      return hold({
        ...warning,
        message: `${message}. ${STAYS_PENDING(owner!.kind)}: change its template, or keep its pods from this node`,
      });
    const waitMs = policy === "pace" ? this.#delay(this.#refusals, uid, pod) : 0;
    if (waitMs > 0)
      return this.#pause(uid, pod, { ...warning, message: `${message}. ${STAYS_PENDING(owner!.kind)}` }, waitMs);
    if (policy === "pace") this.#refusals.failed(owner!.uid, this.#seenAt(uid));
    this.#context.event(pod, warning);
    this.#context.records.update(uid, {
      verdict: { reason, message: `Pod was rejected: ${message}`, ofNoMachine: true },
    });
    return undefined;
  }

  #delay(backoff: OwnerBackoff, uid: string, pod: Pod): number {
    const owner = controllerOf(pod);
    return owner === undefined ? 0 : backoff.delay(owner.uid, this.#seenAt(uid));
  }

  /** Nothing of it shows in the status: the pod has been given nothing on this node. */
  #pause(uid: string, pod: Pod, event: PodEvent, waitMs: number): Outcome {
    const retryMs = this.#hold(uid, pod, { events: [event] });
    return { kind: "after", ms: Math.min(waitMs, retryMs) };
  }

  #wait(uid: string, pod: Pod, rendered: Waiting): Outcome | undefined {
    const before = this.#context.records.memory(uid).waiting;
    this.#context.records.update(uid, { waiting: rendered.waiting });
    // The new reason is written first; the planner then asks for the create again, which is this call's next visit.
    if (!sameWaiting(before, rendered.waiting)) return undefined;
    return { kind: "after", ms: this.#hold(uid, pod, rendered) };
  }

  /**
   * Says what a create waits for. Volumes that stay away get kubelet's second event as well, each time that its worker
   * would have given up. Returns the milliseconds until it is worth another try, unless something changes before.
   */
  #hold(
    uid: string,
    pod: Pod,
    { events, unmountedVolumes: volumes = [] }: Pick<Waiting, "events"> & Partial<Waiting>,
  ): number {
    const now = this.#context.clock.monotonic();
    const eventsText = JSON.stringify(events);
    const record = this.#context.records.of(uid);
    const known = record.held;
    const held: HeldCreate = {
      mountingSince: volumes.length > 0 ? (known?.mountingSince ?? now) : undefined,
      ...(known?.eventsText === eventsText ? known : { eventsText, times: 0, retryAt: now }),
    };
    if (now >= held.retryAt) {
      for (const event of events) this.#context.event(pod, event);
      held.retryAt = now + doubledMs(CREATE_RETRY_MS, held.times++);
    }
    let untilTimeout = Infinity;
    if (held.mountingSince !== undefined) {
      if (now - held.mountingSince >= MOUNT_TIMEOUT_MS) {
        held.mountingSince = now;
        this.#context.event(pod, {
          type: "Warning",
          reason: "FailedMount",
          message: `Unable to attach or mount volumes: unmounted volumes=[${volumes.join(" ")}], unattached volumes=[], failed to process volumes=[]: context deadline exceeded`,
        });
      }
      untilTimeout = held.mountingSince + MOUNT_TIMEOUT_MS - now;
    }
    record.held = held;
    return Math.min(held.retryAt - now, untilTimeout);
  }
}

/** The volume that outlives machines, by its name in the pod, because of which a create was refused. */
function diskAt({ volumes = [] }: MachineSpec, { code, field }: ProviderError): string | undefined {
  if (!["not_found", "in_use", "out_of_zone", "invalid"].includes(code)) return undefined;
  const volume = volumes[Number(/^volumes\.(\d+)\./.exec(field ?? "")?.[1] ?? "-1")];
  return volume?.type === "persistent" || volume?.type === "nfs" ? volume.name : undefined;
}

const STAYS_PENDING = (kind: string) => `The pod stays Pending, because its ${kind} would replace a failed one at once`;

const LOST_TOO_OFTEN: PodEvent = {
  type: "Warning",
  reason: "BackOff",
  message:
    "Pods of the same controller lost their machines soon after their start, one after another: this one's is made later",
};

/**
 * `decidedOn`: the copy by which a create was decided on. A pod that has run since then is no longer to be given a
 * machine.
 */
function mayStillBeMade(now: Pod, decidedOn: Pod): boolean {
  const hasBegun = hasRun(now) && !hasRun(decidedOn);
  return !isDeleting(now) && !isTerminal(now) && !hasBegun;
}

/** The status of a pod that is held: its containers say why, as far as a kubelet would have begun with them. */
function allWait({ spec }: Pod, why: { reason: string; message: string }): Waiting["waiting"] {
  const [init] = spec?.initContainers ?? [];
  const first = init === undefined ? (spec?.containers ?? []) : [init];
  return new Map(first.map(({ name }) => [name, why]));
}

function sameWaiting(a: PodMemory["waiting"], b: NonNullable<PodMemory["waiting"]>): boolean {
  return (
    a !== undefined &&
    a.size === b.size &&
    [...b].every(([k, v]) => a.get(k)?.reason === v.reason && a.get(k)?.message === v.message)
  );
}
