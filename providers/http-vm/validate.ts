/**
 * What a backend sends is not trusted: it is checked against the document, stripped of what the document does not name,
 * and its texts are made harmless before they reach a status or an event (reliability.md §2.9). A reply that fails is
 * "unknown", never "absent".
 */
import { isIP } from "node:net";
import {
  type ContainerTermination,
  type Machine,
  type MachineStats,
  type PersistentVolume,
  ProviderError,
  type UnknownMachine,
} from "../../src/provider/kit/index.ts";
import { violation, type SchemaName, type Schemas, type Violation } from "../../src/provider/contract/document.ts";
import { InvalidReplyError, type InvalidReason } from "./invalid-reply.ts";
import { isRecord, parseJson } from "./json.ts";

/** Into a status or event, for what the backend says. */
const MESSAGE_BYTES = 1024;
/** kubelet's own limit for what a container says about its end; it is the workload's text, so it stays as long. */
const TERMINATION_MESSAGE_BYTES = 4096;
/** Reasons are single words; those of Kubernetes' events have at most so many characters. */
const REASON_BYTES = 128;
/** Ids and names of the backend's making. */
const NAME_BYTES = 1024;
/** A reference of an image may be as long in a request (4096), and come back with its registry written out. */
const IMAGE_BYTES = 8192;

/** Of a request, before it is sent. @throws ProviderError invalid */
export function requireValid(found: Violation | undefined): void {
  if (found === undefined) return;
  throw new ProviderError("invalid", plainText(`${found.field} ${found.message}`, 1024), { field: found.field });
}

/** Parses and checks a reply. @throws InvalidReplyError */
export function parseReply<N extends SchemaName>(name: N, text: string): Schemas[N] {
  return believe(name, parseJson(text));
}

/** Checks a value against the document, and takes away what the document does not name. @throws InvalidReplyError */
export function believe<N extends SchemaName>(name: N, value: unknown): Schemas[N] {
  const found = violation("reply", name, value);
  if (found === undefined) return value as Schemas[N];
  throw new InvalidReplyError("schema", `${name}${found.field && `.${found.field}`} ${found.message}`);
}

/** What is valid of a machine that as a whole is not; undefined when not even its id is. */
export function whatIsSure(value: unknown, reason: string): UnknownMachine | undefined {
  if (!isRecord(value)) return undefined;
  const take = <N extends "MachineId" | "MachineState" | "Count">(name: N, field: string): Schemas[N] | undefined =>
    Object.hasOwn(value, field) && violation("reply", name, value[field]) === undefined
      ? (value[field] as Schemas[N])
      : undefined;
  const id = take("MachineId", "id");
  if (id === undefined) return undefined;
  const state = take("MachineState", "state");
  const version = take("Count", "version");
  return {
    id,
    reason: plainText(reason, 256),
    ...(state !== undefined && { state }),
    ...(version !== undefined && { version }),
  };
}

export interface MachineRules {
  /** Milliseconds since the epoch. */
  now: number;
  /** Loopback addresses are believed only from a backend that is reached over loopback itself. */
  allowLoopback: boolean;
  /** Told about every value that was changed rather than refused. */
  onCorrected: (reason: InvalidReason) => void;
}

/** Makes a machine's texts and times safe to copy into a status, in place. @throws InvalidReplyError */
export function tameMachine(machine: Machine, rules: MachineRules): Machine {
  tameAddresses(machine, rules);
  tameTexts(machine);
  tameNames(machine, ["instance_type", "host", "zone"], NAME_BYTES);
  // It tells one life of an id from the next, so it must be the same in each reply: the current time never would be.
  if (isOutOfTime(machine.created_at, rules)) machine.created_at = new Date(EARLIEST_MS).toISOString();
  tameTimes(machine, ["started_at", "stopped_at", "deleted_at"], rules);
  for (const container of machine.containers) {
    tameTexts(container);
    tameNames(container, ["id", "image_id"], NAME_BYTES);
    tameNames(container, ["image"], IMAGE_BYTES);
    tameTimes(container, ["started_at"], rules);
    if (container.terminated !== undefined) tameTermination(container.terminated, rules);
    if (container.last !== undefined) tameTermination(container.last, rules);
  }
  if (machine.disruption !== undefined) tameTexts(machine.disruption);
  for (const notice of machine.notices ?? []) {
    tameTexts(notice);
    tameNames(notice, ["container"], NAME_BYTES);
    requireTimes(notice, ["at"], rules);
  }
  return machine;
}

