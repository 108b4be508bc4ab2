/** What registries say an image is made of, read as untrusted text: bounded, and none of it is believed unchecked. */
import { createHash } from "node:crypto";
import { ContainerError } from "../engine.ts";

export interface Descriptor {
  digest: string;
  size: number;
}

/** An image for one platform. */
export interface Manifest {
  config: Descriptor;
  layers: Descriptor[];
}

export const MANIFEST_TYPES = [
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
];
export const INDEX_TYPES = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
];
/** What registries themselves accept at most (distribution's maxManifestBodySize). */
export const MAX_MANIFEST_BYTES = 4 * 1024 * 1024;
/** More than any tool makes (Docker stops at 127). Each is a file to fetch and a turn of the unpacker. */
const MAX_LAYERS = 512;
/** A configuration has a history of each layer, and what `imageConfig` bounds further. */
export const MAX_CONFIG_BYTES = 4 * 1024 * 1024;
const DIGEST = /^sha256:[0-9a-f]{64}$/;

export function digestOf(content: Buffer): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}

/**
 * @param digest by which it was asked for; absent when it was by a tag, which proves nothing
 * @throws ContainerError ErrImagePull when the content is another, or no JSON object
 */
export function readDocument(image: string, content: Buffer, digest?: string): Record<string, unknown> {
  if (digest !== undefined && digestOf(content) !== digest)
    throw new ContainerError(
      "ErrImagePull",
      `${image}: the registry answered with a manifest that does not match its digest ${digest}`,
    );
  try {
    const value: unknown = JSON.parse(content.toString("utf8"));
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (thrown) {
    throw new ContainerError("ErrImagePull", `${image}: the registry's manifest is not JSON`, { cause: thrown });
  }
  throw new ContainerError("ErrImagePull", `${image}: the registry's manifest is not a JSON object`);
}

export function isIndex(document: Record<string, unknown>): boolean {
  const { mediaType, manifests, config } = document;
  return (
    (typeof mediaType === "string" && INDEX_TYPES.includes(mediaType)) ||
    (Array.isArray(manifests) && config === undefined)
  );
}

/** @returns the digest of the platform's manifest @throws ContainerError ErrImagePull when the index has none */
export function choosePlatform(
  image: string,
  index: Record<string, unknown>,
  platform: { os: string; architecture: string },
): string {
  const entries = Array.isArray(index["manifests"]) ? (index["manifests"] as Record<string, unknown>[]) : [];
  const match = entries.find((entry) => {
    const offered = entry?.["platform"] as Record<string, unknown> | undefined;
    return offered?.["os"] === platform.os && offered["architecture"] === platform.architecture;
  });
  const digest = match?.["digest"];
  if (typeof digest !== "string" || !DIGEST.test(digest))
    throw new ContainerError(
      "ErrImagePull",
      `${image}: no match for platform ${platform.os}/${platform.architecture} in manifest: not found`,
    );
  return digest;
}

/** @throws ContainerError ErrImagePull for a text that is not a manifest of an image that this host takes */
export function readManifest(image: string, document: Record<string, unknown>): Manifest {
  const refuse = (why: string) => new ContainerError("ErrImagePull", `${image}: ${why}`);
  const { schemaVersion, layers, config } = document;
  if (schemaVersion !== 2) {
    const version = JSON.stringify(schemaVersion)?.slice(0, 20);
    throw refuse(`manifest schema ${version} is not supported; push the image again with a current tool`);
  }
  if (!Array.isArray(layers)) throw refuse("the manifest has no list of layers");
  if (layers.length > MAX_LAYERS)
    throw refuse(`it has ${layers.length} layers, more than the ${MAX_LAYERS} that this host accepts`);
  const read = (value: unknown): Descriptor => {
    const { digest, size } = (value ?? {}) as Record<string, unknown>;
    const isSize = typeof size === "number" && Number.isSafeInteger(size) && size >= 0;
    if (typeof digest !== "string" || !DIGEST.test(digest) || !isSize)
      throw refuse("the manifest has an entry without a sha256 digest or size");
    return { digest, size };
  };
  const described = read(config);
  if (described.size > MAX_CONFIG_BYTES)
    throw refuse(
      `its configuration has ${described.size} bytes, more than the ${MAX_CONFIG_BYTES} that this host accepts`,
    );
  return { config: described, layers: layers.map(read) };
}

/** Each digest once: an image may have the same layer twice. */
export function distinct(descriptors: readonly Descriptor[]): Descriptor[] {
  return [...new Map(descriptors.map((each) => [each.digest, each])).values()];
}

/**
 * What the layers unpack to, by the digests that the manifest has for them.
 * @param content of the image's configuration
 * @throws ContainerError ErrImagePull when it does not say so of each
 */
export function readDiffIds(image: string, { config, layers }: Manifest, content: Buffer): Map<string, string> {
  const refuse = (why: string) => new ContainerError("ErrImagePull", `${image}: its configuration ${why}`);
  if (digestOf(content) !== config.digest) throw refuse(`does not match its digest ${config.digest}`);
  const { rootfs } = readDocument(image, content) as { rootfs?: { diff_ids?: unknown } | null };
  const ids = Array.isArray(rootfs?.diff_ids) ? (rootfs.diff_ids as unknown[]) : [];
  if (ids.length !== layers.length) throw refuse(`has ${ids.length} layers, its manifest ${layers.length}`);
  const known = new Map<string, string>();
  for (const [index, { digest }] of layers.entries()) {
    const id = ids[index];
    if (typeof id !== "string" || !DIGEST.test(id)) throw refuse("has a layer without a sha256 digest");
    if ((known.get(digest) ?? id) !== id) throw refuse(`says two things of the layer ${digest}`);
    known.set(digest, id);
  }
  return known;
}
