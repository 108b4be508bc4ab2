/** What the memory provider does and says unless it is told otherwise. */
import type { Machine, MachineStats, ProviderCapacity } from "../../src/provider/kit/index.ts";
import type { Behaviour, ImagePolicy } from "./container.ts";
import { shellProgram } from "./shell.ts";

export const DEFAULT_CAPACITY: ProviderCapacity = {
  allocatable: { cpu_millis: 1_000_000, memory_bytes: 4 * 2 ** 40, ephemeral_bytes: 16 * 2 ** 40, pods: 10_000 },
};

/**
 * What its command says, as far as shell.ts knows it; any other command runs until it is stopped, but there is none
 * below /nonexistent.
 */
export const defaultBehaviour: Behaviour = ({ command = [], args = [] }) =>
  command[0]?.startsWith("/nonexistent/") === true ? () => Promise.resolve(127) : shellProgram([...command, ...args]);

/** Images of a registry in `.invalid` cannot be pulled. */
export const defaultImages: ImagePolicy = (image) => {
  const registry = image.split("/")[0]!.split(":")[0]!;
  if (!registry.endsWith(".invalid")) return undefined;
  return { reason: "ImagePullBackOff", message: `Back-off pulling image "${image}"` };
};

/** 10.64.0.1 and up. */
export function addressOf(count: number): string {
  return `10.${64 + ((count >> 16) & 63)}.${(count >> 8) & 255}.${count & 255}`;
}

/** A hundredth of a core and 16 MiB per container: a node that is not idle, and figures that a test can foretell. */
export function sampleOf(machine: Machine, now: number): MachineStats {
  return {
    id: machine.id,
    at: new Date(now).toISOString(),
    containers: machine.containers
      .filter((container) => container.state === "running")
      .map((container) => {
        const startedAt = container.started_at ?? machine.created_at;
        return {
          name: container.name,
          started_at: startedAt,
          cpu_usage_ns_total: Math.max(0, now - Date.parse(startedAt)) * 10_000,
          memory_working_set_bytes: 16 * 2 ** 20,
          memory_usage_bytes: 18 * 2 ** 20,
          memory_rss_bytes: 14 * 2 ** 20,
        };
      }),
    network: { rx_bytes: 0, tx_bytes: 0 },
  };
}
