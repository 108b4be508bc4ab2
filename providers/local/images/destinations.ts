/**
 * To which addresses the backend connects for a pull. Tenants name registries, and registries name where a token or a
 * blob is had: neither may have the backend speak to what only this host reaches. Names are judged by the very address
 * that is connected to, so an answer of the DNS that changes in between changes nothing.
 */
import type { LookupAddress, LookupOptions } from "node:dns";
import { lookup } from "node:dns/promises";
import { BlockList, isIP, type LookupFunction } from "node:net";
import { toError, VmletError } from "../../../src/provider/kit/index.ts";
import { CommandError, findTool, run } from "../host/command.ts";

/** A registry, or something that one has led to, is where the backend does not connect to. */
export class DestinationError extends VmletError {
  readonly code = "IMAGE_DESTINATION";
  /** @param why ends the sentence "images are not pulled from HOST" */
  constructor(host: string, why: string) {
    super(`images are not pulled from ${host}, ${why}`);
  }
}

/** What clouds serve credentials at beside 169.254.0.0/16: Azure, Alibaba, Oracle, AWS and Google. */
const METADATA = [...["168.63.129.16/32", "100.100.100.200/32", "192.0.0.0/24"], ...["fd00:ec2::/96", "fd20:ce::/96"]];
/** Unspecified, loopback, link-local, multicast and reserved; Teredo, whose address has another one in it. */
const NEVER = [
  ...["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"],
  ...["::/127", "fe80::/10", "ff00::/8", "2001::/32"],
];
/** IPv4 in IPv6, where its 32 bits begin: as it is written, mapped, by NAT64 and 6to4. */
const EMBEDDED: [range: string, at: number][] = [
  ["::/96", 12],
  ["::ffff:0:0/96", 12],
  ["64:ff9b::/96", 12],
  ["64:ff9b:1::/48", 12],
  ["2002::/16", 2],
];
const ADVICE = "name it in engine.images.localRegistries if it is a registry of yours";
const IS_OURS = `which is no address that images are pulled from (${ADVICE})`;

interface DestinationsOptions {
  /** Registries (`host` or `host:port`) that the owner of this host has named: connected to wherever they are. */
  named: readonly string[];
  /** Those of them that may be spoken to without TLS. */
  plain: readonly string[];
  /** Further ranges that are not connected to: those of the machines, and those that machines must not reach. */
  refused: readonly string[];
  /** Whether this host itself has the address. Default: as its kernel says. */
  isOwn?: ((address: string) => Promise<boolean>) | undefined;
}

export class Destinations {
  readonly #options: DestinationsOptions;
  readonly #refused: BlockList;
  readonly #isOwn: (address: string) => Promise<boolean>;

  constructor(options: DestinationsOptions) {
    this.#options = options;
    this.#refused = rangesOf([...METADATA, ...NEVER, ...options.refused]);
    this.#isOwn = options.isOwn ?? isOwnAddress;
  }

  /** The owner has named this very host and port. */
  isNamed(url: URL): boolean {
    return isAmong(this.#options.named, url) || this.mayBePlain(url);
  }

  /** It may be spoken to without TLS, or with a certificate that nobody vouches for. */
  mayBePlain(url: URL): boolean {
    return isAmong(this.#options.plain, url);
  }

  /**
   * Judges what an URL says by itself; a name is judged by `lookup` when it is connected to.
   * @throws DestinationError
   */
  async assertAllowed(url: URL): Promise<void> {
    if (url.protocol !== "https:" && url.protocol !== "http:")
      throw new DestinationError(url.host, `whose scheme is ${url.protocol.slice(0, 20)}`);
    if (url.protocol === "http:" && !this.mayBePlain(url))
      throw new DestinationError(
        url.host,
        "which would be spoken to without TLS (name it in engine.images.insecureRegistries if it is a registry of yours)",
      );
    const address = url.hostname.replace(/^\[|\]$/g, "");
    if (isIP(address) !== 0 && !this.isNamed(url) && !(await this.mayConnect(address)))
      throw new DestinationError(url.host, IS_OURS);
  }

  /** Whether a registry that nobody has named may be at this address. */
  async mayConnect(address: string): Promise<boolean> {
    const bare = address.split("%")[0]!;
    const family = isIP(bare);
    if (family === 0) return false;
    if (this.#refused.check(bare, family === 6 ? "ipv6" : "ipv4") || (await this.#isOwn(bare))) return false;
    const inner = family === 6 ? embedded(bare) : undefined;
    return inner === undefined || (await this.mayConnect(inner));
  }

  /** For `net.connect`: finds only addresses that may be connected to. */
  readonly lookup: LookupFunction = (hostname, options, callback) => {
    const answer = async () => {
      const found = await this.#find(hostname, options).catch(toError);
      if (found instanceof Error) callback(found, []);
      else if (options.all === true) callback(null, found);
      else callback(null, found[0]!.address, found[0]!.family);
    };
    void answer();
  };

  async #find(hostname: string, options: LookupOptions): Promise<LookupAddress[]> {
    const allowed: LookupAddress[] = [];
    for (const entry of await lookup(hostname, { ...options, all: true }))
      if (await this.mayConnect(entry.address)) allowed.push(entry);
    if (allowed.length === 0) throw new DestinationError(hostname, IS_OURS);
    return allowed;
  }
}

function isAmong(names: readonly string[], { protocol, hostname, port }: URL): boolean {
  const actual = port === "" ? (protocol === "http:" ? "80" : "443") : port;
  return names.some((name) => {
    const [, host = "", wanted] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(name.toLowerCase()) ?? [];
    return host === hostname && (wanted === undefined ? port === "" : wanted === actual);
  });
}

function rangesOf(ranges: readonly string[]): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = "", prefix] = range.split("/");
    const isSix = isIP(address) === 6;
    list.addSubnet(address, Number(prefix ?? (isSix ? 128 : 32)), isSix ? "ipv6" : "ipv4");
  }
  return list;
}

const embedding = EMBEDDED.map(([range, at]) => ({ range: rangesOf([range]), at }));

/** The IPv4 address that an IPv6 one stands for, if it does. */
function embedded(address: string): string | undefined {
  const at = embedding.find(({ range }) => range.check(address, "ipv6"))?.at;
  return at === undefined ? undefined : [...sixBytes(address).subarray(at, at + 4)].join(".");
}

function sixBytes(address: string): Buffer {
  // The parser of URLs writes four numbers at the end as hexadecimal ones.
  const [head = "", tail] = new URL(`http://[${address}]/`).hostname.slice(1, -1).split("::");
  const groups = (text = "") => text.split(":").filter(Boolean);
  const zeros = 8 - groups(head).length - groups(tail).length;
  const all = [...groups(head), ...Array.from({ length: zeros }, () => "0"), ...groups(tail)];
  return Buffer.from(all.map((group) => group.padStart(4, "0")).join(""), "hex");
}

/** Asks the kernel: an interface need not be up for its address to be this host's, and a range can be as well. */
async function isOwnAddress(address: string): Promise<boolean> {
  try {
    const { stdout } = await run(findTool("ip") ?? "ip", ["-json", "route", "get", address]);
    const routes = JSON.parse(stdout.toString("utf8")) as { type?: string; dev?: string }[];
    return routes.some(({ type, dev }) => type === "local" || dev === "lo");
  } catch (thrown) {
    // No way leads there.
    if (thrown instanceof CommandError && thrown.exitCode === 2) return false;
    throw thrown;
  }
}
