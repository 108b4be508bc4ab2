/** The cluster's Services as machines reach them: what every provider and the Machine API say of them. */
import { isIP } from "node:net";
import { inRanges } from "../util/cidr.ts";
import type { Schemas } from "./contract/document.ts";
import { ProviderError } from "./errors.ts";
import type { CallOptions } from "./provider.ts";

export type ServiceAddress = Schemas["ServiceAddress"];
export type ServicePort = Schemas["ServicePort"];
export type ServicesSpec = Schemas["ServicesSpec"];
export type Services = Schemas["Services"];
/** What a table becomes by one call. */
export type ServicesChange = Omit<ServicesSpec, "labels">;

/**
 * Capability `services`: a backend whose machines reach the cluster's Services by what its agent tells it. What every
 * provider must keep (the conformance kit checks it):
 *
 * - What changes a table that it does not have is refused, so that the whole is told: it never has a part of one.
 * - Addresses of loopback, link-local and multicast are refused.
 */
export interface ServicesProvider {
  /**
   * Idempotent.
   * @throws ProviderError conflict when `base` is not what it has, invalid, unauthorized, unsupported, unavailable
   */
  put(spec: ServicesSpec, options: CallOptions): Promise<Services>;
}

/** What a call has made of a table. */
export interface ServicesDifference {
  /** New ones, and those that lead elsewhere now. */
  readonly set: readonly ServicePort[];
  /** As they were before. */
  readonly replaced: readonly ServicePort[];
}

interface Step {
  /** The revision before it. */
  readonly base: string;
  readonly keys: ReadonlySet<string>;
}

/** Of a call. Endpoints are of all its Services: with both, some 3 MB of JSON. */
const PORTS_PER_CALL = 10_000;
const ENDPOINTS_PER_CALL = 50_000;
/** Who is further behind is told all of it. */
const STEPS_KEPT = 64;
const KEYS_KEPT = 10_000;
/** No Service is there, nor may an endpoint be (the API server refuses most of these: ValidateNonSpecialIP). */
const HARMFUL: Readonly<Record<number, (address: string) => boolean>> = {
  4: inRanges(["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"]),
  6: inRanges(["::/16", "fe80::/10", "ff00::/8"]),
};

/** Whether a Service, or one of its endpoints, may have this address. */
export function isServiceAddress(text: string): boolean {
  // Of an address with a zone, the kernel would take the link.
  return HARMFUL[isIP(text)]?.(text) === false && !text.includes("%");
}

/** `10.96.0.10 UDP 53`. */
export const serviceKey = ({ address, protocol, port }: ServiceAddress): string => `${address} ${protocol} ${port}`;

/** Where Services lead, by revisions, so that who has an earlier one is told what has changed since. */
export class ServiceTable {
  readonly #ports = new Map<string, ServicePort>();
  #revision: string | undefined;
  /** Oldest first; each begins where the one before it ended. */
  readonly #steps: Step[] = [];
  #keysKept = 0;

  /** Undefined while nothing was told. */
  get revision(): string | undefined {
    return this.#revision;
  }

  get size(): number {
    return this.#ports.size;
  }

