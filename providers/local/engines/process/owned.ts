/**
 * Finds the processes that containers have left on this host, where no control group or namespace holds them together.
 */
import { resolve } from "node:path";
import { allProcesses, processEnv, type ProcessStat } from "../../host/proc.ts";

interface OwnedProcess {
  stat: ProcessStat;
  machine: string;
  container: string;
}

const MARK = "VMLET_OWNER";

/**
 * The processes of this host that belong to a backend's containers, daemonised ones included: each carries a mark in
 * its environment, which children inherit; a child that cleared its environment is known by its parent or its session.
 * A child that has cleared its environment, left its session and lost its parent is beyond recognition: without
 * isolation, a program that sets out to hide can.
 */
export class OwnedProcesses {
  readonly #stateDir: string;
  #running: Promise<OwnedProcess[]> | undefined;
  #next: Promise<OwnedProcess[]> | undefined;

  constructor(stateDir: string) {
    // One spelling for one folder: `/var/lib/x/` and `/var/lib/x` are the same backend's.
    this.#stateDir = resolve(stateDir);
  }

  /** What a container's environment needs, for its processes to be found. */
  marks(machine: string, container: string): Record<string, string> {
    return { [MARK]: `${this.#stateDir}|${machine}|${container}` };
  }

  /** A scan that began after the call. Many callers at once share one. */
  list(): Promise<OwnedProcess[]> {
    if (this.#running === undefined) {
      this.#running = this.#scan().finally(() => {
        this.#running = undefined;
      });
      return this.#running;
    }
    this.#next ??= this.#running
      .catch(() => [])
      .then(() => {
        this.#next = undefined;
        return this.list();
      });
    return this.#next;
  }

  async #scan(): Promise<OwnedProcess[]> {
    const all = await allProcesses();
    const owned = new Map<number, OwnedProcess>();
    const sessions = new Map<number, OwnedProcess>();
    await Promise.all(
      all.map(async (stat) => {
        const mark = await processEnv(stat.pid, MARK);
        if (mark?.startsWith(`${this.#stateDir}|`) !== true) return;
        const [machine, container] = mark.slice(this.#stateDir.length + 1).split("|");
        if (machine === undefined || container === undefined) return;
        const own = { stat, machine, container };
        owned.set(stat.pid, own);
        sessions.set(stat.session, own);
      }),
    );
    if (owned.size === 0) return [];
    const byParent = Map.groupBy(all, (stat) => stat.ppid);
    for (const stat of all) {
      const leader = sessions.get(stat.session);
      if (leader !== undefined && !owned.has(stat.pid)) owned.set(stat.pid, { ...leader, stat });
    }
    const queue = [...owned.values()];
    for (let own = queue.pop(); own !== undefined; own = queue.pop()) {
      for (const stat of byParent.get(own.stat.pid) ?? []) {
        if (owned.has(stat.pid)) continue;
        const child = { ...own, stat };
        owned.set(stat.pid, child);
        queue.push(child);
      }
    }
    return [...owned.values()];
  }
}
