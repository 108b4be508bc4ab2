/** Ranges of machines' addresses, over HTTP: what comes through, what of replies is believed, and who may tell them. */
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { type ApiClient, HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MEMORY_CAPABILITIES, MemoryProvider } from "../../../providers/memory/index.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import type { PodRanges, PodRangesProvider } from "../../../src/provider/pod-ranges.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const signal = new AbortController().signal;
const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const TOKEN = "token-a";
const OWN = ownerLabels("cluster-a", "n-0");
const OTHER = ownerLabels("cluster-a", "n-1");
const spec = { labels: OWN, ranges: ["10.244.7.0/24"] };

async function setup(
  options: {
    told?: Partial<PodRanges>;
    capabilities?: typeof MEMORY_CAPABILITIES;
    client?: Partial<ApiClient>;
  } = {},
): Promise<{ ranges: PodRangesProvider; sound: PodRangesProvider }> {
  const { told = {}, capabilities = [...MEMORY_CAPABILITIES, "pod_ranges"], client } = options;
  const memory = new MemoryProvider({ capabilities });
  const sound = memory.podRanges;
  const podRanges: PodRangesProvider = {
    ...sound,
    put: async (asked, call) => ({ ...(await sound.put(asked, call)), ...told }),
  };
  const provider = new Proxy(memory, {
    get: (target, key) => {
      const value: unknown = key === "podRanges" ? podRanges : Reflect.get(target, key, target);
      return typeof value === "function" ? (value as () => unknown).bind(target) : value;
    },
  });
  const clients = client && [{ name: "a", bearerTokens: () => [TOKEN], ...client }];
  const server = new MachineApiServer({ provider, logger: silentLogger, ...(clients && { auth: { clients } }) });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const tokenFile = join(mkdtempSync(join(tmpdir(), "vmlet-unit-")), "token");
  writeFileSync(tokenFile, TOKEN, { mode: 0o600 });
  const pacing = { perSecond: 10_000, burst: 10_000 };
  const caller = new HttpVmProvider({ url, pacing, ...(client && { credentials: { tokenFile } }) });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
    () => caller.close(),
  );
  return { ranges: caller.podRanges, sound };
}

test("their life comes through as it is", async () => {
  const { ranges } = await setup();
  const ready = { within: ["10.244.0.0/16"], labels: OWN, ranges: spec.ranges, state: "ready" };
  expect(await ranges.put(spec, { signal })).toEqual(ready);
  expect(await ranges.get({ signal })).toEqual(ready);
  await expect(ranges.delete({ labels: OTHER, signal })).rejects.toMatchObject({ code: "conflict" });
  await ranges.delete({ labels: OWN, signal });
  expect(await ranges.get({ signal })).toMatchObject({ ranges: [], state: "none" });
});

test("a backend without the capability says so", async () => {
  const { ranges } = await setup({ capabilities: MEMORY_CAPABILITIES });
  await expect(ranges.put(spec, { signal })).rejects.toMatchObject({ code: "unsupported" });
});

test.each<Partial<PodRanges>>([
  { ranges: ["10.244.8.0/24"] },
  { ranges: [] },
  { labels: OTHER },
  { state: "none" },
  { ranges: ["10.244.7.0/24", "10.244.8.0/24"] },
])("a reply about other ranges than those that were told is not believed: %j", async (told) => {
  const { ranges } = await setup({ told });
  await expect(ranges.put(spec, { signal })).rejects.toMatchObject({ code: "unavailable" });
});

test("what a backend says is made fit for a terminal", async () => {
  const { ranges } = await setup({ told: { state: "waiting", message: "\u001b[31mno" } });
  expect((await ranges.put(spec, { signal })).message).not.toContain("\u001b");
});

test("a client tells those of its own node, where it may write", async () => {
  const { ranges, sound } = await setup({ client: { clusters: ["cluster-a"], nodes: ["n-0"] } });
  await expect(ranges.put({ ...spec, labels: OTHER }, { signal })).rejects.toMatchObject({ code: "unauthorized" });
  await expect(ranges.delete({ labels: OTHER, signal })).rejects.toMatchObject({ code: "unauthorized" });
  expect(await ranges.put(spec, { signal })).toMatchObject({ state: "ready" });
  await ranges.delete({ labels: OWN, signal });
  await sound.put({ ...spec, labels: OTHER }, { signal });
  // Whose they are is not its business.
  expect(await ranges.get({ signal })).toMatchObject({ labels: {}, state: "ready" });
});

test("a client that may only read tells none", async () => {
  const { ranges } = await setup({ client: { verbs: ["read"] } });
  await expect(ranges.put(spec, { signal })).rejects.toMatchObject({ code: "unauthorized" });
  expect(await ranges.get({ signal })).toMatchObject({ state: "none" });
});
