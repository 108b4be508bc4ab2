/** `vmlet dev --engine memory`: many simulated nodes, on a system that is not Linux. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { parse } from "yaml";
import { connect, type Json } from "../../e2e/fidelity/api.ts";
import { create } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 60_000, interval: 50 };

/** What a module sees that asks which system this is. */
const darwin = `data:text/javascript,Object.defineProperty(process, "platform", { value: "darwin" })`;

function dev(...flags: string[]) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
  const child = spawn(process.execPath, [
    ...["--import", darwin, program, "dev", "--port", "0", "--state-dir", dir],
    ...flags,
  ]);
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (chunk: Buffer) => (said += chunk.toString()));
  onTestFinished(() => {
    child.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  });
  return { child, dir, ended: once(child, "exit"), said: () => said };
}

test("nodes are as many as asked, each takes so many pods, and what runs crashes as often as asked", async () => {
  const flags = ["--nodes", "3", "--pods-per-node", "4", "--start-delay", "50ms-100ms", "--crashes", "100%"];
  const { child, dir, ended, said } = dev("--engine", "memory", ...flags, "--call-faults", "10%");
  await vi.waitFor(
    () => expect(said()).toContain("A cluster of 3 virtual nodes is up. Machines are simulated."),
    PATIENCE,
  );
  const { clusters, users } = parse(readFileSync(join(dir, "kubeconfig"), "utf8"));
  const { server, "certificate-authority-data": ca } = clusters[0].cluster;
  const api = connect({ url: server, token: users[0].user.token, ca: Buffer.from(ca, "base64").toString() });
  onTestFinished(() => api.close());
  const nodes = (await api.request("GET", "/api/v1/nodes")).body.items as Json[];
  expect(nodes.map(({ metadata, status }) => [metadata.name, status.capacity.pods])).toEqual([
    ["vmlet-dev-0", "4"],
    ["vmlet-dev-1", "4"],
    ["vmlet-dev-2", "4"],
  ]);

  const template = { metadata: { labels: { app: "many" } }, spec: { containers: [{ name: "a", image: "any" }] } };
  const spec = { replicas: 13, selector: { matchLabels: { app: "many" } }, template };
  await create(api, "/apis/apps/v1/namespaces/default/deployments", { metadata: { name: "many" }, spec });
  const pods = async () => (await api.request("GET", "/api/v1/namespaces/default/pods")).body.items as Json[];
  // Three nodes of four: the thirteenth has no room.
  await vi.waitFor(async () => {
    const ran = (await pods()).filter(({ status }) => status.containerStatuses?.[0].started !== undefined);
    expect(ran).toHaveLength(12);
    expect(new Set(ran.map(({ spec: { nodeName } }) => nodeName)).size).toBe(3);
  }, PATIENCE);
  const addresses = (await pods()).map(({ status }) => status.podIP).filter(Boolean);
  expect(new Set(addresses).size).toBe(addresses.length);
  await vi.waitFor(async () => {
    const codes = (await pods()).map(({ status }) => status.containerStatuses?.[0].lastState?.terminated?.exitCode);
    expect(codes).toContain(1);
  }, PATIENCE);

  child.kill("SIGINT");
  expect(await ended, said()).toEqual([0, null]);
  expect(readdirSync(dir)).toEqual(["kubeconfig"]);
}, 180_000);

test("without an engine's name, a system without plain processes gets simulated machines, and is told why", async () => {
  const { child, ended, said } = dev();
  await vi.waitFor(() => expect(said()).toContain("Ctrl-C stops everything."), PATIENCE);
  expect(said()).toContain("Engine memory, whose machines are simulated");
  expect(said()).toContain("this is darwin");
  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
}, 120_000);

test("what only simulated machines have is refused by name for others", async () => {
  const { ended, said } = dev("--engine", "process", "--crashes", "5%");
  expect(await ended).toEqual([2, null]);
  expect(said()).toContain("--crashes is for --engine memory");
}, 60_000);

test.for([
  [["--nodes", "0"], "from 1 to 1000"],
  [["--crashes", "5"], "such as 5%"],
  [["--start-delay", "5s-1s"], "the shorter first"],
] as const)("%s is refused with what it must be", { timeout: 60_000 }, async ([flags, fault]) => {
  const { ended, said } = dev("--engine", "memory", ...flags);
  expect((await ended)[0]).toBeGreaterThan(0);
  expect(said()).toContain(fault);
});
