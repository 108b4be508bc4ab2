/** Volumes over HTTP: what the client asks for, what the server lets through, and what of replies is believed. */
import { afterEach, describe, expect, test, vi } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider, type MemoryProviderOptions } from "../../../providers/memory/index.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { PersistentVolume, PersistentVolumeSpec, VolumeProvider } from "../../../src/provider/volume.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const signal = new AbortController().signal;
const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const spec: PersistentVolumeSpec = { labels: { team: "a" }, size_bytes: 1024, mode: "filesystem" };

async function setup(
  change: (sound: VolumeProvider) => Partial<VolumeProvider> = () => ({}),
  options: MemoryProviderOptions = {},
) {
  const memory = new MemoryProvider(options);
  const volumes: VolumeProvider = { ...memory.volumes, ...change(memory.volumes) };
  const provider = new Proxy(memory, {
    get: (target, key) => {
      const value: unknown = key === "volumes" ? volumes : Reflect.get(target, key, target);
      return typeof value === "function" ? (value as () => unknown).bind(target) : value;
    },
  });
  const server = new MachineApiServer({ provider, logger: silentLogger, limits: { pageItems: 2 } });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const invalid: string[] = [];
  const client = new HttpVmProvider({
    url,
    pacing: { perSecond: 10_000, burst: 10_000 },
    onInvalidReply: (reason) => invalid.push(reason),
  });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
    () => client.close(),
  );
  const call = async (method: string, path: string, body?: unknown) => {
    const reply = await fetch(url + path, {
      method,
      headers: { "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await reply.text();
    return { status: reply.status, body: (text === "" ? {} : JSON.parse(text)) as { error?: { field?: string } } };
  };
  return { memory, client, invalid, call, volumes: client.volumes };
}

test("a volume's life comes through as it is", async () => {
  const { volumes, memory } = await setup();
  const made = await volumes.create("disk", spec, { signal });
  expect(made).toEqual(await memory.volumes.get("disk", { signal }));
  expect(await volumes.resize("disk", 2048, { signal })).toMatchObject({ size_bytes: 2048 });
  expect(await volumes.reserve("disk", "node-a", { signal, readOnly: true, exclusive: true })).toMatchObject({
    reservations: [{ name: "node-a", read_only: true, exclusive: true }],
  });
  await expect(volumes.delete("disk", { signal })).rejects.toMatchObject({ code: "in_use" });
  await volumes.release("disk", "node-a", { signal });
  await volumes.delete("disk", { signal });
  expect(await volumes.get("disk", { signal })).toMatchObject({ state: "deleted" });
  expect((await volumes.getCapacity({ signal })).available_bytes).toBeGreaterThan(0);
});

test("a release by force stops the machine that has the volume, and is done when that is over", async () => {
  const { volumes, client } = await setup();
  await volumes.create("disk", spec, { signal });
  await volumes.reserve("disk", "node-a", { signal });
  await client.createPod("m", { ...MACHINE, volumes: [{ ...CLAIM, reservation: "node-a" }] }, { signal });
  await expect(volumes.release("disk", "node-a", { signal })).rejects.toMatchObject({ code: "in_use" });
  await vi.waitFor(() => volumes.release("disk", "node-a", { signal, force: true }));
  expect(await client.getPod("m", { signal })).toMatchObject({ state: "stopped" });
  expect(await volumes.get("disk", { signal })).toMatchObject({ reservations: [], attachments: [] });
});

test("an exclusive reservation is refused by a backend that lacks it, and nothing is reserved", async () => {
  const { call, volumes } = await setup(undefined, { capabilities: ["volumes.persistent"] });
  await volumes.create("disk", spec, { signal });
  const { status, body } = await call("PUT", "/v1/volumes/disk/reservations/node-a", { exclusive: true });
  expect([status, body.error?.field]).toEqual([501, "exclusive"]);
  expect((await volumes.get("disk", { signal })).reservations).toEqual([]);
});

test("a release by force is refused by a backend that lacks it, and stops nothing", async () => {
  const { call } = await setup(undefined, { capabilities: ["volumes.persistent"] });
  const { status, body } = await call("DELETE", "/v1/volumes/disk/reservations/node-a?force=true");
  expect([status, body.error?.field]).toEqual([501, "force"]);
});

const CLAIM = { name: "data", type: "persistent", volume: "disk" } as const;
const MACHINE: MachineSpec = {
  labels: {},
  restart_policy: "never",
  containers: [{ name: "c", image: "i", command: ["sleep", "3600"] }],
};

test("all pages of a list are read", async () => {
  const { volumes } = await setup();
  const ids = ["a", "b", "c", "d", "e"];
  for (const id of ids) await volumes.create(id, spec, { signal });
  await volumes.delete("c", { signal });
  const idsOf = ({ items }: { items: PersistentVolume[] }) => items.map(({ id }) => id);
  expect(idsOf(await volumes.list({ signal, labels: {} }))).toEqual(["a", "b", "d", "e"]);
  expect(idsOf(await volumes.list({ signal, labels: { team: "a" }, includeDeleted: true }))).toEqual(ids);
  expect(idsOf(await volumes.list({ signal, labels: { team: "b" } }))).toEqual([]);
});

describe("the server", () => {
  test.each<[string, string, string, unknown, number, string | undefined]>([
    ["a size of nothing", "PUT", "/v1/volumes/v", { ...spec, size_bytes: 0 }, 400, "size_bytes"],
    ["a field that it does not know", "PUT", "/v1/volumes/v", { ...spec, colour: "red" }, 400, "colour"],
    ["a mode of another word", "PUT", "/v1/volumes/v", { ...spec, mode: "Block" }, 400, "mode"],
    ["a file system with an option in it", "PUT", "/v1/volumes/v", { ...spec, fs_type: "-rf" }, 400, "fs_type"],
    ["an id that is a path", "PUT", "/v1/volumes/..%2Fv", spec, 400, "id"],
    ["a block device where there are none", "PUT", "/v1/volumes/v", { ...spec, mode: "block" }, 501, "mode"],
    ["a reservation that is no name", "PUT", "/v1/volumes/v/reservations/A", {}, 400, "reservation"],
    ["a parameter that it does not know", "GET", "/v1/volumes?colour=red", undefined, 400, "colour"],
  ])("refuses %s", async (...row) => {
    const [, method, path, body, status, field] = row;
    const { call } = await setup();
    const reply = await call(method, path, body);
    expect([reply.status, reply.body.error?.field]).toEqual([status, field]);
  });

  test("says that it has no volumes where the provider has none", async () => {
    const memory = new MemoryProvider({ capabilities: [] });
    const server = new MachineApiServer({ provider: memory, logger: silentLogger });
    const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
    cleanups.push(
      () => memory.close(),
      () => server.close({ graceMs: 50 }),
    );
    expect((await fetch(`${url}/v1/volumes/v`)).status).toBe(501);
  });
});

describe("the client", () => {
  test("believes nothing of a volume that makes no sense, and all of the others", async () => {
    const { volumes, invalid } = await setup((sound) => ({
      list: async (options) => {
        const { items } = await sound.list(options);
        return { items: items.map((item) => (item.id === "b" ? { ...item, state: "fine" as "available" } : item)) };
      },
    }));
    for (const id of ["a", "b", "c"]) await volumes.create(id, spec, { signal });
    const { items, unknown } = await volumes.list({ signal, labels: {} });
    expect(items.map(({ id }) => id)).toEqual(["a", "c"]);
    expect(unknown).toEqual([{ id: "b", reason: expect.stringContaining("state") as string }]);
    expect(invalid).toEqual(["schema"]);
  });

  test("takes a reply about another volume for none", async () => {
    const { volumes } = await setup((sound) => ({
      get: async (id, options) => ({ ...(await sound.get(id, options)), id: "other" }),
    }));
    await volumes.create("disk", spec, { signal });
    await expect(volumes.get("disk", { signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("leaves volumes out that are another's", async () => {
    const { volumes, invalid } = await setup((sound) => ({
      list: (options) => sound.list({ ...options, labels: {} }),
    }));
    await volumes.create("disk", spec, { signal });
    expect((await volumes.list({ signal, labels: { team: "b" } })).items).toEqual([]);
    expect(invalid).toEqual(["labels"]);
  });

  test("sends nothing that the document forbids", async () => {
    const { volumes, memory } = await setup();
    await expect(volumes.create("disk", { ...spec, size_bytes: 0.5 }, { signal })).rejects.toMatchObject({
      code: "invalid",
      field: "size_bytes",
    });
    expect((await memory.volumes.list({ signal, labels: {} })).items).toEqual([]);
  });
});
