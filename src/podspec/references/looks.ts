/** Pods that wait for something of the API server's which is never watched: when it is looked at again. */
import { Backoff } from "../../queue/backoff.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";

interface LooksOptions {
  clock: Clock;
  random: Random;
  /** The pod with this UID is to be looked at again. */
  onChange: (podUid: string) => void;
}

const LOOK_MS = { initialMs: 500, maxMs: 30_000 };
/** In the first looks a refusal may be for no other reason than that the authorizer does not know of the pod yet. */
const EARLY_LOOKS = 4;

interface Waiting {
  backoff: Backoff;
  looks: number;
  cancel: () => void;
  stage: string;
}

export class Looks {
  readonly #options: LooksOptions;
  readonly #waiting = new Map<string, Waiting>();

  constructor(options: LooksOptions) {
    this.#options = options;
  }

  /** @param stage what it waits for; when that is another than before, the next thing may come as soon */
  again(uid: string, stage = ""): void {
    const { clock, random, onChange } = this.#options;
    const known = this.#waiting.get(uid);
    known?.cancel();
    const backoff = known?.backoff ?? new Backoff({ ...LOOK_MS, jitter: "up", clock, random });
    if (known !== undefined && known.stage !== stage) backoff.reset();
    const cancel = clock.after(backoff.next(), () => onChange(uid));
    this.#waiting.set(uid, { backoff, looks: (known?.looks ?? 0) + 1, cancel, stage });
  }

  /** Nothing is wrong yet when it is refused. */
  isEarly(uid: string): boolean {
    return (this.#waiting.get(uid)?.looks ?? 0) < EARLY_LOOKS;
  }

  /** What is waited for at this stage may have come. */
  wake(stage: string): void {
    for (const [uid, waiting] of this.#waiting) if (waiting.stage === stage) this.#options.onChange(uid);
  }

  forget(uid: string): void {
    this.#waiting.get(uid)?.cancel();
    this.#waiting.delete(uid);
  }

  close(): void {
    for (const uid of [...this.#waiting.keys()]) this.forget(uid);
  }
}
