/** Specifications with one thing in them changed, as patches ask for. */
import {
  type ContainerResources,
  containersOf,
  type ContainerSpec,
  isSidecar,
  type MachinePatch,
  type MachineSpec,
  type NamedContainer,
  ProviderError,
  type Volume,
} from "../../../src/provider/kit/index.ts";

export type FilesVolume = Extract<Volume, { type: "files" }>;

export function filesVolumes({ volumes = [] }: MachineSpec): FilesVolume[] {
  return volumes.filter((volume) => volume.type === "files");
}

/** @throws ProviderError invalid when there is none of this name */
export function findFiles(spec: MachineSpec, name: string): FilesVolume {
  const volume = filesVolumes(spec).find((each) => each.name === name);
  if (volume === undefined)
    throw new ProviderError("invalid", `the machine has no files volume "${name}"`, { field: "files.volume" });
  return volume;
}

/** With another definition in the place of the container's own. */
export function specWithContainer(spec: MachineSpec, name: string, change: Partial<ContainerSpec>): MachineSpec {
  const apply = (list: ContainerSpec[]) =>
    list.map((container) => (container.name === name ? { ...container, ...change } : container));
  const { init_containers } = spec;
  return {
    ...spec,
    containers: apply(spec.containers),
    ...(init_containers && { init_containers: apply(init_containers) }),
  };
}

/** @throws ProviderError invalid when there is no files volume of this name */
export function specWithFiles(
  spec: MachineSpec,
  { volume: name, version, files }: NonNullable<MachinePatch["files"]>[number],
): MachineSpec {
  const volume = findFiles(spec, name);
  return { ...spec, volumes: spec.volumes!.map((other) => (other === volume ? { ...volume, version, files } : other)) };
}

/**
 * The machine's resources where a container changes and nobody says what the machine is to have: a limit that was no
 * more than its containers' own together goes, so that they may grow; their own keep it.
 */
export function withoutSummedLimits(spec: MachineSpec): ContainerResources {
  const limits = { ...spec.resources?.limits };
  const containers = containersOf(spec).filter(({ kind }) => kind !== "ephemeral");
  for (const key of ["cpu_millis", "memory_bytes"] as const) {
    const own = (each: NamedContainer) => each.spec.resources?.limits?.[key] ?? 0;
    const stay = containers.filter((each) => each.kind === "main" || isSidecar(each.spec, each.kind));
    const together = stay.reduce((sum, each) => sum + own(each), 0);
    if (containers.every((each) => own(each) > 0) && together <= (limits[key] ?? 0)) delete limits[key];
  }
  return { ...spec.resources, limits };
}
