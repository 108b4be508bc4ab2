/**
 * Errors that reach the process because no code caught them. One process serves many nodes, and a provider module is
 * foreign code: a promise that it forgot must not end them all, the less as the same pod would end them again at the
 * next start.
 *
 * - A rejected promise that no code waits for has interrupted nothing: it is logged and counted.
 * - An exception with no function of vmlet's on its stack was thrown in a callback of foreign code, which has
 *   interrupted only that: logged and counted as well.
 * - Any other exception has left something of ours half done. What, nobody knows, so the process stops in order; the
 *   next one finds everything from the API server and the backend.
 */
import { dirname, sep } from "node:path";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Logger } from "./logger.ts";

type FaultKind = "rejection" | "exception";

interface ProcessFaultsOptions {
  clock: Clock;
  logger: Logger;
  /** An exception that vmlet itself did not survive in a known state: the process is to stop. Called once. */
  onFatal: (error: Error) => void;
  /** The folder that vmlet's own code lies in. Default: this one's. */
  ownFolder?: string | undefined;
}

/**
 * Between two lines: what is thrown once is often thrown for each pod, again and again. Each tells how many there were.
 */
const LINE_PAUSE_MS = 10_000;
/** Where the libraries are that are packed into vmlet's package, in its folder (helm/package.ts). */
const PACKED = "packages";

export class ProcessFaults {
  /** Since the process started. */
  readonly counts: Record<FaultKind, number> = { rejection: 0, exception: 0 };
  readonly #options: ProcessFaultsOptions;
  readonly #own: string;
  #nextLineAt = -Infinity;
  #isFatal = false;

  constructor(options: ProcessFaultsOptions) {
    this.#options = options;
    this.#own = (options.ownFolder ?? dirname(import.meta.dirname)) + sep;
  }

  /** Begins to listen; returns the function that ends it. */
  install(): () => void {
    const onRejection = (reason: unknown) => this.rejected(reason);
    const onException = (thrown: unknown) => this.thrown(thrown);
    process.on("unhandledRejection", onRejection);
    process.on("uncaughtException", onException);
    return () => {
      process.off("unhandledRejection", onRejection);
      process.off("uncaughtException", onException);
    };
  }

  rejected(reason: unknown): void {
    this.counts.rejection++;
    this.#log(reason, "Nobody waited for a promise that was rejected; the process goes on");
  }

  thrown(thrown: unknown): void {
    this.counts.exception++;
    if (!this.#isOurs(thrown)) {
      this.#log(thrown, "Nobody caught what a callback of foreign code has thrown; the process goes on");
      return;
    }
    const error = toError(thrown);
    this.#options.logger.error({ err: error }, "Nobody caught an exception of vmlet's own code; the process stops");
    if (this.#isFatal) return;
    this.#isFatal = true;
    this.#options.onFatal(error);
  }

  #log(thrown: unknown, message: string): void {
    const { clock, logger } = this.#options;
    const now = clock.monotonic();
    if (now < this.#nextLineAt) return;
    this.#nextLineAt = now + LINE_PAUSE_MS;
    logger.error({ err: thrown, rejections: this.counts.rejection, exceptions: this.counts.exception }, message);
  }

  /** Whether a function of ours was running. A value without a stack is not ours: we throw nothing but errors. */
  #isOurs(thrown: unknown): boolean {
    if (!(thrown instanceof Error)) return false;
    const frames = (thrown.stack ?? "").split("\n").filter((line) => line.startsWith("    at "));
    const foreign = [`${sep}node_modules${sep}`, `${this.#own}${PACKED}${sep}`];
    return frames.some((frame) => frame.includes(this.#own) && !foreign.some((folder) => frame.includes(folder)));
  }
}
