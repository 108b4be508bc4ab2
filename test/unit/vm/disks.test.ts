import { mkdirSync, mkdtempSync, openSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { containerMounts } from "../../../providers/local/engines/vm/mounts.ts";
import { sandboxStats } from "../../../providers/local/engines/vm/stats.ts";
import { DiskVolumes } from "../../../providers/local/volumes/disk-files.ts";
import type { VolumeRecord } from "../../../src/provider/volume-book.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

let dir: string;
const grown: [string, number][] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-disks-"));
  grown.length = 0;
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const open = () =>
  new DiskVolumes({ dir, logger: silentLogger }, (id, bytes) => Promise.resolve(void grown.push([id, bytes])));

function record(id: string, more: Partial<VolumeRecord["volume"]> = {}): VolumeRecord {
  const volume: VolumeRecord["volume"] = {
    ...{ id, version: 1, labels: {}, state: "available", size_bytes: 16 * 2 ** 20, mode: "block" },
    ...{ created_at: "2026-01-01T00:00:00Z", reservations: [], ...more },
  };
  mkdirSync(join(dir, id), { recursive: true });
  return { fingerprint: "f", volume };
}

test("a volume is a disk only of an attached machine, and no path or device of this host", async () => {
  const volumes = open();
  const disk = record("d");
  await volumes.make(disk, undefined);
  expect(() => volumes.disk("d")).toThrow("volume d is not attached");
  await volumes.attach(disk);
  expect(volumes.disk("d")).toEqual({ file: join(dir, "d/disk.img"), mode: "block" });
  expect(() => volumes.path("d")).toThrow("in its machine's guest alone");
  await expect(volumes.device("d")).rejects.toThrow("in its machine's guest alone");
  await volumes.detach("d");
  expect(() => volumes.disk("d")).toThrow("volume d is not attached");
});

test("a volume of a file system that guests do not know is not attached", async () => {
  const volumes = open();
  await volumes.make(record("d"), undefined);
  await expect(volumes.attach(record("d", { mode: "filesystem", fs_type: "xfs" }))).rejects.toThrow(
    "volume d has a file system xfs, which guests of engine vm do not know",
  );
});

test("a volume that no QEMU has open grows by itself, and nobody is told", async () => {
  const volumes = open();
  await volumes.make(record("d"), undefined);
  expect(await volumes.grow(record("d"), 20 * 2 ** 20)).toBe(20 * 2 ** 20);
  expect(statSync(join(dir, "d/disk.img")).size).toBe(20 * 2 ** 20);
  expect(grown).toEqual([]);
});

test("who merely has a volume's file open does not have the volume", async () => {
  const volumes = open();
  await volumes.make(record("d"), undefined);
  openSync(join(dir, "d/disk.img"), "r+");
  expect(await volumes.attached()).toEqual([]);
});

test("what a guest tells of its disks counts for the machine's own volumes alone, and only as numbers", () => {
  const spec: MachineSpec = {
    labels: {},
    restart_policy: "never",
    containers: [],
    volumes: [{ name: "data", type: "persistent", volume: "d" }],
  };
  const text = ["disk data 100 40 30 4096 50 20", "disk other 1 1 1 1 1 1", "disk data-2 x"].join("\n");
  expect(sandboxStats(text, spec, []).volumes).toEqual([
    {
      name: "data",
      used_bytes: 60 * 4096,
      capacity_bytes: 100 * 4096,
      available_bytes: 30 * 4096,
      inodes: 50,
      inodes_used: 30,
      inodes_free: 20,
    },
  ]);
  const lies = sandboxStats("disk data -1 99999999999999999999 NaN 4096", spec, []).volumes;
  expect(lies).toEqual([
    expect.objectContaining({ used_bytes: 0, capacity_bytes: 0, available_bytes: 0, inodes_used: 0 }),
  ]);
});

test("a container writes to a volume unless its claim or its mount is read-only", () => {
  const home = (readOnly: boolean) => ({
    ...{ id: "m", dir, secretDir: dir, socketPath: (name: string) => join(dir, name) },
    spec: {
      labels: {},
      restart_policy: "never" as const,
      containers: [],
      volumes: [{ name: "data", type: "persistent" as const, volume: "d", read_only: readOnly }],
    },
  });
  const mounted = (claimed: boolean, mount: boolean) => {
    const spec = { name: "a", image: "i", mounts: [{ volume: "data", path: "/v", read_only: mount }] };
    const launch = { id: "c", name: "a", spec, imageVolumes: {} } as never;
    return containerMounts(home(claimed), launch).mounts.find(({ destination }) => destination === "/v")!.options;
  };
  expect(mounted(false, false)).toContain("rw");
  expect(mounted(true, false)).toContain("ro");
  expect(mounted(false, true)).toContain("ro");
});

test("a volume's file that is gone is told, and not made anew", async () => {
  const volumes = open();
  await volumes.make(record("d"), undefined);
  rmSync(join(dir, "d/disk.img"));
  await expect(volumes.attach(record("d"))).rejects.toThrow("volume d has lost its file");
  mkdirSync(join(dir, "d/data"));
  writeFileSync(join(dir, "d/data/said"), "kept");
  await expect(volumes.attach(record("d"))).rejects.toThrow("volume d is a folder, of engine process");
});
