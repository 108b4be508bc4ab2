/**
 * Paths inside a folder that others may write to: an image's root, a volume. Each step is opened relative to the one
 * before and never through a symbolic link that the kernel follows, so neither a link nor a link that is put in place
 * just now leads outside. Links are followed here, with the folder as `/`.
 */
import {
  chmodSync,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  readSync,
} from "node:fs";
import { resolve } from "node:path";
import { isMissing } from "../host/files.ts";

const MAX_LINKS = 40;
/**
 * Steps to a place, those through links included: as many as a path can have that the kernel takes. Each costs a
 * descriptor.
 */
const MAX_STEPS = 2048;
/** O_PATH, which Node does not name: a handle on the thing itself, no right to read needed. The same on all Linux. */
const O_PATH = 0o10000000;

/**
 * Opens `path` inside `root` with O_PATH; with `create`, missing folders are made, with the mode of `root` itself, as
 * kubelet makes a subPath (pkg/volume/util/subpath, doSafeMakeDir): a process that may write to the volume may write
 * there. With `refuseEscapes`, a link that would lead outside of `root`, were it not taken for `/`, is refused. The
 * caller closes the descriptor, and reaches the thing as `/proc/self/fd/N`.
 * @throws NodeJS.ErrnoException ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EXDEV
 */
export function openInRoot(
  root: string,
  path: string,
  options: { create?: boolean | undefined; refuseEscapes?: boolean | undefined } = {},
): number {
  const trail: number[] = [openSync(root, O_PATH | constants.O_DIRECTORY)];
  const names = options.refuseEscapes === true ? namesOf(root, trail[0]!) : [];
  const escapes = () => {
    if (names.length > 0) throw Object.assign(new Error(`${path}: a symbolic link leads outside`), { code: "EXDEV" });
  };
  // The next one last.
  const pending = partsOf(path).toReversed();
  let links = 0;
  let steps = 0;
  try {
    for (;;) {
      const name = pending.pop();
      if (name === undefined) break;
      if (++steps > MAX_STEPS)
        throw Object.assign(new Error(`${path.slice(0, 100)}: the path is too long`), { code: "ENAMETOOLONG" });
      if (name === "..") {
        if (trail.length > 1) closeSync(trail.pop()!);
        else escapes();
        continue;
      }
      const step = `/proc/self/fd/${trail.at(-1)!}/${name}`;
      const isNew = options.create === true && lstatSync(step, { throwIfNoEntry: false }) === undefined;
      if (isNew) mkdirSync(step);
      const fd = openSync(step, O_PATH | constants.O_NOFOLLOW);
      if (!fstatSync(fd).isSymbolicLink()) {
        if (isNew) chmodSync(`/proc/self/fd/${fd}`, fstatSync(trail[0]!).mode & 0o7777);
        trail.push(fd);
        continue;
      }
      closeSync(fd);
      if (++links > MAX_LINKS)
        throw Object.assign(new Error(`${path}: too many levels of symbolic links`), { code: "ELOOP" });
      const target = readlinkSync(step);
      const inside = names.map((folder) => partBelow(folder, target)).find((part) => part !== undefined);
      if (target.startsWith("/")) {
        if (inside === undefined) escapes();
        while (trail.length > 1) closeSync(trail.pop()!);
      }
      pending.push(...partsOf(inside ?? target).toReversed());
    }
    return trail.pop()!;
  } finally {
    for (const fd of trail) closeSync(fd);
  }
}

/** A folder's absolute paths here: as it is given, and without links. None of the root, which nothing leaves. */
function namesOf(folder: string, fd: number): string[] {
  const own = readlinkSync(`/proc/self/fd/${fd}`);
  return own === "/" ? [] : [resolve(folder), own];
}

/** What of an absolute path comes after the folder; undefined for one that is not in it. */
function partBelow(folder: string, path: string): string | undefined {
  return path === folder || path.startsWith(`${folder}/`) ? path.slice(folder.length) : undefined;
}

function partsOf(path: string): string[] {
  return path.split("/").filter((part) => part !== "" && part !== ".");
}

/** Text of a regular file inside `root`, "" when it is not there; at most the first, or the last, `maxBytes` of it. */
export function readTextInRoot(
  root: string,
  path: string,
  { maxBytes = 1 << 20, part = "first" }: { maxBytes?: number; part?: "first" | "last" } = {},
): string {
  return readInRoot(root, path, maxBytes, part).toString("utf8");
}

/**
 * As `readTextInRoot`, for a file that means something only as a whole.
 * @throws Error when it has more than `maxBytes`
 */
export function readWholeInRoot(root: string, path: string, maxBytes: number): string {
  const bytes = readInRoot(root, path, maxBytes + 1, "first");
  if (bytes.length > maxBytes) throw new Error(`${path} has more than ${maxBytes} bytes`);
  return bytes.toString("utf8");
}

/**
 * The bytes of a regular file inside `root`, which has to be there.
 * @throws Error when it is none or has more than `maxBytes`, NodeJS.ErrnoException as `openInRoot`
 */
export function readFileInRoot(root: string, path: string, maxBytes: number): Buffer {
  const fd = openInRoot(root, path);
  try {
    // Another kind may do anything when it is opened: wait for a writer, or rewind a tape.
    if (!fstatSync(fd).isFile()) throw new Error("it is no regular file");
    const bytes = readPart(`/proc/self/fd/${fd}`, maxBytes + 1, "first");
    if (bytes.length > maxBytes) throw new Error(`it has more than ${maxBytes} bytes`);
    return bytes;
  } finally {
    closeSync(fd);
  }
}

function readInRoot(root: string, path: string, maxBytes: number, part: "first" | "last"): Buffer {
  let fd: number;
  try {
    fd = openInRoot(root, path);
  } catch (thrown) {
    if (isMissing(thrown) || (thrown as NodeJS.ErrnoException).code === "ELOOP") return Buffer.alloc(0);
    throw thrown;
  }
  try {
    return fstatSync(fd).isFile() ? readPart(`/proc/self/fd/${fd}`, maxBytes, part) : Buffer.alloc(0);
  } finally {
    closeSync(fd);
  }
}

/** The file may have any size: a container can make its termination message larger than this process's memory. */
function readPart(path: string, maxBytes: number, part: "first" | "last"): Buffer {
  const fd = openSync(path, "r");
  try {
    const { size } = fstatSync(fd);
    const bytes = Buffer.alloc(Math.min(maxBytes, size));
    const from = part === "first" ? 0 : size - bytes.length;
    let length = 0;
    for (let read = -1; read !== 0 && length < bytes.length; length += read)
      read = readSync(fd, bytes, length, bytes.length - length, from + length);
    return bytes.subarray(0, length);
  } finally {
    closeSync(fd);
  }
}
