/** Running a short-lived program for its output: exec plugins of kubeconfigs and credential providers. */
import { spawn } from "node:child_process";
import { onAbort } from "./abort.ts";

interface Program {
  /** A path, or a name that is looked for in `PATH`. */
  file: string;
  args: readonly string[];
  /** Its whole environment. Without it: this process's environment and `addedEnv`. */
  env?: Readonly<Record<string, string>> | undefined;
  addedEnv?: Readonly<Record<string, string>> | undefined;
}

/** Characters of its standard error that an error's message quotes. */
const MAX_COMPLAINT = 500;

/**
 * Runs a program to its end, for what it writes to its standard output. When the signal aborts or time is up it is
 * killed with all that it started, and nothing waits for it any more.
 *
 * @param options.input what it reads from its standard input
 * @throws Error when it cannot be started, is killed, exits with another code than 0 (the message has the beginning of
 *   its standard error), or writes more than `maxOutputBytes`; the signal's reason on abort
 */
export function runProgram(
  program: Program,
  options: { input: string; signal: AbortSignal; timeoutMs: number; maxOutputBytes: number },
): Promise<string> {
  const { input, signal, timeoutMs, maxOutputBytes } = options;
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const child = spawn(program.file, program.args, {
      env: { ...(program.env ?? process.env), ...program.addedEnv },
      stdio: ["pipe", "pipe", "pipe"],
      // A group of its own, so that what it started goes with it.
      detached: true,
    });
    const chunks: Buffer[] = [];
    let bytes = 0;
    let complaint = "";
    const finish = (settle: () => void) => {
      clearTimeout(timer);
      listening[Symbol.dispose]();
      settle();
    };
    const end = (reason: Error) => {
      killGroup(child.pid);
      for (const stream of child.stdio) stream?.destroy();
      finish(() => reject(reason));
    };
    const timer = setTimeout(
      () => end(new Error(`it was killed because it took longer than ${timeoutMs / 1000} s: ${complaint.trim()}`)),
      timeoutMs,
    );
    const listening = onAbort(signal, () => end(signal.reason as Error));
    child.stdout.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > maxOutputBytes) end(new Error(`it wrote more than ${maxOutputBytes} bytes`));
      else chunks.push(chunk);
    });
    child.stderr.on("data", (chunk: Buffer) => {
      complaint = (complaint + chunk.toString()).slice(0, MAX_COMPLAINT);
    });
    // A program that does not read its input closes the pipe early.
    child.stdin.on("error", () => undefined);
    child.on("error", (error) => finish(() => reject(error)));
    child.on("close", (code, killedBy) =>
      finish(() => {
        if (code === 0) resolve(Buffer.concat(chunks).toString("utf8"));
        else if (code === null)
          reject(new Error(`it was killed by ${killedBy} (it may take ${timeoutMs / 1000} s): ${complaint.trim()}`));
        else reject(new Error(`it exited with code ${code}: ${complaint.trim()}`));
      }),
    );
    child.stdin.end(input);
  });
}

function killGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It has ended already.
  }
}
