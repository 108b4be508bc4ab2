/**
 * Ports of this host that lead to machines. A machine asks for any number it likes, so: only what the host's owner
 * allows (`requireHostPorts`, before there is a machine), and only ports that no other program of this host uses, held
 * with a socket of our own for as long as the machine has them (`PortHolders`): a program that comes later finds the
 * port in use instead of being cut off from it.
 */
import { createSocket } from "node:dgram";
import { readFileSync } from "node:fs";
import { createServer, isIPv4, isIPv6 } from "node:net";
import { networkInterfaces } from "node:os";
import { type ContainerPort, type MachineSpec, ProviderError } from "../../../src/provider/kit/index.ts";
import { HostError } from "../host/host-error.ts";

interface HostPortPolicy {
  /** `80`, `30000-32767`. */
  allowed: readonly string[];
  /** Of this backend's own: never a machine's. */
  reserved: readonly number[];
  /** Whether machines have IPv6 addresses. */
  hasIpv6: boolean;
}

/** All IPv6 addresses of this host. */
export const ANY_IPV6 = "::";

/** Below are the host's own services. */
export const DEFAULT_HOST_PORTS = ["1024-65535"];
/** Each is a socket and an entry in the rules. */
const MAX_HOST_PORTS = 128;
const MAX_PORT = 65_535;

/** @throws Error for what is neither a port nor a range */
export function parsePortRange(text: string): { first: number; last: number } {
  const [, first = "", last = first] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(text) ?? [];
  const range = { first: Number(first), last: Number(last) };
  if (first === "" || range.first < 1 || range.last > MAX_PORT || range.first > range.last)
    throw new HostError(`${JSON.stringify(text)} must be a port or a range of ports such as 30000-32767`);
  return range;
}

/** The ports of the containers that run when a machine starts and after. */
export function containerPorts(spec: Pick<MachineSpec, "containers" | "init_containers">): ContainerPort[] {
  return [...spec.containers, ...(spec.init_containers ?? [])].flatMap(({ ports = [] }) => ports);
}

/** @throws ProviderError unsupported or invalid, with the field, for host ports that a machine cannot have here */
export function requireHostPorts(spec: MachineSpec, policy: HostPortPolicy): void {
  const ranges = policy.allowed.map(parsePortRange);
  const taken: HostPort[] = [];
  for (const { name, ports = [] } of [...(spec.init_containers ?? []), ...spec.containers]) {
    for (const { host_port: port, host_ip, protocol } of ports) {
      if (port === undefined) continue;
      const ip = hostIp({ host_ip });
      const refuse = (field: string, message: string, code: "unsupported" | "invalid" = "unsupported") =>
        new ProviderError(code, `container ${name}: ${message}`, { field: `containers.ports.${field}` });
      const foreign = ip === undefined ? undefined : notOwn(ip, policy);
      if (foreign !== undefined) throw refuse("host_ip", `host_ip ${JSON.stringify(ip)} ${foreign}`);
      if (policy.reserved.includes(port))
        throw refuse("host_port", `host port ${port} is the backend's own: choose another`);
      if (!ranges.some(({ first, last }) => first <= port && port <= last))
        throw refuse(
          "host_port",
          `host port ${port} is not one that machines may have (engine.network.hostPorts: ${policy.allowed.join(", ") || "none"})`,
        );
      const wanted = { protocol, host_port: port, host_ip: ip };
      if (taken.some((other) => overlap(other, wanted)))
        throw refuse("host_port", `host port ${port}/${protocol} is asked for twice`, "invalid");
      taken.push(wanted);
    }
  }
  if (taken.length > MAX_HOST_PORTS)
    throw new ProviderError(
      "unsupported",
      `${taken.length} host ports are more than the ${MAX_HOST_PORTS} of a machine`,
      {
        field: "containers.ports.host_port",
      },
    );
}

export type HostPort = Required<Pick<ContainerPort, "protocol" | "host_port">> & {
  host_ip?: string | undefined;
};

/** The one address whose port it is, or `::` for those of IPv6; undefined for all. */
export function hostIp({ host_ip: ip }: Pick<HostPort, "host_ip">): string | undefined {
  if (ip === undefined || ip === "" || ip === "0.0.0.0") return undefined;
  // As the kernel and nft write it.
  return isIPv6(ip) && !ip.includes("%") ? new URL(`http://[${ip}]`).hostname.slice(1, -1) : ip;
}

export function isLoopback(ip: string): boolean {
  return ip.startsWith("127.");
}

/** Whether two cannot be had side by side. */
export function overlap(a: HostPort, b: HostPort): boolean {
  const [ipA, ipB] = [hostIp(a), hostIp(b)];
  if (a.protocol !== b.protocol || a.host_port !== b.host_port) return false;
  const isOfBoth = (any: string | undefined, one: string | undefined) =>
    any === ANY_IPV6 && one?.includes(":") === true;
  return ipA === undefined || ipB === undefined || ipA === ipB || isOfBoth(ipA, ipB) || isOfBoth(ipB, ipA);
}

