/**
 * A registry on loopback (Debian's docker-registry) and images made on the spot, for tests of pulling. Images are built
 * and pushed here by hand, so a test can make any layer it likes: whiteouts, hostile paths, other compressions.
 */
import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { findTool } from "../../providers/local/host/command.ts";
import { waitFor } from "../e2e/harness/wait.ts";

export interface TarEntry {
  path: string;
  /** Absent: an empty file. */
  content?: string | Buffer;
  type?: "file" | "directory" | "symlink" | "hardlink";
  /** Target of a link. */
  link?: string;
  mode?: number;
  uid?: number;
  gid?: number;
}

export interface TestImage {
  layers: TarEntry[][];
  config?: {
    Entrypoint?: string[];
    Cmd?: string[];
    Env?: string[];
    User?: string;
    WorkingDir?: string;
    StopSignal?: string;
  };
}

export interface TestRegistry {
  /** `127.0.0.1:PORT`. */
  readonly host: string;
  /** Pushes an image as `host/name` and returns its manifest's digest. */
  push(name: string, image: TestImage, options?: PushOptions): Promise<string>;
  /** Pushes an index of images by platform. */
  pushIndex(name: string, platforms: { architecture: string; digest: string; size: number }[]): Promise<string>;
  /** The file in which the registry keeps a blob, to damage it. */
  blobPath(digest: string): string;
  /** Number of requests for blobs so far, by digest. */
  blobReads(digest: string): Promise<number>;
  stop(): Promise<void>;
}

export interface PushOptions {
  /** Of the manifest's layer entries; the blobs stay as they are. */
  declaredLayerSize?: number | undefined;
  /** How each layer is packed. Default: by gzip. */
  packings?: readonly Packing[] | undefined;
  /** With the media types of Docker's schema 2. */
  isDockers?: boolean | undefined;
}

export type Packing = "gzip" | "zstd" | "none";

const PACKINGS: Record<Packing, { pack: (tar: Buffer) => Buffer; suffix: string }> = {
  gzip: { pack: (tar) => gzipSync(tar, { level: 1 }), suffix: "+gzip" },
  zstd: { pack: (tar) => zstdCompressSync(tar), suffix: "+zstd" },
  none: { pack: (tar) => tar, suffix: "" },
};

