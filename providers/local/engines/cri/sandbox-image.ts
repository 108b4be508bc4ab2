/**
 * The image of a containerd of our own's sandboxes: one program that does nothing, made here, because a host need not
 * reach a registry that has one. The runtime takes images only from registries, so it is served one, on loopback, for
 * as long as the pull takes.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { goArchitecture } from "../../../../src/provider/kit/index.ts";
import { pauseProgram } from "../../bundle/pause.ts";

const REGISTRY = "sandbox.vmlet.dev";
const MANIFEST = "application/vnd.oci.image.manifest.v1+json";
const BLOCK = 512;

interface SandboxImage {
  /** Names its content. */
  name: string;
  registry: string;
  /** Serves it until the pull is over. @param pull is given the URL of the registry */
  serve(pull: (url: string) => Promise<void>): Promise<void>;
}

/** Undefined for processors that the program is not written for. */
export function sandboxImage(nodeArch: string): SandboxImage | undefined {
  const program = pauseProgram(nodeArch);
  if (program === undefined) return undefined;
  const layer = tarOf("pause", program);
  const config = json({
    architecture: goArchitecture(nodeArch),
    os: "linux",
    config: { Entrypoint: ["/pause"], User: "65535:65535" },
    rootfs: { type: "layers", diff_ids: [digestOf(layer)] },
  });
  const describe = (mediaType: string, blob: Buffer) => ({ mediaType, digest: digestOf(blob), size: blob.length });
  const manifest = json({
    schemaVersion: 2,
    mediaType: MANIFEST,
    config: describe("application/vnd.oci.image.config.v1+json", config),
    layers: [describe("application/vnd.oci.image.layer.v1.tar", layer)],
  });
  const tag = digestOf(manifest).slice("sha256:".length, "sha256:".length + 12);
  const blobs = new Map([layer, config, manifest].map((blob) => [digestOf(blob), blob]));
  return {
    name: `${REGISTRY}/pause:${tag}`,
    registry: REGISTRY,
    async serve(pull) {
      const server = createServer((request, response) => {
        const asked = new URL(request.url ?? "/", "http://localhost").pathname.split("/").at(-1) ?? "";
        const blob = asked === tag ? manifest : blobs.get(asked);
        const isManifest = blob === manifest;
        if (blob === undefined) response.writeHead(404).end();
        else {
          const head = { "content-type": isManifest ? MANIFEST : "application/octet-stream" };
          const headers = { ...head, "content-length": blob.length, "docker-content-digest": digestOf(blob) };
          response.writeHead(200, headers).end(request.method === "HEAD" ? undefined : blob);
        }
      });
      server.listen(0, "127.0.0.1");
      await once(server, "listening");
      try {
        await pull(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
      } finally {
        server.closeAllConnections();
        server.close();
      }
    },
  };
}

function json(value: object): Buffer {
  return Buffer.from(JSON.stringify(value));
}

function digestOf(content: Buffer): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}

/** An archive of one executable file (POSIX ustar). */
function tarOf(name: string, content: Buffer): Buffer {
  const header = Buffer.alloc(BLOCK);
  header.write(name, 0);
  header.write("0000755\0", 100);
  header.write("0000000\0", 108);
  header.write("0000000\0", 116);
  header.write(`${content.length.toString(8).padStart(11, "0")}\0`, 124);
  header.write("00000000000\0", 136);
  header.write("        ", 148);
  header.write("0", 156);
  header.write("ustar\x0000", 257, "latin1");
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  const padding = Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK);
  return Buffer.concat([header, content, padding, Buffer.alloc(2 * BLOCK)]);
}
