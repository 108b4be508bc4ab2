/**
 * containerd's shims, beside containerd: who runs for it, and how their containers end, whatever becomes of it
 * meanwhile.
 *
 * containerd 2.2 loses exit codes when it is killed. It takes a shim whose task has ended for one that was left over
 * from a start that failed, and has it delete the task, and its exit code with it (core/runtime/v2/shim_load.go: a
 * shim without pids "leaked"); and it deletes a task that has ended before it writes down how
 * (internal/cri/server/events.go: handleContainerExit). CRI then says 255, "Unknown"; or, when not even the start was
 * written down, that the container is yet to be started. So shims are asked before containerd starts, while it does,
 * and about each container that runs, by their own ttrpc service.
 */
import { BinaryReader, BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, readFile, rm } from "node:fs/promises";
import { connect } from "node:net";
import { basename, join } from "node:path";
import { type Clock, pause, toError } from "../../../../src/provider/kit/index.ts";
import { readdirIfExists } from "../../host/files.ts";
import { isAlive, processStat } from "../../host/proc.ts";

export interface TaskExit {
  exitCode: number;
  /** Epoch ms. */
  finishedAt: number;
}

/** Where containerd's CRI plugin has its tasks, below its state folder. */
const NAMESPACE = "k8s.io";
const TASKS = `io.containerd.runtime.v2.task/${NAMESPACE}`;
const SHIM_SOCKETS = "/run/containerd/s";
/** containerd.v1.types.Status */
const CREATED = 1;
const STOPPED = 3;
/** ttrpc: length and stream, each 4 bytes, then type and flags. */
const HEADER_BYTES = 10;
const REQUEST = 1;
const REMOTE_CLOSED = 1;
/** What a shim answers is a few hundred bytes. */
const MAX_REPLY_BYTES = 1 << 20;
/** As long as containerd itself waits for a shim (SHIM_TIMEOUT there): on a busy host one may take seconds. */
const STATE_MS = 10_000;
/** A shim that was told to end does so within milliseconds; one that does not is asked, killed, and given up. */
const SHIM_END_MS = { asked: 200, killed: 2_000, stuck: 5_000 };
const POLL_MS = 20;
/** A start that was under way when containerd was killed is over by then. */
const BEGUN_LOOKS = 10;
const RUNTIMES: ReadonlySet<string> = new Set(["runc", "crun", "runsc", "runsc-sandbox"]);

/**
 * Of all containers and sandboxes that have a shim, or had one when containerd was last asked.
 * @param stateDir containerd's
 * @throws Error of the file system: who cannot be listed is not gone
 */
export async function taskIds(stateDir: string): Promise<string[]> {
  return await readdirIfExists(join(stateDir, TASKS));
}

/**
 * Learns how tasks end, until `signal` is aborted. Fulfilled when those are told that have ended by now.
 * @param stateDir containerd's
 * @param told is called once for each task that has ended, with its container's id
 */
export async function watchTaskExits(
  clock: Clock,
  stateDir: string,
  signal: AbortSignal,
  told: (containerId: string, exit: TaskExit) => void,
): Promise<void> {
  const ids = await taskIds(stateDir);
  await Promise.all(
    ids.map(async (id) => {
      const first = Promise.withResolvers<void>();
      const exit = taskExit(clock, stateDir, id, signal, first.resolve);
      const tell = exit.then((known) => known && told(id, known));
      // How one ends that runs now is waited for by nobody here.
      await Promise.race([first.promise, tell]);
    }),
  );
}

/**
 * Whether the command of a task has begun of which the shim says that it is only created: the shim ends its `runc
 * start` when containerd is killed, and then does not know how far that got.
 */
