/**
 * The WebSocket routes: exec, attach and ports. Bytes are spliced with flow control in both directions: what a slow side has
 * not taken is not read from the fast one.
 */
import type { IncomingMessage } from "node:http";
import type { Duplex, Readable } from "node:stream";
import { WebSocketServer, type WebSocket } from "ws";
import { type Logger, type ProcessStreams, type Provider, ProviderError } from "../../../src/provider/kit/index.ts";
import {
  CHANNEL,
  channelMessage,
  CHUNK_BYTES,
  EXEC_PROTOCOL,
  MAX_MESSAGE_BYTES,
  statusOfExit,
  statusOfFailure,
} from "../wire.ts";
import { asProviderError, Query } from "./http.ts";
import { checkedId, lacks, matchPath, unsupportedRoute } from "./routes.ts";

const EXEC = "/v1/machines/*/containers/*/exec".split("/").slice(1);
const ATTACH = "/v1/machines/*/containers/*/attach".split("/").slice(1);
const PORT = "/v1/machines/*/ports/*".split("/").slice(1);

export interface Upgrade {
  request: IncomingMessage;
  socket: Duplex;
  head: Buffer;
  url: URL;
  requestId: string;
  signal: AbortSignal;
  /** As the caller sees it. */
  provider: Provider;
}

export class StreamRoutes {
  readonly #logger: Logger;
  readonly #sockets: WebSocketServer;

  constructor(logger: Logger) {
    this.#logger = logger;
    this.#sockets = new WebSocketServer({
      noServer: true,
      perMessageDeflate: false,
      maxPayload: MAX_MESSAGE_BYTES,
      handleProtocols: (offered) => (offered.has(EXEC_PROTOCOL) ? EXEC_PROTOCOL : false),
    });
  }

  /** Opens the session with the provider first, so that a refusal is an HTTP reply. @throws ProviderError to refuse with */
  async open(upgrade: Upgrade): Promise<void> {
    const segments = upgrade.url.pathname.split("/").slice(1);
    const exec = matchPath(EXEC, segments);
    const attach = matchPath(ATTACH, segments);
    const port = matchPath(PORT, segments);
    if (upgrade.request.method !== "GET" || (exec ?? attach ?? port) === undefined) {
      throw unsupportedRoute(upgrade.request.method, upgrade.url.pathname);
    }
    if (port !== undefined) return this.#openPort(upgrade, port);
    return this.#openProcess(upgrade, (exec ?? attach)!, exec !== undefined);
  }

  /** Ends all sessions, as a server that goes away. */
  close(): void {
    for (const socket of this.#sockets.clients) socket.close(1012, "the server closes");
  }

  terminate(): void {
    for (const socket of this.#sockets.clients) socket.terminate();
  }

  async #openProcess(upgrade: Upgrade, ids: string[], isExec: boolean): Promise<void> {
    const { provider } = upgrade;
    const id = checkedId(ids[0], "MachineId", "id");
    const container = checkedId(ids[1], "Name", "container");
    const known = ["stdin", "stdout", "stderr", "tty"];
    const query = new Query(upgrade.url.searchParams, isExec ? ["command", ...known] : known);
    const options = {
      signal: upgrade.signal,
      stdin: query.flag("stdin"),
      stdout: query.flag("stdout"),
      stderr: query.flag("stderr"),
      tty: query.flag("tty"),
    };
    let streams: ProcessStreams;
    if (isExec) {
      const command = query.all("command");
      if (provider.exec === undefined) throw lacks("exec");
      if (command.length === 0) throw new ProviderError("invalid", "command is required", { field: "command" });
      requireProtocol(upgrade.request);
      streams = await provider.exec(id, container, command, options);
    } else {
      if (provider.attach === undefined) throw lacks("attach");
      requireProtocol(upgrade.request);
      streams = await provider.attach(id, container, options);
    }
    this.#accept(
      upgrade,
      (socket) => spliceProcess(socket, streams),
      () => streams.close(),
    );
  }

  async #openPort(upgrade: Upgrade, ids: string[]): Promise<void> {
    new Query(upgrade.url.searchParams, []);
    const { provider } = upgrade;
    const id = checkedId(ids[0], "MachineId", "id");
    const port = Number(ids[1]);
    if (!/^\d{1,5}$/.test(ids[1] ?? "") || port < 1 || port > 65_535) {
      throw new ProviderError("invalid", "port must be a number from 1 to 65535", { field: "port" });
    }
    if (provider.portForward === undefined) throw lacks("port_forward");
    const stream = await provider.portForward(id, port, { signal: upgrade.signal });
    this.#accept(
      upgrade,
      (socket) => splicePort(socket, stream),
      () => stream.destroy(),
    );
  }

  #accept(upgrade: Upgrade, splice: (socket: WebSocket) => Promise<void>, abandon: () => void): void {
    if (upgrade.socket.destroyed || upgrade.signal.aborted) {
      abandon();
      return;
    }
    const { request, socket, head, requestId } = upgrade;
    const echo = (headers: string[]) => headers.push(`X-Request-Id: ${requestId}`);
    this.#sockets.once("headers", echo);
    // What is no WebSocket is refused by the library, which tells nobody.
    socket.once("close", abandon);
    this.#sockets.handleUpgrade(request, socket, head, (webSocket) => {
      socket.off("close", abandon);
      splice(webSocket).catch((thrown: unknown) => {
        this.#logger.debug({ err: thrown, requestId }, "a stream broke");
        webSocket.close(1011, "the stream broke");
      });
    });
    this.#sockets.off("headers", echo);
  }
}

