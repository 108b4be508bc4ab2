/**
 * The Node's `volumesInUse`: the persistent volumes that its machines have, or are about to have, vmlet's own and those
 * of CSI drivers of others, by the names that they have there. It is told before a machine is asked for, and the
 * attach-detach controller detaches nothing that stands in it.
 *
 * Nothing is kept of it: what an earlier agent has told stays until the backend says that none of this node's machines
 * has the volume: of its own volumes in so many words, of those of others by the list of its machines. Who does not
 * answer keeps it.
 */
import type { Node } from "../kube/wire.ts";
import { CSI_DRIVER, csiVolumeName, csiVolumeOf } from "../provider/csi-names.ts";
import { isProviderError } from "../provider/errors.ts";
import type { MachineList, Provider } from "../provider/provider.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { Pulse } from "../util/pulse.ts";
import type { Random } from "../util/random.ts";

interface VolumesInUseOptions {
  provider: Pick<Provider, "volumes">;
  /** All machines of this node, as the backend says now. */
  machines: (signal: AbortSignal) => Promise<Pick<MachineList, "items" | "unknown">>;
  /** By which this node's machines have volumes of the backend's own. */
  reservation: string;
  /** The pod whose machine has this id. */
  podOf: (machine: string) => string | undefined;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** The Node's status is to be written. */
  onChange: () => void;
  /** The Node says of all of this pod's volumes that they are in use. */
  onTold: (podUid: string) => void;
}

/** How often the backend is asked about volumes of which no pod is known here. */
const ASK_MS = { initialMs: 1_000, maxMs: 300_000 };
/** This many at once. */
const AT_ONCE = 8;

export class VolumesInUse {
  readonly #options: VolumesInUseOptions;
  /** By pod: what its machine has, or is to have. */
  readonly #claimed = new Map<string, readonly string[]>();
  /** What this process has written last; undefined before. */
  #told: ReadonlySet<string> | undefined;
  /** What of this no write since has been to leave out: of that one, it is not known whether and when it arrives. */
  #sure: ReadonlySet<string> = new Set();
  /** What the Node says, or said, and no pod is known for. */
  #doubtful: readonly string[] = [];
  /** The Node's version that was looked at last. */
  #version: string | undefined;
  /**
   * Of those, the ones that no machine has, and for which version of the Node that was asked: in another one they may
   * stand again, for another process has told them, and a machine is on its way.
   */
  readonly #cleared = new Map<string, string | undefined>();
  readonly #wake = new Pulse();
  #isAskDue = false;

  constructor(options: VolumesInUseOptions) {
    this.#options = options;
  }

  /**
   * @param names the Node is told of those of CSI drivers alone, as a kubelet tells of what is attached
   * @returns whether the Node says so already; if not, `onTold` will be called
   */
  claim(podUid: string, names: readonly string[]): boolean {
    this.#claimed.set(podUid, names);
    for (const name of names) this.#cleared.delete(name);
    if (this.#isTold(names)) return true;
    this.#options.onChange();
    return false;
  }

  /** Whether another pod's machine has it, or is to have it, as far as this process knows. */
  isOthers(podUid: string, name: string): boolean {
    return [...this.#claimed].some(([uid, names]) => uid !== podUid && names.includes(name));
  }

  /**
   * Whether the backend says that another pod's machine of this node has it: one that an earlier agent has asked for.
   * No, when it does not answer: it refuses the second machine itself.
   */
  async isHeldByOthers(podUid: string, name: string, signal: AbortSignal): Promise<boolean> {
    const { podOf, logger } = this.#options;
    const { driver, handle } = csiVolumeOf(name) ?? {};
    try {
      const holders = driver === CSI_DRIVER ? await this.#holders(handle!, signal) : await this.#othersOf(name, signal);
      return holders.some((machine) => podOf(machine) !== podUid);
    } catch (thrown) {
      signal.throwIfAborted();
      logger.debug({ volume: name, err: thrown }, "The backend does not say which machine has a volume");
      return false;
    }
  }

  /** Machines of this node that have a volume of the backend's own. */
  async #holders(handle: string, signal: AbortSignal): Promise<string[]> {
    const { provider, reservation } = this.#options;
    const { attachments = [] } = (await provider.volumes?.get(handle, { signal })) ?? {};
    return attachments.flatMap((each) => (each.reservation === reservation ? each.machine : []));
  }

  async #othersOf(name: string, signal: AbortSignal): Promise<string[]> {
    const { items } = await this.#options.machines(signal);
    return items.flatMap((machine) => (volumesOf(machine).includes(name) ? machine.id : []));
  }

