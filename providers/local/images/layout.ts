/**
 * The OCI layout that `umoci` unpacks an image from: blobs as registries send them, and a manifest of our own that says
 * of each what it is by its first bytes, for media types are many and not always true.
 */
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { access, open, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createGzip, createZstdDecompress } from "node:zlib";
import { ContainerError } from "../engine.ts";
import { type Descriptor, digestOf, distinct, type Manifest } from "./manifest.ts";

const MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar";

interface LayerEntry {
  mediaType: string;
  digest: string;
  size: number;
}

interface Compressing {
  maxBytes: number;
  onBytes: (bytes: number) => void;
  signal: AbortSignal;
}

export class Layout {
  readonly #dir: string;

  /** @param dir has a folder `blobs/sha256` */
  constructor(dir: string) {
    this.#dir = dir;
  }

  /** Those of `wanted` that are not here yet, each once. */
  async missing(wanted: readonly Descriptor[]): Promise<Descriptor[]> {
    const unique = distinct(wanted);
    const isHere = await Promise.all(unique.map(({ digest }) => exists(this.#blob(digest))));
    return unique.filter((_descriptor, index) => !isHere[index]);
  }

  /**
   * Keeps a blob when it is what it was announced as.
   * @param onBytes is told of each piece, in bytes
   * @throws ContainerError ErrImagePull for one that is longer, shorter, or another
   */
  async write(
    image: string,
    { digest, size }: Descriptor,
    content: AsyncIterable<Buffer>,
    { onBytes, signal }: { onBytes: (bytes: number) => void; signal: AbortSignal },
  ): Promise<void> {
    const part = `${this.#blob(digest)}.part`;
    const refuse = (why: string) => new ContainerError("ErrImagePull", `${image}: ${why}`);
    const hash = createHash("sha256");
    let bytes = 0;
    const count = new Transform({
      transform(chunk: Buffer, _encoding, done) {
        bytes += chunk.length;
        onBytes(chunk.length);
        if (bytes > size)
          return done(refuse(`the registry sends more than the ${size} bytes that it has announced of ${digest}`));
        hash.update(chunk);
        done(null, chunk);
      },
    });
    await pipeline(content, count, createWriteStream(part, { mode: 0o600 }), { signal });
    if (bytes < size) throw refuse(`the registry sends ${bytes} bytes of ${digest}, which has ${size}`);
    if (`sha256:${hash.digest("hex")}` !== digest)
      throw refuse(`the registry answered with a blob that does not match its digest ${digest}`);
    await rename(part, this.#blob(digest));
  }

  /**
   * Makes it complete: what names the blobs. A layer that umoci cannot read is compressed again.
   * @param maxBytes of a layer that is
   * @param onBytes is told of each piece of it
   * @returns the digests of what the image is made of here: manifest, config, layers
   * @throws ContainerError ErrImagePull for a layer that cannot be read
   */
  async complete(image: string, { config, layers }: Manifest, options: Compressing): Promise<string[]> {
    // An image may have the same layer twice.
    const read = new Map<string, LayerEntry>();
    for (const layer of layers)
      if (!read.has(layer.digest)) read.set(layer.digest, await this.#readable(image, layer, options));
    const readable = layers.map(({ digest }) => read.get(digest)!);
    const { size } = await stat(this.#blob(config.digest));
    const manifest = Buffer.from(
      JSON.stringify({
        schemaVersion: 2,
        mediaType: MANIFEST_TYPE,
        config: { mediaType: CONFIG_TYPE, digest: config.digest, size },
        layers: readable,
      }),
    );
    const digest = digestOf(manifest);
    await writeFile(this.#blob(digest), manifest, { mode: 0o600 });
    const annotations = { "org.opencontainers.image.ref.name": "image" };
    const named = { mediaType: MANIFEST_TYPE, digest, size: manifest.length, annotations };
    await writeFile(join(this.#dir, "index.json"), JSON.stringify({ schemaVersion: 2, manifests: [named] }));
    await writeFile(join(this.#dir, "oci-layout"), '{"imageLayoutVersion":"1.0.0"}');
    return [digest, config.digest, ...readable.map((layer) => layer.digest)];
  }

  async #readable(image: string, { digest, size }: Descriptor, options: Compressing): Promise<LayerEntry> {
    const start = await firstBytes(this.#blob(digest));
    if (start === "28b52ffd") return await this.#compressedAgain(image, digest, options);
    return { mediaType: start.startsWith("1f8b") ? `${LAYER_TYPE}+gzip` : LAYER_TYPE, digest, size };
  }

  async #compressedAgain(
    image: string,
    digest: string,
    { maxBytes, onBytes, signal }: Compressing,
  ): Promise<LayerEntry> {
    const part = `${this.#blob(digest)}.gzip`;
    const hash = createHash("sha256");
    let size = 0;
    const count = new Transform({
      transform(chunk: Buffer, _encoding, done) {
        size += chunk.length;
        onBytes(chunk.length);
        if (size > maxBytes) return done(new Error(`more than the ${maxBytes} bytes that this host accepts`));
        hash.update(chunk);
        done(null, chunk);
      },
    });
    const source = createReadStream(this.#blob(digest));
    try {
      await pipeline(source, createZstdDecompress(), createGzip({ level: 1 }), count, createWriteStream(part), {
        signal,
      });
    } catch (thrown) {
      if (signal.aborted) throw signal.reason;
      const why = thrown instanceof Error ? thrown.message : String(thrown);
      throw new ContainerError("ErrImagePull", `${image}: failed to unpack layer ${digest}: ${why}`, { cause: thrown });
    }
    const own = `sha256:${hash.digest("hex")}`;
    await rename(part, this.#blob(own));
    await rm(this.#blob(digest));
    return { mediaType: `${LAYER_TYPE}+gzip`, digest: own, size };
  }

  #blob(digest: string): string {
    return join(this.#dir, "blobs/sha256", digest.slice("sha256:".length));
  }
}

async function firstBytes(file: string): Promise<string> {
  const handle = await open(file);
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(4), 0, 4, 0);
    return buffer.toString("hex", 0, bytesRead);
  } finally {
    await handle.close();
  }
}

async function exists(file: string): Promise<boolean> {
  return await access(file).then(
    () => true,
    () => false,
  );
}
