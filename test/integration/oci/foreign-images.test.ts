/** Images of a registry that lies, and of names that are not theirs who pull them: what is here is no right to it. */
import { createHash } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { gunzipSync } from "node:zlib";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { HostImages } from "../../../providers/local/images/host-images.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { INDEX_TYPE, MANIFEST_TYPE, startLyingRegistry, type LyingRegistry } from "../../support/lying-registry.ts";
import { freePort, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";

const missing = missingForImages();
if (missing !== undefined) console.warn(`foreign images: left out, ${missing}`);

const SECRET = "the other tenant's";
const user = { name: "ann", password: "s3cret-word" };
const nativeArchitecture = process.arch === "x64" ? "amd64" : process.arch;

describe.skipIf(missing !== undefined)("an image that another tenant has pulled", () => {
  let guarded: TestRegistry;
  let liar: LyingRegistry;
  let dir: string;
  let images: HostImages;
  let digest: string;
  let manifest: { config: { digest: string; size: number }; layers: { digest: string; size: number }[] };
  let manifestText: Buffer;
  const credentials = () => [{ registry: guarded.host, username: user.name, password: user.password }];
  const pull = (image: string, auth: ReturnType<typeof credentials> = []) =>
    images.pull(image, { auth, tenant: "a", signal: AbortSignal.timeout(30_000) });
  const refused = { reason: expect.stringMatching(/^(?:ErrImagePull|RegistryUnavailable)$/) };
  const read = async (path: string) => {
    const authorization = `Basic ${Buffer.from(`${user.name}:${user.password}`).toString("base64")}`;
    const reply = await fetch(`http://${guarded.host}/v2/t/private/${path}`, {
      headers: { authorization, accept: MANIFEST_TYPE },
    });
    return Buffer.from(await reply.arrayBuffer());
  };

  beforeAll(async () => {
    guarded = await startRegistry({ user });
    digest = await guarded.push("t/private:1", {
      layers: [[{ path: "secret", content: SECRET }]],
      config: { Env: [`TOKEN=${SECRET}`] },
    });
    manifestText = await read("manifests/1");
    manifest = JSON.parse(manifestText.toString()) as typeof manifest;
  });
  afterAll(() => guarded.stop());
  beforeEach(async () => {
    liar = await startLyingRegistry();
    dir = await mkdtemp(join(tmpdir(), "vmlet-images-"));
    images = new HostImages({
      dir,
      clock: systemClock,
      logger: silentLogger,
      insecureRegistries: [guarded.host, liar.host],
    });
    await pull(`${guarded.host}/t/private:1`, credentials());
  });
  afterEach(async () => {
    await liar.stop();
    await rm(dir, { recursive: true, force: true });
  });
  const ownConfig = () => liar.blob("evil/x", Buffer.from('{"architecture":"amd64","os":"linux","config":{}}'));

  test("is not had by its digest from a registry that answers something else", async () => {
    liar.manifest("evil/x", digest, { schemaVersion: 2, mediaType: MANIFEST_TYPE, config: ownConfig(), layers: [] });
    await expect(pull(`${liar.host}/evil/x@${digest}`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining(`does not match its digest ${digest}`),
    });
  });

  test("is not had through an index that names it", async () => {
    liar.manifest("evil/x", digest, { schemaVersion: 2, mediaType: MANIFEST_TYPE, config: ownConfig(), layers: [] });
    const platform = { os: "linux", architecture: nativeArchitecture };
    const manifests = [{ mediaType: MANIFEST_TYPE, digest, size: 500, platform }];
    liar.manifest("evil/x", "latest", { schemaVersion: 2, mediaType: INDEX_TYPE, manifests }, INDEX_TYPE);
    await expect(pull(`${liar.host}/evil/x:latest`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining(`does not match its digest ${digest}`),
    });
  });

  test("is not had by who knows its manifest but has none of its blobs", async () => {
    liar.manifest("evil/x", "latest", manifestText);
    await expect(pull(`${liar.host}/evil/x:latest`)).rejects.toMatchObject(refused);
    await expect(pull(`${liar.host}/evil/x@${digest}`)).rejects.toMatchObject(refused);
  });

  test.each(["its layer", "its configuration"])("does not lend %s to a manifest that names it", async (part) => {
    // Who knows all of the rest: what is in the layer, or the layer itself.
    const layer = manifest.layers[0]!;
    const content = await read(`blobs/${layer.digest}`);
    const diff_ids = [`sha256:${createHash("sha256").update(gunzipSync(content)).digest("hex")}`];
    const own = { architecture: nativeArchitecture, os: "linux", config: {}, rootfs: { type: "layers", diff_ids } };
    const config = part === "its layer" ? liar.blob("evil/x", Buffer.from(JSON.stringify(own))) : manifest.config;
    if (part !== "its layer") liar.blob("evil/x", content);
    liar.manifest("evil/x", "latest", {
      schemaVersion: 2,
      mediaType: MANIFEST_TYPE,
      config: { mediaType: "application/vnd.oci.image.config.v1+json", ...config },
      layers: [layer],
    });
    await expect(pull(`${liar.host}/evil/x:latest`)).rejects.toMatchObject(refused);
    expect(liar.requests).toContain(
      `GET /v2/evil/x/blobs/${part === "its layer" ? layer.digest : manifest.config.digest}`,
    );
  });

  test("is found by nobody under a name that it was not pulled by", async () => {
    await pull(`${liar.host}/evil/x@${digest}`).catch(() => undefined);
    expect(await images.find(`${liar.host}/evil/x@${digest}`, [])).toBeUndefined();
    expect(await images.find(`${guarded.host}/t/private@${digest}`, [])).toBeUndefined();
  });

  test("is given to a repository that really has it, and its bytes are kept once", async () => {
    liar.manifest("t/copy", "1", manifestText);
    const blobs = [manifest.config, ...manifest.layers].map((entry) => entry.digest);
    for (const blob of blobs) liar.blob("t/copy", await read(`blobs/${blob}`));
    const pulled = await pull(`${liar.host}/t/copy:1`);
    expect(await readFile(join(pulled.location, "secret"), "utf8")).toBe(SECRET);
    expect(pulled.imageId).toBe(`${liar.host}/t/copy@${digest}`);
    for (const blob of blobs) expect(liar.requests).toContain(`GET /v2/t/copy/blobs/${blob}`);
    expect(await readdir(join(dir, "images"))).toHaveLength(1);
    expect(await readdir(join(dir, "blobs/sha256"))).toHaveLength(3);
    // From then on it is that repository's, too.
    liar.requests.length = 0;
    await pull(`${liar.host}/t/copy:1`);
    expect(liar.requests.filter((request) => request.includes("/blobs/"))).toEqual([]);
  });

  test("two repositories that send the same image at once both have it", async () => {
    await rm(dir, { recursive: true });
    images = new HostImages({ dir, clock: systemClock, logger: silentLogger, insecureRegistries: [liar.host] });
    const names = ["t/one", "t/two"];
    for (const name of names) {
      liar.manifest(name, "1", manifestText);
      for (const entry of [manifest.config, ...manifest.layers]) liar.blob(name, await read(`blobs/${entry.digest}`));
    }
    const pulled = await Promise.all(names.map((name) => pull(`${liar.host}/${name}:1`)));
    expect(new Set(pulled.map(({ location }) => location)).size).toBe(1);
    expect((await stat(join(pulled[0]!.location, "secret"))).size).toBe(SECRET.length);
    liar.requests.length = 0;
    for (const name of names) await pull(`${liar.host}/${name}:1`);
    expect(liar.requests.filter((request) => request.includes("/blobs/"))).toEqual([]);
    expect(await readdir(join(dir, "tmp"))).toEqual([]);
  });

  test("a signed address that a registry leads to is in no message", async () => {
    liar.manifest("t/signed", "1", manifestText);
    const port = await freePort();
    const nowhere = `http://127.0.0.1:${port}/blob`;
    images = new HostImages({
      dir,
      clock: systemClock,
      logger: silentLogger,
      insecureRegistries: [liar.host, `127.0.0.1:${port}`],
    });
    for (const { digest: blob } of [manifest.config, ...manifest.layers])
      liar.answer(`/v2/t/signed/blobs/${blob}`, (_request, response) =>
        response.writeHead(307, { location: `${nowhere}?sig=s1gnature&se=2099` }).end(),
      );
    const error = await pull(`${liar.host}/t/signed:1`).catch((thrown: unknown) => thrown);
    expect(inspect(error, { depth: 10 })).toContain(`${nowhere}?REDACTED`);
    expect(inspect(error, { depth: 10 })).not.toContain("s1gnature");
  });
});
