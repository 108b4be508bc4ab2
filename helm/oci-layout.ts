/** Writes images as an OCI layout, which skopeo, podman and containerd read. The same trees give the same bytes. */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { chmod, mkdir, readdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";

export interface Descriptor {
  mediaType: string;
  digest: string;
  size: number;
  platform?: { os: string; architecture: string };
  annotations?: Record<string, string>;
}

export interface Layer extends Descriptor {
  /** Of what is packed. */
  diffId: string;
  createdBy: string;
}

export interface ImageOptions {
  architecture: string;
  layers: readonly Layer[];
  config: object;
}

const OCI = "application/vnd.oci.image";
/** The file by which a folder says that it is a layout. */
const MARK = "oci-layout";
const INDEX_TYPE = `${OCI}.index.v1+json`;

export class OciLayout {
  readonly #folder: string;
  /** Seconds since 1970. */
  readonly #epoch: number;
  readonly #indexes: Descriptor[] = [];

  /** @param folder is replaced. @throws Error where it holds something else than a layout */
  static async create(folder: string, epoch: number): Promise<OciLayout> {
    await mkdir(folder, { recursive: true });
    const found = await readdir(folder);
    // Somebody's checkout or home, named by mistake.
    if (found.length > 0 && !found.includes(MARK))
      throw new Error(`${folder} holds something else than an OCI layout: name a folder that is empty, or absent`);
    // First, so that what is broken off can be begun again.
    await writeFile(join(folder, MARK), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
    for (const name of found) if (name !== MARK) await rm(join(folder, name), { recursive: true });
    await mkdir(join(folder, "blobs/sha256"), { recursive: true });
    return new OciLayout(folder, epoch);
  }

  private constructor(folder: string, epoch: number) {
    this.#folder = folder;
    this.#epoch = epoch;
  }

  /** What lies in a folder, all of it as root's. gzip and not zlib, whose bytes differ by processor. */
  async addLayer(tree: string, createdBy: string): Promise<Layer> {
    await chmod(tree, 0o755);
    const tar = join(this.#folder, "layer.tar");
    const sameForAll = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", `--mtime=@${this.#epoch}`];
    execFileSync("tar", ["--create", "--format=gnu", ...sameForAll, "--file", tar, "--directory", tree, "."]);
    const diffId = await digestOf(tar);
    execFileSync("gzip", ["-6", "--no-name", "--force", tar]);
    const digest = await digestOf(`${tar}.gz`);
    const { size } = await stat(`${tar}.gz`);
    await rename(`${tar}.gz`, this.#blob(digest));
    return { mediaType: `${OCI}.layer.v1.tar+gzip`, digest, size, diffId, createdBy };
  }

  async addImage({ architecture, layers, config }: ImageOptions): Promise<Descriptor> {
    const created = new Date(this.#epoch * 1000).toISOString().replace(".000", "");
    const image = {
      created,
      architecture,
      os: "linux",
      config,
      rootfs: { type: "layers", diff_ids: layers.map(({ diffId }) => diffId) },
      history: layers.map(({ createdBy }) => ({ created, created_by: createdBy })),
    };
    const manifest = {
      schemaVersion: 2,
      mediaType: `${OCI}.manifest.v1+json`,
      config: await this.#addJson(`${OCI}.config.v1+json`, image),
      layers: layers.map(({ mediaType, digest, size }) => ({ mediaType, digest, size })),
    };
    return { ...(await this.#addJson(manifest.mediaType, manifest)), platform: { architecture, os: "linux" } };
  }

  /** Images of several platforms under one name. @returns its digest */
  async addIndex(name: string, images: readonly Descriptor[], annotations: Record<string, string>): Promise<string> {
    const index = await this.#addJson(INDEX_TYPE, {
      schemaVersion: 2,
      mediaType: INDEX_TYPE,
      manifests: images,
      annotations,
    });
    this.#indexes.push({ ...index, annotations: { "org.opencontainers.image.ref.name": name } });
    return index.digest;
  }

  async close(): Promise<void> {
    const index = { schemaVersion: 2, mediaType: INDEX_TYPE, manifests: this.#indexes };
    await writeFile(join(this.#folder, "index.json"), JSON.stringify(index));
  }

  async #addJson(mediaType: string, value: object): Promise<Descriptor> {
    const text = JSON.stringify(value);
    const digest = `sha256:${createHash("sha256").update(text).digest("hex")}`;
    await writeFile(this.#blob(digest), text);
    return { mediaType, digest, size: Buffer.byteLength(text) };
  }

  #blob(digest: string): string {
    return join(this.#folder, "blobs", digest.replace(":", "/"));
  }
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(file)) hash.update(chunk as Buffer);
  return `sha256:${hash.digest("hex")}`;
}
