/**
 * exec and attach: a process's streams over SPDY or WebSocket (Kubernetes' `remotecommand` protocols v1 to v5).
 *
 * The order is: choose the protocol, open the process, then answer 101. So whatever goes wrong before the process runs
 * is a plain HTTP reply that the API server passes on as text.
 */
import { finished } from "node:stream/promises";
import { pipeline, type Readable, type Writable } from "node:stream";
import { HttpError } from "../http/http-error.ts";
import type { ProcessStreams } from "../provider/provider.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { SpdySession, type SpdyStream } from "../spdy/session.ts";
import type { UnreadShare } from "../util/unread.ts";
import { outcomeStatus, outcomeText, type CommandOutcome } from "./command-outcome.ts";
import { acceptSpdyUpgrade, negotiateSpdyProtocol, upgradeKind, type UpgradeRequest } from "./upgrade.ts";
import { ChannelSocket, acceptWebSocketUpgrade, negotiateWebSocketProtocol } from "./websocket.ts";

const SPDY_PROTOCOLS = ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const WEBSOCKET_PROTOCOLS = [
  "v5.channel.k8s.io",
  "v4.channel.k8s.io",
  "v4.base64.channel.k8s.io",
  "channel.k8s.io",
  "base64.channel.k8s.io",
  "",
];

const CHANNEL = { stdin: 0, stdout: 1, stderr: 2, error: 3, resize: 4 } as const;

/** Which streams the client wants. At least one; with `tty` there is no stderr. */
export interface RemoteCommandOptions {
  stdin: boolean;
  stdout: boolean;
  stderr: boolean;
  tty: boolean;
}

/**
 * The kubelet's query parameters `input`, `output`, `error`, `tty`, of which only the literal `1` counts.
 *
 * @throws HttpError 400 when no stream is asked for
 */
export function remoteCommandOptions(query: URLSearchParams): RemoteCommandOptions {
  const on = (name: string) => query.get(name) === "1";
  const tty = on("tty");
  const options = { stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty, tty };
  if (!options.stdin && !options.stdout && !options.stderr) {
    throw new HttpError(400, "you must specify at least 1 of stdin, stdout, stderr");
  }
  return options;
}

export type RemoteCommandProtocol = { kind: "spdy" | "websocket"; name: string };

/** @throws HttpError 400 or 403 */
export function negotiateRemoteCommand(request: UpgradeRequest["request"]): RemoteCommandProtocol {
  const kind = upgradeKind(request);
  const name =
    kind === "spdy"
      ? negotiateSpdyProtocol(request, SPDY_PROTOCOLS)
      : negotiateWebSocketProtocol(request, WEBSOCKET_PROTOCOLS);
  return { kind, name };
}

/** The client's ends of the streams, whatever the transport. Those that it did not ask for are null. */
interface RemoteCommandClient {
  stdin: Readable | null;
  stdout: Writable | null;
  stderr: Writable | null;
  /** JSON objects `{"Width":80,"Height":24}`, one after the other. */
  resize: Readable | null;
  /** Resolves when the connection is over; with an error unless we closed it. */
  readonly closed: Promise<Error | undefined>;
  /** Sends how the command ended and closes. stdout and stderr must be finished before. */
  finish(outcome: CommandOutcome): Promise<void>;
  destroy(reason: string): void;
}

export interface StreamLimits {
  clock: Clock;
  /** How long the client may take to open its streams. Default 30 s. */
  creationTimeoutMs?: number | undefined;
  /** Default 4 h. */
  idleTimeoutMs?: number | undefined;
  pingIntervalMs?: number | undefined;
  /** The budget of unread bytes, and the tenant that is charged. */
  unread?: UnreadShare | undefined;
}

/** Answers 101 and waits until the client has opened all its streams. */
export async function acceptRemoteCommand(
  upgrade: UpgradeRequest,
  protocol: RemoteCommandProtocol,
  options: RemoteCommandOptions,
  limits: StreamLimits,
): Promise<RemoteCommandClient> {
  return protocol.kind === "spdy"
    ? acceptSpdy(upgrade, protocol.name, options, limits)
    : acceptWebSocket(upgrade, protocol.name, options, limits);
}

