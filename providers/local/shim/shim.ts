/**
 * The shim: one small process per running container, in a session of its own, so that it outlives the backend. It runs
 * one command, writes its output to log segments in the CRI format, serves attach on a unix socket, and leaves in its
 * folder (argv[2]):
 *   shim-claim         `pid starttime boot` of the shim, made by link(2): its maker owns the instance (see client.ts)
 *   shim-started.json  ShimStatus, once the command runs
 *   shim-exit.json     ShimStatus, once it has ended
 *   log.0, log.1, ...  log segments, the highest is the current one
 *
 * It imports next to nothing: a few hundred of these may run at once (9 MB private memory each, 40 ms to start). That
 * is also why it reads the clock itself: it is a program of its own, not a part that a simulation could drive.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { closeSync, fsyncSync, linkSync, openSync, readFileSync, renameSync, unlinkSync, writeFileSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import type { GuestPlan, HostPlan, ShimStreams } from "../engine.ts";
import { encodeFrame, FRAME, FrameReader, type ShimHello, type ShimStatus } from "./frames.ts";
import { GuestSession } from "./guest-session.ts";
import { LogWriter } from "./log-writer.ts";
import { cannotRun } from "./runnable.ts";
import { terminalInput } from "./terminal-input.ts";
import { terminalOutput } from "./terminal-output.ts";
import { commandBegun } from "./terminal-start.ts";

/** What the backend writes to `shim-launch.json` before it starts the shim. */
export type ShimLaunch = ShimCommand & ShimLimits;

type ShimCommand = (HostPlan | GuestPlan) & ShimStreams;

interface ShimLimits {
  logMaxBytes: number;
  logMaxFiles: number;
  /** Module path of node-pty, loaded only with `tty`. */
  ptyModule: string;
}

/** Above this many unsent bytes to one attached client, the command's output waits. */
const ATTACH_HIGH_WATER = 1 << 20;
/** How long a shim whose command and streams are over waits for attached clients to take the rest. */
const LINGER_MS = 5_000;
const PID_FILE_POLL_MS = 5;
/** How often a shim whose clients hold the output back looks whether the container still lives. */
const HELD_BACK_POLL_MS = 500;
const WRITE_RETRY_MS = 1_000;
const START_ERROR_BYTES = 2048;
const SIGNAL_EXIT_BASE = 128;
const START_ERROR_EXIT = 128;
/** The VM is gone: the command's end is unknown. */
const GUEST_LOST_EXIT = 255;

const dir = process.argv[2]!;
const SIGNAL_NUMBERS: Record<string, number> = (await import("node:os")).constants.signals;

