/**
 * VMs on the network of the host's cluster, as pods of a container runtime are: CNI's plugins make a network namespace
 * for each, and what they put into its eth0 is the VM's. Between that and the VM's tap, which is in the namespace too,
 * frames are handed over as they are; the namespace itself answers nothing.
 *
 *     DIR/KEY.json    what the plugins were told and have said, written before they begin: by it all is taken back
 */
import { mkdir, readdir, rm } from "node:fs/promises";
import { existsSync } from "node:fs";
import { join } from "node:path";
import {
  type Capability,
  type Clock,
  LABEL_NAMESPACE,
  LABEL_POD,
  LABEL_UID,
  type Logger,
  type MachineSpec,
  pause,
  ProviderError,
} from "../../../../src/provider/kit/index.ts";
import { readdirAtomic, writeFileAtomic } from "../../host/files.ts";
import { HostError } from "../../host/host-error.ts";
import { machineHash } from "../../host/machine-hash.ts";
import type { TornFiles } from "../../host/torn-files.ts";
import { containerPorts } from "../host-ports.ts";
import { holdSender, senderTable } from "../sender-rules.ts";
import { runSoon } from "../tools.ts";
import { hasCapability, type NetworkConfig, readNetwork } from "./configuration.ts";
import { addNetwork, type CniResult, INTERFACE, type PluginCall, removeNetwork } from "./plugins.ts";

export interface CniOptions {
  /** Where the cluster's network is configured. */
  confDir?: string | undefined;
  /** Where its plugins are, in order. */
  binDirs?: readonly string[] | undefined;
}

/** An address, and where packets go from it. */
export interface CniAddress {
  address: string;
  prefix: number;
  /** Absent: the network has no way out. */
  gateway?: string | undefined;
  /** Besides that to all others; without `via` what it leads to is on the link. */
  routes: { to: string; via: string | undefined }[];
}

/** What a VM is told of its network, and by what this host knows it. */
export interface CniAttachment extends CniAddress {
  /** Absent: the network has IPv4 alone. */
  ipv6?: CniAddress | undefined;
  mac: string;
  mtu: number;
  /** Of the tap. */
  link: string;
  /** Path of the network namespace that the tap is in. */
  netns: string;
}

interface Surroundings {
  torn: TornFiles;
  clock: Clock;
  logger: Logger;
}

interface Taken {
  network: NetworkConfig;
  call: PluginCall;
  /** Absent until the plugins are through. */
  result?: CniResult;
}

const DEFAULT_CONF_DIR = "/etc/cni/net.d";
const DEFAULT_BIN_DIRS = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];
const NETNS_DIR = "/run/netns";
const TAP = "tap0";
/** In the machine's namespace. */
const TABLE = "vmlet";
/** As CNI's plugin bandwidth has it of the kubelet: the whole of its range. */
const BURST_BITS = 2 ** 32 - 1;
const RETRY_MS = 30_000;

export class CniNetwork {
  readonly #dir: string;
  readonly #confDir: string;
  readonly #binDirs: readonly string[];
  readonly #torn: TornFiles;
  readonly #clock: Clock;
  readonly #logger: Logger;
  /** Before the VM's key, in the names of namespaces. */
  readonly #prefix: string;
  readonly #closed = new AbortController();
  /** What another plugin's network has, it says itself. */
  readonly hasIpv6 = true;
  #capabilities: readonly Capability[] = [];

  /** @param dir of its records; the namespaces are named after it */
  constructor(dir: string, { confDir, binDirs }: CniOptions, { torn, clock, logger }: Surroundings) {
    this.#dir = dir;
    this.#confDir = confDir ?? DEFAULT_CONF_DIR;
    this.#binDirs = binDirs ?? DEFAULT_BIN_DIRS;
    this.#torn = torn;
    this.#clock = clock;
    this.#logger = logger;
    this.#prefix = `vmlet-${machineHash(dir).slice(0, 8)}-`;
  }

  get capabilities(): readonly Capability[] {
    return this.#capabilities;
  }

