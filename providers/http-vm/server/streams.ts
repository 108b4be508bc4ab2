/**
 * The WebSocket routes: exec, attach and ports. Bytes are spliced with flow control in both directions: what a slow
 * side has not taken is not read from the fast one.
 */
import type { IncomingMessage } from "node:http";
import { type Duplex, type Readable, Writable } from "node:stream";
import { WebSocketServer, type WebSocket } from "ws";
import {
  type Clock,
  type Logger,
  type ProcessStreams,
  type Provider,
  ProviderError,
  shareUnread,
  UnreadBytes,
} from "../../../src/provider/kit/index.ts";
import {
  CHANNEL,
  channelMessage,
  CHUNK_BYTES,
  EXEC_PROTOCOL,
  MAX_MESSAGE_BYTES,
  statusOfExit,
  statusOfFailure,
} from "../wire.ts";
import type { AuditedAction, AuditedCall } from "./audit.ts";
import { asProviderError, Query } from "./http.ts";
import { checkedId, findRoute, lacks } from "./router.ts";

type Params = Readonly<Record<string, string>>;

const stream = (audit: AuditedAction, pattern: string) => ({ methods: ["GET"], pattern, audit });

/** What is asked for by an upgrade to WebSocket. */
export const STREAM_ROUTES = [
  stream("exec", "/v1/machines/:id/containers/:container/exec"),
  stream("attach", "/v1/machines/:id/containers/:container/attach"),
  stream("port-forward", "/v1/machines/:id/ports/:port"),
];

interface Upgrade {
  request: IncomingMessage;
  socket: Duplex;
  head: Buffer;
  url: URL;
  requestId: string;
  signal: AbortSignal;
  /** Whose budget the session takes from. */
  client: string;
  /** As the caller sees it. */
  provider: Provider;
  audited: AuditedCall | undefined;
}

export class StreamRoutes {
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #sockets: WebSocketServer;
  readonly #unread: UnreadBytes;

