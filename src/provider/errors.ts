/**
 * The errors of provider calls. Their codes are the contract: the agent decides by the code alone what becomes of a
 * pod.
 */
import { VmletError } from "../util/errors.ts";
import type { Schemas } from "./contract/document.ts";
import type { UnknownMachine } from "./machine.ts";

/**
 * Why a provider call failed. The code decides what the agent does, so a provider must pick it with care:
 *
 * - `not_found`     the backend itself says that there is no such machine and no tombstone: the only proof of absence
 * - `invalid`       the spec can never work; the pod fails
 * - `unsupported`   a capability is missing; the pod fails, or a stream answers 501
 * - `conflict`      the id exists with another spec, or the machine's state forbids the call
 * - `gone`          the id was used and deleted (create), or the revision is too old (watch)
 * - `quota`         no capacity now; the pod stays Pending and is tried again
 * - `rate_limited`  slow down; see `retryAfterMs`
 * - `unauthorized`  credentials are wrong; the node says so, pods stay as they are
 * - `unavailable`   anything else, above all "I do not know": time-outs, 5xx, malformed replies
 */
export type ProviderErrorCode = Schemas["Code"];

const RETRYABLE: readonly ProviderErrorCode[] = ["conflict", "quota", "rate_limited", "unauthorized", "unavailable"];

/** Marks the errors of every copy of this file: a provider module may bring its own installation of the kit. */
const BRAND = Symbol.for("vmlet.dev/ProviderError");

/** What a provider's calls throw. `instanceof` holds for the errors of every copy of the kit, not only of this one. */
export class ProviderError extends VmletError {
  readonly [BRAND] = true;
  readonly code: ProviderErrorCode;
  /** The spec's field at fault, as a dotted path, for `invalid` and `unsupported`. */
  readonly field: string | undefined;
  readonly requestId: string | undefined;
  /** Set when the backend answered with a machine that cannot be believed: the parts of it that were valid. */
  readonly unknownMachine: UnknownMachine | undefined;

  constructor(
    code: ProviderErrorCode,
    message: string,
    options: {
      cause?: unknown;
      retryAfterMs?: number | undefined;
      field?: string | undefined;
      requestId?: string | undefined;
      unknownMachine?: UnknownMachine | undefined;
    } = {},
  ) {
    super(message, { cause: options.cause, retryable: RETRYABLE.includes(code), retryAfterMs: options.retryAfterMs });
    this.code = code;
    this.field = options.field;
    this.requestId = options.requestId;
    this.unknownMachine = options.unknownMachine;
  }

  static override [Symbol.hasInstance](value: unknown): value is ProviderError {
    return typeof value === "object" && value !== null && BRAND in value;
  }
}

export function isProviderError(thrown: unknown, code?: ProviderErrorCode): thrown is ProviderError {
  return thrown instanceof ProviderError && (code === undefined || thrown.code === code);
}

/** Says that there certainly is no such machine. */
export function noSuchMachine(id: string): ProviderError {
  return new ProviderError("not_found", `there is no machine ${id}`);
}

export function noSuchContainer(machine: string, name: string): ProviderError {
  return new ProviderError("not_found", `machine ${machine} has no container "${name}"`, { field: "container" });
}
