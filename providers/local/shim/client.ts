/** The backend's side of a shim: start it, watch it, find it again after a restart, attach to its streams. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import {
  existsSync,
  linkSync,
  mkdirSync,
  openSync,
  closeSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { connect, type Socket } from "node:net";
import { dirname, join } from "node:path";
import { PassThrough, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import {
  type Clock,
  onAbort,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  toError,
} from "../../../src/provider/kit/index.ts";
import {
  ContainerError,
  KILLED_EXIT,
  NeverBegunError,
  type RecordedExit,
  type ShimEvents,
  type ShimWatch,
} from "../engine.ts";
import { encodeFrame, FRAME, FrameReader, MAX_FRAME_BYTES, type ShimHello, type ShimStatus } from "./frames.ts";
import { flushFolder, isMissing } from "../host/files.ts";
import { bootId, isAlive, isGone } from "../host/proc.ts";
import type { ShimLaunch } from "./shim.ts";

/** Keeps a shim small: it handles bytes, it never needs a heap of its own. */
const NODE_FLAGS = ["--max-old-space-size=32", "--max-semi-space-size=1", "--no-warnings"];
const RECONNECT_MS = 20;
/** How soon files that cannot be read (this process is out of descriptors, say) are tried again. */
const UNKNOWN_MS = 500;
const SHIM_MODULES = [
  ...["shim", "frames", "log-writer", "runnable", "guest-session"],
  ...["terminal-input", "terminal-output", "terminal-start"],
];

/** Shims of other versions of the package, once nothing that runs was started from there. */
function removeFormer(stateDir: string, own: string): void {
  const former = readdirSync(stateDir)
    .filter((name) => /^shim-[0-9a-f]{12}$/.test(name))
    .map((name) => join(stateDir, name))
    .filter((folder) => folder !== own);
  if (former.length === 0) return;
  const commands = commandLines();
  for (const folder of former)
    if (commands?.every((command) => !command.includes(`${folder}/`)) === true)
      rmSync(folder, { recursive: true, force: true });
}

/** Of all processes of this host; undefined when one of them cannot be read just now. */
function commandLines(): string[] | undefined {
  const read = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8");
    } catch (thrown) {
      if (isGone(thrown)) return "";
      throw thrown;
    }
  };
  try {
    return readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .map(read);
  } catch {
    return undefined;
  }
}

/**
 * Copies the shim, as plain JavaScript, to a folder of the state directory that is named by its content, and returns
 * the program's path. A shim thus starts without a type stripper, and an upgrade of the package does not pull the
 * program from under shims that are about to start. What is there already is used only when it is whole.
 */
export function installShim(stateDir: string): string {
  const own = fileURLToPath(import.meta.url);
  const extension = own.endsWith(".ts") ? "ts" : "js";
  const paths = SHIM_MODULES.map((name) => join(own, "..", `${name}.${extension}`));
  const hash = createHash("sha256");
  for (const path of paths) hash.update(readFileSync(path));
  const folder = join(stateDir, `shim-${hash.digest("hex").slice(0, 12)}`);
  const program = join(folder, "shim.js");
  // Of backends that were killed while they did this: only one at a time has the state directory.
  for (const name of readdirSync(stateDir))
    if (/^shim-[0-9a-f]{12}\./.test(name)) rmSync(join(stateDir, name), { recursive: true, force: true });
  removeFormer(stateDir, folder);
  if (isWhole(folder)) return program;
  const fresh = `${folder}.new`;
  mkdirSync(fresh, { recursive: true, mode: 0o700 });
  const write = (name: string, text: string) => writeFileSync(join(fresh, name), text, { flush: true });
  const codes = extension === "ts" ? stripTypes(paths) : paths.map((path) => readFileSync(path, "utf8"));
  for (const [index, name] of SHIM_MODULES.entries()) write(`${name}.js`, codes[index]!);
  write("package.json", '{"type":"module"}');
  write(SUM, sumOf(fresh));
  flushFolder(fresh);
  // What a loss of power has torn; a shim that runs has read it all.
  if (existsSync(folder)) renameSync(folder, `${folder}.torn`);
  renameSync(fresh, folder);
  flushFolder(stateDir);
  return program;
}

/** In the shim's folder: what its files were when they were written. */
const SUM = "sum";

function sumOf(folder: string): string {
  const hash = createHash("sha256");
  for (const name of readdirSync(folder).toSorted())
    if (name !== SUM) hash.update(`${name}\0`).update(readFileSync(join(folder, name)));
  return hash.digest("hex");
}

function isWhole(folder: string): boolean {
  const sum = readIfExists(join(folder, SUM));
  return sum !== undefined && sum === sumOf(folder);
}

