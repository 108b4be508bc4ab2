import {
  createServer as createHttp,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from "node:http";
import { createServer as createHttps, type ServerOptions } from "node:https";
import type { AddressInfo } from "node:net";
import { KubeConfig } from "@kubernetes/client-node";

export interface Received {
  method: string;
  url: string;
  headers: IncomingMessage["headers"];
  body: string;
  socket: IncomingMessage["socket"];
}

export type Handler = (request: Received, reply: ServerResponse) => unknown;

/** An HTTP server on loopback whose answers a test scripts. It keeps what it received and counts connections. */
export class KubeServer {
  readonly received: Received[] = [];
  connections = 0;
  handler: Handler = (_request, reply) => json(reply, 200, {});
  readonly #server: Server;
  readonly #scheme: "http" | "https";

  private constructor(tls: ServerOptions | undefined) {
    const listener: RequestListener = (request, reply) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        const received = {
          method: request.method ?? "",
          url: request.url ?? "",
          headers: request.headers,
          body: Buffer.concat(chunks).toString(),
          socket: request.socket,
        };
        this.received.push(received);
        void this.handler(received, reply);
      });
    };
    this.#scheme = tls ? "https" : "http";
    this.#server = tls ? createHttps(tls, listener) : createHttp(listener);
    this.#server.on(tls ? "secureConnection" : "connection", () => {
      this.connections++;
    });
  }

  static async start(handler?: Handler, tls?: ServerOptions): Promise<KubeServer> {
    const server = new KubeServer(tls);
    if (handler) server.handler = handler;
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  get url(): string {
    return `${this.#scheme}://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  kubeConfig(options: { user?: object | undefined; cluster?: object | undefined } = {}): KubeConfig {
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromClusterAndUser(
      { name: "test", server: this.url, skipTLSVerify: false, ...options.cluster },
      { name: "tester", ...options.user },
    );
    return kubeConfig;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

export function json(reply: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): void {
  reply.writeHead(status, { "content-type": "application/json", ...headers });
  reply.end(JSON.stringify(body));
}

/** A `metav1.Status`, as the API server answers with when it fails. */
export function failure(code: number, reason: string, message = reason, details?: object) {
  return { kind: "Status", apiVersion: "v1", status: "Failure", code, reason, message, ...(details && { details }) };
}
