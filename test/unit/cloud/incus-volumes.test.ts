/** What is made of an Incus's answers on custom volumes, whose words are those that 6.0 gave. */
import { expect, test } from "vitest";
import type { IncusClient, IncusReply } from "../../../providers/cloud/incus/client.ts";
import { IncusVolumes, volumesOf } from "../../../providers/cloud/incus/volumes.ts";

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query?: Readonly<Record<string, string>> | undefined;
  readonly body?: unknown;
}

const options = { signal: new AbortController().signal };
const VOLUME = { name: "vmlet-a", class: "default" };
const PATH = "storage-pools/default/volumes/custom/vmlet-a";
const ok = (metadata: unknown = null): IncusReply => ({ status: 200, metadata });
const refused = (status: number, error: string): IncusReply => ({ status, metadata: null, error });

function setup(answer: (asked: Asked) => IncusReply & { isOver?: boolean }) {
  const calls: Asked[] = [];
  const ask = (asked: Asked) => {
    calls.push(asked);
    return Promise.resolve({ isOver: true, ...answer(asked) });
  };
  const client = { ask, carryOut: ask } as unknown as IncusClient;
  return { calls, volumes: new IncusVolumes(client, { pools: ["default"], member: "one" }) };
}

const custom = (ready: string, usedBy: string[] = []) => ({
  name: "vmlet-a",
  config: { size: "64", "user.vmlet-ready": ready, "user.vmlet-volume": "v" },
  used_by: usedBy,
});

test("a volume is of its member, and says that it is whole only when all else has succeeded", async () => {
  const { volumes, calls } = setup(() => ok());
  await volumes.create({ ...VOLUME, sizeBytes: 64, labels: { "vmlet-volume": "v" } }, options);
  expect(calls).toMatchObject([
    { method: "POST", query: { target: "one" }, body: { config: { size: "64", "user.vmlet-ready": "no" } } },
    { method: "PATCH", path: PATH, query: { target: "one" }, body: { config: { "user.vmlet-ready": "yes" } } },
  ]);
});

test.each([
  [409, "Volume by that name already exists", "conflict"],
  [500, "Failed creating: no space left on device", "quota"],
  [503, "Server isn't ready yet", "unavailable"],
  [403, "Forbidden", "unauthorized"],
])("an order that is refused with %i %s is %s", async (status, error, code) => {
  const { volumes, calls } = setup(() => refused(status, error));
  await expect(volumes.create({ ...VOLUME, sizeBytes: 64, labels: {} }, options)).rejects.toMatchObject({ code });
  expect(calls).toHaveLength(1);
});

test.each([
  [404, "Storage pool volume not found", "not_found"],
  [404, "Storage pool not found", "unavailable"],
  [503, "Storage pool volume not found", "unavailable"],
])("a look that is answered with %i %s is %s", async (status, error, code) => {
  const { volumes } = setup(() => refused(status, error));
  await expect(volumes.get(VOLUME, options)).rejects.toMatchObject({ code });
});

test("what nobody said to be whole is being made while an operation copies, and broken when none does", async () => {
  let operations: object = { running: [{ description: "Copying storage volume" }] };
  const { volumes } = setup(({ path }) => ok(path === "operations" ? operations : custom("no")));
  expect(await volumes.get(VOLUME, options)).toMatchObject({ state: "making", labels: { "vmlet-volume": "v" } });
  operations = { success: [{ description: "Copying storage volume" }] };
  expect(await volumes.get(VOLUME, options)).toMatchObject({ state: "broken" });
});

test("a copy that takes longer than the call is whole when its operation is over", async () => {
  const waits = [ok({ status_code: 103 }), ok({ status_code: 200 })];
  const marked = Promise.withResolvers<void>();
  const { volumes } = setup(({ method, path }) => {
    if (method === "POST") return { ...ok({ id: "op", status_code: 103 }), isOver: false };
    if (method === "PATCH") marked.resolve();
    return path === "operations/op/wait" ? waits.shift()! : ok(custom("no"));
  });
  await volumes.create({ ...VOLUME, sizeBytes: 64, labels: {}, source: { name: "b", class: "default" } }, options);
  expect(await volumes.get(VOLUME, options)).toMatchObject({ state: "making" });
  await marked.promise;
  expect(waits).toEqual([]);
});

test.each([
  [{ driver: "btrfs" }, true],
  [{ driver: "zfs", config: {} }, true],
  [{ driver: "lvm", config: { "lvm.thinpool_name": "IncusThinPool" } }, true],
  [{ driver: "lvm", config: { "lvm.use_thinpool": "false" } }, false],
  // What a restricted certificate sees of it.
  [{ driver: "lvm", config: {} }, false],
  [{ driver: "dir" }, false],
])("of a pool that is %j a volume in use is copied as it was at one instant: %s", async (pool, isAtOnce) => {
  const { volumes, calls } = setup(() => ok(pool));
  expect(await volumes.copiesInUse("default", options)).toBe(isAtOnce);
  expect(calls).toMatchObject([{ method: "GET", path: "storage-pools/default" }]);
});

test("an instance gets no volume that another has", async () => {
  const own = "/1.0/instances/vmlet-i?project=burst";
  let usedBy = [own];
  const { volumes } = setup(() => ok(custom("yes", usedBy)));
  const attached = [{ ...VOLUME, readOnly: true }];
  expect(await volumes.devicesOf("vmlet-i", attached, options)).toEqual({
    "vmlet-a": {
      type: "disk",
      pool: "default",
      source: "vmlet-a",
      path: "/var/lib/vmlet-volumes/vmlet-a",
      readonly: "true",
    },
  });
  usedBy = [own, "/1.0/instances/admin?project=burst"];
  await expect(volumes.devicesOf("vmlet-i", attached, options)).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringContaining("instances/admin") as string,
  });
});

test("a volume that an instance has is not deleted, and one that is not there is", async () => {
  const { volumes } = setup(() => refused(400, "The storage volume is still in use"));
  await expect(volumes.delete(VOLUME, options)).rejects.toMatchObject({ code: "in_use" });
  await setup(() => refused(404, "Storage pool volume not found")).volumes.delete(VOLUME, options);
});

test("an instance has the volumes of its devices that are disks of ours", () => {
  const devices = {
    root: { type: "disk", pool: "default", path: "/" },
    "vmlet-a": { type: "disk", pool: "default", source: "vmlet-a" },
    "vmlet-b": { type: "none" },
    other: { type: "disk", pool: "default", source: "somebodys" },
  };
  expect(volumesOf(devices)).toEqual(["vmlet-a"]);
});
