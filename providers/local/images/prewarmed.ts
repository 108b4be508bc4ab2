/**
 * Images that are pulled before a machine asks for them, and kept for as long as they are listed: by the backend's
 * configuration, or by its clients. The list outlives this process; credentials do not, so what was to be pulled with
 * some is tried without after a restart, until its client gives them again.
 *
 * The list takes room from what garbage collection may free, so it has bounds: how many, and how many bytes together.
 */
import { createHash } from "node:crypto";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import {
  assertSameImage,
  type Clock,
  doubledMs,
  type ImageProvider,
  isSubset,
  type Logger,
  noSuchImage,
  type PrewarmedImage,
  type PrewarmSpec,
  ProviderError,
  type RegistryAuth,
  toError,
} from "../../../src/provider/kit/index.ts";
import { ContainerError, type FoundImage, type ImageStore } from "../engine.ts";
import { writeJson } from "../host/files.ts";
import { TornFiles } from "../host/torn-files.ts";
import { ImageDisk } from "./disk.ts";
import { parseReference } from "./reference.ts";

export interface PrewarmOptions {
  /** What the host's owner lists. */
  images?: readonly string[] | undefined;
  /** Default 100. */
  maxImages?: number | undefined;
  /** All of them together. Default: a quarter of the disk that they are on. */
  maxBytes?: number | undefined;
}

interface PrewarmedOptions extends PrewarmOptions {
  store: ImageStore;
  stateDir: string;
  clock: Clock;
  logger: Logger;
  /** What garbage collection has to spare is another set than before. */
  onChanged: () => void;
}

/** What is on the host. */
interface Held {
  location: string;
  imageId: string;
  sizeBytes: number;
}

/** As it is written down. */
interface Kept {
  id: string;
  image: string;
  labels: Record<string, string>;
  createdAt: string;
  /** By the host's owner. */
  isListed: boolean;
  held?: Held | undefined;
}

interface Entry extends Kept {
  auth: readonly RegistryAuth[];
  failures: number;
  /** Of what was pulled and is more than there may be. */
  excessBytes?: number | undefined;
  /** Why it is not here. */
  problem?: { reason: string; message: string } | undefined;
  /** Ends what is under way for it. */
  stop: AbortController;
}

const MAX_IMAGES = 100;
const SHARE_OF_DISK = 0.25;
/** A kubelet's, of images that cannot be pulled. */
const RETRY_MS = { first: 10_000, max: 300_000 };
/** How often it is looked whether what was ready still is. */
const LOOK_MS = 10 * 60_000;
/** Its pulls leave machines room for theirs. */
const TENANT = "images.prewarm";
const LABELS_BYTES = 4096;
const AUTH_BYTES = 64 * 1024;

export class PrewarmedImages {
  /** The images, as clients have them. */
  readonly api: ImageProvider;
  readonly #options: PrewarmedOptions;
  readonly #file: string;
  readonly #entries = new Map<string, Entry>();
  readonly #work = new Set<Promise<void>>();
  #isClosed = false;

