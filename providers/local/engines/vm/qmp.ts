/** QEMU's control socket (QMP): one connection per use, one command at a time. */
import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { onAbort, VmletError } from "../../../../src/provider/kit/index.ts";

const MAX_LINE_BYTES = 1 << 20;
/** What may come for the sake of one command, events and all. A QEMU that sends more is cut off, whatever it sends. */
const MAX_ANSWER_CHARS = 4 << 20;

class QmpError extends VmletError {
  readonly code = "QMP";
}

/** To be closed: `using qmp = await Qmp.open(...)`. */
export class Qmp implements Disposable {
  readonly #socket: Duplex;
  #buffer = "";
  /** Since the last command. */
  #received = 0;
  #waiting: { resolve(value: unknown): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;

  private constructor(socket: Duplex) {
    this.#socket = socket;
    socket.setEncoding("utf8").on("data", (text: string) => this.#read(text));
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new QmpError("QEMU closed its control socket")));
  }

  /** Connects and leaves capability negotiation. */
  static async open(path: string, signal: AbortSignal): Promise<Qmp> {
    return await Qmp.over(connect(path), signal);
  }

  /** By a connection to it that somebody else has made. */
  static async over(socket: Duplex, signal: AbortSignal): Promise<Qmp> {
    const qmp = new Qmp(socket);
    const listening = onAbort(signal, () => socket.destroy(signal.reason as Error));
    socket.once("close", () => listening[Symbol.dispose]());
    await qmp.execute("qmp_capabilities");
    return qmp;
  }

  /** @throws QmpError with QEMU's own words */
  async execute(command: string, args: object = {}): Promise<unknown> {
    if (this.#failure !== undefined) throw this.#failure;
    return await new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      this.#received = 0;
      this.#socket.write(`${JSON.stringify({ execute: command, arguments: args })}\n`);
    });
  }

  close(): void {
    this.#socket.destroy();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #read(text: string): void {
    this.#received += text.length;
    if (this.#received > MAX_ANSWER_CHARS) {
      this.#socket.destroy(new QmpError("QEMU sends without end"));
      return;
    }
    this.#buffer += text;
    if (this.#buffer.length > MAX_LINE_BYTES) {
      this.#socket.destroy(new QmpError("QEMU sent an endless line"));
      return;
    }
    for (let newline = this.#buffer.indexOf("\n"); newline >= 0; newline = this.#buffer.indexOf("\n")) {
      const message = parseLine(this.#buffer.slice(0, newline));
      if (message === undefined) {
        // A guest that has broken out of its processor may be speaking.
        this.#socket.destroy(new QmpError("QEMU sent a line that is no JSON object"));
        return;
      }
      this.#buffer = this.#buffer.slice(newline + 1);
      // Greeting and events need no answer.
      if (message.error !== undefined) this.#waiting?.reject(new QmpError(String(message.error?.desc)));
      else if ("return" in message) this.#waiting?.resolve(message.return);
    }
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#waiting?.reject(error);
  }
}

interface QmpMessage {
  return?: unknown;
  error?: { desc?: unknown } | null;
}

function parseLine(line: string): QmpMessage | undefined {
  try {
    const message: unknown = JSON.parse(line);
    return typeof message === "object" && message !== null ? message : undefined;
  } catch {
    return undefined;
  }
}
