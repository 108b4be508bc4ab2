/**
 * A change of cpu and memory on a machine that runs, from the wish to its end: asks the backend, tells the pod's author
 * by kubelet's events, and says what the status must show. What it says is remembered by the caller; nothing is kept
 * here.
 */
import type { Pod } from "../kube/wire.ts";
import type { PodEvent, ResizeOutlook } from "../podspec/types.ts";
import { isProviderError } from "../provider/errors.ts";
import type { ContainerResources, Machine, MachinePatch } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { MachineCache } from "./machines.ts";
import type { PodMemory } from "./pod-memory.ts";
import type { ResizeState } from "./status/input.ts";

interface ResizeTrackerOptions {
  provider: Provider;
  machines: MachineCache;
  event: (pod: Pod, event: PodEvent) => void;
  guard?: (() => void) | undefined;
  clock: Clock;
}

/** How soon room is looked for again, and whether a change took effect. */
const DEFERRED_RETRY_MS = 10_000;
const PROGRESS_RETRY_MS = 1_000;

type Remembered = Pick<PodMemory, "resize" | "retryUpdateAt">;
type Wishes = Pick<MachinePatch, "resources" | "machine_resources">;

export class ResizeTracker {
  readonly #options: ResizeTrackerOptions;

  constructor(options: ResizeTrackerOptions) {
    this.#options = options;
  }

  /**
   * Does what is to be done next, and returns what to remember. `before` is what was remembered; undefined after a
   * restart.
   * @throws ProviderError when the backend could not say: to be tried again
   */
  async follow(
    pod: Pod,
    machineId: string,
    { outlook, wishes, before }: { outlook: ResizeOutlook; wishes: Wishes; before: ResizeState | undefined },
    signal: AbortSignal,
  ): Promise<Remembered> {
    const known = before ?? resizeStateOf(pod);
    if (outlook.kind === "none") {
      if (known.inProgress) this.#say(pod, "Normal", "ResizeCompleted", `Pod resize completed: ${describe(pod)}`);
      return { resize: {}, retryUpdateAt: undefined };
    }
    if (outlook.kind === "pending") return this.#pending(pod, outlook, known);
    if (!known.inProgress) this.#say(pod, "Normal", "ResizeStarted", `Pod resize started: ${outlook.text}`);
    this.#options.guard?.();
    try {
      const machine = await this.#options.provider.updatePod!(machineId, wishes, { signal });
      this.#options.machines.put(machine);
      if (!hasResources(machine, wishes)) {
        return { resize: { inProgress: {} }, retryUpdateAt: this.#options.clock.monotonic() + PROGRESS_RETRY_MS };
      }
      this.#say(pod, "Normal", "ResizeCompleted", `Pod resize completed: ${outlook.text}`);
      return { resize: {}, retryUpdateAt: undefined };
    } catch (thrown) {
      // Whether it was done cannot be told of a machine whose description makes no sense.
      if (!isProviderError(thrown) || thrown.unknownMachine !== undefined) throw thrown;
      const { message } = toError(thrown);
      const withError = { ...outlook, message, text: withErrorText(outlook.text, message) };
      if (!thrown.retryable) return this.#pending(pod, { ...withError, kind: "pending", reason: "Infeasible" }, known);
      if (thrown.code === "quota")
        return this.#pending(pod, { ...withError, kind: "pending", reason: "Deferred" }, known);
      if (known.inProgress?.error !== message) {
        this.#say(pod, "Warning", "ResizeError", `Pod resize error: ${withError.text}`);
      }
      return {
        resize: { inProgress: { error: message } },
        retryUpdateAt: this.#options.clock.monotonic() + DEFERRED_RETRY_MS,
      };
    }
  }

  #pending(
    pod: Pod,
    { reason, message, text }: Extract<ResizeOutlook, { kind: "pending" }>,
    known: ResizeState,
  ): Remembered {
    if (known.pending?.reason !== reason || known.pending.message !== message) {
      this.#say(pod, "Warning", `Resize${reason}`, `Pod resize ${reason}: ${text}`);
    }
    const retryUpdateAt = reason === "Deferred" ? this.#options.clock.monotonic() + DEFERRED_RETRY_MS : undefined;
    return { resize: { pending: { reason, message } }, retryUpdateAt };
  }

  #say(pod: Pod, type: PodEvent["type"], reason: string, message: string): void {
    this.#options.event(pod, { type, reason, message });
  }
}

/** What the pod's own status says, for an agent that has just been started. */
function resizeStateOf(pod: Pod): ResizeState {
  const find = (type: string) => pod.status?.conditions?.find((each) => each.type === type && each.status === "True");
  const pending = find("PodResizePending");
  const inProgress = find("PodResizeInProgress");
  return {
    pending: pending && {
      reason: pending.reason === "Deferred" ? "Deferred" : "Infeasible",
      message: pending.message ?? "",
    },
    inProgress: inProgress && (inProgress.message ? { error: inProgress.message } : {}),
  };
}

function hasResources(machine: Machine, { resources: wishes = [], machine_resources: own }: Wishes): boolean {
  const ofContainer = (container: string) => machine.containers.find(({ name }) => name === container)?.resources;
  return (
    wishes.every(({ container, resources }) => areSame(ofContainer(container), resources)) &&
    (own === undefined || areSame(machine.resources, own))
  );
}

function areSame(now: ContainerResources | undefined, wanted: ContainerResources): boolean {
  return (["requests", "limits"] as const).every(
    (list) =>
      now?.[list]?.cpu_millis === wanted[list]?.cpu_millis && now?.[list]?.memory_bytes === wanted[list]?.memory_bytes,
  );
}

function describe({ metadata, spec }: Pod): string {
  const of = (resources: NonNullable<Pod["spec"]>["resources"]) => ({
    limits: resources?.limits,
    requests: resources?.requests,
  });
  const containers = (spec?.containers ?? []).map(({ name, resources }) => ({ name, resources: of(resources) }));
  return JSON.stringify({
    ...(spec?.resources && { resources: of(spec.resources) }),
    containers,
    generation: metadata?.generation,
  });
}

const withErrorText = (text: string, error: string) => JSON.stringify({ ...(JSON.parse(text) as object), error });