  /** Knows at once what a former backend has kept. @throws what the system says when its list cannot be read */
  constructor(options: PrewarmedOptions) {
    const { stateDir, logger, images = [], clock } = options;
    this.#options = options;
    this.#file = join(stateDir, "prewarmed.json");
    const listed = new Map(images.map((image) => [listedId(image), image]));
    for (const kept of new TornFiles(stateDir, logger).readJson(this.#file, isList) ?? [])
      this.#addKept(kept, listed.get(kept.id));
    const createdAt = new Date(clock.now()).toISOString();
    for (const [id, image] of listed)
      if (!this.#entries.has(id)) this.#add({ id, image, labels: {}, createdAt, isListed: true });
    const call = async <T>({ signal }: { signal: AbortSignal }, work: () => T): Promise<T> => {
      signal.throwIfAborted();
      if (this.#isClosed) throw new ProviderError("unavailable", "the backend is stopping");
      return work();
    };
    this.api = {
      create: (id, spec, options) => call(options, () => this.#create(id, spec)),
      get: (id, options) => call(options, () => shown(this.#find(id))),
      list: ({ labels, signal }) => call({ signal }, () => this.#list(labels)),
      delete: (id, options) => call(options, () => this.#delete(id)),
    };
  }

  /** Where those are that are here: for garbage collection to spare. */
  locations(): string[] {
    return [...this.#entries.values()].flatMap(({ held }) => held?.location ?? []);
  }

  /** Sees to it that all of them are here, from now on. */
  start(): void {
    for (const entry of this.#entries.values()) this.#begin(entry);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { stop } of this.#entries.values()) stop.abort();
    await Promise.all(this.#work);
  }

  /** @param listed what the host's owner lists by this id, which a client may have taken before */
  #addKept(kept: Kept, listed: string | undefined): void {
    if (listed === undefined && !kept.isListed) this.#add(kept);
    if (listed === kept.image) this.#add({ ...kept, labels: {}, isListed: true });
  }

  #add(kept: Kept): Entry {
    const entry: Entry = { ...kept, auth: [], failures: 0, stop: new AbortController() };
    this.#entries.set(kept.id, entry);
    return entry;
  }

  #find(id: string): Entry {
    const entry = this.#entries.get(id);
    if (entry === undefined) throw noSuchImage(id);
    return entry;
  }

  #list(labels: Record<string, string>): PrewarmedImage[] {
    const wanted = [...this.#entries.values()].filter((entry) => isSubset(labels, entry.labels));
    return wanted.toSorted((a, b) => (a.id < b.id ? -1 : 1)).map(shown);
  }

  #create(id: string, spec: PrewarmSpec): PrewarmedImage {
    const { image, labels, registry_auth: auth = [] } = spec;
    assertModest(spec);
    const known = this.#entries.get(id);
    if (known !== undefined) {
      assertSameImage(id, shown(known), spec);
      const isOther = JSON.stringify(known.auth) !== JSON.stringify(auth);
      known.auth = auth;
      if (known.problem !== undefined || (isOther && known.held === undefined)) this.#begin(known);
      return shown(known);
    }
    const { maxImages = MAX_IMAGES, clock } = this.#options;
    if (this.#entries.size >= maxImages)
      throw new ProviderError("quota", `${maxImages} images are kept ready, which is all there may be`);
    const entry = this.#add({ id, image, labels, createdAt: new Date(clock.now()).toISOString(), isListed: false });
    entry.auth = auth;
    try {
      this.#save();
    } catch (thrown) {
      this.#entries.delete(id);
      throw thrown;
    }
    this.#begin(entry);
    return shown(entry);
  }

  #delete(id: string): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    if (entry.isListed)
      throw new ProviderError("conflict", `image ${id} is listed in the backend's own configuration (prewarm.images)`);
    this.#entries.delete(id);
    try {
      this.#save();
    } catch (thrown) {
      this.#entries.set(id, entry);
      throw thrown;
    }
    entry.stop.abort();
    this.#options.onChanged();
  }

  /** @throws ProviderError when it cannot be written: then nothing has changed */
  #save(): void {
    const kept = [...this.#entries.values()].map(({ id, image, labels, createdAt, isListed, held }): Kept => ({
      ...{ id, image, labels, createdAt, isListed },
      ...(held && { held }),
    }));
    try {
      writeJson(this.#file, kept, { flush: true });
    } catch (thrown) {
      const why = toError(thrown).message;
      throw new ProviderError("unavailable", `the list of images cannot be written: ${why}`, { cause: thrown });
    }
  }

  /** In the place of what is under way for it. */
  #begin(entry: Entry): void {
    entry.stop.abort();
    entry.stop = new AbortController();
    entry.failures = 0;
    entry.problem = undefined;
    const work = this.#keep(entry, entry.stop.signal).finally(() => this.#work.delete(work));
    this.#work.add(work);
  }

  async #keep(entry: Entry, signal: AbortSignal): Promise<void> {
    const { clock, logger } = this.#options;
    while (!signal.aborted) {
      try {
        await this.#have(entry, signal);
        entry.failures = 0;
        entry.problem = undefined;
      } catch (thrown) {
        if (signal.aborted) return;
        const reason = thrown instanceof ContainerError ? thrown.reason : "ErrImagePull";
        const { message } = toError(thrown);
        entry.problem = { reason: isQuota(thrown) ? "Quota" : reason, message };
        if (entry.failures++ === 0) logger.warn({ image: entry.image, err: thrown }, "Cannot keep an image ready yet");
      }
      const waitMs = entry.problem === undefined ? LOOK_MS : doubledMs(RETRY_MS, entry.failures - 1);
      await clock.sleep(waitMs, signal).catch(() => undefined);
    }
  }

  /** What the name means on this host, pulled when it is not here. */
  async #have(entry: Entry, signal: AbortSignal): Promise<void> {
    const { store, logger } = this.#options;
    const { image, held } = entry;
    const found = held && (await store.find(image));
    signal.throwIfAborted();
    if (held !== undefined && found !== undefined) {
      // What a tag means by now may be another image, of another size, that some machine has pulled.
      const isOther = found.location !== held.location;
      return isOther ? await this.#takeOver(entry, found, signal) : this.#hold(entry, heldOf(found));
    }
    if (held !== undefined) this.#hold(entry, undefined);
    if (entry.excessBytes !== undefined) this.#assertFits(entry, entry.excessBytes, await this.#maxBytes());
    const pulled = await store.pull(image, { auth: entry.auth, tenant: TENANT, signal });
    await this.#takeIn(entry, pulled, signal);
    logger.info({ image, bytes: pulled.sizeBytes }, "Image pulled ahead of its use");
  }

  #hold(entry: Entry, held: Held | undefined): void {
    const before = entry.held;
    if (isDeepStrictEqual(before, held)) return;
    entry.held = held;
    // What was pulled just now must not be collected.
    this.#options.onChanged();
    try {
      this.#save();
    } catch (thrown) {
      entry.held = before;
      this.#options.onChanged();
      throw thrown;
    }
  }

  /** @throws ProviderError quota: then what it was before is not kept either, which no name means any more */
  async #takeOver(entry: Entry, found: FoundImage, signal: AbortSignal): Promise<void> {
    try {
      await this.#takeIn(entry, found, signal);
    } catch (thrown) {
      if (!signal.aborted && isQuota(thrown)) this.#hold(entry, undefined);
      throw thrown;
    }
  }

  /** @throws ProviderError quota */
  async #takeIn(entry: Entry, image: FoundImage, signal: AbortSignal): Promise<void> {
    const maxBytes = await this.#maxBytes();
    signal.throwIfAborted();
    // In one step: what comes at the same time is not to take the same room.
    this.#assertFits(entry, image.sizeBytes, maxBytes, image.location);
    entry.excessBytes = undefined;
    this.#hold(entry, heldOf(image));
  }

