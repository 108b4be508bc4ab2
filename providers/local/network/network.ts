/**
 * The machines' network on this host: one bridge with an address range; per machine an address and, on the bridge, one
 * end of a veth pair (other end: eth0 of a network namespace) or a tap (for a VM). Done with `ip` and `nft`.
 *
 * What holds, by nft tables of our own, without touching any other rules:
 * - machines reach each other and are reached from this host by their addresses;
 * - machines do not reach this host itself (backend, agent, anything that listens here), except `openHostPorts`;
 * - ports of this host, of one address or all, lead to the machines that have them (forwards.ts);
 * - machines reach the outside, masqueraded, only with `outbound: "allow"`, and never `denyCidrs`;
 * - a machine cannot send from an address that is not its own, neither IP nor MAC (sender-rules.ts), and no more than
 *   its pod may (bandwidth.ts).
 *
 * Everything made here is named after the bridge and the machine's id, so it can be found and removed again.
 */
import { closeSync, existsSync } from "node:fs";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, type ContainerPort, type Logger, Once, ProviderError } from "../../../src/provider/kit/index.ts";
import { findTool } from "../host/command.ts";
import { lockFile } from "../host/lock.ts";
import { readFileIfExists } from "../host/files.ts";
import { BandwidthLimits } from "./bandwidth.ts";
import { forgetConnections } from "./connections.ts";
import { PortForwards } from "./forwards.ts";
import { missingChain, seesBridgedPackets } from "./in-place.ts";
import { Ipam, type Subnet } from "./ipam.ts";
import { ip, isLink, joining, linkCounters, nameLink } from "./links.ts";
import { NetworkNames } from "./names.ts";
import { BridgeRange, DEFAULT_CIDR, OF_THE_NODE } from "./range.ts";
import { RangeMoves } from "./range-moves.ts";
import { hairpinRule, networkRules } from "./rules.ts";
import { addIpv6, forgetNeighbour, type Ipv6Attachment, ipv6Of, neighbours, routeIpv6 } from "./second-family.ts";
import { holdSender } from "./sender-rules.ts";
import { sameTwice, whileSteady } from "./steady.ts";
import { runSoon } from "./tools.ts";
import { UnderWay } from "./under-way.ts";
import { HostError } from "../host/host-error.ts";
import { together } from "../host/together.ts";

export interface NetworkOptions {
  /** Leases are kept here. */
  dir: string;
  /** Interface name, at most 10 characters; one backend per bridge. */
  bridge?: string | undefined;
  /**
   * Range of the machines' addresses, and of nothing else on this host; after a comma perhaps an IPv6 one. `node`: the
   * podCIDRs of their Node, which are told (`moveTo`) and then lie within `podCidrs`.
   */
  cidr?: string | undefined;
  /** What else has to know the range that is in use then, called before addresses of it are given out. */
  onRange?: (() => Promise<void>) | undefined;
  outbound?: "allow" | "deny" | undefined;
  /**
   * Never reached from machines, whatever `outbound` says. Default: link-local addresses, where clouds serve
   * credentials.
   */
  denyCidrs?: readonly string[] | undefined;
  /** Of machines on other hosts: reached whatever `outbound` says, unless denied, and under machines' own addresses. */
  podCidrs?: readonly string[] | undefined;
  /** What reaches the cluster's Services by rules of the backend's own: see host-services.ts. */
  services?: boolean | undefined;
  /** TCP and UDP ports of this host that machines may reach: a DNS server, say. */
  openHostPorts?: readonly number[] | undefined;
  /** Ports of this host, and ranges of them, that machines may ask to lead to them. */
  hostPorts?: readonly string[] | undefined;
}

export interface Attachment {
  address: string;
  prefix: number;
  gateway: string;
  /** What it has beside that; absent where the range is IPv4 alone. */
  ipv6?: Ipv6Attachment | undefined;
  /** Name of the interface on the bridge. */
  link: string;
  /** Of the machine's own interface: derived from the address, so no two machines have the same. */
  mac: string;
  /** Path of the network namespace, for attachments by namespace. */
  netns?: string | undefined;
}

