/** What of this host a VM's state depends on. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { release } from "node:os";

/** A new QEMU has other devices inside: its binary's size and time stand for its version. */
export function qemuIdentity(path: string | undefined): string {
  return path === undefined
    ? ""
    : createHash("sha256")
        .update(readFileSync(path).subarray(0, 1 << 20))
        .digest("hex")
        .slice(0, 16);
}

/** Under KVM a guest has this host's processor, and its memory holds what it found out about it. */
export function processorIdentity(): string {
  const lines = readFileSync("/proc/cpuinfo", "utf8").match(/^(?:model name|flags)\s*:.*$/gm) ?? [];
  return [release(), ...new Set(lines)].join("\n");
}
