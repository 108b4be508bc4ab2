/** Volumes as folders of the backend's host: what a backend finds of them that begins after a kill or a loss of power. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { TornFiles } from "../../../providers/local/host/torn-files.ts";
import { validateSpec } from "../../../providers/local/machine/valid-spec.ts";
import { FolderVolumes } from "../../../providers/local/volumes/folders.ts";
import { LocalVolumes } from "../../../providers/local/volumes/local-volumes.ts";
import type { MachineSpec, Volume } from "../../../src/provider/machine.ts";
import type { VolumeClass } from "../../../src/provider/volume.ts";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { main, World } from "./world.ts";

const folders: string[] = [];
afterEach(() => folders.splice(0).forEach((folder) => rmSync(folder, { recursive: true, force: true })));

const options = { signal: new AbortController().signal };
const spec = { labels: { team: "a" }, size_bytes: 1024, mode: "filesystem" } as const;
const machine: MachineSpec = {
  labels: {},
  restart_policy: "never",
  containers: [{ name: "c", image: "i" }],
  volumes: [{ name: "data", type: "persistent", volume: "disk" }],
};

type Options = ConstructorParameters<typeof LocalVolumes>[0];
type Holder = ReturnType<Options["machines"]> extends Iterable<infer H> ? H : never;

function setup(contents: Options["contents"] = (place) => new FolderVolumes(place)) {
  const stateDir = mkdtempSync(join(tmpdir(), "vmlet-volumes-"));
  folders.push(stateDir);
  const holders: Holder[] = [];
  const open = () =>
    new LocalVolumes({
      stateDir,
      clock: systemClock,
      logger: silentLogger,
      torn: new TornFiles(stateDir, silentLogger),
      walks: new SharedPlaces(1),
      machines: () => holders,
      stop: () => undefined,
      contents,
    });
  const holds = (state: "running" | "stopped", sandbox: "open" | "none", reachability: "ok" | "unknown" = "ok") =>
    holders.splice(0, 1, {
      machine: { id: "m", state, reachability },
      sandbox,
      claims: [{ name: "data", volume: "disk", read_only: false }],
    });
  return { stateDir, open, holds, file: (id: string) => join(stateDir, "volumes", id, "volume.json") };
}

/** A volume of the machines `other`, which is as given, and `next`; `groups` are those that its files were to get. */
async function sharedBy({ sandbox, read_only }: { sandbox: "open" | "opening"; read_only: boolean }) {
  const groups: (number | undefined)[] = [];
  const { stateDir } = setup();
  const holder = (id: string, how: Pick<Holder, "sandbox">, readOnly: boolean): Holder => ({
    machine: { id, state: "running", reachability: "ok" },
    ...how,
    claims: [{ name: "data", volume: "disk", read_only: readOnly }],
  });
  const holders = [holder("other", { sandbox }, read_only), holder("next", { sandbox: "opening" }, false)];
  const volumes = new LocalVolumes({
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    torn: new TornFiles(stateDir, silentLogger),
    walks: new SharedPlaces(1),
    machines: () => holders,
    stop: () => undefined,
    contents: (place) => {
      const contents = new FolderVolumes(place);
      contents.attach = (_record: unknown, { group }: { group?: number | undefined } = {}) => {
        groups.push(group);
        return Promise.resolve();
      };
      return contents;
    },
  });
  await volumes.api.create("disk", { ...spec, class: "shared" }, options);
  const attach = async (id: string) => {
    const record = holders.find((each) => each.machine.id === id)!;
    const user = { spec: { ...machine, security: { fs_group: 42 } }, record, notice: () => undefined };
    await volumes.attach(user, options);
  };
  return { attach, groups };
}

