/** Whether another program's rules keep machines from the outside: Docker sets the policy of FORWARD to drop. */
import type { HostProblem } from "../engine.ts";
import { findTool, run } from "../host/command.ts";

/** @param bridge of the machines */
export async function checkForwarding(bridge: string, list = listChain): Promise<HostProblem[]> {
  const chain = await list().catch(() => "");
  if (!/hook forward [^;]*; policy drop;/.test(chain)) return [];
  // A rule of the owner's that lets the bridge through is enough; Docker's chain for such rules is looked at, too.
  if (chain.includes(`"${bridge}"`)) return [];
  return [
    {
      fatal: false,
      problem: `this host drops what it forwards (table ip filter, chain FORWARD; Docker does that): machines on ${bridge} do not reach the outside`,
      cure: `iptables -I DOCKER-USER -i ${bridge} -j ACCEPT && iptables -I DOCKER-USER -o ${bridge} -j ACCEPT (without Docker: FORWARD in place of DOCKER-USER)`,
    },
  ];
}

/** What iptables has there, as nft shows it: FORWARD, and the chain that Docker leaves to the host's owner. */
async function listChain(): Promise<string> {
  const nft = findTool("nft") ?? "nft";
  const chains = await Promise.allSettled(
    ["FORWARD", "DOCKER-USER"].map((name) => run(nft, ["list", "chain", "ip", "filter", name])),
  );
  return chains.map((each) => (each.status === "fulfilled" ? each.value.stdout.toString("utf8") : "")).join("\n");
}
