/** Tools and rights that the machines' network takes. */
import { existsSync } from "node:fs";
import type { HostProblem } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { checkConnections } from "./connections.ts";
import { OF_THE_NODE } from "./range.ts";

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

interface NetworkRanges {
  cidr?: string | undefined;
  podCidrs?: readonly string[] | undefined;
}

/** Whether machines get an IPv6 address by the configuration, or may get one of their Node's. */
export function wantsIpv6({ cidr = "", podCidrs = [] }: NetworkRanges): boolean {
  return [cidr, ...(cidr === OF_THE_NODE ? podCidrs : [])].some((range) => range.includes(":"));
}

/** What the host lacks for that. */
export function checkIpv6(network: NetworkRanges = {}): HostProblem[] {
  if (!wantsIpv6(network) || existsSync("/proc/sys/net/ipv6")) return [];
  return [
    {
      fatal: true,
      problem: "this kernel has no IPv6, and engine.network has an IPv6 range",
      cure: "boot without ipv6.disable=1, or take the IPv6 range out of engine.network.cidr and podCidrs",
    },
  ];
}
