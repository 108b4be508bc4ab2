import { describe, expect, test } from "vitest";
import { ContainerError, type ImageStore, type PreparedImage } from "../../../providers/local/engine.ts";
import { pullPolicy } from "../../../providers/local/machine/image-pull.ts";
import { main, World } from "./world.ts";

const image: PreparedImage = {
  imageId: "r/i@sha256:1",
  image: "r/i:1",
  config: { stopSignal: "SIGQUIT" },
  location: "/x",
};

class Images implements ImageStore {
  present = false;
  failure: Error | undefined;
  hangs = false;
  pulls = 0;
  auth: unknown;

  find() {
    return Promise.resolve(this.present ? { ...image, sizeBytes: 42 } : undefined);
  }

  retained: ReadonlySet<string> = new Set();

  retain(locations: ReadonlySet<string>) {
    this.retained = locations;
  }

  /** Images that were asked for. */
  readonly pulled: string[] = [];
  /** Pulls that were given up. */
  given = 0;
  /** Ends a pull that hangs, as one that has succeeded. */
  arrive = () => {};

  pull(name: string, options: { auth: readonly unknown[]; signal: AbortSignal }) {
    this.pulls++;
    this.pulled.push(name);
    this.auth = options.auth;
    if (this.hangs)
      return new Promise<typeof image & { sizeBytes: number }>((resolve, reject) => {
        this.arrive = () => resolve({ ...image, sizeBytes: 42 });
        options.signal.addEventListener("abort", () => {
          this.given++;
          reject(new Error("aborted"));
        });
      });
    return this.failure === undefined ? Promise.resolve({ ...image, sizeBytes: 42 }) : Promise.reject(this.failure);
  }
}

async function withImages(setUp: (images: Images) => void, container: Parameters<typeof main>[1] = {}) {
  const images = new Images();
  setUp(images);
  const world = await World.create((fresh) => (fresh.images = images));
  await world.create({ containers: [main("a", container)], registry_auth: [{ registry: "r", username: "u" }] });
  return { world, images };
}

test.each([
  ["busybox", "always"],
  ["busybox:latest", "always"],
  ["busybox:1.36", "if_not_present"],
  ["localhost:5000/busybox", "always"],
  ["busybox@sha256:abc", "if_not_present"],
])("image %s without a policy is pulled %s", (name, policy) => {
  expect(pullPolicy({ image: name })).toBe(policy);
});

test("a pulled image is told, shown in the status, and its stop signal is used", async () => {
  const { world } = await withImages(() => {}, { image: "i:1" });
  expect(await world.container("a")).toMatchObject({ state: "running", image: "r/i:1", image_id: "r/i@sha256:1" });
  expect((await world.notices()).slice(0, 2)).toEqual([
    'Pulling: Pulling image "i:1"',
    'Pulled: Successfully pulled image "i:1" in 0.000s (0.000s including waiting). Image size: 42 bytes.',
  ]);
  await world.stop(30);
  expect(world.instance("a").signals[0]!.signal).toBe("SIGQUIT");
});

