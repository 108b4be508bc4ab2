/**
 * How much of a disk the trees take that containers write, by du: it follows any depth, and counts a file with several
 * names once.
 */
import type { Clock, SharedPlaces } from "../../../src/provider/kit/index.ts";
import { findTool, run } from "./command.ts";

/** @returns 0 for a tree that is not there; of one that changes meanwhile, about the right figure */
export async function treeBytes(path: string): Promise<number> {
  return await measure("--block-size=1", path);
}

/** Files, folders, links and all else that has an inode. @returns as `treeBytes` */
export async function treeInodes(path: string): Promise<number> {
  return await measure("--inodes", path);
}

async function measure(unit: string, path: string): Promise<number> {
  // du ends with 1 when files have vanished under it; its figure is good all the same.
  const { stdout } = await run(findTool("du") ?? "du", ["--summarize", "--one-file-system", unit, "--", path], {
    exitCodes: [0, 1],
  });
  return Number(stdout.toString().split("\t")[0]) || 0;
}

/** A figure serves for so long. */
const PERIOD_MS = 30_000;

/**
 * Measures one machine's trees now and then. Walking a tree is expensive: only a few machines' trees are walked at a
 * time, and a tenant with millions of files holds up its own.
 */
export class TreeMeter {
  readonly #clock: Clock;
  readonly #walks: SharedPlaces;
  readonly #tenant: string;
  readonly #known = new Map<string, { figure: Promise<number>; at: number }>();

  /**
   * @param walks that all meters of a host share
   * @param tenant whose machine it is
   */
  constructor(clock: Clock, walks: SharedPlaces, tenant: string) {
    this.#clock = clock;
    this.#walks = walks;
    this.#tenant = tenant;
  }

  bytes(path: string): Promise<number> {
    return this.#measure(`bytes ${path}`, () => treeBytes(path));
  }

  inodes(path: string): Promise<number> {
    return this.#measure(`inodes ${path}`, () => treeInodes(path));
  }

  /** Of a tree that is about to be removed. */
  forget(path: string): void {
    for (const what of ["bytes", "inodes"]) this.#known.delete(`${what} ${path}`);
  }

  async #measure(key: string, measure: () => Promise<number>): Promise<number> {
    const now = this.#clock.monotonic();
    const known = this.#known.get(key);
    if (known !== undefined && now - known.at < PERIOD_MS) return await known.figure;
    const walk = async () => (await measure().catch(() => 0)) || (await known?.figure) || 0;
    const figure = this.#walks.run(this.#tenant, walk);
    this.#known.set(key, { figure, at: now });
    return await figure;
  }
}
