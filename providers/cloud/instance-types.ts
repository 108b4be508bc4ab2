/**
 * Which size a machine gets: of those that its pod allows, the cheapest that holds what it asks for. A size that the
 * cloud has no room for is left alone for three minutes, so that not every pod finds that out by itself.
 */
import {
  type Clock,
  globMatches,
  type MachineSpec,
  ProviderError,
  type ResourceAmounts,
} from "../../src/provider/kit/index.ts";
import type { InstanceType } from "./cloud.ts";

/** @internal */
export const QUARANTINE_MS = 180_000;

/** As the Machine API bounds what a machine costs. */
const MOST_PRICE = 1_000_000_000;

/** Those whose price is one: another would be the cheapest of all, or have its machine taken for nonsense. */
export function soldTypes(types: readonly InstanceType[]): InstanceType[] {
  return types.filter(({ price = 0 }) => price >= 0 && price <= MOST_PRICE);
}

/**
 * The types that the machine may have, the one to take first in front: by the order of the pod's own list of names and
 * globs (`m5.*,c5.large`), within each by price, and those of one price by size.
 *
 * @throws ProviderError invalid when none of them ever holds what it asks for
 */
export function fittingTypes(spec: MachineSpec, types: readonly InstanceType[]): InstanceType[] {
  const wanted = spec.instance_type?.split(",").map((each) => each.trim()) ?? ["*"];
  const asked = spec.resources?.requests ?? {};
  const named = types.filter(({ name }) => wanted.some((pattern) => globMatches(pattern, name)));
  if (named.length === 0)
    throw new ProviderError("invalid", `there is no instance type ${spec.instance_type ?? ""}`, {
      field: "instance_type",
    });
  const fitting = named.filter(({ resources }) => holds(resources, asked));
  if (fitting.length === 0)
    throw new ProviderError("invalid", `no instance type holds ${told(asked)}; the largest is ${largest(named)}`, {
      field: "resources.requests",
    });
  const place = ({ name }: InstanceType) => wanted.findIndex((pattern) => globMatches(pattern, name));
  return fitting.toSorted((a, b) => place(a) - place(b) || (a.price ?? 0) - (b.price ?? 0) || bySize(a, b));
}

function bySize({ resources: a }: InstanceType, { resources: b }: InstanceType): number {
  return (a.cpu_millis ?? 0) - (b.cpu_millis ?? 0) || (a.memory_bytes ?? 0) - (b.memory_bytes ?? 0);
}

/** What a type says nothing of in cpu, memory and disk is not limited by it; of other resources it has none. */
function holds(has: ResourceAmounts, asked: ResourceAmounts): boolean {
  for (const key of ["cpu_millis", "memory_bytes", "ephemeral_bytes"] as const)
    if ((asked[key] ?? 0) > (has[key] ?? Infinity)) return false;
  return (asked.extended ?? []).every(
    ({ name, count }) => count <= (has.extended?.find((each) => each.name === name)?.count ?? 0),
  );
}

function told({ cpu_millis = 0, memory_bytes = 0, extended = [] }: ResourceAmounts): string {
  return [`${cpu_millis}m cpu`, `${memory_bytes} bytes`, ...extended.map(({ name, count }) => `${count} ${name}`)].join(
    ", ",
  );
}

function largest(types: readonly InstanceType[]): string {
  const { name, resources } = types.toSorted(bySize).at(-1)!;
  return `${name} with ${told(resources)}`;
}

/** What the cloud had no room for lately. */
export class Quarantine {
  readonly #clock: Clock;
  /** Until when, monotonic. */
  readonly #until = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(type: InstanceType): void {
    this.#until.set(keyOf(type), this.#clock.monotonic() + QUARANTINE_MS);
  }

  has(type: InstanceType): boolean {
    return this.leftMs(type) > 0;
  }

  leftMs(type: InstanceType): number {
    return Math.max(0, (this.#until.get(keyOf(type)) ?? -Infinity) - this.#clock.monotonic());
  }
}

const keyOf = ({ name, zone = "", spot = false }: InstanceType): string => `${name} ${zone} ${spot}`;