/** All in one process, and not in this one, because Node warns on the console about the function it offers for this. */
function stripTypes(paths: readonly string[]): string[] {
  const script = `const strip = (path) => require("module").stripTypeScriptTypes(require("fs").readFileSync(path, "utf8"));
    console.log(JSON.stringify(process.argv.slice(1).map(strip)))`;
  const printed = execFileSync(process.execPath, ["--no-warnings", "-e", script, ...paths], { encoding: "utf8" });
  return (JSON.parse(printed) as string[]).map((code) => code.replaceAll(/("\.\/[a-z-]+)\.ts"/g, '$1.js"'));
}

/** Where node-pty is, for a shim that runs from another folder. */
export const PTY_MODULE = createRequire(import.meta.url).resolve("@lydell/node-pty");

/**
 * Starts a shim in `dir`, which must exist, with what it keeps in `launchFile`. Resolves once its socket listens; the
 * command may have ended by then.
 * @throws NeverBegunError when the shim itself could not be started, and never will be; ContainerError
 *   RunContainerError when it has ended at once.
 */
export async function startShim(program: string, dir: string, launch: ShimLaunch, launchFile: string): Promise<void> {
  const failure = await tryToStart(program, dir, launch, launchFile).catch(
    (thrown: unknown) => toError(thrown).message,
  );
  if (failure === undefined) return;
  const text = await readFile(join(dir, "shim-stderr"), "utf8").catch(() => "");
  const message = `cannot start the container's shim: ${failure} ${text.slice(-500)}`.trim();
  throw shimEverStarted(dir) ? new ContainerError("RunContainerError", message) : new NeverBegunError(message);
}

/** @returns why it did not start */
async function tryToStart(
  program: string,
  dir: string,
  launch: ShimLaunch,
  launchFile: string,
): Promise<string | undefined> {
  mkdirSync(dirname(launchFile), { recursive: true, mode: 0o700 });
  writeFileSync(launchFile, JSON.stringify(launch), { mode: 0o600 });
  symlinkSync(launchFile, join(dir, "shim-launch.json"));
  const stderr = openSync(join(dir, "shim-stderr"), "a", 0o600);
  let child: ChildProcess;
  try {
    child = spawn(process.execPath, [...NODE_FLAGS, program, dir], {
      detached: true,
      cwd: "/",
      env: {},
      stdio: ["ignore", "pipe", stderr],
    });
  } finally {
    closeSync(stderr);
  }
  const failure = await new Promise<string | undefined>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    // Not "exit": with a command that is done at once, the shim's end may be seen before what it has written.
    child.once("close", (code, signal) => resolve(`shim ended with ${signal ?? code}`));
    // None without descriptors to spare.
    child.stdout?.once("data", () => resolve(undefined));
  });
  child.stdout?.destroy();
  child.unref();
  return failure;
}

/**
 * Undefined when the shim has not written it, or a loss of power has torn it.
 * @throws what the system says when it cannot be read just now
 */
function readStatus(dir: string, file: string): ShimStatus | undefined {
  const text = readIfExists(join(dir, file));
  try {
    return text === undefined ? undefined : (JSON.parse(text) as ShimStatus);
  } catch {
    return undefined;
  }
}

/** How a shim wrote down that its command ended; undefined when it did not, or does not know. @throws as readStatus */
export function recordedExit(dir: string): RecordedExit | undefined {
  const { exit, startedAt, finishedAt } = readStatus(dir, "shim-exit.json") ?? {};
  if (exit === undefined || exit.lost === true || finishedAt === undefined) return undefined;
  return { ...exit, startedAt, finishedAt };
}

function readIfExists(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (thrown) {
    if (isMissing(thrown)) return undefined;
    throw thrown;
  }
}

/** In `shim-claim`, in place of a shim's: the instance is never begun. */
const NOBODY = "0 0";

/**
 * True when a shim owns this instance, or owned it. False when none ever will: the backend ended between deciding to
 * start the container and the shim's first step, and from now on a late shim finds the instance taken.
 */
export function shimEverStarted(dir: string): boolean {
  const claim = join(dir, "shim-claim");
  if (!existsSync(claim)) {
    if (!existsSync(dir)) return false;
    const mine = join(dir, "shim-claim.backend");
    writeFileSync(mine, NOBODY);
    try {
      linkSync(mine, claim);
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== "EEXIST") throw thrown;
    } finally {
      unlinkSync(mine);
    }
  }
  return readFileSync(claim, "utf8") !== NOBODY;
}

/** @throws what the system says when that cannot be known just now */
function shimIsAlive(dir: string): boolean {
  const [pid, startTime = "", boot] = readIfExists(join(dir, "shim-claim"))?.split(" ") ?? [];
  // Shims of earlier versions did not say in which boot of the host they began.
  if (boot !== undefined && boot !== bootId()) return false;
  return Number(pid) > 0 && isAlive(Number(pid), startTime);
}