test("the next backend finds a volume, what is on it, and for whom it is reserved", async () => {
  const { open } = setup();
  const first = open();
  await first.api.create("disk", spec, options);
  await first.api.reserve("disk", "node-a", options);
  writeFileSync(join(first.path("disk"), "said"), "kept");
  const next = open();
  expect(await next.api.get("disk", options)).toMatchObject({
    state: "available",
    reservations: [{ name: "node-a", read_only: false }],
  });
  expect(readFileSync(join(next.path("disk"), "said"), "utf8")).toBe("kept");
});

test("a machine has its volume until it is over and its sandbox is gone", async () => {
  const { open, holds } = setup();
  const volumes = open();
  await volumes.api.create("disk", spec, options);
  const stateOf = async () => (await volumes.api.get("disk", options)).attachments.map(({ state }) => state);
  holds("running", "open");
  expect(await stateOf()).toEqual(["attached"]);
  holds("running", "open", "unknown");
  expect(await stateOf()).toEqual(["unknown"]);
  holds("stopped", "open");
  expect(await stateOf()).toEqual(["attached"]);
  expect(() => volumes.assertClaimable(machine)).toThrow(expect.objectContaining({ code: "in_use" }) as Error);
  holds("stopped", "none");
  expect(await stateOf()).toEqual([]);
  volumes.assertClaimable(machine);
});

test.each([
  { name: "runs", sandbox: "open", read_only: false, wanted: undefined },
  { name: "only reads", sandbox: "open", read_only: true, wanted: 42 },
  { name: "is still being opened", sandbox: "opening", read_only: false, wanted: 42 },
] as const)("a shared volume's files and a group, when another machine $name", async ({ wanted, ...other }) => {
  const { attach, groups } = await sharedBy(other);
  await attach("next");
  expect(groups).toEqual([wanted]);
});

test("a shared volume's files are given a group by the first of two machines that are opened at once", async () => {
  const { attach, groups } = await sharedBy({ sandbox: "opening", read_only: false });
  await attach("other");
  await attach("next");
  expect(groups).toEqual([42, undefined]);
});

test("a volume whose record is torn is told of, given to nobody, and keeps what is on it", async () => {
  const { open, file } = setup();
  const first = open();
  await first.api.create("disk", spec, options);
  writeFileSync(join(first.path("disk"), "said"), "kept");
  truncateSync(file("disk"), 10);
  const next = open();
  expect(await next.api.get("disk", options)).toMatchObject({ state: "failed", reason: "VolumeLost" });
  expect(() => next.assertClaimable(machine)).toThrow(/is failed: its record was torn/);
  expect(existsSync(join(next.path("disk"), "said"))).toBe(true);
});

test("a volume whose record is gone keeps what is on it, and is given to nobody", async () => {
  const { open, file } = setup();
  const first = open();
  await first.api.create("disk", spec, options);
  writeFileSync(join(first.path("disk"), "said"), "kept");
  rmSync(file("disk"));
  const next = open();
  expect(await next.api.get("disk", options)).toMatchObject({ state: "failed", reason: "VolumeLost" });
  expect(() => next.assertClaimable(machine)).toThrow(/is failed/);
  expect(existsSync(join(next.path("disk"), "said"))).toBe(true);
});

test("a folder that is no volume is left alone", async () => {
  const { open, stateDir } = setup();
  const saved = join(stateDir, "volumes", "lost+found", "#12");
  mkdirSync(saved, { recursive: true });
  expect((await open().api.list({ ...options, labels: {} })).items).toEqual([]);
  expect(existsSync(saved)).toBe(true);
});

test("a folder of which nothing was ever told is removed", async () => {
  const { open, stateDir } = setup();
  mkdirSync(join(stateDir, "volumes", "half", "data"), { recursive: true });
  open();
  expect(existsSync(join(stateDir, "volumes", "half"))).toBe(false);
});

