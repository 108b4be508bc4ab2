/** What the kernel remembers of connections (conntrack), which must not lead to the next owner of an address. */
import type { HostProblem } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { runSoon } from "./tools.ts";

/** `conntrack` when it had nothing to delete. */
const NOTHING_THERE = 1;

/**
 * Forgets all connections from and to a machine that is gone: those of UDP ports of this host would lead on to its
 * address, also when another machine has it. A host without the tool has to wait until they expire.
 */
export async function forgetConnections(address: string): Promise<void> {
  const tool = findTool("conntrack");
  if (tool === undefined) return;
  const family = address.includes(":") ? "ipv6" : "ipv4";
  // From the machine, to it, and to a port of this host that led to it.
  const ends = ["--src", "--dst", "--reply-src"].map((end) => ["--delete", "--family", family, end, address]);
  await Promise.all(ends.map((args) => runSoon(tool, args, { exitCodes: [0, NOTHING_THERE] })));
}

export function checkConnections(): HostProblem[] {
  if (findTool("conntrack") !== undefined) return [];
  return [
    {
      fatal: false,
      problem:
        "conntrack is not on the PATH: for up to three minutes, UDP packets to a host port of a machine that is gone go on to its address",
      cure: "install the package conntrack (Debian: apt-get install conntrack)",
    },
  ];
}
