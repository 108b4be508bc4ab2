/**
 * The runtime's images. The runtime pulls, unpacks and keeps them; here is what it has no notion of: which image a name
 * meant, and for whom (images/names.ts), how many pulls a tenant may have, and when which of them goes.
 *
 * Pulls of a containerd of our own are own-pulls.ts. A runtime of another's connects to whatever address a registry
 * has, checks no limits of an image's size, and gives a layer that it has to any manifest that names its digest.
 */
import { mkdirSync } from "node:fs";
import { type Clock, type Logger, type RegistryAuth, SharedPlaces } from "../../../../src/provider/kit/index.ts";
import { ContainerError, type ImageConfig, type FoundImage, type ImageStore } from "../../engine.ts";
import { TornFiles } from "../../host/torn-files.ts";
import { type GcOptions, ImageCollector } from "../../images/collector.ts";
import { ImageDisk, MIN_FREE_BYTES } from "../../images/disk.ts";
import { ImageNames } from "../../images/names.ts";
import {
  fullName,
  type ImageReference,
  matchingCredentials,
  parseReference,
  repository,
} from "../../images/reference.ts";
import { assertAccepted } from "../../images/policy.ts";
import { redact } from "../../images/redact.ts";
import type { Image } from "./api.gen.js";
import type { PullLimits } from "../../images/pull-limits.ts";
import { OwnPulls } from "./own-pulls.ts";
import { type CriClient, isNotFound, runtimeMessage, unlessGone } from "./client.ts";

interface CriImagesOptions {
  /** Made when absent: names and what is known of credentials. */
  dir: string;
  client: CriClient;
  clock: Clock;
  logger: Logger;
  /** Pulls of one tenant at a time; of all, twice as many. */
  parallelPulls?: number | undefined;
  pullTimeoutMs?: number | undefined;
  /** How pulls of a runtime of our own are held to limits. Absent: the runtime pulls as it likes. */
  own?: (PullLimits & { announce: (url: string) => Promise<void> }) | undefined;
  gc?: { [key in keyof GcOptions]?: number | undefined } | undefined;
  /** The folder whose file system the runtime keeps images on. */
  imageDir: () => Promise<string>;
}

const QUICK_CALL_MS = 10_000;
const PULL_MS = 30 * 60_000;
const ID_PREFIX = "sha256:";

interface KnownImage {
  id: string;
  sizeBytes: number;
  config: ImageConfig;
  digests: readonly string[];
}

export class CriImages implements ImageStore {
  readonly #options: CriImagesOptions;
  readonly #pulls: SharedPlaces;
  readonly #ownPulls: OwnPulls | undefined;
  readonly #collector: ImageCollector;
  /** When an image was last given to a caller, in ms since the epoch; of others, when they were first seen. */
  readonly #usedAt = new Map<string, number>();
  #names: ImageNames | undefined;