  async begin(): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    await this.lack();
  }

  /** Why there is no network; undefined where there is one. What its plugins can do is kept. */
  async lack(): Promise<string | undefined> {
    const network = await this.#read();
    return typeof network === "string" ? network : undefined;
  }

  async #read(): Promise<NetworkConfig | string> {
    const network = await readNetwork(this.#confDir);
    if (typeof network !== "string") this.#capabilities = hasCapability(network, "bandwidth") ? ["bandwidth"] : [];
    return network;
  }

  /**
   * Has the plugins make a VM's network, and its tap.
   * @param key of the VM
   * @throws ProviderError unavailable when there is no network, or a plugin fails
   */
  async attach(key: string, spec: MachineSpec | undefined, signal: AbortSignal): Promise<CniAttachment> {
    if (spec === undefined) throw new HostError("a VM has the cluster's network with its machine only");
    const network = await this.#read();
    if (typeof network === "string") throw new ProviderError("unavailable", `cni plugin not initialized: ${network}`);
    const [name, netns] = this.#namesOf(key);
    const containerId = `${this.#prefix}${key}`;
    const { args, runtimeConfig } = asked(spec);
    const call: PluginCall = {
      ...{ containerId, netns, runtimeConfig },
      args: { ...args, K8S_POD_INFRA_CONTAINER_ID: containerId },
    };
    await this.#write(key, { network, call });
    await runSoon("ip", ["netns", "add", name]);
    const result = await addNetwork(network, this.#binDirs, call, signal);
    await this.#write(key, { network, call, result });
    const attachment = { ...addressesIn(result), ...(await interfaceIn(name)), link: TAP, netns };
    await runSoon("ip", ["-n", name, "-batch", "-"], {
      input: [`tuntap add dev ${TAP} mode tap`, `link set ${TAP} mtu ${attachment.mtu} up`, ""].join("\n"),
    });
    await runSoon("ip", ["netns", "exec", name, "nft", "-f", "-"], { input: handover(attachment) });
    return attachment;
  }

  /** A VM is held from `attach` on, in its namespace, and the plugins were told of limits and ports with all else. */
  async hold(): Promise<void> {}
  async openHostPorts(): Promise<void> {}

  /** Gives back all that a VM has, in whatever state it is. Repeating it is safe. */
  async detach(key: string): Promise<void> {
    const [name, netns] = this.#namesOf(key);
    const record = this.#torn.readJson(this.#fileOf(key), isTaken);
    if (record !== undefined) {
      const { network, call, result } = record;
      await removeNetwork(network, this.#binDirs, { ...call, netns: existsSync(netns) ? netns : "" }, result);
    }
    if (existsSync(netns)) await runSoon("ip", ["netns", "delete", name]);
    await rm(this.#fileOf(key), { force: true });
  }

  /** Gives back what belongs to none of the VMs. What cannot be given back yet is tried again, until `close`. */
  async sweep(known: ReadonlySet<string>): Promise<void> {
    const recorded = (await readdirAtomic(this.#dir).catch(() => [])).map((file) => file.replace(/\.json$/, ""));
    const named = (await readdir(NETNS_DIR).catch(() => []))
      .filter((name) => name.startsWith(this.#prefix))
      .map((name) => name.slice(this.#prefix.length));
    for (const key of new Set([...recorded, ...named])) if (!known.has(key)) await this.#giveBack(key);
  }

  async #giveBack(key: string): Promise<void> {
    try {
      await this.detach(key);
    } catch (thrown) {
      this.#logger.warn({ vm: key, err: thrown }, "The network of a VM that is gone cannot be given back yet");
      void pause(this.#clock, RETRY_MS, this.#closed.signal).then(async () => {
        if (!this.#closed.signal.aborted) await this.#giveBack(key);
      });
    }
  }

  /** VMs keep what they have. */
  async leave(): Promise<void> {
    this.#closed.abort(new Error("the backend is stopping"));
  }

  /** Traffic as the VM sees it; undefined when it is gone. */
  async counters(key: string): Promise<{ rx_bytes: number; tx_bytes: number } | undefined> {
    const [name, netns] = this.#namesOf(key);
    if (!existsSync(netns)) return undefined;
    const { stdout } = await runSoon("ip", ["-n", name, "-j", "-s", "link", "show", "dev", TAP]);
    const [{ stats64 }] = JSON.parse(stdout.toString()) as [{ stats64: Record<"rx" | "tx", { bytes: number }> }];
    return { rx_bytes: stats64.tx.bytes, tx_bytes: stats64.rx.bytes };
  }

  #fileOf(key: string): string {
    return join(this.#dir, `${key}.json`);
  }

  #namesOf(key: string): [name: string, path: string] {
    const name = `${this.#prefix}${key}`;
    return [name, join(NETNS_DIR, name)];
  }

  async #write(key: string, record: Taken): Promise<void> {
    await writeFileAtomic(this.#fileOf(key), JSON.stringify(record), 0o600);
  }
}

function isTaken(value: unknown): value is Taken {
  const { network, call } = (value ?? {}) as Partial<Taken>;
  return Array.isArray(network?.plugins) && typeof call?.containerId === "string";
}

/** What the plugins are told of a machine, as container runtimes tell it of a pod. */
function asked(spec: MachineSpec): Pick<PluginCall, "args" | "runtimeConfig"> {
  const named = { K8S_POD_NAME: LABEL_POD, K8S_POD_NAMESPACE: LABEL_NAMESPACE, K8S_POD_UID: LABEL_UID };
  const args = Object.entries(named).map(([name, label]) => [name, spec.labels[label] ?? ""] as const);
  const { ingress_bits_per_second: ingress, egress_bits_per_second: egress } = spec.bandwidth ?? {};
  const ports = containerPorts(spec).flatMap(
    ({ host_port: hostPort, port: containerPort, protocol, host_ip: hostIP }) =>
      hostPort === undefined
        ? []
        : [{ hostPort, containerPort, protocol, ...(hostIP === undefined ? {} : { hostIP }) }],
  );
  return {
    // Any other client than an agent may have labels of any kind.
    args: Object.fromEntries(args.filter(([, value]) => /^[\w.-]+$/.test(value))),
    runtimeConfig: {
      ...(ports.length > 0 ? { portMappings: ports } : {}),
      ...(spec.bandwidth === undefined
        ? {}
        : {
            bandwidth: {
              ...(ingress === undefined ? {} : { ingressRate: ingress, ingressBurst: BURST_BITS }),
              ...(egress === undefined ? {} : { egressRate: egress, egressBurst: BURST_BITS }),
            },
          }),
    },
  };
}

/**
 * The addresses that eth0 has by the plugins' word, one of each family.
 * @throws ProviderError unavailable when there is none of IPv4
 * @internal
 */
export function addressesIn(result: CniResult): CniAddress & Pick<CniAttachment, "ipv6"> {
  const own = addressIn(result, (text) => !text.includes(":"));
  if (own === undefined)
    throw new ProviderError(
      "unavailable",
      "the cluster's network gives its pods no IPv4 address, and VMs take no other alone",
    );
  return { ...own, ipv6: addressIn(result, (text) => text.includes(":")) };
}

function addressIn(
  { interfaces = [], ips = [], routes = [] }: CniResult,
  isOfFamily: (address: string) => boolean,
): CniAddress | undefined {
  const isInside = (index: number | undefined) => index === undefined || interfaces[index]?.name === INTERFACE;
  const own = ips.find(({ address, interface: index }) => isOfFamily(address) && isInside(index));
  if (own === undefined) return undefined;
  const [address = "", prefix] = own.address.split("/");
  const inFamily = routes.filter(({ dst }) => isOfFamily(dst));
  const isDefault = ({ dst }: { dst: string }) => dst.endsWith("/0");
  const byDefault = inFamily.find(isDefault);
  return {
    address,
    prefix: Number(prefix),
    gateway: byDefault && (byDefault.gw ?? own.gateway),
    routes: inFamily.filter((each) => !isDefault(each)).map(({ dst, gw }) => ({ to: dst, via: gw ?? own.gateway })),
  };
}

async function interfaceIn(name: string): Promise<Pick<CniAttachment, "mac" | "mtu">> {
  const { stdout } = await runSoon("ip", ["-n", name, "-j", "link", "show", "dev", INTERFACE]);
  const [{ address: mac, mtu }] = JSON.parse(stdout.toString()) as [{ address: string; mtu: number }];
  return { mac, mtu };
}

/** Every frame for eth0 is the VM's; of what the VM sends, what it may send as itself. */
function handover(attachment: CniAttachment): string {
  const entering = `chain netdev ${TABLE} ${INTERFACE}`;
  return [
    senderTable(TABLE).trim(),
    `add ${entering} { type filter hook ingress device "${INTERFACE}" priority 0; policy drop; }`,
    `add rule netdev ${TABLE} ${INTERFACE} fwd to "${TAP}"`,
    holdSender(TABLE, attachment, `fwd to "${INTERFACE}"`),
  ].join("\n");
}
