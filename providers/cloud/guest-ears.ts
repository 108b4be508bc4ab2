/**
 * Hears from guests when something changes in them, so that nobody has to look often to tell it soon. What they say is
 * only a reason to look: a guest that tells nothing, or nonsense, costs a little time.
 */
import { type Clock, linkAbort, pause, type Provider } from "../../src/provider/kit/index.ts";

interface GuestEarsOptions {
  /** Something may have changed. Never called again for a machine before it has resolved. */
  readonly onChange: (id: string) => Promise<void>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** Between two attempts to listen to one guest. */
const RETRY_MS = 5_000;

interface Ear {
  readonly guest: Provider;
  readonly stop: AbortController;
}

export class GuestEars {
  readonly #options: GuestEarsOptions;
  readonly #ears = new Map<string, Ear>();

  constructor(options: GuestEarsOptions) {
    this.#options = options;
  }

  /** Listens to this guest, until another is that of the machine, or none. */
  listen(id: string, guest: Provider): void {
    if (guest.watchPods === undefined || this.#ears.get(id)?.guest === guest) return;
    this.forget(id);
    const ear = { guest, stop: new AbortController() };
    this.#ears.set(id, ear);
    void this.#run(id, ear);
  }

  forget(id: string): void {
    this.#ears.get(id)?.stop.abort();
    this.#ears.delete(id);
  }

  async #run(id: string, { guest, stop }: Ear): Promise<void> {
    const { onChange, clock } = this.#options;
    using linked = linkAbort(this.#options.signal, stop.signal);
    const { signal } = linked;
    let isNews = false;
    let telling: Promise<void> | undefined;
    const tell = async () => {
      while (isNews && !signal.aborted) {
        isNews = false;
        await onChange(id);
      }
      telling = undefined;
    };
    const change = () => {
      isNews = true;
      telling ??= tell();
    };
    while (!signal.aborted) {
      try {
        const { revision } = await guest.getPods({ labels: {}, signal });
        // What came before is not told again.
        change();
        for await (const _ of guest.watchPods!(revision, { labels: {}, signal })) change();
      } catch {
        // The next look at the machine finds what is wrong with its guest.
      }
      await pause(clock, RETRY_MS, signal);
    }
  }
}