  constructor(options: CriImagesOptions) {
    const { clock, logger, gc: { highPercent = 85, lowPercent = 80, minAgeMs = 120_000 } = {} } = options;
    this.#options = options;
    this.#pulls = new SharedPlaces(options.parallelPulls ?? 2);
    this.#ownPulls =
      options.own &&
      new OwnPulls({
        ...options,
        ...options.own,
        makeRoom: (bytes) => this.#collector.collect(bytes),
        has: async (id) => (await this.#status(id)) !== undefined,
      });
    const usage = async () => await new ImageDisk({ dir: await options.imageDir(), clock }).use();
    this.#collector = new ImageCollector({
      folders: {
        list: () => this.#listUnused(),
        usedAt: (hex) => this.#usedAt.get(hex) ?? 0,
        remove: async (hex, forget) => {
          await forget();
          await this.#remove(hex);
        },
        // The runtime removes what only they needed by itself.
        removeOrphans: () => Promise.resolve(),
      },
      disk: { use: usage },
      clock,
      logger,
      thresholds: { highPercent, lowPercent, minAgeMs },
      forget: (hex) => this.#open().forget(hex),
    });
  }

  #open(): ImageNames {
    const { dir, logger } = this.#options;
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    return (this.#names ??= new ImageNames(dir, new TornFiles(dir, logger)));
  }

  async find(image: string, auth?: readonly RegistryAuth[]): Promise<FoundImage | undefined> {
    const reference = parseReference(image);
    const entry = this.#open().find(reference, auth);
    if (entry === undefined) return undefined;
    return await this.#collector.keepDuring(entry.hex, async () => {
      const known = await this.#status(ID_PREFIX + entry.hex);
      return known === undefined ? undefined : this.#prepared(reference, entry.imageId, known);
    });
  }

  async pull(
    image: string,
    { auth, tenant, signal }: { auth: readonly RegistryAuth[]; tenant: string; signal: AbortSignal },
  ): Promise<FoundImage> {
    const reference = parseReference(image);
    assertAccepted(image, reference);
    this.#open();
    if (this.#ownPulls !== undefined) {
      const { config, digest, credential } = await this.#ownPulls.pull(image, reference, { auth, tenant, signal });
      const known = await this.#whole(config.digest);
      return await this.#given(reference, { known, digest, credential });
    }
    return await this.#pulls.run(
      tenant,
      async () => {
        await this.#assertRoom(image);
        const { known, credential } = await this.#pullWithAny(image, reference, auth, signal);
        const digest = reference.digest ?? digestIn(known.digests, repository(reference)) ?? known.id;
        return await this.#given(reference, { known, digest, credential });
      },
      signal,
    );
  }

  async #given(
    reference: ImageReference,
    { known, ...resolved }: { known: KnownImage; digest: string; credential: RegistryAuth | undefined },
  ): Promise<FoundImage> {
    const hex = known.id.slice(ID_PREFIX.length);
    return await this.#collector.keepDuring(hex, async () => {
      const { imageId } = await this.#open().remember(reference, resolved, hex);
      const prepared = this.#prepared(reference, imageId, known);
      await this.collect();
      return prepared;
    });
  }

  async close(): Promise<void> {
    await this.#ownPulls?.close();
  }

  retain(locations: ReadonlySet<string>): void {
    this.#collector.retain(new Set([...locations].map((id) => id.slice(ID_PREFIX.length))));
  }

  async removeUnused(): Promise<void> {
    await this.#collector.collect(Infinity);
  }

  async place(): Promise<string> {
    return await this.#options.imageDir();
  }

  /** Frees disk as the kubelet does. @returns the ids of images that were removed, without their `sha256:` */
  collect(): Promise<string[]> {
    return this.#collector.collect(0);
  }

  async diskSize(): Promise<number> {
    const { clock, imageDir } = this.#options;
    return (await new ImageDisk({ dir: await imageDir(), clock }).use()).totalBytes;
  }

  async #assertRoom(image: string): Promise<void> {
    const { clock, imageDir } = this.#options;
    const { freeBytes } = await new ImageDisk({ dir: await imageDir(), clock }).use();
    if (freeBytes < MIN_FREE_BYTES)
      throw new ContainerError("ErrImagePull", `${image}: no space left on this host's image disk`);
  }

  /** Tries each matching credential in turn, without any when none matches, as a kubelet does. */
  async #pullWithAny(image: string, reference: ImageReference, auth: readonly RegistryAuth[], signal: AbortSignal) {
    const matching = matchingCredentials(reference, auth);
    const candidates: (RegistryAuth | undefined)[] = matching.length > 0 ? matching : [undefined];
    let failure: unknown;
    for (const credential of candidates) {
      try {
        return { known: await this.#pullOnce(reference, credential, signal), credential };
      } catch (thrown) {
        signal.throwIfAborted();
        failure = thrown;
        if (!isDenied(runtimeMessage(thrown))) break;
      }
    }
    throw pullError(image, failure);
  }

  async #pullOnce(
    reference: ImageReference,
    credential: RegistryAuth | undefined,
    signal: AbortSignal,
  ): Promise<KnownImage> {
    const { client, pullTimeoutMs = PULL_MS } = this.#options;
    const auth =
      credential === undefined
        ? {}
        : {
            auth: {
              username: credential.username ?? "",
              password: credential.password ?? "",
              identityToken: credential.identity_token ?? "",
              // Without the server's address, as a kubelet: containerd knows docker.io, and mirrors, by other names.
            },
          };
    const image = { image: fullName(reference) };
    const { imageRef } = await client.images.pullImage({ image, ...auth }, client.within(pullTimeoutMs, signal));
    return await this.#whole(imageRef);
  }

  async #whole(ref: string): Promise<KnownImage> {
    const known = await this.#status(ref);
    if (known === undefined) throw new Error("the image was removed while it was pulled");
    return known;
  }

  /** Undefined when the runtime does not have it. */
  async #status(ref: string): Promise<KnownImage | undefined> {
    const { client } = this.#options;
    try {
      const asked = { image: { image: ref }, verbose: true };
      const { image, info } = await client.images.imageStatus(asked, client.within(QUICK_CALL_MS));
      if (image === undefined) return undefined;
      return {
        id: image.id,
        sizeBytes: Number(image.size),
        digests: image.repoDigests,
        config: configOf(image, info["info"]),
      };
    } catch (thrown) {
      if (isNotFound(thrown)) return undefined;
      throw new ContainerError("ImageInspectError", runtimeMessage(thrown), { cause: thrown });
    }
  }

  #prepared(reference: ImageReference, imageId: string, { id, config, sizeBytes }: KnownImage): FoundImage {
    this.#usedAt.set(id.slice(ID_PREFIX.length), this.#options.clock.now());
    return { imageId, image: fullName(reference), config, location: id, sizeBytes };
  }

  /** Those that no container has, and that may be removed. */
  async #listUnused(): Promise<string[]> {
    const { client, clock } = this.#options;
    const [{ images }, { containers }] = await Promise.all([
      client.images.listImages({}, client.within(QUICK_CALL_MS)),
      client.runtime.listContainers({}, client.within(QUICK_CALL_MS)),
    ]);
    const used = new Set(containers.flatMap(({ image, imageRef, imageId }) => [image?.image ?? "", imageRef, imageId]));
    const isUsed = ({ id, repoTags, repoDigests }: Image) =>
      [id, ...repoTags, ...repoDigests].some((name) => used.has(name));
    const unused = images.filter((image) => !image.pinned && !isUsed(image));
    const hexes = unused.map(({ id }) => id.slice(ID_PREFIX.length));
    for (const hex of hexes) if (!this.#usedAt.has(hex)) this.#usedAt.set(hex, clock.now());
    return hexes;
  }

  async #remove(hex: string): Promise<void> {
    const { client } = this.#options;
    await unlessGone(client.images.removeImage({ image: { image: ID_PREFIX + hex } }, client.within()));
    this.#usedAt.delete(hex);
  }
}

