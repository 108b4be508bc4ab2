import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readdir, readFile, readlink, rm, truncate, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { Destinations } from "../../../providers/local/images/destinations.ts";
import { HostImages, type HostImagesOptions } from "../../../providers/local/images/host-images.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import {
  freePort,
  missingForImages,
  type Packing,
  startRegistry,
  type TarEntry,
  type TestRegistry,
} from "../../support/registry.ts";

const missing = missingForImages();
if (missing !== undefined) console.warn(`images: left out, ${missing}`);

const file = (path: string, content: string): TarEntry => ({ path, content });
const directory = (path: string): TarEntry => ({ path, type: "directory", mode: 0o755 });

describe.skipIf(missing !== undefined)("images", () => {
  let registry: TestRegistry;
  let guarded: TestRegistry;
  let dir: string;
  let images: HostImages;
  const open = (options: Partial<HostImagesOptions> = {}): HostImages =>
    new HostImages({
      dir,
      clock: systemClock,
      logger: silentLogger,
      ...options,
      insecureRegistries: [registry.host, guarded.host, ...(options.insecureRegistries ?? [])],
    });
  const pull = (image: string, auth: { registry: string; username?: string; password?: string }[] = []) =>
    images.pull(image, { auth, tenant: "a", signal: AbortSignal.timeout(30_000) });
  const user = { name: "ann", password: "s3cret-word" };
  /** What a failed pull must not leave: image folders, names, scratch. */
  const leftovers = async () => [...(await readdir(join(dir, "images"))), ...(await readdir(join(dir, "tmp")))];

  beforeAll(async () => {
    registry = await startRegistry();
    guarded = await startRegistry({ user });
  });
  afterAll(async () => {
    await registry.stop();
    await guarded.stop();
  });
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "vmlet-images-"));
    images = open();
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  test("a pulled image is unpacked, described, and found afterwards", async () => {
    const digest = await registry.push("t/plain:1", {
      layers: [[directory("etc"), file("etc/motd", "hello")]],
      config: {
        Entrypoint: ["/init"],
        Cmd: ["-v"],
        Env: ["A=b"],
        User: "app",
        WorkingDir: "/srv",
        StopSignal: "SIGINT",
      },
    });
    const image = `${registry.host}/t/plain:1`;
    const pulled = await pull(image);
    expect(pulled).toMatchObject({
      imageId: `${registry.host}/t/plain@${digest}`,
      image,
      config: {
        entrypoint: ["/init"],
        cmd: ["-v"],
        env: ["A=b"],
        user: "app",
        workingDir: "/srv",
        stopSignal: "SIGINT",
      },
    });
    expect(await readFile(join(pulled.location, "etc/motd"), "utf8")).toBe("hello");
    expect(pulled.sizeBytes).toBeGreaterThan(0);
    expect(await images.find(image)).toEqual(pulled);
    expect(await open().find(image)).toEqual(pulled);
  });

  test("an image is found by its digest too", async () => {
    const digest = await registry.push("t/digest:1", { layers: [[file("a", "1")]] });
    const pulled = await pull(`${registry.host}/t/digest@${digest}`);
    expect(pulled.imageId).toBe(`${registry.host}/t/digest@${digest}`);
    expect(await images.find(`${registry.host}/t/digest@${digest}`)).toBeDefined();
    expect(await images.find(`${registry.host}/t/digest:1`)).toBeUndefined();
  });

  test("an upper layer hides and replaces files of a lower one", async () => {
    await registry.push("t/whiteout:1", {
      layers: [
        [directory("d"), file("d/gone", "x"), file("d/kept", "x"), directory("o"), file("o/below", "x")],
        [file("d/.wh.gone", ""), directory("o"), file("o/.wh..wh..opq", ""), file("o/above", "y")],
      ],
    });
    const { location } = await pull(`${registry.host}/t/whiteout:1`);
    expect(await readdir(join(location, "d"))).toEqual(["kept"]);
    expect(await readdir(join(location, "o"))).toEqual(["above"]);
  });

  test("a layer that two images of a repository share is fetched once", async () => {
    const base = [file("base", "shared between both")];
    await registry.push("t/first:1", { layers: [base, [file("one", "1")]] });
    await registry.push("t/first:2", { layers: [base, [file("two", "2")]] });
    await pull(`${registry.host}/t/first:1`);
    await pull(`${registry.host}/t/first:2`);
    const manifest = await fetch(`http://${registry.host}/v2/t/first/manifests/1`, {
      headers: { accept: "application/vnd.oci.image.manifest.v1+json" },
    });
    const { layers } = (await manifest.json()) as { layers: { digest: string }[] };
    expect(await registry.blobReads(layers[0]!.digest)).toBe(1);
  });

  test("concurrent pulls of one image share the download", async () => {
    await registry.push("t/shared:1", { layers: [[file("only", "once")]] });
    const results = await Promise.all(Array.from({ length: 5 }, () => pull(`${registry.host}/t/shared:1`)));
    expect(new Set(results.map((result) => result.location)).size).toBe(1);
    const manifest = await fetch(`http://${registry.host}/v2/t/shared/manifests/1`, {
      headers: { accept: "application/vnd.oci.image.manifest.v1+json" },
    });
    const { layers } = (await manifest.json()) as { layers: { digest: string }[] };
    expect(await registry.blobReads(layers[0]!.digest)).toBe(1);
  });

  test("a tag that moved means the new image after the next pull, and the old one stays whole", async () => {
    const image = `${registry.host}/t/moving:latest`;
    await registry.push("t/moving:latest", { layers: [[file("version", "1")]] });
    const before = await pull(image);
    await registry.push("t/moving:latest", { layers: [[file("version", "2")]] });
    expect((await images.find(image))?.imageId).toBe(before.imageId);
    const after = await pull(image);
    expect(await readFile(join(after.location, "version"), "utf8")).toBe("2");
    expect(await readFile(join(before.location, "version"), "utf8")).toBe("1");
  });

  test("an index gives this platform's image, and its digest is the image's id", async () => {
    const native = process.arch === "x64" ? "amd64" : process.arch;
    const digest = await registry.push("t/index:native", { layers: [[file("arch", native)]] });
    const index = await registry.pushIndex("t/index:1", [{ architecture: native, digest, size: 500 }]);
    const pulled = await pull(`${registry.host}/t/index:1`);
    expect(pulled.imageId).toBe(`${registry.host}/t/index@${index}`);
    expect(await readFile(join(pulled.location, "arch"), "utf8")).toBe(native);
  });

  test("an index without this platform says so", async () => {
    const digest = await registry.push("t/foreign:base", { layers: [[file("a", "1")]] });
    await registry.pushIndex("t/foreign:1", [{ architecture: "s390x", digest, size: 500 }]);
    await expect(pull(`${registry.host}/t/foreign:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("no match for platform linux/"),
    });
  });

  describe("private registries", () => {
    beforeAll(() => guarded.push("t/private:1", { layers: [[file("a", "1")]] }));
    const image = () => `${guarded.host}/t/private:1`;
    const credentials = () => [{ registry: guarded.host, username: user.name, password: user.password }];

    test("the machine's credentials open them", async () => {
      expect((await pull(image(), credentials())).image).toBe(image());
    });
    test("no credentials: refused, nothing left", async () => {
      await expect(pull(image())).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("access denied"),
      });
      expect(await leftovers()).toEqual([]);
    });
    test("wrong credentials: refused", async () => {
      await expect(
        pull(image(), [{ registry: guarded.host, username: user.name, password: "wrong" }]),
      ).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("access denied"),
      });
    });
    test("a second credential is tried when the first is refused", async () => {
      const wrong = { registry: `${guarded.host}/t/private`, username: user.name, password: "wrong" };
      expect((await pull(image(), [wrong, ...credentials()])).image).toBe(image());
    });
    test("whoever cannot show the credentials does not find the image that another machine pulled", async () => {
      await pull(image(), credentials());
      expect(await images.find(image(), [])).toBeUndefined();
      expect(await images.find(image(), credentials())).toBeDefined();
    });
    test("no password is in any file of the store", async () => {
      await pull(image(), credentials());
      const secrets = [user.password, Buffer.from(`${user.name}:${user.password}`).toString("base64")];
      for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile()) continue;
        const text = await readFile(join(entry.parentPath, entry.name), "latin1");
        expect(secrets.filter((secret) => text.includes(secret))).toEqual([]);
      }
    });
  });

  test("an unknown image is not found", async () => {
    await expect(pull(`${registry.host}/t/nothing:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("not found"),
    });
  });

  test("a registry that is down is unavailable, and works again later", async () => {
    const port = await freePort();
    const image = `127.0.0.1:${port}/t/late:1`;
    images = open({ insecureRegistries: [`127.0.0.1:${port}`] });
    await expect(pull(image)).rejects.toMatchObject({ reason: "RegistryUnavailable" });
    const late = await startRegistry({ port });
    try {
      await late.push("t/late:1", { layers: [[file("a", "1")]] });
      expect((await pull(image)).image).toBe(image);
    } finally {
      await late.stop();
    }
  });

  const damage = async (name: string, change: (path: string) => Promise<void>) => {
    await registry.push(name, { layers: [[file("data", name.repeat(2000))]] });
    const [repository, tag] = name.split(":") as [string, string];
    const manifest = await fetch(`http://${registry.host}/v2/${repository}/manifests/${tag}`, {
      headers: { accept: "application/vnd.oci.image.manifest.v1+json" },
    });
    const { layers } = (await manifest.json()) as { layers: { digest: string }[] };
    await change(registry.blobPath(layers[0]!.digest));
  };

  test("a layer that does not match its digest is refused, nothing left", async () => {
    await damage("t/corrupt:1", async (path) => {
      const content = await readFile(path);
      content[content.length >> 1]! ^= 0xff;
      await writeFile(path, content);
    });
    await expect(pull(`${registry.host}/t/corrupt:1`)).rejects.toMatchObject({ reason: "ErrImagePull" });
    expect(await leftovers()).toEqual([]);
  });

  test("a layer that is cut short is refused, nothing left", async () => {
    await damage("t/short:1", (path) => truncate(path, 20));
    await expect(pull(`${registry.host}/t/short:1`)).rejects.toMatchObject({
      reason: expect.stringMatching(/ErrImagePull|RegistryUnavailable/),
    });
    expect(await leftovers()).toEqual([]);
  });

  test("a cached layer that was damaged on disk fails one pull and is fetched anew by the next", async () => {
    const base = [file("base", "x".repeat(5000))];
    await registry.push("t/disk:1", { layers: [base] });
    await pull(`${registry.host}/t/disk:1`);
    for (const blob of await readdir(join(dir, "blobs/sha256"))) {
      const path = join(dir, "blobs/sha256", blob);
      const content = await readFile(path);
      if (content[0] === 0x1f)
        await writeFile(path, Buffer.concat([content.subarray(0, 10), Buffer.alloc(content.length - 10)]));
    }
    await registry.push("t/disk:2", { layers: [base, [file("more", "y")]] });
    await expect(pull(`${registry.host}/t/disk:2`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("unpack"),
    });
    expect((await pull(`${registry.host}/t/disk:2`)).image).toBe(`${registry.host}/t/disk:2`);
  });

  test("an image above the size limit is refused before its layers are fetched", async () => {
    images = open({ maxImageBytes: 1_000_000 });
    await registry.push("t/huge:1", { layers: [[file("a", "1")]] }, { declaredLayerSize: 2_000_000 });
    await expect(pull(`${registry.host}/t/huge:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("more than the 1000000"),
    });
    expect(await readdir(join(dir, "blobs/sha256"))).toEqual([]);
  });

  test("an image for which the disk has no room is refused before its layers are fetched", async () => {
    images = open({ diskUsage: async () => ({ totalBytes: 100e9, freeBytes: 1e9 }) });
    await registry.push("t/wide:1", { layers: [[file("a", "1")]] }, { declaredLayerSize: 900e6 });
    await expect(pull(`${registry.host}/t/wide:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringMatching(/no space left .*: 900000\d+ bytes are to be fetched, 1000000000 are free/),
    });
    expect(await readdir(join(dir, "blobs/sha256"))).toEqual([]);
  });

  test("layers that the repository has sent already need no room", async () => {
    let freeBytes = 1e9;
    images = open({ diskUsage: async () => ({ totalBytes: 100e9, freeBytes }) });
    const layer = [{ path: "noise", content: randomBytes(2_000_000) }];
    await registry.push("t/base:1", { layers: [layer] });
    await pull(`${registry.host}/t/base:1`);
    freeBytes = 257 * 1024 * 1024;
    await registry.push("t/base:2", { layers: [layer, [file("a", "1")]] });
    await pull(`${registry.host}/t/base:2`);
  });

  describe("from a registry that does not come to an end", () => {
    const announced = 3_000_000;
    let sent: number;
    let wasAsked: boolean;
    let endless: Server;
    let image: string;
    let insecureRegistries: string[];
    beforeEach(async () => {
      wasAsked = false;
      const config = JSON.stringify({ architecture: "amd64", os: "linux", rootfs: { type: "layers", diff_ids: [] } });
      const layer = `sha256:${"1".repeat(64)}`;
      const digestOfConfig = `sha256:${createHash("sha256").update(config).digest("hex")}`;
      const mediaType = "application/vnd.oci.image.manifest.v1+json";
      const manifest = JSON.stringify({
        schemaVersion: 2,
        mediaType,
        config: {
          mediaType: "application/vnd.oci.image.config.v1+json",
          digest: digestOfConfig,
          size: config.length,
        },
        layers: [{ mediaType: "application/vnd.oci.image.layer.v1.tar+gzip", digest: layer, size: announced }],
      });
      endless = createServer(({ url }, response) => {
        if (url!.includes("/manifests/")) response.setHeader("content-type", mediaType).end(manifest);
        else if (url!.endsWith(digestOfConfig)) response.end(config);
        else if (url!.endsWith(layer)) {
          wasAsked = true;
          response.write(gzipSync(randomBytes(sent)));
        } else response.end();
      }).listen(0, "127.0.0.1");
      await once(endless, "listening");
      insecureRegistries = [`127.0.0.1:${(endless.address() as AddressInfo).port}`];
      image = `${insecureRegistries[0]}/t/endless:1`;
      images = open({ insecureRegistries });
    });
    afterEach(() => {
      endless.closeAllConnections();
      endless.close();
    });

    test("a copy that exceeds what was announced is stopped, nothing left", async () => {
      sent = 2 * announced;
      await expect(pull(image)).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringMatching(/the registry sends more than the 3000\d+ bytes that it has announced/),
      });
      expect(await leftovers()).toEqual([]);
    });

    test("a copy that stands still is given up, nothing left", async () => {
      sent = 1_000_000;
      const clock = new VirtualClock();
      images = open({ clock, insecureRegistries });
      let isOver = false;
      const pulled = pull(image).finally(() => (isOver = true));
      const failed = expect(pulled).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("has sent nothing for 5 minutes"),
      });
      await expect.poll(() => wasAsked, { timeout: 10_000 }).toBe(true);
      while (!isOver) await clock.advance(10_000);
      await failed;
      expect(await leftovers()).toEqual([]);
    });

    test("a copy that leaves too little room is stopped, nothing left", async () => {
      sent = 1_000_000;
      images = open({
        insecureRegistries,
        diskUsage: async () => ({ totalBytes: 100e9, freeBytes: wasAsked ? 200e6 : 1e9 }),
      });
      await expect(pull(image)).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("no space left on this host's image disk"),
      });
      expect(await leftovers()).toEqual([]);
    });
  });

  test("a small layer that unpacks beyond the limit is stopped, nothing left", async () => {
    // Free space falls by a quarter of a limit at each look, as a bomb makes it fall; the tree is then measured for real.
    let free = 100e9;
    images = open({
      maxUnpackedBytes: 1_000_000,
      diskUsage: async () => ({ totalBytes: 100e9, freeBytes: (free -= 600_000) }),
    });
    await registry.push("t/bomb:1", {
      layers: Array.from({ length: 8 }, (_, i) => [{ path: `zeros${i}`, content: Buffer.alloc(60_000_000, i + 1) }]),
    });
    await expect(pull(`${registry.host}/t/bomb:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("unpacks to more than"),
    });
    expect(await leftovers()).toEqual([]);
  });

  test("a small layer that unpacks to more files than the limit is stopped, nothing left", async () => {
    images = open({ maxUnpackedFiles: 1000 });
    const empty = Array.from({ length: 1001 }, (_, i) => file(`f${i}`, ""));
    await registry.push("t/files:1", { layers: [empty] });
    await expect(pull(`${registry.host}/t/files:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("unpacks to more than the 1000 files"),
    });
    expect(await leftovers()).toEqual([]);
  });

  test("a layer of so many files that the disk runs out of inodes is stopped, nothing left", async () => {
    let free = 60_000;
    const inodes = () => ({ total: 1_000_000, free: (free -= 5_000) });
    images = open({ diskUsage: async () => ({ totalBytes: 100e9, freeBytes: 50e9, inodes: inodes() }) });
    const big = Array.from({ length: 4 }, (_, i) => [{ path: `b${i}`, content: randomBytes(20_000_000) }]);
    await registry.push("t/inodes:1", { layers: big });
    await expect(pull(`${registry.host}/t/inodes:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("no space left on this host's image disk"),
    });
    expect(await leftovers()).toEqual([]);
  });

  test("an address of this host is no registry's, unless the owner says so", async () => {
    const [link, first, second] = [`vt${randomBytes(4).toString("hex")}`, "198.18.77.1", "198.18.77.2"];
    const ip = (...args: string[]) => run("ip", args);
    await ip("link", "add", link, "type", "bridge");
    try {
      for (const address of [first, second]) await ip("address", "add", `${address}/29`, "dev", link);
      await ip("link", "set", link, "up");
      const options = { named: [], plain: [], refused: [] };
      expect(await new Destinations(options).mayConnect(first)).toBe(false);
      expect(await new Destinations(options).mayConnect(second)).toBe(false);
      expect(await new Destinations(options).mayConnect("198.18.77.3")).toBe(true);
      const named = new Destinations({ ...options, named: [`${second}:5000`] });
      await named.assertAllowed(new URL(`https://${second}:5000/`));
    } finally {
      await ip("link", "delete", link);
    }
  });

  test("a layer that is packed in zstd, and one that is not packed, are unpacked, even if they are there twice", async () => {
    const layers = [[file("a", "1")], [file("b", "2")], [file("a", "1")]];
    const packings: Packing[] = ["zstd", "none", "zstd"];
    await registry.push("t/packings:1", { layers }, { packings });
    const { location } = await pull(`${registry.host}/t/packings:1`);
    expect((await readdir(location)).toSorted()).toEqual(["a", "b"]);
  });

  test("an image of Docker's own media types is unpacked", async () => {
    await registry.push("t/docker:1", { layers: [[file("a", "1")]] }, { isDockers: true });
    const { location } = await pull(`${registry.host}/t/docker:1`);
    expect(await readdir(location)).toEqual(["a"]);
  });

  test.each<[string, TarEntry[]]>([
    ["a path that climbs", [file("../../escaped", "x")]],
    ["an absolute path", [file("/../escaped", "x")]],
    [
      "a write through a link to outside",
      [{ path: "out", type: "symlink", link: "/tmp" }, file("out/vmlet-escaped", "x")],
    ],
    ["a hard link to outside", [{ path: "stolen", type: "hardlink", link: "../../../../../../../../etc/passwd" }]],
  ])("a hostile layer stays inside the image: %s", async (title, layer) => {
    const name = `t/hostile-${title.replaceAll(" ", "-")}:1`;
    await registry.push(name, { layers: [layer] });
    const pulled = await pull(`${registry.host}/${name}`).catch(() => undefined);
    expect(existsSync("/tmp/vmlet-escaped")).toBe(false);
    expect(existsSync(join(dir, "escaped")) || existsSync(join(dir, "images/escaped")) || existsSync("/escaped")).toBe(
      false,
    );
    if (pulled !== undefined && existsSync(join(pulled.location, "stolen")))
      expect(await readFile(join(pulled.location, "stolen"), "utf8")).not.toContain("root:");
  });

  test("a link in an image keeps its target, whatever that is", async () => {
    await registry.push("t/link:1", { layers: [[{ path: "l", type: "symlink", link: "/etc/passwd" }]] });
    const { location } = await pull(`${registry.host}/t/link:1`);
    expect(await readlink(join(location, "l"))).toBe("/etc/passwd");
  });

  test("a pull that is called off stops and leaves nothing", async () => {
    await registry.push("t/aborted:1", { layers: [[{ path: "big", content: Buffer.alloc(200_000_000, 1) }]] });
    const abort = new AbortController();
    const pulling = images.pull(`${registry.host}/t/aborted:1`, { auth: [], tenant: "a", signal: abort.signal });
    abort.abort(new Error("called off"));
    await expect(pulling).rejects.toThrow("called off");
    await expect.poll(leftovers).toEqual([]);
  });

  describe("garbage collection", () => {
    let used: number;
    const gcOptions = {
      gc: { highPercent: 80, lowPercent: 50, minAgeMs: 0 },
      diskUsage: async () => ({ totalBytes: 100e9, freeBytes: 100e9 - used }),
    };
    const names = async () => {
      const present = [];
      for (const tag of ["1", "2"])
        if ((await images.find(`${registry.host}/t/gc:${tag}`)) !== undefined) present.push(tag);
      return present;
    };
    beforeEach(async () => {
      used = 10e9;
      images = open(gcOptions);
      await registry.push("t/gc:1", { layers: [[file("a", "1")]] });
      await registry.push("t/gc:2", { layers: [[file("a", "2")]] });
      await pull(`${registry.host}/t/gc:1`);
      await pull(`${registry.host}/t/gc:2`);
    });

    test("nothing goes below the high threshold", async () => {
      images.retain(new Set());
      used = 79e9;
      expect(await images.collect()).toEqual([]);
    });
    test("nothing goes before the machines have said what they need", async () => {
      used = 90e9;
      expect(await images.collect()).toEqual([]);
    });
    test("above it, images that no machine needs go, with their blobs", async () => {
      images.retain(new Set([(await images.find(`${registry.host}/t/gc:2`))!.location]));
      used = 90e9;
      expect(await images.collect()).toHaveLength(1);
      expect(await names()).toEqual(["2"]);
      expect(await readdir(join(dir, "blobs/sha256"))).toHaveLength(3);
    });
    test("it may be asked for twice at once", async () => {
      images.retain(new Set());
      used = 90e9;
      const [first, second] = await Promise.all([images.collect(), images.collect()]);
      expect([...first, ...second]).toHaveLength(2);
    });

    test("they go below it too when a pull needs their room", async () => {
      images = open({
        ...gcOptions,
        diskUsage: async () => ({ totalBytes: 3e9, freeBytes: (await names()).length === 2 ? 1e9 : 2e9 }),
      });
      images.retain(new Set());
      await registry.push("t/wide:2", { layers: [[file("a", "wide")]] }, { declaredLayerSize: 1e9 });
      await expect(pull(`${registry.host}/t/wide:2`)).rejects.not.toThrow("no space left");
      expect(await names()).toHaveLength(1);
    });

    test("the least recently used goes first, and no more than needed", async () => {
      images.retain(new Set());
      // Uses are known to the millisecond.
      const pulledAt = systemClock.now();
      await vi.waitUntil(() => systemClock.now() > pulledAt, { interval: 1 });
      await images.find(`${registry.host}/t/gc:1`);
      let looks = 0;
      images = open({
        ...gcOptions,
        diskUsage: async () => ({ totalBytes: 100e9, freeBytes: ++looks <= 2 ? 10e9 : 60e9 }),
      });
      images.retain(new Set());
      await images.collect();
      expect(await names()).toEqual(["1"]);
    });
  });
});
