/** exec, attach and ports over WebSockets, as the contract's streams, with flow control in both directions. */
import type { IncomingMessage } from "node:http";
import { Duplex, Readable, Writable } from "node:stream";
import WebSocket from "ws";
import { onAbort, type ProcessStreams, ProviderError, type StreamOptions } from "../../src/provider/kit/index.ts";
import { asProviderError } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import { CHANNEL, channelMessage, CHUNK_BYTES, EXEC_PROTOCOL, exitOfStatus, MAX_MESSAGE_BYTES } from "./wire.ts";

/** Opens a WebSocket or rejects with what the backend said instead. */
async function openSocket(
  client: MachineApiClient,
  path: string,
  query: URLSearchParams,
  protocol: string | undefined,
  signal: AbortSignal,
): Promise<WebSocket> {
  const dialing = await client.dial(path, query);
  signal.throwIfAborted();
  const socket = new WebSocket(dialing.url, protocol === undefined ? [] : [protocol], {
    agent: dialing.agent,
    headers: dialing.headers,
    followRedirects: false,
    perMessageDeflate: false,
    maxPayload: MAX_MESSAGE_BYTES,
    handshakeTimeout: dialing.handshakeMs,
  });
  const aborted = onAbort(signal, () => socket.terminate());
  socket.once("close", () => aborted[Symbol.dispose]());
  return new Promise((resolve, reject) => {
    socket.once("open", () => {
      // Messages that come right behind the handshake wait until their readers are there.
      socket.pause();
      resolve(socket);
    });
    socket.once("unexpected-response", (_request, reply: IncomingMessage) => {
      client
        .refusalOf(reply, dialing.requestId)
        .then(reject, reject)
        .finally(() => socket.terminate());
    });
    socket.once("error", (thrown) => reject(asProviderError(thrown, { method: "GET", path })));
  });
}

/** Sends in pieces; resolves when the operating system has them. */
function send(
  socket: WebSocket,
  data: Buffer,
  done: (error?: Error | null) => void,
  wrap: (piece: Buffer) => Buffer,
): void {
  if (socket.readyState !== socket.OPEN) {
    done(new ProviderError("unavailable", "the stream is closed"));
    return;
  }
  const last = Math.max(0, Math.ceil(data.length / CHUNK_BYTES) - 1);
  for (let piece = 0; piece <= last; piece++) {
    const bytes = wrap(data.subarray(piece * CHUNK_BYTES, (piece + 1) * CHUNK_BYTES));
    socket.send(bytes, { binary: true }, piece === last ? (error) => done(error ?? null) : undefined);
  }
}

export async function openProcess(
  client: MachineApiClient,
  path: string,
  query: URLSearchParams,
  options: StreamOptions,
): Promise<ProcessStreams> {
  const socket = await openSocket(client, path, query, EXEC_PROTOCOL, options.signal);
  if (socket.protocol !== EXEC_PROTOCOL) {
    socket.terminate();
    throw new ProviderError("unavailable", `the backend does not speak ${EXEC_PROTOCOL}`);
  }
  return new SocketProcess(socket, options);
}

class SocketProcess implements ProcessStreams {
  readonly stdin: Writable | null;
  readonly stdout: Readable | null;
  readonly stderr: Readable | null;
  readonly exit: Promise<{ exitCode: number }>;
  readonly #socket: WebSocket;
  /** Outputs whose reader has enough for now. */
  readonly #full = new Set<Readable>();
  #isOver = false;

