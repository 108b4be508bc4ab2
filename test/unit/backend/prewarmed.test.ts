/** Images that a backend keeps ready: pulled once, spared by garbage collection, within bounds, after a restart too. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { ContainerError, type ImageStore } from "../../../providers/local/engine.ts";
import { listedId, PrewarmedImages, type PrewarmOptions } from "../../../providers/local/images/prewarmed.ts";
import type { RegistryAuth } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();
const APP = "r.test/app:1";
const AUTH: RegistryAuth[] = [{ registry: "r.test", username: "ann", password: "s3cret-word" }];

/** A host's images: what its registry has, and what is here. */
class Store implements ImageStore {
  readonly registry = new Map<string, { location: string; sizeBytes: number }>();
  readonly here = new Map<string, string>();
  /** Of what a machine has pulled. */
  hereBytes = 100;
  readonly pulls: { image: string; auth: readonly RegistryAuth[] }[] = [];
  needsAuth = false;
  /** Pulls wait for it. */
  gate: Promise<void> = Promise.resolve();

  find(image: string) {
    const location = this.here.get(image);
    return Promise.resolve(
      location === undefined ? undefined : { ...this.#prepared(image, location), sizeBytes: this.hereBytes },
    );
  }

  async pull(image: string, { auth, signal: stop }: { auth: readonly RegistryAuth[]; signal: AbortSignal }) {
    this.pulls.push({ image, auth });
    await this.gate;
    stop.throwIfAborted();
    const found = this.registry.get(image);
    if (found === undefined || (this.needsAuth && auth.length === 0))
      throw new ContainerError("ErrImagePull", `${image}: pull access denied`);
    this.here.set(image, found.location);
    return { ...this.#prepared(image, found.location), sizeBytes: found.sizeBytes };
  }

  #prepared(image: string, location: string) {
    return { imageId: `id of ${location}`, image, config: {}, location };
  }
}

let stateDir: string;
let clock: VirtualClock;
let store: Store;
/** What garbage collection spares by now. */
let spared: string[];

beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), "vmlet-prewarmed-"));
  onTestFinished(() => rmSync(stateDir, { recursive: true, force: true }));
  clock = new VirtualClock();
  store = new Store();
  store.registry.set(APP, { location: "/images/app", sizeBytes: 100 });
  spared = [];
});

async function open(options: PrewarmOptions = {}): Promise<PrewarmedImages> {
  const images: PrewarmedImages = new PrewarmedImages({
    maxBytes: 1000,
    ...options,
    ...{ store, stateDir, clock, logger: silentLogger },
    onChanged: () => (spared = images.locations()),
  });
  spared = images.locations();
  images.start();
  await settle();
  return images;
}

const put = async (images: PrewarmedImages, id: string, image = APP, auth?: RegistryAuth[]) => {
  const shown = await images.api.create(id, { image, labels: {}, ...(auth && { registry_auth: auth }) }, { signal });
  await settle();
  return shown;
};
const get = (images: PrewarmedImages, id: string) => images.api.get(id, { signal });
const code = (expected: string): unknown => expect.objectContaining({ code: expected });

