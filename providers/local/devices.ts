/**
 * Devices that plugins of this host give to containers: what stands of them in a machine's record, what a container
 * gets by them, and who gives them out (plugins/). Which machine has a device is told from the machines' own records,
 * and written nowhere else: no second record can say otherwise.
 */
import { type ContainerState, type MachineSpec, VmletError } from "../../src/provider/kit/index.ts";

/** What a container gets of its devices. */
export interface DeviceGrant {
  env: Record<string, string>;
  mounts: { path: string; hostPath: string; readOnly: boolean }[];
  /** `permissions` of `r`, `w` and `m` (mknod), as control groups have them. */
  nodes: { path: string; hostPath: string; permissions: string }[];
  annotations: Record<string, string>;
  /** Names in the Container Device Interface. */
  cdi: string[];
}

interface HeldDevice {
  id: string;
  /** The NUMA nodes that it is near to. Absent: it is near to none. */
  numa?: number[];
}

/** The devices of one resource that a container has. */
export interface DeviceHolding {
  resource: string;
  devices: HeldDevice[];
  /** Its plugin is called before each start of the container. */
  preStart: boolean;
  grant: DeviceGrant;
}

/** By container. */
export type HeldDevices = Readonly<Record<string, readonly DeviceHolding[]>>;

export type DeviceHealth = NonNullable<ContainerState["devices"]>[number]["health"];

/** Gives devices to machines. */
export interface DeviceSource {
  /**
   * Chooses the devices that the machine's containers ask for, and has the plugins make them ready.
   * @param keep writes down who has them; until then nobody else is given them, and afterwards the machine's record
   *   says so. Not called for a machine that asks for none
   * @throws DevicesRefused when it cannot have them
   */
  allocate(
    machine: { readonly id: string; readonly spec: MachineSpec },
    keep: (held: HeldDevices) => void,
    signal: AbortSignal,
  ): Promise<void>;
  /**
   * To be called before each start of a container.
   * @throws Error when a plugin does not make its devices ready
   */
  prepare(holdings: readonly DeviceHolding[], signal: AbortSignal): Promise<void>;
  readonly health: (resource: string, id: string) => DeviceHealth;
}

/** A machine cannot have the devices that it asks for. */
export class DevicesRefused extends VmletError {
  readonly code = "DEVICES";
}

/** The variables among it. */
export function deviceEnv(grant: DeviceGrant | undefined): { name: string; value: string }[] {
  return Object.entries(grant?.env ?? {}).map(([name, value]) => ({ name, value }));
}

/** All that a container gets of its devices; where two resources name the same thing, the first one's is taken. */
export function grantOf(holdings: readonly DeviceHolding[]): DeviceGrant {
  const grants = holdings.map(({ grant }) => grant);
  const first = <T>(items: readonly T[], key: (item: T) => string): T[] =>
    items.filter((item, index) => items.findIndex((other) => key(other) === key(item)) === index);
  const entries = (read: (grant: DeviceGrant) => Record<string, string>) =>
    Object.fromEntries(grants.flatMap((grant) => Object.entries(read(grant))).toReversed());
  return {
    env: entries(({ env }) => env),
    mounts: first(
      grants.flatMap(({ mounts }) => mounts),
      ({ path }) => path,
    ),
    nodes: first(
      grants.flatMap(({ nodes }) => nodes),
      ({ path }) => path,
    ),
    annotations: entries(({ annotations }) => annotations),
    cdi: [...new Set(grants.flatMap(({ cdi }) => cdi))],
  };
}
