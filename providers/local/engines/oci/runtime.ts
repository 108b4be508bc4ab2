/** The OCI runtime's command line (runc, crun and others agree on it). */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { CommandError, run } from "../../host/command.ts";
import { isMissing, readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { bootId } from "../../host/proc.ts";

export class OciRuntime {
  readonly #path: string;
  readonly #root: string;

  /** `root`: the runtime's own state; containers of two backends never mix. */
  constructor(path: string, root: string) {
    this.#path = path;
    this.#root = root;
  }

  /** Arguments of a foreground `run`. The container's state and cgroup stay after its end, for `conclude`. */
  runCommand(id: string, bundle: string, pidFile: string, log: string): string[] {
    return [...this.#base(log), "run", "--keep", "--bundle", bundle, "--pid-file", pidFile, id];
  }

  execCommand(id: string, processFile: string, pidFile: string, log: string): string[] {
    return [...this.#base(log), "exec", "--process", processFile, "--pid-file", pidFile, id];
  }

  /**
   * Starts a container and does not wait for its end. It has no streams: it would keep those of the runtime open for
   * its life.
   */
  async runDetached(id: string, bundle: string, pidFile: string, log: string): Promise<void> {
    const [command, ...args] = [...this.#base(log), "run", "--detach", "--bundle", bundle, "--pid-file", pidFile, id];
    const child = spawn(command, args, { stdio: "ignore" });
    const [code] = (await once(child, "exit")) as [number | null];
    if (code !== 0)
      throw new CommandError(command, code ?? undefined, (await readFileIfExists(log)) ?? "", `exit code ${code}`);
  }

  async update(id: string, resources: object): Promise<void> {
    await run(this.#path, ["--root", this.#root, "update", "--resources", "-", id], {
      input: JSON.stringify(resources),
    });
  }

  /** Removes the container's state and cgroup, killing what runs; an unknown id is not an error. */
  async delete(id: string): Promise<void> {
    try {
      await run(this.#path, ["--root", this.#root, "delete", "--force", id]);
    } catch (thrown) {
      if (thrown instanceof CommandError && /does not exist|not found/i.test(thrown.stderr)) return;
      if (!(await this.#isTorn(id))) throw thrown;
      await rm(join(this.#root, id), { recursive: true, force: true });
    }
  }

  /**
   * Forgets all containers of another boot of this host: nothing of them runs. The runtime flushes nothing of what it
   * writes, because it expects to be in memory.
   */
  async forgetOtherBoots(): Promise<void> {
    const file = join(this.#root, "..", "boot");
    const boot = await readFileIfExists(file);
    if (boot === bootId()) return;
    if (boot !== undefined) await rm(this.#root, { recursive: true, force: true });
    await mkdir(dirname(file), { recursive: true });
    await writeFileAtomic(file, bootId());
  }

  /** A loss of power has torn what the runtime knows of a container: then nothing of it runs. */
  async #isTorn(id: string): Promise<boolean> {
    const text = await readFileIfExists(join(this.#root, id, "state.json"));
    if (text === undefined) return false;
    try {
      JSON.parse(text);
      return false;
    } catch {
      return true;
    }
  }

  /** With the errors in a file, standard error holds them once and in plain words. */
  #base(log: string): string[] {
    return [this.#path, "--root", this.#root, "--log", log];
  }
}

/** The pid that the runtime wrote; undefined when it has not yet. */
export async function readPid(file: string): Promise<number | undefined> {
  try {
    const pid = Number((await readFile(file, "utf8")).trim());
    return Number.isInteger(pid) && pid > 0 ? pid : undefined;
  } catch (thrown) {
    if (isMissing(thrown)) return undefined;
    throw thrown;
  }
}
