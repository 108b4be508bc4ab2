/**
 * One pull of a containerd of our own. Layers are fetched to this disk, and held against limits and digests, before
 * containerd is given any of them: what it has begun to take it locks for all, and goes on with it for another's pull.
 */
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { type Clock, toError } from "../../../../src/provider/kit/index.ts";
import type { WantedImage } from "../../images/download.ts";
import { LayerError, metered, type UnpackBudget } from "../../images/layer-meter.ts";
import { type Descriptor, MANIFEST_TYPES, MAX_CONFIG_BYTES, readDiffIds, readDocument } from "../../images/manifest.ts";
import { repository } from "../../images/reference.ts";
import { readBody, type RegistryClient } from "../../images/registry-client.ts";
import type { CriClient } from "./client.ts";
import type { Grant, GrantedRegistry } from "./granted-registry.ts";

interface OnePullOptions {
  clock: Clock;
  wanted: WantedImage;
  /** Of the registry. */
  client: RegistryClient;
  granted: GrantedRegistry;
  budget: UnpackBudget;
  /** An empty folder for what is fetched, which the caller removes. */
  dir: string;
}

/** containerd's image_pull_progress_timeout: a pull that stands still must not keep others waiting. */
const STALL_MS = 5 * 60_000;
/** Layers that are fetched at a time, as by containerd. */
const PARALLEL_LAYERS = 3;

export class OnePull {
  readonly #options: OnePullOptions;
  /** By layer, where it is. */
  readonly #files = new Map<string, Promise<string>>();
  /** Layers that are here whole, and what they unpack to. */
  readonly #learned: Record<string, string> = {};
  readonly #failed = new AbortController();
  #diffIds: ReadonlyMap<string, string> = new Map();
  #config: Buffer = Buffer.alloc(0);
  /** How many layers are being fetched, and when one of them went on. */
  #fetching = 0;
  #arrivedAt = 0;

  constructor(options: OnePullOptions) {
    this.#options = options;
  }

  /** For `ImageDisk.guard`. */
  readonly excess = (): Promise<string | undefined> => {
    const isSilent = this.#fetching > 0 && this.#options.clock.monotonic() - this.#arrivedAt >= STALL_MS;
    return Promise.resolve(isSilent ? `the registry has sent nothing for ${STALL_MS / 60_000} minutes` : undefined);
  };

  /**
   * Has the runtime have the image whole.
   * @param unproven layers that the repository has not sent before
   * @returns those that it has sent now, and what they unpack to
   * @throws what the registry, a limit or the runtime has against it
   */
  async run(cri: CriClient, unproven: readonly Descriptor[], cancelled: AbortSignal): Promise<Record<string, string>> {
    const { wanted, client, granted } = this.#options;
    const { image, reference, resolved } = wanted;
    const signal = AbortSignal.any([cancelled, this.#failed.signal]);
    const { digest } = resolved.config;
    this.#config = await readBody(await client.get(`blobs/${digest}`, ["*/*"], signal), MAX_CONFIG_BYTES);
    this.#diffIds = readDiffIds(image, resolved, this.#config);
    try {
      await this.#fetchAll(unproven, signal);
      await granted.during(this.#grant(signal), async (auth) => {
        const asked = { image: { image: `${repository(reference)}@${resolved.manifestDigest}` }, auth };
        // Its time is the caller's.
        const { imageRef } = await cri.images.pullImage(asked, cri.endless(signal));
        if (imageRef !== digest) throw new Error(`the runtime has made ${imageRef} of ${digest}`);
      });
    } catch (thrown) {
      // Why it failed here is more than what the runtime makes of it.
      throw this.#failed.signal.aborted ? (this.#failed.signal.reason as Error) : thrown;
    } finally {
      await Promise.allSettled(this.#files.values());
    }
    return this.#learned;
  }

  #grant(signal: AbortSignal): Grant {
    const { image, resolved } = this.#options.wanted;
    const { manifestDigest, content, config, layers } = resolved;
    const { mediaType } = readDocument(image, content);
    const isKnown = typeof mediaType === "string" && MANIFEST_TYPES.includes(mediaType);
    return {
      manifest: { digest: manifestDigest, mediaType: isKnown ? mediaType : MANIFEST_TYPES[0]!, content },
      blobs: new Map([config, ...layers].map(({ digest, size }) => [digest, size])),
      open: async (digest) => {
        if (digest === config.digest) return Readable.from([this.#config]);
        // The repository has sent it once, but the runtime has it no more.
        return createReadStream(
          await this.#fetched(
            layers.find((layer) => layer.digest === digest)!,
            signal,
          ),
        );
      },
    };
  }

  async #fetchAll(layers: readonly Descriptor[], signal: AbortSignal): Promise<void> {
    const waiting = [...layers];
    const some = async () => {
      for (let layer = waiting.shift(); layer !== undefined; layer = waiting.shift())
        await this.#fetched(layer, signal);
    };
    await Promise.all(Array.from({ length: PARALLEL_LAYERS }, some));
  }

  #fetched(layer: Descriptor, signal: AbortSignal): Promise<string> {
    const known = this.#files.get(layer.digest);
    if (known !== undefined) return known;
    const file = this.#fetch(layer, signal).catch((thrown: unknown) => {
      // One that fails ends the others.
      if (!this.#failed.signal.aborted) this.#failed.abort(toError(thrown));
      throw thrown;
    });
    this.#files.set(layer.digest, file);
    return file;
  }

  async #fetch(layer: Descriptor, signal: AbortSignal): Promise<string> {
    const file = join(this.#options.dir, layer.digest.slice("sha256:".length));
    this.#fetching++;
    this.#arrivedAt = this.#options.clock.monotonic();
    try {
      const body = await this.#options.client.get(`blobs/${layer.digest}`, ["*/*"], signal);
      await pipeline(this.#proven(layer, body), createWriteStream(file, { mode: 0o600 }), { signal });
      return file;
    } finally {
      this.#fetching--;
    }
  }

  /** Passes a layer on that is what it was announced as, and unpacks to what the image says. */
  async *#proven({ digest, size }: Descriptor, content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const { budget, clock } = this.#options;
    const packed = createHash("sha256");
    const unpacked = createHash("sha256");
    let bytes = 0;
    for await (const piece of metered(content, budget, unpacked)) {
      this.#arrivedAt = clock.monotonic();
      bytes += piece.length;
      if (bytes > size)
        throw new LayerError(`the registry sends more than the ${size} bytes that it has announced of ${digest}`);
      packed.update(piece);
      yield piece;
    }
    if (bytes < size) throw new LayerError(`the registry sends ${bytes} bytes of ${digest}, which has ${size}`);
    if (`sha256:${packed.digest("hex")}` !== digest)
      throw new LayerError(`the registry answered with a blob that does not match its digest ${digest}`);
    const diffId = `sha256:${unpacked.digest("hex")}`;
    if (diffId !== this.#diffIds.get(digest))
      throw new LayerError(`the layer ${digest} unpacks to ${diffId}, not to what the image's configuration says`);
    this.#learned[digest] = diffId;
  }
}
