/**
 * How large a machine's description may be, on both sides. Most limits stand in openapi.yaml, the same in request and
 * reply; here are those of several fields together, so that everything a specification allows can also be reported.
 */
import { ProviderError } from "./errors.ts";
import type { ContainerSpec, MachinePatch, MachineSpec } from "./machine.ts";

/** Of one machine as JSON; a client takes no more. */
export const MACHINE_BYTES = 1024 * 1024;
/** Init, main and ephemeral containers together. */
const MACHINE_CONTAINERS = 1000;
/** Linux' NGROUPS_MAX. */
export const MAX_GROUPS = 65_536;

/** Groups of all containers together: each container's status names its own. */
export const MACHINE_GROUPS = 2 * MAX_GROUPS;

/** What a container's status has besides names, images and resources: states, ids, times, exit codes, no messages. */
const CONTAINER_BYTES = 800;
/** The same of the machine, an unused part of what it may have left for the event that it comes in. */
const OTHER_BYTES = 4096;

/**
 * What makes the machine too large to be told of, or undefined. `field` is a dotted path.
 *
 * Messages, notices and groups do not count: they are cut until the rest fits.
 */
export function specExcess(spec: MachineSpec): { field: string; message: string } | undefined {
  const containers = [...spec.containers, ...(spec.init_containers ?? []), ...(spec.ephemeral_containers ?? [])];
  if (containers.length > MACHINE_CONTAINERS) {
    const message = `and the other containers are ${containers.length}, more than ${MACHINE_CONTAINERS}`;
    return { field: "containers", message };
  }
  const groups = (spec.security?.supplemental_groups?.length ?? 0) * containers.length;
  if (groups > MACHINE_GROUPS) {
    const message = `of all ${containers.length} containers are ${groups}, more than ${MACHINE_GROUPS}`;
    return { field: "security.supplemental_groups", message };
  }
  const bytes = leastStatusBytes(spec, containers);
  if (bytes <= MACHINE_BYTES) return undefined;
  const message = `and what else comes back of a machine would take ${bytes} bytes in its status, more than ${MACHINE_BYTES}: take shorter names, fewer containers or fewer resources`;
  return { field: "containers", message };
}

/** The same of a machine after a change. */
export function patchExcess(spec: MachineSpec, patch: MachinePatch): ReturnType<typeof specExcess> {
  const change = (container: ContainerSpec): ContainerSpec => {
    const image = patch.containers?.findLast(({ name }) => name === container.name)?.image ?? container.image;
    const resources =
      patch.resources?.findLast((each) => each.container === container.name)?.resources ?? container.resources;
    return { ...container, image, ...(resources && { resources }) };
  };
  const known = new Set(spec.ephemeral_containers?.map(({ name }) => name));
  const added = patch.ephemeral_containers?.filter(({ name }) => !known.has(name)) ?? [];
  return specExcess({
    ...spec,
    containers: spec.containers.map(change),
    init_containers: (spec.init_containers ?? []).map(change),
    ephemeral_containers: [...(spec.ephemeral_containers ?? []), ...added],
    volumes: (spec.volumes ?? []).map((volume) => {
      const files = patch.files?.findLast((each) => each.volume === volume.name);
      return volume.type === "files" && files !== undefined ? { ...volume, version: files.version } : volume;
    }),
    ...(patch.registry_auth_version !== undefined && { registry_auth_version: patch.registry_auth_version }),
  });
}

/** @throws ProviderError invalid, for what `specExcess` or `patchExcess` found */
export function assertTellable(excess: ReturnType<typeof specExcess>): void {
  if (excess === undefined) return;
  throw new ProviderError("invalid", `${excess.field} ${excess.message}`, { field: excess.field });
}

/** An upper bound of the smallest status that tells of everything. */
function leastStatusBytes(spec: MachineSpec, containers: readonly ContainerSpec[]): number {
  let bytes =
    OTHER_BYTES +
    jsonBytes(spec.labels) +
    jsonBytes(spec.instance_type) +
    jsonBytes(spec.runtime_handler) +
    jsonBytes(spec.registry_auth_version) +
    jsonBytes(
      spec.volumes?.flatMap((each) => (each.type === "files" ? { volume: each.name, version: each.version } : [])),
    );
  for (const { name, image, resources } of containers) {
    // Ids of instances are made of the name, of the image that runs of its reference.
    bytes += CONTAINER_BYTES + 4 * jsonBytes(name) + 2 * jsonBytes(image) + jsonBytes(resources);
  }
  return bytes;
}

function jsonBytes(value: unknown): number {
  return value === undefined ? 0 : Buffer.byteLength(JSON.stringify(value));
}
