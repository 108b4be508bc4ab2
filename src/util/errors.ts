/**
 * The one base class of every error that vmlet raises on purpose.
 *
 * `code` is stable and is what callers branch on, never the message. `retryable` and `retryAfterMs` are all that a
 * retry decision may read. The message is for a person: what failed, for which object, what happens next.
 */
export abstract class VmletError extends Error {
  abstract readonly code: string;
  readonly retryable: boolean;
  /** Earliest time to try again, in milliseconds from now, when the other side named one. */
  readonly retryAfterMs: number | undefined;

  constructor(
    message: string,
    options: { cause?: unknown; retryable?: boolean | undefined; retryAfterMs?: number | undefined } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.retryable = options.retryable ?? false;
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** Turns whatever was thrown into an Error, so that a message can be read from it. */
export function toError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}