/** What a network plugin has made for a machine. */
type Made = Pick<Attachment, "address" | "link" | "mac"> & {
  /** Path of the machine's network namespace. */
  netns: () => string;
};

export const DEFAULT_BRIDGE = "vmlet0";
/** Says who has made a bridge. */
const BRIDGE_ALIAS = "vmlet";
/** The last two: AWS's and Google's, of IPv6. */
export const DEFAULT_DENIED = ["169.254.0.0/16", "fd00:ec2::254/128", "fd20:ce::254/128"];
/** Plain enough to stand in nftables' rules and in patterns. */
export const BRIDGE_NAME = /^[a-z][a-z0-9]{0,9}$/;
const LOOK_EVERY_MS = 15_000;
const NETNS_DIR = "/run/netns";

/** Ranges that the backend itself does not connect to for a machine: that of machines, and what they may not reach. */
export function refusedRanges(options: Pick<NetworkOptions, "cidr" | "denyCidrs" | "podCidrs"> = {}): string[] {
  const { cidr = DEFAULT_CIDR, denyCidrs = DEFAULT_DENIED, podCidrs = [] } = options;
  // A Node's may be anywhere in what the cluster gives out.
  return [...(cidr === OF_THE_NODE ? podCidrs : cidr.split(",")), ...denyCidrs];
}

export class HostNetwork {
  readonly #options: NetworkOptions;
  readonly #names: NetworkNames;
  readonly range: BridgeRange;
  readonly moves = new RangeMoves();
  readonly limits: BandwidthLimits;
  readonly #ipam: Ipam;
  readonly #ready = new Once(() => this.#setUp());
  readonly #forwards: PortForwards;
  readonly #adopting = new UnderWay();
  #cancelLook = () => {};
  /** Descriptor of the bridge's lock. */
  #lock: number | undefined;