describe("while the sandbox is made", () => {
  async function opening(setUp: (images: Images) => void = () => {}, spec: object = {}) {
    const [images, open] = [new Images(), Promise.withResolvers<void>()];
    setUp(images);
    const world = await World.create((fresh) => {
      fresh.images = images;
      fresh.opening = open.promise;
    });
    await world.create({ containers: [main("a", { image: "a:1" }), main("b", { image: "b:1" })], ...spec });
    const opened = async () => {
      open.resolve();
      await world.advance(0);
    };
    return { world, images, opened };
  }

  test("the image of the container that comes first is pulled, once", async () => {
    const { world, images, opened } = await opening();
    expect([images.pulled, (await world.machine()).state]).toEqual([["a:1"], "creating"]);
    await opened();
    expect([images.pulled, (await world.machine()).state]).toEqual([["a:1", "b:1"], "running"]);
  });

  test("that is the first init container's, where there is one", async () => {
    const { images, opened } = await opening(() => {}, { init_containers: [main("i", { image: "i:1" })] });
    expect(images.pulled).toEqual(["i:1"]);
    await opened();
  });

  test("it is pulled once, however often the sandbox cannot be made", async () => {
    const { world, images, opened } = await opening();
    world.openErrors = [new Error("no address"), new Error("no address")];
    await opened();
    await world.advance(120_000);
    expect([images.pulled, (await world.machine()).state]).toEqual([["a:1", "b:1"], "running"]);
  });

  test("a pull that fails is the container's failure when it would start, and counts once", async () => {
    const { world, images, opened } = await opening((store) => (store.failure = new Error("no route")));
    expect(await world.container("a")).toMatchObject({ reason: "ContainerCreating" });
    await opened();
    expect([images.pulled, await world.container("a")]).toMatchObject([["a:1", "b:1"], { reason: "ErrImagePull" }]);
    images.failure = undefined;
    await world.advance(11_000);
    expect([images.pulled, (await world.container("a")).state]).toEqual([["a:1", "b:1", "a:1", "b:1"], "running"]);
  });

  test("a pull is given up with the machine", async () => {
    const { world, images, opened } = await opening((store) => (store.hangs = true));
    await world.stop(0);
    await opened();
    expect([(await world.machine()).state, images.pulls]).toEqual(["stopped", 1]);
    expect(images.given).toBe(1);
  });
});

test("the machine's registry credentials are passed to the pull", async () => {
  const { images } = await withImages(() => {});
  expect(images.auth).toEqual([{ registry: "r", username: "u" }]);
});

test("an image that is present is not pulled under if_not_present", async () => {
  const { world, images } = await withImages((store) => (store.present = true), { pull_policy: "if_not_present" });
  expect(images.pulls).toBe(0);
  expect(await world.notices()).toContain(
    'Pulled: Container image "i" already present on machine and can be accessed by the pod',
  );
});

test("a missing image under policy never waits with ErrImageNeverPull", async () => {
  const { world, images } = await withImages(() => {}, { pull_policy: "never" });
  expect(images.pulls).toBe(0);
  expect(await world.container("a")).toMatchObject({
    reason: "ErrImageNeverPull",
    message: 'Container image "i" is not present with pull policy of Never',
  });
});

test("a failed pull shows ErrImagePull, then ImagePullBackOff, with kubelet's events", async () => {
  const { world } = await withImages((store) => (store.failure = new ContainerError("ErrImagePull", "not found")));
  expect(await world.container("a")).toMatchObject({ state: "waiting", reason: "ErrImagePull", message: "not found" });
  await world.advance(2_000);
  expect(await world.container("a")).toMatchObject({
    reason: "ImagePullBackOff",
    message: 'Back-off pulling image "i": ErrImagePull: not found',
  });
  expect(await world.notices()).toEqual([
    'Pulling: Pulling image "i"',
    'Failed: Failed to pull image "i": not found',
    "Failed: Error: ErrImagePull",
    'BackOff: Back-off pulling image "i"',
    "Failed: Error: ImagePullBackOff",
  ]);
});

test("failed pulls are repeated after 10, 20, 40 seconds", async () => {
  const { world, images } = await withImages(
    (store) => (store.failure = new ContainerError("ErrImagePull", "not found")),
  );
  const counts: number[] = [];
  for (const wait of [9_999, 1, 19_999, 1, 39_999, 1]) {
    await world.advance(wait);
    counts.push(images.pulls);
  }
  expect(counts).toEqual([1, 2, 2, 3, 3, 4]);
});

test("a pull that succeeds at last starts the container without counting a restart", async () => {
  const { world, images } = await withImages(
    (store) => (store.failure = new ContainerError("ErrImagePull", "not found")),
  );
  images.failure = undefined;
  await world.advance(10_000);
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
});

test("a corrected image is pulled at once, without waiting for the back-off", async () => {
  const { world, images } = await withImages(
    (store) => (store.failure = new ContainerError("ErrImagePull", "not found")),
  );
  images.failure = undefined;
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "better" }] }, { signal: world.signal });
  await world.advance(0);
  expect((await world.container("a")).state).toBe("running");
});