async function hasBegun(clock: Clock, pid: number, signal: AbortSignal): Promise<boolean> {
  for (let look = 0; look < BEGUN_LOOKS; look++) {
    if (look > 0) await pause(clock, POLL_MS, signal);
    const argv = (await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")).split("\0");
    // It waits as the runtime's own program for the start. One that is gone has ended.
    if (!RUNTIMES.has(basename(argv[0]!))) return true;
  }
  return false;
}

/**
 * How a task ends, as its shim tells. Undefined when nobody knows: its shim has ended, or hangs; and for a task that
 * was not started: containerd may kill it, and start it later.
 * @param isRunning is called when it has to be waited for
 */
export async function taskExit(
  clock: Clock,
  stateDir: string,
  id: string,
  signal: AbortSignal,
  isRunning: () => void = () => {},
): Promise<TaskExit | undefined> {
  const shim = await shimOf(join(stateDir, TASKS, id));
  if (shim === undefined) return undefined;
  try {
    const within = AbortSignal.any([signal, AbortSignal.timeout(STATE_MS)]);
    const { status, pid, ...exit } = taskState(await call(shim, "State", id, within));
    if (status === STOPPED) return exit;
    if (status === CREATED && !(await hasBegun(clock, pid, within))) return undefined;
    isRunning();
    return waitReply(await call(shim, "Wait", id, signal));
  } catch {
    return undefined;
  }
}

interface ShimAddress {
  path: string;
  service: string;
}

/** Undefined when there is none that can be spoken to. */
async function shimOf(bundle: string): Promise<ShimAddress | undefined> {
  try {
    const text = await readFile(join(bundle, "bootstrap.json"), "utf8");
    const { version, address, protocol } = JSON.parse(text) as { version: number; address: string; protocol: string };
    if (protocol !== "ttrpc") return undefined;
    return { path: address.replace(/^unix:\/\//, ""), service: `containerd.task.v${version}.Task` };
  } catch {
    return undefined;
  }
}

/** One call of a shim's task service: its reply's payload. @throws Error when there is none */
async function call(
  { path, service }: ShimAddress,
  method: "State" | "Wait",
  id: string,
  signal: AbortSignal,
): Promise<Uint8Array> {
  signal.throwIfAborted();
  const payload = new BinaryWriter().tag(1, WireType.LengthDelimited).string(id).finish();
  const request = new BinaryWriter()
    .tag(1, WireType.LengthDelimited)
    .string(service)
    .tag(2, WireType.LengthDelimited)
    .string(method)
    .tag(3, WireType.LengthDelimited)
    .bytes(payload)
    .finish();
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(request.length, 0);
  header.writeUInt32BE(1, 4);
  header[8] = REQUEST;
  header[9] = REMOTE_CLOSED;
  const socket = connect({ path, signal });
  try {
    socket.write(Buffer.concat([header, request]));
    let got = Buffer.alloc(0);
    for await (const chunk of socket as AsyncIterable<Buffer>) {
      got = Buffer.concat([got, chunk]);
      if (got.length < HEADER_BYTES) continue;
      const length = got.readUInt32BE(0);
      if (length > MAX_REPLY_BYTES) break;
      if (got.length >= HEADER_BYTES + length) return replyPayload(got.subarray(HEADER_BYTES, HEADER_BYTES + length));
    }
    throw new Error(`the shim at ${path} does not answer ${method}`);
  } finally {
    socket.destroy();
  }
}

/** ttrpc.Response */
function replyPayload(reply: Uint8Array): Uint8Array {
  let payload = new Uint8Array();
  let code = 0;
  readFields(reply, {
    1: (reader) => readFields(reader.bytes(), { 1: (status) => (code = status.int32()) }),
    2: (reader) => (payload = new Uint8Array(reader.bytes())),
  });
  if (code !== 0) throw new Error(`the shim answers with code ${code}`);
  return payload;
}

/** containerd.task.v3.StateResponse */
function taskState(reply: Uint8Array): TaskExit & { status: number; pid: number } {
  const state = { status: 0, pid: 0, exitCode: 0, finishedAt: 0 };
  readFields(reply, {
    3: (reader) => (state.pid = reader.uint32()),
    4: (reader) => (state.status = reader.int32()),
    9: (reader) => (state.exitCode = reader.uint32()),
    10: (reader) => (state.finishedAt = timestampMs(reader.bytes())),
  });
  return state;
}

/** containerd.task.v3.WaitResponse */
function waitReply(reply: Uint8Array): TaskExit {
  const exit = { exitCode: 0, finishedAt: 0 };
  readFields(reply, {
    1: (reader) => (exit.exitCode = reader.uint32()),
    2: (reader) => (exit.finishedAt = timestampMs(reader.bytes())),
  });
  return exit;
}

function timestampMs(message: Uint8Array): number {
  let seconds = 0;
  let nanos = 0;
  readFields(message, {
    1: (reader) => (seconds = Number(reader.int64())),
    2: (reader) => (nanos = reader.int32()),
  });
  return seconds * 1000 + Math.floor(nanos / 1e6);
}

function readFields(message: Uint8Array, take: Record<number, (reader: BinaryReader) => void>): void {
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    const taken = take[field];
    if (taken === undefined) reader.skip(type, field);
    else taken(reader);
  }
}

/**
 * Ends what has stayed of a containerd's shims. containerd forgets one whose sandbox's first process was killed: its
 * task is deleted already, and it does not end while it has containers (podsandbox/sandbox_delete.go).
 * @param socket containerd's, by which its shims are told apart from another's
 * @param sandboxId undefined: all of them
 * @throws Error when one does not end
 */
export async function endShims(clock: Clock, socket: string, sandboxId?: string): Promise<void> {
  const began = clock.monotonic();
  if (sandboxId !== undefined) {
    const own = shimSocket(socket, sandboxId);
    while (existsSync(own) && clock.monotonic() - began < SHIM_END_MS.asked) await clock.sleep(POLL_MS);
    // It has taken its socket away, so all processes of the host need not be looked at.
    if (!existsSync(own)) return;
  }
  const shims = await findShims(socket, sandboxId);
  for (const { pid, startTime } of shims)
    while (isAlive(pid, startTime)) {
      const waited = clock.monotonic() - began;
      if (waited > SHIM_END_MS.stuck) throw new Error(`the shim with process id ${pid} does not end`);
      // One that ends by itself, or when it is asked, takes its socket away.
      if (waited > SHIM_END_MS.asked) sendSignal(pid, waited > SHIM_END_MS.killed ? "SIGKILL" : "SIGTERM");
      await clock.sleep(POLL_MS);
    }
  if (sandboxId !== undefined) await rm(shimSocket(socket, sandboxId), { force: true });
}

/** Where a sandbox's shim listens, whatever containerd's own folders are (pkg/shim/util_unix.go: SocketAddress). */
function shimSocket(socket: string, sandboxId: string): string {
  const hash = createHash("sha256")
    .update(join(socket, NAMESPACE, sandboxId))
    .digest("hex");
  return join(SHIM_SOCKETS, hash);
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (thrown) {
    if ((toError(thrown) as NodeJS.ErrnoException).code !== "ESRCH") throw thrown;
  }
}

async function findShims(socket: string, sandboxId: string | undefined): Promise<{ pid: number; startTime: string }[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
  const found = pids.map(async (pid) => {
    const stat = processStat(pid);
    const argv = (await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")).split("\0");
    const after = (flag: string) => argv[argv.indexOf(flag) + 1];
    // Its program may have any name: it is started by what a link leads to.
    const isIts =
      argv.includes("-namespace") &&
      argv.includes("-address") &&
      after("-address") === socket &&
      (sandboxId === undefined || (argv.includes("-id") && after("-id") === sandboxId));
    return stat !== undefined && isIts ? [{ pid, startTime: stat.startTime }] : [];
  });
  return (await Promise.all(found)).flat();
}
