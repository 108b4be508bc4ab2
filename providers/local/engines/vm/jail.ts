/**
 * What a QEMU gets on this host, as the arguments of its launcher (jail/jail.c): a user of its own, a root in which
 * there is nothing but its program and what is named here, no network, no other processes. All that it writes to, and
 * all that it listens on, is opened by the launcher; there is no folder in which it could make a file.
 */
import { existsSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { findTool, run } from "../../host/command.ts";

/** `read` and `write` are of files, `listen` of a socket's path, `tap` of a network device. */
type DescriptorKind = "read" | "write" | "listen" | "tap";

interface JailOptions {
  /** Folder of the guest image, where the launcher is. */
  guestDir: string;
  /** User and group. */
  uid: number;
  /** A folder that is there, for the mount of its root. */
  root: string;
  /** `cgroup.procs` of the control groups that it is in from its beginning. */
  groups: readonly string[];
  /** No file gets longer by it. */
  fileBytes: number;
  /** Path of the network namespace that its taps are in; absent: this process's own. */
  netns?: string | undefined;
}

/** Those below are the launcher's own for a moment. */
const FIRST_DESCRIPTOR = 10;
/** Firmware: those that are there. */
const DATA = ["/usr/share/qemu", "/usr/share/seabios"];
const PRELOADED = "read-only.so";

export class Jail {
  readonly #guestDir: string;
  readonly #options: string[];
  readonly #netns: string | undefined;
  #next = FIRST_DESCRIPTOR;

  constructor({ guestDir, uid, root, groups, fileBytes, netns }: JailOptions) {
    this.#guestDir = guestDir;
    this.#netns = netns;
    const entered = groups.flatMap((file) => ["enter", file]);
    this.#options = ["uid", String(uid), "root", root, "file-size", String(fileBytes), ...entered];
  }

  /** @returns the number that the program knows it by */
  give(kind: DescriptorKind, name: string): number {
    this.#options.push(kind, String(this.#next), name);
    return this.#next++;
  }

  /** It has these files and folders, with all in them, where the host has them: to read. */
  see(...paths: string[]): void {
    for (const path of paths) this.#options.push("see", path);
  }

  /** A file of its user's that it may write to. */
  change(path: string): void {
    this.#options.push("change", path);
  }

  /** A copy of a device's node. */
  device(path: string): void {
    this.#options.push("device", path);
  }

  /** What it opens for reading and writing and may not write to, it gets for reading (jail/read-only.c). */
  readOnlyInstead(): void {
    const library = join(this.#guestDir, PRELOADED);
    this.see(library);
    this.#options.push("env", `LD_PRELOAD=${library}`);
  }

  /** What starts the program, which has to be absolute, in this jail. */
  command(program: string, args: readonly string[]): { command: string; args: string[] } {
    const [command, given] = [join(this.#guestDir, "jail"), [...this.#options, "--", program, ...args]];
    if (this.#netns === undefined) return { command, args: given };
    return { command: findTool("nsenter") ?? "nsenter", args: [`--net=${this.#netns}`, command, ...given] };
  }
}

/**
 * What a program needs of this host to run: itself, its dynamic linker, the folders of its libraries, firmware.
 * @param program absolute
 */
export async function programFiles(program: string): Promise<string[]> {
  const { stdout } = await run(findTool("ldd") ?? "ldd", [program]);
  const needed = stdout.toString().matchAll(/(?:=> |^\t)(\/\S+) \(0x/gm);
  const libraries = [...needed].map(([, path]) => path!);
  const linkers = libraries.filter((path) => /\/ld-[^/]*$/.test(path));
  const folders = libraries.filter((path) => !linkers.includes(path)).map((path) => dirname(path));
  const all = [program, ...linkers, ...folders, ...DATA.filter((path) => existsSync(path))];
  return [...new Set(all.flatMap((path) => [path, realpathSync(path)]))];
}
