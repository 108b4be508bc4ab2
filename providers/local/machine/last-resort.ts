/** The end of the wait for a machine's end: what is done to each of its containers may hang, for ever. */
import type { Clock, Logger } from "../../../src/provider/kit/index.ts";
import type { SandboxLoss } from "../engine.ts";
import type { Ending } from "./record.ts";

/** From a forced end, and from the end of the grace, until what does not end by itself is ended with its sandbox. */
const FORCED_END_MS = 5_000;
const END_MS = 60_000;
const LOSS: SandboxLoss = { reason: "SandboxLost", message: "its containers did not end when they were killed" };

export class LastResort {
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #giveUp: (loss: SandboxLoss) => void;
  #cancel: () => void = () => {};

  /** @param giveUp gives the sandbox up, with all in it. When it throws, it is called again */
  constructor(clock: Clock, logger: Logger, giveUp: (loss: SandboxLoss) => void) {
    this.#clock = clock;
    this.#logger = logger;
    this.#giveUp = giveUp;
  }

  /** Once, when the end has taken too long. @param graceMs that are left; with force they do not count */
  arm({ force }: Ending, graceMs: number): void {
    this.#after(force ? FORCED_END_MS : Math.max(0, graceMs) + END_MS);
  }

  cancel(): void {
    this.#cancel();
  }

  #after(ms: number): void {
    this.#cancel();
    this.#cancel = this.#clock.after(ms, () => {
      try {
        this.#giveUp(LOSS);
      } catch (thrown) {
        this.#logger.warn({ err: thrown }, "Cannot find out yet how containers ended that are given up");
        this.#after(FORCED_END_MS);
      }
    });
  }
}
