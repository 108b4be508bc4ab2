/**
 * What of a wanted status is written, and when: a node writes no more of one pod than it has to, and does not say again
 * what the API server does not take. Pure; the memory is the planner's.
 */
import { createHash } from "node:crypto";
import { ANNOTATIONS } from "./api-reactions.ts";

/** Fields of a status, and under `ANNOTATIONS` the annotations that go with it. */
export type Fields = Readonly<Record<string, unknown>>;

/**
 * By field, the content that the API server refused for good, or took and did not keep, as an older one does with
 * fields that it does not know. Sent again it would change nothing, so it must not keep anything else from being done.
 */
export type Unwritable = ReadonlyMap<string, string>;

/** Times that differ from one computation of a status to the next for as long as it has not been written. */
const TIMES = new Set(["startTime", "startedAt", "lastTransitionTime", "lastProbeTime"]);

/** The same text for the same content, whenever it was computed. */
function contentOf(field: string, value: unknown): string {
  const text = JSON.stringify({ [field]: value }, (key, inner: unknown) => (TIMES.has(key) ? "" : inner));
  return text.length <= 64 ? text : createHash("sha256").update(text).digest("base64url");
}

/** Of some fields, those that the API server may take. */
export function writable(fields: Fields, unwritable: Unwritable): Fields {
  if (unwritable.size === 0) return fields;
  return Object.fromEntries(
    Object.entries(fields).filter(([field, value]) => unwritable.get(field) !== contentOf(field, value)),
  );
}

/** `unwritable` and the named of these fields. */
export function withUnwritable(unwritable: Unwritable, fields: Fields, names: readonly string[]): Unwritable {
  return new Map([...unwritable, ...names.map((name) => [name, contentOf(name, fields[name])] as const)]);
}

/** The parts of a patch: annotations are metadata, all else is status. */
export function splitFields(fields: Fields): {
  status: Fields;
  annotations: Readonly<Record<string, string>> | undefined;
} {
  const { [ANNOTATIONS]: annotations, ...status } = fields;
  return { status, annotations: annotations as Record<string, string> | undefined };
}

/** One pod may write a status this often in the long run (kubelet: a sync of the pod each 10 s) ... */
const STATUS_EVERY_MS = 12_000;
/** ... and this many in a row before that: a start or an end takes a few. */
const STATUS_BURST = 8;

/**
 * Milliseconds until this pod may write its next status; 0 or less: now. A leaky bucket (GCRA), of which one moment is
 * remembered.
 */
export function statusDelay(paidUntil: number, monotonic: number): number {
  return paidUntil - (STATUS_BURST - 1) * STATUS_EVERY_MS - monotonic;
}

/** The moment to remember after a status was written. */
export function payStatus(paidUntil: number, monotonic: number): number {
  const most = monotonic + STATUS_BURST * STATUS_EVERY_MS;
  return Math.min(most, Math.max(paidUntil, monotonic) + STATUS_EVERY_MS);
}
