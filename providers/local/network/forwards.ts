/** Which ports of this host lead to which machine: in nft's maps, held by our sockets, remembered for repairs. */
import { readFile, writeFile } from "node:fs/promises";
import type { ContainerPort } from "../../../src/provider/kit/index.ts";
import { ANY_IPV6, hostIp, type HostPort, inUseByMachine, isLoopback, overlap, PortHolders } from "./host-ports.ts";
import { hostPortMaps, hostPortRule, IPV6_KEY } from "./rules.ts";
import { runSoon } from "./tools.ts";

/**
 * `tcp . 8080`, `127.0.0.1 . tcp . 8080` or `fd00::5 . tcp . 8080` for one address alone, or `:: . tcp . 8080` for all
 * of IPv6; and `10.99.0.2 . 80` or `fd00::2 . 80`.
 */
type Forward = readonly [key: string, target: string];

export class PortForwards {
  readonly #table: string;
  readonly #hasIpv6: () => boolean;
  /** "1" in it: the kernel routes from loopback to machines and back. Machines do not reach it by that (rules.ts). */
  readonly #loopbackFile: string;
  readonly #holders = new PortHolders();
  /** What machines have through this process. */
  readonly #own = new Map<string, string>();

  /**
   * @param names the table of nftables, family inet, and the machines' bridge
   * @param hasIpv6 whether machines have IPv6 addresses, too
   */
  constructor({ table, bridge }: { table: string; bridge: string }, hasIpv6: () => boolean) {
    this.#table = table;
    this.#hasIpv6 = hasIpv6;
    this.#loopbackFile = `/proc/sys/net/ipv4/conf/${bridge}/route_localnet`;
  }

  /**
   * Forwards the host ports that a machine's containers ask for, those of all addresses by IPv6 too where it has that.
   * Repeating it is safe.
   * @param addresses the machine's: the IPv4 one, and perhaps an IPv6 one
   * @throws ProviderError conflict when another machine, or this host itself, has one of them: then none is forwarded
   */
  async open(machineId: string, addresses: readonly string[], ports: readonly ContainerPort[]): Promise<void> {
    const asked = ports.flatMap((port) =>
      port.host_port === undefined ? [] : [{ ...port, host_port: port.host_port }],
    );
    if (asked.length === 0) return;
    const current = await this.#inPlace();
    // A former backend's machine may not have been found again yet: its ports are in the rules, and no socket of ours
    // holds them.
    const others = [...current].filter((forward) => !leadsTo(addresses)(forward));
    const foreign = asked.find((port) => others.some(([key]) => overlap(portOf(key), port)));
    if (foreign !== undefined) throw inUseByMachine(foreign);
    try {
      await this.#holders.take(machineId, asked);
    } catch (thrown) {
      // A program that has one now may have taken it while no backend held it: then it keeps the port, and the machine
      // loses it.
      await this.close(machineId, addresses);
      throw thrown;
    }
    const wanted = asked.flatMap((each) => forwardsOf(each, addresses));
    for (const [key, target] of wanted) this.#own.set(key, target);
    await this.#tell(
      "add",
      wanted.filter(([key, target]) => current.get(key) !== target),
    );
    await this.#routeLoopback();
  }

  /** Takes all that leads to a machine away. */
  async close(machineId: string, addresses: readonly string[]): Promise<void> {
    this.release(machineId);
    const isTheirs = leadsTo(addresses);
    for (const [key] of [...this.#own].filter(isTheirs)) this.#own.delete(key);
    await this.#tell("delete", [...(await this.#inPlace())].filter(isTheirs));
  }

  /** Gives the sockets of a machine's ports back. */
  release(machineId: string): void {
    this.#holders.release(machineId);
  }

  /** Gives all sockets back; what nft was told stays. */
  releaseAll(): void {
    this.#holders.close();
  }

  /** A port that leads nowhere any more, because of another program; undefined when none is missing. */
  async missing(): Promise<string | undefined> {
    const lost = (await this.#lost())[0]?.[0];
    return lost ?? ((await this.#routesLoopback()) ? undefined : this.#onLoopback);
  }

  /** Puts back what another program took away. */
  async restore(): Promise<void> {
    await this.#tell("add", await this.#lost());
    await this.#routeLoopback();
  }

  /** One of loopback's that a machine has through this process. */
  get #onLoopback(): string | undefined {
    return this.#own.keys().find((key) => isLoopback(key));
  }

  async #routesLoopback(): Promise<boolean> {
    return this.#onLoopback === undefined || (await readFile(this.#loopbackFile, "latin1")).trim() === "1";
  }

  async #routeLoopback(): Promise<void> {
    if (!(await this.#routesLoopback())) await writeFile(this.#loopbackFile, "1");
  }

  async #lost(): Promise<Forward[]> {
    const current = await this.#inPlace();
    return [...this.#own].filter(([key]) => !current.has(key));
  }

  async #inPlace(): Promise<Map<string, string>> {
    const inPlace = new Map<string, string>();
    for (const map of hostPortMaps(this.#hasIpv6())) {
      const { stdout } = await runSoon("nft", ["list", "map", "inet", this.#table, map]);
      const [, elements = ""] = stdout.toString("utf8").split("elements = {");
      for (const element of elements.split("}")[0]!.split(",")) {
        const [key = "", target] = element.trim().split(" : ");
        if (target !== undefined) inPlace.set(map === "host_ports6" ? `${IPV6_KEY}${key}` : key, target);
      }
    }
    return inPlace;
  }

  async #tell(verb: "add" | "delete", forwards: readonly Forward[]): Promise<void> {
    if (forwards.length === 0) return;
    const input = forwards.map(([key, target]) => hostPortRule(verb, this.#table, key, target)).join("");
    await runSoon("nft", ["-f", "-"], { input });
  }
}

const leadsTo =
  (addresses: readonly string[]) =>
  ([, target]: Forward): boolean =>
    addresses.some((address) => target.startsWith(`${address} . `));

/** A port of all addresses is one of either family that the machine has. */
function forwardsOf(port: HostPort & { port: number }, [ipv4, ipv6]: readonly string[]): Forward[] {
  const ip = hostIp(port);
  const [to4, to6] = [`${ipv4} . ${port.port}`, `${ipv6} . ${port.port}`];
  if (ip?.includes(":")) return ipv6 === undefined ? [] : [[keyOf(port), to6]];
  if (ip !== undefined || ipv6 === undefined) return [[keyOf(port), to4]];
  return [
    [keyOf(port), to4],
    [keyOf({ ...port, host_ip: ANY_IPV6 }), to6],
  ];
}

function keyOf(port: HostPort): string {
  const ip = hostIp(port);
  return `${ip === undefined ? "" : `${ip} . `}${port.protocol} . ${port.host_port}`;
}

function portOf(key: string): HostPort {
  const [number, protocol, host_ip] = key.split(" . ").toReversed();
  return {
    protocol: protocol as HostPort["protocol"],
    host_port: Number(number),
    // It may be that of all addresses, too.
    host_ip: host_ip === ANY_IPV6 ? "" : host_ip,
  };
}
