/**
 * Names of images, with the rules of github.com/distribution/reference that the kubelet applies: `busybox` is
 * `docker.io/library/busybox:latest`. A digest makes the tag irrelevant.
 */
import {
  MAX_REGISTRY_KEY_LENGTH,
  registryHostMatches,
  trimEnd,
  type RegistryAuth,
} from "../../../src/provider/kit/index.ts";
import { ContainerError } from "../engine.ts";

export interface ImageReference {
  /** Host, with the port when there is one: `docker.io`, `127.0.0.1:5000`. */
  registry: string;
  /** Path within the registry: `library/busybox`. */
  path: string;
  /** Absent when a digest is given without a tag. */
  tag?: string | undefined;
  digest?: string | undefined;
}

const HOST =
  /^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?$/;
const PATH_COMPONENT = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/;
const TAG = /^[\w][\w.-]{0,127}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;
const MAX_NAME_LENGTH = 255;

/** @throws ContainerError InvalidImageName */
export function parseReference(image: string): ImageReference {
  const invalid = (why: string) =>
    new ContainerError(
      "InvalidImageName",
      `Failed to apply default image tag "${image}": couldn't parse image name "${image}": ${why}`,
    );

  const { name, tag, digest } = splitReference(image);
  if (digest !== undefined && !DIGEST.test(digest))
    throw invalid("invalid digest; want sha256: and 64 hexadecimal digits");
  if (tag !== undefined && !TAG.test(tag)) throw invalid("invalid tag");
  const { registry, path } = splitName(name);
  if (!HOST.test(registry)) throw invalid("invalid registry host");
  if (path === "" || !path.split("/").every((component) => PATH_COMPONENT.test(component)))
    throw invalid(
      path.toLowerCase() === path
        ? "invalid reference format"
        : "invalid reference format: repository name must be lowercase",
    );
  if (registry.length + 1 + path.length > MAX_NAME_LENGTH)
    throw invalid(`repository name must not be more than ${MAX_NAME_LENGTH} characters`);
  const wanted = tag === undefined && digest === undefined ? "latest" : tag;
  return {
    registry,
    path,
    tag: wanted,
    digest,
  };
}

/** `NAME[:TAG][@DIGEST]` */
function splitReference(image: string): { name: string; tag: string | undefined; digest: string | undefined } {
  const at = image.indexOf("@");
  const digest = at < 0 ? undefined : image.slice(at + 1);
  const rest = at < 0 ? image : image.slice(0, at);
  const colon = rest.lastIndexOf(":");
  if (colon <= rest.lastIndexOf("/")) return { name: rest, tag: undefined, digest };
  return { name: rest.slice(0, colon), tag: rest.slice(colon + 1), digest };
}

/** `[HOST/]PATH`, as docker completes it. */
function splitName(name: string): { registry: string; path: string } {
  const slash = name.indexOf("/");
  const first = slash < 0 ? "" : name.slice(0, slash);
  // The first component is a host only when it could not be a path component of docker.io.
  const hasHost = first === "localhost" || /[.:]/.test(first) || first.toLowerCase() !== first;
  const registry = !hasHost || first === "index.docker.io" ? "docker.io" : first;
  const path = hasHost ? name.slice(slash + 1) : name;
  return { registry, path: registry === "docker.io" && path !== "" && !path.includes("/") ? `library/${path}` : path };
}

/** `registry/path`: what digests are relative to. */
export function repository(reference: ImageReference): string {
  return `${reference.registry}/${reference.path}`;
}

/** The full name; two references with the same full name mean the same image at any one time. */
export function fullName(reference: ImageReference): string {
  return reference.digest === undefined
    ? `${repository(reference)}:${reference.tag}`
    : `${repository(reference)}${reference.tag === undefined ? "" : `:${reference.tag}`}@${reference.digest}`;
}

/**
 * The credentials that apply to a repository, most specific first, as the kubelet's keyring does: a key is a host, or a
 * host and a path prefix, `*` matches within one part of the host name, and a scheme or `/v1/` ending is ignored.
 */
export function matchingCredentials(reference: ImageReference, credentials: readonly RegistryAuth[]): RegistryAuth[] {
  return credentials
    .filter(({ registry }) => registry.length <= MAX_REGISTRY_KEY_LENGTH)
    .map((auth) => ({ auth, ...splitKey(auth.registry) }))
    .filter(({ host, path }) => registryHostMatches(host, reference.registry) && pathMatches(path, reference.path))
    .toSorted((a, b) => b.path.length - a.path.length || Number(a.host.includes("*")) - Number(b.host.includes("*")))
    .map(({ auth }) => auth);
}

function splitKey(key: string): { host: string; path: string } {
  const bare = trimEnd(key.replace(/^https?:\/\//, "").replace(/\/v[12]\/?$/, ""), "/");
  const slash = bare.indexOf("/");
  const host = slash < 0 ? bare : bare.slice(0, slash);
  const dockerHub = host === "index.docker.io" || host === "registry-1.docker.io";
  return { host: dockerHub ? "docker.io" : host, path: slash < 0 ? "" : bare.slice(slash + 1) };
}

function pathMatches(prefix: string, path: string): boolean {
  return prefix === "" || path === prefix || path.startsWith(`${prefix}/`);
}