  constructor(clock: Clock, logger: Logger, unreadBytes: number) {
    this.#clock = clock;
    this.#logger = logger;
    this.#unread = new UnreadBytes(unreadBytes);
    this.#sockets = new WebSocketServer({
      noServer: true,
      perMessageDeflate: false,
      maxPayload: MAX_MESSAGE_BYTES,
      handleProtocols: (offered) => (offered.has(EXEC_PROTOCOL) ? EXEC_PROTOCOL : false),
    });
  }

  /**
   * Opens the session with the provider first, so that a refusal is an HTTP reply.
   * @throws ProviderError to refuse with
   */
  async open(upgrade: Upgrade): Promise<void> {
    const { route, params } = findRoute(STREAM_ROUTES, upgrade.request.method, upgrade.url.pathname);
    if (route.audit === "port-forward") return this.#openPort(upgrade, params);
    return this.#openProcess(upgrade, params, route.audit === "exec");
  }

  /** Ends all sessions, as a server that goes away. */
  close(): void {
    for (const socket of this.#sockets.clients) socket.close(1012, "the server closes");
  }

  terminate(): void {
    for (const socket of this.#sockets.clients) socket.terminate();
  }

  async #openProcess(upgrade: Upgrade, params: Params, isExec: boolean): Promise<void> {
    const { provider } = upgrade;
    const id = checkedId(params["id"], "MachineId", "id");
    const container = checkedId(params["container"], "Name", "container");
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
      if (provider.exec === undefined) throw lacks("exec", "exec");
      if (command.length === 0) throw new ProviderError("invalid", "command is required", { field: "command" });
      requireProtocol(upgrade.request);
      streams = await provider.exec(id, container, command, options);
    } else {
      if (provider.attach === undefined) throw lacks("attach", "attach");
      requireProtocol(upgrade.request);
      streams = await provider.attach(id, container, options);
    }
    this.#accept(
      upgrade,
      (socket) => spliceProcess(socket, streams, this.#clock),
      () => streams.close(),
      () => (streams.stdin instanceof Writable ? streams.stdin.writableLength : 0),
    );
  }

  async #openPort(upgrade: Upgrade, params: Params): Promise<void> {
    new Query(upgrade.url.searchParams, []);
    const { provider } = upgrade;
    const id = checkedId(params["id"], "MachineId", "id");
    const port = Number(params["port"]);
    if (!/^\d{1,5}$/.test(params["port"] ?? "") || port < 1 || port > 65_535) {
      throw new ProviderError("invalid", "port must be a number from 1 to 65535", { field: "port" });
    }
    if (provider.portForward === undefined) throw lacks("port_forward", "portForward");
    const stream = await provider.portForward(id, port, { signal: upgrade.signal });
    this.#accept(
      upgrade,
      (socket) => splicePort(socket, stream, this.#clock),
      () => stream.destroy(),
      () => stream.writableLength,
    );
  }

  /** @param unread bytes of its input that have not been taken */
  #accept(
    upgrade: Upgrade,
    splice: (socket: WebSocket) => Promise<SessionEnd>,
    abandon: () => void,
    unread: () => number,
  ): void {
    const { request, socket, head, requestId, client, audited } = upgrade;
    if (audited !== undefined) audited.opened = true;
    const left = () => audited?.end(new ProviderError("unavailable", "the caller left"));
    if (socket.destroyed || upgrade.signal.aborted) {
      abandon();
      left();
      return;
    }
    const echo = (headers: string[]) => headers.push(`X-Request-Id: ${requestId}`);
    this.#sockets.once("headers", echo);
    // The library refuses a request that is not a WebSocket, without calling anything of ours.
    socket.once("close", abandon);
    socket.once("close", left);
    this.#sockets.handleUpgrade(request, socket, head, (webSocket) => {
      socket.off("close", abandon);
      shareUnread(webSocket, socket, { budget: this.#unread, tenant: client }, unread);
      splice(webSocket).then(
        ({ exitCode, error }) => {
          if (audited !== undefined) audited.exitCode = exitCode;
          audited?.end(error);
        },
        (thrown: unknown) => {
          audited?.end(asProviderError(thrown));
          this.#logger.debug({ err: thrown, requestId }, "A stream broke");
          webSocket.close(1011, "the stream broke");
        },
      );
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

interface SessionEnd {
  exitCode?: number;
  error?: ProviderError;
}

/** Between two signs of life to a client whose bytes are not read for now. */
const SIGN_MS = 5_000;

/**
 * Holds a client back. A connection that is not read shows no close, so something is written to it now and then: what
 * is written to a client that has gone ends the connection. It is a pong, which asks for no answer: an answer would
 * wait behind what is held back, and a client counts those that wait. One that is read needs none of it, TCP's own
 * probes find out.
 */
class Flow {
  readonly #socket: WebSocket;
  readonly #clock: Clock;
  #cancel: (() => void) | undefined;

  constructor(socket: WebSocket, clock: Clock) {
    this.#socket = socket;
    this.#clock = clock;
    socket.on("close", () => this.#cancel?.());
  }

  hold(): void {
    if (this.#cancel !== undefined || this.#socket.readyState !== this.#socket.OPEN) return;
    this.#socket.pause();
    const sign = () => {
      this.#cancel = this.#clock.after(SIGN_MS, sign);
      // What waits to be written ends it just as well.
      if (this.#socket.bufferedAmount === 0) this.#socket.pong();
    };
    this.#cancel = this.#clock.after(SIGN_MS, sign);
  }

  release(): void {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#socket.resume();
  }
}

async function spliceProcess(socket: WebSocket, streams: ProcessStreams, clock: Clock): Promise<SessionEnd> {
  socket.on("close", () => streams.close());
  socket.on("error", () => streams.close());
  const flow = new Flow(socket, clock);
  const { stdin } = streams;
  stdin?.on("error", () => flow.release());
  stdin?.on("drain", () => flow.release());
  stdin?.on("close", () => flow.release());
  socket.on("message", (data: Buffer) => {
    const payload = data.subarray(1);
    switch (data[0] ?? -1) {
      case CHANNEL.stdin:
        if (stdin?.writable === true && payload.length > 0 && !stdin.write(payload)) flow.hold();
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
  let end: SessionEnd & { status: string };
  try {
    await outputs;
    const { exitCode } = await streams.exit;
    end = { exitCode, status: statusOfExit(exitCode) };
  } catch (thrown) {
    const error = asProviderError(thrown);
    end = { error, status: statusOfFailure(error) };
  }
  if (socket.readyState !== socket.OPEN) return end;
  await send(socket, channelMessage(CHANNEL.status, end.status));
  // A client that still writes may be held back; the closing handshake has to be read.
  flow.release();
  socket.close(1000);
  return end;
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

async function splicePort(socket: WebSocket, stream: Duplex, clock: Clock): Promise<SessionEnd> {
  const flow = new Flow(socket, clock);
  let clientDone = false;
  const whenClientDone = Promise.withResolvers<void>();
  socket.on("close", () => {
    stream.destroy();
    whenClientDone.resolve();
  });
  socket.on("error", () => stream.destroy());
  stream.on("drain", () => flow.release());
  stream.on("close", () => flow.release());
  socket.on("message", (data: Buffer) => {
    if (clientDone) return;
    if (data.length === 0) {
      clientDone = true;
      stream.end();
      whenClientDone.resolve();
    } else if (stream.writable && !stream.write(data)) flow.hold();
  });
  const failed = new Promise<never>((_resolve, reject) => stream.on("error", reject));
  failed.catch(() => {});
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    for (let at = 0; at < chunk.length; at += CHUNK_BYTES) await send(socket, chunk.subarray(at, at + CHUNK_BYTES));
  }
  if (socket.readyState !== socket.OPEN) return {};
  await send(socket, Buffer.alloc(0));
  await Promise.race([whenClientDone.promise, failed]);
  if (socket.readyState === socket.OPEN) socket.close(1000);
  return {};
}
