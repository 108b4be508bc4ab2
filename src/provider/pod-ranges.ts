/** The ranges of a node's machines' addresses, as every provider and the Machine API describe them. */
import {
  containsRange,
  type Ipv4Range,
  type Ipv6Range,
  overlaps,
  parseIpv4Range,
  parseIpv6Range,
} from "../util/cidr.ts";
import type { Schemas } from "./contract/document.ts";
import { ProviderError } from "./errors.ts";
import { LABEL_CLUSTER, LABEL_NODE } from "./owner.ts";
import type { CallOptions } from "./provider.ts";

export type PodRangesSpec = Schemas["PodRangesSpec"];
export type PodRanges = Schemas["PodRanges"];

/**
 * Capability `pod_ranges`: a backend whose machines have the addresses that the cluster has given to their Node
 * (`spec.podCIDRs`). What every provider must keep (the conformance kit checks it):
 *
 * - One node has the ranges until it gives them back; nobody else changes them meanwhile.
 * - A range outside of what the backend's owner allows, or one that no machine may have, is refused.
 * - Whose range is refused has none: what it had before is no longer its own.
 * - `ready` is said only when new machines get their addresses of it; machines that are there keep what they have.
 */
export interface PodRangesProvider {
  /**
   * Idempotent. Ranges that take the place of others wait until no machine has an address of those.
   * @throws ProviderError invalid, conflict, unauthorized, unavailable
   */
  put(spec: PodRangesSpec, options: CallOptions): Promise<PodRanges>;
  get(options: CallOptions): Promise<PodRanges>;
  /** Gives them back: idempotent. @throws ProviderError conflict where another node has them, unavailable */
  delete(options: CallOptions & { labels: Record<string, string> }): Promise<void>;
}

/** What a backend keeps of them. */
export interface KeptPodRanges {
  labels: Record<string, string>;
  /** The IPv4 one, and after a comma the IPv6 one where machines have that too. */
  range: string;
}

interface PodRangeBookOptions {
  /** Where a range may lie. Where none of IPv6 is among them, machines have IPv4 alone. */
  within: readonly string[];
  /** What machines may not reach, and so cannot have. */
  denied?: readonly string[] | undefined;
  /** What a former backend has kept. */
  kept?: KeptPodRanges | undefined;
  /** Writes it down before anything is done by it. @throws what the disk says */
  keep?: ((kept: KeptPodRanges | undefined) => void) | undefined;
  /** Why this host cannot have the ranges, as they are kept; undefined when it can. */
  fault?: ((range: string) => string | undefined) | undefined;
  /** Gives new machines addresses of it. @returns why not yet; undefined: it does */
  use?: ((range: string) => Promise<string | undefined>) | undefined;
}

/** No machine has an address of these, whatever the owner allows. */
const NEVER = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"].map((text) =>
  parseIpv4Range(text)!,
);
/** Loopback and what embeds IPv4, link-local, multicast. */
const NEVER_IPV6 = ["::/16", "fe80::/10", "ff00::/8"].map((text) => parseIpv6Range(text)!);

/** The rules of the ranges, for a provider that keeps them by itself. */
export class PodRangeBook implements PodRangesProvider {
  readonly #options: PodRangeBookOptions;
  /** What is written down. */
  #kept: KeptPodRanges | undefined;
  /** Something else was told since, and cannot be written yet. */
  #isOutdated = false;

  constructor(options: PodRangeBookOptions) {
    this.#options = options;
    this.#kept = options.kept;
  }

  /** What was told last, and by whom; undefined also while that could not be written. */
  get kept(): KeptPodRanges | undefined {
    return this.#isOutdated ? undefined : this.#kept;
  }

  async put({ labels, ranges }: PodRangesSpec, { signal }: CallOptions): Promise<PodRanges> {
    signal.throwIfAborted();
    this.#assertOwner(labels, "have them");
    const range = this.#accepted(ranges);
    if (this.kept?.range !== range || !isSame(this.kept.labels, labels)) this.#keep({ labels, range });
    return await this.#told();
  }

  /**
   * Who has another range now, and one that is refused, has lost the former one: the cluster may give that to another.
   * @throws ProviderError invalid
   */
  #accepted(ranges: readonly string[]): string {
    try {
      const range = this.#judge(ranges);
      const fault = this.kept?.range === range ? undefined : this.#options.fault?.(range);
      if (fault !== undefined) throw refused(range, fault);
      return range;
    } catch (thrown) {
      try {
        if (this.#kept !== undefined) this.#keep(undefined);
      } catch {
        // That it is refused is what its agent has to know; it tells the same again, and then it is written.
      }
      throw thrown;
    }
  }

  async get({ signal }: CallOptions): Promise<PodRanges> {
    signal.throwIfAborted();
    return await this.#told();
  }

