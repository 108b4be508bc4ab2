/**
 * Long-lived child processes of a test: they log to files, are killed by their own pid, and never outlive the test
 * process.
 *
 * Every child carries `VMLET_TEST_DIR=<dir>` in its environment. When the test process ends, however it ends, the pipe
 * to the watchdog closes, and the watchdog kills whatever still carries that mark, with its descendants: also the shims
 * that the reference backend leaves behind on purpose.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { closeSync, openSync, readFileSync, readdirSync, statSync } from "node:fs";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { must, waitFor } from "./wait.ts";

export const markVariable = "VMLET_TEST_DIR";

export interface SpawnOptions {
  env?: NodeJS.ProcessEnv | undefined;
  cwd?: string | undefined;
}

export interface ManagedProcess {
  readonly name: string;
  readonly pid: number;
  /** Standard output and standard error, appended. */
  readonly logFile: string;
  /** Resolves when the process has ended. */
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  readonly running: boolean;
  /** Sends the signal and waits for the end. */
  kill(signal: NodeJS.Signals): Promise<void>;
  /** SIGTERM, and SIGKILL when that has not ended it within `graceMs` (default 5 s). */
  stop(graceMs?: number): Promise<void>;
  /** The last lines of the log, for messages of failure. */
  logTail(lines?: number): Promise<string>;
}

/** A temporary folder and the processes that live in it; both end together. */
export interface Sandbox extends AsyncDisposable {
  readonly dir: string;
  spawn(name: string, command: string, args: readonly string[], options?: SpawnOptions): ManagedProcess;
  /** Stops every process, newest first, kills what is left behind, and removes the folder unless it is to be kept. */
  close(): Promise<void>;
}

/**
 * @param prefix names the folder under the system's temporary folder; `VMLET_TEST_KEEP=1` keeps it for a look at the
 *   logs
 */
