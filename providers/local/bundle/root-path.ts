/**
 * Paths inside a folder that somebody else may write: an image's root, a volume. Each step is opened relative to the one
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
import { isMissing } from "../host/files.ts";

const MAX_LINKS = 40;
/** O_PATH, which Node does not name: a handle on the thing itself, no right to read needed. The same on all Linux. */
const O_PATH = 0o10000000;

/**
 * Opens `path` inside `root` with O_PATH; with `create`, missing folders are made, with the mode of `root` itself, as
 * kubelet makes a subPath (pkg/volume/util/subpath, doSafeMakeDir): whoever may write to the volume may write there.
 * The caller closes the descriptor, and reaches the thing as `/proc/self/fd/N`.
 * @throws NodeJS.ErrnoException ENOENT, ENOTDIR, ELOOP
 */
export function openInRoot(root: string, path: string, options: { create?: boolean } = {}): number {
  let pending = path.split("/").filter((part) => part !== "" && part !== ".");
  const trail: number[] = [openSync(root, O_PATH | constants.O_DIRECTORY)];
  let links = 0;
  try {
    while (pending.length > 0) {
      const [name, ...rest] = pending as [string, ...string[]];
      pending = rest;
      if (name === "..") {
        if (trail.length > 1) closeSync(trail.pop()!);
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
      if (target.startsWith("/")) while (trail.length > 1) closeSync(trail.pop()!);
      pending = [...target.split("/").filter((part) => part !== "" && part !== "."), ...pending];
    }
    return trail.pop()!;
  } finally {
    for (const fd of trail) closeSync(fd);
  }
}

/** Text of a regular file inside `root`, "" when it is not there; at most the first, or the last, `maxBytes` of it. */
export function readTextInRoot(
  root: string,
  path: string,
  { maxBytes = 1 << 20, part = "first" }: { maxBytes?: number; part?: "first" | "last" } = {},
): string {
  let fd: number;
  try {
    fd = openInRoot(root, path);
  } catch (cause) {
    if (isMissing(cause) || (cause as NodeJS.ErrnoException).code === "ELOOP") return "";
    throw cause;
  }
  try {
    return fstatSync(fd).isFile() ? readPart(`/proc/self/fd/${fd}`, maxBytes, part) : "";
  } finally {
    closeSync(fd);
  }
}

/** The file may have any size: a container can make its termination message larger than this process's memory. */
function readPart(path: string, maxBytes: number, part: "first" | "last"): string {
  const fd = openSync(path, "r");
  try {
    const { size } = fstatSync(fd);
    const bytes = Buffer.alloc(Math.min(maxBytes, size));
    const from = part === "first" ? 0 : size - bytes.length;
    let length = 0;
    for (let read = -1; read !== 0 && length < bytes.length; length += read)
      read = readSync(fd, bytes, length, bytes.length - length, from + length);
    return bytes.toString("utf8", 0, length);
  } finally {
    closeSync(fd);
  }
}
