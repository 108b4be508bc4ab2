/**
 * `vmlet conformance --pods`: a sound backend passes, and one that is broken for each check's pods is found out by that
 * check.
 */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../providers/http-vm/index.ts";
import { type RunningBackend, startBackend } from "../../providers/local/backend.ts";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { POD_CHECKS } from "../../src/cli/pod-kit/checks.ts";
import { runPodConformance } from "../../src/cli/pod-kit/run.ts";
import type { ConformanceReport } from "../../src/provider/kit/index.ts";
import type { Provider } from "../../src/provider/provider.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { broken, FOUND, POD_MUTANTS } from "./pod-mutants.ts";

const program = join(import.meta.dirname, "../../src/cli/main.ts");
const run = promisify(execFile);
const { signal } = new AbortController();

async function processes(): Promise<{ backend: RunningBackend; folder: string }> {
  const folder = await mkdtemp(join(tmpdir(), "vmlet-pod-kit-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
  const config = {
    ...{ apiVersion: "vmlet.dev/v1", kind: "BackendConfig", stateDir: join(folder, "state") },
    listen: { socket: join(folder, "api.sock") },
  };
  const backend = await startBackend(parseBackendConfig(JSON.stringify(config), "test"), {
    ...{ clock: systemClock, logger: silentLogger, version: "test" },
  });
  onTestFinished(() => backend.close());
  return { backend, folder };
}

const machinesOf = async (provider: Provider) => (await provider.getPods({ labels: {}, signal })).items;

/** Every check at once, restarts of a backend that loses nothing by them included. */
async function report(url: string, options: { only?: readonly string[]; patienceMs: number; keep?: boolean }) {
  const provider = new HttpVmProvider({ url });
  try {
    return await runPodConformance({
      ...{ provider, backend: { type: "http-vm", url }, signal, concurrency: 8, restart: async () => {} },
      ...options,
    });
  } finally {
    await provider.close();
  }
}

const named = ({ results }: ConformanceReport, outcome: string) =>
  results.filter((each) => each.outcome === outcome).map(({ name }) => name);

test("a sound backend passes all that it can do, and keeps no machine", async () => {
  const { backend, folder } = await processes();
  const junit = join(folder, "junit.xml");
  const flags = ["--pods", "--concurrency", "8", "--restart-command", "true", "--junit", junit];
  const { stdout } = await run(process.execPath, [program, "conformance", backend.url, ...flags]);
  expect(stdout).not.toContain("FAIL");
  expect(stdout).toContain(`${POD_CHECKS.length} passed, 0 failed, 0 skipped`);
  expect(await readFile(junit, "utf8")).toContain(`tests="${POD_CHECKS.length}" failures="0"`);
  expect(await machinesOf(backend.provider)).toEqual([]);
}, 600_000);

test("each check finds what is broken for its own pods", async () => {
  const { backend, folder } = await processes();
  const server = new MachineApiServer({ provider: broken(backend.provider), logger: silentLogger });
  onTestFinished(() => server.close({ graceMs: 100 }));
  const { url } = await server.listen({ socketPath: join(folder, "broken.sock") });
  const [first, ...others] = POD_CHECKS.map(({ name }) => name);
  const all = await report(url, { only: others, patienceMs: 30_000 });
  expect(named(all, "failed").toSorted()).toEqual(others.toSorted());
  for (const { name, message } of all.results) expect(message, name).toMatch(FOUND[name]!);
  const one = await report(url, { only: [first!, others[0]!], patienceMs: 30_000 });
  expect(one.results.map(({ outcome }) => outcome)).toEqual(["failed", "skipped"]);
  expect(one.results[0]?.message).toMatch(FOUND[first!]!);
}, 600_000);

test("every check has a backend that is broken for it", () => {
  expect(Object.keys(POD_MUTANTS).toSorted()).toEqual(POD_CHECKS.map(({ name }) => name).toSorted());
});

test("machines of failed checks stay when they are to be kept, and only they", async () => {
  const { backend, folder } = await processes();
  const server = new MachineApiServer({ provider: broken(backend.provider), logger: silentLogger });
  onTestFinished(() => server.close({ graceMs: 100 }));
  const { url } = await server.listen({ socketPath: join(folder, "broken.sock") });
  const { results } = await report(url, { only: ["completion/exit-code"], patienceMs: 30_000, keep: true });
  const kept = await machinesOf(backend.provider);
  expect(kept.map(({ id }) => id)).toEqual(results[0]?.kept);
  expect(kept).toHaveLength(1);
  for (const { id } of kept) await backend.provider.deletePod(id, { force: true, signal });
}, 300_000);
