/** Images that are kept ready, on a real engine: a backend of its own process, its registry, and the command line. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { HttpVmProvider } from "../../../providers/http-vm/index.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost, removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { allDeleted } from "../../conformance/all-deleted.ts";

const PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
const { signal } = new AbortController();
const run = promisify(execFile);

export async function prewarmedImages(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `images that are kept ready outlive a killed backend and a registry that is away, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => keepsImages(type));
}

async function keepsImages(type: ContainerEngine): Promise<void> {
  const { dir: _dir, ...network } = testNetwork("");
  const folder = await realpath(await mkdtemp(join(tmpdir(), `vmlet-${type}-`)));
  const stateDir = join(folder, "state");
  const file = join(folder, "backend.json");
  const socket = join(folder, "api.sock");
  const registry = await startRegistry();
  await registry.push("t/listed:1", await busyboxImage());
  await registry.push("t/pulled:1", await busyboxImage());
  const [listed, pulled] = ["listed", "pulled"].map((name) => `${registry.host}/t/${name}:1`) as [string, string];
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir,
    listen: { socket },
    engine: { type, network, images: { insecureRegistries: [registry.host] } },
    prewarm: { images: [listed] },
    // What else this host's disk is full of is not the test's.
    eviction: { hard: { "imagefs.available": "0", "nodefs.available": "0" } },
  };
  await writeFile(file, JSON.stringify(config));
  const provider = new HttpVmProvider({ url: `unix://${socket}` });
  const vmlet = async (...args: string[]) =>
    (await run(process.execPath, [PROGRAM, "images", ...args, "--backend", `unix://${socket}`])).stdout;
  let backend: ChildProcess | undefined;
  const start = async () => {
    backend = spawn(process.execPath, [PROGRAM, "backend", "--config", file], { stdio: "ignore" });
    await waitFor({ what: "the backend", timeoutMs: 120_000 }, () => provider.getInfo({ signal }));
  };
  try {
    await start();
    expect(await vmlet("pull", pulled)).toContain(`${pulled}: ready`);
    await waitFor({ what: "the listed image", timeoutMs: 120_000 }, async () => {
      expect(await vmlet("list")).toMatch(/listed:1 +ready/);
    });

    backend!.kill("SIGKILL");
    await once(backend!, "exit");
    await registry.stop();
    await start();

    await waitFor({ what: "both images", timeoutMs: 120_000 }, async () => {
      expect((await vmlet("list")).match(/:1 +ready/g)).toHaveLength(2);
    });
    for (const [id, image] of Object.entries({ listed, pulled })) {
      const main = { name: "main", image, command: ["sleep", "3600"], pull_policy: "never" as const };
      await provider.createPod(id, { labels: {}, restart_policy: "never", containers: [main] }, { signal });
      await waitFor({ what: `machine ${id} to run`, timeoutMs: 120_000 }, async () => {
        expect((await provider.getPod(id, { signal })).containers[0]).toMatchObject({ state: "running" });
      });
    }
    await expect(vmlet("pull", "--timeout", "1", `${registry.host}/t/none:1`)).rejects.toThrow("not here within 1 s");
    await vmlet("remove", pulled);
    expect(await vmlet("list")).not.toMatch(/pulled:1/);
  } finally {
    for (const id of ["listed", "pulled"]) await provider.deletePod(id, { signal, force: true }).catch(() => undefined);
    await allDeleted(provider).catch(() => undefined);
    await provider.close();
    backend?.kill("SIGTERM");
    if (backend !== undefined && backend.exitCode === null && backend.signalCode === null) await once(backend, "exit");
    await registry.stop();
    await removeEngine(type, { stateDir, network });
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}
