/**
 * What registries have: the manifest that a name means, and its blobs. Knows nothing of what is on this host. Tenants
 * choose the registries: `destinations.ts` says which of them, and of what they lead to, are connected to.
 */
import type { SecureContext } from "node:tls";
import type { RegistryAuth } from "../../../src/provider/kit/index.ts";
import { ContainerError, type ContainerErrorReason } from "../engine.ts";
import { Destinations, DestinationError } from "./destinations.ts";
import { Layout } from "./layout.ts";
import {
  choosePlatform,
  type Descriptor,
  digestOf,
  INDEX_TYPES,
  isIndex,
  type Manifest,
  MANIFEST_TYPES,
  MAX_MANIFEST_BYTES,
  readDocument,
  readManifest,
} from "./manifest.ts";
import { assertAccepted } from "./policy.ts";
import { redact } from "./redact.ts";
import { matchingCredentials, type ImageReference } from "./reference.ts";
import { hostSecureContext, readBody, RegistryClient, RegistryError } from "./registry-client.ts";

interface RegistryOptions {
  destinations: Destinations;
  /** OCI names: `linux`, `amd64`. */
  platform: { os: string; architecture: string };
  /** Limit on a layer that has to be compressed again. */
  maxLayerBytes: number;
}

/** What a reference means right now. */
export interface ResolvedImage extends Manifest {
  /** Digest of what the reference names: an index where the registry has one, else the manifest. */
  digest: string;
  /** Digest of this platform's manifest. Where a digest led to it, the registry's answer was held against that. */
  manifestDigest: string;
  /** What that manifest says, as the registry sent it. */
  content: Buffer;
  /** The credential that the registry accepted; undefined for anonymous. */
  credential: RegistryAuth | undefined;
}

/** Blobs of one image that are fetched at a time, as by containerd. */
const PARALLEL_BLOBS = 3;

export class Registry {
  readonly #options: RegistryOptions;
  #secureContext: SecureContext | undefined;

  constructor(options: RegistryOptions) {
    this.#options = options;
  }

  /**
   * Reads the manifest for this platform; tries each matching credential in turn, without any when none matches.
   * @throws ContainerError
   */
  async resolve(
    image: string,
    reference: ImageReference,
    auth: readonly RegistryAuth[],
    signal: AbortSignal,
  ): Promise<ResolvedImage> {
    const matching = matchingCredentials(reference, auth);
    const candidates: (RegistryAuth | undefined)[] = matching.length > 0 ? matching : [undefined];
    for (const [index, credential] of candidates.entries()) {
      try {
        assertAccepted(image, reference);
        const read = (client: RegistryClient) => this.#resolveWith(image, reference, client, signal);
        return { ...(await this.asking(reference, credential, read)), credential };
      } catch (thrown) {
        const denied = thrown instanceof RegistryError && thrown.kind === "denied";
        if (denied && index + 1 < candidates.length) continue;
        throw pullError(image, thrown, signal);
      }
    }
    throw new Error("unreachable: there is always a candidate");
  }

