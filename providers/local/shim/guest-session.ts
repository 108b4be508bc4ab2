/**
 * The host's end of a command in a guest: its streams over a socket that leads to a port of the VM. The other end is
 * engines/vm/guest/session.c. Both sides first say the session's token: what came before it is left from the port's
 * last user. Then frames (frames.ts), of the types below. Each side sends at most WINDOW_BYTES of the command's bytes
 * before it is told what of them was taken, so that a new size of the terminal never waits behind input that nobody
 * reads, nor the command's end behind output that nobody reads.
 *
 * The guest is not trusted: frames are bounded, an unknown one or more than there is room for ends the session.
 * Imports next to nothing: each shim has it.
 */
import type { GuestCommandPlace } from "../engine.ts";
import { connect, type Socket } from "node:net";
import { encodeFrame, FrameReader } from "./frames.ts";

const TO_GUEST = {
  stdin: 1,
  stdinEnd: 2,
  /** Columns and rows, two bytes each (big endian). */
  resize: 3,
  /** Four bytes (big endian): so much output has been taken. */
  taken: 4,
} as const;
const FROM_GUEST = {
  started: 1,
  /** Four bytes (big endian): so much input has been read. */
  taken: 2,
  /** One byte: the exit code. After the output that there was then, as far as there was room. */
  exit: 3,
  /** An empty one is the stream's end. */
  stdout: 4,
  stderr: 5,
} as const;

const WINDOW_BYTES = 64 * 1024;
const PIECE_BYTES = 16 * 1024;
const TOKEN_CHARS = 32;
/** More than a port's last user can have left in it. */
const MAX_NOISE_BYTES = 1 << 20;
/** Frames cost time however short they are: a guest whose frames come faster than so many a millisecond waits. */
const FRAMES_PER_MS = 20;
const MANY_FRAMES = 256;
/** A guest that has not answered by then never will: its end of the session has died. */
const GREETING_MS = 120_000;

interface GuestSessionEvents {
  /** The container runs (its runtime says so), or the connection stands. */
  started?(): void;
  output(stream: "stdout" | "stderr", chunk: Buffer): void;
  /** No more output on this stream; also when the session breaks off. */
  streamEnd(stream: "stdout" | "stderr"): void;
  /** The command's exit code. Never when the session breaks off. */
  exited(exitCode: number): void;
  /** All input that was written has been sent. */
  drained?(): void;
  /** The last event. `error`: why the session broke off; undefined after the command's end. */
  closed(error: Error | undefined): void;
}

export class GuestSession {
  readonly #socket: Socket;
  readonly #events: GuestSessionEvents;
  readonly #token: string;
  readonly #reader = new FrameReader((type, payload) => this.#receive(type, payload));
  readonly #patience: NodeJS.Timeout;
  readonly #open = new Set<"stdout" | "stderr">(["stdout", "stderr"]);
  #greeting = "";
  /** Before the greeting. */
  #noise = 0;
  /** Of the last bytes that came. */
  #frames = 0;
  #rest: NodeJS.Timeout | undefined;
  #isGreeted = false;
  #hasStarted = false;
  #hasExited = false;
  #isClosed = false;
  #error: Error | undefined;
  #isPaused = false;
  #window = WINDOW_BYTES;
  /** Output that came and was not yet told to be taken. */
  #owed = 0;
  #unsent: Buffer[] = [];
  #inputEnds = false;
  #isEndSent = false;

  /** Connects at once; failure is told by `closed`. */
  constructor(place: GuestCommandPlace, events: GuestSessionEvents) {
    this.#events = events;
    this.#token = place.token;
    this.#socket = connect(place.socket);
    this.#socket.write(place.token);
    this.#socket.on("data", (chunk) => this.#read(chunk));
    this.#socket.on("error", (error) => (this.#error ??= error));
    this.#socket.on("close", () => this.#closed());
    this.#patience = setTimeout(() => this.#break(new Error("the guest does not answer")), GREETING_MS);
    this.#patience.unref();
  }

