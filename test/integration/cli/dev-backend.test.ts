/** `vmlet dev` on a backend that somebody writes: the small cluster, and machines that are not vmlet's own. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { parse } from "yaml";
import { MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { connect } from "../../e2e/fidelity/api.ts";
import { create, pod, podWhen, PODS } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 60_000, interval: 50 };
const { signal } = new AbortController();

function stateDir(): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

const dev = (...flags: string[]) => devIn(stateDir(), ...flags);

function devIn(dir: string, ...flags: string[]) {
  const child = spawn(process.execPath, [program, "dev", "--port", "0", "--state-dir", dir, ...flags]);
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (chunk: Buffer) => (said += chunk.toString()));
  onTestFinished(() => void child.kill("SIGKILL"));
  return { child, dir, ended: once(child, "exit"), said: () => said };
}

async function serveMemory() {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  onTestFinished(async () => {
    await server.close();
    await memory.close();
  });
  return { memory, server, url };
}

function apiOf(dir: string) {
  const { clusters, users } = parse(readFileSync(join(dir, "kubeconfig"), "utf8"));
  const { server: address, "certificate-authority-data": ca } = clusters[0].cluster;
  const api = connect({ url: address, token: users[0].user.token, ca: Buffer.from(ca, "base64").toString() });
  onTestFinished(() => api.close());
  return api;
}

test("pods become machines of that backend, and only they are removed at the end", async () => {
  const { memory, url } = await serveMemory();
  const foreign = {
    labels: { "vmlet.dev/node": "vmlet-dev" },
    containers: [{ name: "a", image: "i" }],
    restart_policy: "never" as const,
  };
  await memory.createPod("of-somebody-else", foreign, { signal });
  const ids = async () => (await memory.getPods({ labels: {}, signal })).items.map(({ id }) => id);

  const { child, dir, ended, said } = dev("--backend", url);
  await vi.waitFor(() => expect(said()).toContain(`Machines are those of ${url}.`), PATIENCE);
  const api = apiOf(dir);
  await create(api, PODS, pod("p"));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  expect(await ids()).toHaveLength(2);

  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
  expect(await ids()).toEqual(["of-somebody-else"]);
}, 120_000);

test("a second run with the same folder does not touch the first one's machines", async () => {
  const { memory, url } = await serveMemory();
  const first = dev("--backend", url);
  await vi.waitFor(() => expect(first.said()).toContain("A cluster of one virtual node is up."), PATIENCE);
  const api = apiOf(first.dir);
  await create(api, PODS, pod("p"));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  const second = devIn(first.dir, "--backend", url);
  expect(await second.ended).toEqual([2, null]);
  expect(second.said()).toContain("--state-dir: another vmlet dev uses");
  expect(memory.machines.map(({ state }) => state)).toEqual(["running"]);
  first.child.kill("SIGINT");
  expect(await first.ended).toEqual([0, null]);
}, 120_000);

test("machines that cannot be removed at the end are told, and removed by the next run with that folder", async () => {
  const { memory, url } = await serveMemory();
  const first = dev("--backend", url);
  await vi.waitFor(() => expect(first.said()).toContain("A cluster of one virtual node is up."), PATIENCE);
  const api = apiOf(first.dir);
  await create(api, PODS, pod("p"));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  const { deletePod } = memory;
  memory.deletePod = () => Promise.reject(new ProviderError("invalid", "the host is on fire"));
  first.child.kill("SIGINT");
  expect(await first.ended).toEqual([1, null]);
  expect(first.said()).toContain("could not be removed");
  expect(first.said()).toContain("the host is on fire");
  expect(first.said()).toContain(`the next run with --state-dir ${first.dir} removes them`);
  memory.deletePod = deletePod;
  const second = devIn(first.dir, "--backend", url);
  await vi.waitFor(() => expect(second.said()).toContain("A cluster of one virtual node is up."), PATIENCE);
  expect(memory.machines.filter(({ state }) => state !== "deleted")).toEqual([]);
  second.child.kill("SIGINT");
  expect(await second.ended).toEqual([0, null]);
}, 120_000);

test("a backend that does not answer is told with its flag and the cure", async () => {
  const { ended, said } = dev("--backend", "http://127.0.0.1:1");
  expect(await ended).toEqual([2, null]);
  expect(said()).toMatch(
    /--backend: http:\/\/127\.0\.0\.1:1 does not answer: .*ECONNREFUSED.*; start the backend, or give the address/,
  );
});

test.each(["--token-file", "--ca-file"])("%s without --backend is refused: it would have no effect", async (flag) => {
  const { ended, said } = dev("--engine", "process", flag, "/dev/null");
  expect(await ended).toEqual([2, null]);
  expect(said()).toContain(`${flag} is for --backend`);
});

test("an address that is none is refused by name", async () => {
  const { ended, said } = dev("--backend", "http://example.org");
  expect(await ended).toEqual([2, null]);
  expect(said()).toContain("--backend: must begin with https://");
});

test("a provider's module is taken as well", async () => {
  const { child, ended, said } = dev("--module", join(import.meta.dirname, "../../../examples/custom-provider.ts"));
  await vi.waitFor(() => expect(said()).toContain("A cluster of one virtual node is up."), PATIENCE);
  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
}, 120_000);
