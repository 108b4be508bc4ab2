/** Devices that are only remembered: as many of each extended resource as the capacity has, each for one machine. */
import {
  containersOf,
  type ContainerState,
  type MachineSpec,
  type ProviderCapacity,
} from "../../src/provider/kit/index.ts";

type Device = NonNullable<ContainerState["devices"]>[number];

/** By container. */
export type Devices = ReadonlyMap<string, readonly Device[]>;

/**
 * The devices that a new machine's containers get; undefined when there are too few.
 * @param given the devices of all machines that are not over
 */
export function chooseDevices(
  spec: MachineSpec,
  { allocatable: { extended = [] } }: ProviderCapacity,
  given: Iterable<Devices>,
): Devices | undefined {
  const key = ({ resource, id }: Pick<Device, "resource" | "id">) => `${resource}\0${id}`;
  const taken = new Set([...given].flatMap((devices) => [...devices.values()].flat().map(key)));
  const chosen = new Map<string, Device[]>();
  for (const { spec: container } of containersOf(spec)) {
    const own: Device[] = [];
    for (const { name: resource, count } of container.resources?.limits?.extended ?? []) {
      const total = extended.find(({ name }) => name === resource)?.count;
      if (total === undefined) continue;
      const free = Array.from({ length: total }, (_, index) => ({ resource, id: `${index}` })).filter(
        (device) => !taken.has(key(device)),
      );
      if (free.length < count) return undefined;
      for (const device of free.slice(0, count)) {
        taken.add(key(device));
        own.push({ ...device, health: "healthy" });
      }
    }
    chosen.set(container.name, own);
  }
  return chosen;
}
