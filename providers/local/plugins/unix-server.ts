/** Services by gRPC on a unix socket of this host. */
import { once } from "node:events";
import { chmodSync } from "node:fs";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { dirname } from "node:path";
import type { ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ConfigError, type Logger, removeStaleSocket, withoutHost } from "../../../src/provider/kit/index.ts";
import { makeFolder } from "../host/files.ts";

/** Names and options: nobody asks for more. */
const MAX_REQUEST_BYTES = 64 * 1024;

export class UnixServer {
  readonly #path: string;
  readonly #logger: Logger;
  readonly #server: Http2Server;
  readonly #sessions = new Set<ServerHttp2Session>();

  constructor(path: string, routes: (router: ConnectRouter) => void, logger: Logger) {
    this.#path = path;
    this.#logger = logger;
    this.#server = createServer(
      withoutHost(connectNodeAdapter({ routes, connect: false, grpcWeb: false, readMaxBytes: MAX_REQUEST_BYTES })),
    );
    this.#server.on("session", (session) => {
      this.#sessions.add(session);
      session.once("close", () => this.#sessions.delete(session));
    });
  }

  /** Makes the folder, and takes away a socket that nobody listens on. @throws ConfigError when somebody does */
  async claim(): Promise<void> {
    makeFolder(dirname(this.#path), 0o750);
    if (await removeStaleSocket(this.#path)) return;
    throw new ConfigError(
      `engine.plugins: a kubelet or another backend listens on ${this.#path}: choose another directory, or stop it`,
    );
  }

  /** For this socket's owner alone. @throws as `claim` */
  async listen(): Promise<void> {
    await this.claim();
    this.#server.listen(this.#path);
    await once(this.#server, "listening");
    this.#server.on("error", (error) => this.#logger.error({ err: error }, "A socket for plugins has failed"));
    chmodSync(this.#path, 0o700);
  }

  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const session of this.#sessions) session.destroy();
    await closed;
  }
}
