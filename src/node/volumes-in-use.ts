/**
 * The Node's `volumesInUse`: the persistent volumes that its machines have, or are about to have. It is told before a
 * machine is asked for, and the attach-detach controller detaches nothing that stands in it.
 *
 * Nothing is kept of it: what an earlier agent has told stays until the backend says that none of this node's machines
 * has the volume. Who does not answer keeps it.
 */
import type { Node } from "../kube/wire.ts";
import { isProviderError } from "../provider/errors.ts";
import type { Provider } from "../provider/provider.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { Pulse } from "../util/pulse.ts";
import type { Random } from "../util/random.ts";

interface VolumesInUseOptions {
  provider: Pick<Provider, "volumes">;
  /** By which this node's machines have volumes. */
  reservation: string;
  /** The pod whose machine has this id. */
  podOf: (machine: string) => string | undefined;
  /** What precedes a volume's handle in the Node's status. */
  prefix: string;
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

  /** @returns whether the Node says so already; if not, `onTold` will be called */
  claim(podUid: string, handles: readonly string[]): boolean {
    this.#claimed.set(podUid, handles);
    for (const handle of handles) this.#cleared.delete(handle);
    if (this.#isTold(handles)) return true;
    this.#options.onChange();
    return false;
  }

  /** Whether another pod's machine has it, or is to have it, as far as this process knows. */
  isOthers(podUid: string, handle: string): boolean {
    return [...this.#claimed].some(([uid, handles]) => uid !== podUid && handles.includes(handle));
  }

  /**
   * Whether the backend says that another pod's machine of this node has it: one that an earlier agent has asked for.
   * No, when it does not answer: it refuses the second machine itself.
   */
  async isHeldByOthers(podUid: string, handle: string, signal: AbortSignal): Promise<boolean> {
    const { provider, reservation, podOf, logger } = this.#options;
    try {
      const { attachments = [] } = (await provider.volumes?.get(handle, { signal })) ?? {};
      return attachments.some((each) => each.reservation === reservation && podOf(each.machine) !== podUid);
    } catch (thrown) {
      signal.throwIfAborted();
      logger.debug({ volume: handle, err: thrown }, "The backend does not say which machine has a volume");
      return false;
    }
  }

  /** Its machine, if it has one, is now the backend's to tell of. */
  release(podUid: string): void {
    const handles = this.#claimed.get(podUid) ?? [];
    if (!this.#claimed.delete(podUid) || handles.length === 0) return;
    this.#options.onChange();
  }

  /** What the Node is to say. Entries of other drivers are left alone. */
  wanted(node: Node): string[] {
    const { prefix } = this.#options;
    const written = node.status?.volumesInUse ?? [];
    const known = new Set([...written, ...(this.#told ?? [])].flatMap((name) => this.#handleOf(name) ?? []));
    const claimed = new Set([...this.#claimed.values()].flat());
    const version = node.metadata?.resourceVersion;
    this.#version = version;
    for (const [handle, asOf] of this.#cleared)
      if (!known.has(handle) || asOf !== version) this.#cleared.delete(handle);
    const doubtful = [...known].filter((handle) => !claimed.has(handle) && !this.#cleared.has(handle));
    if (doubtful.some((handle) => !this.#doubtful.includes(handle))) this.#askSoon();
    this.#doubtful = doubtful;
    const others = written.filter((name) => this.#handleOf(name) === undefined);
    const names = [...others, ...[...claimed, ...doubtful].map((handle) => prefix + handle)].toSorted();
    this.#sure = new Set(names.filter((name) => this.#sure.has(name)));
    return names;
  }

  /** True when this is not what was written last, or may not be what the Node says, whatever the cached one does. */
  isNews(names: readonly string[]): boolean {
    const told = this.#told;
    if (told === undefined) return false;
    const isOther = names.length !== told.size || names.some((name) => !told.has(name));
    return isOther || [...this.#claimed.values()].some((handles) => !this.#isTold(handles));
  }

  /** The Node says this now. */
  told(names: readonly string[]): void {
    const before = this.#sure;
    this.#told = this.#sure = new Set(names);
    for (const [podUid, handles] of this.#claimed) {
      const isNew = handles.some((handle) => !before.has(this.#options.prefix + handle));
      if (isNew && this.#isTold(handles)) this.#options.onTold(podUid);
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
    const asked = [...this.#doubtful];
    const version = this.#version;
    for (let at = 0; at < asked.length; at += AT_ONCE) {
      const some = asked.slice(at, at + AT_ONCE);
      const had = await Promise.all(some.map((handle) => this.#isHad(handle, signal)));
      // A pod may have come for it meanwhile.
      const free = some.filter((handle, index) => !had[index] && this.#doubtful.includes(handle));
      for (const handle of free) this.#cleared.set(handle, version);
      if (free.length > 0) this.#options.onChange();
    }
  }

  /** Whether a machine of this node has it, or may have it. @throws when that is not known */
  async #isHad(handle: string, signal: AbortSignal): Promise<boolean> {
    const { provider, reservation } = this.#options;
    if (provider.volumes === undefined) return true;
    try {
      const { attachments } = await provider.volumes.get(handle, { signal });
      return attachments.some((each) => each.reservation === reservation);
    } catch (thrown) {
      if (isProviderError(thrown, "not_found")) return false;
      throw thrown;
    }
  }

  #askSoon(): void {
    this.#isAskDue = true;
    this.#wake.fire();
  }

  #isTold(handles: readonly string[]): boolean {
    return handles.every((handle) => this.#sure.has(this.#options.prefix + handle));
  }

  #handleOf(name: string): string | undefined {
    const { prefix } = this.#options;
    return name.startsWith(prefix) ? name.slice(prefix.length) : undefined;
  }
}