async function acceptSpdy(
  upgrade: UpgradeRequest,
  protocol: string,
  options: RemoteCommandOptions,
  limits: StreamLimits,
): Promise<RemoteCommandClient> {
  const withResize = options.tty && (protocol.startsWith("v4.") || protocol.startsWith("v3."));
  const expected = new Set(["error"]);
  if (options.stdin) expected.add("stdin");
  if (options.stdout) expected.add("stdout");
  if (options.stderr) expected.add("stderr");
  if (withResize) expected.add("resize");

  const streams = new Map<string, SpdyStream>();
  const complete = Promise.withResolvers<void>();
  acceptSpdyUpgrade(upgrade, protocol);
  const session = new SpdySession(upgrade.socket, upgrade.head, {
    clock: limits.clock,
    // error, stdin, stdout, stderr, resize; unknown types are accepted and ignored, as the kubelet does, but not many.
    maxStreams: 8,
    unread: limits.unread,
    idleTimeoutMs: limits.idleTimeoutMs,
    pingIntervalMs: limits.pingIntervalMs,
    onStream(stream) {
      const type = stream.headers.get("streamtype") ?? "";
      if (!expected.has(type) || streams.has(type)) {
        stream.resume();
        return;
      }
      streams.set(type, stream);
      // The client sends nothing on these, but its end of them must be read to be noticed.
      if (type === "stdout" || type === "stderr" || type === "error") stream.resume();
      if (streams.size === expected.size) complete.resolve();
    },
  });
  const cancelTimeout = limits.clock.after(limits.creationTimeoutMs ?? 30_000, () =>
    complete.reject(new Error("timed out waiting for the client to create its streams")),
  );
  void session.closed.then((error) => complete.reject(error ?? new Error("the client closed the connection")));
  try {
    await complete.promise;
  } catch (thrown) {
    session.destroy(toError(thrown));
    throw thrown;
  } finally {
    cancelTimeout();
  }

  const errorStream = streams.get("error")!;
  return {
    stdin: streams.get("stdin") ?? null,
    stdout: streams.get("stdout") ?? null,
    stderr: streams.get("stderr") ?? null,
    resize: streams.get("resize") ?? null,
    closed: session.closed,
    async finish(outcome) {
      errorStream.end(protocol.startsWith("v4.") ? JSON.stringify(outcomeStatus(outcome)) : outcomeText(outcome));
      await finished(errorStream, { readable: false });
      session.close();
    },
    destroy: (reason) => session.destroy(new Error(reason)),
  };
}

async function acceptWebSocket(
  upgrade: UpgradeRequest,
  protocol: string,
  options: RemoteCommandOptions,
  limits: StreamLimits,
): Promise<RemoteCommandClient> {
  const webSocket = await acceptWebSocketUpgrade(upgrade, protocol);
  const inbound: number[] = [];
  if (options.stdin) inbound.push(CHANNEL.stdin);
  if (options.tty) inbound.push(CHANNEL.resize);
  const socket = new ChannelSocket(webSocket, {
    clock: limits.clock,
    base64: protocol.includes("base64"),
    closableChannels: protocol.startsWith("v5."),
    unread: limits.unread && { ...limits.unread, transport: upgrade.socket },
    inbound,
    idleTimeoutMs: limits.idleTimeoutMs,
    pingIntervalMs: limits.pingIntervalMs,
  });
  socket.announce(options.stdout ? CHANNEL.stdout : options.stderr ? CHANNEL.stderr : CHANNEL.error);
  const asJson = protocol.startsWith("v4.") || protocol.startsWith("v5.");
  return {
    stdin: options.stdin ? socket.readable(CHANNEL.stdin) : null,
    stdout: options.stdout ? socket.writable(CHANNEL.stdout) : null,
    stderr: options.stderr ? socket.writable(CHANNEL.stderr) : null,
    resize: options.tty ? socket.readable(CHANNEL.resize) : null,
    closed: socket.closed,
    async finish(outcome) {
      const text = asJson ? JSON.stringify(outcomeStatus(outcome)) : outcomeText(outcome);
      const errorChannel = socket.writable(CHANNEL.error);
      errorChannel.end(text);
      await finished(errorChannel);
      socket.close();
    },
    destroy: (reason) => socket.destroy(reason),
  };
}

/**
 * From the end of stdin to the end of a session that ends with it: no protocol confirms that the last input has
 * arrived, and data still on its way when a session is broken off may be lost. What the process answers at once is
 * seen, too.
 */
const DETACH_AFTER_MS = 1_000;

/**
 * Connects a client with a process until one of them ends. Never rejects: how it ended is told to the client, and
 * returned.
 *
 * @param kind attaching tells no exit code: a client reads it from the pod's status
 * @param endsWithStdin the end of the client's stdin ends the session, as it does on a container that keeps its own
 *   stdin open
 */
