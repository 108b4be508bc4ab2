/**
 * Ports of this host that lead to machines. A machine asks for any number it likes, so: only what the host's owner
 * allows (`requireHostPorts`, before there is a machine), and only ports that no other program of this host uses, held
 * with a socket of our own for as long as the machine has them (`PortHolders`): a program that comes later finds the
 * port in use instead of being cut off from it.
 */
import { createSocket } from "node:dgram";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { type ContainerPort, type MachineSpec, ProviderError } from "../../../src/provider/kit/index.ts";
import { HostError } from "../host/host-error.ts";

interface HostPortPolicy {
  /** `80`, `30000-32767`. */
  allowed: readonly string[];
  /** Of this backend's own: never a machine's. */
  reserved: readonly number[];
}

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
  const taken = new Set<string>();
  for (const { name, ports = [] } of [...(spec.init_containers ?? []), ...spec.containers]) {
    for (const { host_port: port, host_ip: ip, protocol } of ports) {
      if (port === undefined) continue;
      const refuse = (field: string, message: string, code: "unsupported" | "invalid" = "unsupported") =>
        new ProviderError(code, `container ${name}: ${message}`, { field: `containers.ports.${field}` });
      if (ip !== undefined && ip !== "" && ip !== "0.0.0.0")
        throw refuse("host_ip", "host ports are opened on all addresses of the host, host_ip cannot be chosen");
      if (policy.reserved.includes(port))
        throw refuse("host_port", `host port ${port} is the backend's own: choose another`);
      if (!ranges.some(({ first, last }) => first <= port && port <= last))
        throw refuse(
          "host_port",
          `host port ${port} is not one that machines may have (engine.network.hostPorts: ${policy.allowed.join(", ") || "none"})`,
        );
      const key = `${protocol} ${port}`;
      if (taken.has(key)) throw refuse("host_port", `host port ${port}/${protocol} is asked for twice`, "invalid");
      taken.add(key);
    }
  }
  if (taken.size > MAX_HOST_PORTS)
    throw new ProviderError(
      "unsupported",
      `${taken.size} host ports are more than the ${MAX_HOST_PORTS} of a machine`,
      {
        field: "containers.ports.host_port",
      },
    );
}

type HostPort = Required<Pick<ContainerPort, "protocol" | "host_port">>;

export function inUseByMachine({ protocol, host_port: port }: HostPort): ProviderError {
  return new ProviderError("conflict", `host port ${port}/${protocol} is in use by another machine of this host`);
}

/** Sockets that hold machines' host ports. They are gone with the backend, and taken again by the next one. */
export class PortHolders {
  /** `tcp 8080` -> whose it is. */
  readonly #held = new Map<string, { owner: string; close: () => void }>();

  /**
   * Takes all of them, or none. What the owner has already it keeps.
   * @throws ProviderError conflict when another machine or program of this host has one
   */
  async take(owner: string, ports: readonly HostPort[]): Promise<void> {
    const fresh: string[] = [];
    try {
      for (const { protocol, host_port: port } of ports) {
        const key = `${protocol} ${port}`;
        const holder = this.#held.get(key);
        if (holder?.owner === owner) continue;
        if (holder !== undefined)
          throw new ProviderError(
            "conflict",
            `host port ${port}/${protocol} is in use by another machine of this host`,
          );
        // In the same turn as the look: two machines that want it must not both find it free.
        const place = { owner, close: () => {} };
        this.#held.set(key, place);
        fresh.push(key);
        place.close = await HOLD[protocol](port).catch((thrown: unknown) => {
          throw new ProviderError(
            "conflict",
            `host port ${port}/${protocol} is in use by this host itself, or by another backend`,
            { cause: thrown },
          );
        });
        // It may have been given up meanwhile.
        if (this.#held.get(key) !== place) place.close();
      }
    } catch (thrown) {
      for (const key of fresh) this.#release(key);
      throw thrown;
    }
  }

  /** Gives back all ports of a machine. */
  release(owner: string): void {
    for (const [key, holder] of this.#held) if (holder.owner === owner) this.#release(key);
  }

  close(): void {
    for (const key of this.#held.keys()) this.#release(key);
  }

  #release(key: string): void {
    this.#held.get(key)?.close();
    this.#held.delete(key);
  }
}

/** Of both IP versions where there are both: a service may listen on one alone. */
const ANY = ["::", "0.0.0.0"];

const HOLD: Record<ContainerPort["protocol"], (port: number) => Promise<() => void>> = {
  tcp: (port) => onAny((host) => holdTcp(port, host)),
  udp: (port) => onAny((host) => holdUdp(port, host)),
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

function holdTcp(port: number, host: string): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.once("error", reject);
    server.listen({ port, host, exclusive: true }, () => {
      server.on("error", () => {});
      resolve(() => server.close());
    });
    server.unref();
  });
}

function holdUdp(port: number, host: string): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const socket = createSocket(host === "::" ? "udp6" : "udp4");
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
