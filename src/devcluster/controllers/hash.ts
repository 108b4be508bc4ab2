/** The short names that controllers derive from what they made something of: `pod-template-hash` and revision names. */
import { isRecord, type Json } from "../objects/object.ts";

const ALPHABET = "bcdfghjklmnpqrstvwxz2456789";

/**
 * FNV-1a over the JSON with sorted keys, in kube-apiserver's safe alphabet. The real controllers hash Go's printed
 * structs, so the values differ from theirs; nothing may depend on them.
 */
export function hashOf(value: Json, collisionCount?: number): string {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(canonical(value) + (collisionCount ? String(collisionCount) : ""))) {
    hash ^= byte;
    hash = Math.imul(hash, 0x01000193);
  }
  return String(hash >>> 0).replaceAll(/\d/g, (digit) => ALPHABET[digit.charCodeAt(0) % ALPHABET.length]!);
}

/** JSON in which the order of keys is always the same. */
export function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isRecord(value)) return JSON.stringify(value ?? null);
  const members = Object.keys(value)
    .filter((key) => value[key] !== undefined)
    .toSorted()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${members.join(",")}}`;
}