/** An end outlives a loss of power: by it a next backend tells what has been done. */
function writeAtomically(name: string, status: ShimStatus): void {
  const flush = status.exit !== undefined;
  const temporary = join(dir, `${name}.tmp`);
  writeFileSync(temporary, JSON.stringify(status), { mode: 0o600, flush });
  renameSync(temporary, join(dir, name));
  if (!flush) return;
  const folder = openSync(dir, "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** False when someone else owns this instance: then nothing may be started. */
function claim(): boolean {
  const stat = readFileSync("/proc/self/stat", "latin1");
  const startTime = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]!;
  const mine = join(dir, `shim-claim.${process.pid}`);
  const boot = readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim();
  writeFileSync(mine, `${process.pid} ${startTime} ${boot}`, { mode: 0o600 });
  try {
    linkSync(mine, join(dir, "shim-claim"));
    return true;
  } catch {
    return false;
  } finally {
    unlinkSync(mine);
  }
}

interface Client {
  socket: Socket;
  hello: ShimHello | undefined;
}

/** The running command, at the end of pipes, of a terminal or of a guest's port alike. */
interface Running {
  /** Absent: it is not a process of this host, and will be told to run. */
  pid?: number | undefined;
  /** Where the container's own process id will be, once it runs. */
  pidFile?: string | undefined;
  /** Its end is told only when its output was read. */
  tellsEndAfterOutput?: boolean | undefined;
  pause(): void;
  resume(): void;
  /** False when the caller should wait for `onDrain`. */
  writeStdin(data: Buffer): boolean;
  endStdin(): void;
  resize(columns: number, rows: number): void;
}

class Shim {
  readonly #launch: ShimLaunch;
  readonly #log: LogWriter;
  readonly #clients = new Set<Client>();
  #status: ShimStatus = { state: "starting" };
  #running: Running | undefined;
  #streamsOpen = 0;
  readonly #unwritten = new Set<string>();
  #stdinHeld: Buffer[] = [];
  #startErrors = "";
  #pidPoll: NodeJS.Timeout | undefined;
  readonly #server = createServer((socket) => this.#accept(socket));

  constructor(launch: ShimLaunch) {
    this.#launch = launch;
    this.#log = new LogWriter(dir, launch.logMaxBytes, launch.logMaxFiles);
  }

  run(): void {
    try {
      unlinkSync(this.#launch.socket);
    } catch {
      // The usual case: there is none.
    }
    this.#server.once("error", (error) => {
      // Nothing was begun, and nothing will be: the caller may try again.
      unlinkSync(join(dir, "shim-claim"));
      throw error;
    });
    this.#server.listen(this.#launch.socket, () => {
      // The backend waits for this line before it connects.
      process.stdout.write("ready\n");
      void this.#start();
    });
  }

  async #start(): Promise<void> {
    const launch = this.#launch;
    if ("guest" in launch) {
      this.#startInGuest(launch);
      return;
    }
    const problem = cannotRun(launch);
    if (problem !== undefined) {
      this.#exited(START_ERROR_EXIT, undefined, { startError: problem });
      this.#finishWhenDrained();
      return;
    }
    try {
      if (launch.tty) await this.#startOnTerminal(launch);
      else this.#startOnPipes(launch);
    } catch (thrown) {
      // Most of what exec(2) refuses comes as an event; arguments and environment that are too long come as this.
      if (this.#running !== undefined) throw thrown;
      const { code, message } = thrown as NodeJS.ErrnoException;
      const why = code === "E2BIG" ? "argument list too long" : message;
      this.#exited(START_ERROR_EXIT, undefined, { startError: `exec: "${launch.argv[0]!}": ${why}` });
      this.#finishWhenDrained();
    }
  }

  /** The command waits there for the first word. */
  #startInGuest({ guest, tty }: GuestPlan & ShimStreams): void {
    this.#streamsOpen = 2;
    const session = new GuestSession(guest, {
      started: () => this.#started(),
      output: (stream, chunk) => this.#output(stream, chunk),
      streamEnd: (stream) => {
        this.#log.end(stream);
        this.#streamsOpen--;
      },
      exited: (code) => this.#exited(code, undefined),
      drained: () => this.#resumeClients(),
      closed: (error) => {
        if (error !== undefined) process.stderr.write(`guest: ${error.message}\n`);
        this.#exited(GUEST_LOST_EXIT, undefined, { lost: true });
        this.#resumeClients();
        this.#finishWhenDrained();
      },
    });
    this.#begin({
      pause: () => session.pause(),
      resume: () => session.resume(),
      writeStdin: (data) => session.write(data),
      endStdin: () => session.end(),
      resize: (columns, rows) => {
        if (tty) session.resize(columns, rows);
      },
    });
  }

  #startOnPipes(launch: HostPlan & ShimStreams & ShimLimits): void {
    const { argv, env, cwd, uid, gid, stdin } = launch;
    const child: ChildProcess = spawn(argv[0]!, argv.slice(1), {
      env,
      cwd,
      uid,
      gid,
      detached: true,
      stdio: [stdin ? "pipe" : "ignore", "pipe", "pipe"],
    });
    child.on("error", (error) => {
      if (child.pid === undefined) this.#exited(START_ERROR_EXIT, undefined, { startError: `exec: ${error.message}` });
    });
    for (const name of ["stdout", "stderr"] as const) {
      // None without descriptors to spare: the error comes after this.
      const stream = child[name] as ChildProcess["stdout"] | undefined;
      if (stream === null || stream === undefined) continue;
      this.#streamsOpen++;
      stream.on("data", (chunk: Buffer) => this.#output(name, chunk));
      stream.on("close", () => {
        this.#log.end(name);
        this.#streamsOpen--;
        this.#finishWhenDrained();
      });
    }
    child.stdin?.on("error", () => {});
    child.stdin?.on("drain", () => this.#resumeClients());
    child.on("exit", (code, signal) => {
      this.#exited(
        code ?? SIGNAL_EXIT_BASE + SIGNAL_NUMBERS[signal!]!,
        signal === null ? undefined : SIGNAL_NUMBERS[signal],
      );
      this.#finishWhenDrained();
    });
    if (child.pid === undefined) return;
    this.#begin({
      pid: child.pid,
      pidFile: launch.pidFile,
      pause: () => {
        child.stdout!.pause();
        child.stderr!.pause();
      },
      resume: () => {
        child.stdout!.resume();
        child.stderr!.resume();
      },
      writeStdin: (data) => child.stdin?.write(data) ?? true,
      endStdin: () => child.stdin?.end(),
      resize: () => {},
    });
  }

  async #startOnTerminal(launch: HostPlan & ShimStreams & ShimLimits): Promise<void> {
    const { argv, env, cwd, uid, gid } = launch;
    const loaded = (await import(launch.ptyModule)) as typeof import("@lydell/node-pty") & {
      default?: typeof import("@lydell/node-pty");
    };
    const terminal = (loaded.default ?? loaded).spawn(argv[0]!, argv.slice(1), {
      name: env["TERM"] ?? "xterm",
      env,
      cwd,
      uid,
      gid,
      encoding: null,
    });
    const input = terminalInput(terminal);
    const output = terminalOutput(terminal);
    input.on("drain", () => this.#resumeClients());
    this.#streamsOpen = 1;
    terminal.onData((data) => this.#output("stdout", data as unknown as Buffer));
    const running: Running = {
      pid: terminal.pid,
      pidFile: launch.pidFile,
      tellsEndAfterOutput: true,
      pause: () => output.pause(),
      resume: () => output.resume(),
      writeStdin: (data) => input.write(data),
      // End of file on a terminal is a character.
      endStdin: () => input.write("\u0004"),
      resize: (columns, rows) => terminal.resize(columns, rows),
    };
    terminal.onExit(({ exitCode, signal }) => {
      // It may be over before it was seen to have begun.
      this.#begin(running);
      const ended = signal === undefined || signal === 0 ? undefined : signal;
      this.#exited(ended === undefined ? exitCode : SIGNAL_EXIT_BASE + ended, ended);
      this.#log.end("stdout");
      this.#streamsOpen = 0;
      this.#finishWhenDrained();
    });
    await commandBegun(terminal);
    this.#begin(running);
  }

  #begin(running: Running): void {
    if (this.#running !== undefined) return;
    this.#running = running;
    const isWritten = this.#stdinHeld.splice(0).map((data) => running.writeStdin(data));
    if (isWritten.every(Boolean)) this.#resumeClients();
    if (running.pidFile !== undefined) this.#pidPoll = setInterval(() => this.#readPidFile(), PID_FILE_POLL_MS);
    else if (running.pid !== undefined) this.#started(running.pid);
  }

  #readPidFile(): void {
    const file = this.#running?.pidFile;
    if (file === undefined || this.#status.state !== "starting") return;
    try {
      const pid = Number(readFileSync(file, "latin1").trim());
      if (Number.isInteger(pid) && pid > 0) this.#started(pid);
    } catch {
      // Not yet.
    }
  }

  #started(pid?: number): void {
    if (this.#status.state !== "starting") return;
    clearInterval(this.#pidPoll);
    this.#setStatus("shim-started.json", { state: "running", pid, startedAt: Date.now() });
  }

  #exited(exitCode: number, signal: number | undefined, how: { startError?: string; lost?: true } = {}): void {
    if (this.#status.state === "exited") return;
    this.#readPidFile();
    clearInterval(this.#pidPoll);
    const failed =
      how.startError ??
      (this.#status.state === "starting" ? this.#startErrors.trim() || `exit code ${exitCode}` : undefined);
    this.#setStatus("shim-exit.json", {
      ...this.#status,
      state: "exited",
      exit: { exitCode, signal, startError: failed, lost: how.lost },
      finishedAt: Date.now(),
    });
  }

  #setStatus(file: string, status: ShimStatus): void {
    this.#status = status;
    this.#write(file, status);
    for (const client of this.#clients)
      if (client.hello !== undefined) client.socket.write(encodeFrame(FRAME.status, JSON.stringify(status)));
  }

  /** A full disk must not end the container, nor lose how it ended: the shim stays until that is written. */
  #write(file: string, status: ShimStatus): void {
    this.#unwritten.delete(file);
    try {
      writeAtomically(file, status);
    } catch (thrown) {
      // The machine was deleted: its folder is not read any more.
      if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return;
      process.stderr.write(`${file}: ${String(thrown)}\n`);
      this.#unwritten.add(file);
      setTimeout(() => {
        this.#write(file, status);
        this.#finishWhenDrained();
      }, WRITE_RETRY_MS);
    }
  }

  #output(stream: "stdout" | "stderr", chunk: Buffer): void {
    if (this.#status.state === "starting" && stream === "stderr")
      this.#startErrors = (this.#startErrors + chunk.toString()).slice(-START_ERROR_BYTES);
    this.#log.write(stream, chunk);
    for (const { socket, hello } of this.#clients) {
      if (!hello?.[stream]) continue;
      socket.write(encodeFrame(FRAME[stream], chunk));
      if (socket.writableLength > ATTACH_HIGH_WATER) this.#waitFor(socket);
    }
  }

  /** The command's output waits until this client has read; a client that goes away delays no other. */
  #waitFor(socket: Socket): void {
    if (this.#isContainerGone()) return;
    this.#running?.pause();
    const poll = setInterval(() => {
      if (this.#isContainerGone()) release();
    }, HELD_BACK_POLL_MS);
    const release = () => {
      clearInterval(poll);
      socket.off("drain", release);
      socket.off("close", release);
      if (!this.#isContainerGone())
        for (const client of this.#clients) if (client.socket.writableLength > ATTACH_HIGH_WATER) return;
      this.#running?.resume();
    };
    socket.on("drain", release);
    socket.on("close", release);
  }

  /**
   * True when the command is over though nobody told: a runtime in between does that only when it is rid of its last
   * output, what its pipes hold; a terminal only when all of it is read.
   */
  #isContainerGone(): boolean {
    if (this.#running === undefined || this.#status.pid === undefined) return false;
    if (this.#running.pidFile === undefined && this.#running.tellsEndAfterOutput !== true) return false;
    try {
      process.kill(this.#status.pid, 0);
      return false;
    } catch (thrown) {
      return (thrown as NodeJS.ErrnoException).code === "ESRCH";
    }
  }

  #accept(socket: Socket): void {
    const client: Client = { socket, hello: undefined };
    this.#clients.add(client);
    const reader = new FrameReader((type, payload) => this.#receive(client, type, payload));
    socket.on("data", (chunk) => {
      try {
        reader.push(chunk);
      } catch {
        socket.destroy();
      }
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      this.#clients.delete(client);
      if (client.hello?.stdin && this.#launch.stdinOnce) this.#running?.endStdin();
      this.#finishWhenDrained();
    });
  }

  #receive(client: Client, type: number, payload: Buffer): void {
    if (type === FRAME.hello) {
      client.hello = JSON.parse(payload.toString()) as ShimHello;
      client.socket.write(encodeFrame(FRAME.status, JSON.stringify(this.#status)));
    } else if (type === FRAME.stdin) {
      if (this.#running === undefined) this.#stdinHeld.push(Buffer.from(payload));
      if (this.#running?.writeStdin(Buffer.from(payload)) !== true) client.socket.pause();
    } else if (type === FRAME.stdinEnd) {
      if (this.#launch.stdinOnce) this.#running?.endStdin();
    } else if (type === FRAME.resize) {
      const { columns, rows } = JSON.parse(payload.toString()) as { columns: number; rows: number };
      // A terminal that is closed, or of no size, refuses.
      if (columns > 0 && rows > 0 && this.#status.state !== "exited") this.#running?.resize(columns, rows);
    }
  }

  #resumeClients(): void {
    for (const { socket } of this.#clients) socket.resume();
  }

  /**
   * The shim's own end: the command is over, its streams are closed (or no process holds them any more), clients have
   * it all.
   */
  #finishWhenDrained(): void {
    if (this.#status.state !== "exited" || this.#streamsOpen > 0 || this.#unwritten.size > 0) return;
    this.#server.close();
    for (const { socket } of this.#clients) socket.end();
    setTimeout(() => process.exit(0), LINGER_MS).unref();
    if (this.#clients.size === 0) process.exit(0);
  }
}

for (const signal of ["SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE"] as const) process.on(signal, () => {});
// The backend that reads it may be gone.
process.stdout.on("error", () => {});
process.stderr.on("error", () => {});
// All that may fail goes first: an instance that is taken counts as begun.
const shim = new Shim(JSON.parse(readFileSync(join(dir, "shim-launch.json"), "utf8")) as ShimLaunch);
if (claim()) shim.run();
