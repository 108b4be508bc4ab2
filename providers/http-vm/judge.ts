/**
 * What is believed of a reply: of each machine, event and sample for itself. Whatever is invalid is counted, and spoils
 * nothing else.
 */
import {
  type Clock,
  isSubset,
  type Machine,
  type MachineEvent,
  type MachineStats,
  type PersistentVolume,
  ProviderError,
  type UnknownMachine,
  type UnknownMachineEvent,
  type UnknownVolume,
} from "../../src/provider/kit/index.ts";
import { violation } from "../../src/provider/contract/document.ts";
import { asProviderError, type Call } from "./call.ts";
import { InvalidReplyError, type InvalidReason } from "./invalid-reply.ts";
import { isRecord, tryParse, type Parsed } from "./json.ts";
import { upgrade } from "./last-release.ts";
import { believe, plainText, tameMachine, tameStats, tameVolume, whatIsSure, type MachineRules } from "./validate.ts";

const TOO_LARGE = new InvalidReplyError("size", "the event is too large");

/** One machine of a reply: described so that it can be believed, or not. */
export type Judged = { machine: Machine; unknown?: undefined } | { machine?: undefined; unknown: UnknownMachine };

/** The same of a volume. */
export type JudgedVolume =
  | { volume: PersistentVolume; unknown?: undefined }
  | { volume?: undefined; unknown: UnknownVolume };

export class Judge {
  readonly #clock: Clock;
  readonly #allowLoopback: boolean;
  readonly #onInvalid: (reason: InvalidReason) => void;
  readonly #onMachine: (machine: Machine) => void;

  /**
   * @param options.onInvalid told of each thing that is not believed, or not as it stands
   * @param options.onMachine told of each machine that is
   */
  constructor(options: {
    clock: Clock;
    allowLoopback: boolean;
    onInvalid: (reason: InvalidReason) => void;
    onMachine?: ((machine: Machine) => void) | undefined;
  }) {
    this.#clock = options.clock;
    this.#allowLoopback = options.allowLoopback;
    this.#onInvalid = options.onInvalid;
    this.#onMachine = options.onMachine ?? (() => {});
  }

  /**
   * An item, counted if it is invalid. Undefined for one that is not a machine with these labels, or not known to be
   * one.
   */
  machine({ value, fault }: Parsed, labels: Record<string, string>): Judged | undefined {
    try {
      if (fault !== undefined) throw fault;
      upgrade("Machine", value);
      const machine = tameMachine(believe("Machine", value), this.#rules());
      if (!this.#carries(machine.labels, labels)) return undefined;
      this.#onMachine(machine);
      return { machine };
    } catch (thrown) {
      if (!(thrown instanceof InvalidReplyError)) throw thrown;
      this.#onInvalid(thrown.reason);
      const isAmbiguous = thrown.reason === "duplicate_key" && isRecord(value);
      const unknown = whatIsSure(isAmbiguous ? { id: value["id"] } : value, thrown.message);
      if (unknown === undefined) return undefined;
      return isRecord(value) && contradicts(value["labels"], labels) ? undefined : { unknown };
    }
  }

  /**
   * Undefined for an event that is not about a machine with these labels, or not known to be: the next list has what it
   * said.
   */
  event(
    data: string | undefined,
    last: number,
    labels: Record<string, string>,
  ): MachineEvent | UnknownMachineEvent | undefined {
    const { value, fault } = data === undefined ? { fault: TOO_LARGE } : tryParse(data);
    if (!isRecord(value)) {
      this.#onInvalid(fault?.reason ?? "schema");
      return undefined;
    }
    const { revision, machine } = value;
    const wrong = fault ?? revisionFault(revision, last);
    const judged = this.machine({ value: machine, fault: wrong }, labels);
    return judged && { revision: wrong === undefined ? (revision as number) : last, ...judged };
  }

  /** As `machine`. */
  volume({ value, fault }: Parsed, labels: Record<string, string>): JudgedVolume | undefined {
    try {
      if (fault !== undefined) throw fault;
      const volume = tameVolume(believe("PersistentVolume", value), this.#rules());
      return this.#carries(volume.labels, labels) ? { volume } : undefined;
    } catch (thrown) {
      if (!(thrown instanceof InvalidReplyError)) throw thrown;
      this.#onInvalid(thrown.reason);
      const unknown = whatIsSure(isRecord(value) ? { id: value["id"] } : value, thrown.message);
      if (unknown === undefined || (isRecord(value) && contradicts(value["labels"], labels))) return undefined;
      return { unknown: { id: unknown.id, reason: unknown.reason } };
    }
  }

  /** A sample, or undefined for one that is invalid, which is counted. */
  sample({ value, fault }: Parsed): MachineStats | undefined {
    try {
      if (fault !== undefined) throw fault;
      return tameStats(believe("MachineStats", value), this.#rules());
    } catch (thrown) {
      if (!(thrown instanceof InvalidReplyError)) throw thrown;
      this.#onInvalid(thrown.reason);
      return undefined;
    }
  }

  #rules(): MachineRules {
    return {
      now: this.#clock.now(),
      allowLoopback: this.#allowLoopback,
      onCorrected: this.#onInvalid,
    };
  }

  /** Another tenant's machine must never be touched; leaving it out does that, and the count tells that it came. */
  #carries(own: Record<string, string>, labels: Record<string, string>): boolean {
    const carries = isSubset(labels, own);
    if (!carries) this.#onInvalid("labels");
    return carries;
  }

  /** What `work` makes of a reply. @throws ProviderError unavailable when that is invalid as a whole, and counts it */
  orRefuse<T>(work: () => T): T {
    try {
      return work();
    } catch (thrown) {
      if (thrown instanceof InvalidReplyError) throw this.refuse(thrown.reason, thrown.message);
      throw thrown;
    }
  }

  /** The error for a reply that is invalid as a whole; counts it. */
  refuse(reason: InvalidReason, message: string): ProviderError {
    this.#onInvalid(reason);
    return new ProviderError("unavailable", `invalid reply: ${plainText(message, 1024)}`);
  }

  /** What broke a reply off, as the error that says that nothing is known. */
  failure(thrown: unknown, call: Call): ProviderError {
    if (thrown instanceof InvalidReplyError) return this.refuse(thrown.reason, thrown.message);
    return asProviderError(thrown, call);
  }
}

/** Those of one stream never fall. */
function revisionFault(revision: unknown, last: number): InvalidReplyError | undefined {
  const found = violation("reply", "Count", revision);
  if (found !== undefined) return new InvalidReplyError("schema", `MachineEvent.revision ${found.message}`);
  if ((revision as number) >= last) return undefined;
  return new InvalidReplyError("revision", `revision ${String(revision)} came after ${last}`);
}

/** True for labels that are another owner's, however wrong they are otherwise. */
function contradicts(own: unknown, labels: Record<string, string>): boolean {
  if (!isRecord(own)) return false;
  return Object.entries(labels).some(
    ([key, value]) => Object.hasOwn(own, key) && typeof own[key] === "string" && own[key] !== value,
  );
}