  /** False when the caller should wait for `drained`. */
  write(data: Buffer): boolean {
    if (this.#isClosed || this.#inputEnds) return true;
    this.#unsent.push(data);
    this.#send();
    return this.#unsent.length === 0;
  }

  /** No more input after what was written. */
  end(): void {
    if (this.#inputEnds) return;
    this.#inputEnds = true;
    this.#send();
  }

  resize(columns: number, rows: number): void {
    const size = Buffer.alloc(4);
    size.writeUInt16BE(Math.max(0, Math.min(Math.trunc(columns) || 0, 0xffff)), 0);
    size.writeUInt16BE(Math.max(0, Math.min(Math.trunc(rows) || 0, 0xffff)), 2);
    this.#socket.write(encodeFrame(TO_GUEST.resize, size));
  }

  /** The guest's output waits, but for what is under way: no more than WINDOW_BYTES. All else goes on. */
  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    this.#isPaused = false;
    this.#settle();
  }

  /** Breaks the session off. A command that was started for it alone (exec) is killed in the guest. */
  close(): void {
    this.#socket.destroy();
  }

  #send(): void {
    if (this.#isClosed) return;
    while (this.#window > 0) {
      const next = this.#unsent.shift();
      if (next === undefined) break;
      const piece = next.subarray(0, Math.min(PIECE_BYTES, this.#window));
      if (piece.length < next.length) this.#unsent.unshift(next.subarray(piece.length));
      this.#window -= piece.length;
      this.#socket.write(encodeFrame(TO_GUEST.stdin, piece));
    }
    if (!this.#inputEnds || this.#unsent.length > 0 || this.#isEndSent) return;
    this.#isEndSent = true;
    this.#socket.write(encodeFrame(TO_GUEST.stdinEnd, ""));
  }

  #read(chunk: Buffer): void {
    try {
      if (this.#isGreeted) {
        this.#take(chunk);
        return;
      }
      // One character a byte, so that offsets are those of the chunk.
      const text = this.#greeting + chunk.toString("latin1");
      const at = text.indexOf(this.#token);
      if (at < 0) {
        this.#noise += chunk.length;
        if (this.#noise > MAX_NOISE_BYTES) throw new Error("the guest sends without end, and not the session's token");
        this.#greeting = text.slice(-TOKEN_CHARS);
        return;
      }
      this.#isGreeted = true;
      clearTimeout(this.#patience);
      this.#take(Buffer.from(text.slice(at + this.#token.length), "latin1"));
    } catch (thrown) {
      this.#break(thrown as Error);
    }
  }

  #take(chunk: Buffer): void {
    this.#frames = 0;
    this.#reader.push(chunk);
    this.#settle();
    if (this.#frames < MANY_FRAMES) return;
    this.#socket.pause();
    this.#rest = setTimeout(() => this.#socket.resume(), this.#frames / FRAMES_PER_MS);
  }

  #break(error: Error): void {
    this.#error ??= error;
    this.#socket.destroy();
  }

  /** Makes room for as much output as was taken. */
  #settle(): void {
    if (this.#isPaused || this.#owed === 0 || this.#isClosed) return;
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(this.#owed);
    this.#owed = 0;
    this.#socket.write(encodeFrame(TO_GUEST.taken, bytes));
  }

  #receive(type: number, payload: Buffer): void {
    this.#frames++;
    if (type === FROM_GUEST.stdout) this.#receiveOutput("stdout", payload);
    else if (type === FROM_GUEST.stderr) this.#receiveOutput("stderr", payload);
    else if (type === FROM_GUEST.started && !this.#hasStarted) {
      this.#hasStarted = true;
      this.#events.started?.();
    } else if (type === FROM_GUEST.taken && payload.length === 4) this.#receiveRoom(payload.readUInt32BE());
    else if (type === FROM_GUEST.exit && payload.length === 1) {
      if (this.#hasExited) throw new Error("the guest told a second exit code");
      this.#hasExited = true;
      this.#events.exited(payload[0]!);
    } else throw new Error(`the guest sent a frame of type ${type} with ${payload.length} bytes`);
    if (this.#hasExited && this.#open.size === 0) this.#socket.destroy();
  }

  /** Without bytes it is the stream's end. */
  #receiveOutput(stream: "stdout" | "stderr", payload: Buffer): void {
    if (!this.#open.has(stream)) throw new Error(`the guest wrote to ${stream} after its end`);
    this.#owed += payload.length;
    if (this.#owed > WINDOW_BYTES) throw new Error("the guest sent more output than there is room for");
    if (payload.length > 0) this.#events.output(stream, payload);
    else this.#streamEnd(stream);
  }

  /** The guest has read so many bytes of the input: there is room for as many more. */
  #receiveRoom(bytes: number): void {
    this.#window += bytes;
    if (this.#window > WINDOW_BYTES) throw new Error("the guest has read more input than it was given");
    const hadUnsent = this.#unsent.length > 0;
    if (hadUnsent) this.#send();
    if (hadUnsent && this.#unsent.length === 0) this.#events.drained?.();
  }

  #streamEnd(stream: "stdout" | "stderr"): void {
    if (this.#open.delete(stream)) this.#events.streamEnd(stream);
  }

  #closed(): void {
    this.#isClosed = true;
    clearTimeout(this.#patience);
    clearTimeout(this.#rest);
    this.#unsent = [];
    const isComplete = this.#hasExited && this.#open.size === 0;
    for (const stream of [...this.#open]) this.#streamEnd(stream);
    this.#events.closed(
      isComplete
        ? undefined
        : (this.#error ?? new Error("the connection to the guest was closed before the command ended")),
    );
  }
}
