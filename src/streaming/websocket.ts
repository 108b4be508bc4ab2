/**
 * Kubernetes' WebSocket framing: several channels over one connection. A binary message is the channel's number in one
 * byte and its bytes; in the base64 protocols a text message is the number as a character, counted from "0" on, and the
 * bytes in base64.
 */
import type { IncomingMessage } from "node:http";
import { type Duplex, Readable, Writable } from "node:stream";
import { hoursToMilliseconds } from "date-fns/hoursToMilliseconds";
import { WebSocketServer, type WebSocket } from "ws";
import { HttpError } from "../http/http-error.ts";
import type { Clock } from "../util/clock.ts";
import { IdleTimer, every } from "../util/idle-timer.ts";
import type { WithDefaults } from "../util/options.ts";
import { shareUnread } from "../http/share-unread.ts";
import type { UnreadShare } from "../util/unread.ts";
import { headerList, type UpgradeRequest } from "./upgrade.ts";

/** In a list of offers, a bearer token in disguise for clients that cannot set headers (browsers). */
export const BEARER_PROTOCOL_PREFIX = "base64url.bearer.authorization.k8s.io.";

/** In `v5`, a message `[255, channel]` closes a channel. */
const CLOSE_CHANNEL = 255;

const FIRST_DIGIT = "0".charCodeAt(0);

/**
 * golang.org/x/net/websocket's limit, which is the kubelet's: some clients send a whole file as one message of stdin.
 */
const MAX_MESSAGE_BYTES = 32 * 1024 * 1024;
/** As many pieces of 32 KiB, kubectl's, as make such a message. */
const MAX_FRAGMENTS = 1024;

/**
 * The first protocol of the client that the server has; "" when it names none and the server knows "".
 *
 * @throws HttpError 403 when there is none in common
 */
export function negotiateWebSocketProtocol(request: IncomingMessage, supported: readonly string[]): string {
  const offered = headerList(request.headers["sec-websocket-protocol"]).filter(
    (name) => !name.startsWith(BEARER_PROTOCOL_PREFIX),
  );
  if (offered.length === 0) offered.push("");
  const chosen = offered.find((protocol) => supported.includes(protocol));
  if (chosen !== undefined) return chosen;
  throw new HttpError(
    403,
    `unable to upgrade: requested protocol(s) are not supported: [${offered.join(" ")}]; supports [${supported.join(" ")}]`,
  );
}

/**
 * Answers 101 with `protocol` as chosen before. Resolves with the open connection; rejects when the handshake is
 * malformed.
 */
export function acceptWebSocketUpgrade(upgrade: UpgradeRequest, protocol: string): Promise<WebSocket> {
  const { request, socket, head } = upgrade;
  // `SPDY/3.1+portforward.k8s.io` is not a token of RFC 6455 and `ws` would answer 400, on which kubectl silently falls
  // back to SPDY. So ws sees no protocols, and the choice is put into its reply here.
  delete request.headers["sec-websocket-protocol"];
  const server = new WebSocketServer({
    noServer: true,
    perMessageDeflate: false,
    maxPayload: MAX_MESSAGE_BYTES,
    maxFragments: MAX_FRAGMENTS,
    clientTracking: false,
  });
  if (protocol !== "") server.on("headers", (headers) => headers.push(`Sec-WebSocket-Protocol: ${protocol}`));
  return new Promise((resolve, reject) => {
    server.on("wsClientError", (error) => reject(new HttpError(400, error.message)));
    const gone = () => reject(new Error("the client closed the connection"));
    // It may have been closed while the request was looked at: then no event follows, and ws calls no callback.
    if (socket.closed) gone();
    socket.once("close", gone);
    server.handleUpgrade(request, socket, head, (webSocket) => {
      upgrade.answered = true;
      resolve(webSocket);
    });
  });
}

interface ChannelSocketOptions {
  clock: Clock;
  /** The connection below the WebSocket, and the budget that it shares in. */
  unread?: (UnreadShare & { transport: Duplex }) | undefined;
  base64: boolean;
  /** The client may close single channels (`v5`). */
  closableChannels: boolean;
  /** Channels that the client sends on; messages on others are dropped. */
  inbound: readonly number[];
  /** Bytes buffered per channel before the connection is read no further. Default 256 KiB. */
  channelBufferBytes?: number | undefined;
  idleTimeoutMs?: number | undefined;
  pingIntervalMs?: number | undefined;
  closeGraceMs?: number | undefined;
}

export class ChannelSocket {
  readonly #webSocket: WebSocket;
  readonly #options: WithDefaults<Omit<ChannelSocketOptions, "unread">>;
  readonly #inbound = new Map<number, Readable>();
  /** Channels whose buffer is full: while there is one, nothing is read from the connection. */
  readonly #full = new Set<number>();
  readonly #finished = new Set<number>();
  readonly #idle: IdleTimer;
  readonly #stopPings: () => void;
  #stopCloseTimer: () => void = () => {};
  #closing = false;

  /** Resolves, never rejects, when the connection is over; with an error unless `close` was called before. */
  readonly closed: Promise<Error | undefined>;

