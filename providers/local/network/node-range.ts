/**
 * `network.cidr: node`: the machines' range is the podCIDR of the Node whose machines these are, which its agent tells
 * (/v1/pod-ranges). What was told is in one file of the state directory, so that the next backend knows it.
 */
import { join } from "node:path";
import {
  isSubset,
  type KeptPodRanges,
  type Logger,
  type MachineSpec,
  otherNodesMachine,
  parseIpv4Range,
  parseIpv6Range,
  PodRangeBook,
  type PodRangesProvider,
  ProviderError,
} from "../../../src/provider/kit/index.ts";
import { writeJson } from "../host/files.ts";
import { TornFiles } from "../host/torn-files.ts";
import { hostsOwn, hostsOwnIpv6 } from "./host-ranges.ts";
import { parseSubnet } from "./ipam.ts";
import { DEFAULT_BRIDGE, type HostNetwork, type NetworkOptions } from "./network.ts";
import { OF_THE_NODE } from "./range.ts";

interface NodeRangeOptions {
  stateDir: string;
  logger: Logger;
  network: HostNetwork;
}

export class NodeRange {
  readonly api: PodRangesProvider;
  readonly #book: PodRangeBook;
  readonly #network: HostNetwork;

  /** Undefined where the configuration says which range it is. @throws what the disk says */
  static of(
    options: Omit<NetworkOptions, "dir"> | undefined,
    surroundings: Omit<NodeRangeOptions, "network"> & { network: HostNetwork | undefined },
  ): NodeRange | undefined {
    const { network } = surroundings;
    if (options?.cidr !== OF_THE_NODE || network === undefined) return undefined;
    return new NodeRange(options, { ...surroundings, network });
  }

  private constructor(options: Omit<NetworkOptions, "dir">, { stateDir, logger, network }: NodeRangeOptions) {
    const { podCidrs = [], bridge = DEFAULT_BRIDGE, denyCidrs = [] } = options;
    const file = join(stateDir, "pod-range.json");
    const kept = new TornFiles(stateDir, logger).readJson(file, isKept) ?? undefined;
    this.#network = network;
    if (kept !== undefined) network.range.want(kept.range);
    this.#book = new PodRangeBook({
      within: podCidrs,
      denied: denyCidrs,
      kept,
      // Also that there is none: a file that is missing may have been lost.
      keep: (next) => {
        writeJson(file, next ?? null, { flush: true });
        logger.info({ range: next?.range, labels: next?.labels }, "The range of the machines' addresses was told");
      },
      fault: (range) => sizeFault(range) ?? takenBy(range, bridge),
      use: (range) => network.moveTo(range),
    });
    this.api = this.#book;
  }

  /** Whether the range is that of the Node with these labels. */
  isOf(labels: Readonly<Record<string, string>>): boolean {
    const { kept } = this.#book;
    return kept !== undefined && isSubset(kept.labels, labels) && isSubset(labels, kept.labels);
  }

  /** @throws ProviderError unavailable for a machine that would get an address which is not its Node's */
  assertServes({ labels, host }: MachineSpec): void {
    if (host?.network === true) return;
    const why = otherNodesMachine(this.#book.kept, labels) ?? this.#network.range.waitsFor;
    if (why !== undefined) throw new ProviderError("unavailable", why);
  }
}

function sizeFault(range: string): string | undefined {
  try {
    parseSubnet(range);
    return undefined;
  } catch {
    return "this backend wants a prefix of 8 to 29, and an IPv6 range with room for as many machines";
  }
}

/** What this host has of it elsewhere. */
function takenBy(range: string, bridge: string): string | undefined {
  const [ipv4 = "", ipv6] = range.split(",");
  const fault = hostsOwn(parseIpv4Range(ipv4)!, bridge);
  return fault ?? (ipv6 === undefined ? undefined : hostsOwnIpv6(parseIpv6Range(ipv6)!, bridge));
}

function isKept(value: unknown): value is KeptPodRanges | null {
  if (value === null) return true;
  const { labels, range } = (value ?? {}) as Partial<Record<keyof KeptPodRanges, unknown>>;
  const isText = (text: unknown) => typeof text === "string";
  if (typeof range !== "string" || sizeFault(range) !== undefined) return false;
  return typeof labels === "object" && labels !== null && Object.values(labels).every(isText);
}