describe("an image that is listed", () => {
  test("is pulled, told with its size, and spared by garbage collection until it is deleted", async () => {
    const images = await open();
    expect(await put(images, "a")).toMatchObject({ id: "a", image: APP, state: "pulling" });
    expect(await get(images, "a")).toMatchObject({ state: "ready", size_bytes: 100, image_id: "id of /images/app" });
    expect(spared).toEqual(["/images/app"]);
    await images.api.delete("a", { signal });
    expect(spared).toEqual([]);
    await expect(get(images, "a")).rejects.toEqual(code("not_found"));
  });

  test("is pulled once, however often it is asked for", async () => {
    const images = await open();
    await put(images, "a");
    await put(images, "a");
    expect(store.pulls).toHaveLength(1);
    expect(await images.api.list({ labels: {}, signal })).toHaveLength(1);
  });

  test("keeps its id from another image", async () => {
    const images = await open();
    await put(images, "a");
    await expect(put(images, "a", "r.test/other:1")).rejects.toEqual(code("conflict"));
  });

  test("is spared from the first instant after a restart, and not pulled again", async () => {
    const before = await open();
    await put(before, "a");
    await before.close();
    const images = await open();
    expect(spared).toEqual(["/images/app"]);
    expect(await get(images, "a")).toMatchObject({ state: "ready", size_bytes: 100 });
    expect(store.pulls).toHaveLength(1);
  });

  test("is pulled again when somebody has removed it from the host", async () => {
    const images = await open();
    await put(images, "a");
    store.here.clear();
    await clock.advance(10 * 60_000 + 1);
    await settle();
    expect(store.pulls).toHaveLength(2);
    expect(await get(images, "a")).toMatchObject({ state: "ready" });
  });

  test("is what its tag has come to mean, once a machine has pulled that", async () => {
    const images = await open();
    await put(images, "a");
    store.here.set(APP, "/images/newer");
    await clock.advance(10 * 60_000 + 1);
    await settle();
    expect(spared).toEqual(["/images/newer"]);
    expect(store.pulls).toHaveLength(1);
  });

  test("is told with the size of what its tag has come to mean", async () => {
    const images = await open();
    await put(images, "a");
    store.here.set(APP, "/images/newer");
    store.hereBytes = 700;
    await clock.advance(10 * 60_000 + 1);
    await settle();
    expect(await get(images, "a")).toMatchObject({ state: "ready", size_bytes: 700 });
  });

  test("that is deleted while it is pulled is not kept", async () => {
    const gate = Promise.withResolvers<void>();
    store.gate = gate.promise;
    const images = await open();
    await put(images, "a");
    await images.api.delete("a", { signal });
    gate.resolve();
    await settle();
    expect(images.locations()).toEqual([]);
  });
});

describe("an image that cannot be had", () => {
  test("says why, and is tried again later and later", async () => {
    store.registry.clear();
    const images = await open();
    await put(images, "a");
    expect(await get(images, "a")).toMatchObject({
      ...{ state: "waiting", reason: "ErrImagePull" },
      message: `${APP}: pull access denied`,
    });
    const counts: number[] = [];
    for (const ms of [10_000, 10_000, 10_000, 300_000]) {
      await clock.advance(ms + 1);
      await settle();
      counts.push(store.pulls.length);
    }
    expect(counts).toEqual([2, 2, 3, 6]);
  });

  test("is tried at once with the credentials of a repeated request", async () => {
    store.needsAuth = true;
    const images = await open();
    await put(images, "a");
    await put(images, "a", APP, AUTH);
    expect(await get(images, "a")).toMatchObject({ state: "ready" });
  });

  test("stays on the list of the next backend, which has no credentials for it any more", async () => {
    store.needsAuth = true;
    store.gate = new Promise(() => {});
    const before = await open();
    await put(before, "a", APP, AUTH);
    store.gate = Promise.resolve();
    const images = await open();
    expect(await get(images, "a")).toMatchObject({ state: "waiting", reason: "ErrImagePull" });
  });
});

test("credentials are neither shown nor written down", async () => {
  const images = await open();
  const shown = [await put(images, "a", APP, AUTH), await get(images, "a")];
  expect(JSON.stringify(shown)).not.toContain("s3cret-word");
  expect(readFileSync(join(stateDir, "prewarmed.json"), "utf8")).not.toContain("s3cret-word");
});

