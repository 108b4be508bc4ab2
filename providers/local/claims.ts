/**
 * ResourceClaims of the cluster that drivers' plugins of this host make ready for machines (plugins/): what stands of
 * them in a machine's record, and who has them made ready. Which machines have a claim is told from their records, and
 * written nowhere else.
 */
import type { DeviceHealth } from "./devices.ts";
import { type ContainerSpec, type MachineSpec, VmletError } from "../../src/provider/kit/index.ts";

export interface PreparedDevice {
  pool: string;
  device: string;
  /** Of the claim that it is for; none: it is for all of them. */
  requests: string[];
  /** Names in the Container Device Interface. */
  cdi: string[];
}

/** A claim that its drivers may have made ready. */
export interface PreparedClaim {
  /** In the machine: more than one when it names the object more than once. */
  names: string[];
  namespace: string;
  claim: string;
  /** By driver. Null: it was asked and has not answered, so it may have the claim ready, or not. */
  drivers: Record<string, PreparedDevice[] | null>;
}

/** By the claims' uids. */
export type PreparedClaims = Readonly<Record<string, PreparedClaim>>;

/** A machine that has claims, or is to have them. */
export interface ClaimHolder {
  readonly id: string;
  readonly spec: Pick<MachineSpec, "resource_claims">;
  /** Undefined: none, and no driver was asked for any. */
  readonly prepared: PreparedClaims | undefined;
  /** On the disk when it returns. @throws when it cannot be written */
  keep(claims: PreparedClaims | undefined): void;
}

export interface ToldHealth {
  health: DeviceHealth;
  /** In the driver's words, where it says any. */
  message?: string;
}

export interface ClaimSource {
  /** Of a device that a claim has, as its driver says it. */
  readonly health: (driver: string, pool: string, device: string) => ToldHealth;
  /**
   * Has the plugins make ready all that the machine claims; again for one that has them already, which changes nothing.
   * @throws ClaimsNotReady when they are not; it is to be asked again
   */
  prepare(holder: ClaimHolder, signal: AbortSignal): Promise<void>;
  /**
   * Has the plugins take back what no other machine has. To be asked until it succeeds.
   * @throws Error in which a plugin says why not
   */
  unprepare(holder: ClaimHolder, signal: AbortSignal): Promise<void>;
}

/** A machine's claims are not ready; they may be later. */
export class ClaimsNotReady extends VmletError {
  readonly code = "CLAIMS";
}

/** A device that a container has by one of its claims. */
interface ClaimedDevice extends PreparedDevice {
  driver: string;
  /** As a kubelet names it in a pod's status: `claim:NAME`, and `claim:NAME/REQUEST` where the container names one. */
  resource: string;
}

export function claimedDevices(
  prepared: PreparedClaims | undefined,
  { claims = [] }: Pick<ContainerSpec, "claims">,
): ClaimedDevice[] {
  return claims.flatMap(({ name, request }) =>
    devicesIn(prepared, name)
      .filter(({ requests }) => request === undefined || requests.length === 0 || requests.includes(request))
      .map((device) => ({ ...device, resource: `claim:${name}${request === undefined ? "" : `/${request}`}` })),
  );
}

/** What its claims' drivers give a container, in the Container Device Interface. */
export function claimedCdi(prepared: PreparedClaims | undefined, container: Pick<ContainerSpec, "claims">): string[] {
  return [...new Set(claimedDevices(prepared, container).flatMap(({ cdi }) => cdi))];
}

function devicesIn(prepared: PreparedClaims | undefined, name: string): (PreparedDevice & { driver: string })[] {
  return Object.values(prepared ?? {})
    .filter(({ names }) => names.includes(name))
    .flatMap(({ drivers }) =>
      Object.entries(drivers).flatMap(([driver, devices]) => (devices ?? []).map((each) => ({ ...each, driver }))),
    );
}

/** The machine's, when its drivers are about to be asked. */
export function askedClaims({ resource_claims: claims = [] }: Pick<MachineSpec, "resource_claims">): PreparedClaims {
  const asked = new Map<string, PreparedClaim>();
  for (const { uid, name, namespace, claim, drivers } of claims) {
    const { names = [], drivers: others = {} } = asked.get(uid) ?? {};
    const own = Object.fromEntries(drivers.map((driver) => [driver, null]));
    asked.set(uid, { names: [...names, name], namespace, claim, drivers: { ...others, ...own } });
  }
  return Object.fromEntries(asked);
}
