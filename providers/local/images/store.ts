/**
 * The images of this host, for every engine that has images. A folder:
 *
 *     blobs/sha256/HEX     layers, configs and manifests as the registry sent them; shared by all images
 *     images/HEX/          one image, named by its manifest's digest: rootfs/, image.json, and what engines derive from it
 *     names.json           which names mean which image
 *     tmp/                 pulls under way; emptied at start
 *
 * An image folder appears by one rename when everything in it is complete, so nothing half-made is ever found.
 */
import { createHash, randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { lstat, mkdir, mkdtemp, readdir, readFile, rename, rm, statfs, symlink, utimes } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import PQueue from "p-queue";
import {
  type Clock,
  goArchitecture,
  type Logger,
  type RegistryAuth,
  unlessAborted,
} from "../../../src/provider/kit/index.ts";
import { ContainerError, type HostProblem, type ImageConfig, type ImageStore, type PreparedImage } from "../engine.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { readFileIfExists, writeFileAtomic } from "../host/files.ts";
import { removeTree } from "../host/remove-tree.ts";
import { fullName, parseReference, repository, type ImageReference } from "./reference.ts";
import { Registry, type ResolvedImage } from "./registry.ts";

export interface HostImagesOptions {
  /** Made when absent. One store belongs to one backend at a time. */
  dir: string;
  clock: Clock;
  logger: Logger;
  insecureRegistries?: readonly string[];
  /** Pulls at a time. */
  parallelPulls?: number;
  /** Limit on the sum of an image's compressed layers. */
  maxImageBytes?: number;
  /** Limit on what an image may take when unpacked. */
  maxUnpackedBytes?: number;
  pullTimeoutMs?: number;
  gc?: Partial<GcOptions>;
  /** Bytes of the file system that the store is on. */
  diskUsage?: () => Promise<{ totalBytes: number; freeBytes: number }>;
}

/** Kubelet's imageGCHighThresholdPercent, imageGCLowThresholdPercent and imageMinimumGCAge. */
export interface GcOptions {
  highPercent: number;
  lowPercent: number;
  minAgeMs: number;
}

/** A pull that leaves less than this is stopped: a full disk would hurt every machine of the host. */
const MIN_FREE_BYTES = 256 * 1024 * 1024;
const DISK_CHECK_MS = 250;
/** Registries asked at a time what a name means: each question is a process of its own. */
const QUESTIONS = 8;
/** A registry that does not answer must not keep others from being asked. */
const ANSWER_MS = 60_000;
/** containerd's image_pull_progress_timeout: a pull that stands still must not keep others waiting. */
const STALL_MS = 5 * 60_000;
/** What skopeo may write beside blobs of the announced sizes: its index, and a little more where it compresses by itself. */
const COPY_SLACK = { bytes: 1024 * 1024, ratio: 1.01 };
const HEX = /^[0-9a-f]{64}$/;

interface StoredImage {
  manifestDigest: string;
  config: ImageConfig;
  /** Blobs that the image is made of: manifest, config, layers. */
  blobs: string[];
  /** Compressed size, what a registry would say. */
  sizeBytes: number;
}

interface NameEntry {
  /** `repo@sha256:...` of what the name resolved to. */
  imageId: string;
  /** Folder in images/. */
  hex: string;
  /** Salted hashes of the credentials with which the registry gave it out; `anonymous` when it needs none. */
  seenBy: string[];
}

interface SharedPull {
  promise: Promise<StoredImage>;
  abort: AbortController;
  waiters: number;
}

export class HostImages implements ImageStore {
  readonly #options: HostImagesOptions;
  readonly #limits: { maxImageBytes: number; maxUnpackedBytes: number; pullTimeoutMs: number };
  readonly #gc: GcOptions;
  readonly #registry: Registry;
  readonly #questions = new PQueue({ concurrency: QUESTIONS });
  readonly #queue: PQueue;
  readonly #pulls = new Map<string, SharedPull>();
  #saved: Promise<void> = Promise.resolve();
  #collected: Promise<unknown> = Promise.resolve();
  #state: { names: Record<string, NameEntry>; salt: Buffer } | undefined;
  /** Folders of images that machines need. Not by name: what a name means can change while a machine runs. */
  #retained: ReadonlySet<string> | undefined;
  /** Folders of images that callers are being given just now, and to how many: nobody has said yet that they are needed. */
  readonly #givenOut = new Map<string, number>();

  constructor(options: HostImagesOptions) {
    this.#options = options;
    this.#limits = {
      maxImageBytes: options.maxImageBytes ?? 20 * 1024 ** 3,
      maxUnpackedBytes: options.maxUnpackedBytes ?? 50 * 1024 ** 3,
      pullTimeoutMs: options.pullTimeoutMs ?? 30 * 60_000,
    };
    this.#gc = { highPercent: 85, lowPercent: 80, minAgeMs: 120_000, ...options.gc };
    this.#queue = new PQueue({ concurrency: options.parallelPulls ?? 2 });
    this.#registry = new Registry({
      insecureRegistries: options.insecureRegistries ?? [],
      platform: { os: "linux", architecture: goArchitecture(process.arch) },
      tmpDir: join(options.dir, "tmp"),
    });
  }

  /** What is on disk, read at the first use; what an earlier process left unfinished is removed then. */
  #open(): { names: Record<string, NameEntry>; salt: Buffer } {
    if (this.#state !== undefined) return this.#state;
    const { dir } = this.#options;
    rmSync(join(dir, "tmp"), { recursive: true, force: true });
    for (const folder of ["tmp", "images", "blobs/sha256"])
      mkdirSync(join(dir, folder), { recursive: true, mode: 0o700 });
    const saltFile = join(dir, "salt");
    if (!existsSync(saltFile)) writeFileSync(saltFile, randomBytes(32), { mode: 0o600, flush: true });
    const namesFile = join(dir, "names.json");
    const names = existsSync(namesFile)
      ? (JSON.parse(readFileSync(namesFile, "utf8")) as Record<string, NameEntry>)
      : {};
    this.#state = { names, salt: readFileSync(saltFile) };
    return this.#state;
  }

  /** What the host lacks for images. */
  static check(): HostProblem[] {
    return ["skopeo", "umoci"]
      .filter((tool) => findTool(tool) === undefined)
      .map((tool) => ({
        fatal: true,
        problem: `${tool} is not on the PATH`,
        cure: `install the package ${tool} (Debian: apt-get install ${tool})`,
      }));
  }

  async find(image: string, auth?: readonly RegistryAuth[]): Promise<PreparedImage | undefined> {
    const reference = parseReference(image);
    const entry = this.#lookUp(reference);
    if (entry === undefined || (auth !== undefined && !this.#mayUse(entry, auth))) return undefined;
    return await this.#spared(entry.hex, async () => {
      const stored = await this.#stored(entry.hex);
      return stored === undefined ? undefined : await this.#prepared(reference, entry, stored);
    });
  }

  async pull(
    image: string,
    options: { auth: readonly RegistryAuth[]; signal: AbortSignal },
  ): Promise<PreparedImage & { sizeBytes: number }> {
    const reference = parseReference(image);
    this.#open();
    const timeout = AbortSignal.timeout(this.#limits.pullTimeoutMs);
    const signal = AbortSignal.any([options.signal, timeout]);
    try {
      const ask = () => this.#ask(image, reference, options.auth, signal);
      const resolved = await this.#questions.add(ask, { signal });
      const hex = hexOf(resolved.manifestDigest);
      return await this.#spared(hex, async () => {
        const stored = (await this.#stored(hex)) ?? (await this.#pullShared(image, reference, resolved, signal));
        const entry = await this.#remember(reference, resolved);
        await this.collect();
        return { ...(await this.#prepared(reference, entry, stored)), sizeBytes: stored.sizeBytes };
      });
    } catch (cause) {
      if (timeout.aborted && !options.signal.aborted)
        throw new ContainerError(
          "ErrImagePull",
          `${image}: the pull took longer than ${this.#limits.pullTimeoutMs / 1000} s`,
          { cause },
        );
      throw cause;
    }
  }

  /** Does `work` for somebody who is given the image in this folder: it is not removed meanwhile. */
  async #spared<T>(hex: string, work: () => Promise<T>): Promise<T> {
    this.#givenOut.set(hex, (this.#givenOut.get(hex) ?? 0) + 1);
    try {
      return await work();
    } finally {
      const others = this.#givenOut.get(hex)! - 1;
      if (others === 0) this.#givenOut.delete(hex);
      else this.#givenOut.set(hex, others);
    }
  }

  async #ask(
    image: string,
    reference: ImageReference,
    auth: readonly RegistryAuth[],
    signal: AbortSignal,
  ): Promise<ResolvedImage> {
    const late = new AbortController();
    const cancel = this.#options.clock.after(ANSWER_MS, () =>
      late.abort(
        new ContainerError(
          "RegistryUnavailable",
          `image pull failed for ${image} because the registry is unavailable: no answer within ${ANSWER_MS / 1000} s`,
        ),
      ),
    );
    try {
      return await this.#registry.resolve(image, reference, auth, AbortSignal.any([signal, late.signal]));
    } finally {
      cancel();
    }
  }

  retain(locations: ReadonlySet<string>): void {
    this.#retained = new Set([...locations].map((location) => basename(dirname(location))));
  }

  /** Bytes of the file system that images and machines' disks are on. */
  async diskSize(): Promise<number> {
    return (await this.#diskUsage()).totalBytes;
  }

  /**
   * Frees disk as the kubelet does: above the high threshold, images that no machine needs go, least recently used
   * first, until the low threshold is reached. Nothing is removed before `retain` has said what is needed.
   * @param roomBytes that are to be free afterwards, whatever the thresholds
   * @returns the folders of images/ that were removed
   */
  collect(roomBytes = 0): Promise<string[]> {
    // One after another: two at once would remove the same image.
    const turn = this.#collected.then(() => this.#collect(roomBytes));
    this.#collected = turn.catch(() => undefined);
    return turn;
  }

  async #collect(roomBytes: number): Promise<string[]> {
    if (this.#retained === undefined || (await this.#hasRoom(this.#gc.highPercent, roomBytes))) return [];
    this.#open();
    await this.#removeOrphans();
    const images = (await this.#imageFolders()).map((hex) => ({ hex, usedAt: this.#usedAt(hex) }));
    const removed: string[] = [];
    for (const { hex } of images.toSorted((a, b) => a.usedAt - b.usedAt)) {
      if (await this.#hasRoom(this.#gc.lowPercent, roomBytes)) break;
      // Only now: removing the ones before may have taken minutes.
      if (!this.#isUnused(hex)) continue;
      await this.#remove(hex);
      removed.push(hex);
    }
    if (removed.length > 0) this.#options.logger.info({ images: removed.length }, "images removed to free disk");
    return removed;
  }

  #isUnused(hex: string): boolean {
    if (this.#givenOut.has(hex) || this.#retained!.has(hex)) return false;
    if (this.#options.clock.now() - this.#usedAt(hex) < this.#gc.minAgeMs) return false;
    // Whatever anybody has said: the ground of a running container stays.
    return !readFileSync("/proc/self/mountinfo", "latin1").includes(hex);
  }

  /** When it was last given to somebody, in ms since the epoch. */
  #usedAt(hex: string): number {
    return statSync(join(this.#imageDir(hex), "image.json")).mtimeMs;
  }

  #lookUp(reference: ImageReference): NameEntry | undefined {
    const byName = this.#open().names[fullName(reference)];
    if (byName !== undefined || reference.digest === undefined) return byName;
    const imageId = `${repository(reference)}@${reference.digest}`;
    return Object.values(this.#open().names).find((entry) => entry.imageId === imageId);
  }

  async #prepared(reference: ImageReference, entry: NameEntry, stored: StoredImage): Promise<PreparedImage> {
    const now = this.#options.clock.now() / 1000;
    await utimes(join(this.#imageDir(entry.hex), "image.json"), now, now);
    return {
      imageId: entry.imageId,
      image: fullName(reference),
      config: stored.config,
      location: join(this.#imageDir(entry.hex), "rootfs"),
    };
  }

  /** An image that a registry gave out for a credential is not for machines that cannot show one. */
  #mayUse(entry: NameEntry, auth: readonly RegistryAuth[]): boolean {
    return (
      entry.seenBy.includes("anonymous") ||
      auth.some((credential) => entry.seenBy.includes(this.#fingerprint(credential)))
    );
  }

  #fingerprint(credential: RegistryAuth | undefined): string {
    if (credential === undefined) return "anonymous";
    const { username, password, identity_token } = credential;
    return createHash("sha256")
      .update(this.#open().salt)
      .update(JSON.stringify([username ?? "", password ?? "", identity_token ?? ""]))
      .digest("hex");
  }

  async #remember(reference: ImageReference, resolved: ResolvedImage): Promise<NameEntry> {
    const imageId = `${repository(reference)}@${resolved.digest}`;
    const before = this.#open().names[fullName(reference)];
    const seenBy = new Set(before?.imageId === imageId ? before.seenBy : []);
    seenBy.add(this.#fingerprint(resolved.credential));
    const entry: NameEntry = { imageId, hex: hexOf(resolved.manifestDigest), seenBy: [...seenBy] };
    if (JSON.stringify(before) !== JSON.stringify(entry)) {
      this.#open().names[fullName(reference)] = entry;
      await this.#saveNames();
    }
    return entry;
  }

  /** One download per manifest, however many wait for it; it is given up when the last of them is. */
  async #pullShared(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    signal: AbortSignal,
  ): Promise<StoredImage> {
    const key = resolved.manifestDigest;
    let pull = this.#pulls.get(key);
    if (pull === undefined || pull.abort.signal.aborted) {
      const abort = new AbortController();
      const promise = this.#queue
        .add(() => this.#download(image, reference, resolved, abort.signal))
        .finally(() => {
          if (this.#pulls.get(key)?.promise === promise) this.#pulls.delete(key);
        });
      promise.catch(() => undefined); // each waiter sees the failure; there may be none left
      pull = { promise, abort, waiters: 0 };
      this.#pulls.set(key, pull);
    }
    pull.waiters++;
    const given = pull;
    try {
      return await unlessAborted(given.promise, signal);
    } finally {
      given.waiters--;
      if (given.waiters === 0) given.abort.abort();
    }
  }

  async #download(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    signal: AbortSignal,
  ): Promise<StoredImage> {
    signal.throwIfAborted();
    const sizeBytes = resolved.layers.reduce((sum, layer) => sum + layer.size, 0);
    if (sizeBytes > this.#limits.maxImageBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: its layers have ${sizeBytes} bytes, more than the ${this.#limits.maxImageBytes} that this host accepts`,
      );
    await this.#assertRoom(image, resolved);

    const work = await mkdtemp(join(this.#options.dir, "tmp", "pull-"));
    try {
      const layout = join(work, "layout");
      await mkdir(layout);
      // skopeo and umoci both look for blobs in the layout: through this link all layouts share them.
      await symlink(join(this.#options.dir, "blobs"), join(layout, "blobs"));
      await this.#copy(image, reference, resolved, layout, signal);
      const stored = await this.#describe(image, layout, resolved, sizeBytes);
      await mkdir(join(work, "image"));
      await this.#unpack(image, layout, join(work, "image", "rootfs"), stored, signal);
      await writeFileAtomic(join(work, "image", "image.json"), JSON.stringify(stored));
      await rename(join(work, "image"), this.#imageDir(hexOf(resolved.manifestDigest)));
      return stored;
    } finally {
      await removeTree(work);
    }
  }

  /** Reads what skopeo wrote: its manifest can differ from the registry's (schema conversion, recompression). */
  async #describe(image: string, layout: string, resolved: ResolvedImage, sizeBytes: number): Promise<StoredImage> {
    const index = JSON.parse(await readFile(join(layout, "index.json"), "utf8")) as { manifests: { digest: string }[] };
    const manifestDigest = index.manifests[0]!.digest;
    const manifest = JSON.parse(await readFile(this.#blob(manifestDigest), "utf8")) as {
      config: { digest: string };
      layers: { digest: string }[];
    };
    let document: unknown;
    try {
      document = JSON.parse(await readFile(this.#blob(manifest.config.digest), "utf8"));
    } catch (cause) {
      throw new ContainerError("ImageInspectError", `${image}: its configuration cannot be read`, { cause });
    }
    return {
      manifestDigest: resolved.manifestDigest,
      config: imageConfig(document),
      blobs: [manifestDigest, manifest.config.digest, ...manifest.layers.map((layer) => layer.digest)],
      sizeBytes,
    };
  }

  /** By what the registry announces, before anything is fetched; layers that are here already need no room. */
  async #assertRoom(image: string, resolved: ResolvedImage): Promise<void> {
    const missing = new Map(
      [resolved.config, ...resolved.layers]
        .filter(({ digest }) => !existsSync(this.#blob(digest)))
        .map(({ digest, size }) => [digest, size]),
    );
    const bytes = [...missing.values()].reduce((sum, size) => sum + size, 0);
    const roomBytes = bytes + MIN_FREE_BYTES;
    await this.collect(roomBytes);
    const { freeBytes } = await this.#diskUsage();
    if (freeBytes < roomBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: no space left on this host's image disk: ${bytes} bytes are to be fetched, ${freeBytes} are free, and ${MIN_FREE_BYTES} of them are kept free`,
      );
  }

  /** A registry may send more than it has announced: skopeo would find that out only at the end of what it is sent. */
  async #copy(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    layout: string,
    signal: AbortSignal,
  ): Promise<void> {
    const announced = [resolved.config, ...resolved.layers].reduce((sum, { size }) => sum + size, 0);
    // What is compressed otherwise, skopeo compresses anew: its size is not announced.
    const limit = resolved.layers.every(({ keepsSize }) => keepsSize)
      ? announced * COPY_SLACK.ratio + COPY_SLACK.bytes
      : this.#limits.maxImageBytes;
    let last = { bytes: -1, at: 0 };
    const excess = async () => {
      // Blobs are written here and moved when they are complete.
      const bytes = await fileBytes(layout);
      const now = this.#options.clock.monotonic();
      if (bytes !== last.bytes) last = { bytes, at: now };
      if (now - last.at >= STALL_MS) return `the registry has sent nothing for ${STALL_MS / 60_000} minutes`;
      return bytes > limit ? `the registry sends more than the ${announced} bytes that it has announced` : undefined;
    };
    await this.#guarded(image, excess, signal, (guarded) =>
      this.#registry.copy(image, reference, resolved, layout, guarded),
    );
  }

  async #unpack(
    image: string,
    layout: string,
    rootfs: string,
    stored: StoredImage,
    signal: AbortSignal,
  ): Promise<void> {
    const { maxUnpackedBytes } = this.#limits;
    const before = (await this.#diskUsage()).freeBytes;
    // A small layer can unpack to a huge one. Others write to this disk as well: free space is only the cheap hint, the
    // tree is measured when it says so.
    const excess = async (freeBytes: number) =>
      before - freeBytes > maxUnpackedBytes && (await treeBytes(rootfs)) > maxUnpackedBytes
        ? `unpacks to more than the ${maxUnpackedBytes} bytes that this host accepts`
        : undefined;
    await this.#guarded(image, excess, signal, async (guarded) => {
      try {
        await run(findTool("umoci") ?? "umoci", ["raw", "unpack", "--image", `${layout}:image`, rootfs], {
          signal: guarded,
        });
      } catch (cause) {
        if (guarded.aborted) throw guarded.reason;
        // Layers on this disk that no longer match their digest would fail every later pull as well: fetch them anew.
        // Not while another pull may count on them: if they are bad, it fails too, and the last one to fail is alone.
        if (this.#pulls.size === 1) for (const digest of stored.blobs) rmSync(this.#blob(digest), { force: true });
        const text = cause instanceof CommandError ? umociMessage(cause.stderr) : String(cause);
        throw new ContainerError("ErrImagePull", `${image}: failed to unpack: ${text}`, { cause });
      }
    });
  }

  /**
   * Does `work`, and looks at the disk meanwhile.
   * @throws ContainerError when the disk runs full, or `excess` says why it is too much
   */
  async #guarded(
    image: string,
    excess: (freeBytes: number) => Promise<string | undefined>,
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const guard = new AbortController();
    const watched = this.#watchDisk(image, excess, guard).catch((error: unknown) => guard.abort(error));
    try {
      await work(AbortSignal.any([signal, guard.signal]));
    } finally {
      guard.abort();
      await watched;
    }
  }

  async #watchDisk(
    image: string,
    excess: (freeBytes: number) => Promise<string | undefined>,
    guard: AbortController,
  ): Promise<void> {
    for (;;) {
      try {
        await this.#options.clock.sleep(DISK_CHECK_MS, guard.signal);
      } catch {
        return;
      }
      const { freeBytes } = await this.#diskUsage();
      const why = freeBytes < MIN_FREE_BYTES ? "no space left on this host's image disk" : await excess(freeBytes);
      if (why !== undefined) guard.abort(new ContainerError("ErrImagePull", `${image}: ${why}`));
    }
  }

  async #stored(hex: string): Promise<StoredImage | undefined> {
    const text = await readFileIfExists(join(this.#imageDir(hex), "image.json"));
    return text === undefined ? undefined : (JSON.parse(text) as StoredImage);
  }

  async #remove(hex: string): Promise<void> {
    const doomed = join(this.#options.dir, "tmp", `gone-${hex}-${randomBytes(4).toString("hex")}`);
    // Before anybody else has a turn, who might be given it.
    renameSync(this.#imageDir(hex), doomed);
    this.#open().names = Object.fromEntries(
      Object.entries(this.#open().names).filter(([, entry]) => entry.hex !== hex),
    );
    await this.#saveNames();
    await removeTree(doomed);
    await this.#removeOrphans();
  }

  /** Blobs that no image is made of: those of images that were removed, and of pulls that failed. */
  async #removeOrphans(): Promise<void> {
    const used = new Set<string>();
    for (const folder of await this.#imageFolders())
      for (const digest of (await this.#stored(folder))?.blobs ?? []) used.add(digest);
    for (const blob of await readdir(join(this.#options.dir, "blobs/sha256")))
      // A pull under way may count on a blob that no complete image has yet.
      if (this.#pulls.size === 0 && !used.has(`sha256:${blob}`))
        await rm(join(this.#options.dir, "blobs/sha256", blob), { force: true });
  }

  async #imageFolders(): Promise<string[]> {
    return (await readdir(join(this.#options.dir, "images"))).filter((name) => HEX.test(name));
  }

  async #hasRoom(belowPercent: number, roomBytes: number): Promise<boolean> {
    const { totalBytes, freeBytes } = await this.#diskUsage();
    const usedPercent = totalBytes === 0 ? 0 : (100 * (totalBytes - freeBytes)) / totalBytes;
    return usedPercent < belowPercent && freeBytes >= roomBytes;
  }

  async #diskUsage(): Promise<{ totalBytes: number; freeBytes: number }> {
    if (this.#options.diskUsage !== undefined) return await this.#options.diskUsage();
    // Asked for before the first image.
    await mkdir(this.#options.dir, { recursive: true, mode: 0o700 });
    const fs = await statfs(this.#options.dir);
    return { totalBytes: fs.blocks * fs.bsize, freeBytes: fs.bavail * fs.bsize };
  }

  /** One after another: of two at once the older one might be in place in the end. */
  #saveNames(): Promise<void> {
    const save = () =>
      writeFileAtomic(join(this.#options.dir, "names.json"), JSON.stringify(this.#open().names), 0o600);
    this.#saved = this.#saved.then(save, save);
    return this.#saved;
  }

  #imageDir(hex: string): string {
    return join(this.#options.dir, "images", hex);
  }

  #blob(digest: string): string {
    return join(this.#options.dir, "blobs/sha256", hexOf(digest));
  }
}

/** The part of an OCI image configuration that decides how a container runs; wrong types count as absent. */
export function imageConfig(document: unknown): ImageConfig {
  const raw = ((document as Record<string, unknown> | null)?.["config"] ?? {}) as Record<string, unknown>;
  const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);
  const list = (value: unknown) =>
    Array.isArray(value) && value.every((item) => typeof item === "string") ? value : undefined;
  const found = {
    entrypoint: list(raw["Entrypoint"]),
    cmd: list(raw["Cmd"]),
    env: list(raw["Env"]),
    user: text(raw["User"]),
    workingDir: text(raw["WorkingDir"]),
    stopSignal: text(raw["StopSignal"]),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

function hexOf(digest: string): string {
  return digest.slice("sha256:".length);
}

function umociMessage(stderr: string): string {
  return stderr
    .split("⨯")
    .map((part) => part.trim())
    .join("")
    .split("\n")
    .at(-1)!
    .trim();
}

async function fileBytes(folder: string): Promise<number> {
  const files = (await readdir(folder, { withFileTypes: true })).filter((entry) => entry.isFile());
  const sizes = files.map(async ({ name }) => (await lstat(join(folder, name)).catch(() => undefined))?.size ?? 0);
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}

/** What a tree takes on the disk. */
async function treeBytes(folder: string): Promise<number> {
  let sum = 0;
  for (const entry of await readdir(folder, { withFileTypes: true, recursive: true }).catch(() => [])) {
    if (!entry.isFile()) continue;
    const info = await lstat(join(entry.parentPath, entry.name)).catch(() => undefined);
    sum += (info?.blocks ?? 0) * 512;
  }
  return sum;
}
