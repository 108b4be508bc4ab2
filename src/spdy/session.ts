/**
 * One SPDY/3.1 session over any duplex stream: an upgraded socket or a WebSocket tunnel.
 *
 * Only one side opens streams: on the server's the peer, on the client's we (`open`). moby/spdystream implements no
 * flow control, so neither do we: back-pressure is that of the transport. Inbound, a stream whose reader is slow stops
 * the frame loop (as it does in spdystream, whose queues block); outbound, a write is done when the transport took it.
 * Nothing a peer sends can throw past the session.
 */
import { Duplex } from "node:stream";
import { hoursToMilliseconds } from "date-fns/hoursToMilliseconds";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { WithDefaults } from "../util/options.ts";
import { IdleTimer, every } from "../util/idle-timer.ts";
import type { UnreadAccount, UnreadShare } from "../util/unread.ts";
import {
  RST_STATUS,
  SpdyFrameParser,
  SpdyProtocolError,
  dataHeader,
  goawayFrame,
  pingFrame,
  rstStreamFrame,
  synReplyFrame,
  synStreamFrame,
  type SpdyFrame,
} from "./frames.ts";
import { HeaderDeflater, HeaderInflater, emptyHeaderBlock } from "./headers.ts";

interface SpdySessionOptions {
  clock: Clock;
  /** Default: the server's. */
  side?: "server" | "client" | undefined;
  /** Called for every stream the peer opens, after the reply was sent. Must not throw. On the server's side only. */
  onStream?: ((stream: SpdyStream) => void) | undefined;
  /** Open streams at a time; further ones are refused with RST_STREAM. Default 256. */
  maxStreams?: number | undefined;
  /** Largest header block, before and after inflation. Default 64 KiB. */
  maxHeaderBytes?: number | undefined;
  /** Bytes buffered per stream before the session stops reading. Default 256 KiB. */
  streamBufferBytes?: number | undefined;
  /** The session ends when neither side sent anything but pings for so long. Default 4 h. */
  idleTimeoutMs?: number | undefined;
  /** A ping is sent so often: it keeps middleboxes awake and finds out that a silent peer is gone. Default 30 s. */
  pingIntervalMs?: number | undefined;
  /** How long the peer may take to close after we did. Default 10 s. */
  closeGraceMs?: number | undefined;
  /** The budget of unread bytes, and the tenant that is charged. */
  unread?: UnreadShare | undefined;
}

/** spdystream allocates a whole frame before it hands it on, and a stalled stream blocks others: keep frames small. */
const MAX_OUTBOUND_FRAME = 32 * 1024;

export class SpdyStream extends Duplex {
  readonly id: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly #session: SpdySession;
  #resume: (() => void) | undefined;
  #peerFinished = false;
  #finished = false;
  #resetByPeer = false;

  /** Made by the session only. */
  constructor(session: SpdySession, id: number, headers: ReadonlyMap<string, string>, bufferBytes: number) {
    super({ readableHighWaterMark: bufferBytes, writableHighWaterMark: MAX_OUTBOUND_FRAME, allowHalfOpen: true });
    this.#session = session;
    this.id = id;
    this.headers = headers;
    // The stream's user learns of its end by `close`; a client that leaves early is not an error of this process.
    this.on("error", () => {});
  }

  /** Ends both directions at once with RST_STREAM. */
  reset(status: number = RST_STATUS.cancel): void {
    if (this.destroyed) return;
    this.#session.sendReset(this.id, status);
    this.#resetByPeer = true;
    this.destroy();
  }