describe("the configuration's images", () => {
  test("are pulled when the backend starts, and no client takes them off the list", async () => {
    const images = await open({ images: [APP] });
    expect(await get(images, listedId(APP))).toMatchObject({ image: APP, state: "ready" });
    await expect(images.api.delete(listedId(APP), { signal })).rejects.toEqual(code("conflict"));
  });

  test("are theirs though a client has taken the id for another image", async () => {
    const before = await open();
    store.registry.set("r.test/other:1", { location: "/images/other", sizeBytes: 1 });
    await put(before, listedId(APP), "r.test/other:1");
    await before.close();
    const images = await open({ images: [APP] });
    expect(await get(images, listedId(APP))).toMatchObject({ image: APP, state: "ready" });
    await expect(images.api.delete(listedId(APP), { signal })).rejects.toEqual(code("conflict"));
  });

  test("are spared from the first instant though a client was first to list them so", async () => {
    const before = await open();
    await put(before, listedId(APP));
    await before.close();
    const images = await open({ images: [APP] });
    expect(store.pulls).toHaveLength(1);
    await expect(images.api.delete(listedId(APP), { signal })).rejects.toEqual(code("conflict"));
  });

  test("are kept no longer once they are taken out of it", async () => {
    const before = await open({ images: [APP] });
    await before.close();
    await open();
    expect(spared).toEqual([]);
  });
});

describe("the host's disk is not filled:", () => {
  test("more images than there may be are refused", async () => {
    const images = await open({ maxImages: 1 });
    await put(images, "a");
    await expect(put(images, "b", "r.test/b:1")).rejects.toEqual(code("quota"));
    expect(store.pulls).toHaveLength(1);
  });

  test("what is too large beside the others is not spared, says so, and is not fetched again and again", async () => {
    store.registry.set("r.test/large:1", { location: "/images/large", sizeBytes: 901 });
    const images = await open();
    await put(images, "a");
    await put(images, "large", "r.test/large:1");
    expect(await get(images, "large")).toMatchObject({ state: "waiting", reason: "Quota" });
    expect((await get(images, "large")).message).toContain("more than the 1000");
    await clock.advance(3_600_000);
    await settle();
    expect(spared).toEqual(["/images/app"]);
    expect(store.pulls.filter(({ image }) => image === "r.test/large:1")).toHaveLength(1);
  });

  test("an image whose tag has come to mean one that is too large is not spared, and not fetched again", async () => {
    const images = await open();
    await put(images, "a");
    store.here.set(APP, "/images/newer");
    store.hereBytes = 1001;
    await clock.advance(3_600_000);
    await settle();
    expect(spared).toEqual([]);
    expect(await get(images, "a")).toMatchObject({ state: "waiting", reason: "Quota" });
    expect(store.pulls).toHaveLength(1);
  });

  test("two images that have come at the same instant do not both take the room that is left", async () => {
    const gate = Promise.withResolvers<void>();
    store.gate = gate.promise;
    const images = await open();
    for (const name of ["x", "y"]) {
      store.registry.set(`r.test/${name}:1`, { location: `/images/${name}`, sizeBytes: 600 });
      await put(images, name, `r.test/${name}:1`);
    }
    gate.resolve();
    await settle();
    expect(spared).toHaveLength(1);
  });

  test("an image that is listed twice counts once", async () => {
    const images = await open({ maxBytes: 150 });
    await put(images, "a");
    await put(images, "b");
    expect(await get(images, "b")).toMatchObject({ state: "ready" });
  });

  test.each([
    ["labels", { labels: { a: "x".repeat(5000) } }],
    ["registry_auth", { registry_auth: [{ registry: "r", password: "x".repeat(70_000) }] }],
    ["image", { image: "Not An Image" }],
  ])("a client's %s are bounded", async (field, spec) => {
    const images = await open();
    await expect(images.api.create("a", { image: APP, labels: {}, ...spec }, { signal })).rejects.toEqual(
      expect.objectContaining({ code: "invalid", field }),
    );
  });
});

test("a list that was torn by a loss of power is set aside, and the backend starts", async () => {
  writeFileSync(join(stateDir, "prewarmed.json"), '[{"id":"a","image"');
  const images = await open({ images: [APP] });
  expect(await get(images, listedId(APP))).toMatchObject({ state: "ready" });
  expect(existsSync(join(stateDir, "torn"))).toBe(true);
});

test("an image is not taken on when the list cannot be written", async () => {
  const images = await open();
  rmSync(stateDir, { recursive: true });
  await expect(put(images, "a")).rejects.toEqual(code("unavailable"));
  await expect(get(images, "a")).rejects.toEqual(code("not_found"));
});
