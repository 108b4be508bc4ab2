/** Limits of local storage, with kubelet's order and words (pkg/kubelet/eviction, localStorageEviction). Pure. */
import {
  type Capability,
  type ContainerSpec,
  isSidecar,
  type MachineSpec,
  Quantity,
} from "../../../src/provider/kit/index.ts";

/** Bytes in use, by name. What was not measured counts as empty. */
export interface StorageUse {
  volumes: ReadonlyMap<string, number>;
  /** Writable layer and log of the containers that run. */
  containers: ReadonlyMap<string, number>;
}

/**
 * A block: what the smallest file with something in it takes. One without takes an inode, of which a disk has only so
 * many.
 */
const INODE_BYTES = 4096;

/** What a number of bytes in a number of files, folders and links counts for. */
export function charged(bytes: number, inodes: number): number {
  return Math.max(bytes, inodes * INODE_BYTES);
}

/** True when something of the machine is to be measured, by an engine that can. */
export function hasStorageLimits(spec: MachineSpec, capabilities: readonly Capability[]): boolean {
  return (
    (capabilities.includes("volumes.empty_dir.size_limit") && emptyDirs(spec).some(({ size_bytes }) => size_bytes)) ||
    (capabilities.includes("ephemeral_storage_limits") && machineLimit(spec) !== undefined)
  );
}

/** Why the machine must end, as kubelet says it; undefined while it keeps to its limits. */
export function exceededLimit(spec: MachineSpec, use: StorageUse): string | undefined {
  for (const { name, size_bytes = 0 } of emptyDirs(spec)) {
    if (size_bytes > 0 && (use.volumes.get(name) ?? 0) > size_bytes)
      return `Usage of EmptyDir volume "${name}" exceeds the limit "${format(size_bytes)}". `;
  }
  const limit = machineLimit(spec);
  if (limit === undefined) return undefined;
  // What is in memory counts as memory.
  const onDisk = emptyDirs(spec).filter(({ medium }) => medium === "disk");
  const parts = [...use.containers.values(), ...onDisk.map(({ name }) => use.volumes.get(name) ?? 0)];
  if (parts.reduce((total, bytes) => total + bytes, 0) > limit)
    return `Pod ephemeral local storage usage exceeds the total limit of containers ${format(limit)}. `;
  for (const container of spec.containers) {
    const own = limitOf(container);
    if (own !== undefined && (use.containers.get(container.name) ?? 0) > own)
      return `Container ${container.name} exceeded its local ephemeral storage limit "${format(own)}". `;
  }
  return undefined;
}

function emptyDirs(spec: MachineSpec) {
  return (spec.volumes ?? []).filter((volume) => volume.type === "empty_dir");
}

function limitOf(container: ContainerSpec): number | undefined {
  return container.resources?.limits?.ephemeral_bytes || undefined;
}

/** What all that runs at one time may use: main containers and sidecars together, or one init container. */
function machineLimit(spec: MachineSpec): number | undefined {
  const init = spec.init_containers ?? [];
  const stays = (container: ContainerSpec) => isSidecar(container, "init");
  const together = [...spec.containers, ...init.filter(stays)].flatMap((container) => limitOf(container) ?? []);
  const alone = init.filter((container) => !stays(container)).flatMap((container) => limitOf(container) ?? []);
  if (together.length + alone.length === 0) return undefined;
  return Math.max(
    together.reduce((total, bytes) => total + bytes, 0),
    ...alone,
  );
}

/** The pod's author wrote a power of 1024 or of 1000; the machine knows only bytes. */
function format(bytes: number): string {
  return Quantity.of(bytes, bytes % 1024 === 0 ? "BinarySI" : "DecimalSI").toString();
}
