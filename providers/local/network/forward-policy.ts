/** Whether another program's rules keep machines from the outside: Docker sets the policy of FORWARD to drop. */
import type { HostProblem } from "../engine.ts";
import { findTool, run } from "../host/command.ts";
import { wantsIpv6 } from "./check-network.ts";
import { DEFAULT_BRIDGE, type NetworkOptions } from "./network.ts";

/** As nft names them. */
type Family = "ip" | "ip6";
const TOOLS: Record<Family, string> = { ip: "iptables", ip6: "ip6tables" };

export async function checkForwarding(network: Partial<NetworkOptions> = {}, list = listChain): Promise<HostProblem[]> {
  const { bridge = DEFAULT_BRIDGE } = network;
  const families: readonly Family[] = wantsIpv6(network) ? ["ip", "ip6"] : ["ip"];
  const told = await Promise.all(families.map(async (family) => await checkFamily(family, bridge, list)));
  return told.flat();
}

async function checkFamily(family: Family, bridge: string, list: typeof listChain): Promise<HostProblem[]> {
  const chain = await list(family).catch(() => "");
  if (!/hook forward [^;]*; policy drop;/.test(chain)) return [];
  // A rule of the owner's that lets the bridge through is enough; Docker's chain for such rules is looked at, too.
  if (chain.includes(`"${bridge}"`)) return [];
  const tool = TOOLS[family];
  const lost = family === "ip" ? "do not reach the outside" : "do not reach each other by IPv6, nor the outside";
  return [
    {
      fatal: false,
      problem: `this host drops what it forwards (table ${family} filter, chain FORWARD; Docker does that): machines on ${bridge} ${lost}`,
      cure: `${tool} -I DOCKER-USER -i ${bridge} -j ACCEPT && ${tool} -I DOCKER-USER -o ${bridge} -j ACCEPT (without Docker: FORWARD in place of DOCKER-USER)`,
    },
  ];
}

/** What iptables has there, as nft shows it: FORWARD, and the chain that Docker leaves to the host's owner. */
async function listChain(family: Family): Promise<string> {
  const nft = findTool("nft") ?? "nft";
  const chains = await Promise.allSettled(
    ["FORWARD", "DOCKER-USER"].map((name) => run(nft, ["list", "chain", family, "filter", name])),
  );
  return chains.map((each) => (each.status === "fulfilled" ? each.value.stdout.toString("utf8") : "")).join("\n");
}
