/** A VM cloud that was written from what `vmlet/cloud` says: its pods run, agents come and go, and nothing is left. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ProcessCloud, TYPES } from "../../../examples/process-cloud.ts";
import { checkVmCloud } from "../../../providers/cloud/index.ts";
import { createProvider } from "../../../src/cli/providers.ts";
import type { Provider } from "../../../src/provider/kit/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";
import { machineSpec, script } from "../../support/builders.ts";

const root = join(import.meta.dirname, "../../..");
const module = join(root, "examples/process-cloud.ts");
const vmlet = [process.execPath, join(root, "src/cli/main.ts")];
const labels = { node: "n" };
const signal = new AbortController().signal;
let folder: string;
const agents: Provider[] = [];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "pc-"));
});

afterEach(async () => {
  const agent = await start();
  for (const { id } of (await agent.getPods({ labels, signal })).items)
    await agent.deletePod(id, { force: true, signal });
  await vi.waitFor(async () => expect(await vms()).toEqual([]), 20_000);
  for (const each of agents.splice(0)) await each.close();
  await rm(folder, { recursive: true });
});

/** Another process of an agent, as far as the cloud can tell. */
async function start(): Promise<Provider> {
  const context = { clock: systemClock, random: systemRandom, logger: silentLogger };
  const agent = await createProvider({ type: "module", module, options: { folder, vmlet } }, context);
  agents.push(agent);
  return agent;
}

const vms = async () => await readdir(join(folder, "vms")).catch(() => []);
const isIn = (agent: Provider, id: string, state: string) =>
  vi.waitFor(async () => expect(await agent.getPod(id, { signal })).toMatchObject({ state }), 30_000);

async function output(agent: Provider, id: string): Promise<string[]> {
  const lines = await Array.fromAsync(agent.getLogs(id, "c", { signal }));
  return lines.map(({ content }) => content.toString());
}

test("a machine runs in a VM of its own, is found by the next agent, and leaves a tombstone and no VM", async () => {
  const first = await start();
  const spec = machineSpec({ labels, containers: [script("echo hello; sleep 3600")] });
  await first.createPod("m", spec, { signal });
  await isIn(first, "m", "running");
  await first.close();

  const second = await start();
  expect(await second.createPod("m", spec, { signal })).toMatchObject({ state: "running", instance_type: "small" });
  expect(await vms()).toHaveLength(1);
  await vi.waitFor(async () => expect(await output(second, "m")).toEqual(["hello"]));

  await second.deletePod("m", { force: true, signal });
  await isIn(second, "m", "deleted");
  expect(await vms()).toEqual([]);
  await expect(second.createPod("m", spec, { signal })).rejects.toMatchObject({ code: "gone" });
});

test("two agents that make one machine make one VM", async () => {
  const [one, other] = [await start(), await start()];
  const spec = machineSpec({ labels, containers: [script("exit 4")] });
  await Promise.allSettled([one, other].map((agent) => agent.createPod("m", spec, { signal })));
  await one.createPod("m", spec, { signal });
  await isIn(other, "m", "stopped");
  expect((await one.getPod("m", { signal })).containers[0]?.terminated?.exit_code).toBe(4);
  expect(await vms()).toHaveLength(1);
});

test("it keeps all that the kit of VM clouds looks at", async () => {
  const results = await checkVmCloud(new ProcessCloud(folder, vmlet), { type: TYPES[0]! });
  expect(results.filter(({ failure }) => failure !== undefined)).toEqual([]);
}, 300_000);

test("it is small: what a cloud must do is no more than that", async () => {
  expect((await readFile(module, "utf8")).split("\n").length).toBeLessThanOrEqual(200);
});