/** The same of a volume. */
export function tameVolume(volume: PersistentVolume, rules: MachineRules): PersistentVolume {
  tameTexts(volume);
  requireTimes(volume, ["created_at"], rules);
  tameTimes(volume, ["deleted_at"], rules);
  tameNames(volume, ["class", "zone"], NAME_BYTES);
  return volume;
}

/** The first address of each family counts: a pod has no more. @throws InvalidReplyError loopback_ip */
function tameAddresses(machine: Machine, { allowLoopback, onCorrected }: MachineRules): void {
  const families = new Set<number>();
  machine.addresses = machine.addresses.filter(({ ip }) => {
    if (!allowLoopback && (ip.startsWith("127.") || ip === "::1"))
      throw new InvalidReplyError("loopback_ip", `machine ${machine.id} has the loopback address ${ip}`);
    const family = isIP(ip);
    const isFirst = !families.has(family);
    if (!isFirst) onCorrected("extra_address");
    families.add(family);
    return isFirst;
  });
}

/** Makes a sample's texts and times safe to serve, in place. */
export function tameStats(stats: MachineStats, rules: MachineRules): MachineStats {
  requireTimes(stats, ["at"], rules);
  for (const container of stats.containers) requireTimes(container, ["started_at"], rules);
  for (const volume of stats.volumes ?? []) tameNames(volume, ["name"], NAME_BYTES);
  return stats;
}

function tameTermination(termination: ContainerTermination, rules: MachineRules): void {
  const { message } = termination;
  tameTexts(termination);
  if (message !== undefined) termination.message = plainText(message, TERMINATION_MESSAGE_BYTES);
  tameNames(termination, ["id"], NAME_BYTES);
  tameTimes(termination, ["started_at"], rules);
  requireTimes(termination, ["finished_at"], rules);
}

export function tameTexts(holder: { message?: string; reason?: string }): void {
  if (holder.message !== undefined) holder.message = plainText(holder.message, MESSAGE_BYTES);
  if (holder.reason !== undefined) holder.reason = plainText(holder.reason, REASON_BYTES);
}

function tameNames<K extends string>(holder: { [key in K]?: string }, fields: readonly K[], maxBytes: number): void {
  for (const field of fields) {
    const text = holder[field];
    if (text !== undefined) holder[field] = plainText(text, maxBytes);
  }
}

const CLOCK_SKEW_MS = 5 * 60_000;
/** A time before it is taken for absent: it is the zero of some clock or language. */
const EARLIEST_MS = Date.UTC(2000, 0, 1);

/** Ages that are negative make back-offs endless, and ages of decades end them. Counted. */
function isOutOfTime(time: string, { now, onCorrected }: MachineRules): boolean {
  const ms = Date.parse(time);
  if (ms > now + CLOCK_SKEW_MS) onCorrected("future_time");
  // Not in order either: a leap second, which Date.parse does not know.
  else if (!(ms >= EARLIEST_MS)) onCorrected("past_time");
  else return false;
  return true;
}

/** A time that cannot be is left out; one of the future becomes now. */
function tameTimes<K extends string>(holder: { [key in K]?: string }, fields: readonly K[], rules: MachineRules): void {
  for (const field of fields) {
    const time = holder[field];
    if (time === undefined || !isOutOfTime(time, rules)) continue;
    if (Date.parse(time) > rules.now) holder[field] = new Date(rules.now).toISOString();
    else delete holder[field];
  }
}

/** A time that cannot be becomes now. */
function requireTimes<K extends string>(
  holder: { [key in K]: string },
  fields: readonly K[],
  rules: MachineRules,
): void {
  for (const field of fields) {
    if (isOutOfTime(holder[field], rules)) (holder as Record<K, string>)[field] = new Date(rules.now).toISOString();
  }
}

// Everything that a terminal or a browser would obey rather than show: ANSI sequences, C0 and C1 controls but tab and
// newline, and the characters that reverse the direction of text.
// eslint-disable-next-line no-control-regex
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** `text` without control characters and no longer than `maxBytes` in UTF-8, cut between characters. */
export function plainText(text: string, maxBytes: number): string {
  // A megabyte of escapes need not be searched to keep a kibibyte. Half a pair of surrogates is not a character.
  const head = (text.length > maxBytes * 4 ? text.slice(0, maxBytes * 4) : text).toWellFormed();
  const plain = CONTROL.test(head) ? head.replace(ANSI, "").replace(CONTROLS, "") : head;
  if (plain.length * 3 <= maxBytes || Buffer.byteLength(plain) <= maxBytes) return plain;
  const bytes = Buffer.from(plain).subarray(0, maxBytes);
  return new TextDecoder("utf-8").decode(bytes, { stream: true });
}
