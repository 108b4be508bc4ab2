/**
 * One download per repository and manifest, however many wait for it; it is given up when the last of them is. It
 * begins in the place that any of their tenants gets first: no caller waits for the turn of an earlier one.
 */
import { SharedPlaces, unlessAborted } from "../../../src/provider/kit/index.ts";
import type { WantedImage } from "./download.ts";
import { repository } from "./reference.ts";

interface SharedPull<Got> extends PromiseWithResolvers<Got> {
  /** Aborts when the download has a place: the others need none any more. */
  begun: AbortController;
  /** Aborts the download. */
  abort: AbortController;
  waiters: number;
}

function newPull<Got>(): SharedPull<Got> {
  const outcome = Promise.withResolvers<Got>();
  outcome.promise.catch(() => undefined); // each waiter sees the failure; there may be none left
  return { ...outcome, begun: new AbortController(), abort: new AbortController(), waiters: 0 };
}

export class SharedPulls<Got> {
  readonly #download: (wanted: WantedImage, signal: AbortSignal) => Promise<Got>;
  readonly #places: SharedPlaces;
  readonly #pulls = new Map<string, SharedPull<Got>>();

  /** @param parallel downloads of one tenant at a time; of all, twice as many */
  constructor(download: (wanted: WantedImage, signal: AbortSignal) => Promise<Got>, parallel: number) {
    this.#download = download;
    this.#places = new SharedPlaces(parallel);
  }

  async pull(wanted: WantedImage, { tenant, signal }: { tenant: string; signal: AbortSignal }): Promise<Got> {
    const key = `${repository(wanted.reference)}@${wanted.resolved.manifestDigest}`;
    const known = this.#pulls.get(key);
    const pull = known === undefined || known.abort.signal.aborted ? newPull<Got>() : known;
    this.#pulls.set(key, pull);
    pull.waiters++;
    try {
      const inPlace = this.#places.run(
        tenant,
        async () => {
          if (pull.begun.signal.aborted) return;
          pull.begun.abort();
          await this.#download(wanted, pull.abort.signal).then(pull.resolve, pull.reject);
        },
        AbortSignal.any([signal, pull.begun.signal]),
      );
      inPlace.catch(() => undefined); // called off: another's has begun, or this one waits no longer
      return await unlessAborted(pull.promise, signal);
    } finally {
      pull.waiters--;
      if (pull.waiters === 0) pull.abort.abort();
      if (pull.waiters === 0 && this.#pulls.get(key) === pull) this.#pulls.delete(key);
    }
  }
}
