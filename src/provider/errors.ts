/**
 * The errors of provider calls. Their codes are the contract: the agent decides by the code alone what becomes of a
 * pod.
 */
import { VmletError } from "../util/errors.ts";
import type { Schemas } from "./contract/document.ts";
import type { UnknownMachine } from "./machine.ts";

/** Why a provider call failed. The code decides what the agent does, so a provider must pick it with care. */
export type ProviderErrorCode = Schemas["Code"];

/**
 * What each code says, what the agent does then, and what a backend's author or operator does about one that should
 * not be. ERRORS.md is written from this (`npm run docs`).
 * @internal
 */
export const PROVIDER_CODES: Readonly<Record<ProviderErrorCode, { meaning: string; reaction: string; cure: string }>> =
  {
    not_found: {
      meaning: "The backend itself says that there is no such machine and no tombstone.",
      reaction: "It is the only proof of absence: what is to be deleted counts as gone.",
      cure: "None where it is true. Answer it from the record of machines only; while that cannot be read, say `unavailable`.",
    },
    invalid: {
      meaning: "The spec can never work.",
      reaction: "The pod fails.",
      cure: "The pod's author changes the field that `error.field` names. Say `quota` or `unavailable` for what may work later.",
    },
    unsupported: {
      meaning: "A capability is missing.",
      reaction: "The pod fails, or a stream answers 501.",
      cure: "Place the pod on another node, or have the backend learn the field and name the capability in its info.",
    },
    conflict: {
      meaning: "The id exists with another spec, or the machine's state forbids the call.",
      reaction: "The machine is looked at again, then the call is tried again or something else is done.",
      cure: "Now and then, none. When it stays, compare specs by what they mean, not by bytes, and look for a second agent with this node's name.",
    },
    gone: {
      meaning: "The id was used and deleted (create), or the revision is too old (watch).",
      reaction: "The pod's machine counts as lost, or everything is listed again.",
      cure: "Keep tombstones for as long as the contract says, and events for longer than a client needs to come back.",
    },
    in_use: {
      meaning: "A machine has the volume, or may still write to it.",
      reaction: "The pod stays Pending and is tried again.",
      cure: "Wait for that machine's end, or delete its pod. If it is gone already, have the backend free the disk when a machine ends.",
    },
    out_of_zone: {
      meaning: "The volume, or what was asked of it, is where this machine or backend is not.",
      reaction: "The pod stays Pending and is tried again.",
      cure: "Place the pod on a node of the volume's zone; a StorageClass with `WaitForFirstConsumer` makes new volumes there.",
    },
    quota: {
      meaning: "There is no capacity now.",
      reaction: "The pod stays Pending and is tried again.",
      cure: "Raise the backend's limit, or give the node no more `capacity` than the backend has, so that pods are scheduled elsewhere.",
    },
    rate_limited: {
      meaning: "Slow down.",
      reaction: "Tried again after `retryAfterMs`.",
      cure: "Allow the agent more requests at the backend, or lower the node's rates in the agent's file. Always say `retry_after_ms`.",
    },
    unauthorized: {
      meaning: "The agent's credentials are wrong.",
      reaction: "The node says so; pods stay as they are.",
      cure: "Give the agent a token or certificate that the backend takes (`vmlet check` tries it); a new `tokenFile` needs no restart.",
    },
    unavailable: {
      meaning: 'Anything else, above all "I do not know": time-outs, 5xx, malformed replies.',
      reaction: "Nothing is concluded from it; tried again.",
      cure: "Look for the request id in the backend's log. With a malformed reply, `vmlet conformance` finds which rule is broken.",
    },
  };

const RETRYABLE: readonly ProviderErrorCode[] = [
  "conflict",
  "in_use",
  "out_of_zone",
  "quota",
  "rate_limited",
  "unauthorized",
  "unavailable",
];

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

/** What a delete with `ifAbsent` answers where there is a machine. */
export function machineIsThere(id: string): ProviderError {
  return new ProviderError("conflict", `machine ${id} is there, and only an absent one was to be buried`);
}
