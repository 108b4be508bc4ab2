import { createHash } from "node:crypto";

/** A short name for a machine: ids may be longer than what cgroups, interfaces and sockets take. */
export function machineHash(id: string): string {
  return createHash("sha256").update(id).digest("hex").slice(0, 16);
}