  /**
   * Puts configuration and layers into the OCI layout at `layoutDir`, and what names them. Blobs that are there already
   * are not asked for.
   * @param onBytes is told of each piece that arrives or is compressed again, in bytes
   * @returns the digests of what the image is made of there: manifest, configuration, layers
   * @throws ContainerError
   */
  async copy(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    layoutDir: string,
    options: { onBytes: (bytes: number) => void; signal: AbortSignal },
  ): Promise<string[]> {
    const { signal } = options;
    const layout = new Layout(layoutDir);
    try {
      const missing = await layout.missing([resolved.config, ...resolved.layers]);
      await this.asking(reference, resolved.credential, async (client) => {
        // One that fails ends the others.
        const failed = new AbortController();
        const both = AbortSignal.any([signal, failed.signal]);
        const fetchAll = async () => {
          for (let blob = missing.shift(); blob !== undefined; blob = missing.shift())
            await fetchBlob(client, image, blob, layout, { ...options, signal: both });
        };
        const workers = Array.from({ length: PARALLEL_BLOBS }, () =>
          fetchAll().catch((thrown: unknown) => {
            if (!failed.signal.aborted) failed.abort(thrown);
            throw thrown;
          }),
        );
        await Promise.allSettled(workers);
        await Promise.all(workers);
      });
      return await layout.complete(image, resolved, { ...options, maxBytes: this.#options.maxLayerBytes });
    } catch (thrown) {
      throw pullError(image, thrown, signal);
    }
  }

  /** Speaks to a registry as long as `work` goes on. */
  async asking<T>(
    reference: ImageReference,
    credential: RegistryAuth | undefined,
    work: (client: RegistryClient) => Promise<T>,
  ): Promise<T> {
    this.#secureContext ??= hostSecureContext();
    const { destinations } = this.#options;
    const client = new RegistryClient({ destinations, secureContext: this.#secureContext, reference, credential });
    try {
      return await work(client);
    } finally {
      await client.close();
    }
  }

  async #resolveWith(
    image: string,
    reference: ImageReference,
    client: RegistryClient,
    signal: AbortSignal,
  ): Promise<Omit<ResolvedImage, "credential">> {
    const named = await fetchManifest(client, reference.digest ?? reference.tag!, signal);
    const digest = reference.digest ?? digestOf(named);
    const document = readDocument(image, named, digest);
    if (!isIndex(document)) return { digest, manifestDigest: digest, content: named, ...readManifest(image, document) };
    const manifestDigest = choosePlatform(image, document, this.#options.platform);
    const content = await fetchManifest(client, manifestDigest, signal);
    const manifest = readManifest(image, readDocument(image, content, manifestDigest));
    return { digest, manifestDigest, content, ...manifest };
  }
}

async function fetchManifest(client: RegistryClient, tagOrDigest: string, signal: AbortSignal): Promise<Buffer> {
  const body = await client.get(`manifests/${tagOrDigest}`, [...MANIFEST_TYPES, ...INDEX_TYPES], signal);
  return await readBody(body, MAX_MANIFEST_BYTES);
}

async function fetchBlob(
  client: RegistryClient,
  image: string,
  blob: Descriptor,
  layout: Layout,
  options: { onBytes: (bytes: number) => void; signal: AbortSignal },
): Promise<void> {
  const body = await client.get(`blobs/${blob.digest}`, ["*/*"], options.signal);
  await layout.write(image, blob, body, options);
}

/** With what helps a person. Aborts pass through unchanged. */
export function pullError(image: string, thrown: unknown, signal: AbortSignal): Error {
  if (signal.aborted) return signal.reason as Error;
  if (thrown instanceof ContainerError) return thrown;
  const error = thrown instanceof DestinationError ? thrown : ofRegistry(thrown);
  const told = (reason: ContainerErrorReason, text: string) => new ContainerError(reason, text, { cause: error });
  switch (error instanceof RegistryError ? error.kind : "refused") {
    case "denied":
      return told(
        "ErrImagePull",
        `${image}: pull access denied, the repository does not exist or may require authorization: ${error.message}`,
      );
    case "not_found":
      return told("ErrImagePull", `${image}: not found: ${error.message}`);
    case "unavailable":
      return told(
        "RegistryUnavailable",
        `image pull failed for ${image} because the registry is unavailable: ${error.message}`,
      );
    case "refused":
      return told("ErrImagePull", `${image}: ${error.message}`);
  }
}

/** A connection that breaks off while a body is read throws what no method of the client has seen. */
function ofRegistry(thrown: unknown): RegistryError {
  if (thrown instanceof RegistryError) return thrown;
  const { code, message } = thrown instanceof Error ? (thrown as NodeJS.ErrnoException) : { message: String(thrown) };
  const isBrokenOff = /^(?:UND_ERR|ECONN|EPIPE|ETIMEDOUT|EHOST|ENET)/.test(code ?? "");
  return new RegistryError(isBrokenOff ? "unavailable" : "refused", redact(message));
}
