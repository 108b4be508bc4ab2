/**
 * What a backend sends is not trusted: it is checked against the document, stripped of what the document does not name,
 * and its texts are made harmless before they reach a status or an event (reliability.md §2.9). A reply that fails is
 * "unknown", never "absent".
 */
import type { ContainerTermination, Machine } from "../../src/provider/kit/index.ts";
import { violation, type SchemaName, type Schemas } from "./document.ts";

/** Why a reply was refused or changed; counted by `vmlet_backend_invalid_responses_total{reason}`. */
export type InvalidReason =
  | "json"
  | "schema"
  | "keys"
  | "depth"
  | "size"
  | "content_type"
  | "request_id"
  | "machine_id"
  | "duplicate_id"
  | "cursor_loop"
  | "labels"
  | "loopback_ip"
  | "future_time"
  | "redirect"
  | "log_line";

export class InvalidReplyError extends Error {
  readonly reason: InvalidReason;
  constructor(reason: InvalidReason, message: string) {
    super(message);
    this.name = "InvalidReplyError";
    this.reason = reason;
  }
}

const MAX_DEPTH = 32;
/** Into a status or event, for what the backend says. */
const MESSAGE_BYTES = 1024;
/** kubelet's own limit for what a container says about its end; it is the workload's text, so it stays as long. */
const TERMINATION_MESSAGE_BYTES = 4096;
const SUSPICIOUS = /__proto__|"constructor"|"prototype"|\\u00/;
const FORBIDDEN_KEYS: readonly string[] = ["__proto__", "constructor", "prototype"];

/** Parses and checks a reply. @throws InvalidReplyError */
export function parseReply<N extends SchemaName>(name: N, text: string): Schemas[N] {
  const value = parseJson(text);
  const found = violation("reply", name, value);
  if (found !== undefined)
    throw new InvalidReplyError("schema", `${name}${found.field && `.${found.field}`} ${found.message}`);
  return value as Schemas[N];
}

/** JSON that is nested no deeper than 32 and has no field that could reach an object's prototype. @throws InvalidReplyError */
export function parseJson(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (thrown) {
    throw new InvalidReplyError("json", `the body is not JSON: ${(thrown as Error).message.slice(0, 200)}`);
  }
  if (SUSPICIOUS.test(text) || nestingBound(text) > MAX_DEPTH) inspect(value);
  return value;
}

/** Deepest run of brackets that open, brackets inside strings included: an upper bound that costs one pass over the text. */
function nestingBound(text: string): number {
  let depth = 0;
  let deepest = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === 0x7b || code === 0x5b) {
      depth++;
      if (depth > deepest) deepest = depth;
    } else if (code === 0x7d || code === 0x5d) depth--;
  }
  return deepest;
}

/** Without recursion, since the depth is what is in doubt. */
function inspect(root: unknown): void {
  const stack: { value: unknown; depth: number }[] = [{ value: root, depth: 1 }];
  for (let item = stack.pop(); item !== undefined; item = stack.pop()) {
    const { value, depth } = item;
    if (typeof value !== "object" || value === null) continue;
    if (depth > MAX_DEPTH) throw new InvalidReplyError("depth", `the body is nested deeper than ${MAX_DEPTH}`);
    if (Array.isArray(value)) {
      for (const child of value) stack.push({ value: child, depth: depth + 1 });
      continue;
    }
    for (const [key, child] of Object.entries(value)) {
      if (FORBIDDEN_KEYS.includes(key)) throw new InvalidReplyError("keys", `the body has a field named ${key}`);
      stack.push({ value: child, depth: depth + 1 });
    }
  }
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
  for (const { ip } of machine.addresses) {
    if (!rules.allowLoopback && (ip.startsWith("127.") || ip === "::1")) {
      throw new InvalidReplyError("loopback_ip", `machine ${machine.id} has the loopback address ${ip}`);
    }
  }
  tameTexts(machine);
  tameTimes(machine, ["created_at", "started_at", "stopped_at", "deleted_at"], rules);
  for (const container of machine.containers) {
    tameTexts(container);
    tameTimes(container, ["started_at"], rules);
    if (container.terminated !== undefined) tameTermination(container.terminated, rules);
    if (container.last !== undefined) tameTermination(container.last, rules);
  }
  for (const notice of machine.notices ?? []) {
    tameTexts(notice);
    tameTimes(notice, ["at"], rules);
  }
  return machine;
}

function tameTermination(termination: ContainerTermination, rules: MachineRules): void {
  const { message } = termination;
  if (message !== undefined) termination.message = plainText(message, TERMINATION_MESSAGE_BYTES);
  termination.reason = plainText(termination.reason, MESSAGE_BYTES);
  tameTimes(termination, ["started_at", "finished_at"], rules);
}

export function tameTexts(holder: { message?: string; reason?: string }): void {
  if (holder.message !== undefined) holder.message = plainText(holder.message, MESSAGE_BYTES);
  if (holder.reason !== undefined) holder.reason = plainText(holder.reason, MESSAGE_BYTES);
}

const CLOCK_SKEW_MS = 5 * 60_000;

/** A time in the future would make ages negative and back-offs endless: it becomes now. */
function tameTimes<K extends string>(holder: { [key in K]?: string }, fields: readonly K[], rules: MachineRules): void {
  for (const field of fields) {
    const time = holder[field];
    if (time !== undefined && Date.parse(time) > rules.now + CLOCK_SKEW_MS) {
      holder[field] = new Date(rules.now).toISOString();
      rules.onCorrected("future_time");
    }
  }
}

// Everything that a terminal or a browser would obey rather than show: ANSI sequences, C0 and C1 controls but tab and newline, and
// the characters that reverse the direction of text.
// eslint-disable-next-line no-control-regex
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** `text` without control characters and no longer than `maxBytes` in UTF-8, cut between characters. */
export function plainText(text: string, maxBytes: number): string {
  // A megabyte of escapes need not be searched to keep a kibibyte.
  const head = text.length > maxBytes * 4 ? text.slice(0, maxBytes * 4) : text;
  const plain = CONTROL.test(head) ? head.replace(ANSI, "").replace(CONTROLS, "") : head;
  if (plain.length * 3 <= maxBytes || Buffer.byteLength(plain) <= maxBytes) return plain;
  const bytes = Buffer.from(plain).subarray(0, maxBytes);
  return new TextDecoder("utf-8").decode(bytes, { stream: true });
}
