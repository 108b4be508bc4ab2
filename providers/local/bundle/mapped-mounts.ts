/**
 * Mounts that are mapped to a machine's users: what is root's there is the machine's root's here. `mount` does it from
 * 2.39 on (and passes over the option in silence before), so it is done by a program of our own.
 */
import { closeSync, openSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { getSystemErrorName } from "node:util";
import { CommandError, run } from "../host/command.ts";
import { writeFileAtomic } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import { tinyProgram } from "./tiny-program.ts";

/**
 * `SOURCE TARGET`, with the user namespace as descriptor 3; exits with the number of the error. Its calls have these
 * numbers on all processors.
 */
const CODE = Buffer.from(
  [
    "bf9cffffff", // mov edi, AT_FDCWD
    "488b742410", // mov rsi, [rsp + 16]: SOURCE
    "ba01000800", // mov edx, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    "b8ac010000", // mov eax, 428: open_tree
    "0f05", // syscall
    "85c0", // test eax, eax
    "7848", // js out
    "89c3", // mov ebx, eax
    "89df", // mov edi, ebx
    "488d3548000000", // lea rsi, [rip + 72]: ""
    "ba00100000", // mov edx, AT_EMPTY_PATH
    "4c8d1544000000", // lea r10, [rip + 68]: the attributes behind the code
    "41b820000000", // mov r8d, 32
    "b8ba010000", // mov eax, 442: mount_setattr
    "0f05", // syscall
    "85c0", // test eax, eax
    "7820", // js out
    "89df", // mov edi, ebx
    "488d3522000000", // lea rsi, [rip + 34]: ""
    "ba9cffffff", // mov edx, AT_FDCWD
    "4c8b542418", // mov r10, [rsp + 24]: TARGET
    "41b804000000", // mov r8d, MOVE_MOUNT_F_EMPTY_PATH
    "b8ad010000", // mov eax, 429: move_mount
    "0f05", // syscall
    "f7d8", // out: neg eax
    "89c7", // mov edi, eax
    "b83c000000", // mov eax, 60: exit
    "0f05", // syscall
    "0000000000000000", // ""
    "0000100000000000", // attr_set = MOUNT_ATTR_IDMAP
    "0000000000000000", // attr_clr
    "0000040000000000", // propagation = MS_PRIVATE
    "0300000000000000", // userns_fd = 3
  ].join(""),
  "hex",
);

/** Whether it is written for these processors. */
export const canMap = (nodeArch: string): boolean => nodeArch === "x64";

/** @param path of the program, which is put there */
export async function writeMapper(path: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  await writeFileAtomic(path, tinyProgram(CODE), 0o700);
}

/**
 * Mounts a folder, without what is mounted below it, at another place, mapped to users.
 * @param mapper the program
 * @param users file of a user namespace
 * @throws HostError when its file system, or this kernel, cannot be mapped
 */
export async function mountMapped(
  mapper: string,
  { source, target, users }: { source: string; target: string; users: string },
): Promise<void> {
  const fd = openSync(users, "r");
  try {
    await run(mapper, [source, target], { fd3: fd });
  } catch (thrown) {
    if (!(thrown instanceof CommandError) || thrown.exitCode === undefined) throw thrown;
    throw new HostError(`cannot mount ${source} mapped to other users: ${getSystemErrorName(-thrown.exitCode)}`);
  } finally {
    closeSync(fd);
  }
}