  constructor(options: NetworkOptions) {
    this.#options = options;
    const { bridge = DEFAULT_BRIDGE } = options;
    if (!BRIDGE_NAME.test(bridge))
      throw new HostError(
        `network.bridge ${JSON.stringify(bridge)}: want 1 to 10 lower-case letters and digits, a letter first`,
      );
    this.#names = new NetworkNames(bridge);
    this.limits = new BandwidthLimits(this.#names);
    this.#forwards = new PortForwards(this.#names, () => this.range.hasIpv6);
    this.range = new BridgeRange(options.dir, options.cidr);
    this.#ipam = new Ipam(join(options.dir, "leases"), this.range.subnet);
  }

  /**
   * Gives new machines addresses of another range, as soon as none has one of the range before.
   * @returns why not yet; undefined when it does
   */
  async moveTo(cidr: string): Promise<string | undefined> {
    this.range.want(cidr);
    await this.#settle();
    return this.range.waitsFor;
  }

  /** Machines that have addresses keep them, and with them everything else its range. */
  async #settle(): Promise<void> {
    await this.moves.settle(
      async () => (await this.#ipam.leases()).size > 0,
      () => {
        const { next } = this.range;
        return next && (() => this.#move(next));
      },
    );
  }

  async #move(to: Subnet): Promise<void> {
    const { bridge } = this.#names;
    const former = this.range.subnet;
    // What is being made is of the former range.
    await this.#ready.peek()?.catch(() => undefined);
    this.range.take(to);
    try {
      await this.#options.onRange?.();
    } catch (thrown) {
      // Who gives out the addresses does not know of it: it is tried again, as a range that is not in use yet.
      this.range.take(former);
      throw thrown;
    }
    this.#ipam.use(to);
    this.#ready.forget();
    if (!isLink(bridge)) return;
    for (const address of former === undefined ? [] : gatewaysOf(former))
      await ip([`address delete ${address} dev ${bridge}`]).catch(() => undefined);
    await this.ensure();
  }

  /** A network namespace with lo and eth0 for the machine, or a process's own. Repeating it gives the same one. */
  async attachNamespace(machineId: string, pid?: number): Promise<Attachment> {
    const attachment = this.#describe(machineId, await this.#acquire(machineId), true);
    const { address, prefix, gateway, link, mac } = attachment;
    const name = this.#names.netns(machineId);
    // Left half-made by a kill: begin again, it costs milliseconds.
    await this.#removeLinks(machineId);
    const made = ip([
      pid === undefined ? `netns add ${name}` : `netns attach ${name} ${pid}`,
      `link add ${link} type veth peer name eth0 address ${mac} netns ${name}`,
      ...joining(this.#names.bridge, link),
    ]);
    await this.#onRules(made);
    await runSoon("nsenter", [`--net=${NETNS_DIR}/${name}`, findTool("ip")!, "-batch", "-"], {
      input: [
        "link set lo up",
        `address add ${address}/${prefix} dev eth0`,
        "link set eth0 up",
        `route add default via ${gateway}`,
        "",
      ].join("\n"),
    });
    await this.#admit(attachment);
    if (attachment.ipv6 !== undefined) await addIpv6(attachment.netns!, attachment.ipv6);
    return attachment;
  }

  /**
   * Takes over what a container runtime's network plugin has put on the bridge: from here on it is like any other.
   * Until then the machine must not send. Repeating it is safe, also where a kill has cut it off.
   * @param made the address that the plugin gave out, its interface on the bridge, and the other one's MAC
   */
  async adopt(machineId: string, made: Made): Promise<Attachment> {
    return await this.#adopting.run(machineId, this.#adopt(machineId, made));
  }

  async #adopt(machineId: string, made: Made): Promise<Attachment> {
    const attachment = await this.moves.attach(async () => {
      await this.ensure();
      await this.#ipam.record(machineId, made.address);
      return { ...this.#describe(machineId, made.address, false), mac: made.mac };
    });
    // The rule may come before the link has its name: it lets no other one send.
    const { ipv6 } = attachment;
    const dual = ipv6 === undefined ? [] : [addIpv6(made.netns(), ipv6)];
    await together([nameLink(made, attachment.link), this.#admit(attachment), ...dual]);
    return attachment;
  }

  /** A tap on the bridge for the machine's VM, which sets `address` and `mac` itself. */
  async attachTap(machineId: string): Promise<Attachment> {
    const attachment = this.#describe(machineId, await this.#acquire(machineId), false);
    await this.#removeLinks(machineId);
    const made = ip([`tuntap add dev ${attachment.link} mode tap`, ...joining(this.#names.bridge, attachment.link)]);
    await this.#onRules(made);
    await this.#admit(attachment);
    return attachment;
  }

  /** The attachment that is in place, for a backend that was restarted. */
  async find(machineId: string): Promise<Attachment | undefined> {
    const [address, link] = [await this.#ipam.find(machineId), this.#names.link(machineId)];
    if (address === undefined || !isLink(link)) return undefined;
    return this.#describe(machineId, address, existsSync(join(NETNS_DIR, this.#names.netns(machineId))));
  }

  /**
   * Forwards the host ports that a machine's containers ask for. Repeating it is safe.
   * @throws ProviderError conflict when another machine, or this host itself, has one of them: then none is forwarded
   */
  async openHostPorts(machineId: string, ports: readonly ContainerPort[]): Promise<void> {
    const addresses = this.addressesOf((await this.#ipam.find(machineId))!);
    await this.#onRules(this.#forwards.open(machineId, addresses, ports));
  }

  /** Removes all that the machine has on the network, in whatever state it is. */
  async detach(machineId: string): Promise<void> {
    // Nothing is made any more once it is taken away.
    await this.#adopting.ended(machineId);
    const address = await this.#ipam.find(machineId);
    const addresses = address === undefined ? [] : this.addressesOf(address);
    if (address !== undefined && isLink(this.#names.bridge)) {
      await this.ensure();
      await this.#onRules(this.#forwards.close(machineId, addresses));
    } else if (address !== undefined) {
      // Where the bridge is gone, the rules may be gone as well.
      await this.#forwards.close(machineId, addresses).catch(() => undefined);
    } else this.#forwards.release(machineId);
    await this.#removeLinks(machineId);
    // Not before the link: until then it is held to what it may send.
    if (address !== undefined)
      await Promise.all([
        nft(this.limits.release(machineId)),
        ...addresses.map((each) => forgetConnections(each)),
        forgetNeighbour(this.#names.bridge, addresses[1]),
      ]);
    await this.#ipam.release(machineId);
    // With the last one goes the range that it had.
    await this.#settle();
  }

  /**
   * Makes this the only backend that looks after the bridge, until `close` or the end of the process. To be called
   * before `sweep`, which removes another backend's machines from the bridge as it removes leftovers.
   * @throws Error when another backend has the bridge, or this host has an address of the range elsewhere
   */
  async claim(): Promise<void> {
    this.#lock ??= await lockFile(
      this.#names.lockFile,
      `network.bridge ${this.#names.bridge} is in use by another backend: stop it, or choose another network.bridge and network.cidr`,
    );
    try {
      await this.limits.look();
      await this.#settle();
      // A backend whose machines have addresses already has to look after them.
      if ((await this.#ipam.leases()).size === 0) await this.range.assertOwn(this.#names.bridge);
    } catch (thrown) {
      this.close();
      throw thrown;
    }
  }

  /** Closes what this process holds of the bridge; the machines keep their network. */
  close(): void {
    this.#cancelLook();
    this.#forwards.releaseAll();
    if (this.#lock !== undefined) closeSync(this.#lock);
    this.#lock = undefined;
  }

  /** Closes it; with no machine left, bridge and rules go as well, and are made again for the next. */
  async leave(): Promise<void> {
    this.#cancelLook();
    const leases = await this.#ipam.leases().catch(() => undefined);
    const isLast = this.#lock !== undefined && leases?.size === 0;
    // When that fails, they do no harm, and the next backend takes them over.
    if (isLast && (await isMadeHere(this.#names.bridge))) await takeDown(this.#names).catch(() => undefined);
    this.#ready.forget();
    this.close();
  }

  /** Removes what belongs to none of the machines: links, namespaces, leases. */
  async sweep(known: ReadonlySet<string>): Promise<void> {
    for (const id of new Set((await this.#ipam.leases()).values())) if (!known.has(id)) await this.detach(id);
    const namespaces = new Set([...known].map((id) => this.#names.netns(id)));
    for (const name of await readdir(NETNS_DIR).catch(() => []))
      if (this.#names.isStrayNetns(name, namespaces))
        await removeUnlessGone(join(NETNS_DIR, name), `netns delete ${name}`);
    const links = new Set([...known].map((id) => this.#names.link(id)));
    for (const link of await readdir(`/sys/class/net/${this.#names.bridge}/brif`).catch(() => []))
      if (this.#names.isStrayLink(link, links)) await removeUnlessGone(`/sys/class/net/${link}`, `link delete ${link}`);
  }

  /** Traffic as the machine sees it. */
  async counters(machineId: string): Promise<{ rx_bytes: number; tx_bytes: number } | undefined> {
    return await linkCounters(this.#names.link(machineId));
  }

  /** Bridge, forwarding and rules; safe to repeat and cheap after the first time. */
  ensure(): Promise<void> {
    if (this.range.subnet === undefined) return Promise.resolve();
    if (!isLink(this.#names.bridge)) this.#ready.forget();
    return this.#ready.get();
  }

  /**
   * Looks again and again, until `close`, whether bridge and rules are still there, as kube-proxy does: without them
   * machines would be cut off, or reach this host.
   */
  lookAfter(clock: Clock, logger: Logger): void {
    this.#cancelLook();
    this.#cancelLook = clock.after(LOOK_EVERY_MS, () => {
      void this.heal()
        .then((missing) => {
          if (missing !== undefined)
            logger.warn({ missing }, "Another program has removed a part of the machines' network; it is made again");
        })
        .catch((thrown: unknown) => logger.error({ err: thrown }, "Cannot put the machines' network right yet"))
        .finally(() => {
          if (this.#lock !== undefined) this.lookAfter(clock, logger);
        });
    });
  }

  /** Makes again what another program has removed. @returns what that was; undefined when all is there */
  async heal(): Promise<string | undefined> {
    const links = async () => (await this.#attached()).map(({ link }) => link);
    return await whileSteady(links, async () => {
      // What goes with a machine that goes meanwhile is not missing.
      const missing = await sameTwice(() => this.#missing());
      if (missing === undefined) return undefined;
      this.#ready.forget();
      await this.ensure();
      await this.#forwards.restore();
      return missing;
    });
  }

  async #missing(): Promise<string | undefined> {
    if (this.range.subnet === undefined) return undefined;
    const { bridge, table } = this.#names;
    if (!isLink(bridge)) return `bridge ${bridge}`;
    const { stdout } = await runSoon("ip", ["-o", "address", "show", "dev", bridge]);
    const address = gatewaysOf(this.range.inUse).find((each) => !stdout.includes(` ${each} `));
    if (address !== undefined) return `address ${address} of ${bridge}`;
    const loose = (await this.#attached()).find(({ link }) => !existsSync(`/sys/class/net/${link}/master`));
    if (loose !== undefined) return `interface ${loose.link} on ${bridge}`;
    const chain = await missingChain(table, await this.#rules());
    if (chain !== undefined) return `rules of nft chain ${chain}`;
    const port = await this.#forwards.missing();
    return port === undefined ? undefined : `host port ${port}`;
  }

  /** Removes the bridge and the rules, for a backend that is taken off this host for good. */
  async remove(): Promise<void> {
    await this.sweep(new Set());
    this.#ready.forget();
    await takeDown(this.#names);
    await rm(this.#options.dir, { recursive: true, force: true });
    this.close();
    await rm(this.#names.lockFile, { force: true });
  }

  async #setUp(): Promise<void> {
    const { gateway, ipv6 } = this.range.inUse;
    await mkdir(this.#options.dir, { recursive: true });
    await this.range.claim((await this.#ipam.leases()).size);
    if (!isLink(this.#names.bridge))
      await ip([`link add ${this.#names.bridge} type bridge`, `link set ${this.#names.bridge} alias ${BRIDGE_ALIAS}`]);
    // A bridge of its own address: otherwise it takes the lowest of its ports, and changes with them.
    const mac = macOf(gateway);
    await ip([
      `link set ${this.#names.bridge} address ${mac} up`,
      ...gatewaysOf(this.range.inUse).map(
        (each) => `address replace ${each} dev ${this.#names.bridge}${each.includes(":") ? " nodad" : ""}`,
      ),
    ]);
    await writeFile("/proc/sys/net/ipv4/ip_forward", "1");
    if (ipv6 !== undefined) await routeIpv6(this.#names.bridge);
    // Another program may have removed bridge or rules while machines run: they would be cut off.
    const loose = (await this.#attached()).filter(({ link }) => !existsSync(`/sys/class/net/${link}/master`));
    if (loose.length > 0) await ip(loose.flatMap(({ link }) => joining(this.#names.bridge, link)));
    await nft(await this.#rules());
    if (ipv6 !== undefined)
      await ip((await this.#attachedAsAdopted()).flatMap((each) => neighbours(this.#names.bridge, each)));
  }

  /** A machine's addresses, by its IPv4 one. */
  addressesOf(address: string): string[] {
    const { prefix = 0, ipv6 } = this.range.subnet ?? {};
    return [address, (ipv6 && ipv6Of({ prefix, ipv6 }, address)) ?? []].flat();
  }

  /** What nft has to know: the bridge's rules, and those of each machine on it. */
  async #rules(): Promise<string> {
    const senders = (await this.#attachedAsAdopted()).map((each) => admission(this.#names.table, each));
    const { cidr, ipv6 } = this.range.inUse;
    const { outbound = "allow", denyCidrs = DEFAULT_DENIED, podCidrs = [], openHostPorts = [] } = this.#options;
    const { table, bridge: bridgeName } = this.#names;
    const seesBridged = await seesBridgedPackets(bridgeName);
    const ranges = { cidr, ipv6Cidr: ipv6?.cidr, denyCidrs, podCidrs };
    const rules = networkRules({ table, bridgeName, ...ranges, outbound, openHostPorts, seesBridged });
    return [rules, ...senders, this.limits.rules()].join("");
  }

  /** The same with the MACs that a runtime's plugin has given. */
  async #attachedAsAdopted(): Promise<Attachment[]> {
    const adoptedMac = async (link: string) => (await readFileIfExists(`/sys/class/net/${link}/ifalias`))?.trim();
    return await Promise.all(
      (await this.#attached()).map(async (each) => ({ ...each, mac: (await adoptedMac(each.link)) || each.mac })),
    );
  }

  /** Machines with an interface on this host. */
  async #attached(): Promise<Attachment[]> {
    const all = [...(await this.#ipam.leases())].map(([address, id]) => this.#describe(id, address, false));
    return all.filter(({ link }) => isLink(link));
  }

  async #acquire(machineId: string): Promise<string> {
    const namesake = this.#names.namesake(machineId, (await this.#ipam.leases()).values());
    if (namesake !== undefined)
      throw new ProviderError(
        "unavailable",
        `machine ${machineId} would have the network interface ${this.#names.link(machineId)}, which is that of machine ${namesake}`,
      );
    return await this.moves.attach(async () => {
      await this.ensure();
      return await this.#ipam.acquire(machineId);
    });
  }

  async #admit(attachment: Attachment): Promise<void> {
    await this.#onRules(nft(admission(this.#names.table, attachment)));
    if (attachment.ipv6 !== undefined) await this.#onRules(ip(neighbours(this.#names.bridge, attachment)));
  }

  /** For work that needs the rules. When they are gone, the next attempt makes them again. */
  async #onRules<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (thrown) {
      // A conflict is no sign that rules are gone.
      if (!(thrown instanceof ProviderError)) this.#ready.forget();
      throw thrown;
    }
  }

  async #removeLinks(machineId: string): Promise<void> {
    const [name, link] = [this.#names.netns(machineId), this.#names.link(machineId)];
    // The link first: with its namespace it would vanish only some time later, and block a new one of its name.
    await removeUnlessGone(`/sys/class/net/${link}`, `link delete ${link}`);
    await removeUnlessGone(join(NETNS_DIR, name), `netns delete ${name}`);
  }

  #describe(machineId: string, address: string, namespace: boolean): Attachment {
    const { prefix, gateway, ipv6 } = this.range.inUse;
    const own = ipv6 && { address: ipv6Of({ prefix, ipv6 }, address), gateway: ipv6.gateway };
    return {
      address,
      prefix,
      gateway,
      ipv6: own && { ...own, gatewayMac: macOf(gateway) },
      link: this.#names.link(machineId),
      mac: macOf(address),
      netns: namespace ? join(NETNS_DIR, this.#names.netns(machineId)) : undefined,
    };
  }
}

const admission = (table: string, attachment: Attachment) =>
  [
    holdSender(table, attachment),
    hairpinRule(table, attachment.address),
    attachment.ipv6 === undefined ? "" : hairpinRule(table, attachment.ipv6.address),
  ].join("");

/** `10.99.0.1/16`: of the bridge. */
const gatewaysOf = ({ gateway, prefix, ipv6 }: Subnet): string[] =>
  [`${gateway}/${prefix}`, ipv6 === undefined ? [] : `${ipv6.gateway}/${ipv6.cidr.split("/")[1]}`].flat();

/** A locally administered address made of the IPv4 address. */
function macOf(address: string): string {
  return ["02", "fc", ...address.split(".").map((octet) => Number(octet).toString(16).padStart(2, "0"))].join(":");
}

/**
 * The kernel removes links by itself, with their namespace, and not at once: a failure counts only while the thing is
 * there.
 */
async function removeUnlessGone(path: string, command: string): Promise<void> {
  if (!existsSync(path)) return;
  try {
    await ip([command]);
  } catch (thrown) {
    if (existsSync(path)) throw thrown;
  }
}

async function takeDown({ bridge, table }: NetworkNames): Promise<void> {
  if (isLink(bridge)) await ip([`link delete ${bridge}`]);
  for (const family of ["inet", "netdev"]) await nft(`add table ${family} ${table}\ndelete table ${family} ${table}\n`);
}

async function nft(script: string): Promise<void> {
  await runSoon("nft", ["-f", "-"], { input: script });
}

/** False for a bridge that the host's owner has made and named in the configuration. */
async function isMadeHere(bridge: string): Promise<boolean> {
  const alias = await readFile(`/sys/class/net/${bridge}/ifalias`, "utf8").catch(() => "");
  return alias.trim() === BRIDGE_ALIAS;
}
