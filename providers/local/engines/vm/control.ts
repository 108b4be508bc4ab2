/**
 * The host's control channel into a guest: a shell behind the virtio port `ctl` (guest/init), to which commands are
 * sent as text and which answers each by its number. No program is started and nothing is encrypted for it, which in an
 * emulated processor is most of a command's time. Commands run side by side. The guest is not trusted: what it sends is
 * bounded, and an answer to no open call is dropped.
 */
import { randomBytes } from "node:crypto";
import { connect, type Socket } from "node:net";
import { type Clock, onAbort, VmletError } from "../../../../src/provider/kit/index.ts";

/** A command of the guest's vmlet (guest/vmlet): verb and arguments. */
export type GuestCommand = readonly string[];

const MAX_ANSWER_CHARS = 1 << 20;
/** What may come for the sake of one call, all told: its answer in parts. */
const CALL_CHARS = MAX_ANSWER_CHARS * 1.25;
/** Characters that may come while no call is open, such as late answers, until the next call. */
const SPARE_CHARS = 1 << 20;
/** For so much counts the shortest message: it is work, however short. */
const MESSAGE_CHARS = 1024;
const MAX_ERROR_CHARS = 1000;
/**
 * A guest that does not say hello by then is greeted again, over a new connection: the last one may have been cut
 * short.
 */
const HELLO_MS = 15_000;
const RETRY_MS = 50;
const START = "\u0001";
const END = "\u0002";

/** The guest ran the command, and it failed. */
export class GuestError extends VmletError {
  readonly code = "GUEST";
  constructor(code: number, output: string) {
    super(output.trim().slice(-MAX_ERROR_CHARS) || `the command failed with ${code} in the guest`);
  }
}

interface Call {
  output: string;
  resolve(output: string): void;
  reject(error: Error): void;
}

export class GuestControl {
  readonly #path: string;
  readonly #clock: Clock;
  readonly #calls = new Map<string, Call>();
  /** Answers to a former backend's calls must not be taken for those to ours. */
  readonly #prefix = randomBytes(6).toString("hex");
  #count = 0;
  #received = "";
  /** Characters that may yet come. A guest that sends more is cut off, whatever it sends and even if calls are open. */
  #allowed = 0;
  #socket: Socket | undefined;
  #greeted = false;
  #greeting: Promise<void> | undefined;
  #greeter: AbortSignal | undefined;

  constructor(path: string, clock: Clock) {
    this.#path = path;
    this.#clock = clock;
  }

  /**
   * Opens the connection without waiting for the guest. A VM that is about to be resumed must find its port connected:
   * otherwise its shell ends, and begins again a second later.
   */
  async open(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const socket = connect(this.#path);
      this.#socket = socket;
      this.#received = "";
      this.#allowed = SPARE_CHARS;
      socket.setEncoding("latin1").on("data", (text: string) => this.#read(text));
      socket.on("error", reject);
      socket.once("connect", () => resolve());
      socket.once("close", () => {
        if (this.#socket !== socket) return;
        this.#socket = undefined;
        this.#greeted = false;
        this.#failAll(new Error("the VM closed its control channel"));
      });
    });
  }

  /** Waits until the guest serves the channel. @throws when the signal aborts, or there is no VM */
  async ready(signal: AbortSignal): Promise<void> {
    while (!this.#greeted) {
      signal.throwIfAborted();
      const isFirst = this.#greeting === undefined;
      this.#greeting ??= this.#greet(signal).finally(() => (this.#greeting = undefined));
      try {
        await this.#greeting;
      } catch (thrown) {
        // Who greeted gave up: another one still wants to.
        if (isFirst || this.#greeter?.aborted !== true) throw thrown;
      }
    }
  }

  async #greet(signal: AbortSignal): Promise<void> {
    this.#greeter = signal;
    for (;;) {
      if (this.#socket === undefined) await this.open();
      const patience = AbortSignal.any([signal, AbortSignal.timeout(HELLO_MS)]);
      try {
        await this.#send("command -v vm_answer || . /bin/vmlet", "true", patience);
        this.#greeted = true;
        return;
      } catch (thrown) {
        signal.throwIfAborted();
        // Only a missed greeting is tried again.
        if (!patience.aborted) throw thrown;
        this.close();
        await this.#clock.sleep(RETRY_MS, signal);
      }
    }
  }

  /**
   * Runs the commands one after the other until one fails.
   * @returns what they printed
   * @throws GuestError with what the guest says when one fails
   */
  async run(commands: readonly GuestCommand[], signal: AbortSignal): Promise<string> {
    return await this.script(commands.map(commandLine).join("\n"), signal);
  }

  /** Runs shell text, of this host's making only. @throws GuestError when a line of it fails */
  async script(text: string, signal: AbortSignal): Promise<string> {
    await this.ready(signal);
    return await this.#send("", text, signal);
  }

  close(): void {
    const socket = this.#socket;
    this.#socket = undefined;
    this.#greeted = false;
    socket?.destroy();
    this.#failAll(new Error("the control channel was closed"));
  }

  /** `before` runs in the channel's own shell. */
  async #send(before: string, text: string, signal: AbortSignal): Promise<string> {
    signal.throwIfAborted();
    const id = `${this.#prefix}-${++this.#count}`;
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    this.#calls.set(id, { output: "", resolve, reject });
    this.#allow(CALL_CHARS + SPARE_CHARS);
    using _ = onAbort(signal, () => reject(signal.reason as Error));
    try {
      this.#socket?.write(
        `${before}\n{ out=$(exec 2>&1 </dev/null; set -e\n${text}\n); vm_answer ${id} $?; } </dev/null &\n`,
      );
      return await promise;
    } finally {
      this.#calls.delete(id);
      this.#allow(0);
    }
  }

  /** Never more than for the calls that are under way. */
  #allow(more: number): void {
    this.#allowed = Math.min(this.#allowed + more, SPARE_CHARS + this.#calls.size * CALL_CHARS);
  }

  #read(text: string): void {
    this.#allowed -= text.length;
    this.#received += text;
    for (let end = this.#received.indexOf(END); end >= 0 && this.#allowed >= 0; end = this.#received.indexOf(END)) {
      this.#allowed -= Math.max(0, MESSAGE_CHARS - end);
      this.#answered(this.#received.slice(this.#received.lastIndexOf(START, end) + 1, end));
      this.#received = this.#received.slice(end + 1);
    }
    if (this.#allowed < 0 || this.#received.length > MAX_ANSWER_CHARS)
      this.#socket?.destroy(new Error("the guest sends without end"));
  }

  #answered(answer: string): void {
    const match = /^([-0-9a-f]+) (\+|\d{1,3}) ([^]*)$/.exec(answer);
    const call = this.#calls.get(match?.[1] ?? "");
    if (match === null || call === undefined) return;
    call.output += match[3];
    if (call.output.length > MAX_ANSWER_CHARS) call.reject(new Error("the guest sent an answer without end"));
    else if (match[2] === "0") call.resolve(decode(call.output));
    else if (match[2] !== "+") call.reject(new GuestError(Number(match[2]), decode(call.output)));
  }

  #failAll(error: Error): void {
    for (const call of this.#calls.values()) call.reject(error);
  }
}

/** The channel is read as bytes, because a character may be cut in two by the parts of an answer. */
function decode(bytes: string): string {
  return Buffer.from(bytes, "latin1").toString("utf8");
}

export function commandLine([verb, ...args]: GuestCommand): string {
  return [`vm_${verb}`, ...args.map(quote)].join(" ");
}

/** For the guest's shell. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
