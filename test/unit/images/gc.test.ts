/** Which images garbage collection spares, above all those that somebody comes to need while it runs. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { TornFiles } from "../../../providers/local/host/torn-files.ts";
import { ImageFolders } from "../../../providers/local/images/folders.ts";
import { HostImages } from "../../../providers/local/images/host-images.ts";
import { PrewarmedImages } from "../../../providers/local/images/prewarmed.ts";
import { startLyingRegistry } from "../../support/lying-registry.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const FULL = { totalBytes: 100, freeBytes: 1 };

let dir: string;
let clock: VirtualClock;
/** Asked each time before an image is removed. */
let diskUsage: () => Promise<typeof FULL>;
let images: HostImages;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
  mkdirSync(join(dir, "blobs/sha256"), { recursive: true });
  clock = new VirtualClock();
  diskUsage = () => Promise.resolve(FULL);
  images = new HostImages({ dir, clock, logger: silentLogger, diskUsage: () => diskUsage() });
});

afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});

/** Puts images into the store as earlier pulls would have, the first of them unused for longest. */
function store(...stored: { name: string; hex: string }[]): void {
  for (const [index, { name, hex }] of stored.entries()) {
    const folder = join(dir, "images", hex);
    mkdirSync(join(folder, "rootfs"), { recursive: true });
    const repositories = [name.slice(0, name.lastIndexOf(":"))];
    const document = { manifestDigest: `sha256:${hex}`, config: {}, blobs: [], sizeBytes: 1, repositories };
    writeFileSync(join(folder, "image.json"), JSON.stringify(document));
    const usedAt = clock.now() / 1000 - 86_400 + index;
    utimesSync(join(folder, "image.json"), usedAt, usedAt);
  }
  const names = stored.map(({ name, hex }) => [name, { imageId: `${name}@sha256:${hex}`, hex, seenBy: [] }]);
  writeFileSync(join(dir, "names.json"), JSON.stringify(Object.fromEntries(names)));
}

const A = { name: "r.test/a:1", hex: "a".repeat(64) };
const B = { name: "r.test/b:1", hex: "b".repeat(64) };

test("an image that is kept ready stays however full the disk is, and goes when it is kept no longer", async () => {
  store(A, B);
  const held = { location: join(dir, "images", A.hex, "rootfs"), imageId: "a", sizeBytes: 1 };
  const kept = { id: "app", image: A.name, labels: {}, createdAt: "2026-01-01T00:00:00.000Z", isListed: false, held };
  writeFileSync(join(dir, "prewarmed.json"), JSON.stringify([kept]));
  const prewarmed: PrewarmedImages = new PrewarmedImages({
    ...{ store: images, stateDir: dir, clock, logger: silentLogger },
    onChanged: () => images.retain(new Set(prewarmed.locations())),
  });
  images.retain(new Set(prewarmed.locations()));
  expect(await images.collect()).toEqual([B.hex]);
  await prewarmed.api.delete("app", { signal: new AbortController().signal });
  expect(await images.collect()).toEqual([A.hex]);
});

test("an image that a machine asks for while others are removed stays", async () => {
  store(A, B);
  images.retain(new Set());
  let looks = 0;
  diskUsage = async () => {
    if (++looks === 3) expect(await images.find(B.name)).toBeDefined();
    return FULL;
  };
  expect(await images.collect()).toEqual([A.hex]);
  expect(await images.find(B.name)).toBeDefined();
});

test("an image that a machine says it needs while others are removed stays", async () => {
  store(A, B);
  images.retain(new Set());
  let looks = 0;
  diskUsage = () => {
    if (++looks === 3) images.retain(new Set([join(dir, "images", B.hex, "rootfs")]));
    return Promise.resolve(FULL);
  };
  expect(await images.collect()).toEqual([A.hex]);
});

