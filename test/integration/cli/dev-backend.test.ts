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
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { connect } from "../../e2e/fidelity/api.ts";
import { create, pod, podWhen, PODS } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 60_000, interval: 50 };
const { signal } = new AbortController();

function dev(...flags: string[]) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
  const child = spawn(process.execPath, [program, "dev", "--port", "0", "--state-dir", dir, ...flags]);
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (chunk: Buffer) => (said += chunk.toString()));
  onTestFinished(() => {
    child.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  });
  return { child, dir, ended: once(child, "exit"), said: () => said };
}

test("pods become machines of that backend, and only they are removed at the end", async () => {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  onTestFinished(async () => {
    await server.close();
    await memory.close();
  });
  const foreign = {
    labels: { "vmlet.dev/node": "vmlet-dev" },
    containers: [{ name: "a", image: "i" }],
    restart_policy: "never" as const,
  };
  await memory.createPod("of-somebody-else", foreign, { signal });
  const ids = async () => (await memory.getPods({ labels: {}, signal })).items.map(({ id }) => id);

  const { child, dir, ended, said } = dev("--backend", url);
  await vi.waitFor(() => expect(said()).toContain(`Machines are those of ${url}.`), PATIENCE);
  const { clusters, users } = parse(readFileSync(join(dir, "kubeconfig"), "utf8"));
  const { server: address, "certificate-authority-data": ca } = clusters[0].cluster;
  const api = connect({ url: address, token: users[0].user.token, ca: Buffer.from(ca, "base64").toString() });
  onTestFinished(() => api.close());
  await create(api, PODS, pod("p"));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  expect(await ids()).toHaveLength(2);

  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
  expect(await ids()).toEqual(["of-somebody-else"]);
}, 120_000);

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