/** What the runtime says of the image beyond CRI; where it says nothing, what CRI has. */
function configOf({ uid, username }: Image, info: string | undefined): ImageConfig {
  const user = uid === undefined ? username : String(uid.value);
  const { imageSpec } = JSON.parse(info ?? "{}") as { imageSpec?: { config?: Record<string, unknown> } };
  const config = imageSpec?.config ?? {};
  const texts = (value: unknown) => (Array.isArray(value) ? value.map(String) : undefined);
  const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);
  const found = {
    entrypoint: texts(config["Entrypoint"]),
    cmd: texts(config["Cmd"]),
    env: texts(config["Env"]),
    user: text(config["User"]) ?? text(user),
    workingDir: text(config["WorkingDir"]),
    stopSignal: text(config["StopSignal"]),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

function digestIn(repoDigests: readonly string[], name: string): string | undefined {
  return repoDigests.find((each) => each.startsWith(`${name}@`))?.slice(name.length + 1);
}

/**
 * Of a registry without TLS, containerd tells that it has none, and not that it has refused the request that followed
 * (core/remotes/docker/resolver.go: the first of two errors of the same rank).
 */
function isDenied(text: string): boolean {
  return /server gave HTTP response to HTTPS client|unauthorized|authorization failed|access denied|403 Forbidden|insufficient_scope|basic auth/i.test(
    text,
  );
}

/** As a kubelet sorts them: what CRI has a name for stands at the beginning of the runtime's message. */
function pullError(image: string, thrown: unknown): ContainerError {
  if (thrown instanceof ContainerError) return thrown;
  const text = redact(runtimeMessage(thrown));
  const options = { cause: thrown };
  if (isDenied(text))
    return new ContainerError(
      "ErrImagePull",
      `${image}: pull access denied, the repository does not exist or may require authorization: ${text}`,
      options,
    );
  if (/connection refused|no such host|i\/o timeout|no route to host|network is unreachable|50[0234] /i.test(text))
    return new ContainerError(
      "RegistryUnavailable",
      `image pull failed for ${image} because the registry is unavailable: ${text}`,
      options,
    );
  if (/SignatureValidationFailed/.test(text))
    return new ContainerError(
      "SignatureValidationFailed",
      `image pull failed for ${image} because the signature validation failed: ${text}`,
      options,
    );
  return new ContainerError("ErrImagePull", `${image}: ${text}`, options);
}
