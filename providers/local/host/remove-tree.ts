import { findTool, run } from "./command.ts";

/**
 * Removes a folder and all below it; nothing happens when there is none. For what containers have written: Node goes by
 * whole paths, which a container can make longer than the kernel takes. What is mounted below `dir` stays.
 * @throws CommandError when something is left
 */
export async function removeTree(dir: string): Promise<void> {
  await run(findTool("rm")!, ["--recursive", "--force", "--one-file-system", "--", dir]);
}
