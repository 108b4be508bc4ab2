/** A volume's files for a pod's group, as a kubelet gives them to it (pkg/volume/volume_linux.go). */
import { statSync } from "node:fs";
import { findTool, run } from "./command.ts";

/** Read and written by its owner and its group, and what is made in it is the group's, too. */
const FOLDER_BITS = 0o2770;

/**
 * The root last, so that one that was cut short is begun again. Nothing else may write to the tree meanwhile: chmod(1)
 * follows a link that has come to where a file was found.
 */
export async function ownTree(
  root: string,
  group: number,
  { onMismatchOnly }: { onMismatchOnly: boolean },
): Promise<void> {
  if (onMismatchOnly && isOwned(root, group)) return;
  const within = [root, "-xdev", "-mindepth", "1"];
  const find = (args: readonly string[]) => run(findTool("find") ?? "find", args);
  const every = (...tests: string[]) => [...within, ...tests, "-execdir"];
  // Each in a call of its own, for what is no folder has no bits of one.
  await find([...every("!", "-group", String(group)), "chgrp", "--no-dereference", `${group}`, "{}", "+"]);
  await find([...every("-type", "d", "!", "-perm", "-2770"), "chmod", "u+rwx,g+rwxs", "{}", "+"]);
  await find([...every("!", "-type", "d", "!", "-type", "l", "!", "-perm", "-660"), "chmod", "ug+rw", "{}", "+"]);
  await run(findTool("chgrp") ?? "chgrp", [`${group}`, root]);
  await run(findTool("chmod") ?? "chmod", ["u+rwx,g+rwxs", root]);
}

function isOwned(root: string, group: number): boolean {
  const { gid, mode } = statSync(root);
  return gid === group && (mode & FOLDER_BITS) === FOLDER_BITS;
}
