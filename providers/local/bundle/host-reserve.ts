/** What all machines of a host may take together, so that what the host keeps for itself is never taken from it. */
import { availableParallelism, totalmem } from "node:os";
import type { ProviderCapacity, ResourceAmounts } from "../../../src/provider/kit/index.ts";

/** Of the memory: for the host's own programs, the backend among them, and page cache that they need. */
const MEMORY_RESERVE = { share: 0.05, least: 256 * 1024 ** 2, most: 2 * 1024 ** 3 };
/** The least that Linux takes as a share of the processors. */
const MIN_SHARES = 2;

interface HostSize {
  cpuMillis: number;
  memoryBytes: number;
}

function thisHost(): HostSize {
  return { cpuMillis: availableParallelism() * 1000, memoryBytes: totalmem() };
}

/**
 * @param wanted by the owner of the host, who may say less than there is, and not more
 * @param reserved for the host's own programs, by its owner. Default: of the memory a share, of the processors nothing
 * @returns millicores and bytes
 */
export function machinesShare(
  wanted: ResourceAmounts = {},
  host = thisHost(),
  reserved: ResourceAmounts = {},
): { cpu_millis: number; memory_bytes: number } {
  const { share, least, most } = MEMORY_RESERVE;
  const usual = Math.min(Math.max(host.memoryBytes * share, least), most);
  const reserve = Math.min(reserved.memory_bytes ?? usual, host.memoryBytes / 2);
  return {
    cpu_millis: Math.min(wanted.cpu_millis ?? Infinity, Math.max(0, host.cpuMillis - (reserved.cpu_millis ?? 0))),
    memory_bytes: Math.floor(Math.min(wanted.memory_bytes ?? Infinity, host.memoryBytes - reserve)),
  };
}

/**
 * What an engine that shares this host's memory and disk says of its size.
 * @param diskBytes of the file system that images and machines' disks are on
 */
export function hostCapacity(
  diskBytes: number,
  {
    capacity,
    systemReserved,
  }: { capacity?: ResourceAmounts | undefined; systemReserved?: ResourceAmounts | undefined },
): ProviderCapacity {
  const host = thisHost();
  return {
    allocatable: {
      ...machinesShare(capacity, host, systemReserved),
      ephemeral_bytes: Math.max(0, diskBytes - (systemReserved?.ephemeral_bytes ?? 0)),
    },
    total: { cpu_millis: host.cpuMillis, memory_bytes: host.memoryBytes, ephemeral_bytes: diskBytes },
  };
}

/** As a kubelet does (MilliCPUToShares): how much a group gets when others want the processors as well. */
export function cpuShares(millis: number): number {
  return Math.max(MIN_SHARES, Math.floor((millis * 1024) / 1000));
}

/** The same for cgroup v2 (kubelet: CPUSharesToCPUWeight). */
export function cpuWeight(millis: number): number {
  return Math.floor(1 + ((cpuShares(millis) - 2) * 9999) / 262_142);
}
