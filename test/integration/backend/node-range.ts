/** Machines' addresses of the range that their Node has, on a real engine: a backend of its own process. */
import { expect, test } from "vitest";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { inRanges } from "../../../src/util/cidr.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { OWN, withOwnBackend } from "./own-backend.ts";

const { signal } = new AbortController();

export async function nodeRange(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `machines have addresses of the range that their Node's agent tells, and keep them, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => followsTheNode(type));
}

async function followsTheNode(type: ContainerEngine): Promise<void> {
  const { bridge, cidr = "" } = testNetwork("");
  const network = { bridge, cidr: "node", podCidrs: [cidr] };
  const [first, second] = [cidr.replace("0/24", "0/28"), cidr.replace("0/24", "64/28")];
  await withOwnBackend(type, { network }, async ({ provider, restart, create, addressesOf }) => {
    const tell = (range: string) => provider.podRanges.put({ labels: OWN, ranges: [range] }, { signal });
    const addressOf = async (id: string) => (await addressesOf(id))[0]!;
    expect((await provider.getInfo({ signal })).capabilities).toContain("pod_ranges");
    await expect(create("early")).rejects.toThrow("no agent has told one");

    expect(await tell(first)).toMatchObject({ ranges: [first], state: "ready" });
    await create("one");
    const one = await addressOf("one");
    expect(inRanges([first])(one)).toBe(true);
    await expect(create("foreign", { labels: ownerLabels("c1", "burst-1") })).rejects.toThrow(
      "each node needs a backend of its own",
    );

    expect(await tell(second)).toMatchObject({ ranges: [second], state: "waiting" });
    await expect(create("two")).rejects.toThrow("new ones wait until they are deleted");
    await restart();
    expect(await provider.podRanges.get({ signal })).toMatchObject({ ranges: [second], state: "waiting" });
    expect(await addressOf("one")).toBe(one);

    await provider.deletePod("one", { signal, force: true });
    await waitFor({ what: "the range to be in use", timeoutMs: 120_000 }, async () => {
      expect(await tell(second)).toMatchObject({ state: "ready" });
    });
    await create("two");
    expect(inRanges([second])(await addressOf("two"))).toBe(true);
  });
}
