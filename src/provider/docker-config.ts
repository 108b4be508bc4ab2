/** Registry credentials as docker keeps them: config.json, and the older .dockercfg. */
import { trimEnd } from "../util/text.ts";
import type { RegistryAuth } from "./machine.ts";
import { MAX_REGISTRY_KEY_LENGTH } from "./registry-hosts.ts";

/** @param hasAuths the registries are below `auths`, as in config.json; else at the top. Undefined: it is not JSON */
export function parseDockerConfig(json: string, { hasAuths = true } = {}): RegistryAuth[] | undefined {
  let config: unknown;
  try {
    config = JSON.parse(json);
  } catch {
    return undefined;
  }
  const entries = hasAuths ? (asRecord(config)["auths"] ?? {}) : config;
  return Object.entries(asRecord(entries)).flatMap(([location, entry]) => {
    const parsed = parseEntry(location, asRecord(entry));
    return parsed === undefined ? [] : [parsed];
  });
}

function parseEntry(location: string, entry: Record<string, unknown>): RegistryAuth | undefined {
  if (location.length > MAX_REGISTRY_KEY_LENGTH) return undefined;
  let username = text(entry["username"]);
  let password = text(entry["password"]);
  const auth = text(entry["auth"]);
  if (auth !== undefined && auth !== "") {
    const decoded = Buffer.from(auth.trim(), "base64").toString("utf8");
    const colon = decoded.indexOf(":");
    if (colon === -1) return undefined;
    username = decoded.slice(0, colon);
    // Docker pads the password with NUL bytes.
    password = trimEnd(decoded.slice(colon + 1), "\0");
  }
  const identityToken = text(entry["identitytoken"]);
  const registry = normalizeRegistry(location);
  if (registry === "") return undefined;
  return {
    registry,
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    ...(identityToken !== undefined && { identity_token: identityToken }),
  };
}

/** `https://index.docker.io/v1/` and its like become `docker.io`; scheme, API version and trailing slash go. */
export function normalizeRegistry(location: string): string {
  const bare = location.replace(/^https?:\/\//, "");
  const slash = bare.indexOf("/");
  const host = slash === -1 ? bare : bare.slice(0, slash);
  const path = trimEnd((slash === -1 ? "" : bare.slice(slash)).replace(/^\/v[12](?=\/|$)/, ""), "/");
  const isHub = host === "index.docker.io" || host === "registry-1.docker.io" || host === "docker.io";
  return (isHub ? "docker.io" : host) + path;
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}
