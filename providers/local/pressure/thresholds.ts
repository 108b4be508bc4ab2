/**
 * What a host must have left, and what is said of one that has less, in a kubelet's names and words (pkg/kubelet/
 * eviction: defaults_linux.go, helpers.go). Pure.
 */
import { Quantity } from "../../../src/provider/kit/index.ts";

export const SIGNALS = [
  "memory.available",
  "nodefs.available",
  "nodefs.inodesFree",
  "imagefs.available",
  "imagefs.inodesFree",
  "pid.available",
] as const;

type ConfiguredSignal = (typeof SIGNALS)[number];

/** `allocatableMemory.available` is what is left of the memory that all machines may have together. */
export type Signal = ConfiguredSignal | "allocatableMemory.available";

export type Pressure = "MemoryPressure" | "DiskPressure" | "PIDPressure";

/** What the kubelet calls what there is too little of. */
export type Resource = "memory" | "ephemeral-storage" | "inodes" | "pids";

/** In bytes, inodes or processes. */
export interface Observation {
  available: number;
  capacity: number;
}

/** What could be measured. */
export type Observations = ReadonlyMap<Signal, Observation>;

export interface Threshold {
  signal: Signal;
  value: Amount;
  /** A soft threshold counts when it has been met for so long; a hard one at once. */
  graceMs?: number | undefined;
  /** Once met, it holds until there is so much more than the threshold. */
  minReclaim?: Amount | undefined;
}

type Amount = { quantity: number } | { percent: number };

export interface EvictionConfig {
  hard: Partial<Record<ConfiguredSignal, string>>;
  soft: Partial<Record<ConfiguredSignal, string>>;
  softGraceSeconds: Partial<Record<ConfiguredSignal, number>>;
  minimumReclaim: Partial<Record<ConfiguredSignal, string>>;
}

/** A kubelet's, and a share of the processes: of these it has no limit by default. */
const DEFAULT_HARD: Readonly<Record<ConfiguredSignal, string>> = {
  "memory.available": "100Mi",
  "nodefs.available": "10%",
  "nodefs.inodesFree": "5%",
  "imagefs.available": "15%",
  "imagefs.inodesFree": "5%",
  "pid.available": "10%",
};

const RESOURCE: Readonly<Record<Signal, Resource>> = {
  "memory.available": "memory",
  "allocatableMemory.available": "memory",
  "nodefs.available": "ephemeral-storage",
  "imagefs.available": "ephemeral-storage",
  "nodefs.inodesFree": "inodes",
  "imagefs.inodesFree": "inodes",
  "pid.available": "pids",
};

const PRESSURE: Readonly<Record<Resource, Pressure>> = {
  memory: "MemoryPressure",
  "ephemeral-storage": "DiskPressure",
  inodes: "DiskPressure",
  pids: "PIDPressure",
};

export const resourceOf = (signal: Signal): Resource => RESOURCE[signal];
export const pressureOf = (signal: Signal): Pressure => PRESSURE[RESOURCE[signal]];

/** A quantity, or a share of what there is. Undefined for a text that is neither. */
export function parseAmount(text: string): Amount | undefined {
  if (text.endsWith("%")) {
    const percent = Number(text.slice(0, -1));
    return percent >= 0 && percent <= 100 && text.length > 1 ? { percent } : undefined;
  }
  const quantity = Quantity.tryParse(text);
  return quantity === undefined || quantity.nano < 0n
    ? undefined
    : { quantity: Number(quantity.nano / 1_000_000_000n) };
}

/**
 * The thresholds of a configuration, a kubelet's where it says nothing. As there, 0 and 0% turn one off.
 * @param config whose amounts `parseAmount` takes
 */
export function thresholdsOf({ hard, soft, softGraceSeconds, minimumReclaim }: EvictionConfig): Threshold[] {
  const thresholds: Threshold[] = [];
  const add = (signal: ConfiguredSignal, text: string | undefined, graceMs?: number) => {
    const value = text === undefined ? undefined : parseAmount(text);
    if (value === undefined || isNothing(value)) return;
    const minReclaim = parseAmount(minimumReclaim[signal] ?? "");
    thresholds.push({ signal, value, graceMs, minReclaim });
    // What machines may have together is kept to the same amount.
    if (signal === "memory.available" && graceMs === undefined)
      thresholds.push({ signal: "allocatableMemory.available", value, minReclaim });
  };
  for (const signal of SIGNALS) {
    add(signal, hard[signal] ?? DEFAULT_HARD[signal]);
    add(signal, soft[signal], (softGraceSeconds[signal] ?? 0) * 1000);
  }
  return thresholds;
}

export function amountOf(amount: Amount, capacity: number): number {
  return "quantity" in amount ? amount.quantity : Math.floor((capacity * amount.percent) / 100);
}

/** How much of a resource is never machines', because they are evicted before. */
export function hardAmount(thresholds: readonly Threshold[], signal: Signal, capacity: number): number {
  const own = thresholds.find((threshold) => threshold.signal === signal && threshold.graceMs === undefined);
  return own === undefined ? 0 : amountOf(own.value, capacity);
}

/**
 * Whether there is less than the threshold. What could not be measured is not too little.
 * @param until that the threshold was met before: it holds until `minReclaim` is there as well
 */
export function isMet({ signal, value, minReclaim }: Threshold, observed: Observations, until: boolean): boolean {
  const observation = observed.get(signal);
  if (observation === undefined) return false;
  const { available, capacity } = observation;
  const reclaim = until && minReclaim !== undefined ? amountOf(minReclaim, capacity) : 0;
  return available < amountOf(value, capacity) + reclaim;
}

function isNothing(amount: Amount): boolean {
  return "percent" in amount ? amount.percent === 0 || amount.percent === 100 : amount.quantity === 0;
}

/** A figure of a resource as the kubelet writes it. */
export function formatAmount(resource: Resource, amount: number): string {
  const isBytes = resource === "memory" || resource === "ephemeral-storage";
  return Quantity.of(Math.floor(amount), isBytes ? "BinarySI" : "DecimalSI").toString();
}

/** A Node's conditions, in a kubelet's words: when there is pressure, and when there is none. */
const CONDITION_TEXTS: Readonly<Record<Pressure, Readonly<Record<"True" | "False", readonly [string, string]>>>> = {
  MemoryPressure: {
    True: ["KubeletHasInsufficientMemory", "kubelet has insufficient memory available"],
    False: ["KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
  },
  DiskPressure: {
    True: ["KubeletHasDiskPressure", "kubelet has disk pressure"],
    False: ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
  },
  PIDPressure: {
    True: ["KubeletHasInsufficientPID", "kubelet has insufficient PID available"],
    False: ["KubeletHasSufficientPID", "kubelet has sufficient PID available"],
  },
};

/** @returns conditions for a Node */
export function pressureConditions(present: ReadonlySet<Pressure>) {
  return (Object.keys(CONDITION_TEXTS) as Pressure[]).map((type) => {
    const status = present.has(type) ? "True" : "False";
    const [reason, message] = CONDITION_TEXTS[type][status];
    return { type, status, reason, message } as const;
  });
}
