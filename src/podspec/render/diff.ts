/**
 * What must change on a machine that runs for it to match its pod again: files, images, ephemeral containers,
 * resources. The machine itself says what it has, so nothing needs to be remembered over a restart of the agent.
 */
import type { Capability } from "../../provider/capabilities.ts";
import {
  fileVersion,
  type ContainerResources,
  type ContainerSpec,
  type Machine,
  type MachinePatch,
  type Volume,
} from "../../provider/machine.ts";
import type { PodEvent } from "../types.ts";
import { isSameImage } from "../image-name.ts";

/** What the pod says now, in a machine's terms. Env and mounts are not here: those of a running container are fixed. */
export interface DesiredMachine {
  /** The machine's own. `areAsked`: the pod has resources of its own, besides its containers'. */
  resources?: { amounts: ContainerResources | undefined; areAsked: boolean };
  /** Init and main containers. */
  containers: readonly {
    name: string;
    image: string;
    resources: ContainerResources | undefined;
    /** Resources (`cpu`, `memory`) that it wants to be restarted for when they change (resizePolicy). */
    restartFor?: readonly string[];
  }[];
  ephemeralContainers: readonly ContainerSpec[];
  /** Only the file volumes matter; one that cannot be rendered now is left out and stays as it is. */
  volumes: readonly Volume[];
}

interface MachineDiff {
  /** Undefined when the machine matches, or differs only in what the backend cannot change. */
  patch: MachinePatch | undefined;
  /**
   * Containers whose cpu or memory is not what the pod says, with what it says. Not part of `patch`: it may not fit.
   */
  resized: NonNullable<MachinePatch["resources"]>;
  /** What the machine is to have as a whole, where that differs; not part of `patch` either. */
  machineResized?: ContainerResources;
  events: PodEvent[];
}

export function diffMachine(
  desired: DesiredMachine,
  machine: Machine,
  capabilities: ReadonlySet<Capability>,
): MachineDiff {
  const patch: MachinePatch = {};
  const events: PodEvent[] = [];

  const files = desired.volumes.flatMap((volume) =>
    volume.type === "files" && volume.version !== fileVersion(machine, volume.name)
      ? [{ volume: volume.name, version: volume.version, files: volume.files }]
      : [],
  );
  // A backend without live files keeps what it was given at create; its documentation says so.
  if (files.length > 0 && capabilities.has("patch_files")) patch.files = files;

  const ownChange = changeOfMachine(desired, machine);
  const states = new Map(machine.containers.map((state) => [state.name, state]));
  const images: { name: string; image: string }[] = [];
  const resized: MachineDiff["resized"] = [];
  for (const container of desired.containers) {
    const state = states.get(container.name);
    if (state === undefined) continue;
    if (!isSameImage(container.image, state.image)) images.push({ name: container.name, image: container.image });
    const changed = changedLimits(
      container.resources,
      state.resources,
      ownChange && { from: machine.resources, to: ownChange },
    );
    if (changed.length > 0) {
      const restart = changed.some((name) => container.restartFor?.includes(name));
      resized.push({ container: container.name, resources: container.resources ?? {}, ...(restart && { restart }) });
    }
  }
  if (images.length > 0) {
    if (capabilities.has("patch_image")) patch.containers = images;
    else {
      events.push({
        type: "Warning",
        reason: "FailedUpdate",
        message: `The image of ${images.map(({ name }) => name).join(", ")} was not changed: the backend lacks capability patch_image`,
      });
    }
  }

  const added = desired.ephemeralContainers.filter(({ name }) => !states.has(name));
  if (added.length > 0) patch.ephemeral_containers = added;
  const areAsked = desired.resources?.areAsked === true;
  // Without resources of its own, a machine has what its containers have: where it cannot change, they still can.
  const follows = resized.length > 0 && capabilities.has("resize_machine");
  return {
    patch: Object.keys(patch).length > 0 ? patch : undefined,
    resized,
    ...(ownChange && (areAsked || follows) && { machineResized: ownChange }),
    events,
  };
}

/** Undefined when nothing differs, or the backend does not say what the machine has. */
function changeOfMachine(
  { resources }: DesiredMachine,
  machine: Pick<Machine, "resources">,
): ContainerResources | undefined {
  if (resources === undefined || machine.resources === undefined) return undefined;
  return changedResources(resources.amounts, machine.resources).length > 0 ? (resources.amounts ?? {}) : undefined;
}

/**
 * What of a container changes, by its own resources or by those of its machine: as in a kubelet, one without a limit of
 * its own has the pod's (containerResourcesFromRequirements).
 */
function changedLimits(
  wanted: ContainerResources | undefined,
  now: ContainerResources | undefined,
  machine: { from: ContainerResources | undefined; to: ContainerResources } | undefined,
): string[] {
  const own = now === undefined ? [] : changedResources(wanted, now);
  if (machine === undefined) return own;
  const { from, to } = machine;
  const inherits = (amount: "cpu_millis" | "memory_bytes") =>
    !wanted?.limits?.[amount] && to.limits?.[amount] !== from?.limits?.[amount];
  return [...own, ...(inherits("cpu_millis") ? ["cpu"] : []), ...(inherits("memory_bytes") ? ["memory"] : [])];
}

/** Only cpu and memory can change in place. */
function changedResources(a: ContainerResources | undefined, b: ContainerResources): string[] {
  const differs = (amount: "cpu_millis" | "memory_bytes") =>
    (["requests", "limits"] as const).some((list) => a?.[list]?.[amount] !== b[list]?.[amount]);
  return [...(differs("cpu_millis") ? ["cpu"] : []), ...(differs("memory_bytes") ? ["memory"] : [])];
}
