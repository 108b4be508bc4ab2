/**
 * Which names mean which image of this host, and for whom: names.json, and the salt of what it knows of credentials.
 */
import { createHash, randomBytes } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { RegistryAuth } from "../../../src/provider/kit/index.ts";
import { writeFileAtomic } from "../host/files.ts";
import type { TornFiles } from "../host/torn-files.ts";
import { fullName, repository, type ImageReference } from "./reference.ts";
import type { ResolvedImage } from "./registry.ts";

/** The newest: a forgotten name, or credential, only has its registry asked again. */
const NAMES_KEPT = 10_000;
const CREDENTIALS_KEPT = 100;
const SALT_BYTES = 32;

export interface NameEntry {
  /** `repo@sha256:...` of what the name resolved to. */
  imageId: string;
  /** Folder in images/. */
  hex: string;
  /** Salted hashes of the credentials with which the registry gave it out; `anonymous` when it needs none. */
  seenBy: string[];
}

export class ImageNames {
  readonly #file: string;
  readonly #salt: Buffer;
  #names: Record<string, NameEntry>;
  #saved: Promise<void> = Promise.resolve();
  /** What is known here is not on the disk, which did not take it. */
  #isUnsaved = false;

  /** @param dir exists */
  constructor(dir: string, torn: TornFiles) {
    this.#salt = readSalt(dir);
    this.#file = join(dir, "names.json");
    // Without them, registries are asked again.
    this.#names = torn.readJson(this.#file, isNames) ?? {};
  }

  /**
   * What the name meant when it was last asked for. With `auth`, only what the registry gave out without credentials or
   * for one of these: an image that needed a credential is not for machines without one.
   */
  find(reference: ImageReference, auth: readonly RegistryAuth[] | undefined): NameEntry | undefined {
    const isTheirs = ({ seenBy }: NameEntry) =>
      auth === undefined ||
      seenBy.includes("anonymous") ||
      auth.some((credential) => seenBy.includes(this.#fingerprint(credential)));
    const byName = this.#names[fullName(reference)];
    if (byName !== undefined && isTheirs(byName)) return byName;
    if (reference.digest === undefined) return undefined;
    const imageId = `${repository(reference)}@${reference.digest}`;
    return Object.values(this.#names).find((entry) => entry.imageId === imageId && isTheirs(entry));
  }

  /** After a pull. */
  async remember(
    reference: ImageReference,
    resolved: Pick<ResolvedImage, "digest" | "credential">,
    hex: string,
  ): Promise<NameEntry> {
    const name = fullName(reference);
    const imageId = `${repository(reference)}@${resolved.digest}`;
    const before = this.#names[name];
    const fingerprint = this.#fingerprint(resolved.credential);
    const others = (before?.imageId === imageId ? before.seenBy : []).filter((known) => known !== fingerprint);
    const entry: NameEntry = { imageId, hex, seenBy: [...others, fingerprint].slice(-CREDENTIALS_KEPT) };
    if (this.#isUnsaved || JSON.stringify(before) !== JSON.stringify(entry)) {
      delete this.#names[name];
      const older = Object.entries(this.#names).slice(1 - NAMES_KEPT);
      this.#names = Object.fromEntries([...older, [name, entry]]);
      await this.#save();
    }
    return entry;
  }

  /** The image in this folder is being removed. */
  async forget(hex: string): Promise<void> {
    this.#names = Object.fromEntries(Object.entries(this.#names).filter(([, entry]) => entry.hex !== hex));
    await this.#save();
  }

  #fingerprint(credential: RegistryAuth | undefined): string {
    if (credential === undefined) return "anonymous";
    const { username, password, identity_token } = credential;
    return createHash("sha256")
      .update(this.#salt)
      .update(JSON.stringify([username ?? "", password ?? "", identity_token ?? ""]))
      .digest("hex");
  }

  /** One after another: of two at once the older one might be in place in the end. */
  #save(): Promise<void> {
    const save = async () => {
      this.#isUnsaved = true;
      await writeFileAtomic(this.#file, JSON.stringify(this.#names), 0o600);
      this.#isUnsaved = false;
    };
    this.#saved = this.#saved.then(save, save);
    return this.#saved;
  }
}

/** Another one only has registries asked again. */
function readSalt(dir: string): Buffer {
  const file = join(dir, "salt");
  const found = existsSync(file) ? readFileSync(file) : Buffer.alloc(0);
  if (found.length === SALT_BYTES) return found;
  const salt = randomBytes(SALT_BYTES);
  const temporary = `${file}.tmp`;
  writeFileSync(temporary, salt, { mode: 0o600, flush: true });
  renameSync(temporary, file);
  return salt;
}

function isNames(value: unknown): value is Record<string, NameEntry> {
  if (typeof value !== "object" || value === null) return false;
  return Object.values(value).every((entry: Partial<NameEntry> | null) => Array.isArray(entry?.seenBy));
}