function requireProtocol(request: IncomingMessage): void {
  const offered = request.headers["sec-websocket-protocol"] ?? "";
  if (offered.split(",").some((name) => name.trim() === EXEC_PROTOCOL)) return;
  throw new ProviderError("invalid", `the WebSocket must offer the subprotocol ${EXEC_PROTOCOL}`);
}

/** Resolves when the bytes were handed to the operating system, which is what holds a fast writer back. */
function send(socket: WebSocket, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    socket.send(data, { binary: true }, (error) => (error ? reject(error) : resolve()));
  });
}

/** How long a client may take to answer the closing handshake. */
async function spliceProcess(socket: WebSocket, streams: ProcessStreams): Promise<void> {
  socket.on("close", () => streams.close());
  socket.on("error", () => streams.close());
  const { stdin } = streams;
  stdin?.on("error", () => socket.resume());
  stdin?.on("drain", () => socket.resume());
  socket.on("message", (data: Buffer) => {
    const payload = data.subarray(1);
    switch (data[0] ?? -1) {
      case CHANNEL.stdin:
        if (stdin?.writable === true && payload.length > 0 && !stdin.write(payload)) socket.pause();
        return;
      case CHANNEL.resize:
        resize(streams, payload);
        return;
      case CHANNEL.halfClose:
        if (payload[0] === CHANNEL.stdin) stdin?.end();
    }
  });
  // Its rejection is read below, after the output.
  streams.exit.catch(() => {});
  const outputs = Promise.all([
    pump(streams.stdout, CHANNEL.stdout, socket),
    pump(streams.stderr, CHANNEL.stderr, socket),
  ]);
  let status: string;
  try {
    await outputs;
    status = statusOfExit((await streams.exit).exitCode);
  } catch (thrown) {
    status = statusOfFailure(asProviderError(thrown));
  }
  if (socket.readyState !== socket.OPEN) return;
  await send(socket, channelMessage(CHANNEL.status, status));
  // A client that still writes may have paused us; the closing handshake has to be read.
  socket.resume();
  socket.close(1000);
}

async function pump(source: Readable | null, channel: number, socket: WebSocket): Promise<void> {
  if (source === null) return;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    for (let at = 0; at < chunk.length; at += CHUNK_BYTES) {
      await send(socket, channelMessage(channel, chunk.subarray(at, at + CHUNK_BYTES)));
    }
  }
}

function resize(streams: ProcessStreams, payload: Buffer): void {
  let size: { Width?: unknown; Height?: unknown };
  try {
    size = JSON.parse(payload.toString()) as typeof size;
  } catch {
    return; // A terminal that keeps its size is better than a session that ends.
  }
  const { Width: width, Height: height } = size ?? {};
  const valid = (value: unknown): value is number =>
    Number.isInteger(value) && (value as number) > 0 && (value as number) <= 0xffff;
  if (valid(width) && valid(height)) streams.resize(width, height);
}

async function splicePort(socket: WebSocket, stream: Duplex): Promise<void> {
  let clientDone = false;
  const whenClientDone = Promise.withResolvers<void>();
  socket.on("close", () => {
    stream.destroy();
    whenClientDone.resolve();
  });
  socket.on("error", () => stream.destroy());
  stream.on("drain", () => socket.resume());
  socket.on("message", (data: Buffer) => {
    if (clientDone) return;
    if (data.length === 0) {
      clientDone = true;
      stream.end();
      whenClientDone.resolve();
    } else if (stream.writable && !stream.write(data)) socket.pause();
  });
  const failed = new Promise<never>((_resolve, reject) => stream.on("error", reject));
  failed.catch(() => {});
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    for (let at = 0; at < chunk.length; at += CHUNK_BYTES) await send(socket, chunk.subarray(at, at + CHUNK_BYTES));
  }
  if (socket.readyState !== socket.OPEN) return;
  await send(socket, Buffer.alloc(0));
  await Promise.race([whenClientDone.promise, failed]);
  if (socket.readyState === socket.OPEN) socket.close(1000);
}