  // eslint-disable-next-line @typescript-eslint/require-await -- what is thrown is a rejection
  async delete({ labels, signal }: CallOptions & { labels: Record<string, string> }): Promise<void> {
    signal.throwIfAborted();
    if (this.#kept === undefined) return;
    this.#assertOwner(labels, "give them back");
    this.#keep(undefined);
  }

  async #told(): Promise<PodRanges> {
    const { within, use } = this.#options;
    const { kept } = this;
    const known = { within: [...within], labels: kept?.labels ?? {} };
    if (kept === undefined) return { ...known, ranges: [], state: "none" };
    const { range } = kept;
    const message = await use?.(range);
    return {
      ...known,
      ranges: range.split(","),
      ...(message === undefined ? { state: "ready" } : { state: "waiting", message }),
    };
  }

  /** Nothing is given out any more of what there was, whether this can be written or not. @throws what the disk says */
  #keep(kept: KeptPodRanges | undefined): void {
    this.#isOutdated = true;
    this.#options.keep?.(kept);
    this.#kept = kept;
    this.#isOutdated = false;
  }

  #assertOwner(labels: Record<string, string>, what: string): void {
    if (this.#kept === undefined || isSame(this.#kept.labels, labels)) return;
    throw new ProviderError(
      "conflict",
      `the addresses of this backend's machines are those of ${ownerText(this.#kept.labels)}, so another node cannot ${what}: give each node a backend of its own, or take that node out of its agent's configuration`,
    );
  }

  /** @returns the IPv4 range, and the IPv6 one where machines have that too. @throws ProviderError invalid */
  #judge(ranges: readonly string[]): string {
    const strange = ranges.find((text) => parseIpv4Range(text) === undefined && parseIpv6Range(text) === undefined);
    if (strange !== undefined) throw refused(strange, "it is no range of addresses such as 10.244.1.0/24");
    const { within, denied = [] } = this.#options;
    const ipv4 = judgeFamily(ranges, { within, denied, parse: parseIpv4Range, bits: 32, never: NEVER });
    if (ipv4 === undefined)
      throw refused(ranges[0] ?? "", "this backend's machines have IPv4 addresses: the Node needs an IPv4 podCIDR too");
    const hasIpv6 = within.some((text) => parseIpv6Range(text) !== undefined);
    const rules = { within, denied, parse: parseIpv6Range, bits: 128, never: NEVER_IPV6 };
    return [ipv4, (hasIpv6 ? judgeFamily(ranges, rules) : undefined) ?? []].flat().join();
  }
}

interface FamilyRules<T> {
  within: readonly string[];
  denied: readonly string[];
  /** Undefined for what is not of the family. */
  parse: (text: string) => T | undefined;
  /** Of an address. */
  bits: number;
  never: readonly T[];
}

/** @returns the one range of the family; undefined when there is none. @throws ProviderError invalid */
function judgeFamily<T extends Ipv4Range | Ipv6Range>(
  ranges: readonly string[],
  { within, denied, parse, bits, never }: FamilyRules<T>,
): string | undefined {
  const [range, second] = ranges.flatMap((text) => parse(text) ?? []);
  if (range === undefined) return undefined;
  if (second !== undefined) throw refused(second.text, `${range.text} is of the same family`);
  if (never.some((each) => overlaps(each, range)))
    throw refused(range.text, "it has loopback, link-local, multicast or reserved addresses");
  if (!within.flatMap((text) => parse(text) ?? []).some((each) => containsRange(each, range)))
    throw refused(range.text, `it lies outside of what this backend's owner allows: ${within.join(", ")}`);
  const taken = denied.find((text) => {
    const each = parse(text.includes("/") ? text : `${text}/${bits}`);
    return each !== undefined && overlaps(each, range);
  });
  if (taken !== undefined) throw refused(range.text, `it overlaps ${taken}, which machines may not reach`);
  return range.text;
}

/** Whose ranges these are. */
function ownerText(labels: Readonly<Record<string, string>>): string {
  const { [LABEL_NODE]: node, [LABEL_CLUSTER]: cluster } = labels;
  return node === undefined ? "another client" : `node ${node} of cluster ${cluster ?? "?"}`;
}

/** Why a machine with these labels gets no address by what `kept` says; undefined when it does. */
export function otherNodesMachine(
  kept: KeptPodRanges | undefined,
  labels: Readonly<Record<string, string>>,
): string | undefined {
  if (kept === undefined)
    return "the addresses of this backend's machines are the Node's podCIDR, and no agent has told one that they may have";
  if (labels[LABEL_NODE] === undefined) return undefined;
  const isOwn = [LABEL_CLUSTER, LABEL_NODE].every((label) => kept.labels[label] === labels[label]);
  if (isOwn) return undefined;
  return `the addresses of this backend's machines are those of ${ownerText(kept.labels)}: each node needs a backend of its own`;
}

function refused(range: string, why: string): ProviderError {
  return new ProviderError("invalid", `the range ${JSON.stringify(range.slice(0, 64))} is refused: ${why}`, {
    field: "ranges",
  });
}

function isSame(one: Readonly<Record<string, string>>, other: Readonly<Record<string, string>>): boolean {
  const keys = Object.keys(one);
  return (
    keys.length === Object.keys(other).length &&
    keys.every((key) => Object.hasOwn(other, key) && one[key] === other[key])
  );
}