test("a pull on a full disk does not remove the image that it is for", async () => {
  const registry = await startLyingRegistry();
  try {
    const config = { digest: `sha256:${"c".repeat(64)}`, size: 1 };
    const digest = registry.manifest("i", "1", { schemaVersion: 2, config, layers: [] });
    const hex = digest.slice("sha256:".length);
    const image = `${registry.host}/i:1`;
    store({ name: image, hex }, B);
    const insecureRegistries = [registry.host];
    images = new HostImages({ dir, clock, logger: silentLogger, diskUsage, gc: { minAgeMs: 0 }, insecureRegistries });
    images.retain(new Set());
    const { location } = await images.pull(image, { auth: [], tenant: "a", signal: new AbortController().signal });
    expect(location).toBe(join(dir, "images", hex, "rootfs"));
    expect(await images.find(image, [])).toBeDefined();
    expect(await images.find(B.name)).toBeUndefined();
  } finally {
    await registry.stop();
  }
});

test("an image that a machine needs stays though its name has come to mean another one", async () => {
  store({ name: A.name, hex: A.hex }, { name: A.name, hex: B.hex });
  images.retain(new Set([join(dir, "images", A.hex, "rootfs")]));
  expect(await images.collect()).toEqual([B.hex]);
});

test("an image goes however deep its folders are", async () => {
  store(A);
  images.retain(new Set());
  const name = "d".repeat(200);
  const dig = `i=0; while [ $i -lt 25 ]; do mkdir ${name} && cd -P ${name} || exit 1; i=$((i + 1)); done`;
  execFileSync("sh", ["-c", dig], { cwd: join(dir, "images", A.hex, "rootfs") });
  expect(await images.collect()).toEqual([A.hex]);
  expect(readdirSync(join(dir, "tmp"))).toEqual([]);
});

test.each([
  ["no description", (file: string) => rmSync(file)],
  ["a torn description", (file: string) => writeFileSync(file, "")],
])("an image with %s does not end the collection, and goes itself", async (_title, spoil) => {
  store(A, B);
  spoil(join(dir, "images", A.hex, "image.json"));
  images.retain(new Set());
  expect((await images.collect()).toSorted()).toEqual([A.hex, B.hex]);
});

test("an image with a torn description is not given out, and others are", async () => {
  store(A, B);
  writeFileSync(join(dir, "images", A.hex, "image.json"), "");
  expect(await images.find(A.name)).toBeUndefined();
  expect(await images.find(B.name)).toBeDefined();
});

test.each(["", '{"r.test/a:1":null}'])("names that are torn (%j) have registries asked again", async (torn) => {
  store(A);
  writeFileSync(join(dir, "names.json"), torn);
  expect(await images.find(A.name)).toBeUndefined();
});

test("a salt that is torn is made again", async () => {
  store(A);
  writeFileSync(join(dir, "salt"), "");
  expect(await images.find(A.name)).toBeDefined();
  expect(statSync(join(dir, "salt")).size).toBe(32);
});

test("an image takes the place of a folder that a loss of power has left without its description", async () => {
  const folders = new ImageFolders(dir, new TornFiles(dir, silentLogger), silentLogger);
  folders.open();
  store(A);
  writeFileSync(join(dir, "images", A.hex, "image.json"), "");
  const work = await folders.workDir();
  mkdirSync(join(work, "image/rootfs/fresh"), { recursive: true });
  const stored = { manifestDigest: `sha256:${A.hex}`, config: {}, blobs: [], sizeBytes: 1, repositories: ["r.test/a"] };
  writeFileSync(join(work, "image/image.json"), JSON.stringify(stored));
  await folders.place(join(work, "image"), join(work, "layout"), stored);
  expect(readdirSync(folders.rootfs(A.hex))).toEqual(["fresh"]);
  expect(folders.read(A.hex)).toEqual(stored);
});

test("an image that was used while the clock was ahead is removed like any other, once it was seen unused for long enough", async () => {
  store(A);
  const ahead = clock.now() / 1000 + 30 * 86_400;
  utimesSync(join(dir, "images", A.hex, "image.json"), ahead, ahead);
  images.retain(new Set());
  expect(await images.collect()).toEqual([]);
  await clock.advance(121_000);
  expect(await images.collect()).toEqual([A.hex]);
});

test("an image that was used a moment ago stays, though the clock was set ahead since", async () => {
  store(A);
  expect(await images.find(A.name)).toBeDefined();
  images.retain(new Set());
  clock.step(86_400_000);
  expect(await images.collect()).toEqual([]);
});
