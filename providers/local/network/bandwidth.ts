/**
 * What machines may send and get in a second. What comes to one waits on its link (tc, tbf), as CNI's plugin bandwidth
 * has it; what it sends is dropped beyond the limit by nft, where a frame enters this host. That plugin has this wait
 * as well, on a device of its own (ifb), but what such a device hands back passes by the rules at the entrance
 * (sender-rules.ts), and a machine could send from any address.
 */
import { type Capability, type MachineSpec, Once } from "../../../src/provider/kit/index.ts";
import { findTool, run } from "../host/command.ts";
import { isLink } from "./links.ts";
import type { NetworkNames } from "./names.ts";
import { forgetLink, senderTable } from "./sender-rules.ts";
import { runSoon } from "./tools.ts";

type Bandwidth = NonNullable<MachineSpec["bandwidth"]>;

/** Seconds' worth, after a pause; never less than the largest packet that a link hands over whole. */
const BURST_S = 0.1;
const LEAST_BURST_BYTES = 128 << 10;
/** More than a machine's link carries. nft counts no further than to some 147 Gbit/s. */
const MOST_BITS = 100e9;
const TRIAL_MS = 10_000;
const QUEUE = "latency 50ms";

/** Bytes in a second, and at once. */
function rateOf(bits: number): { bytes: number; burst: number } {
  const bytes = Math.ceil(Math.min(bits, MOST_BITS) / 8);
  return { bytes, burst: Math.max(Math.ceil(bytes * BURST_S), LEAST_BURST_BYTES) };
}

/** Whether this host's kernel and tools can do it: it is tried in a network namespace that goes at once. */
const canLimit = new Once(async (): Promise<boolean> => {
  const [unshare, tc] = [findTool("unshare"), findTool("tc")];
  if (unshare === undefined || tc === undefined || process.getuid?.() !== 0) return false;
  const trial = `--net ${tc} qdisc add dev lo root tbf rate 1mbit burst 128k ${QUEUE}`;
  return await run(unshare, trial.split(" "), { withinMs: TRIAL_MS }).then(
    () => true,
    () => false,
  );
});

export class BandwidthLimits {
  readonly #names: NetworkNames;
  /** By link. */
  readonly #held = new Map<string, Bandwidth>();
  #isPossible = false;

  constructor(names: NetworkNames) {
    this.#names = names;
  }

  /** Looks whether this host can. */
  async look(): Promise<void> {
    this.#isPossible = await canLimit.get();
  }

  /** What an engine on this network can do, once it was looked at. */
  get capabilities(): readonly Capability[] {
    return this.#isPossible ? ["bandwidth"] : [];
  }

  /** Holds a machine that has its link to its limits. Repeating it is safe. */
  async hold(machineId: string, bandwidth: Bandwidth | undefined): Promise<void> {
    if (bandwidth === undefined) return;
    const link = this.#names.link(machineId);
    const { ingress_bits_per_second: ingress, egress_bits_per_second: egress } = bandwidth;
    this.#held.set(link, bandwidth);
    if (egress !== undefined)
      await runSoon("nft", ["-f", "-"], { input: senderLimit(this.#names.table, link, egress) });
    if (ingress === undefined) return;
    const { bytes, burst } = rateOf(ingress);
    await runSoon("tc", `qdisc replace dev ${link} root tbf rate ${bytes}Bps burst ${burst} ${QUEUE}`.split(" "));
  }

  /** Forgets a machine whose link is gone, and what it could send as. @returns a script for `nft -f` */
  release(machineId: string): string {
    const link = this.#names.link(machineId);
    this.#held.delete(link);
    return [link, chainOf(link)].map((chain) => forgetLink(this.#names.table, chain)).join("");
  }

  /** Of the machines that have links, for rules that are made again. @returns a script for `nft -f` */
  rules(): string {
    const scripts = [...this.#held].map(([link, { egress_bits_per_second: egress }]) =>
      egress === undefined || !isLink(link) ? "" : senderLimit(this.#names.table, link, egress),
    );
    return scripts.join("");
  }
}

const chainOf = (link: string): string => `${link}_limit`;

/** Stands before the rules of what the machine may send as. What is there already is replaced in one step. */
function senderLimit(table: string, link: string, bits: number): string {
  const chain = `netdev ${table} ${chainOf(link)}`;
  const { bytes, burst } = rateOf(bits);
  return [
    senderTable(table).trim(),
    `add chain ${chain} { type filter hook ingress device "${link}" priority -1; policy accept; }`,
    `flush chain ${chain}`,
    `add rule ${chain} limit rate over ${bytes} bytes/second burst ${burst} bytes drop`,
    "",
  ].join("\n");
}