  async #maxBytes(): Promise<number> {
    return this.#options.maxBytes ?? (await this.#diskBytes()) * SHARE_OF_DISK;
  }

  /** @throws ProviderError quota */
  #assertFits(entry: Entry, sizeBytes: number, maxBytes: number, location?: string): void {
    const others = new Map<string, number>();
    for (const { id, held } of this.#entries.values())
      if (id !== entry.id && held !== undefined) others.set(held.location, held.sizeBytes);
    if (location !== undefined && others.has(location)) return;
    const bytes = [...others.values()].reduce((sum, each) => sum + each, sizeBytes);
    if (bytes <= maxBytes) return;
    entry.excessBytes = sizeBytes;
    throw new ProviderError(
      "quota",
      `${entry.image} has ${sizeBytes} bytes: with it, images that are kept ready would have ${bytes}, more than the ${Math.floor(maxBytes)} that they may have (prewarm.maxSize)`,
    );
  }

  async #diskBytes(): Promise<number> {
    const { store, clock } = this.#options;
    const dir = await store.place?.();
    return dir === undefined ? Infinity : (await new ImageDisk({ dir, clock }).use()).totalBytes;
  }
}

interface Surroundings {
  engine: { readonly images?: ImageStore | undefined };
  prewarm?: PrewarmOptions | undefined;
  stateDir: string;
  clock: Clock;
  logger: Logger;
}

/** Undefined where the engine has no images. */
export function prewarmedOf(options: Surroundings, onChanged: () => void): PrewarmedImages | undefined {
  const { engine, prewarm, stateDir, clock, logger } = options;
  if (engine.images === undefined) return undefined;
  return new PrewarmedImages({ ...prewarm, store: engine.images, stateDir, clock, logger, onChanged });
}

/** The same for the same image, whatever else is listed. @internal */
export const listedId = (image: string): string =>
  `config-${createHash("sha256").update(image).digest("hex").slice(0, 16)}`;

const heldOf = ({ location, imageId, sizeBytes }: FoundImage): Held => ({ location, imageId, sizeBytes });
const isQuota = (thrown: unknown): boolean => thrown instanceof ProviderError && thrown.code === "quota";

function shown({ id, image, labels, createdAt, held, problem }: Entry): PrewarmedImage {
  const base = { id, image, labels, created_at: createdAt };
  if (problem !== undefined) return { ...base, state: "waiting", ...problem };
  if (held === undefined) return { ...base, state: "pulling" };
  return { ...base, state: "ready", image_id: held.imageId, size_bytes: held.sizeBytes };
}

/** What is kept in memory for each of them must not be what a client likes. @throws ProviderError invalid */
function assertModest({ image, labels, registry_auth: auth = [] }: PrewarmSpec): void {
  const assertBytes = (field: string, value: unknown, most: number) => {
    if (JSON.stringify(value).length > most)
      throw new ProviderError("invalid", `${field} has more than ${most} bytes`, { field });
  };
  assertBytes("labels", labels, LABELS_BYTES);
  assertBytes("registry_auth", auth, AUTH_BYTES);
  try {
    parseReference(image);
  } catch (thrown) {
    throw new ProviderError("invalid", toError(thrown).message, { field: "image", cause: thrown });
  }
}

function isList(value: unknown): value is Kept[] {
  return Array.isArray(value) && value.every(isKept);
}

function isKept(value: unknown): value is Kept {
  const { id, image, labels, createdAt, isListed, held } = (value ?? {}) as Partial<Record<keyof Kept, unknown>>;
  const { location, imageId, sizeBytes } = (held ?? {}) as Partial<Record<keyof Held, unknown>>;
  const isWholeHeld =
    held === undefined ||
    (typeof location === "string" && typeof imageId === "string" && Number.isSafeInteger(sizeBytes));
  return (
    [id, image, createdAt].every((each) => typeof each === "string") &&
    typeof labels === "object" &&
    labels !== null &&
    typeof isListed === "boolean" &&
    isWholeHeld
  );
}
