/**
 * The Node's `spec.podCIDRs` as the range of its machines' addresses, for a backend that takes it (capability
 * `pod_ranges`). It is told again and again, so that a backend that has lost it learns it, and the Node's condition
 * PodRangeReady says whether its machines have it. Nothing is kept here.
 */
import type { Node } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import { ownerLabels } from "../provider/owner.ts";
import type { PodRanges } from "../provider/pod-ranges.ts";
import type { Provider } from "../provider/provider.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { Pulse } from "../util/pulse.ts";
import type { Random } from "../util/random.ts";
import type { NodeCapacity } from "./capacity.ts";

interface PodRangeOptions {
  provider: Pick<Provider, "podRanges">;
  clusterId: string;
  nodeName: string;
  /** Undefined while it is not registered. */
  node: () => Node | undefined;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Sends an event of the Node. */
  warn: (reason: string, message: string) => void;
  /** The Node's status is to be written. */
  onChange: () => void;
}

type Condition = NodeCapacity["conditions"][number];

const TYPE = "PodRangeReady";
/** How often it is told although nothing has changed. */
const EVERY_MS = 60_000;
/** Of these, what a Node's range was before says nothing any more. */
const REFUSALS = ["invalid", "conflict", "unauthorized", "unsupported"] as const;
const RETRY_MS = { initialMs: 1_000, maxMs: 30_000 };

export class PodRange {
  readonly #options: PodRangeOptions;
  readonly #backoff: Backoff;
  readonly #wake = new Pulse();
  #condition: Condition | undefined;
  /** Of which Node the range was given back: a Node that is registered again is another. */
  #givenBack: { uid: string | undefined } | undefined;
  /** What is being told, which outlives no giving back. */
  #telling: Promise<unknown> = Promise.resolve();

  constructor(options: PodRangeOptions) {
    this.#options = options;
    this.#backoff = new Backoff({ ...RETRY_MS, jitter: "up", clock: options.clock, random: options.random });
  }

  /** Of the Node; undefined where the backend takes no range, or has not been asked. */
  get condition(): Condition | undefined {
    return this.#condition;
  }

  /** The Node is another one than it was. */
  nodeChanged(): void {
    this.#wake.fire();
  }

  /** Tells the backend until the signal aborts. For one that takes ranges. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, node } = this.#options;
    while (!signal.aborted) {
      const told = rangesOf(node());
      const telling = this.#isGivenBack() ? Promise.resolve(EVERY_MS) : this.#tell(told, signal);
      this.#telling = telling;
      const waitMs = await telling;
      if (rangesOf(node()).join() === told.join()) await this.#wake.waitAtMost(clock, waitMs, signal);
    }
  }

  #isGivenBack(): boolean {
    const node = this.#options.node();
    return this.#givenBack !== undefined && this.#givenBack.uid === node?.metadata?.uid;
  }

  /**
   * The node is served no longer: its range is free for another one. Idempotent; when the node is served again after
   * all, its next Node's range is told.
   * @returns whether the backend has said so
   */
  async release(signal: AbortSignal): Promise<boolean> {
    const { node } = this.#options;
    this.#givenBack = { uid: node()?.metadata?.uid };
    // It would bind the backend to a Node that is gone.
    await this.#telling;
    return await this.#giveBack(signal);
  }

  async #giveBack(signal: AbortSignal): Promise<boolean> {
    const { provider, logger } = this.#options;
    try {
      await provider.podRanges?.delete({ labels: this.#labels(), signal });
      return true;
    } catch (thrown) {
      // It was another node's all the time.
      if (isProviderError(thrown, "conflict") || isProviderError(thrown, "unsupported")) return true;
      if (!signal.aborted) logger.warn({ err: thrown }, "The range of the node's machines cannot be given back yet");
      return false;
    }
  }

  /** @returns how long that is enough for */
  async #tell(ranges: readonly string[], signal: AbortSignal): Promise<number> {
    const { provider, node } = this.#options;
    if (node() === undefined) return EVERY_MS;
    if (ranges.length === 0) {
      this.#say("False", "NoPodCIDR", NO_RANGE);
      // What an earlier Node of this name had may be another node's by now.
      if (!(await this.#giveBack(signal))) return this.#backoff.next();
      this.#backoff.reset();
      return EVERY_MS;
    }
    try {
      const told = await provider.podRanges!.put({ labels: this.#labels(), ranges: [...ranges] }, { signal });
      if (told.state === "ready") {
        this.#backoff.reset();
        this.#say("True", "PodCIDRInUse", inUse(told, ranges));
        return EVERY_MS;
      }
      this.#say("False", "PodRangeWaits", told.message ?? "the backend does not use the range yet");
    } catch (thrown) {
      if (signal.aborted) return 0;
      const isRefused = REFUSALS.some((code) => isProviderError(thrown, code));
      const message = `machines get no addresses of the Node's podCIDR ${ranges.join(", ")}: ${toError(thrown).message}`;
      // A backend that does not answer goes on as it did.
      if (isRefused || this.#condition?.status !== "True")
        this.#say("False", isRefused ? "PodRangeRefused" : "PodRangeUnknown", message);
    }
    return this.#backoff.next();
  }

  #labels(): Record<string, string> {
    return ownerLabels(this.#options.clusterId, this.#options.nodeName);
  }

  #say(status: Condition["status"], reason: string, message: string): void {
    const before = this.#condition;
    if (before?.status === status && before.reason === reason && before.message === message) return;
    const { warn, logger, onChange } = this.#options;
    this.#condition = { type: TYPE, status, reason, message };
    if (status === "True") logger.info({ why: message }, "The node's machines have addresses of its podCIDR");
    else {
      logger.warn({ reason, why: message }, "The node's machines have no addresses of its podCIDR");
      warn("PodRangeNotReady", message);
    }
    onChange();
  }
}

const NO_RANGE =
  "the Node has no spec.podCIDR, of which its backend gives machines their addresses: no pod begins. Run kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or set engine.network.cidr of the backend to a range";

/** What the cluster has given to the Node. */
function rangesOf(node: Node | undefined): string[] {
  const { podCIDR, podCIDRs = [] } = node?.spec ?? {};
  return podCIDRs.length > 0 ? podCIDRs.slice(0, 2) : [podCIDR ?? []].flat();
}

function inUse({ ranges }: PodRanges, told: readonly string[]): string {
  const unused = told.filter((range) => !ranges.includes(range));
  const rest = unused.length === 0 ? "" : `; not of ${unused.join(", ")}, whose family they have not`;
  return `machines get addresses of ${ranges.join(", ")}${rest}`;
}
