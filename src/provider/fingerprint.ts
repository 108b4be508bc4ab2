/** Which specifications are the same: by a digest, in which nothing secret is left. */
import { createHash } from "node:crypto";
import type { MachineSpec, Volume } from "./machine.ts";

/**
 * The same text for two specifications that mean the same, in any order of their keys. A provider keeps it to tell a
 * repeated create (the same machine) from a conflicting one. A digest, so that no secret stays behind.
 */
export function specFingerprint(spec: object): string {
  return createHash("sha256").update(canonicalJson(spec)).digest("base64url");
}

/**
 * Identity of a spec for idempotent creation. Credentials, file contents and what CSI drivers are told in secret are
 * left out: a repeated create may carry newer tokens, and the caller sees from `file_versions` which files are in
 * place.
 */
export function specIdentity(spec: MachineSpec): string {
  const { registry_auth: _auth, registry_auth_version: _version, volumes, ...rest } = spec;
  const shapes = volumes?.map((volume) => {
    if (volume.type === "files") return { name: volume.name, type: volume.type };
    if (volume.type !== "csi") return volume;
    const { secrets: _secrets, secret_attributes: _too, persistent, ...shape } = volume;
    return persistent === undefined ? shape : { ...shape, persistent: persistentIdentity(persistent) };
  });
  return specFingerprint({ ...rest, volumes: shapes });
}

/** What is read again for each create is left out: secrets, and what became of its being attached and of its growth. */
function persistentIdentity(volume: NonNullable<Extract<Volume, { type: "csi" }>["persistent"]>): object {
  const { volume: id, pv, access_mode, mode } = volume;
  // Both words for a file system are one.
  return { volume: id, pv, access_mode, ...(mode === "block" && { mode }) };
}

function canonicalJson(value: unknown): string {
  if (Array.isArray(value))
    return `[${value.map((item) => (item === undefined ? "null" : canonicalJson(item))).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  let fields = "";
  for (const key of Object.keys(value).sort()) {
    const field = (value as Record<string, unknown>)[key];
    if (field !== undefined) fields += `${fields === "" ? "" : ","}${JSON.stringify(key)}:${canonicalJson(field)}`;
  }
  return `{${fields}}`;
}
