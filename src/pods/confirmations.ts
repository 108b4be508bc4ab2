/**
 * What the API server itself says of pods that are about to get machines, for many of them at once. A read for each is
 * half of all that a pod costs it; a list of the node's pods, of which no more than metadata is sent, costs as much as
 * a few dozen reads, is as fresh as each of them, and confirms whatever it names.
 *
 * It confirms for a second, counted from when it was asked for: a create that follows a read of its own may take as
 * long to arrive, and tombstones are there for those that take longer.
 */
import type { Kube } from "../kube/kube.ts";
import { isDeleting } from "../kube/pod.ts";
import { podsPath } from "../kube/paths.ts";
import type { Pod } from "../kube/wire.ts";
import type { Clock } from "../util/clock.ts";

/** How many pods this node has, and how many of them wait to be looked at. */
export interface Crowd {
  pods: number;
  waiting: number;
}

interface ConfirmationsOptions {
  kube: Kube;
  nodeName: string;
  clock: Clock;
  crowd: () => Crowd;
  /** Fewer that wait are read one by one. Default 32. */
  from?: number | undefined;
}

/** How long what a list said is good for. */
const CONFIRMS_MS = 1_000;
const CROWD = 32;
/** As many as may get their machines while a list is good. */
const SERVED_BY_ONE = 400;
/** An item of a list costs about a twentieth of a read; it pays twice over. */
const ITEMS_PER_READ = 8;
/** A list that does not come in is not waited for: each pod can still be read. */
const LIST_TIMEOUT_MS = 2_000;
/** Where lists fail, or take too long to be of use, they are not asked for. */
const PAUSE_MS = 10_000;

export class PodConfirmations {
  readonly #options: ConfirmationsOptions;
  #newest: { askedAt: number; versions: ReadonlyMap<string, string> } | undefined;
  #underWay: Promise<void> | undefined;
  #notBefore = 0;

  constructor(options: ConfirmationsOptions) {
    this.#options = options;
  }

  /**
   * Whether the API server has said within the last second that exactly this copy of the pod is its newest. False says
   * nothing: the pod has to be read.
   *
   * @throws the signal's reason
   */
  async confirms(pod: Pod, signal: AbortSignal): Promise<boolean> {
    if (isDeleting(pod)) return false;
    if (!this.#isFresh() && this.#paysOff()) {
      this.#underWay ??= this.#list(signal).finally(() => (this.#underWay = undefined));
      await this.#underWay;
      signal.throwIfAborted();
    }
    const { uid = "", resourceVersion } = pod.metadata ?? {};
    return this.#isFresh() && resourceVersion !== undefined && this.#newest!.versions.get(uid) === resourceVersion;
  }

  #isFresh(): boolean {
    return this.#newest !== undefined && this.#options.clock.monotonic() - this.#newest.askedAt < CONFIRMS_MS;
  }

  #paysOff(): boolean {
    const { crowd, clock, from = CROWD } = this.#options;
    const { pods, waiting } = crowd();
    if (waiting < from || clock.monotonic() < this.#notBefore) return false;
    return pods <= ITEMS_PER_READ * Math.min(waiting, SERVED_BY_ONE);
  }

  /** Never rejects: what cannot be listed is read. */
  async #list(signal: AbortSignal): Promise<void> {
    const { kube, nodeName, clock } = this.#options;
    const askedAt = clock.monotonic();
    this.#newest = undefined;
    try {
      // Without a resourceVersion no cache may answer.
      const { items } = await kube.request<{ items?: Pod[] }>({
        method: "GET",
        path: podsPath(),
        query: { fieldSelector: `spec.nodeName=${nodeName}` },
        signal,
        metadataOnly: true,
        timeoutMs: LIST_TIMEOUT_MS,
        // What is left out is not confirmed.
        list: { onSkipped: () => undefined },
      });
      const versions = new Map<string, string>();
      for (const { metadata } of items ?? [])
        if (metadata?.deletionTimestamp === undefined) versions.set(metadata!.uid!, metadata!.resourceVersion!);
      this.#newest = { askedAt, versions };
      if (clock.monotonic() - askedAt > CONFIRMS_MS / 2) this.#notBefore = clock.monotonic() + PAUSE_MS;
    } catch {
      this.#notBefore = clock.monotonic() + PAUSE_MS;
    }
  }
}
