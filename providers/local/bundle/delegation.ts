/**
 * Controllers of cgroup v2 for groups of our own. In a container the backend sits in what looks like the root of the
 * tree, and no group may have both processes and controllers for those below it: the processes have to move first, as
 * those of kind and of Docker in Docker do.
 */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isMissing } from "../host/files.ts";

const CONTROLLERS = ["cpu", "memory", "pids"];
const LEAF = "vmlet.init";
/** Processes that begin while others are moved. */
const ROUNDS = 10;

interface CgroupFiles {
  read(path: string): Promise<string>;
  write(path: string, text: string): Promise<void>;
  makeDir(path: string): Promise<void>;
}

const REAL: CgroupFiles = {
  read: async (path) => await readFile(path, "latin1"),
  write: async (path, text) => await writeFile(path, text),
  makeDir: async (path) => void (await mkdir(path, { recursive: true })),
};

/**
 * Has the group give its controllers to those below it.
 * @param root the group at the top of the tree that this process sees: only its processes may be moved
 */
export async function delegateControllers(dir: string, root: string, files = REAL): Promise<void> {
  const enable = async () =>
    await files.write(join(dir, "cgroup.subtree_control"), CONTROLLERS.map((name) => `+${name}`).join(" "));
  for (let round = 0; ; round++) {
    try {
      return await enable();
    } catch (thrown) {
      if (dir !== root || code(thrown) !== "EBUSY" || round === ROUNDS) throw thrown;
      await moveProcesses(dir, files);
    }
  }
}

/** Controllers that cgroup v2 does not have here. @returns their names */
export async function missingControllers(root: string, files = REAL): Promise<string[]> {
  const present = (await files.read(join(root, "cgroup.controllers"))).trim().split(" ");
  return CONTROLLERS.filter((name) => !present.includes(name));
}

async function moveProcesses(dir: string, files: CgroupFiles): Promise<void> {
  const leaf = join(dir, LEAF);
  await files.makeDir(leaf);
  for (const pid of (await files.read(join(dir, "cgroup.procs"))).split("\n").filter((line) => line !== "")) {
    try {
      await files.write(join(leaf, "cgroup.procs"), pid);
    } catch (thrown) {
      // It has ended meanwhile, or it is a thread of the kernel, which stays.
      if (code(thrown) !== "ESRCH" && code(thrown) !== "EINVAL" && !isMissing(thrown)) throw thrown;
    }
  }
}

function code(thrown: unknown): string | undefined {
  return (thrown as NodeJS.ErrnoException | undefined)?.code;
}
