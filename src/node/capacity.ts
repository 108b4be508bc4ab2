/** Where the node's synthetic capacity comes from: the configuration, or the provider's own report. */
import type { Provider, ProviderCapacity } from "../provider/provider.ts";
import { DNS_1123, isLabelValue, isQualifiedName } from "../resources/names.ts";
import { CSI_DRIVER } from "../provider/csi-names.ts";
import { Backoff } from "../queue/backoff.ts";
import { Quantity } from "../resources/quantity.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";

export interface NodeCapacity {
  /** Canonical quantities by resource name. Holds at least cpu, memory, pods and ephemeral-storage. */
  resources: Readonly<Record<string, string>>;
  /** What the host has of some of them, with what it keeps for itself. Absent: the same. */
  total?: Readonly<Record<string, string>> | undefined;
  conditions: NonNullable<ProviderCapacity["conditions"]>;
  taints: NonNullable<ProviderCapacity["taints"]>;
  /** CSI drivers of others whose node plugins run on the backend's host. Absent: it tells of none. */
  csiDrivers?: readonly CsiDriverInfo[] | undefined;
  /** Drivers of Dynamic Resource Allocation that are registered there. Absent: it does not tell. */
  resourceDrivers?: readonly string[] | undefined;
}

export type CsiDriverInfo = NonNullable<ProviderCapacity["csi_drivers"]>[number];

export interface CapacitySource {
  /** What is known now; undefined while nothing is. */
  current(): NodeCapacity | undefined;
}

/** For a provider that reports nothing and a configuration that says nothing. */
const DEFAULT_RESOURCES: Readonly<Record<string, string>> = {
  cpu: "16",
  memory: "64Gi",
  pods: "110",
  "ephemeral-storage": "256Gi",
};

const MAX_WAIT_MS = 30_000;

const NOTHING: Readonly<Record<string, string>> = { cpu: "0", memory: "0", pods: "0", "ephemeral-storage": "0" };

/**
 * Capacity that never changes; what `resources` leaves out of the defaults is as there.
 *
 * @throws QuantityError when a value is not a quantity
 */
export function fixedCapacity(resources: Readonly<Record<string, string>> = {}): CapacitySource {
  const capacity: NodeCapacity = {
    resources: canonical({ ...DEFAULT_RESOURCES, ...resources }),
    conditions: [],
    taints: [],
  };
  return { current: () => capacity };
}

/**
 * Resources by Kubernetes' names. A size that the provider leaves out is zero; of pods it is 110, the kubelet's
 * default. A resource for which the API server would refuse the whole Node is left out.
 * @internal
 */
export function fromProvider(report: ProviderCapacity): NodeCapacity {
  const { cpu_millis = 0, memory_bytes = 0, ephemeral_bytes = 0, extended = [], pods = 110 } = report.allocatable;
  const isExtended = (name: string) => (name.includes("/") || name.startsWith("hugepages-")) && isQualifiedName(name);
  const counts = (list: typeof extended = []) =>
    Object.fromEntries(
      list.filter(({ name }) => isExtended(name)).map(({ name, count }) => [name, Quantity.of(count).toString()]),
    );
  const { total } = report;
  const bytes = (amount: number) => Quantity.of(amount, "BinarySI").toString();
  return {
    ...(total && {
      total: {
        ...(total.cpu_millis === undefined ? {} : { cpu: Quantity.ofMillis(total.cpu_millis).toString() }),
        ...(total.memory_bytes === undefined ? {} : { memory: bytes(total.memory_bytes) }),
        ...(total.ephemeral_bytes === undefined ? {} : { "ephemeral-storage": bytes(total.ephemeral_bytes) }),
        ...counts(total.extended),
      },
    }),
    resources: {
      ...NOTHING,
      cpu: Quantity.ofMillis(cpu_millis).toString(),
      memory: Quantity.of(memory_bytes, "BinarySI").toString(),
      "ephemeral-storage": Quantity.of(ephemeral_bytes, "BinarySI").toString(),
      pods: String(pods),
      ...counts(extended),
    },
    conditions: (report.conditions ?? []).filter(({ type }) => isQualifiedName(type)),
    taints: (report.taints ?? []).filter(({ key, value = "" }) => isQualifiedName(key) && isLabelValue(value)),
    ...(report.csi_drivers && { csiDrivers: csiDrivers(report.csi_drivers) }),
    ...(report.resource_drivers && { resourceDrivers: report.resource_drivers }),
  };
}

