/**
 * Files in memory below /simulated, in the place of those that `node:fs` would make, and what a loss of power leaves of
 * them. Everybody who imports `node:fs` meets them, so nothing of the backend has to know.
 *
 * They are as ext4 with its defaults, at its most unkind: folders change in order, and a loss of power takes any number
 * of the newest changes back, but none from before the last flush of anything. What a file has is there only when that
 * file was flushed; else it is empty, torn, or by good luck whole.
 */
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { basename, dirname } from "node:path";
import type { Random } from "../../../src/util/random.ts";
import { pick } from "../seeded.ts";

const ROOT = "/simulated/";
/** Descriptors of these files are above those of any real one. */
const FIRST_DESCRIPTOR = 1_000_000_000;

interface Folder {
  entries: Map<string, Entry>;
}

interface File {
  content: string;
  /** What a loss of power leaves for sure. */
  flushed: string | undefined;
}

type Entry = Folder | File;

const isFolder = (entry: Entry | undefined): entry is Folder => entry !== undefined && "entries" in entry;

function failure(code: string, call: string, path: string): Error {
  return Object.assign(new Error(`${code}: ${call} '${path}'`), { code, syscall: call, path });
}

/** The process that has called is gone: nothing it does has an effect any more. */
export class Killed extends Error {}

/** What becomes of a change: it is made, or it fails, or whoever makes it is killed before, in the middle or after it. */
export type Fate = "done" | "full" | "killed before" | "killed amid" | "killed after";

export class Files {
  #root: Folder = { entries: new Map() };
  /** How each change of a folder since the last flush is taken back, oldest first. */
  #changes: (() => void)[] = [];
  readonly #open = new Map<number, { path: string; file: Entry }>();
  #nextDescriptor = FIRST_DESCRIPTOR;
  /** Folders in the host's memory. */
  readonly #inMemory: readonly string[];
  /** Asked at each change. */
  fate: (path: string) => Fate = () => "done";
  onKilled: () => void = () => {};
  /** Files that are never written, as a planted bug has it. */
  unwritten: RegExp | undefined;
  /** A flush does nothing: the same. */
  isUnflushed = false;

  constructor(inMemory: readonly string[]) {
    this.#inMemory = inMemory;
    Files.#current = this;
    interpose();
  }

  static #current: Files | undefined;

  /** Those that a call is about; undefined when it is about real files. */
  static at(path: unknown): Files | undefined {
    if (typeof path === "number") return path >= FIRST_DESCRIPTOR ? Files.#current : undefined;
    return typeof path === "string" && path.startsWith(ROOT) ? Files.#current : undefined;
  }

  // --- what a loss of power does ---

  losePower(random: Random): void {
    const kept = Math.floor(random() * (this.#changes.length + 1));
    for (const takeBack of this.#changes.splice(kept).toReversed()) takeBack();
    this.#changes = [];
    this.#open.clear();
    for (const folder of this.#inMemory) this.#folderOf(folder)?.entries.delete(basename(folder));
    this.#tear(this.#root, random);
  }

  /** All that there is now outlives a loss of power. */
  settle(): void {
    this.#changes = [];
  }

  #tear(folder: Folder, random: Random): void {
    for (const entry of folder.entries.values()) {
      if (isFolder(entry)) this.#tear(entry, random);
      else {
        const { content, flushed } = entry;
        if (flushed !== content)
          entry.content = pick(random, [content, "", content.slice(0, Math.floor(content.length * random()))]);
        entry.flushed = entry.content;
      }
    }
  }

  // --- paths ---

  #find(path: string): Entry | undefined {
    let entry: Entry | undefined = this.#root;
    for (const part of path.split("/")) {
      if (part === "") continue;
      if (!isFolder(entry)) return undefined;
      entry = entry.entries.get(part);
    }
    return entry;
  }

  #folderOf(path: string): Folder | undefined {
    const folder = this.#find(dirname(path));
    return isFolder(folder) ? folder : undefined;
  }

  /** Puts an entry in place, or takes it away, so that a loss of power can undo it. */
  #put(path: string, entry: Entry | undefined, call: string): void {
    const folder = this.#folderOf(path);
    if (folder === undefined) throw failure("ENOENT", call, path);
    const name = basename(path);
    const before = folder.entries.get(name);
    const set = (value: Entry | undefined) =>
      value === undefined ? folder.entries.delete(name) : folder.entries.set(name, value);
    set(entry);
    this.#changes.push(() => set(before));
  }

