/** What all machines of a host may take together, so that what the host keeps for itself is never taken from it. */
import { availableParallelism, totalmem } from "node:os";
import type { ResourceAmounts } from "../../../src/provider/kit/index.ts";

/** Of the memory: for the host's own programs, the backend among them, and page cache that they need. */
const MEMORY_RESERVE = { share: 0.05, least: 256 * 1024 ** 2, most: 2 * 1024 ** 3 };
/** The least that Linux takes as a share of the processors. */
const MIN_SHARES = 2;

/**
 * @param wanted by the owner of the host, who may say less than there is, and not more
 * @returns millicores and bytes
 */
export function machinesShare(
  wanted: ResourceAmounts = {},
  host = { cpuMillis: availableParallelism() * 1000, memoryBytes: totalmem() },
): { cpu_millis: number; memory_bytes: number } {
  const { share, least, most } = MEMORY_RESERVE;
  const reserve = Math.min(Math.max(host.memoryBytes * share, least), most, host.memoryBytes / 2);
  return {
    cpu_millis: Math.min(wanted.cpu_millis ?? Infinity, host.cpuMillis),
    memory_bytes: Math.floor(Math.min(wanted.memory_bytes ?? Infinity, host.memoryBytes - reserve)),
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
