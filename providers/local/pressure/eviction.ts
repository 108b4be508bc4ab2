/**
 * When machines must go so that their host lives, and which, as a kubelet decides it (pkg/kubelet/eviction:
 * eviction_manager.go, helpers.go). Pure: what was met, and since when, is passed from one look to the next.
 */
import { type MachineSpec, containersOf, type ResourceAmounts } from "../../../src/provider/kit/index.ts";
import {
  amountOf,
  formatAmount,
  isMet,
  type Observations,
  type Pressure,
  pressureOf,
  type Resource,
  resourceOf,
  type Threshold,
} from "./thresholds.ts";

/** SystemCriticalPriority: from here on a kubelet evicts nothing. */
export const CRITICAL_PRIORITY = 2_000_000_000;
/** kubelet: immediateEvictionGracePeriodSeconds. */
const HARD_GRACE_MS = 1_000;

/** What is kept between two looks; times are monotonic milliseconds. */
export interface PressureState {
  /** Thresholds that were met for long enough, at the last look. */
  met: readonly Threshold[];
  metSince: ReadonlyMap<Threshold, number>;
  lastSeen: ReadonlyMap<Pressure, number>;
}

export const NO_PRESSURE: PressureState = { met: [], metSince: new Map(), lastSeen: new Map() };

export interface Look {
  state: PressureState;
  /** What the Node shows: each stays for a while after it was last seen. */
  pressures: ReadonlySet<Pressure>;
  /** What to do something about first, if anything. */
  reclaim: Threshold | undefined;
}

/** Compares what there is with the thresholds. @param transitionMs for which a pressure is shown after its end */
export function look(
  before: PressureState,
  thresholds: readonly Threshold[],
  observed: Observations,
  now: number,
  transitionMs: number,
): Look {
  const met = thresholds.filter(
    (threshold) =>
      isMet(threshold, observed, false) || (before.met.includes(threshold) && isMet(threshold, observed, true)),
  );
  const metSince = new Map(met.map((threshold) => [threshold, before.metSince.get(threshold) ?? now] as const));
  const lastSeen = new Map(before.lastSeen);
  for (const { signal } of met) lastSeen.set(pressureOf(signal), now);
  const due = met.filter((threshold) => now - metSince.get(threshold)! >= (threshold.graceMs ?? 0));
  return {
    state: { met: due, metSince, lastSeen },
    pressures: new Set([...lastSeen].filter(([, at]) => now - at < transitionMs || at === now).map(([type]) => type)),
    // Memory first: it is what a host dies of soonest.
    reclaim: due.find(({ signal }) => resourceOf(signal) === "memory") ?? due[0],
  };
}

/** Bytes, inodes, processes; of what was not measured, nothing. */
export interface MachineUse {
  memory: number;
  disk: number;
  inodes: number;
  processes: number;
  containers: readonly { name: string; memory: number; disk: number }[];
}

/** A machine that could be evicted; `use` is undefined when it could not be measured. */
export interface Candidate {
  spec: MachineSpec;
  use: MachineUse | undefined;
}

/**
 * The machine to evict: one that takes more than it asked for before one that does not, then by priority, then the one
 * that takes most beyond what it asked for. Undefined when all are critical.
 */
export function chooseVictim<T extends Candidate>(resource: Resource, candidates: readonly T[]): T | undefined {
  const evictable = candidates.filter(({ spec }) => (spec.priority ?? 0) < CRITICAL_PRIORITY);
  const ranked = evictable.map((candidate) => ({ candidate, rank: rankOf(resource, candidate) }));
  ranked.sort((a, b) => {
    const index = a.rank.findIndex((value, at) => value !== b.rank[at]);
    return index === -1 ? 0 : a.rank[index]! - b.rank[index]!;
  });
  return ranked[0]?.candidate;
}

/** Least first. A machine of which nothing is known goes before those of which something is. */
function rankOf(resource: Resource, { spec, use }: Candidate): readonly number[] {
  const priority = spec.priority ?? 0;
  const used = use === undefined ? Infinity : usedOf(resource, use);
  if (resource === "pids") return [priority, -used];
  const requests = machineRequests(spec);
  const key = resource === "memory" ? "memory_bytes" : "ephemeral_bytes";
  // Nothing can ask for inodes.
  const asked = resource === "inodes" ? 0 : (requests[key] ?? 0);
  return [use === undefined ? 0 : 1, used > asked ? 0 : 1, priority, asked - used];
}

function usedOf(resource: Resource, use: MachineUse): number {
  switch (resource) {
    case "memory":
      return use.memory;
    case "ephemeral-storage":
      return use.disk;
    case "inodes":
      return use.inodes;
    case "pids":
      return use.processes;
  }
}

function machineRequests({ resources, containers }: MachineSpec): ResourceAmounts {
  if (resources?.requests !== undefined) return resources.requests;
  const sum = (key: "memory_bytes" | "ephemeral_bytes") =>
    containers.reduce((total, container) => total + (container.resources?.requests?.[key] ?? 0), 0);
  return { memory_bytes: sum("memory_bytes"), ephemeral_bytes: sum("ephemeral_bytes") };
}

/** What the pod's author is told. */
export function evictionMessage(reclaim: Threshold, observed: Observations, { spec, use }: Candidate): string {
  const resource = resourceOf(reclaim.signal);
  const parts = [`The node was low on resource: ${resource}. `];
  const observation = observed.get(reclaim.signal);
  if (observation !== undefined) {
    const quantity = formatAmount(resource, amountOf(reclaim.value, observation.capacity));
    parts.push(`Threshold quantity: ${quantity}, available: ${formatAmount(resource, observation.available)}. `);
  }
  const key = resource === "memory" ? "memory" : resource === "ephemeral-storage" ? "disk" : undefined;
  if (key === undefined || use === undefined) return parts.join("");
  const lasting = containersOf(spec).filter(({ kind }) => kind !== "ephemeral");
  for (const container of use.containers) {
    const own = lasting.find(({ spec: { name } }) => name === container.name);
    if (own === undefined) continue;
    const { memory_bytes = 0, ephemeral_bytes = 0 } = own.spec.resources?.requests ?? {};
    const request = key === "memory" ? memory_bytes : ephemeral_bytes;
    if (container[key] > request)
      parts.push(
        `Container ${container.name} was using ${formatAmount(resource, container[key])}, request is ${formatAmount(resource, request)}, has larger consumption of ${resource}. `,
      );
  }
  return parts.join("");
}

/** How long the machine may take: at most this, and of a soft threshold no more than its own grace. */
export function evictionGraceMs({ graceMs }: Threshold, ownGraceMs: number, maxPodGraceMs: number): number {
  return graceMs === undefined ? HARD_GRACE_MS : Math.min(maxPodGraceMs, ownGraceMs);
}

/** Why a new machine is not taken; undefined when it is. Memory pressure alone is left to the scheduler's taint. */
export function refusal(pressures: ReadonlySet<Pressure>, { priority = 0 }: MachineSpec): string | undefined {
  if (priority >= CRITICAL_PRIORITY || !(pressures.has("DiskPressure") || pressures.has("PIDPressure")))
    return undefined;
  return `Pod was rejected: The node had condition: [${[...pressures].join(" ")}]. `;
}