export async function createSandbox(prefix: string): Promise<Sandbox> {
  const dir = await mkdtemp(join(tmpdir(), `vmlet-${prefix}-`));
  const keep = process.env["VMLET_TEST_KEEP"] === "1";
  const watchdog = startWatchdog(dir, keep);
  const processes: ManagedProcess[] = [];
  let closed = false;

  const close = async () => {
    if (closed) return;
    closed = true;
    for (const each of processes.toReversed()) await each.stop();
    await killMarked(dir);
    if (!keep) await rm(dir, { recursive: true, force: true, maxRetries: 5 });
    watchdog.stdin?.end();
  };

  return {
    dir,
    spawn(name, command, args, options = {}) {
      const child = spawnManaged(name, join(dir, `${name}.log`), command, args, {
        ...options,
        env: { ...(options.env ?? process.env), [markVariable]: dir },
      });
      processes.push(child);
      return child;
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

function spawnManaged(
  name: string,
  logFile: string,
  command: string,
  args: readonly string[],
  options: SpawnOptions,
): ManagedProcess {
  const log = openSync(logFile, "a");
  // Its own process group: an interrupt typed at the terminal goes to the test alone, which then stops things in order.
  const child = spawn(command, args, {
    stdio: ["ignore", log, log],
    detached: true,
    ...(options.env && { env: options.env }),
    ...(options.cwd !== undefined && { cwd: options.cwd }),
  });
  closeSync(log);
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once("exit", (code, signal) => resolve({ code, signal }));
    child.once("error", reject);
  });
  // An `await` of `exited` gets the error; without this a command that is not there would end the test process instead.
  exited.catch(() => undefined);
  if (child.pid === undefined) throw new Error(`${name}: cannot start ${command}`);
  const running = () => child.exitCode === null && child.signalCode === null;
  return {
    name,
    pid: child.pid,
    logFile,
    exited,
    get running() {
      return running();
    },
    async kill(signal) {
      if (running()) child.kill(signal);
      await exited;
    },
    async stop(graceMs = 5000) {
      if (!running()) return;
      const timer = setTimeout(() => child.kill("SIGKILL"), graceMs);
      child.kill("SIGTERM");
      await exited;
      clearTimeout(timer);
    },
    logTail: (lines = 30) => tail(logFile, lines),
  };
}

async function tail(file: string, lines: number): Promise<string> {
  const handle = await open(file);
  try {
    const { size } = await handle.stat();
    const length = Math.min(size, 64 * 1024);
    const { buffer } = await handle.read(Buffer.alloc(length), 0, length, size - length);
    return buffer.toString().trimEnd().split("\n").slice(-lines).join("\n");
  } finally {
    await handle.close();
  }
}

function startWatchdog(dir: string, keep: boolean): ChildProcess {
  const watchdog = spawn(
    process.execPath,
    [join(import.meta.dirname, "watchdog.ts"), dir, ...(keep ? ["--keep"] : [])],
    {
      stdio: ["pipe", "ignore", "ignore"],
      detached: true,
    },
  );
  watchdog.unref();
  // Only the pipe's end matters; it must not hold this process open.
  (watchdog.stdin as unknown as { unref(): void }).unref();
  return watchdog;
}

/** Sends SIGKILL to every process that carries the mark of `dir`, and to its descendants, until none is left. */
export async function killMarked(dir: string): Promise<void> {
  await waitFor({ what: `the processes of ${dir} to end`, intervalMs: 20 }, () => {
    const left = markedProcesses(dir);
    for (const pid of left) {
      try {
        process.kill(pid, "SIGKILL");
      } catch (thrown) {
        if ((thrown as NodeJS.ErrnoException).code !== "ESRCH") throw thrown;
      }
    }
    must(left.length === 0, left);
  });
}

/**
 * The live processes that carry the mark of `dir`, and their descendants. The backend's shims start with an empty
 * environment, so that nothing leaks into containers; they are known by the folder in their arguments. Zombies do not
 * count: nothing can kill them.
 */
export function markedProcesses(dir: string): number[] {
  const processes = listProcesses();
  const isMarked = ({ environment, args }: ProcessEntry) =>
    environment.length === 0
      ? args.some((each) => each.startsWith(`${dir}/`))
      : environment.includes(`${markVariable}=${dir}`);
  const marked = new Set(processes.filter(isMarked).map((each) => each.pid));
  for (let grew = true; grew;) {
    grew = false;
    for (const { pid, parent } of processes) {
      if (marked.has(parent) && !marked.has(pid)) {
        marked.add(pid);
        grew = true;
      }
    }
  }
  return [...marked];
}

export interface ProcessEntry {
  pid: number;
  parent: number;
  /** `NAME=value` as the process was started. */
  environment: string[];
  args: string[];
}

/** Every process of this user but zombies, from /proc. */
export function listProcesses(): ProcessEntry[] {
  const entries: ProcessEntry[] = [];
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    try {
      // The command's name stands in parentheses and may hold anything; what follows the last one is plain fields.
      const [state, parent] = readFileSync(`/proc/${name}/stat`, "utf8")
        .replace(/^.*\) /s, "")
        .split(" ");
      if (state === "Z" || state === "X") continue;
      if (statSync(`/proc/${name}`).uid !== process.getuid?.()) continue;
      const strings = (file: string) => readFileSync(`/proc/${name}/${file}`, "utf8").split("\0").filter(Boolean);
      entries.push({
        pid: Number(name),
        parent: Number(parent),
        environment: strings("environ"),
        args: strings("cmdline"),
      });
    } catch (thrown) {
      // It ended between the listing and the reading, or hides its environment (EACCES, EPERM).
      if (!["ENOENT", "ESRCH", "EACCES", "EPERM"].includes((thrown as NodeJS.ErrnoException).code ?? "")) throw thrown;
    }
  }
  return entries;
}

/** Never resolves; rejects with the end of the log when the process ends. To be raced with a wait for its readiness. */
export async function failWhenExited(child: ManagedProcess): Promise<never> {
  const { code, signal } = await child.exited;
  throw new Error(`${child.name} ended early (${signal ?? `exit code ${code}`})\n${await child.logTail()}`);
}