test("a deletion that a kill broke off is finished, and its tombstone outlives the backend", async () => {
  const { open, file } = setup();
  const first = open();
  await first.api.create("disk", spec, options);
  const record = JSON.parse(readFileSync(file("disk"), "utf8")) as { volume: { state: string } };
  record.volume.state = "deleting";
  writeFileSync(file("disk"), JSON.stringify(record));
  const next = open();
  await next.finish(options.signal);
  expect(existsSync(next.path("disk"))).toBe(false);
  expect(await open().api.get("disk", options)).toMatchObject({ state: "deleted" });
});

test("a sample tells what is used of a volume and what it may have", async () => {
  const { open } = setup();
  const volumes = open();
  await volumes.api.create("disk", { ...spec, size_bytes: 2 ** 20 }, options);
  writeFileSync(join(volumes.path("disk"), "said"), "x".repeat(10_000));
  const [sample] = await volumes.stats({ claims: [{ name: "data", volume: "disk", read_only: false }] });
  expect(sample).toMatchObject({ name: "data", capacity_bytes: 2 ** 20 });
  expect(sample!.used_bytes).toBeGreaterThanOrEqual(10_000);
  expect(sample!.available_bytes).toBeLessThan(2 ** 20);
});

test("a volume is had as what it is alone, whatever was let through before", async () => {
  const { open } = setup((place) =>
    Object.assign(new FolderVolumes(place), {
      classes: [{ name: "both", sharing: "one", modes: ["filesystem", "block"] } satisfies VolumeClass],
      device: (id: string) => Promise.resolve(`/dev/${id}`),
    }),
  );
  const volumes = open();
  await volumes.api.create("folder", spec, options);
  await volumes.api.create("raw", { ...spec, mode: "block" }, options);
  await expect(volumes.device("folder")).rejects.toThrow("volume folder is of mode filesystem, not block");
  expect(() => volumes.path("raw")).toThrow("volume raw is of mode block, not filesystem");
  expect(await volumes.device("raw")).toBe("/dev/raw");
});

test.each<[string, Volume[], string]>([
  ["a volume that is not there", [], "does not exist"],
  ["scratch space", [{ name: "data", type: "empty_dir", medium: "disk" }], "is none"],
])("a machine that has %s as a block device is invalid", (_what, held, why) => {
  const devices = [{ volume: "data", path: "/dev/x" }];
  for (const wrong of [
    { ...machine, containers: [{ name: "c", image: "i", devices }], volumes: held },
    { ...machine, ephemeral_containers: [{ name: "debug", image: "i", devices }], volumes: held },
  ])
    expect(() => validateSpec(wrong)).toThrow(
      expect.objectContaining({
        code: "invalid",
        field: "containers.devices",
        message: expect.stringContaining(why),
      }) as Error,
    );
});

test("a running machine gets no container that has its mounted volume as a block device", async () => {
  const world = await World.create();
  const { volumes } = world.provider;
  await volumes!.create("disk", spec, options);
  await world.create({ volumes: machine.volumes! });
  const devices = [{ volume: "data", path: "/dev/x" }];
  const patch = { ephemeral_containers: [main("debug", { devices })] };
  await expect(world.provider.updatePod("m1", patch, options)).rejects.toMatchObject({
    code: "invalid",
    field: "ephemeral_containers",
    message: "volume disk is of mode filesystem: it is no block device",
  });
  await world.advance(0);
  expect(world.starts("debug")).toEqual([]);
});

test("below which folders of the host volumes are mounted is known, by whatever name", () => {
  const { open, stateDir } = setup();
  const volumes = open();
  mkdirSync(join(stateDir, "volumes/disk"));
  mkdirSync(join(stateDir, "machines"));
  symlinkSync(stateDir, join(stateDir, "machines/link"));
  const holders = [
    "/",
    stateDir,
    join(stateDir, "volumes"),
    join(stateDir, "volumes/disk"),
    join(stateDir, "machines/link"),
  ];
  expect(holders.map((path) => volumes.areBelow(path))).toEqual(holders.map(() => true));
  expect([join(stateDir, "machines"), "/proc"].map((path) => volumes.areBelow(path))).toEqual([false, false]);
});
