/** What a containerd of our own pulls, from where, for whom and how much of it; the rules are those of every engine. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { CriImages } from "../../../providers/local/engines/cri/images.ts";
import { OwnContainerd } from "../../../providers/local/engines/cri/own-containerd.ts";
import type { PullLimits } from "../../../providers/local/images/pull-limits.ts";
import type { RegistryAuth } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { type LyingRegistry, MANIFEST_TYPE, startLyingRegistry } from "../../support/lying-registry.ts";
import { makeTar, missingForImages, startRegistry, type TarEntry, type TestRegistry } from "../../support/registry.ts";

const missing = [(await missingForContainerd()) ?? [], missingForImages() ?? []].flat();
const user = { name: "ann", password: "s3cret-word" };
const file = (path: string, content: string): TarEntry => ({ path, content });

interface Blob {
  digest: string;
  size: number;
}

if (missing.length > 0) leaveOut("pulls of engine cri", missing);
else
  describe("pulls of a containerd of our own", () => {
    let registry: TestRegistry;
    let guarded: TestRegistry;
    let liar: LyingRegistry;
    let dir: string;
    let own: OwnContainerd;
    let client: CriClient;
    const open = (limits: PullLimits = {}): CriImages => {
      const images = new CriImages({
        dir: mkdtempSync(join(dir, "images-")),
        client,
        clock: systemClock,
        logger: silentLogger,
        imageDir: () => Promise.resolve(dir),
        own: {
          insecureRegistries: [registry.host, guarded.host, liar.host],
          announce: (url) => own.pullFrom(url),
          ...limits,
        },
      });
      onTestFinished(() => images.close());
      return images;
    };
    const pull = (images: CriImages, image: string, auth: RegistryAuth[] = []) =>
      images.pull(image, { auth, tenant: "a", signal: AbortSignal.timeout(30_000) });
    const credentials = () => [{ registry: guarded.host, username: user.name, password: user.password }];
    const has = async (id: string) =>
      (await client.images.imageStatus({ image: { image: id } }, client.within())).image !== undefined;
    /** What a registry has for the image, as it says it. */
    const parts = async (name: string, from = registry) => {
      const authorization = `Basic ${Buffer.from(`${user.name}:${user.password}`).toString("base64")}`;
      const [path, tag] = name.split(":") as [string, string];
      const reply = await fetch(`http://${from.host}/v2/${path}/manifests/${tag}`, {
        headers: { authorization, accept: MANIFEST_TYPE },
      });
      const text = Buffer.from(await reply.arrayBuffer());
      const { config, layers } = JSON.parse(text.toString()) as { config: Blob; layers: Blob[] };
      return { text, config, layers };
    };

    beforeAll(async () => {
      dir = mkdtempSync(join(tmpdir(), "vmlet-cri-"));
      const { bridge, cidr } = testNetwork("");
      const place = { bridge: bridge!, range: () => ({ cidr: cidr!, gateway: cidr!.replace("0/24", "1") }) };
      own = new OwnContainerd({ dir: join(dir, "cri"), clock: systemClock, ...place });
      await own.start(AbortSignal.timeout(60_000));
      client = new CriClient(own.socket);
      registry = await startRegistry();
      guarded = await startRegistry({ user });
      liar = await startLyingRegistry();
    });
    afterAll(async () => {
      await Promise.all([registry.stop(), guarded.stop(), liar.stop()]);
      client.close();
      await own.remove();
      rmSync(dir, { recursive: true, force: true });
    });

    test("an image is had whole, by its tag, by its digest, and found afterwards", async () => {
      const digest = await registry.push("t/plain:1", {
        layers: [[file("a", "1")], [file("b", "2")]],
        config: { Env: ["A=b"] },
      });
      const images = open();
      const pulled = await pull(images, `${registry.host}/t/plain:1`);
      expect(pulled).toMatchObject({ imageId: `${registry.host}/t/plain@${digest}`, config: { env: ["A=b"] } });
      expect((await pull(images, `${registry.host}/t/plain@${digest}`)).location).toBe(pulled.location);
      expect((await images.find(`${registry.host}/t/plain:1`))?.location).toBe(pulled.location);
    });

    test.each(["gzip", "zstd", "none"] as const)("a layer that is packed by %s is taken", async (packing) => {
      await registry.push(`t/packed-${packing}:1`, { layers: [[file(packing, "x")]] }, { packings: [packing] });
      expect(await has((await pull(open(), `${registry.host}/t/packed-${packing}:1`)).location)).toBe(true);
    });

    test("a registry at an address of this host is not connected to, unless its owner has named it", async () => {
      await registry.push("t/here:1", { layers: [[file("here", "1")]] });
      const images = open({ insecureRegistries: [] });
      for (const host of [registry.host, registry.host.replace("127.0.0.1", "localhost"), "169.254.169.254"])
        await expect(pull(images, `${host}/t/here:1`)).rejects.toMatchObject({
          reason: "ErrImagePull",
          message: expect.stringContaining("images are not pulled from"),
        });
      expect(await registry.blobReads((await parts("t/here:1")).layers[0]!.digest)).toBe(0);
    });

    test("credentials open what is theirs, and containerd is told none of them", async () => {
      await guarded.push("t/private:1", { layers: [[file("private", "1")]] });
      const image = `${guarded.host}/t/private:1`;
      const images = open();
      await expect(pull(images, image)).rejects.toMatchObject({ message: expect.stringContaining("access denied") });
      const wrong = { registry: guarded.host, username: user.name, password: "wrong" };
      expect((await pull(images, image, [wrong, ...credentials()])).image).toBe(image);
      expect(await images.find(image, [])).toBeUndefined();
      expect(await images.find(image, credentials())).toBeDefined();
      for (const entry of readdirSync(dir, { recursive: true, withFileTypes: true }))
        if (entry.isFile())
          expect(readFileSync(join(entry.parentPath, entry.name), "latin1")).not.toContain(user.password);
    });

    test("who is no pull of this backend's is given nothing by the registry that containerd asks", async () => {
      await guarded.push("t/guarded:1", { layers: [[file("guarded", "1")]] });
      const { digest } = (await parts("t/guarded:1", guarded)).layers[0]!;
      await pull(open(), `${guarded.host}/t/guarded:1`, credentials());
      const toml = readFileSync(join(dir, "cri/registries/_default/hosts.toml"), "utf8");
      const [, url] = /server = "(.*)"/.exec(toml)!;
      const reply = await fetch(`${url}/v2/t/guarded/blobs/${digest}?ns=${guarded.host}`);
      expect(reply.status).toBe(401);
    });

    test("pulls go by the proxy that this host's environment names", async () => {
      const asked: string[] = [];
      const proxy = createServer((_request, reply) => reply.writeHead(404).end());
      proxy.on("connect", ({ url }, socket) => {
        asked.push(url!);
        socket.end("HTTP/1.1 502 Bad Gateway\r\n\r\n");
      });
      await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
      onTestFinished(() => void proxy.close());
      vi.stubEnv("HTTPS_PROXY", `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`);
      onTestFinished(() => void vi.unstubAllEnvs());
      await expect(pull(open(), "far.test/t:1")).rejects.toThrow("far.test");
      expect(new Set(asked)).toEqual(new Set(["far.test:443"]));
    });

    test("an image above the size limit is refused before its layers are fetched", async () => {
      await registry.push("t/large:1", { layers: [[file("large", "x".repeat(5000))]] });
      await expect(pull(open({ maxImageBytes: 50 }), `${registry.host}/t/large:1`)).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("more than the 50 that this host accepts"),
      });
      expect(await registry.blobReads((await parts("t/large:1")).layers[0]!.digest)).toBe(0);
    });

    test.each([
      ["bytes", { maxUnpackedBytes: 1_000_000 }, [{ path: "zeros", content: Buffer.alloc(8_000_000) }]],
      ["files", { maxUnpackedFiles: 100 }, Array.from({ length: 101 }, (_, index) => file(`f${index}`, ""))],
    ])("a small layer that unpacks to more %s than the limit is stopped", async (what, limits, entries) => {
      await registry.push(`t/bomb-${what}:1`, { layers: [entries] });
      await expect(pull(open(limits), `${registry.host}/t/bomb-${what}:1`)).rejects.toMatchObject({
        reason: "ErrImagePull",
        message: expect.stringContaining("unpacks to more than"),
      });
      expect(await has((await parts(`t/bomb-${what}:1`)).config.digest)).toBe(false);
    });

    test("a layer that does not match its digest is refused, and taken when it does again", async () => {
      await registry.push("t/corrupt:1", { layers: [[file("corrupt", "x".repeat(5000))]] });
      const path = registry.blobPath((await parts("t/corrupt:1")).layers[0]!.digest);
      const whole = await readFile(path);
      const images = open();
      await writeFile(path, gzipSync(makeTar([file("another", "y")])));
      await expect(pull(images, `${registry.host}/t/corrupt:1`)).rejects.toMatchObject({ reason: "ErrImagePull" });
      await writeFile(path, whole);
      expect(await has((await pull(images, `${registry.host}/t/corrupt:1`)).location)).toBe(true);
    });

    test("what a repository has sent is not asked for twice, not even for all who wait for it at once", async () => {
      await registry.push("t/once:1", { layers: [[file("once", "1")]] });
      const images = open();
      const pulls = Array.from({ length: 4 }, () => pull(images, `${registry.host}/t/once:1`));
      expect(new Set((await Promise.all(pulls)).map(({ location }) => location)).size).toBe(1);
      await pull(images, `${registry.host}/t/once:1`);
      expect(await registry.blobReads((await parts("t/once:1")).layers[0]!.digest)).toBe(1);
    });

    describe("an image that another tenant has pulled", () => {
      let images: CriImages;
      const steal = async (manifest: Buffer | object, tag: string) => {
        liar.manifest("evil/x", tag, manifest);
        await expect(pull(images, `${liar.host}/evil/x:${tag}`)).rejects.toMatchObject({
          reason: expect.stringMatching(/^(?:ErrImagePull|RegistryUnavailable)$/),
        });
        expect(await images.find(`${liar.host}/evil/x:${tag}`, [])).toBeUndefined();
      };
      const privates = async () => {
        images = open();
        await guarded.push("t/theirs:1", { layers: [[file("theirs", "secret")]] });
        await pull(images, `${guarded.host}/t/theirs:1`, credentials());
        return await parts("t/theirs:1", guarded);
      };

      test("is not had by who knows its manifest but has none of its blobs", async () => {
        const { text } = await privates();
        await steal(text, "none");
      });

      test("is not had by who knows its manifest and configuration but has no layer", async () => {
        const { text, config } = await privates();
        liar.blob("evil/x", await blob(config));
        await steal(text, "config");
      });

      test("is not had by who names a layer of his own in place of what it unpacks to", async () => {
        const { config } = await privates();
        const mine = liar.blob("evil/x", gzipSync(makeTar([file("mine", "1")])));
        const theirs = liar.blob("evil/x", await blob(config));
        await steal({ schemaVersion: 2, mediaType: MANIFEST_TYPE, config: theirs, layers: [mine] }, "diff");
      });

      const blob = async ({ digest }: Blob) => await readFile(guarded.blobPath(digest));
    });
  });
