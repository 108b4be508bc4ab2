/** Images that are kept ready, over HTTP: what comes through, and what of replies is believed. */
import { afterEach, expect, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MEMORY_CAPABILITIES, MemoryProvider } from "../../../providers/memory/index.ts";
import type { ImageProvider, PrewarmSpec } from "../../../src/provider/image.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const signal = new AbortController().signal;
const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const spec: PrewarmSpec = { labels: { team: "a" }, image: "r.test/app:1" };

async function setup({
  change = () => ({}),
  capabilities = MEMORY_CAPABILITIES,
}: {
  change?: (sound: ImageProvider) => Partial<ImageProvider>;
  capabilities?: typeof MEMORY_CAPABILITIES;
} = {}): Promise<ImageProvider> {
  const memory = new MemoryProvider({ capabilities });
  const images: ImageProvider = { ...memory.images, ...change(memory.images) };
  const provider = new Proxy(memory, {
    get: (target, key) => {
      const value: unknown = key === "images" ? images : Reflect.get(target, key, target);
      return typeof value === "function" ? (value as () => unknown).bind(target) : value;
    },
  });
  const server = new MachineApiServer({ provider, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const client = new HttpVmProvider({ url, pacing: { perSecond: 10_000, burst: 10_000 } });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
    () => client.close(),
  );
  return client.images;
}

test("an image's life comes through as it is", async () => {
  const images = await setup();
  const made = await images.create("app", spec, { signal });
  expect(made).toMatchObject({ id: "app", state: "ready", ...spec });
  expect(await images.get("app", { signal })).toEqual(made);
  expect(await images.list({ labels: { team: "a" }, signal })).toEqual([made]);
  expect(await images.list({ labels: { team: "b" }, signal })).toEqual([]);
  await images.delete("app", { signal });
  await expect(images.get("app", { signal })).rejects.toMatchObject({ code: "not_found" });
});

test("a backend without the capability says so", async () => {
  const images = await setup({ capabilities: [] });
  await expect(images.list({ labels: {}, signal })).rejects.toMatchObject({ code: "unsupported" });
});

test("a field that the document does not name is refused before it is sent", async () => {
  const images = await setup();
  const misspelt = { ...spec, registryAuth: [] } as PrewarmSpec;
  await expect(images.create("app", misspelt, { signal })).rejects.toMatchObject({ code: "invalid" });
});

test("a reply about another image is not believed", async () => {
  const images = await setup({
    change: (sound) => ({ create: (_id, each, options) => sound.create("other", each, options) }),
  });
  await expect(images.create("app", spec, { signal })).rejects.toMatchObject({ code: "unavailable" });
});

test("a list with an image that was not asked for is not believed", async () => {
  const images = await setup({ change: (sound) => ({ list: (options) => sound.list({ ...options, labels: {} }) }) });
  await images.create("app", spec, { signal });
  await expect(images.list({ labels: { team: "b" }, signal })).rejects.toMatchObject({ code: "unavailable" });
});

test("what a backend says reaches no terminal as commands", async () => {
  const images = await setup({
    change: (sound) => ({
      get: async (id, options) => ({ ...(await sound.get(id, options)), message: "\u001b]0;owned\u0007" }),
    }),
  });
  await images.create("app", spec, { signal });
  expect((await images.get("app", { signal })).message).not.toContain("\u001b");
});
