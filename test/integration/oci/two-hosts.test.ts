/** Backends on hosts of their own, set up as docs/operate.md says: a range each, and a route to the other's. */
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { missingForNetwork } from "../../support/host.ts";
import { type NetworkHost, startNetworkHosts } from "../../support/network-hosts.ts";

const missing = missingForNetwork();
if (missing !== undefined) console.warn(`machines of two hosts: left out, ${missing}`);

const [A, B] = ["10.96.1.0/24", "10.96.2.0/24"];
const PODS = "10.96.0.0/16";

/** What `to` sees a connection of `from`'s machine come from. */
async function seenFrom(from: NetworkHost, to: NetworkHost): Promise<string> {
  // It ends with its first connection; one that nobody makes is not waited for.
  const server = `const s=require("net").createServer(c=>{c.on("error",()=>{}).end(c.remoteAddress);s.close()}).listen(8080,"0.0.0.0");setTimeout(()=>process.exit(1),20000).unref()`;
  const serving = to.inMachine(process.execPath, "-e", server);
  const client = `const t=()=>require("net").connect(8080,"${to.machine.address}").on("error",()=>setTimeout(t,50)).pipe(process.stdout);t()`;
  const seen = await from.inMachine(process.execPath, "-e", client);
  await serving;
  return seen;
}

describe.skipIf(missing !== undefined)("machines of two hosts with a route to each other's range", () => {
  async function hosts({ isNodes = false, ...rest }: { outbound?: "deny"; podCidrs?: string[]; isNodes?: boolean }) {
    const network = async (range: string) => ({
      dir: await mkdtemp(join(tmpdir(), "vmlet-host-")),
      ...(isNodes ? { cidr: "node", told: range } : { cidr: range }),
      ...rest,
    });
    const started = await startNetworkHosts([
      { address: "192.0.2.11", network: await network(A) },
      { address: "192.0.2.12", network: await network(B) },
    ]);
    const [a, b] = started.hosts;
    await a.run("ip", "route", "add", B, "via", b.address);
    await b.run("ip", "route", "add", A, "via", a.address);
    return started;
  }

  test.each(["allow", "deny"] as const)(
    "see each other's own addresses where the ranges are said to be pods', outbound: %s",
    async (outbound) => {
      await using started = await hosts({ podCidrs: [PODS], ...(outbound === "deny" && { outbound }) });
      const [a, b] = started.hosts;
      expect([await seenFrom(a, b), await seenFrom(b, a)]).toEqual([a.machine.address, b.machine.address]);
      expect([a.machine.address, b.machine.address].map((each) => each.split(".")[2])).toEqual(["1", "2"]);
    },
  );

  test("see each other's own addresses where the ranges are those that their Nodes have", async () => {
    await using started = await hosts({ podCidrs: [PODS], isNodes: true });
    const [a, b] = started.hosts;
    expect([await seenFrom(a, b), await seenFrom(b, a)]).toEqual([a.machine.address, b.machine.address]);
    expect([a.machine.gateway, b.machine.gateway]).toEqual(["10.96.1.1", "10.96.2.1"]);
  });

  test("see the other's host where nothing is said of ranges", async () => {
    await using started = await hosts({});
    const [a, b] = started.hosts;
    expect([await seenFrom(a, b), await seenFrom(b, a)]).toEqual([a.address, b.address]);
  });
});
