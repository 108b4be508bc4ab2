/**
 * An image as the files that agnhost's `fake-registry-server` serves: what its Dockerfile downloads from Kubernetes'
 * registry (fakeregistryserver/prepare_registry.sh), made here.
 */
import { createHash } from "node:crypto";
import { makeTar, type TarEntry, type TestImage } from "../../support/registry.ts";

const ROOT = "var/registry";
const OCI = "application/vnd.oci.image";

/** @param name without a folder, which is all that it serves */
export function registryFiles(name: string, tag: string, { layers, config }: TestImage): TarEntry[] {
  const files: TarEntry[] = [];
  const keep = (kind: "blobs" | "manifests", content: Buffer) => {
    const hash = createHash("sha256").update(content).digest("hex");
    files.push({ path: `${ROOT}/${name}/${kind}/sha256/${hash.slice(0, 2)}/${hash}/data`, content, mode: 0o644 });
    return { digest: `sha256:${hash}`, size: content.length };
  };
  const json = (value: object) => Buffer.from(JSON.stringify(value));
  const blobs = layers.map((entries) => keep("blobs", makeTar(entries)));
  const image = {
    architecture: "amd64",
    os: "linux",
    config: config ?? {},
    rootfs: { type: "layers", diff_ids: blobs.map(({ digest }) => digest) },
  };
  const manifest = {
    schemaVersion: 2,
    mediaType: `${OCI}.manifest.v1+json`,
    config: { mediaType: `${OCI}.config.v1+json`, ...keep("blobs", json(image)) },
    layers: blobs.map((blob) => ({ mediaType: `${OCI}.layer.v1.tar`, ...blob })),
  };
  const { digest } = keep("manifests", json(manifest));
  files.push({ path: `${ROOT}/${name}/manifests/${tag}`, content: `${digest}\n`, mode: 0o644 });
  return files;
}