  constructor(socket: WebSocket, options: StreamOptions) {
    this.#socket = socket;
    this.stdin = options.stdin ? this.#newInput() : null;
    this.stdout = options.stdout ? this.#newOutput() : null;
    this.stderr = options.stderr && !options.tty ? this.#newOutput() : null;
    const { promise, resolve, reject } = Promise.withResolvers<{ exitCode: number }>();
    this.exit = promise;
    // A caller that does not ask how it ended must not crash the process.
    promise.catch(() => {});
    socket.on("message", (data: Buffer) => {
      const payload = data.subarray(1);
      switch (data[0] ?? -1) {
        case CHANNEL.stdout:
          this.#deliver(this.stdout, payload);
          return;
        case CHANNEL.stderr:
          this.#deliver(this.stderr, payload);
          return;
        case CHANNEL.halfClose:
          if (payload[0] === CHANNEL.stdout) this.#end(this.stdout);
          if (payload[0] === CHANNEL.stderr) this.#end(this.stderr);
          return;
        case CHANNEL.status:
          this.#finish(() => resolve({ exitCode: exitOfStatus(payload.toString("utf8")) }), reject);
      }
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      if (this.#isOver) return;
      this.#isOver = true;
      const lost = new ProviderError("unavailable", "the stream to the backend broke before the command's end");
      reject(lost);
      this.stdout?.destroy(lost);
      this.stderr?.destroy(lost);
      this.stdin?.destroy();
    });
    socket.resume();
  }

  resize(columns: number, rows: number): void {
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    this.#socket.send(channelMessage(CHANNEL.resize, JSON.stringify({ Width: columns, Height: rows })));
  }

  close(): void {
    if (this.#isOver) return;
    this.#socket.close(1000);
    // A backend that does not answer the closing handshake is not waited for.
    this.#socket.terminate();
  }

  #finish(succeed: () => void, fail: (error: unknown) => void): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#end(this.stdout);
    this.#end(this.stderr);
    this.stdin?.destroy();
    try {
      succeed();
    } catch (thrown) {
      fail(thrown);
    }
    this.#socket.close(1000);
  }

  #newInput(): Writable {
    const input = new Writable({
      write: (chunk: Buffer, _encoding, done) =>
        send(this.#socket, chunk, done, (piece) => channelMessage(CHANNEL.stdin, piece)),
      final: (done) => {
        if (this.#socket.readyState === this.#socket.OPEN)
          this.#socket.send(Buffer.from([CHANNEL.halfClose, CHANNEL.stdin]), done);
        else done();
      },
    });
    // A command that ends before it has read everything is not an error of its writer; `exit` tells how it went.
    input.on("error", () => {});
    return input;
  }

  #newOutput(): Readable {
    const output: Readable = new Readable({
      read: () => {
        if (this.#full.delete(output) && this.#full.size === 0) this.#socket.resume();
      },
      destroy: (error, done) => {
        if (this.#full.delete(output) && this.#full.size === 0) this.#socket.resume();
        done(error);
      },
    });
    output.on("error", () => {});
    return output;
  }

  #deliver(output: Readable | null, payload: Buffer): void {
    if (output === null || output.destroyed || output.readableEnded || payload.length === 0) return;
    if (output.push(payload)) return;
    this.#full.add(output);
    this.#socket.pause();
  }

  #end(output: Readable | null): void {
    if (output !== null && !output.destroyed) output.push(null);
  }
}

export async function openPort(client: MachineApiClient, path: string, signal: AbortSignal): Promise<Duplex> {
  const socket = await openSocket(client, path, new URLSearchParams(), undefined, signal);
  let isDone = false;
  const stream: Duplex = new Duplex({
    allowHalfOpen: true,
    read: () => socket.resume(),
    write: (chunk: Buffer, _encoding, done) => {
      if (chunk.length === 0) done();
      else send(socket, chunk, done, (piece) => piece);
    },
    final: (done) => {
      if (socket.readyState === socket.OPEN) socket.send(Buffer.alloc(0), { binary: true }, done);
      else done();
    },
    destroy: (error, done) => {
      socket.terminate();
      done(error);
    },
  });
  socket.on("message", (data: Buffer) => {
    if (isDone) return;
    if (data.length === 0) {
      isDone = true;
      stream.push(null);
    } else if (!stream.push(data)) socket.pause();
  });
  socket.on("error", () => {});
  socket.on("close", () => {
    if (!isDone && !stream.destroyed) stream.destroy(new ProviderError("unavailable", "the stream to the port broke"));
    else if (!stream.writableFinished) stream.destroy();
  });
  socket.resume();
  return stream;
}