test("an image that is corrected while the wrong one is being pulled is the one that runs", async () => {
  const { world, images } = await withImages((store) => (store.hangs = true));
  images.hangs = false;
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "better" }] }, { signal: world.signal });
  images.arrive();
  await world.advance(0);
  expect(world.instances.map(({ launch }) => launch.spec.image)).toEqual(["better"]);
  expect(images.pulled).toEqual(["i", "better"]);
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
});

test("a stop does not wait for a pull", async () => {
  const { world } = await withImages((store) => (store.hangs = true));
  await world.stop(30);
  expect((await world.machine()).state).toBe("stopped");
});

test("the images of machines are retained until the machine is deleted", async () => {
  const { world, images } = await withImages(() => {});
  expect([...images.retained]).toEqual([image.location]);
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect([...images.retained]).toEqual([]);
});

test("a new backend retains the images of its machines before it does anything with them", async () => {
  const { world, images } = await withImages(() => {});
  const calls: { recovered: number; locations: string[] }[] = [];
  images.retain = (locations) => void calls.push({ recovered: world.recovered, locations: [...locations] });
  await world.restart();
  expect(world.recovered).toBe(1);
  expect(calls[0]).toEqual({ recovered: 0, locations: [image.location] });
});

test("an image that is kept ready is retained beside those of machines, and by the next backend before anything else", async () => {
  const images = new Images();
  const world = await World.create((fresh) => (fresh.images = images));
  await world.provider.images!.create("app", { image: "app", labels: {} }, { signal: world.signal });
  await world.advance(0);
  expect([...images.retained]).toEqual([image.location]);
  images.retained = new Set();
  images.present = true;
  await world.restart();
  expect([...images.retained]).toEqual([image.location]);
});

test("a container's image is retained while that of its volume is still being pulled", async () => {
  const images = new Images();
  images.present = true;
  images.hangs = true;
  const world = await World.create((fresh) => (fresh.images = images));
  await world.create({
    containers: [main("a", { image: "i:1", mounts: [{ volume: "v", path: "/v" }] })],
    volumes: [{ name: "v", type: "image", image: "data", pull_policy: "always" }],
  });
  expect(images.pulled).toEqual(["data"]);
  expect([...images.retained]).toEqual([image.location]);
});

const CREDENTIALS = [{ registry: "r", username: "u" }];

test("a backend that restarts in the middle of a back-off pulls at once when it is given the credentials again", async () => {
  const images = new Images();
  images.failure = new ContainerError("ErrImagePull", "unauthorized");
  const world = await World.create((fresh) => (fresh.images = images));
  await world.create({ registry_auth: CREDENTIALS, registry_auth_version: "pull@7" });
  expect((await world.machine()).registry_auth_version).toBe("pull@7");
  await world.advance(2_000);

  await world.restart();
  expect((await world.machine()).registry_auth_version).toBeUndefined();
  images.failure = undefined;
  await world.provider.updatePod(
    "m1",
    { registry_auth: CREDENTIALS, registry_auth_version: "pull@7" },
    { signal: world.signal },
  );
  await world.advance(0);
  expect(images.auth).toEqual(CREDENTIALS);
  expect(await world.container("a")).toMatchObject({ state: "running" });
  expect((await world.machine()).registry_auth_version).toBe("pull@7");
});

test("other credentials than those that failed wait for the end of the back-off", async () => {
  const { world, images } = await withImages((store) => (store.failure = new ContainerError("ErrImagePull", "no")));
  const next = [{ registry: "r", username: "other" }];
  await world.provider.updatePod("m1", { registry_auth: next }, { signal: world.signal });
  await world.advance(9_000);
  expect(images.pulls).toBe(1);
  images.failure = undefined;
  await world.advance(1_000);
  expect(images.auth).toEqual(next);
  expect(await world.container("a")).toMatchObject({ state: "running" });
});