/** Why a machine can have no port of this address; undefined when it can. */
function notOwn(ip: string, { hasIpv6 }: HostPortPolicy): string | undefined {
  if (isIPv6(ip) && !hasIpv6) return "is an IPv6 address, and machines have none (engine.network.cidr)";
  if (ip === "::1") return "is IPv6's loopback, from which the kernel lets nothing go to a machine";
  // All of that range are loopback's, whichever of them it has been given.
  if (ip === ANY_IPV6 || (isIPv4(ip) && isLoopback(ip))) return undefined;
  const isOwn = Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === ip));
  return isOwn ? undefined : "is not an address of this host";
}

export function inUseByMachine({ protocol, host_port: port }: HostPort): ProviderError {
  return new ProviderError("conflict", `host port ${port}/${protocol} is in use by another machine of this host`);
}

interface HeldPort {
  owner: string;
  port: HostPort;
  close: () => void;
}

/** Sockets that hold machines' host ports. They are gone with the backend, and taken again by the next one. */
export class PortHolders {
  readonly #held = new Set<HeldPort>();

  /**
   * Takes all of them, or none. What the owner has already it keeps.
   * @throws ProviderError conflict when another machine or program of this host has one
   */
  async take(owner: string, ports: readonly HostPort[]): Promise<void> {
    const fresh: HeldPort[] = [];
    try {
      for (const port of ports) {
        const { protocol, host_port: number } = port;
        const holder = [...this.#held].find((each) => overlap(each.port, port));
        if (holder?.owner === owner) continue;
        if (holder !== undefined) throw inUseByMachine(port);
        // In the same turn as the look: two machines that want it must not both find it free.
        const place: HeldPort = { owner, port, close: () => {} };
        this.#held.add(place);
        fresh.push(place);
        place.close = await HOLD[protocol](number, hostIp(port)).catch((thrown: unknown) => {
          throw new ProviderError(
            "conflict",
            `host port ${number}/${protocol} is in use by this host itself, or by another backend`,
            { cause: thrown },
          );
        });
        // It may have been given up meanwhile.
        if (!this.#held.has(place)) place.close();
      }
    } catch (thrown) {
      this.#releaseAll(fresh);
      throw thrown;
    }
  }

  /** Gives back all ports of a machine. */
  release(owner: string): void {
    this.#releaseAll([...this.#held].filter((each) => each.owner === owner));
  }

  close(): void {
    this.#releaseAll([...this.#held]);
  }

  #releaseAll(places: readonly HeldPort[]): void {
    for (const place of places) {
      place.close();
      this.#held.delete(place);
    }
  }
}

/** Of both IP versions where there are both: a service may listen on one alone. */
const ANY = [ANY_IPV6, "0.0.0.0"];

const HOLD: Record<ContainerPort["protocol"], (port: number, ip: string | undefined) => Promise<() => void>> = {
  tcp: (port, ip) => (ip === undefined ? onAny((host) => holdTcp(port, host)) : holdTcp(port, ip, ip === ANY_IPV6)),
  udp: (port, ip) => (ip === undefined ? onAny((host) => holdUdp(port, host)) : holdUdp(port, ip, ip === ANY_IPV6)),
  async sctp(port) {
    // Node has no such sockets: a look has to do.
    if (sctpPorts().includes(port)) throw new Error("an SCTP endpoint has the port");
    return () => {};
  },
};

async function onAny(hold: (host: string) => Promise<() => void>): Promise<() => void> {
  try {
    return await hold(ANY[0]!);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code !== "EAFNOSUPPORT" && code !== "EADDRNOTAVAIL") throw thrown;
    return await hold(ANY[1]!);
  }
}

function holdTcp(port: number, host: string, ipv6Only = false): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.once("error", reject);
    server.listen({ port, host, ipv6Only, exclusive: true }, () => {
      server.on("error", () => {});
      resolve(() => server.close());
    });
    server.unref();
  });
}

function holdUdp(port: number, host: string, ipv6Only = false): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const socket = createSocket(host.includes(":") ? { type: "udp6", ipv6Only } : { type: "udp4" });
    socket.once("error", reject);
    socket.bind({ port, address: host, exclusive: true }, () => {
      socket.on("error", () => {});
      resolve(() => socket.close());
    });
    socket.unref();
  });
}

function sctpPorts(): number[] {
  try {
    const [, ...lines] = readFileSync("/proc/net/sctp/eps", "latin1").split("\n");
    return lines.map((line) => Number(line.trim().split(/ +/)[5]));
  } catch {
    return []; // This kernel has no SCTP.
  }
}
