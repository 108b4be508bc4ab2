/** What pulls and disks that were cut short have left on the disk. */
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, afterEach, expect, test, vi } from "vitest";
import { imageDisk } from "../../../providers/local/engines/vm/image-disk.ts";
import { HostImages } from "../../../providers/local/images/host-images.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(dir, { recursive: true, force: true });
});

test("on a full disk, the layers of pulls that failed go, though no image may", async () => {
  const [hex, layer, orphan] = ["a", "b", "c"].map((digit) => digit.repeat(64)) as [string, string, string];
  const blobs = join(dir, "blobs/sha256");
  mkdirSync(join(dir, "images", hex), { recursive: true });
  mkdirSync(blobs, { recursive: true });
  for (const blob of [layer, orphan]) writeFileSync(join(blobs, blob), "");
  const stored = { manifestDigest: `sha256:${hex}`, config: {}, blobs: [`sha256:${layer}`], sizeBytes: 1 };
  writeFileSync(join(dir, "images", hex, "image.json"), JSON.stringify(stored));
  writeFileSync(join(dir, "names.json"), JSON.stringify({ "r/i:1": { imageId: "r/i@sha256:x", hex, seenBy: [] } }));
  const images = new HostImages({
    dir,
    clock: systemClock,
    logger: silentLogger,
    diskUsage: () => Promise.resolve({ totalBytes: 100, freeBytes: 1 }),
  });
  images.retain(new Set([join(dir, "images", hex, "rootfs")]));
  expect(await images.collect()).toEqual([]);
  expect(readdirSync(blobs)).toEqual([layer]);
});

test("a disk takes the place of those that were never finished", async () => {
  const tools = join(dir, "tools");
  mkdirSync(tools);
  writeFileSync(join(tools, "mksquashfs"), '#!/bin/sh\n: > "$2"\n');
  chmodSync(join(tools, "mksquashfs"), 0o755);
  vi.stubEnv("PATH", `${tools}:${process.env["PATH"]}`);
  const image = join(dir, "image");
  mkdirSync(join(image, "rootfs"), { recursive: true });
  writeFileSync(join(image, "disk.squashfs.01234567"), "half");
  await imageDisk(join(image, "rootfs"));
  expect(readdirSync(image).toSorted()).toEqual(["disk.squashfs", "rootfs"]);
});
