/** What trees that containers write take of a disk, by du: it goes as deep as they can, and counts a file with several names once. */
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