/** Each once, and none for which the API server would refuse the others' CSINode with it. */
function csiDrivers(reported: readonly CsiDriverInfo[]): CsiDriverInfo[] {
  const isDriver = ({ name, topology = {} }: CsiDriverInfo) =>
    DNS_1123.test(name.toLowerCase()) &&
    name !== CSI_DRIVER &&
    Object.entries(topology).every(([key, value]) => isQualifiedName(key) && isLabelValue(value));
  return [...new Map(reported.filter(isDriver).map((driver) => [driver.name, driver])).values()];
}

/**
 * Capacity from the configuration, and what the backend says of the host besides.
 * @param hasDevices the backend gives containers the devices of the extended resources that it tells: there are as many
 *   as it says, unless the configuration says otherwise
 */
export function withConditions(
  fixed: CapacitySource,
  reported: CapacitySource,
  hasDevices = () => false,
): CapacitySource {
  return {
    current: () => {
      const capacity = fixed.current();
      const told = reported.current();
      if (capacity === undefined || told === undefined) return capacity;
      const { conditions, csiDrivers, resourceDrivers } = told;
      const known = {
        ...capacity,
        conditions,
        ...(csiDrivers && { csiDrivers }),
        ...(resourceDrivers && { resourceDrivers }),
      };
      if (!hasDevices()) return known;
      const others = (list: Readonly<Record<string, string>> = {}) =>
        Object.fromEntries(
          Object.entries(list).filter(([name]) => name.includes("/") && !(name in capacity.resources)),
        );
      return {
        ...known,
        resources: { ...capacity.resources, ...others(told.resources) },
        total: { ...capacity.total, ...others(told.total) },
      };
    },
  };
}

interface ProviderCapacitySourceOptions {
  provider: Provider;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Called when the report differs from the one before. */
  onChange?: (() => void) | undefined;
  /** Asked before each wait. Default 30 s. */
  everyMs?: (() => number) | undefined;
}

/** Asks the provider every so often. Its last report stands while it does not answer. */
export class ProviderCapacitySource implements CapacitySource {
  readonly #options: ProviderCapacitySourceOptions;
  #current: NodeCapacity | undefined;

  constructor(options: ProviderCapacitySourceOptions) {
    this.#options = options;
  }

  current(): NodeCapacity | undefined {
    return this.#current;
  }

  /** Resolves when `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { provider, clock, random, logger, onChange, everyMs = () => MAX_WAIT_MS } = this.#options;
    const backoff = new Backoff({ initialMs: 500, maxMs: MAX_WAIT_MS, clock, random });
    while (!signal.aborted) {
      let delayMs = everyMs();
      try {
        const report = fromProvider(await provider.getCapacity!({ signal }));
        const changed = JSON.stringify(report) !== JSON.stringify(this.#current);
        this.#current = report;
        backoff.reset();
        if (changed) onChange?.();
      } catch (thrown) {
        if (signal.aborted) return;
        delayMs = backoff.next();
        logger.warn({ err: thrown, delayMs }, "The provider did not report its capacity");
      }
      try {
        await clock.sleep(delayMs, signal);
      } catch {
        return; // aborted
      }
    }
  }
}

function canonical(resources: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(resources).map(([name, amount]) => [name, Quantity.parse(amount).toString()]),
  );
}
