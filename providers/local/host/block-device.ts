/** Block devices of this host, by what is at a path itself and not where a link leads. */
import { closeSync, constants, fstatSync, openSync, type BigIntStats } from "node:fs";
import { deviceNumbers } from "./device-numbers.ts";

/** O_PATH, which Node does not name: a handle on the thing itself. The same on all Linux. */
const O_PATH = 0o10000000;

/**
 * No link is followed: a device is what its driver has put there itself.
 * @returns its numbers: `7:3`
 * @throws Error that names what is there when it is no block device
 */
export function blockNumbers(path: string): string {
  const stats = lookAt(path);
  if (stats === undefined) throw new Error(`there is nothing at ${path}, where a block device should be`);
  if (!stats.isBlockDevice()) throw new Error(`${path} is ${kindOf(stats)}, and no block device`);
  const { major, minor } = deviceNumbers(stats.rdev);
  return `${major}:${minor}`;
}

/** Of the thing itself, by a descriptor. Undefined: nothing is there. */
function lookAt(path: string): BigIntStats | undefined {
  let fd: number;
  try {
    fd = openSync(path, O_PATH | constants.O_NOFOLLOW);
  } catch (thrown) {
    if (["ENOENT", "ENOTDIR"].includes((thrown as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw thrown;
  }
  try {
    return fstatSync(fd, { bigint: true });
  } finally {
    closeSync(fd);
  }
}

/** By whatever mounts both paths lead to it. */
export function isSameNode(path: string, other: string): boolean {
  const [one, two] = [lookAt(path), lookAt(other)];
  return one !== undefined && two !== undefined && one.dev === two.dev && one.ino === two.ino;
}

function kindOf(stats: BigIntStats): string {
  if (stats.isSymbolicLink()) return "a symbolic link";
  if (stats.isDirectory()) return "a folder";
  if (stats.isFile()) return "a file";
  return stats.isCharacterDevice() ? "a character device" : "a socket or pipe";
}
