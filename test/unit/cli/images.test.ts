/** `vmlet images`: what it waits for, what it tells, and what it takes off the list. */
import { describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { imageIdOf, imagesText, pullImages, removeImages } from "../../../src/cli/images.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();
const APP = "r.test/app:1";
const NOWHERE = "r.invalid/app:1";

function setup() {
  const clock = new VirtualClock();
  const { images } = new MemoryProvider({ clock });
  const told: string[] = [];
  const pulling = { labels: {}, auth: [], waitMs: 60_000, clock, tell: (line: string) => void told.push(line), signal };
  return { clock, images, told, pulling };
}

describe("pull", () => {
  test("tells of each image once, and ends when they are here", async () => {
    const { images, told, pulling } = setup();
    await pullImages(images, [APP, APP], pulling);
    expect(told).toEqual([`${APP}: ready`]);
  });

  test("fails in time, and names those that are not here with the reason", async () => {
    const { clock, images, told, pulling } = setup();
    const pulled = pullImages(images, [APP, NOWHERE], pulling);
    const failed = expect(pulled).rejects.toThrow(`not here within 60 s: ${NOWHERE}.`);
    await clock.advance(61_000);
    await failed;
    expect(told.find((line) => line.startsWith(NOWHERE))).toContain("ImagePullBackOff");
  });

  test("waits for nothing where it is not to", async () => {
    const { images, told, pulling } = setup();
    await pullImages(images, [NOWHERE], { ...pulling, waitMs: 0 });
    expect(told).toHaveLength(1);
  });

  test("sends the credentials of the image's own registry, and no others", async () => {
    const { images, pulling } = setup();
    const sent: unknown[] = [];
    const create: typeof images.create = (id, spec, options) => {
      sent.push(spec.registry_auth);
      return images.create(id, spec, options);
    };
    const watched = new Proxy(images, {
      get: (target, name) => (name === "create" ? create : Reflect.get(target, name).bind(target)) as unknown,
    });
    const auth = ["r.test", "other.test", "docker.io"].map((registry) => ({ registry, username: "u", password: "p" }));
    await pullImages(watched, [APP, "third.test/app:1"], { ...pulling, auth, waitMs: 0 });
    expect(sent).toEqual([[auth[0]], undefined]);
  });

  test("keeps one image however often it is called, and one for each cluster", () => {
    expect(imageIdOf(APP, {})).toBe(imageIdOf(APP, {}));
    expect(imageIdOf(APP, { "vmlet.dev/cluster": "a" })).not.toBe(imageIdOf(APP, {}));
  });
});

describe("remove", () => {
  test("takes an image by its name or its id off the list", async () => {
    const { images, pulling } = setup();
    await pullImages(images, [APP, "r.test/b:1"], pulling);
    await removeImages(images, [APP, imageIdOf("r.test/b:1", {})], { labels: {}, signal });
    expect(await images.list({ labels: {}, signal })).toEqual([]);
  });

  test("removes nothing when one of them is not kept", async () => {
    const { images, pulling } = setup();
    await pullImages(images, [APP], pulling);
    await expect(removeImages(images, [APP, "x"], { labels: {}, signal })).rejects.toThrow("not kept: x");
    expect(await images.list({ labels: {}, signal })).toHaveLength(1);
  });
});

test("list shows images with their state, and why one is not here", async () => {
  const { images, pulling } = setup();
  await pullImages(images, [APP, NOWHERE], { ...pulling, waitMs: 0 });
  const text = imagesText(await images.list({ labels: {}, signal }), {});
  expect(text).toMatch(/r\.test\/app:1 +ready/);
  expect(text).toMatch(/r\.invalid\/app:1 +ImagePullBackOff/);
});
