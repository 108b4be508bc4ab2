import { describe, expect, test } from "vitest";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { MachineEvent } from "../../../src/provider/provider.ts";
import { machine, main, World } from "./world.ts";

test("the same create again, and at the same time, makes one machine", async () => {
  const world = await World.create();
  const create = () => world.provider.createPod("m1", machine({}), { signal: world.signal });
  const [first, second] = await Promise.all([create(), create()]);
  expect(second.created_at).toBe(first.created_at);
  await world.advance(0);
  expect(world.starts("a")).toHaveLength(1);
});

test("a repeated create may carry newer credentials and file contents", async () => {
  const world = await World.create();
  const spec = (version: string) => ({
    volumes: [{ name: "v", type: "files" as const, version, files: [] }],
    registry_auth: [{ registry: "r", password: version }],
  });
  await world.create(spec("1"));
  await expect(world.create(spec("2"))).resolves.toBeUndefined();
});

test("a create with another spec is a conflict", async () => {
  const world = await World.create();
  await world.create({});
  await expect(world.create({ containers: [main("other")] })).rejects.toMatchObject({ code: "conflict" });
});

test("a create after a delete is gone, even when the delete came first", async () => {
  const world = await World.create();
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await expect(world.create({})).rejects.toMatchObject({ code: "gone" });
});

test("a machine that never was is not found", async () => {
  const world = await World.create();
  await expect(world.machine("nobody")).rejects.toMatchObject({ code: "not_found" });
});

test("a list shows what was just created, and only what carries the labels", async () => {
  const world = await World.create();
  await world.create({ labels: { node: "n1" } }, "m1");
  await world.create({ labels: { node: "n2" } }, "m2");
  const list = await world.provider.getPods({ labels: { node: "n1" }, signal: world.signal });
  expect(list.items.map(({ id }) => id)).toEqual(["m1"]);
});

test("a list with includeDeleted holds tombstones", async () => {
  const world = await World.create();
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  const ids = async (includeDeleted: boolean) =>
    (await world.provider.getPods({ labels: {}, includeDeleted, signal: world.signal })).items.map(({ id }) => id);
  expect(await ids(false)).toEqual([]);
  expect(await ids(true)).toEqual(["m1"]);
});

test("a watch from a list's revision misses nothing, ends at the tombstone, and its revisions grow", async () => {
  const world = await World.create();
  const { revision } = await world.provider.getPods({ labels: {}, signal: world.signal });
  const abort = new AbortController();
  const events: MachineEvent[] = [];
  const watching = (async () => {
    for await (const event of world.provider.watchPods(revision, { labels: {}, signal: abort.signal }))
      events.push(event);
  })();
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  abort.abort();
  await watching;
  expect(events.map((event) => event.machine.version)).toEqual(events.map((_, index) => index + 1));
  expect(events.at(-1)!.machine.state).toBe("deleted");
  expect(events.every((event, index) => index === 0 || event.revision > events[index - 1]!.revision)).toBe(true);
});

test.each([
  ["no container", { containers: [] }, "containers"],
  ["two containers of one name", { containers: [main("a"), main("a")] }, "containers.name"],
  [
    "a mount of a volume that does not exist",
    { containers: [main("a", { mounts: [{ volume: "v", path: "/v" }] })] },
    "containers.mounts",
  ],
])("a spec with %s is invalid and names the field", async (_what, spec, field) => {
  const world = await World.create();
  await expect(world.create(spec)).rejects.toMatchObject({ code: "invalid", field });
});

test("an id that could leave the state directory is invalid", async () => {
  const world = await World.create();
  await expect(world.create({}, "../x")).rejects.toMatchObject({ code: "invalid", field: "id" });
});

test("a status that was handed out does not change later", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.machine();
  await world.stop(1);
  expect(before.state).toBe("running");
});

describe("a backend whose state may be gone before its volumes are", () => {
  const disk = { labels: {}, size_bytes: 1024, mode: "filesystem" } as const;
  const claim = { volumes: [{ name: "v", type: "persistent", volume: "disk" }] } satisfies Partial<MachineSpec>;

  test("offers none, and takes no machine that asks for one", async () => {
    const world = await World.create((fresh) => (fresh.persistentVolumes = false));
    const { capabilities, volumeClasses } = await world.provider.getInfo({ signal: world.signal });
    const offered = capabilities.filter((each) => /^volumes\.(persistent|block|clone)$/.test(each));
    expect({ offered, volumeClasses, volumes: world.provider.volumes }).toEqual({ offered: [] });
    expect(capabilities).toContain("volumes.empty_dir");
    await expect(world.create(claim)).rejects.toMatchObject({ code: "unsupported" });
  });

  test("leaves machines the volumes that they have from before", async () => {
    const world = await World.create();
    await world.provider.volumes!.create("disk", disk, world);
    await world.create(claim);
    await world.restart(() => (world.persistentVolumes = false));
    await world.exit("a", 1);
    await world.advance(0);
    expect(world.running()).toEqual(["a"]);
    await world.stop(1);
    await world.restart(() => (world.persistentVolumes = true));
    expect(await world.provider.volumes!.get("disk", world)).toMatchObject({ state: "available", attachments: [] });
  });
});