/** A TCP port of loopback that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts a registry; with `user`, only that user may read or write. */
export async function startRegistry(
  options: { user?: { name: string; password: string }; port?: number } = {},
): Promise<TestRegistry> {
  const dir = await mkdtemp(join(tmpdir(), "vmlet-registry-"));
  const port = options.port ?? (await freePort());
  const host = `127.0.0.1:${port}`;
  let auth = "";
  const headers: Record<string, string> = {};
  if (options.user !== undefined) {
    const { name, password } = options.user;
    await writeFile(join(dir, "htpasswd"), execFileSync("htpasswd", ["-Bbn", name, password]));
    auth = `auth: {htpasswd: {realm: test, path: ${join(dir, "htpasswd")}}}\n`;
    headers["authorization"] = `Basic ${Buffer.from(`${name}:${password}`).toString("base64")}`;
  }
  const config = `version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: ${join(dir, "data")}}}\n${auth}http: {addr: "${host}"}\n`;
  await writeFile(join(dir, "config.yml"), config);
  const child = spawn("docker-registry", ["serve", join(dir, "config.yml")], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => (log += text));
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  await untilAnswers(`http://${host}/v2/`, () => (child.exitCode === null ? undefined : log));

  const request = async (method: string, path: string, body?: Buffer | string, type = "application/octet-stream") => {
    const response = await fetch(path.startsWith("http") ? path : `http://${host}${path}`, {
      method,
      headers: { ...headers, ...(body === undefined ? {} : { "content-type": type }) },
      ...(body === undefined ? {} : { body: typeof body === "string" ? body : new Uint8Array(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    await response.arrayBuffer();
    return response;
  };
  const pushBlob = async (repository: string, content: Buffer) => {
    const digest = sha256(content);
    const location = (await request("POST", `/v2/${repository}/blobs/uploads/`)).headers.get("location")!;
    await request("PUT", `${location}${location.includes("?") ? "&" : "?"}digest=${digest}`, content);
    return { digest, size: content.length };
  };
  const pushManifest = async (repository: string, tag: string, manifest: { mediaType: string }) => {
    const body = JSON.stringify(manifest);
    await request("PUT", `/v2/${repository}/manifests/${tag}`, body, manifest.mediaType);
    return sha256(body);
  };

  return {
    host,
    async push(name, image, pushOptions = {}) {
      const { repository, tag } = splitName(name);
      const layers = [];
      const diffIds = [];
      const docker = pushOptions.isDockers === true;
      for (const [index, entries] of image.layers.entries()) {
        const tar = makeTar(entries);
        const { pack, suffix } = PACKINGS[pushOptions.packings?.[index] ?? "gzip"];
        diffIds.push(sha256(tar));
        const blob = await pushBlob(repository, pack(tar));
        layers.push({
          mediaType: docker
            ? "application/vnd.docker.image.rootfs.diff.tar.gzip"
            : `application/vnd.oci.image.layer.v1.tar${suffix}`,
          digest: blob.digest,
          size: pushOptions.declaredLayerSize ?? blob.size,
        });
      }
      const config = await pushBlob(
        repository,
        Buffer.from(
          JSON.stringify({
            architecture: "amd64",
            os: "linux",
            config: image.config ?? {},
            rootfs: { type: "layers", diff_ids: diffIds },
          }),
        ),
      );
      return await pushManifest(repository, tag, {
        schemaVersion: 2,
        mediaType: docker
          ? "application/vnd.docker.distribution.manifest.v2+json"
          : "application/vnd.oci.image.manifest.v1+json",
        config: {
          mediaType: docker
            ? "application/vnd.docker.container.image.v1+json"
            : "application/vnd.oci.image.config.v1+json",
          ...config,
        },
        layers,
      } as { mediaType: string });
    },
    async pushIndex(name, platforms) {
      const { repository, tag } = splitName(name);
      return await pushManifest(repository, tag, {
        schemaVersion: 2,
        mediaType: "application/vnd.oci.image.index.v1+json",
        manifests: platforms.map(({ architecture, digest, size }) => ({
          mediaType: "application/vnd.oci.image.manifest.v1+json",
          digest,
          size,
          platform: { os: "linux", architecture },
        })),
      } as { mediaType: string });
    },
    blobPath(digest) {
      const hex = digest.slice("sha256:".length);
      return join(dir, "data/docker/registry/v2/blobs/sha256", hex.slice(0, 2), hex, "data");
    },
    async blobReads(digest) {
      // The access log is written after the reply: a second request makes sure that it has come out.
      await request("GET", "/v2/");
      return log.split("\n").filter((line) => line.includes(`GET /v2/`) && line.includes(`/blobs/${digest} HTTP`))
        .length;
    },
    async stop() {
      child.kill("SIGKILL");
      await exited;
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** Why tests that need images cannot run here; undefined when they can. */
export function missingForImages(): string | undefined {
  const missing = ["docker-registry", "htpasswd", "umoci"].filter((tool) => findTool(tool) === undefined);
  return missing.length === 0 ? undefined : `not on the PATH: ${missing.join(", ")}`;
}

/** An image with Debian's static busybox and its applets, a few users, and what else the test wants on top. */
export async function busyboxImage(extra: TarEntry[] = [], config: TestImage["config"] = {}): Promise<TestImage> {
  const busybox = await readFile(findTool("busybox")!);
  const applets = execFileSync(findTool("busybox")!, ["--list"], { encoding: "utf8" }).split("\n");
  const base: TarEntry[] = [
    ...["bin", "etc", "proc", "sys", "dev", "root", "var", "home"].map((path) => ({
      path,
      type: "directory" as const,
      mode: 0o755,
    })),
    { path: "tmp", type: "directory", mode: 0o1777 },
    { path: "bin/busybox", content: busybox, mode: 0o755 },
    ...applets
      .filter((applet) => applet !== "" && applet !== "busybox")
      .map((applet) => ({ path: `bin/${applet}`, type: "symlink" as const, link: "busybox" })),
    { path: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home:/bin/sh\n" },
    { path: "etc/group", content: "root:x:0:\napp:x:1000:\nextra:x:2000:app\n" },
  ];
  return { layers: [base, ...(extra.length === 0 ? [] : [extra])], config: { Cmd: ["/bin/sh"], ...config } };
}

const NAME_BYTES = 100;
const PREFIX_AT = 345;

/** A tar archive (ustar). */
export function makeTar(entries: readonly TarEntry[]): Buffer {
  const blocks: Buffer[] = [];
  for (const entry of entries) {
    const content = Buffer.from(entry.content ?? "");
    const type = { file: "0", hardlink: "1", symlink: "2", directory: "5" }[entry.type ?? "file"];
    const header = Buffer.alloc(512);
    const octal = (value: number, at: number, length: number) =>
      header.write(value.toString(8).padStart(length - 1, "0"), at);
    // A path that is longer than the field has its first folders in another one.
    const cut = entry.path.length > NAME_BYTES ? entry.path.indexOf("/", entry.path.length - NAME_BYTES - 1) : -1;
    header.write(entry.path.slice(cut + 1), 0, NAME_BYTES);
    octal(entry.mode ?? 0o644, 100, 8);
    octal(entry.uid ?? 0, 108, 8);
    octal(entry.gid ?? 0, 116, 8);
    octal(type === "0" ? content.length : 0, 124, 12);
    octal(0, 136, 12);
    header.write("        ", 148);
    header.write(type, 156);
    header.write(entry.link ?? "", 157, 100);
    header.write("ustar\u000000", 257);
    header.write(entry.path.slice(0, Math.max(cut, 0)), PREFIX_AT);
    octal(
      header.reduce((sum, byte) => sum + byte, 0),
      148,
      7,
    );
    blocks.push(header);
    if (type === "0") blocks.push(content, Buffer.alloc((512 - (content.length % 512)) % 512));
  }
  blocks.push(Buffer.alloc(1024));
  return Buffer.concat(blocks);
}

function splitName(name: string): { repository: string; tag: string } {
  const colon = name.lastIndexOf(":");
  return colon < 0
    ? { repository: name, tag: "latest" }
    : { repository: name.slice(0, colon), tag: name.slice(colon + 1) };
}

function sha256(content: Buffer | string): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}

async function untilAnswers(url: string, failure: () => string | undefined): Promise<void> {
  const failed = await waitFor({ what: "docker-registry to answer", intervalMs: 20 }, async () => {
    const ended = failure();
    if (ended === undefined) await fetch(url);
    return ended;
  });
  if (failed !== undefined) throw new Error(`docker-registry ended: ${failed}`);
}