  constructor(webSocket: WebSocket, options: ChannelSocketOptions) {
    this.#webSocket = webSocket;
    // Defaults in destructuring also hold for an option that is passed on as undefined.
    const {
      channelBufferBytes = 256 * 1024,
      idleTimeoutMs = hoursToMilliseconds(4),
      pingIntervalMs = 30_000,
      closeGraceMs = 10_000,
    } = options;
    this.#options = { ...options, channelBufferBytes, idleTimeoutMs, pingIntervalMs, closeGraceMs };
    for (const channel of options.inbound) {
      const readable = new Readable({
        highWaterMark: this.#options.channelBufferBytes,
        read: () => this.#hasRoom(channel),
        destroy: (error, callback) => {
          this.#hasRoom(channel);
          callback(error);
        },
      });
      readable.on("error", () => {});
      this.#inbound.set(channel, readable);
    }
    this.#idle = new IdleTimer(options.clock, this.#options.idleTimeoutMs, (ms) =>
      this.destroy(`idle for ${Math.round(ms / 1000)} s`),
    );
    this.#stopPings = every(options.clock, this.#options.pingIntervalMs, () => {
      if (webSocket.readyState !== webSocket.OPEN || webSocket.bufferedAmount > 0) return;
      // An answer would wait behind what is not read, and some clients give up when many do. A pong asks for none.
      if (this.#full.size > 0) webSocket.pong();
      else webSocket.ping();
    });
    if (options.unread !== undefined)
      shareUnread(webSocket, options.unread.transport, options.unread, () =>
        [...this.#inbound.values()].reduce((sum, { readableLength }) => sum + readableLength, 0),
      );
    let fault: Error | undefined;
    webSocket.on("error", (error) => (fault = error));
    webSocket.on("message", (data, isBinary) => this.#receive(data as Buffer, isBinary));
    this.closed = new Promise((resolve) => {
      webSocket.on("close", () => {
        this.#idle.stop();
        this.#stopPings();
        this.#stopCloseTimer();
        for (const readable of this.#inbound.values()) readable.destroy();
        resolve(this.#closing ? undefined : (fault ?? new Error("the client closed the connection")));
      });
    });
  }

  /** What the client sends on `channel`, which must be one of the inbound ones. */
  readable(channel: number): Readable {
    const readable = this.#inbound.get(channel);
    if (readable === undefined) throw new RangeError(`channel ${channel} is not inbound`);
    return readable;
  }

  /** A write is done when the operating system took it: that is the back-pressure. */
  writable(channel: number): Writable {
    const writable = new Writable({
      highWaterMark: 32 * 1024,
      write: (chunk: Buffer, _encoding, callback) => this.#send(channel, chunk, callback),
    });
    // A client that leaves early is not an error of this process; `closed` resolves.
    writable.on("error", () => {});
    return writable;
  }

  /** One empty message: old clients wait for a first one on the lowest channel that the server writes. */
  announce(channel: number): void {
    this.#send(channel, Buffer.alloc(0), () => {});
  }

  /** Normal closure (1000); what was written is flushed first. */
  close(): void {
    this.#closing = true;
    // The stdin that the client may still be sending has no reader any more, and must not block its close frame.
    for (const readable of this.#inbound.values()) readable.destroy();
    this.#webSocket.close(1000);
    if (this.#webSocket.readyState !== this.#webSocket.CLOSED) {
      this.#stopCloseTimer = this.#options.clock.after(this.#options.closeGraceMs, () => this.#webSocket.terminate());
    }
  }

  /** Ends at once. @param reason at most 123 bytes, shown by some clients */
  destroy(reason: string): void {
    this.#webSocket.close(1001, reason);
    this.#webSocket.terminate();
  }

  #send(channel: number, payload: Buffer, callback: (error?: Error | null) => void): void {
    this.#idle.touch();
    if (this.#options.base64) {
      const number = String.fromCharCode(FIRST_DIGIT + channel);
      this.#webSocket.send(`${number}${payload.toString("base64")}`, { binary: false }, callback);
      return;
    }
    const message = Buffer.allocUnsafe(payload.length + 1);
    message.writeUInt8(channel, 0);
    payload.copy(message, 1);
    this.#webSocket.send(message, { binary: true }, callback);
  }

  #receive(message: Buffer, isBinary: boolean): void {
    this.#idle.touch();
    if (message.length === 0) return;
    const first = message[0]!;
    const rest = message.subarray(1);
    // Text on a binary protocol is tolerated, as the kubelet does: its channel is a byte like any other.
    if (!this.#options.base64) {
      if (this.#options.closableChannels && isBinary && first === CLOSE_CHANNEL) this.#finish(rest[0]);
      else this.#deliver(first, rest);
      return;
    }
    this.#deliver(first - FIRST_DIGIT, Buffer.from(rest.toString("latin1"), "base64"));
  }

  #deliver(channel: number, payload: Buffer): void {
    const readable = this.#inbound.get(channel);
    if (readable === undefined || readable.destroyed || this.#finished.has(channel) || payload.length === 0) return;
    if (readable.push(payload)) return;
    this.#full.add(channel);
    this.#webSocket.pause();
  }

  #hasRoom(channel: number): void {
    if (this.#full.delete(channel) && this.#full.size === 0) this.#webSocket.resume();
  }

  #finish(channel: number | undefined): void {
    if (channel === undefined || this.#finished.has(channel)) return;
    this.#finished.add(channel);
    this.#inbound.get(channel)?.push(null);
  }
}
