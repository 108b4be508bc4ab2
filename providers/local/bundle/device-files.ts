/**
 * Block devices of the host as the file systems that are on them, for machines whose volumes they are (kubernetes:
 * plugins `local`, mount-utils' SafeFormatAndMount). Several machines of one host may have one: it is one file system.
 */
import { statSync } from "node:fs";
import { mkdir, open } from "node:fs/promises";
import { toError } from "../../../src/provider/kit/index.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { mountPoints } from "../host/mounts.ts";
import { ownCapabilities } from "./own-capabilities.ts";

/** `blkid` when there is nothing that it knows. */
const NOTHING_FOUND = 2;
/** Of `fsck`: bits of its exit code. */
const MENDED = 1;
const UNMENDED = 4;
/** Of a disk of terabytes. */
const MAKE_MS = 600_000;
const LOOKED_AT_BYTES = 1024 ** 2;
/** As mount-utils makes them. */
const MAKE = {
  ext2: ["mkfs.ext2", "-q", "-F", "-m0"],
  ext3: ["mkfs.ext3", "-q", "-F", "-m0"],
  ext4: ["mkfs.ext4", "-q", "-F", "-m0"],
  xfs: ["mkfs.xfs", "-q"],
} as const;

type FsType = keyof typeof MAKE;

/** Of one device at a time only one is looked at and made: two machines would each make one. By its number. */
const underWay = new Map<number, Promise<unknown>>();

/** Whether the path, or what a link there leads to, is a block device. */
export const isDevice = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isBlockDevice() === true;

export const isMounted = async (at: string): Promise<boolean> => (await mountPoints()).some(({ path }) => path === at);

/**
 * Mounts the device's file system; on one that is empty it is made first. Repeating it is safe.
 * @throws Error that names the device, also where it has something else than this file system
 */
export async function mountDevice(device: string, at: string, fsType: FsType): Promise<void> {
  const number = statSync(device).rdev;
  const turn = (underWay.get(number) ?? Promise.resolve()).then(() => mountOne(device, at, fsType));
  const settled = turn.catch(() => undefined);
  underWay.set(number, settled);
  try {
    await turn;
  } finally {
    if (underWay.get(number) === settled) underWay.delete(number);
  }
}

/**
 * The file system that is mounted there grows to all of its device; one that has that size stays as it is.
 * @throws Error that names the device
 */
export async function growDevice(device: string, at: string, fsType: FsType): Promise<void> {
  try {
    if (!(await isMounted(at))) throw new Error("it is not mounted");
    // The kernel lets a mounted one grow for those alone who have it.
    if (fsType !== "xfs" && !ownCapabilities().includes("CAP_SYS_RESOURCE"))
      throw new Error("the backend runs without CAP_SYS_RESOURCE");
    await (fsType === "xfs" ? tool("xfs_growfs", ["-d", at]) : tool("resize2fs", [device]));
  } catch (thrown) {
    throw new Error(`${fsType} on ${device} cannot grow: ${toError(thrown).message}`, { cause: thrown });
  }
}

async function mountOne(device: string, at: string, fsType: FsType): Promise<void> {
  await mkdir(at, { recursive: true });
  if (await isMounted(at)) return;
  const found = await contentOf(device);
  if (found !== undefined && found !== fsType)
    throw new Error(
      `${device} already has ${found}, and the volume says ${fsType}: nothing is made in its place. Say so in the volume (spec.local.fsType), or empty the device (blkdiscard --zeroout)`,
    );
  const [make, ...options] = MAKE[fsType];
  try {
    if (found === undefined) await tool(make, [...options, device]);
    else await mend(device);
    await tool("mount", ["-t", fsType, device, at]);
  } catch (thrown) {
    if (!(thrown instanceof CommandError)) throw thrown;
    throw new Error(`${device} cannot be mounted as ${fsType}: ${thrown.message}`, { cause: thrown });
  }
}

/**
 * After a loss of power, say. What cannot be mended by itself fails; that it could not be looked at does not, as in a
 * kubelet.
 */
async function mend(device: string): Promise<void> {
  try {
    // Not while another machine has it.
    await tool("fsck", ["-M", "-T", "-a", device], { exitCodes: [0, MENDED] });
  } catch (thrown) {
    if (thrown instanceof CommandError && thrown.exitCode !== undefined && (thrown.exitCode & UNMENDED) === 0) return;
    throw thrown;
  }
}

/**
 * Undefined when there is nothing on it: what no tool knows may be a program's own data, which a kubelet would
 * overwrite.
 * @throws Error when that cannot be said
 */
async function contentOf(device: string): Promise<string | undefined> {
  const { stdout, stderr } = await tool("blkid", ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device], {
    exitCodes: [0, NOTHING_FOUND],
  });
  // It says nothing of one that it could not read, but to its errors.
  if (stderr.trim() !== "") throw new Error(`${device} cannot be looked at: ${stderr.trim()}`);
  const said = new Map(
    stdout
      .toString("utf8")
      .split("\n")
      .map((line): [string, string] => [line.split("=")[0] ?? "", line.split("=")[1] ?? ""]),
  );
  const known = said.get("TYPE") ?? (said.has("PTTYPE") ? `partitions (${said.get("PTTYPE")})` : undefined);
  return known ?? ((await beginsEmpty(device)) ? undefined : "data that is no file system");
}

async function beginsEmpty(device: string): Promise<boolean> {
  const handle = await open(device);
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(LOOKED_AT_BYTES), 0, LOOKED_AT_BYTES, 0);
    return buffer.subarray(0, bytesRead).every((byte) => byte === 0);
  } finally {
    await handle.close();
  }
}

const tool = (name: string, args: readonly string[], options: Parameters<typeof run>[2] = {}) =>
  run(findTool(name) ?? name, args, { withinMs: MAKE_MS, ...options });
