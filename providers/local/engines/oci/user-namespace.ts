/**
 * User namespaces of machines: made, with all that has to belong to them, and tried out, for it takes a runtime, a
 * kernel and a file system that can map mounts.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { chown, mkdir, mkdtemp, readdir, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { toError } from "../../../../src/provider/kit/index.ts";
import { MACHINE_USERS } from "../../bundle/machine-users.ts";
import { canMap, mountMapped, writeMapper } from "../../bundle/mapped-mounts.ts";
import { findTool, run } from "../../host/command.ts";
import { HostError } from "../../host/host-error.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { bindDescriptor, mountOverlay, mountTmpfs, unmountBelow } from "../../host/mounts.ts";
import { removeTree } from "../../host/remove-tree.ts";

/** Which of the namespaces that are made for a machine with users of its own. */
type Kind = "user" | "ipc" | "uts";

/**
 * Where roots of containers are whose users are not the host's: they have to get there, and the backend's folder is for
 * nobody but root.
 */
const ROOTS = "/run/vmlet-roots";
/** To whom what is tried out belongs: anybody but root. */
const TRIAL_USER = 65_534;
/** With what the name of its folder begins. */
const TRIAL = "users-trial-";
const READY_MS = 10_000;

/** Namespaces of user, network, IPC and names, while `end` was not called and nothing else holds them. */
interface NewNamespaces {
  /** A process in them. */
  readonly pid: number;
  hold(kind: Kind, file: string): Promise<void>;
  end(): void;
}

/**
 * A user namespace, and those that belong to it: only then may its root mount /sys and /dev/mqueue, and set kernel
 * parameters of its own.
 * @param root what its root is on this host; the other users follow
 */
export async function newNamespaces(root: number, signal: AbortSignal): Promise<NewNamespaces> {
  const child = spawn(findTool("unshare")!, ["--user", "--net", "--ipc", "--uts", "cat"], {
    stdio: ["pipe", "pipe", "pipe"],
    signal: AbortSignal.any([signal, AbortSignal.timeout(READY_MS)]),
    killSignal: "SIGKILL",
  });
  child.on("error", () => {}); // told by the events that are waited for
  child.stdin.on("error", () => {});
  let said = "";
  child.stderr.on("data", (text: Buffer) => (said += text.toString()));
  try {
    // What comes back has been through the program, which is begun in the namespaces.
    child.stdin.write("\n");
    const ended = once(child, "close").then(() => {
      throw new HostError(`no user namespace can be made: ${said.trim() || "unshare has ended"}`);
    });
    await Promise.race([once(child.stdout, "data"), ended]);
    const pid = child.pid!;
    for (const map of ["uid_map", "gid_map"]) await writeFile(`/proc/${pid}/${map}`, `0 ${root} ${MACHINE_USERS}`);
    return {
      pid,
      async hold(kind, file) {
        const fd = openSync(`/proc/${pid}/ns/${kind}`, "r");
        try {
          await writeFile(file, "");
          await bindDescriptor(fd, file);
        } finally {
          closeSync(fd);
        }
      },
      end: () => void child.kill("SIGKILL"),
    };
  } catch (thrown) {
    child.kill("SIGKILL");
    throw thrown;
  }
}

/** Folder of the roots of a machine's containers. @param dir the machine's folder */
export const rootsOf = (dir: string): string => join(ROOTS, machineHash(dir));

/** Makes the place for one. */
export async function makeRoot(dir: string, container: string): Promise<string> {
  const root = join(rootsOf(dir), container);
  await mkdir(root, { recursive: true, mode: 0o755 });
  return root;
}

interface Trial {
  /** Path of the OCI runtime. */
  runtime: string;
  /** An existing folder on the file system of images and volumes. */
  dir: string;
}

/** @returns what machines lack on this host to have users of their own; undefined when it is nothing */
export async function lackOfUsers({ runtime, dir }: Trial): Promise<string | undefined> {
  if (!(await mapsMounts(runtime))) return `${basename(runtime)} maps no mounts, as runc does from 1.2 on`;
  if (!canMap(process.arch)) return `mounts are mapped on processors of type x64 only, and this one is ${process.arch}`;
  try {
    await tryMounts(dir);
    return undefined;
  } catch (thrown) {
    return toError(thrown).message;
  }
}

async function mapsMounts(runtime: string): Promise<boolean> {
  try {
    const { stdout } = await run(runtime, ["features"]);
    const { linux } = JSON.parse(stdout.toString()) as {
      linux?: { mountExtensions?: { idmap?: { enabled?: boolean } } };
    };
    return linux?.mountExtensions?.idmap?.enabled === true;
  } catch {
    return false; // it is older than the question
  }
}

/** What a machine with users of its own will need: its containers' roots, and its folders in memory. */
async function tryMounts(dir: string): Promise<void> {
  const trial = await mkdtemp(join(dir, TRIAL));
  try {
    const folder = async (name: string) => {
      const path = join(trial, name);
      await mkdir(path);
      return path;
    };
    const [mapper, users, lower] = [join(trial, "map"), join(trial, "users"), await folder("lower")];
    await writeMapper(mapper);
    const namespaces = await newNamespaces(TRIAL_USER, AbortSignal.timeout(READY_MS));
    try {
      await namespaces.hold("user", users);
    } finally {
      namespaces.end();
    }
    await mountMapped(mapper, { source: await folder("image"), target: lower, users });
    const [upper, work, root] = [await folder("upper"), await folder("work"), await folder("root")];
    await chown(upper, TRIAL_USER, TRIAL_USER);
    await mountOverlay(root, { lower, upper, work });
    const memory = await folder("memory");
    await mountTmpfs(memory, { mode: "755" });
    await mountMapped(mapper, { source: memory, target: await folder("mapped"), users });
  } finally {
    await removeTrial(trial);
  }
}

/** Removes what is left of trials in whose middle a backend was killed. */
export async function sweepTrials(dir: string): Promise<void> {
  for (const name of await readdir(dir)) if (name.startsWith(TRIAL)) await removeTrial(join(dir, name));
}

async function removeTrial(trial: string): Promise<void> {
  await unmountBelow(trial);
  await removeTree(trial);
}
