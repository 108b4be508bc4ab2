import { createHash } from "node:crypto";

/**
 * The same text for two specifications that mean the same, in any order of their keys. A provider keeps it to tell a
 * repeated create (the same machine) from a conflicting one. A digest, so that no secret stays behind.
 */
export function specFingerprint(spec: object): string {
  return createHash("sha256").update(canonicalJson(spec)).digest("base64url");
}

function canonicalJson(value: unknown): string {
  if (Array.isArray(value))
    return `[${value.map((item) => (item === undefined ? "null" : canonicalJson(item))).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const fields = Object.entries(value).filter(([, field]) => field !== undefined);
  fields.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonicalJson(field)}`).join(",")}}`;
}
