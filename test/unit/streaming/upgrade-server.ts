/** An HTTP server on loopback that hands every upgrade to one handler, and the clients to reach it. */
import { createServer, request as httpRequest } from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { PassThrough } from "node:stream";
import { text } from "node:stream/consumers";
import { WebSocket } from "ws";
import { HttpError } from "../../../src/http/http-error.ts";
import type { ProcessStreams } from "../../../src/provider/provider.ts";
import { sendLastWords } from "../../../src/http/last-words.ts";
import type { UpgradeRequest } from "../../../src/streaming/upgrade.ts";
import { SpdyClient } from "./spdy-client.ts";

export interface UpgradeServer extends AsyncDisposable {
  port: number;
  /** Rejects with `HTTP STATUS: body` when the server refuses. */
  spdy(protocols: string[]): Promise<{ client: SpdyClient; protocol: string }>;
  /** Waits until open. */
  webSocket(protocols: string[], path?: string): Promise<TestWebSocket>;
  /** With a protocol that is no token, which no WebSocket library would send. */
  rawWebSocket(protocol: string): Promise<{ socket: WebSocket; protocol: string }>;
}

export async function startUpgradeServer(handle: (upgrade: UpgradeRequest) => Promise<void>): Promise<UpgradeServer> {
  const server = createServer();
  const sockets = new Set<Duplex>();
  server.on("upgrade", (request, socket, head) => {
    sockets.add(socket);
    socket.on("error", () => {});
    const upgrade: UpgradeRequest = { request, socket, head, answered: false };
    handle(upgrade).catch((thrown: unknown) => {
      if (thrown instanceof HttpError && !upgrade.answered)
        sendLastWords(socket, { status: thrown.status, headers: thrown.headers, body: thrown.message });
      else socket.destroy();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    port,
    spdy: (protocols) =>
      new Promise((resolve, reject) => {
        const headers = { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": protocols };
        const request = httpRequest({ port, method: "POST", headers });
        request.on("upgrade", (response, socket) =>
          resolve({ client: new SpdyClient(socket), protocol: String(response.headers["x-stream-protocol-version"]) }),
        );
        request.on("response", (response) => {
          text(response).then((body) => reject(new Error(`HTTP ${response.statusCode}: ${body}`)), reject);
        });
        request.on("error", reject);
        request.end();
      }),
    async webSocket(protocols, path = "/") {
      const webSocket = new TestWebSocket(new WebSocket(`ws://127.0.0.1:${port}${path}`, protocols));
      await webSocket.opened;
      return webSocket;
    },
    rawWebSocket: (offer) =>
      new Promise((resolve, reject) => {
        const headers = {
          connection: "Upgrade",
          upgrade: "websocket",
          "sec-websocket-version": "13",
          "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
          "sec-websocket-protocol": offer,
        };
        const request = httpRequest({ port, headers });
        request.on("upgrade", (response, socket, head) => {
          // ws has no public way to take over a client's connection; its own server does it like this.
          const Constructor = WebSocket as unknown as new (
            address: null,
            protocols: undefined,
            options: object,
          ) => WebSocket;
          const webSocket = new Constructor(null, undefined, { autoPong: true });
          const internals = webSocket as unknown as {
            _isServer: boolean;
            setSocket(socket: Duplex, head: Buffer, options: object): void;
          };
          internals._isServer = false;
          internals.setSocket(socket, head, { maxPayload: 1 << 24, allowSynchronousEvents: true });
          resolve({ socket: webSocket, protocol: String(response.headers["sec-websocket-protocol"]) });
        });
        request.on("response", (response) => reject(new Error(`HTTP ${response.statusCode}`)));
        request.on("error", reject);
        request.end();
      }),
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

/** Collects what comes, by channel. */
export class TestWebSocket {
  readonly socket: WebSocket;
  readonly messages: { data: Buffer; isBinary: boolean }[] = [];
  readonly opened: Promise<void>;
  /** The close code. */
  readonly closed: Promise<number>;

  constructor(socket: WebSocket) {
    this.socket = socket;
    socket.on("message", (data, isBinary) => this.messages.push({ data: data as Buffer, isBinary }));
    this.opened = new Promise((resolve, reject) => {
      socket.on("open", resolve);
      socket.on("error", reject);
    });
    this.closed = new Promise((resolve) => socket.on("close", resolve));
  }

  send(channel: number, payload: string | Buffer): void {
    this.socket.send(Buffer.concat([Buffer.from([channel]), Buffer.from(payload)]));
  }

  bytes(channel: number): Buffer {
    return Buffer.concat(this.messages.filter(({ data }) => data[0] === channel).map(({ data }) => data.subarray(1)));
  }

  text(channel: number): string {
    return this.bytes(channel).toString();
  }
}

/** A process whose every side the test plays. */
export class FakeProcess implements ProcessStreams {
  readonly stdin = new PassThrough();
  readonly stdout = new PassThrough();
  readonly stderr = new PassThrough();
  readonly resizes: [number, number][] = [];
  readonly #exit = Promise.withResolvers<{ exitCode: number }>();
  readonly exit = this.#exit.promise;
  readonly #closed = Promise.withResolvers<void>();
  /** Resolves when the session was given up or is over. */
  readonly closed = this.#closed.promise;

  constructor() {
    this.exit.catch(() => {});
  }

  resize(columns: number, rows: number): void {
    this.resizes.push([columns, rows]);
  }

  finish(exitCode: number): void {
    this.stdout.end();
    this.stderr.end();
    this.#exit.resolve({ exitCode });
  }

  fail(error: Error): void {
    this.#exit.reject(error);
  }

  close(): void {
    this.#exit.reject(new Error("closed"));
    this.#closed.resolve();
  }

  async input(): Promise<string> {
    const chunks: Buffer[] = [];
    for await (const chunk of this.stdin) chunks.push(chunk as Buffer);
    return Buffer.concat(chunks).toString();
  }
}
