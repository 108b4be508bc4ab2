/** The reference backend with engines whose containers are isolated and have images, against every rule of the Machine API. */
import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { startBackend } from "../../providers/local/backend.ts";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { httpTarget, HttpVmProvider } from "../../providers/http-vm/index.ts";
import { runConformance } from "../../src/provider/kit/index.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { allDeleted } from "./all-deleted.ts";
import { type ContainerEngine, engineOnThisHost, removeEngine } from "../support/engines.ts";
import { testNetwork } from "../support/host.ts";
import { leaveOut } from "../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../support/registry.ts";

for (const type of ["oci", "cri", "vm"] as const) {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  if (missing.length > 0) leaveOut(`the conformance of engine ${type}`, missing);
  else
    test(
      `the reference backend with engine ${type} keeps every rule of the Machine API`,
      () => keepsEveryRule(type),
      // Hundreds of machines take their time, emulated ones the most.
      type === "vm" ? 3_600_000 : 900_000,
    );
}

async function keepsEveryRule(type: ContainerEngine): Promise<void> {
  const { dir: _dir, ...network } = testNetwork("");
  const folder = await realpath(await mkdtemp(join(tmpdir(), `vmlet-${type}-`)));
  const stateDir = join(folder, "state");
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir,
    listen: { socket: join(folder, "api.sock") },
    engine: { type, network, images: { insecureRegistries: [registry.host] } },
  };
  const backend = await startBackend(parseBackendConfig(JSON.stringify(config), "test"), {
    clock: systemClock,
    logger: silentLogger,
    version: "test",
  });
  const provider = new HttpVmProvider({ url: backend.url });
  try {
    const report = await runConformance(provider, {
      http: httpTarget({ url: backend.url }),
      image: `${registry.host}/t/busybox:1`,
      patienceMs: type === "vm" ? 150_000 : 60_000,
    });
    expect(report.results.filter(({ outcome }) => outcome === "failed")).toEqual([]);
  } finally {
    await allDeleted(provider);
    await provider.close();
    await backend.close();
    await registry.stop();
    await removeEngine(type, { stateDir, network });
    // Tombstones of the last machines may still be on their way to the disk.
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}
