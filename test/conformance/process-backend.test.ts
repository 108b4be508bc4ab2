/** The reference backend with plain processes, over HTTP on a unix socket, against every rule of the Machine API. */
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type AddressInfo } from "node:net";
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

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

test("the reference backend with engine process keeps every rule of the Machine API", async () => {
  const folder = await mkdtemp(join(tmpdir(), "vmlet-process-"));
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: join(folder, "state"),
    listen: { socket: join(folder, "api.sock") },
  };
  const backend = await startBackend(parseBackendConfig(JSON.stringify(config), "test"), {
    clock: systemClock,
    logger: silentLogger,
    version: "test",
  });
  const provider = new HttpVmProvider({ url: backend.url });
  const port = await freePort();
  const echo = `require("net").createServer({ allowHalfOpen: true }, (s) => s.pipe(s)).listen(${port}, "127.0.0.1")`;
  try {
    const report = await runConformance(provider, {
      http: httpTarget({ url: backend.url }),
      echo: { command: [process.execPath, "-e", echo], port },
      patienceMs: 30_000,
    });
    expect(report.results.filter(({ outcome }) => outcome === "failed")).toEqual([]);
    expect(report.passed).toBeGreaterThan(70);
  } finally {
    await allDeleted(provider);
    await provider.close();
    await backend.close();
    // Tombstones of the last machines may still be on their way to the disk.
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
});
