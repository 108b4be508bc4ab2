/**
 * What a backend makes of a disk that a loss of power has left: the disk is mounted at its own place, in a mount
 * namespace of this program, and the backend's own code takes over what is on it (records, tombstones, images, what
 * shims wrote down), above an engine that is empty, as any is after a loss of power, and starts nothing but says what
 * it was to start. Reads questions, a line of JSON each, and answers them so:
 *
 *     unshare --mount --propagation private node crashed-host.ts
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { inspect } from "node:util";
import { LocalProvider } from "../../providers/local/provider.ts";
import { HostImages } from "../../providers/local/images/host-images.ts";
import { LoopVolumes } from "../../providers/local/volumes/loop-files.ts";
import type { VolumeRecord } from "../../src/provider/volume-book.ts";
import { SharedPlaces } from "../../src/queue/shared-places.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { passTime } from "../e2e/harness/wait.ts";
import { VirtualClock } from "../support/virtual-clock.ts";
import { type Backup, bareEngine } from "./bare-engine.ts";
import { type Asked, Workload } from "./workload.ts";

export const STATE_DIR = "/var/lib/vmlet/state";
const DISK = dirname(STATE_DIR);
const IMAGES = join(STATE_DIR, "images");
const VOLUMES = join(STATE_DIR, "volumes");
const CALL_MS = 30_000;
const STEP_MS = 100;
const TURN_MS = 10;
const REST_MS = 60_000;

export interface Question {
  /** The disk, a file. */
  disk: string;
  image: string;
  /** What had been asked and answered when the power went. */
  machines: [string, Asked][];
  /** Those that were acknowledged, with the last number that was flushed there. */
  volumes: [string, number][];
  /** The machines of which a container had begun by then. */
  runs: string[];
  /** What each image has in it, by its folder; absent: that is what is asked for. */
  trees?: Record<string, string> | undefined;
}

export interface Answer {
  faults: string[];
  /** Files that were torn, and were set aside. */
  torn: number;
  trees?: Record<string, string>;
}

async function answer(question: Question): Promise<Answer> {
  execFileSync("mount", ["-o", "loop,nosuid,nodev", question.disk, DISK], { stdio: ["ignore", "ignore", "pipe"] });
  try {
    if (question.trees === undefined) return { faults: [], torn: 0, trees: treesOf() };
    return { faults: await faultsOf(question, question.trees), torn: tornFiles() };
  } finally {
    await detachAll();
    execFileSync("umount", ["--lazy", DISK]);
  }
}

async function faultsOf(
  { image, machines, runs, volumes }: Question,
  trees: Record<string, string>,
): Promise<string[]> {
  // Before the first start of the backend there is nothing.
  if (!existsSync(STATE_DIR)) mkdirSync(STATE_DIR, { mode: 0o700 });
  const clock = new VirtualClock(Date.now());
  const backup: Backup = { begun: new Map(), clock, logger: silentLogger };
  const images = new HostImages({ dir: IMAGES, clock, logger: silentLogger });
  const { engine, shims } = bareEngine(backup, images);
  const provider = await LocalProvider.open({
    ...{ engine, shims, stateDir: STATE_DIR, clock, logger: silentLogger, host: "crashed", version: "0" },
  });
  const faults = new Set<string>();
  try {
    const workload = new Workload(image, 0);
    for (const [id, asked] of machines) workload.machines.set(id, asked);
    await untilRest(async () => {
      for (const fault of await workload.look(provider)) faults.add(fault);
      await clock.advance(STEP_MS);
      return faults.size > 0 || workload.unrest().length === 0;
    });
    for (const unrest of workload.unrest()) faults.add(unrest);
    for (const [id, times] of backup.begun)
      if (workload.machines.get(id)?.kind !== "for ever" && times + (runs.includes(id) ? 1 : 0) > 1)
        faults.add(`a container of ${id} would run again`);
    for (const [id] of volumes) {
      const { state } = await provider.volumes!.get(id, { signal: AbortSignal.timeout(CALL_MS) });
      if (state !== "available") faults.add(`volume ${id} is ${state}`);
    }
    // Whatever a new machine would be given must be whole.
    const prepared = await images.find(image);
    if (prepared !== undefined && treeOf(prepared.location) !== trees[prepared.location])
      faults.add(`image ${prepared.location} is believed and is not whole`);
  } finally {
    await provider.close();
    await detachAll();
  }
  for (const [id, written] of volumes) {
    const found = await numberOn(id);
    if (found < written) faults.add(`${found} is on volume ${id}, where ${written} was flushed`);
  }
  return [...faults];
}

/** What takes time is done by other programs; what waits, by the backend's clock, waits for nothing else. */
async function untilRest(isAtRest: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + REST_MS;
  while (!(await isAtRest()) && performance.now() < end) await passTime(TURN_MS, "Programs that mount and check run.");
}

/** What its machine has written to a volume, which is attached as any is: checked, mended, mounted. */
async function numberOn(id: string): Promise<number> {
  const disks = volumesOfHost();
  const created_at = new Date(0).toISOString();
  const size_bytes = statSync(join(VOLUMES, id, "disk.img")).size;
  const volume = { id, version: 1, labels: {}, mode: "filesystem" as const, size_bytes, created_at, reservations: [] };
  const record: VolumeRecord = { fingerprint: "", volume: { ...volume, state: "available" } };
  await disks.attach(record, { readOnly: false, mountOptions: [] });
  const file = join(disks.path(id), "n");
  return existsSync(file) ? Number(readFileSync(file, "utf8")) : 0;
}

const volumesOfHost = () =>
  new LoopVolumes({ dir: VOLUMES, clock: systemClock, logger: silentLogger, walks: new SharedPlaces(1) });

/** Whatever is attached holds the disk that it is on. */
async function detachAll(): Promise<void> {
  const disks = volumesOfHost();
  for (const id of await disks.attached()) await disks.detach(id);
}

function tornFiles(): number {
  const folders = [STATE_DIR, IMAGES].map((folder) => join(folder, "torn"));
  return folders.flatMap((folder) => (existsSync(folder) ? readdirSync(folder) : [])).length;
}

function treesOf(): Record<string, string> {
  const all = join(IMAGES, "images");
  return Object.fromEntries(
    readdirSync(all).flatMap((name) => {
      // As engines are told of it, and as it is.
      const folder = join(all, name);
      return [folder, join(folder, "rootfs")].filter((each) => existsSync(each)).map((each) => [each, treeOf(each)]);
    }),
  );
}

/** All that is in a folder, by content. */
function treeOf(folder: string): string {
  const hash = createHash("sha256");
  const take = (path: string, name: string) => {
    const stat = lstatSync(path);
    hash.update(`${name}\0${stat.mode}\0`);
    if (stat.isSymbolicLink()) hash.update(readlinkSync(path));
    if (stat.isFile()) hash.update(readFileSync(path));
    if (stat.isDirectory()) for (const each of readdirSync(path).toSorted()) take(join(path, each), `${name}/${each}`);
  };
  take(folder, "");
  return hash.digest("hex");
}

if (import.meta.main) {
  execFileSync("mount", ["-t", "tmpfs", "tmpfs", dirname(DISK)]);
  mkdirSync(DISK);
  for await (const line of createInterface({ input: process.stdin })) {
    const told = await answer(JSON.parse(line) as Question).catch((thrown: unknown): Answer => ({
      faults: [inspect(thrown)],
      torn: 0,
    }));
    process.stdout.write(`${JSON.stringify(told)}\n`);
  }
}