  /** Its machine, if it has one, is now the backend's to tell of. */
  release(podUid: string): void {
    const names = this.#claimed.get(podUid) ?? [];
    if (!this.#claimed.delete(podUid) || names.length === 0) return;
    this.#options.onChange();
  }

  /** What the Node is to say. Entries of what is no CSI driver's are left alone. */
  wanted(node: Node): string[] {
    const written = node.status?.volumesInUse ?? [];
    const known = new Set([...written, ...(this.#told ?? [])].filter(isOurs));
    const claimed = new Set([...this.#claimed.values()].flat().filter(isOurs));
    const version = node.metadata?.resourceVersion;
    this.#version = version;
    for (const [name, asOf] of this.#cleared) if (!known.has(name) || asOf !== version) this.#cleared.delete(name);
    const doubtful = [...known].filter((name) => !claimed.has(name) && !this.#cleared.has(name));
    if (doubtful.some((name) => !this.#doubtful.includes(name))) this.#askSoon();
    this.#doubtful = doubtful;
    const others = written.filter((name) => !isOurs(name));
    const names = [...others, ...claimed, ...doubtful].toSorted();
    this.#sure = new Set(names.filter((name) => this.#sure.has(name)));
    return names;
  }

  /** True when this is not what was written last, or may not be what the Node says, whatever the cached one does. */
  isNews(names: readonly string[]): boolean {
    const told = this.#told;
    if (told === undefined) return false;
    const isOther = names.length !== told.size || names.some((name) => !told.has(name));
    return isOther || [...this.#claimed.values()].some((claimed) => !this.#isTold(claimed));
  }

  /** The Node says this now. */
  told(names: readonly string[]): void {
    const before = this.#sure;
    this.#told = this.#sure = new Set(names);
    for (const [podUid, claimed] of this.#claimed) {
      const isNew = claimed.some((name) => !before.has(name));
      if (isNew && this.#isTold(claimed)) this.#options.onTold(podUid);
    }
  }

  /** Asks the backend what is not in use any more, until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, random, logger } = this.#options;
    const backoff = new Backoff({ ...ASK_MS, jitter: "up", clock, random });
    while (!signal.aborted) {
      if (this.#isAskDue) backoff.reset();
      this.#isAskDue = false;
      try {
        await this.#ask(signal);
      } catch (thrown) {
        if (signal.aborted) return;
        logger.debug({ err: thrown }, "The backend does not say which volumes are in use");
      }
      if (this.#isAskDue) continue;
      const waitMs = this.#doubtful.length === 0 ? ASK_MS.maxMs : backoff.next();
      await this.#wake.waitAtMost(clock, waitMs, signal);
    }
  }

  async #ask(signal: AbortSignal): Promise<void> {
    const asked = this.#doubtful.map((name) => ({ name, ...csiVolumeOf(name)! }));
    const version = this.#version;
    const own = asked.filter(({ driver }) => driver === CSI_DRIVER);
    const others = asked.filter(({ driver }) => driver !== CSI_DRIVER).map(({ name }) => name);
    // One of which nothing is said keeps no volume of another kind.
    const outcomes = await Promise.allSettled([
      this.#askOwn(own, version, signal),
      this.#askOthers(others, version, signal),
    ]);
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  }

  async #askOwn(
    asked: readonly { name: string; handle: string }[],
    version: string | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    for (let at = 0; at < asked.length; at += AT_ONCE) {
      const some = asked.slice(at, at + AT_ONCE);
      const had = await Promise.all(some.map(({ handle }) => this.#isHad(handle, signal)));
      this.#clear(
        some.flatMap(({ name }, index) => (had[index] ? [] : name)),
        version,
      );
    }
  }

  /** Volumes of drivers of others: a machine tells of those that it may have until they are taken back. */
  async #askOthers(asked: readonly string[], version: string | undefined, signal: AbortSignal): Promise<void> {
    if (asked.length === 0) return;
    const { items, unknown = [] } = await this.#options.machines(signal);
    if (unknown.length > 0)
      throw new Error(`the backend says nothing of ${unknown.length} machines that can be believed`);
    const had = new Set(items.flatMap(volumesOf));
    this.#clear(
      asked.filter((name) => !had.has(name)),
      version,
    );
  }

  /** @param free had by no machine, as of this version of the Node */
  #clear(free: readonly string[], version: string | undefined): void {
    // A pod may have come for it meanwhile.
    const cleared = free.filter((name) => this.#doubtful.includes(name));
    for (const name of cleared) this.#cleared.set(name, version);
    if (cleared.length > 0) this.#options.onChange();
  }

  /** Whether a machine of this node has it, or may have it. @throws when that is not known */
  async #isHad(handle: string, signal: AbortSignal): Promise<boolean> {
    if (this.#options.provider.volumes === undefined) return true;
    try {
      return (await this.#holders(handle, signal)).length > 0;
    } catch (thrown) {
      if (isProviderError(thrown, "not_found")) return false;
      throw thrown;
    }
  }

  #askSoon(): void {
    this.#isAskDue = true;
    this.#wake.fire();
  }

  #isTold(names: readonly string[]): boolean {
    return names.every((name) => !isOurs(name) || this.#sure.has(name));
  }
}

const isOurs = (name: string): boolean => csiVolumeOf(name) !== undefined;

/** What a machine has of drivers of others, or may have. */
function volumesOf({ csi_volumes = [] }: MachineList["items"][number]): string[] {
  return csi_volumes.map(({ driver, volume }) => csiVolumeName(driver, volume));
}
