/**
 * The folder of static pods. Who writes it may be in the middle of it, and the folder may be gone for a moment (a
 * mount, a disk): what cannot be read is unknown, never empty, and so is a file that is still being written. Only
 * regular files of the folder itself are opened: a link may lead to another of its files, as those of a mounted
 * ConfigMap do, but not out of it.
 */
import { constants, type BigIntStats } from "node:fs";
import { lstat, open, opendir, realpath, stat } from "node:fs/promises";
import { join, sep } from "node:path";
import { toError } from "../util/errors.ts";
import { readStaticPod, type StaticPodFile } from "./static-pod-file.ts";

/** `changing`: it was not the same at two looks in a row; nothing follows from it. */
export type FileLook = StaticPodFile | { kind: "changing" };

export type FolderLook =
  | { kind: "unknown"; fault: string }
  /** In the order of their names. */
  | { kind: "listed"; files: ReadonlyMap<string, FileLook> };

/** More pods than a node has room for. A larger folder is the wrong one. */
const MAX_FILES = 500;
/** Larger than a pod that somebody writes, and so small that no text holds up the node's lease. */
const MAX_BYTES = 262_144;

interface Known {
  signature: string;
  /** Absent: seen once so far. */
  read?: StaticPodFile;
}

export class StaticPodFolder {
  readonly #path: string;
  readonly #nodeName: string;
  #known = new Map<string, Known>();
  /** The file system that files were last seen on. */
  #device: bigint | undefined;

  constructor(path: string, nodeName: string) {
    this.#path = path;
    this.#nodeName = nodeName;
  }

  /** To be called every few seconds: what changed between two looks is not read yet. Never throws. */
  async look(): Promise<FolderLook> {
    try {
      return await this.#look();
    } catch (thrown) {
      const cure = "correct staticPodPath, or give this user the right to read the folder";
      return { kind: "unknown", fault: `${this.#path}: cannot be read: ${toError(thrown).message}; ${cure}` };
    }
  }

  async #look(): Promise<FolderLook> {
    const folder = await realpath(this.#path);
    const { dev } = await stat(folder, { bigint: true });
    const names = await namesOf(folder);
    if (names === undefined) {
      const cure = "give static pods a folder of their own";
      return { kind: "unknown", fault: `${this.#path}: holds more than ${MAX_FILES} files; ${cure}` };
    }
    // A mount that is gone leaves an empty folder of another file system.
    if (names.length === 0 && this.#device !== undefined && this.#device !== dev) {
      const cure = "mount it again, or start the agent again if it is to be empty";
      return { kind: "unknown", fault: `${this.#path}: is empty, and not where its files were; ${cure}` };
    }
    this.#device = dev;
    const files = new Map<string, FileLook>();
    const known = new Map<string, Known>();
    for (const name of names) {
      const before = this.#known.get(name);
      const seen = await this.#file(folder, name, before).catch((thrown: unknown) => ({
        look: { kind: "fault" as const, fault: `cannot be read: ${toError(thrown).message}; correct or remove it` },
        known: undefined,
      }));
      if (seen === undefined) continue;
      files.set(name, seen.look);
      if (seen.known !== undefined) known.set(name, seen.known);
    }
    this.#known = known;
    return { kind: "listed", files };
  }

  /** Undefined when it is gone by now. */
  async #file(
    folder: string,
    name: string,
    before: Known | undefined,
  ): Promise<{ look: FileLook; known?: Known | undefined } | undefined> {
    const path = join(folder, name);
    if (!(await exists(path))) return undefined;
    const fault = (words: string) => ({ look: { kind: "fault" as const, fault: words } });
    const real = await realpath(path);
    if (!real.startsWith(folder + sep)) return fault("is a link out of the folder; put the file itself there");
    // Before it is opened: to open a device can do something, and a FIFO may wait for ever.
    const found = await stat(real, { bigint: true });
    if (!found.isFile()) return fault("is no regular file; remove it from the folder");
    if (found.size > MAX_BYTES) return fault(`is larger than ${MAX_BYTES} bytes; make it smaller`);
    const signature = signatureOf(real, found);
    if (before?.signature !== signature) return { look: { kind: "changing" }, known: { signature } };
    if (before.read !== undefined) return { look: before.read, known: before };
    const text = await readSame(real, signature);
    if (text === undefined) return { look: { kind: "changing" }, known: { signature: "" } };
    const read = readStaticPod(text, { file: name, path: join(this.#path, name), nodeName: this.#nodeName });
    return { look: read, known: { signature, read } };
  }
}

/** Those that a kubelet looks at, in order; undefined when there are too many. */
async function namesOf(folder: string): Promise<string[] | undefined> {
  const names: string[] = [];
  for await (const { name } of await opendir(folder)) {
    if (name.startsWith(".")) continue;
    if (names.length === MAX_FILES) return undefined;
    names.push(name);
  }
  return names.toSorted();
}

async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw thrown;
  }
}

const signatureOf = (real: string, { dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string =>
  [real, dev, ino, size, mtimeNs, ctimeNs].join(" ");

/** The text of the file with this signature; undefined when it is another by now, or was written meanwhile. */
async function readSame(real: string, signature: string): Promise<string | undefined> {
  await using file = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const before = await file.stat({ bigint: true });
  if (!before.isFile() || signatureOf(real, before) !== signature) return undefined;
  const buffer = Buffer.alloc(Number(before.size));
  let length = 0;
  while (length < buffer.length) {
    const { bytesRead } = await file.read(buffer, length, buffer.length - length, length);
    if (bytesRead === 0) return undefined;
    length += bytesRead;
  }
  return signatureOf(real, await file.stat({ bigint: true })) === signature ? buffer.toString("utf8") : undefined;
}
