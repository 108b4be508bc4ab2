/** A backend of its own process, network and registry on a real engine, which a test may kill. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect } from "vitest";
import { HttpVmProvider } from "../../../providers/http-vm/index.ts";
import type { NetworkOptions } from "../../../providers/local/network/network.ts";
import type { ContainerSpec } from "../../../src/provider/machine.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, removeEngine } from "../../support/engines.ts";
import { busyboxImage, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { allDeleted } from "../../conformance/all-deleted.ts";

const PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
export const OWN = ownerLabels("c1", "burst-0");
const { signal } = new AbortController();

export interface OwnBackend {
  readonly provider: HttpVmProvider;
  /** Of its Machine API. */
  readonly url: string;
  readonly registry: TestRegistry;
  /** Ends the backend without warning and starts it again. @param meanwhile done while there is none */
  restart(meanwhile?: () => Promise<unknown>): Promise<void>;
  /** A machine of one container, of the first image, which sleeps where no command is given. */
  create(id: string, options?: { labels?: Record<string, string> } & Partial<ContainerSpec>): Promise<unknown>;
  /** Once it runs. */
  addressesOf(id: string): Promise<string[]>;
}

export interface OwnBackendOptions {
  network: Omit<NetworkOptions, "dir">;
  /** Of the registry, all busybox: `t/busybox:1`. Default: that one. */
  images?: readonly string[];
  /** Of the backend's file, besides, by the images' whole names. */
  config?: (images: readonly string[]) => object;
}

export async function withOwnBackend(
  type: ContainerEngine,
  { network, images = ["t/busybox:1"], config: more = () => ({}) }: OwnBackendOptions,
  run: (own: OwnBackend) => Promise<void>,
): Promise<void> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), `vmlet-${type}-`)));
  const stateDir = join(folder, "state");
  const file = join(folder, "backend.json");
  const socket = join(folder, "api.sock");
  const registry = await startRegistry();
  for (const image of images) await registry.push(image, await busyboxImage());
  const names = images.map((image) => `${registry.host}/${image}`);
  const config = {
    ...{ apiVersion: "vmlet.dev/v1", kind: "BackendConfig", stateDir, listen: { socket } },
    engine: { type, network, images: { insecureRegistries: [registry.host] } },
    // What else this host's disk is full of is not the test's.
    eviction: { hard: { "imagefs.available": "0", "nodefs.available": "0" } },
    ...more(names),
  };
  await writeFile(file, JSON.stringify(config));
  const url = `unix://${socket}`;
  const provider = new HttpVmProvider({ url });
  let backend: ChildProcess | undefined;
  const ids: string[] = [];
  const start = async () => {
    backend = spawn(process.execPath, [PROGRAM, "backend", "--config", file], { stdio: "ignore" });
    await waitFor({ what: "the backend", timeoutMs: 120_000 }, () => provider.getInfo({ signal }));
  };
  try {
    await start();
    await run({
      ...{ provider, url, registry },
      async restart(meanwhile) {
        backend!.kill("SIGKILL");
        await once(backend!, "exit");
        await meanwhile?.();
        await start();
      },
      async create(id, { labels = OWN, ...container } = {}) {
        ids.push(id);
        const main = { name: "main", image: names[0]!, command: ["sleep", "3600"], ...container };
        const spec = { labels, hostname: id, restart_policy: "never" as const, containers: [main] };
        return await provider.createPod(id, spec, { signal });
      },
      async addressesOf(id) {
        await waitFor({ what: `machine ${id} to run`, timeoutMs: 120_000 }, async () => {
          expect((await provider.getPod(id, { signal })).containers[0]).toMatchObject({ state: "running" });
        });
        return (await provider.getPod(id, { signal })).addresses.map(({ ip }) => ip);
      },
    });
  } finally {
    for (const id of ids) await provider.deletePod(id, { signal, force: true }).catch(() => undefined);
    await allDeleted(provider).catch(() => undefined);
    await provider.close();
    backend?.kill("SIGTERM");
    if (backend !== undefined && backend.exitCode === null && backend.signalCode === null) await once(backend, "exit");
    await registry.stop();
    await removeEngine(type, { stateDir, network });
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}
