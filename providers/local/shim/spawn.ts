/** Commands of this host as the streams of an exec session. */
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { PassThrough } from "node:stream";
import { onAbort, type ProcessStreams, ProviderError, type StreamOptions } from "../../../src/provider/kit/index.ts";
import { terminalInput } from "./terminal-input.ts";
import { terminalOutput } from "./terminal-output.ts";
import { commandBegun } from "./terminal-start.ts";

interface SpawnPlan {
  argv: string[];
  env: Record<string, string>;
  cwd: string;
  uid?: number;
  gid?: number;
}

/**
 * Runs a command of this host with the streams of an exec session, in a session of its own, on a terminal when `tty`.
 * `close()` and the abort signal kill its process group. Streams push back both ways.
 *
 * `streams.exit` resolves with 128 + signal when a signal ended the command; it rejects with ProviderError `invalid`
 * when it does not exist.
 */
export async function spawnStreams(plan: SpawnPlan, options: StreamOptions): Promise<ProcessStreams> {
  const streams = options.tty ? await spawnOnTerminal(plan, options) : spawnOnPipes(plan, options);
  const close = () => streams.close();
  const listening = onAbort(options.signal, close);
  const forget = () => listening[Symbol.dispose]();
  streams.exit.then(forget, forget);
  return streams;
}

function spawnOnPipes(plan: SpawnPlan, options: StreamOptions): ProcessStreams {
  const { argv, env, cwd, uid, gid } = plan;
  const child = spawn(argv[0]!, argv.slice(1), {
    env,
    cwd,
    uid,
    gid,
    detached: true,
    stdio: [options.stdin ? "pipe" : "ignore", options.stdout ? "pipe" : "ignore", options.stderr ? "pipe" : "ignore"],
  });
  child.stdin?.on("error", () => {});
  const exit = new Promise<{ exitCode: number }>((resolve, reject) => {
    child.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "EACCES") {
        const text = `exec: "${argv[0]}": ${error.code === "ENOENT" ? "executable file not found" : "permission denied"}`;
        reject(new ProviderError("invalid", text, { cause: error, field: "command" }));
      } else reject(new ProviderError("unavailable", `cannot run ${argv[0]}: ${error.message}`, { cause: error }));
    });
    let ended: { exitCode: number } | undefined;
    const done = () => {
      if (ended !== undefined && streamsOver(child.stdout, child.stderr)) resolve(ended);
    };
    child.once("exit", (code, signal) => {
      ended = { exitCode: code ?? 128 + constants.signals[signal!] };
      done();
    });
    child.stdout?.once("close", done);
    child.stderr?.once("close", done);
  });
  exit.catch(() => {});
  return {
    stdin: child.stdin,
    stdout: child.stdout,
    stderr: child.stderr,
    exit,
    resize() {},
    close() {
      child.stdin?.destroy();
      if (child.pid !== undefined) killGroup(child.pid);
      child.stdout?.destroy();
      child.stderr?.destroy();
    },
  };
}

function streamsOver(...streams: ({ closed: boolean } | null)[]): boolean {
  return streams.every((stream) => stream === null || stream.closed);
}

async function spawnOnTerminal(plan: SpawnPlan, options: StreamOptions): Promise<ProcessStreams> {
  // Loaded here because it brings native code, and most sessions have no terminal.
  const pty = await import("@lydell/node-pty");
  const { argv, env, cwd, uid, gid } = plan;
  const terminal = pty.spawn(argv[0]!, argv.slice(1), {
    name: env["TERM"] ?? "xterm",
    env,
    cwd,
    uid,
    gid,
    encoding: null,
  });
  const stdout = new PassThrough();
  const output = terminalOutput(terminal);
  terminal.onData((data) => {
    if (stdout.destroyed) return;
    if (!stdout.write(data)) {
      output.pause();
      stdout.once("drain", () => output.resume());
    }
  });
  // A paused terminal would never see its end.
  stdout.once("close", () => output.resume());
  let over = false;
  const exit = new Promise<{ exitCode: number }>((resolve) => {
    terminal.onExit(({ exitCode, signal }) => {
      over = true;
      stdout.end();
      resolve({ exitCode: signal === undefined || signal === 0 ? exitCode : 128 + signal });
    });
  });
  const stdin = options.stdin ? terminalInput(terminal) : null;
  await commandBegun(terminal);
  return {
    stdin,
    stdout,
    stderr: null,
    exit,
    resize(columns, rows) {
      if (!over && columns > 0 && rows > 0) terminal.resize(columns, rows);
    },
    close() {
      if (over) return;
      stdout.destroy();
      killGroup(terminal.pid);
    },
  };
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It is gone already.
  }
}