  get ports(): readonly ServicePort[] {
    return [...this.#ports.values()];
  }

  /**
   * What a call says.
   * @returns what of it is other than it was
   * @throws ProviderError conflict, invalid
   */
  apply({ revision, base, services, gone = [] }: ServicesChange): ServicesDifference {
    if (revision === this.#revision) return { set: [], replaced: [] };
    for (const service of services) judge(service);
    if (base === undefined) {
      if (gone.length > 0)
        throw new ProviderError("invalid", "a whole table has nothing that is gone: leave it out, or say its base", {
          field: "gone",
        });
      return this.#change(this.#insteadOfAll(services), revision);
    }
    if (base !== this.#revision)
      throw new ProviderError("conflict", `the table is ${this.#revision ?? "not there"}, not ${base}: tell all of it`);
    const next = new Map<string, ServicePort | undefined>(gone.map((each) => [serviceKey(each), undefined]));
    for (const service of services) next.set(serviceKey(service), service);
    return this.#change(next, revision);
  }

  /** From now on it is these alone; as it was, it keeps its revision. */
  replace(ports: Iterable<ServicePort>, revision: string): void {
    const next = this.#insteadOfAll(ports);
    const isSameAsBefore = [...next].every(([key, port]) => isSame(this.#ports.get(key), port));
    if (!isSameAsBefore || this.#revision === undefined) this.#change(next, revision);
  }

  #insteadOfAll(ports: Iterable<ServicePort>): Map<string, ServicePort | undefined> {
    const next = new Map<string, ServicePort | undefined>();
    for (const port of ports) next.set(serviceKey(port), port);
    for (const key of this.#ports.keys()) if (!next.has(key)) next.set(key, undefined);
    return next;
  }

  /** @param next undefined for those that go */
  #change(next: ReadonlyMap<string, ServicePort | undefined>, revision: string): ServicesDifference {
    const set: ServicePort[] = [];
    const replaced: ServicePort[] = [];
    const keys = new Set<string>();
    for (const [key, port] of next) {
      const before = this.#ports.get(key);
      if (isSame(before, port)) continue;
      keys.add(key);
      if (before !== undefined) replaced.push(before);
      if (port === undefined) this.#ports.delete(key);
      else {
        set.push(port);
        this.#ports.set(key, port);
      }
    }
    if (this.#revision !== undefined) this.#remember({ base: this.#revision, keys });
    this.#revision = revision;
    return { set, replaced };
  }

  #remember(step: Step): void {
    this.#steps.push(step);
    this.#keysKept += step.keys.size;
    while (this.#steps.length > STEPS_KEPT || (this.#keysKept > KEYS_KEPT && this.#steps.length > 0))
      this.#keysKept -= this.#steps.shift()!.keys.size;
  }

  /**
   * The calls that bring who has revision `base` to this one: none where that is it, all of it where that is too long
   * ago or unknown.
   */
  since(base: string | undefined): ServicesChange[] {
    const revision = this.#revision;
    if (revision === undefined || base === revision) return [];
    const from = base === undefined ? -1 : this.#steps.findIndex((step) => step.base === base);
    if (from === -1) return inParts([...this.#ports.values()], [], { revision });
    const keys = new Set(this.#steps.slice(from).flatMap((step) => [...step.keys]));
    const ports = [...keys].flatMap((key) => this.#ports.get(key) ?? []);
    const gone = [...keys].filter((key) => !this.#ports.has(key)).map((key) => addressOf(key));
    return inParts(ports, gone, { base, revision });
  }
}

function inParts(
  ports: readonly ServicePort[],
  gone: readonly ServiceAddress[],
  { base, revision }: { base?: string | undefined; revision: string },
): ServicesChange[] {
  const parts: ServicePort[][] = [[]];
  let endpoints = 0;
  for (const port of ports) {
    const isFull = endpoints + port.endpoints.length > ENDPOINTS_PER_CALL || parts.at(-1)!.length >= PORTS_PER_CALL;
    if (isFull && parts.at(-1)!.length > 0) {
      parts.push([]);
      endpoints = 0;
    }
    parts.at(-1)!.push(port);
    endpoints += port.endpoints.length;
  }
  const named = (index: number) => (index === parts.length - 1 ? revision : `${revision}/${index}`);
  return parts.map((services, index) => {
    const before = index === 0 ? base : named(index - 1);
    return {
      revision: named(index),
      ...(before !== undefined && { base: before }),
      services,
      ...(index === 0 && gone.length > 0 && { gone: [...gone] }),
    };
  });
}

/** @throws ProviderError invalid */
function judge({ address, endpoints }: ServicePort): void {
  const family = isIP(address);
  for (const text of [address, ...endpoints.map((each) => each.address)]) {
    if (isServiceAddress(text) && isIP(text) === family) continue;
    throw new ProviderError(
      "invalid",
      `the address ${JSON.stringify(text.slice(0, 64))} is refused: it is none that a Service leads to, or of another family than the Service`,
      { field: "services" },
    );
  }
}

function addressOf(key: string): ServiceAddress {
  const [address = "", protocol, port] = key.split(" ");
  return { address, protocol: protocol as ServiceAddress["protocol"], port: Number(port) };
}

function isSame(one: ServicePort | undefined, other: ServicePort | undefined): boolean {
  if (one === undefined || other === undefined) return one === other;
  if (one.affinity_s !== other.affinity_s || one.endpoints.length !== other.endpoints.length) return false;
  return one.endpoints.every(({ address, port }, index) => {
    const { address: otherAddress, port: otherPort } = other.endpoints[index]!;
    return address === otherAddress && port === otherPort;
  });
}
