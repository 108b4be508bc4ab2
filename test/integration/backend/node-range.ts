/** Machines' addresses of the range that their Node has, on a real engine: a backend of its own process. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { HttpVmProvider } from "../../../providers/http-vm/index.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { inRanges } from "../../../src/util/cidr.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost, removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { allDeleted } from "../../conformance/all-deleted.ts";

const PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
const OWN = ownerLabels("c1", "burst-0");
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
  const folder = await realpath(await mkdtemp(join(tmpdir(), `vmlet-${type}-`)));
  const stateDir = join(folder, "state");
  const file = join(folder, "backend.json");
  const socket = join(folder, "api.sock");
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const config = {
    ...{ apiVersion: "vmlet.dev/v1", kind: "BackendConfig", stateDir, listen: { socket } },
    engine: { type, network, images: { insecureRegistries: [registry.host] } },
    // What else this host's disk is full of is not the test's.
    eviction: { hard: { "imagefs.available": "0", "nodefs.available": "0" } },
  };
  await writeFile(file, JSON.stringify(config));
  const provider = new HttpVmProvider({ url: `unix://${socket}` });
  let backend: ChildProcess | undefined;
  const start = async () => {
    backend = spawn(process.execPath, [PROGRAM, "backend", "--config", file], { stdio: "ignore" });
    await waitFor({ what: "the backend", timeoutMs: 120_000 }, () => provider.getInfo({ signal }));
  };
  const tell = (range: string) => provider.podRanges.put({ labels: OWN, ranges: [range] }, { signal });
  const create = (id: string, labels: Record<string, string> = OWN) => {
    const main = { name: "main", image: `${registry.host}/t/busybox:1`, command: ["sleep", "3600"] };
    return provider.createPod(id, { labels, restart_policy: "never", containers: [main] }, { signal });
  };
  const addressOf = async (id: string) => {
    await waitFor({ what: `machine ${id} to run`, timeoutMs: 120_000 }, async () => {
      expect((await provider.getPod(id, { signal })).containers[0]).toMatchObject({ state: "running" });
    });
    const { addresses } = await provider.getPod(id, { signal });
    return addresses[0]!.ip;
  };
  try {
    await start();
    expect((await provider.getInfo({ signal })).capabilities).toContain("pod_ranges");
    await expect(create("early")).rejects.toThrow("no agent has told one");

    expect(await tell(first)).toMatchObject({ ranges: [first], state: "ready" });
    await create("one");
    const one = await addressOf("one");
    expect(inRanges([first])(one)).toBe(true);
    await expect(create("foreign", ownerLabels("c1", "burst-1"))).rejects.toThrow(
      "each node needs a backend of its own",
    );

    expect(await tell(second)).toMatchObject({ ranges: [second], state: "waiting" });
    await expect(create("two")).rejects.toThrow("new ones wait until they are deleted");
    backend!.kill("SIGKILL");
    await once(backend!, "exit");
    await start();
    expect(await provider.podRanges.get({ signal })).toMatchObject({ ranges: [second], state: "waiting" });
    expect(await addressOf("one")).toBe(one);

    await provider.deletePod("one", { signal, force: true });
    await waitFor({ what: "the range to be in use", timeoutMs: 120_000 }, async () => {
      expect(await tell(second)).toMatchObject({ state: "ready" });
    });
    await create("two");
    expect(inRanges([second])(await addressOf("two"))).toBe(true);
  } finally {
    for (const id of ["one", "two"]) await provider.deletePod(id, { signal, force: true }).catch(() => undefined);
    await allDeleted(provider).catch(() => undefined);
    await provider.close();
    backend?.kill("SIGTERM");
    if (backend !== undefined && backend.exitCode === null && backend.signalCode === null) await once(backend, "exit");
    await registry.stop();
    await removeEngine(type, { stateDir, network });
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}
