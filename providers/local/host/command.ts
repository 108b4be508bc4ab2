/**
 * Runs the host's own tools (umoci, ip, runc...) and says whether they are there. A tool is given arguments as an
 * array, never through a shell; its output is bounded; it dies with the signal. One that is killed and does not die, or
 * whose output another process holds open, is not waited for.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { accessSync, constants, statSync } from "node:fs";
import { delimiter, isAbsolute, join } from "node:path";
import { onAbort, systemClock, VmletError } from "../../../src/provider/kit/index.ts";

interface CommandOptions {
  signal?: AbortSignal | undefined;
  /** It is killed when it has not ended by then. Absent: it takes its time. */
  withinMs?: number | undefined;
  /** Written to standard input, then closed. Absent: no input. */
  input?: string | Buffer | undefined;
  /** Added to the environment of this process. */
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  /** Passed to the tool as file descriptor 3. */
  fd3?: number | undefined;
  /** Exit codes that count as success. Default: 0 alone. */
  exitCodes?: readonly number[] | undefined;
  /** Bytes of standard output that are accepted; more is an error. */
  maxOutputBytes?: number | undefined;
}

interface CommandResult {
  stdout: Buffer;
  stderr: string;
}

const MAX_OUTPUT_BYTES = 16 * 1024 * 1024;
const MAX_ERROR_CHARS = 8192;
/** From the kill of a tool to the end of the wait for it. */
const KILLED_MS = 2_000;

/** A tool ended with another code than success, was ended by a signal, or could not be started. */
export class CommandError extends VmletError {
  readonly code = "COMMAND";
  readonly command: string;
  readonly exitCode: number | undefined;
  readonly stderr: string;
  /** The end of it: some tools say there what is wrong. */
  readonly stdout: string;

  constructor(
    command: string,
    exitCode: number | undefined,
    stderr: string,
    reason: string,
    options?: { cause?: unknown; stdout?: string },
  ) {
    super(`${command}: ${stderr.trim() || reason}`, options);
    this.command = command;
    this.exitCode = exitCode;
    this.stderr = stderr;
    this.stdout = options?.stdout ?? "";
  }
}

/**
 * Runs a tool to its end.
 * @throws CommandError when it fails, or its time is over; the signal's reason when that aborted first.
 */
export function run(command: string, args: readonly string[], options: CommandOptions = {}): Promise<CommandResult> {
  const limit = options.maxOutputBytes ?? MAX_OUTPUT_BYTES;
  return new Promise((resolve, reject) => {
    if (options.signal?.aborted) {
      reject(options.signal.reason as Error);
      return;
    }
    const child = spawn(command, args, {
      stdio: ["pipe", "pipe", "pipe", options.fd3 ?? "ignore"],
      cwd: options.cwd,
      env: options.env === undefined ? process.env : { ...process.env, ...options.env },
    });
    const end = new ForcedEnd(child, command, options, reject);
    // First: without descriptors to spare there are no streams, and only this tells why.
    child.once("error", (cause) => {
      end.over();
      reject(new CommandError(command, undefined, "", cause.message, { cause }));
    });
    if (child.stdin === null || child.stdin === undefined) return;

    const chunks: Buffer[] = [];
    let bytes = 0;
    let overflow = false;
    let stderr = "";
    child.stdout!.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > limit) {
        overflow = true;
        child.kill("SIGKILL");
      } else chunks.push(chunk);
    });
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      stderr = (stderr + text).slice(-MAX_ERROR_CHARS);
    });
    // A tool that does not read its input closes the pipe: that is not an error of ours, its exit code decides.
    child.stdin.on("error", () => child.stdin!.destroy());
    child.stdin.end(options.input ?? "");

    child.once("close", (code, signal) => {
      end.over();
      if (end.reason !== undefined) reject(end.reason);
      else if (overflow) reject(new CommandError(command, undefined, "", `printed more than ${limit} bytes`));
      else if ((options.exitCodes ?? [0]).includes(code ?? -1)) resolve({ stdout: Buffer.concat(chunks), stderr });
      else
        reject(
          new CommandError(
            command,
            code ?? undefined,
            stderr,
            code === null ? `killed by ${signal}` : `exit code ${code}`,
            { stdout: Buffer.concat(chunks).toString("utf8").slice(-MAX_ERROR_CHARS) },
          ),
        );
    });
  });
}

/** The end of a tool that is not waited for any longer. */
class ForcedEnd {
  /** Why it was killed. */
  reason: Error | undefined;
  readonly #child: ChildProcess;
  readonly #reject: (reason: Error) => void;
  readonly #listening: Disposable;
  #cancel = () => {};

  constructor(
    child: ChildProcess,
    command: string,
    { signal, withinMs }: CommandOptions,
    reject: (reason: Error) => void,
  ) {
    this.#child = child;
    this.#reject = reject;
    if (withinMs !== undefined) {
      const late = `it has not ended within ${withinMs / 1000} s`;
      this.#cancel = systemClock.after(withinMs, () => this.#kill(new CommandError(command, undefined, "", late)));
    }
    this.#listening = onAbort(signal, () => this.#kill(signal!.reason as Error));
  }

  /** It has ended, or was never begun. */
  over(): void {
    this.#cancel();
    this.#listening[Symbol.dispose]();
  }

  #kill(reason: Error): void {
    this.reason ??= reason;
    this.#child.kill("SIGKILL");
    this.#cancel();
    this.#cancel = systemClock.after(KILLED_MS, () => {
      for (const stream of this.#child.stdio) stream?.destroy();
      this.#child.unref();
      this.#reject(this.reason!);
    });
  }
}

/** Absolute path of a tool on the PATH (or of `name` itself when it is a path); undefined when it is not there. */
export function findTool(
  name: string,
  path = `${process.env["PATH"] ?? ""}${delimiter}/usr/sbin${delimiter}/sbin`,
): string | undefined {
  const candidates = isAbsolute(name) ? [name] : path.split(delimiter).map((folder) => join(folder || ".", name));
  return candidates.find((candidate) => {
    try {
      accessSync(candidate, constants.X_OK);
      return statSync(candidate).isFile();
    } catch {
      return false;
    }
  });
}
