/**
 * The one registry that a containerd of our own knows: this backend, on loopback. A client that shows the password of
 * a pull is given what that pull was granted, and nothing else; so containerd connects to nothing that a tenant has
 * named, and is told no tenant's credentials.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { pipeline } from "node:stream/promises";
import type { Readable } from "node:stream";

export interface Grant {
  manifest: { digest: string; mediaType: string; content: Buffer };
  /** Bytes by digest. */
  blobs: ReadonlyMap<string, number>;
  /** The content of one of them, whole. */
  open(digest: string): Promise<Readable>;
}

/** How the runtime shows what it may have. */
interface Login {
  username: string;
  password: string;
}

const USER = "pull";

export class GrantedRegistry {
  readonly #grants = new Map<string, Grant>();
  #server: Promise<Server> | undefined;

  /** Where it is; it listens from the first time on. */
  async url(): Promise<string> {
    this.#server ??= this.#listen();
    const { port } = (await this.#server).address() as AddressInfo;
    return `http://127.0.0.1:${port}`;
  }

  /** Gives what is granted as long as `work` goes on. */
  async during<T>(grant: Grant, work: (login: Login) => Promise<T>): Promise<T> {
    const password = randomBytes(32).toString("hex");
    const authorization = `Basic ${Buffer.from(`${USER}:${password}`).toString("base64")}`;
    this.#grants.set(authorization, grant);
    try {
      return await work({ username: USER, password });
    } finally {
      this.#grants.delete(authorization);
    }
  }

  async close(): Promise<void> {
    const server = await this.#server;
    server?.closeAllConnections();
    server?.close();
  }

  async #listen(): Promise<Server> {
    const server = createServer((request, response) => void this.#answer(request, response));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    server.unref();
    return server;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const grant = this.#grants.get(request.headers.authorization ?? "");
    if (grant === undefined) {
      response.writeHead(401, { "www-authenticate": 'Basic realm="vmlet"' }).end();
      return;
    }
    const [kind, digest = ""] = new URL(request.url ?? "/", "http://localhost").pathname.split("/").slice(-2);
    const { manifest, blobs } = grant;
    const head = (type: string, bytes: number) =>
      response.writeHead(200, { "content-type": type, "content-length": bytes, "docker-content-digest": digest });
    const bytes = blobs.get(digest);
    if (kind === "manifests" && digest === manifest.digest)
      head(manifest.mediaType, manifest.content.length).end(request.method === "GET" ? manifest.content : undefined);
    else if (kind !== "blobs" || bytes === undefined) response.writeHead(404).end();
    else if (request.method !== "GET") head("application/octet-stream", bytes).end();
    else await this.#send(grant, digest, response, () => head("application/octet-stream", bytes));
  }

  async #send(grant: Grant, digest: string, response: ServerResponse, head: () => void): Promise<void> {
    try {
      const content = await grant.open(digest);
      head();
      await pipeline(content, response);
    } catch {
      // The runtime says that it could not read it; why, the grant knows.
      response.destroy();
    }
  }
}
