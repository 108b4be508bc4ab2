/**
 * The guest image, whole: it is what guests trust, and outlives the host's losses of power. Its files are held to their
 * hashes before a VM is made of them; what is torn or was changed is told, set aside, and made again.
 */
import { createHash } from "node:crypto";
import { createReadStream, statSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import type { Clock, Logger } from "../../../../src/provider/kit/index.ts";
import { isMissing, readFileIfExists } from "../../host/files.ts";
import { HostError } from "../../host/host-error.ts";
import { hasGuest, makeGuest } from "./guest.ts";

/** What guest-image.sh makes beside `sums`, which has the hash of each. */
const FILES = ["version", "packages", "frequency", "jail", "give", "read-only.so", "vmlinux", "base.cpio"] as const;
/** Of which `version` is the hash: all that is known of an image without `sums`, an earlier version's. */
const GUEST_FILES = ["frequency", "vmlinux", "base.cpio"] as const;
const SUMS = "sums";
/** Below the image's own folder, for a person to look at: the newest. */
const ASIDE = "torn";
/** Another process may be putting a newer image in its place, file by file. */
const REPLACED_MS = 1_000;

interface GuestImageOptions {
  dir: string;
  clock: Clock;
  logger: Logger;
  /** Makes it in a folder. */
  make?: ((dir: string) => Promise<void>) | undefined;
}

export class GuestImage {
  readonly #options: GuestImageOptions;
  readonly #make: (dir: string) => Promise<void>;
  #working: Promise<void> | undefined;
  /** How the files were that have been held to their hashes. */
  #verified: string | undefined;

  constructor(options: GuestImageOptions) {
    this.#options = options;
    this.#make = options.make ?? makeGuest;
  }

  /**
   * Resolves when it is there and whole; concurrent callers share the work.
   * @throws HostError when it cannot be made
   */
  async ready(): Promise<void> {
    this.#working ??= this.#prepare().finally(() => (this.#working = undefined));
    await this.#working;
  }

  async #prepare(): Promise<void> {
    const { dir, clock, logger } = this.#options;
    if (this.#verified !== undefined && this.#verified === looks(dir)) return;
    if (!hasGuest(dir)) {
      logger.info({ guestDir: dir }, "Making the guest image, once: a download and some seconds");
      await this.#make(dir);
    } else if ((await this.#torn()).length > 0) {
      await clock.sleep(REPLACED_MS);
      const files = await this.#torn();
      if (files.length > 0) await this.#renew(files);
    }
    const files = await this.#torn();
    if (files.length === 0) return;
    throw new HostError(
      `the guest image in ${dir} is torn as soon as it is made (${files.join(", ")}): look at its disk`,
    );
  }

  async #torn(): Promise<string[]> {
    // Before the files are read: what changes meanwhile is looked at again.
    const before = looks(this.#options.dir);
    const files = await tornGuestFiles(this.#options.dir);
    if (files.length === 0) this.#verified = before;
    return files;
  }

  async #renew(files: string[]): Promise<void> {
    const { dir, logger } = this.#options;
    const aside = join(dir, ASIDE);
    logger.error({ guestDir: dir, files, aside }, "The guest image is torn or was changed, and is made again");
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true, mode: 0o700 });
    for (const name of [...FILES, SUMS])
      await rename(join(dir, name), join(aside, name)).catch((thrown: unknown) => {
        if (!isMissing(thrown)) throw thrown;
      });
    await this.#make(dir);
  }
}

/**
 * Files of the image that are not as they were made.
 * @throws what the system says when one cannot be read: then nothing is known of it
 */
export async function tornGuestFiles(dir: string): Promise<string[]> {
  const sums = await readFileIfExists(join(dir, SUMS));
  if (sums === undefined) {
    const version = ((await readFileIfExists(join(dir, "version"))) ?? "").trim();
    const hash = await hashOf(GUEST_FILES.map((name) => join(dir, name)));
    return hash !== undefined && hash.slice(0, 16) === version ? [] : ["version"];
  }
  const known = new Map([...sums.matchAll(/^([0-9a-f]{64}) [ *](\S+)$/gm)].map(([, hash, name]) => [name!, hash!]));
  if (FILES.some((name) => !known.has(name))) return [SUMS];
  const torn: string[] = [];
  for (const name of FILES) if ((await hashOf([join(dir, name)])) !== known.get(name)) torn.push(name);
  return torn;
}

/** Undefined when there is no such file, or the disk has lost it. */
async function hashOf(paths: readonly string[]): Promise<string | undefined> {
  const hash = createHash("sha256");
  try {
    for (const path of paths) await pipeline(createReadStream(path), hash, { end: false });
  } catch (thrown) {
    if (isMissing(thrown) || (thrown as NodeJS.ErrnoException).code === "EIO") return undefined;
    throw thrown;
  }
  return hash.digest("hex");
}

/** Changes whenever one of the files does. */
function looks(dir: string): string {
  const look = (name: string) => {
    const stat = statSync(join(dir, name), { throwIfNoEntry: false, bigint: true });
    return stat && [stat.dev, stat.ino, stat.size, stat.mtimeNs, stat.ctimeNs].join();
  };
  return [...FILES, SUMS].map(look).join(" ");
}