  /** For the session: a piece of payload. Resolves when there is room for more. */
  async deliver(payload: Buffer): Promise<void> {
    if (this.destroyed || this.#peerFinished || payload.length === 0 || this.push(payload)) return;
    await new Promise<void>((resolve) => {
      this.#resume = resolve;
      if (this.destroyed) resolve();
    });
  }

  /** For the session: the peer sends no more. */
  deliverEnd(): void {
    if (this.#peerFinished || this.destroyed) return;
    this.#peerFinished = true;
    this.push(null);
  }

  /** For the session: the peer or the session's end closed the stream. */
  deliverReset(error?: Error): void {
    this.#resetByPeer = true;
    this.destroy(error);
  }

  override _read(): void {
    this.#resume?.();
    this.#resume = undefined;
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.#session.sendData(this.id, chunk, false, callback);
  }

  override _final(callback: (error?: Error | null) => void): void {
    this.#finished = true;
    this.#session.sendData(this.id, Buffer.alloc(0), true, callback);
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#resume?.();
    this.#resume = undefined;
    if (!this.#resetByPeer && !(this.#peerFinished && this.#finished))
      this.#session.sendReset(this.id, RST_STATUS.cancel);
    this.#session.forget(this.id);
    callback(error);
  }
}

export class SpdySession {
  readonly #transport: Duplex;
  readonly #options: WithDefaults<Omit<SpdySessionOptions, "unread">>;
  readonly #unread: UnreadAccount | undefined;
  readonly #streams = new Map<number, SpdyStream>();
  readonly #inflater: HeaderInflater;
  readonly #drained: ((error?: Error) => void)[] = [];
  /** On the client's side: who waits for the reply to a stream that was opened. */
  readonly #opening = new Map<number, PromiseWithResolvers<void>>();
  readonly #deflater: HeaderDeflater | undefined;
  #openedLast: Promise<unknown> = Promise.resolve();
  #nextStreamId = 1;
  #lastStreamId = 0;
  #replied = false;
  #closing = false;
  #ended = false;
  readonly #idle: IdleTimer;
  readonly #stopPings: () => void;
  #stopCloseTimer: () => void = () => {};
  #pingId: number;
  #resolveClosed!: (cause: Error | undefined) => void;

  /** Resolves, never rejects, when the session is over; with an error unless both sides ended in good order. */
  readonly closed: Promise<Error | undefined>;

  /** @param head bytes that arrived behind the request, already read from the socket */
  constructor(transport: Duplex, head: Buffer, options: SpdySessionOptions) {
    this.#transport = transport;
    // Defaults in destructuring also hold for an option that is passed on as undefined.
    const {
      maxStreams = 256,
      maxHeaderBytes = 64 * 1024,
      streamBufferBytes = 256 * 1024,
      idleTimeoutMs = hoursToMilliseconds(4),
      pingIntervalMs = 30_000,
      closeGraceMs = 10_000,
      side = "server",
      onStream = () => {},
    } = options;
    this.#options = {
      ...options,
      maxStreams,
      maxHeaderBytes,
      streamBufferBytes,
      idleTimeoutMs,
      pingIntervalMs,
      closeGraceMs,
      side,
      onStream,
    };
    this.#deflater = this.#isClient ? new HeaderDeflater() : undefined;
    // Odd ids are the client's questions, even ones the server's.
    this.#pingId = this.#isClient ? 1 : 2;
    this.#inflater = new HeaderInflater({ maxBytes: this.#options.maxHeaderBytes });
    this.closed = new Promise((resolve) => (this.#resolveClosed = resolve));
    this.#idle = new IdleTimer(options.clock, this.#options.idleTimeoutMs, (ms) =>
      this.#end(new Error(`idle for ${Math.round(ms / 1000)} s`)),
    );
    this.#stopPings = every(options.clock, this.#options.pingIntervalMs, () => this.#ping());
    this.#unread = options.unread?.budget.join({
      tenant: options.unread.tenant,
      measure: () => [...this.#streams.values()].reduce((sum, { readableLength }) => sum + readableLength, 0),
      cut: () => this.#end(new Error("too many bytes that nobody reads")),
    });
    transport.on("drain", () => this.#drain());
    transport.on("error", (error) => this.#end(error));
    transport.on("close", () => this.#end(this.#closing ? undefined : new Error(this.#leftByPeer)));
    void this.#readFrames(head);
  }

  /**
   * Ends in good order: GOAWAY, then the transport's end after everything written was flushed. What still arrives is
   * dropped, so that closing the socket cannot reset what the peer has not read yet.
   */
  close(): void {
    if (this.#closing || this.#ended) return;
    this.#closing = true;
    this.#transport.write(goawayFrame(this.#lastStreamId));
    this.#transport.end(() => {
      if (!this.#ended)
        this.#stopCloseTimer = this.#options.clock.after(this.#options.closeGraceMs, () => this.destroy());
    });
  }

  /** Ends at once; open streams are destroyed with `error`. */
  destroy(error?: Error): void {
    this.#end(error);
  }

  get #isClient(): boolean {
    return this.#options.side === "client";
  }

  get #leftByPeer(): string {
    return `the ${this.#isClient ? "server" : "client"} closed the connection`;
  }

  /**
   * Opens a stream, on the client's side; fulfilled when the server has replied, as the Go client has it: servers want
   * streams one after the other.
   * @throws Error when the server refuses it or the session ends
   */
  open(headers: Readonly<Record<string, string>>): Promise<SpdyStream> {
    const opened = this.#openedLast.then(() => this.#openOwn(headers));
    this.#openedLast = opened.catch(() => undefined);
    return opened;
  }

  async #openOwn(headers: Readonly<Record<string, string>>): Promise<SpdyStream> {
    if (this.#deflater === undefined) throw new Error("only the client opens streams");
    const block = await this.#deflater.next(headers);
    if (this.#ended || this.#closing) throw new Error("the session is closed");
    const id = this.#nextStreamId;
    this.#nextStreamId += 2;
    const stream = new SpdyStream(this, id, new Map(Object.entries(headers)), this.#options.streamBufferBytes);
    this.#streams.set(id, stream);
    const reply = Promise.withResolvers<void>();
    this.#opening.set(id, reply);
    this.#transport.write(synStreamFrame(id, block));
    try {
      await reply.promise;
    } finally {
      this.#opening.delete(id);
    }
    return stream;
  }

  /** For the streams. */
  sendData(streamId: number, payload: Buffer, fin: boolean, done: (error?: Error | null) => void): void {
    if (this.#ended || this.#closing) {
      done(new Error("the session is closed"));
      return;
    }
    this.#idle.touch();
    this.#transport.cork();
    let roomLeft = true;
    for (let offset = 0; offset < payload.length || (offset === 0 && fin); offset += MAX_OUTBOUND_FRAME) {
      const piece = payload.subarray(offset, offset + MAX_OUTBOUND_FRAME);
      this.#transport.write(dataHeader(streamId, piece.length, fin && offset + piece.length >= payload.length));
      if (piece.length > 0) roomLeft = this.#transport.write(piece);
    }
    this.#transport.uncork();
    if (roomLeft || !this.#transport.writableNeedDrain) done();
    else this.#drained.push(done);
  }

  /** For the streams. */
  sendReset(streamId: number, status: number): void {
    if (!this.#ended && !this.#closing) this.#transport.write(rstStreamFrame(streamId, status));
  }

  /** For the streams: `streamId` is closed. */
  forget(streamId: number): void {
    this.#streams.delete(streamId);
    this.#opening.get(streamId)?.reject(new Error("the server refused the stream"));
  }

  async #readFrames(head: Buffer): Promise<void> {
    // The header's compressed block plus the fixed fields before it.
    const parser = new SpdyFrameParser({ maxControlBytes: this.#options.maxHeaderBytes + 64 });
    try {
      for (const frame of parser.push(head)) await this.#handle(frame);
      // Leaving the loop must not destroy the transport: our own half may still be flushing.
      for await (const chunk of this.#transport.iterator({ destroyOnReturn: false })) {
        if (this.#ended) return;
        for (const frame of parser.push(chunk as Buffer)) await this.#handle(frame);
      }
      this.#end(this.#closing || this.#isClient ? undefined : new Error(this.#leftByPeer));
    } catch (thrown) {
      this.#end(toError(thrown));
    }
  }

  async #handle(frame: SpdyFrame): Promise<void> {
    if (frame.type !== "ping") this.#idle.touch();
    switch (frame.type) {
      case "syn_stream": {
        // Inflate even what will be refused: later blocks refer to this one.
        const headers = await this.#inflater.next(frame.headerBlock);
        this.#open(frame.streamId, headers, frame.fin);
        await this.#roomToAnswer();
        return;
      }
      case "headers":
        await this.#inflater.next(frame.headerBlock);
        this.#opening.get(frame.streamId)?.resolve();
        if (frame.fin) this.#streams.get(frame.streamId)?.deliverEnd();
        return;
      case "data": {
        const stream = this.#streams.get(frame.streamId);
        // Data of a stream that was just reset is on its way still; drop it.
        if (stream === undefined) return;
        this.#unread?.add(frame.payload.length);
        // A small piece would keep the whole chunk in memory that it came in.
        const isSmall = frame.payload.length * 2 < frame.payload.buffer.byteLength;
        await stream.deliver(isSmall ? Buffer.from(frame.payload) : frame.payload);
        if (frame.fin) stream.deliverEnd();
        return;
      }
      case "rst_stream":
        this.#wasReset(frame.streamId);
        return;
      case "ping":
        // What is not of our kind is the peer's question, the others are its answers to ours.
        if (frame.id % 2 !== this.#pingId % 2 && !this.#ended && !this.#closing)
          this.#transport.write(pingFrame(frame.id));
        await this.#roomToAnswer();
        return;
      case "goaway":
        return;
    }
  }

  #wasReset(streamId: number): void {
    const stream = this.#streams.get(streamId);
    // moby/spdystream's servers also end so what they have sent in whole.
    if (this.#isClient && !this.#opening.has(streamId)) stream?.deliverEnd();
    else stream?.deliverReset();
  }

  #open(streamId: number, headers: ReadonlyMap<string, string>, fin: boolean): void {
    if (this.#isClient) throw new SpdyProtocolError(`the server has opened stream ${streamId}`);
    if (streamId % 2 === 0 || streamId <= this.#lastStreamId) {
      throw new SpdyProtocolError(`stream id ${streamId} after ${this.#lastStreamId} is not odd and rising`);
    }
    this.#lastStreamId = streamId;
    if (this.#closing || this.#ended) return;
    if (this.#streams.size >= this.#options.maxStreams) {
      this.sendReset(streamId, RST_STATUS.refusedStream);
      return;
    }
    const stream = new SpdyStream(this, streamId, headers, this.#options.streamBufferBytes);
    this.#streams.set(streamId, stream);
    // At once: the Go client waits for the reply of each stream before it opens the next.
    this.#transport.write(synReplyFrame(streamId, emptyHeaderBlock(!this.#replied)));
    this.#replied = true;
    if (fin) stream.deliverEnd();
    this.#options.onStream(stream);
  }

  /** Waits for the transport, so that a peer that floods us and reads no answer stops being read itself. */
  async #roomToAnswer(): Promise<void> {
    if (this.#ended || !this.#transport.writableNeedDrain) return;
    await new Promise<void>((resolve) => this.#drained.push(() => resolve()));
  }

  #drain(error?: Error): void {
    for (const done of this.#drained.splice(0)) done(error);
  }

  #ping(): void {
    // Nothing is gained by pinging while earlier output is stuck.
    if (this.#ended || this.#closing || this.#transport.writableNeedDrain) return;
    this.#transport.write(pingFrame(this.#pingId));
    this.#pingId += 2;
  }

  #end(error: Error | undefined): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#idle.stop();
    this.#stopPings();
    this.#stopCloseTimer();
    this.#unread?.leave();
    this.#drain(error ?? new Error("the session is closed"));
    // A server ends by closing the connection: what it has sent before is the reader's.
    for (const stream of this.#streams.values())
      if (this.#isClient && error === undefined) stream.deliverEnd();
      else stream.deliverReset(error);
    for (const { reject } of this.#opening.values()) reject(error ?? new Error("the session is closed"));
    this.#inflater.close();
    this.#deflater?.close();
    this.#transport.destroy();
    this.#resolveClosed(error);
  }
}
