/**
 * The step that brings a running machine to its pod's newer spec, or to what it refers to.
 */
import type { Pod } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import type { MachinePatch } from "../provider/machine.ts";
import { ResizeTracker } from "./resize-tracker.ts";
import type { StepContext } from "./step-context.ts";

export class MachineUpdate {
  readonly #c: StepContext;
  readonly #resize: ResizeTracker;

  constructor(context: StepContext) {
    this.#c = context;
    this.#resize = new ResizeTracker(context);
  }

  /** @throws what is to be tried again */
  async update(uid: string, pod: Pod, signal: AbortSignal): Promise<void> {
    const observed = this.#c.machines.observe(this.#c.machineId(uid));
    if (observed.kind !== "found") return;
    const difference = await this.#c.renderer.diff(pod, observed.machine, signal);
    const { patch, resize, events, waiting, version } = difference;
    for (const event of events) this.#c.event(pod, event);
    const { resources, ...rest } = patch ?? {};
    if (Object.keys(rest).length > 0) await this.#patch(pod, observed.machine.id, rest, signal);
    const before = this.#c.records.memory(uid).resize;
    this.#c.records.update(
      uid,
      await this.#resize.follow(pod, observed.machine.id, resize, resources ?? [], before, signal),
    );
    this.#c.records.update(uid, {
      appliedVersion: version,
      appliedGeneration: pod.metadata?.generation,
      waiting,
    });
  }

  /** What the backend refuses for good is told and left out; it must not keep the rest of the change away. */
  async #patch(pod: Pod, id: string, patch: MachinePatch, signal: AbortSignal): Promise<void> {
    if (this.#c.provider.updatePod === undefined) return;
    this.#c.guard?.();
    try {
      this.#c.machines.put(await this.#c.provider.updatePod(id, patch, { signal }));
    } catch (thrown) {
      // A machine that is not there any more refuses nothing; the cache will say so soon.
      if (!isProviderError(thrown) || thrown.retryable || thrown.code === "not_found") throw thrown;
      const parts = partsOf(patch);
      if (parts.length > 1) for (const part of parts) await this.#patch(pod, id, part, signal);
      else this.#c.event(pod, { type: "Warning", reason: "FailedUpdate", message: thrown.message });
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