export async function serveRemoteCommand(
  client: RemoteCommandClient,
  process: ProcessStreams,
  kind: "exec" | "attach",
  endsWithStdin?: { clock: Clock },
): Promise<CommandOutcome> {
  let gone: Error | undefined;
  const left = client.closed.then((error): never => {
    gone = error ?? new Error("the connection is closed");
    process.close();
    throw gone;
  });
  left.catch(() => {});
  const stdin = connectStdin(client.stdin, process.stdin);
  const resize = (columns: number, rows: number) => {
    try {
      process.resize(columns, rows);
    } catch {
      // The process may have ended just now; and a terminal that keeps its size is better than a session that ends.
    }
  };
  if (client.resize) followResizes(client.resize, resize);
  const outputs = Promise.all([
    connectOutput(process.stdout, client.stdout),
    connectOutput(process.stderr, client.stderr),
  ]);

  let outcome: CommandOutcome;
  try {
    // A provider that never settles must not keep the session's place when the client has left.
    const detached =
      endsWithStdin && stdin.then(() => endsWithStdin.clock.sleep(DETACH_AFTER_MS)).then(() => "detached" as const);
    const ended = await Promise.race([process.exit, left, ...(detached ? [detached] : [])]);
    if (ended === "detached") {
      // The process goes on without us.
      await Promise.race([endOutputs(process, client), left]);
    } else await Promise.race([outputs, left]);
    outcome = { exitCode: ended === "detached" || kind === "attach" ? 0 : ended.exitCode };
  } catch (thrown) {
    outcome = { error: gone ?? toError(thrown) };
    const flushed = endOutputs(process, client);
    process.close();
    await Promise.race([flushed, left]).catch(() => {});
  }
  try {
    if (gone === undefined) await client.finish(outcome);
  } catch (thrown) {
    // The client left before it had read how the session ended.
    outcome = { error: toError(thrown) };
    client.destroy("closed");
  }
  process.close();
  return outcome;
}

/** Resolves when all of `source` was written and `target` has flushed it, or when either of them broke. */
function connectOutput(source: Readable | null, target: Writable | null): Promise<void> {
  if (source === null) {
    target?.end();
    return Promise.resolve();
  }
  if (target === null) {
    source.resume();
    return Promise.resolve();
  }
  // The client or the process went while the session was opened: pipeline would throw.
  if (source.destroyed || target.destroyed) {
    source.destroy();
    target.end();
    return Promise.resolve();
  }
  return new Promise((resolve) => pipeline(source, target, () => resolve()));
}

/**
 * Ends the outputs before the process has; what it handed over until now still arrives. Resolves when it was flushed.
 */
async function endOutputs(process: ProcessStreams, client: RemoteCommandClient): Promise<void> {
  const end = async (source: Readable | null, target: Writable | null) => {
    source?.unpipe();
    if (target === null) return;
    for (let chunk: unknown; (chunk = source?.read() ?? null) !== null;) target.write(chunk);
    target.end();
    await finished(target, { readable: false }).catch(() => {});
  };
  await Promise.all([end(process.stdout, client.stdout), end(process.stderr, client.stderr)]);
}

/**
 * A process that reads no more must not reset the client's stdin, which some take for a failure: the rest is dropped.
 *
 * @returns settles only when the client ended its stdin and the process has been given all of it
 */
function connectStdin(source: Readable | null, target: NodeJS.WritableStream | null): Promise<void> {
  if (target === null) {
    source?.resume();
    return new Promise(() => {});
  }
  const drop = () => {
    source?.unpipe(target);
    source?.resume();
  };
  target.on("error", drop);
  target.on("close", drop);
  if (source === null) {
    target.end();
    return new Promise(() => {});
  }
  source.pipe(target);
  return new Promise((resolve) => target.once("finish", () => resolve()));
}

/** Largest piece of JSON that is waited for; a size takes about 30 bytes. */
const MAX_RESIZE_BYTES = 1024;

/**
 * Calls `resize` for the sizes of the stream, of many at a time for the last one: nothing holds back a client that
 * sends them by the thousand, and the backend must not be flooded with them. Messages that are not a size are skipped.
 * @internal
 */
export function followResizes(source: Readable, resize: (columns: number, rows: number) => void): void {
  let text = "";
  let latest: { columns: number; rows: number } | undefined;
  const apply = () => {
    const { columns, rows } = latest!;
    latest = undefined;
    resize(columns, rows);
  };
  source.on("data", (chunk: Buffer) => {
    text += chunk.toString("latin1");
    for (let end = text.indexOf("}"); end >= 0; end = text.indexOf("}")) {
      const size = parseSize(text.slice(0, end + 1));
      text = text.slice(end + 1);
      if (size === undefined) continue;
      if (latest === undefined) setImmediate(apply);
      latest = size;
    }
    if (text.length > MAX_RESIZE_BYTES) text = "";
  });
}

function parseSize(json: string): { columns: number; rows: number } | undefined {
  const isSize = (value: unknown): value is number =>
    Number.isInteger(value) && (value as number) > 0 && (value as number) <= 0xffff;
  try {
    const { Width: columns, Height: rows } = JSON.parse(json) as { Width?: unknown; Height?: unknown };
    return isSize(columns) && isSize(rows) ? { columns, rows } : undefined;
  } catch {
    return undefined;
  }
}
