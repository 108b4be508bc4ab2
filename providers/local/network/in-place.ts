/** Whether the rules that nft was told are still in place: other programs flush what they find. */
import { readFileIfExists } from "../host/files.ts";
import { runSoon } from "./tools.ts";

/** Whether the kernel has this host's rules judge also what goes from one port of the bridge to another. */
export async function seesBridgedPackets(bridge: string): Promise<boolean> {
  const switches = ["/proc/sys/net/bridge/bridge-nf-call-iptables", `/sys/class/net/${bridge}/bridge/nf_call_iptables`];
  // The first is not there before the module br_netfilter is, and says it for all bridges.
  const values = await Promise.all(switches.map(async (path) => (await readFileIfExists(path))?.trim()));
  return values.includes("1");
}

/** Chain (`inet vmlet_vmlet0 forward`) -> how many rules it has. */
type RuleCounts = ReadonlyMap<string, number>;

interface Listed {
  chain?: { family: string; table: string; name: string };
  rule?: { family: string; table: string; chain: string };
}

/** The first chain that lacks rules of a script of `add chain` and `add rule` lines; undefined when none does. */
export async function missingChain(table: string, script: string): Promise<string | undefined> {
  const inPlace = new Map([...(await countRules("inet", table)), ...(await countRules("netdev", table))]);
  return [...wantedCounts(script)].find(([chain, count]) => inPlace.get(chain) !== count)?.[0];
}

function wantedCounts(script: string): RuleCounts {
  const counts = new Map<string, number>();
  for (const [, kind, chain] of script.matchAll(/^add (chain|rule) (\S+ \S+ \S+)/gm))
    counts.set(chain!, (counts.get(chain!) ?? 0) + (kind === "rule" ? 1 : 0));
  return counts;
}

async function countRules(family: string, table: string): Promise<RuleCounts> {
  const counts = new Map<string, number>();
  for (const { chain, rule } of await list(family, table)) {
    if (chain !== undefined) counts.set(`${chain.family} ${chain.table} ${chain.name}`, 0);
    if (rule === undefined) continue;
    const key = `${rule.family} ${rule.table} ${rule.chain}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

/** Nothing for a table that is not there. */
async function list(family: string, table: string): Promise<Listed[]> {
  const { stdout } = await runSoon("nft", ["-j", "list", "tables", family]);
  const tables = (JSON.parse(stdout.toString("utf8")) as { nftables: { table?: { name: string } }[] }).nftables;
  if (!tables.some((each) => each.table?.name === table)) return [];
  const listed = await runSoon("nft", ["-j", "-t", "list", "table", family, table]);
  return (JSON.parse(listed.stdout.toString("utf8")) as { nftables: Listed[] }).nftables;
}
