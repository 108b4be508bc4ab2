/** Machines' addresses of the range that their Node has, on a real engine: a backend of its own process. */
import { expect, test } from "vitest";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { inRanges } from "../../../src/util/cidr.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { text } from "./suite.ts";
import { OWN, withOwnBackend } from "./own-backend.ts";

const { signal } = new AbortController();

export async function nodeRange(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `machines have addresses of the range that their Node's agent tells, and keep them, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => followsTheNode(type));
}

/** Services by rules of the backend's own: a host of one Node's machines alone. */
export async function nodeServices(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `machines reach the Services that their Node's agent tells of, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => reachesServices(type));
}

async function reachesServices(type: ContainerEngine): Promise<void> {
  const { bridge, cidr = "" } = testNetwork("");
  const network = { bridge, cidr: "node", podCidrs: [cidr], services: true };
  await withOwnBackend(type, { network }, async ({ provider, restart, create, addressesOf }) => {
    expect((await provider.getInfo({ signal })).capabilities).toContain("services");
    const early = provider.services.put({ labels: OWN, revision: "0", services: [] }, { signal });
    await expect(early).rejects.toThrow("has not told their addresses yet");
    await provider.podRanges.put({ labels: OWN, ranges: [cidr] }, { signal });
    const says = "mkdir /w && echo here >/w/index.html && httpd -f -p 8080 -h /w";
    await create("server", { command: ["sh", "-c", says] });
    const [server] = await addressesOf("server");
    const service = { address: "198.51.100.10", protocol: "TCP", port: 80 } as const;
    const tell = (revision: string, addresses: string[]) => {
      const endpoints = addresses.map((address) => ({ address, port: 8080 }));
      return provider.services.put({ labels: OWN, revision, services: [{ ...service, endpoints }] }, { signal });
    };
    expect(await tell("1", [server!])).toEqual({ revision: "1", services: 1 });
    const other = { labels: ownerLabels("c1", "burst-1"), revision: "x", services: [] };
    await expect(provider.services.put(other, { signal })).rejects.toThrow("that is another one");
    await create("client");
    await addressesOf("client");
    const call = async () => {
      const script = `printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 ${service.address} 80 2>&1 | tail -n 1`;
      const streams = { signal, stdin: false, stdout: true, stderr: false, tty: false };
      const { stdout } = await provider.exec("client", "main", ["sh", "-c", script], streams);
      return (await text(stdout)).trim();
    };
    await waitFor({ what: "the server to listen" }, async () => expect(await call()).toBe("here"));
    await restart();
    expect(await call()).toBe("here");
    await tell("2", []);
    expect(await call()).toContain("refused");
  });
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