  #change<T>(path: string, make: () => T, amid: () => void = () => {}): T {
    const fate = this.fate(path);
    if (fate === "full") throw failure("ENOSPC", "write", path);
    if (fate === "killed amid") amid();
    const result = fate === "killed before" || fate === "killed amid" ? undefined : make();
    if (fate === "done") return result as T;
    this.onKilled();
    throw new Killed("killed");
  }

  // --- calls, as node:fs has them ---

  writeFileSync(
    path: string | number,
    content: string | Buffer,
    options?: { flush?: boolean; flag?: string } | string,
  ): void {
    const opened = typeof path === "number" ? this.#open.get(path) : undefined;
    const place = opened?.path ?? String(path);
    const how = typeof options === "object" ? options : {};
    const text = content.toString();
    const write = (part: string) => {
      const before = opened?.file ?? this.#find(place);
      if (isFolder(before)) throw failure("EISDIR", "open", place);
      if (before !== undefined && how.flag === "wx") throw failure("EEXIST", "open", place);
      const file: File = before ?? { content: "", flushed: undefined };
      if (before === undefined) this.#put(place, file, "open");
      file.content = part;
      file.flushed = undefined;
      return file;
    };
    this.#change(
      place,
      () => {
        const file = write(text);
        if (how.flush) this.#flush(file);
      },
      () => void write(text.slice(0, text.length / 2)),
    );
  }

  #flush(entry: Entry): void {
    if (this.isUnflushed) return;
    if (!isFolder(entry)) entry.flushed = entry.content;
    this.#changes = [];
  }

  readFileSync(path: string | number): string | Buffer {
    const entry = typeof path === "number" ? this.#open.get(path)?.file : this.#find(path);
    if (entry === undefined) throw failure("ENOENT", "open", String(path));
    if (isFolder(entry)) throw failure("EISDIR", "read", String(path));
    return entry.content;
  }

  renameSync(from: string, to: string): void {
    this.#change(from, () => {
      const entry = this.#find(from);
      if (entry === undefined) throw failure("ENOENT", "rename", from);
      if (this.unwritten?.test(to)) return this.#put(from, undefined, "rename");
      // One change: nobody ever sees neither of the two.
      const done = this.#changes.length;
      this.#put(to, entry, "rename");
      this.#put(from, undefined, "rename");
      const [place, removal] = this.#changes.splice(done);
      this.#changes.push(() => {
        removal!();
        place!();
      });
    });
  }

  linkSync(from: string, to: string): void {
    this.#change(to, () => {
      const entry = this.#find(from);
      if (entry === undefined) throw failure("ENOENT", "link", from);
      if (this.#find(to) !== undefined) throw failure("EEXIST", "link", to);
      this.#put(to, entry, "link");
    });
  }

  mkdirSync(path: string, options?: { recursive?: boolean } | number): void {
    const recursive = typeof options === "object" && options.recursive === true;
    const before = this.#find(path);
    if (before !== undefined && recursive && isFolder(before)) return;
    if (before !== undefined) throw failure("EEXIST", "mkdir", path);
    if (recursive) this.mkdirSync(dirname(path), options);
    this.#change(path, () => this.#put(path, { entries: new Map() }, "mkdir"));
  }

  rmdirSync(path: string): void {
    if (this.readdirSync(path).length > 0) throw failure("ENOTEMPTY", "rmdir", path);
    this.rmSync(path, { recursive: true });
  }

  rmSync(path: string, options: { recursive?: boolean; force?: boolean } = {}): void {
    const entry = this.#find(path);
    if (entry === undefined) {
      if (options.force) return;
      throw failure("ENOENT", "rm", path);
    }
    if (isFolder(entry)) {
      if (!options.recursive) throw failure("EISDIR", "rm", path);
      for (const name of [...entry.entries.keys()]) this.rmSync(`${path}/${name}`, options);
    }
    this.#change(path, () => this.#put(path, undefined, "rm"));
  }

  unlinkSync(path: string): void {
    this.rmSync(path);
  }

  readdirSync(path: string, options?: { withFileTypes?: boolean } | string): unknown[] {
    const folder = this.#find(path);
    if (folder === undefined) throw failure("ENOENT", "scandir", path);
    if (!isFolder(folder)) throw failure("ENOTDIR", "scandir", path);
    if (typeof options !== "object" || !options.withFileTypes) return [...folder.entries.keys()];
    return [...folder.entries].map(([name, entry]) => ({ name, parentPath: path, ...kind(entry) }));
  }

  existsSync(path: string): boolean {
    return this.#find(path) !== undefined;
  }

  statSync(path: string): object {
    const entry = this.#find(path);
    if (entry === undefined) throw failure("ENOENT", "stat", path);
    return { ...kind(entry), size: isFolder(entry) ? 0 : entry.content.length, mode: 0o700, ctimeMs: 0, mtimeMs: 0 };
  }

  lstatSync(path: string): object {
    return this.statSync(path);
  }

  chmodSync(): void {}

  openSync(path: string, flags = "r"): number {
    if (this.#find(path) === undefined && flags !== "r") this.writeFileSync(path, "");
    const file = this.#find(path);
    if (file === undefined) throw failure("ENOENT", "open", path);
    this.#open.set(this.#nextDescriptor, { path, file });
    return this.#nextDescriptor++;
  }

  closeSync(descriptor: number): void {
    this.#open.delete(descriptor);
  }

  fsyncSync(descriptor: number): void {
    const opened = this.#open.get(descriptor);
    if (opened === undefined) throw failure("EBADF", "fsync", String(descriptor));
    this.#change(opened.path, () => this.#flush(opened.file));
  }
}

const kind = (entry: Entry) => ({
  isFile: () => !isFolder(entry),
  isDirectory: () => isFolder(entry),
  isSymbolicLink: () => false,
});

const CALLS = [
  ...[
    "writeFileSync",
    "readFileSync",
    "renameSync",
    "linkSync",
    "mkdirSync",
    "rmdirSync",
    "rmSync",
    "unlinkSync",
    "readdirSync",
  ],
  ...["existsSync", "statSync", "lstatSync", "chmodSync", "openSync", "closeSync", "fsyncSync"],
] as const;
let isInterposed = false;

type Call = (...args: unknown[]) => unknown;

function interpose(): void {
  if (isInterposed) return;
  isInterposed = true;
  const calls = fs as unknown as Record<string, Call>;
  for (const name of CALLS) {
    const real = calls[name]!;
    calls[name] = (...args) => {
      const files = Files.at(args[0]);
      return files === undefined ? real(...args) : (files as unknown as Record<string, Call>)[name]!(...args);
    };
  }
  syncBuiltinESMExports();
}