/** Follows a shim, whether it was started by this backend or by one before; its files tell what the socket cannot. */
export function watchShim(dir: string, socketPath: string, clock: Clock, events: ShimEvents): ShimWatch {
  let closed = false;
  let startedSeen = false;
  let exitSeen = false;
  let socket: Socket | undefined;
  let cancelRetry: (() => void) | undefined;

  const take = (status: ShimStatus | undefined) => {
    if (closed || status === undefined) return;
    if (!startedSeen && status.startedAt !== undefined) {
      startedSeen = true;
      events.started(status);
    }
    if (!exitSeen && status.exit !== undefined) {
      exitSeen = true;
      events.exited({
        ...status.exit,
        finishedAt: status.finishedAt!,
        startedAt: status.startedAt,
      });
    }
  };
  const onDisconnect = () => {
    if (closed) return;
    try {
      if (shimIsAlive(dir)) {
        // It is about to listen, or about to end.
        cancelRetry = clock.after(RECONNECT_MS, open);
        return;
      }
      take(readStatus(dir, "shim-started.json"));
      take(readStatus(dir, "shim-exit.json"));
    } catch {
      // What became of it is unknown while its files cannot be read; that is not the same as lost.
      cancelRetry = clock.after(UNKNOWN_MS, onDisconnect);
      return;
    }
    if (!exitSeen) {
      exitSeen = true;
      events.exited({ exitCode: KILLED_EXIT, lost: true, finishedAt: clock.now() });
    }
    closed = true;
    events.gone();
  };
  const open = () => {
    if (closed) return;
    socket = connectShim(socketPath, { stdin: false, stdout: false, stderr: false }, (type, payload) => {
      if (type === FRAME.status) take(JSON.parse(payload.toString()) as ShimStatus);
    });
    socket.on("close", onDisconnect);
  };
  open();
  return {
    close() {
      closed = true;
      cancelRetry?.();
      socket?.destroy();
    },
  };
}

function connectShim(socketPath: string, hello: ShimHello, onFrame: (type: number, payload: Buffer) => void): Socket {
  const socket = connect(socketPath);
  const reader = new FrameReader(onFrame);
  socket.on("error", () => {});
  socket.on("data", (chunk) => {
    try {
      reader.push(chunk);
    } catch {
      socket.destroy();
    }
  });
  socket.write(encodeFrame(FRAME.hello, JSON.stringify(hello)));
  return socket;
}

/**
 * Attaches to the streams of the command that a shim runs. `exit` resolves with the command's exit code.
 * @throws ProviderError conflict when the container does not run any more.
 */
export async function attachShim(socketPath: string, options: StreamOptions): Promise<ProcessStreams> {
  const stdout = options.stdout ? new PassThrough() : null;
  const stderr = options.stderr && !options.tty ? new PassThrough() : null;
  let exitCode: number | undefined;
  const flow = (target: PassThrough | null, payload: Buffer) => {
    if (target === null || target.destroyed) return;
    if (!target.write(Buffer.from(payload))) {
      socket.pause();
      // One for all frames of a chunk.
      if (target.listenerCount("drain") === 0) target.once("drain", () => socket.resume());
    }
  };
  const hello = { stdin: options.stdin, stdout: stdout !== null, stderr: stderr !== null };
  const socket = connectShim(socketPath, hello, (type, payload) => {
    if (type === FRAME.stdout) flow(stdout, payload);
    else if (type === FRAME.stderr) flow(stderr, payload);
    else if (type === FRAME.status)
      exitCode = (JSON.parse(payload.toString()) as ShimStatus).exit?.exitCode ?? exitCode;
  });
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", () => resolve());
    socket.once("error", (cause) => reject(new ProviderError("conflict", "the container is not running", { cause })));
  });
  const stdin = options.stdin ? stdinOf(socket) : null;
  const exit = new Promise<{ exitCode: number }>((resolve, reject) => {
    socket.once("close", () => {
      stdout?.end();
      stderr?.end();
      listening[Symbol.dispose]();
      if (exitCode === undefined)
        reject(new ProviderError("unavailable", "the attach session ended before the container did"));
      else resolve({ exitCode });
    });
  });
  // A caller that only closes the session need not look at it.
  exit.catch(() => {});
  const close = () => socket.destroy();
  const listening = onAbort(options.signal, close);
  return {
    stdin,
    stdout,
    stderr,
    exit,
    close,
    resize: (columns, rows) => socket.write(encodeFrame(FRAME.resize, JSON.stringify({ columns, rows }))),
  };
}

function stdinOf(socket: Socket): Writable {
  return new Writable({
    write(chunk: Buffer, _encoding, callback) {
      let free = true;
      for (let from = 0; from < chunk.length; from += MAX_FRAME_BYTES)
        free = socket.write(encodeFrame(FRAME.stdin, chunk.subarray(from, from + MAX_FRAME_BYTES)));
      if (free || socket.destroyed) callback();
      else {
        const proceed = () => {
          socket.off("drain", proceed);
          socket.off("close", proceed);
          callback();
        };
        socket.on("drain", proceed);
        socket.on("close", proceed);
      }
    },
    final(callback) {
      socket.write(encodeFrame(FRAME.stdinEnd, ""));
      callback();
    },
  });
}
