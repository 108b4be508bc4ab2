/** Copies of volumes while something writes to them, on a file system whose files can share blocks. */
import { execFileSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import type { HostVolumes } from "../../../providers/local/volume-contents.ts";
import { DiskVolumes } from "../../../providers/local/volumes/disk-files.ts";
import { checkLoopVolumes, hasLoopVolumes, LoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import type { VolumeRecord } from "../../../src/provider/volume-book.ts";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { leaveOut } from "../../support/left-out.ts";
import { PATIENCE } from "../backend/killable.ts";

const MIB = 2 ** 20;
const HAS_XFS = checkLoopVolumes().every(({ problem }) => !problem.includes("xfs"));

/** A folder of a file system of its own. */
function folderOn(sizeMib: number, ...mkfs: string[]): string {
  const place = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-taken-")));
  const [image, dir] = [join(place, "image"), join(place, "volumes")];
  writeFileSync(image, "");
  truncateSync(image, sizeMib * MIB);
  mkdirSync(dir);
  execFileSync(mkfs[0]!, [...mkfs.slice(1), image]);
  execFileSync("mount", ["-o", "loop", image, dir]);
  onTestFinished(async () => {
    await vi.waitFor(() => execFileSync("umount", [dir], { stdio: "ignore" }), PATIENCE);
    rmSync(place, { recursive: true });
  });
  return dir;
}

const sharing = (sizeMib = 1024) => folderOn(sizeMib, "mkfs.xfs", "-q", "-m", "reflink=1");

function record(dir: string, id: string, mode: "filesystem" | "block", size_bytes = 64 * MIB): VolumeRecord {
  mkdirSync(join(dir, id), { recursive: true });
  const created_at = new Date(0).toISOString();
  return {
    fingerprint: "",
    volume: { id, version: 1, labels: {}, state: "available", size_bytes, mode, created_at, reservations: [] },
  };
}

const open = (dir: string) =>
  new LoopVolumes({ dir, clock: systemClock, logger: silentLogger, walks: new SharedPlaces(1) });

const USE = { readOnly: false, mountOptions: [] };

async function attached(volumes: HostVolumes, each: VolumeRecord): Promise<void> {
  await volumes.attach(each, USE);
  onTestFinished(() => vi.waitFor(() => volumes.detach(each.volume.id), PATIENCE));
}

function write(path: string, text: string): void {
  const file = openSync(path, existsSync(path) ? "r+" : "w");
  writeSync(file, text);
  fsyncSync(file);
  closeSync(file);
}

if (!hasLoopVolumes() || !HAS_XFS) leaveOut("copies of volumes in use", ["loop devices, or mkfs.xfs"]);
else {
  test("a mounted volume's copy has what it had when it was taken, and shares nothing with it in the end", async () => {
    const dir = sharing();
    const volumes = open(dir);
    const [source, copy] = [record(dir, "d", "filesystem"), record(dir, "copy", "filesystem", 96 * MIB)];
    await volumes.make(source, undefined);
    await attached(volumes, source);
    write(join(dir, "d/data/said"), "kept");
    expect(await volumes.take(copy, source)).toBe(true);
    write(join(dir, "d/data/said"), "gone");
    expect(await volumes.make(copy, source)).toEqual({ size_bytes: 96 * MIB, fs_type: "ext4" });
    await attached(volumes, copy);
    expect(readFileSync(join(dir, "copy/data/said"), "utf8")).toBe("kept");
    expect(readFileSync(join(dir, "d/data/said"), "utf8")).toBe("gone");
    expect(existsSync(join(dir, "copy/disk.img.new.taken"))).toBe(false);
    expect(statSync(join(dir, "copy/disk.img")).blocks * 512).toBeGreaterThanOrEqual(96 * MIB);
    const shared = execFileSync("filefrag", ["-v", join(dir, "d/disk.img")], { encoding: "utf8" });
    expect(shared).not.toContain("shared");
  });

  test("what an earlier try has taken is not what the next one copies", async () => {
    const dir = sharing();
    const volumes = open(dir);
    const [source, copy] = [record(dir, "d", "block"), record(dir, "copy", "block")];
    await volumes.make(source, undefined);
    write(join(dir, "d/disk.img"), "first");
    await volumes.take(copy, source);
    write(join(dir, "d/disk.img"), "after");
    expect(await open(dir).take(copy, source)).toBe(true);
    await open(dir).make(copy, source);
    expect(readFileSync(join(dir, "copy/disk.img")).subarray(0, 5).toString()).toBe("after");
  });

  test("the disk of a virtual machine is copied as it was, too", async () => {
    const dir = sharing();
    const volumes = new DiskVolumes({ dir, logger: silentLogger }, () => Promise.resolve());
    const [source, copy] = [record(dir, "d", "block"), record(dir, "copy", "block")];
    await volumes.make(source, undefined);
    write(join(dir, "d/disk.img"), "kept");
    expect(await volumes.take(copy, source)).toBe(true);
    write(join(dir, "d/disk.img"), "gone");
    await volumes.make(copy, source);
    expect(readFileSync(join(dir, "copy/disk.img")).subarray(0, 4).toString()).toBe("kept");
  });

  test("nothing is taken where what is written meanwhile would find no room, nor where files share no blocks", async () => {
    for (const dir of [sharing(320), folderOn(512, "mkfs.ext4", "-q")]) {
      const volumes = open(dir);
      const [source, copy] = [record(dir, "d", "block", 120 * MIB), record(dir, "copy", "block", 120 * MIB)];
      await volumes.make(source, undefined);
      expect(await volumes.take(copy, source)).toBe(false);
      expect(existsSync(join(dir, "copy/disk.img.new.taken"))).toBe(false);
    }
  });
}
