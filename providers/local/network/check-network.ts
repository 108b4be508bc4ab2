/** Tools and rights that the machines' network takes. */
import { existsSync } from "node:fs";
import type { HostProblem } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { checkConnections } from "./connections.ts";

/** What the host lacks for machine networks. */
export function checkNetwork(kind: "namespace" | "tap"): HostProblem[] {
  const problems: HostProblem[] = [];
  for (const [tool, debian] of [
    ["ip", "iproute2"],
    ["nft", "nftables"],
    ["nsenter", "util-linux"],
  ] as const) {
    if (findTool(tool) === undefined)
      problems.push({
        fatal: true,
        problem: `${tool} is not on the PATH`,
        cure: `install the package ${debian} (Debian: apt-get install ${debian})`,
      });
  }
  problems.push(...checkConnections());
  if (process.getuid?.() !== 0)
    problems.push({
      fatal: true,
      problem: "networks need root",
      cure: "run the backend as root, or use the process engine",
    });
  if (kind === "tap" && !existsSync("/dev/net/tun"))
    problems.push({
      fatal: true,
      problem: "/dev/net/tun is missing",
      cure: "load the module tun, or pass the device into this container (--device /dev/net/tun)",
    });
  return problems;
}
