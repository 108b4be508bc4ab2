/**
 * The step that brings a running machine to its pod's newer spec, or to what it refers to.
 */
import type { Pod } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import type { MachinePatch } from "../provider/machine.ts";
import { ResizeTracker } from "./resize-tracker.ts";
import type { StepContext } from "./step-context.ts";

export class MachineUpdate {
  readonly #context: StepContext;
  readonly #resize: ResizeTracker;

  constructor(context: StepContext) {
    this.#context = context;
    this.#resize = new ResizeTracker(context);
  }

  /** @throws what is to be tried again */
  async update(uid: string, pod: Pod, signal: AbortSignal): Promise<void> {
    const observed = this.#context.machines.observe(this.#context.machineId(uid));
    if (observed.kind !== "found") return;
    const difference = await this.#context.renderer.diff(pod, observed.machine, signal);
    const { patch, resize, events, waiting, version } = difference;
    for (const event of events) this.#context.event(pod, event);
    const { resources, machine_resources, ...rest } = patch ?? {};
    const wishes = { ...(resources && { resources }), ...(machine_resources && { machine_resources }) };
    if (Object.keys(rest).length > 0) await this.#patch(pod, observed.machine.id, rest, signal);
    const before = this.#context.records.memory(uid).resize;
    this.#context.records.update(
      uid,
      await this.#resize.follow(pod, observed.machine.id, { outlook: resize, wishes, before }, signal),
    );
    this.#context.records.update(uid, {
      appliedVersion: version,
      appliedGeneration: pod.metadata?.generation,
      waiting,
    });
  }

  /** What the backend refuses for good is told and left out; it must not keep the rest of the change away. */
  async #patch(pod: Pod, id: string, patch: MachinePatch, signal: AbortSignal): Promise<void> {
    if (this.#context.provider.updatePod === undefined) return;
    this.#context.guard?.();
    try {
      this.#context.machines.put(await this.#context.provider.updatePod(id, patch, { signal }));
    } catch (thrown) {
      // A machine that is not there any more refuses nothing; the cache will say so soon.
      if (!isProviderError(thrown) || thrown.retryable || thrown.code === "not_found") throw thrown;
      const parts = partsOf(patch);
      if (parts.length > 1) for (const part of parts) await this.#patch(pod, id, part, signal);
      else this.#context.event(pod, { type: "Warning", reason: "FailedUpdate", message: thrown.message });
    }
  }
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
