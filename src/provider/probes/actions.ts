/**
 * Probe and hook actions against a running machine, with kubelet's texts (pkg/kubelet/prober/prober.go,
 * pkg/kubelet/lifecycle/handlers.go).
 */
import { connect as connectHttp2, type IncomingHttpHeaders } from "node:http2";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { connect as connectTcp } from "node:net";
import type { Duplex } from "node:stream";
import { connect as connectTls } from "node:tls";
import type { Handler, HttpAction } from "../machine.ts";
import { unlessAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { toError, VmletError } from "../../util/errors.ts";
import type { ProcessStreams, StreamOptions } from "../provider.ts";

export type ProbeOutcome = "success" | "warning" | "failure" | "unknown";

export interface ProbeResult {
  outcome: ProbeOutcome;
  output: string;
}

/**
 * Where an action goes: one container of a machine, from the machine's host or from wherever its addresses are reached.
 */
export interface Target {
  /** The machine's, primary first. */
  readonly addresses: readonly string[];
  /** Connects to a port of the machine's first address. Rejects with the socket's error (ECONNREFUSED...). */
  dial(port: number, signal: AbortSignal): Promise<Duplex>;
  /** Connects to a port of the loopback inside the machine. Absent: that cannot be reached from here. */
  dialLoopback?(port: number, signal: AbortSignal): Promise<Duplex>;
  /** Runs a command in the container. */
  exec(command: string[], options: StreamOptions): Promise<ProcessStreams>;
}

const MAX_OUTPUT_BYTES = 10 * 1024;
const MAX_REDIRECTS = 10;
/** kubelet sends its own minor version; servers only look at the prefix. */
const PROBE_AGENT = "kube-probe/1.37";
const HOOK_AGENT = "kube-lifecycle/1.37";
const GRPC_SERVING = 1;
const GRPC_STATUS_NAMES = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/** Runs one probe. Never rejects; when `timeoutMs` passes, the outcome is a failure with kubelet's text for it. */
export async function runProbe(
  handler: Handler,
  target: Target,
  timeoutMs: number,
  clock: Clock,
): Promise<ProbeResult> {
  const abort = new AbortController();
  const cancel = clock.after(timeoutMs, () => abort.abort(new TimeoutError()));
  try {
    if (handler.exec !== undefined) return await probeExec(handler.exec.command, target, abort.signal);
    if (handler.http !== undefined) return await probeHttp(handler.http, target, abort.signal);
    if (handler.tcp !== undefined) return await probeTcp(handler.tcp, target, abort.signal);
    if (handler.grpc !== undefined) return await probeGrpc(handler.grpc, target, timeoutMs, abort.signal);
    return { outcome: "unknown", output: "missing probe handler" };
  } catch (thrown) {
    return { outcome: "unknown", output: toError(thrown).message };
  } finally {
    cancel();
    abort.abort(new TimeoutError());
  }
}

class TimeoutError extends VmletError {
  readonly code = "PROBE_TIMEOUT";

  constructor() {
    super("context deadline exceeded");
  }
}

/** Runs a command to its end; stdout and stderr together, cut at 10 KiB. */
async function runCommand(
  command: string[],
  target: Target,
  signal: AbortSignal,
): Promise<{ exitCode: number; output: string }> {
  const streams = await unlessAborted(
    target.exec(command, { signal, stdin: false, stdout: true, stderr: true, tty: false }),
    signal,
  );
  const chunks: Buffer[] = [];
  let bytes = 0;
  const collect = (chunk: Buffer) => {
    if (bytes < MAX_OUTPUT_BYTES) chunks.push(chunk);
    bytes += chunk.length;
  };
  streams.stdout?.on("data", collect);
  streams.stderr?.on("data", collect);
  try {
    const { exitCode } = await unlessAborted(streams.exit, signal);
    return { exitCode, output: Buffer.concat(chunks).subarray(0, MAX_OUTPUT_BYTES).toString() };
  } finally {
    streams.close();
  }
}

async function probeExec(command: string[], target: Target, signal: AbortSignal): Promise<ProbeResult> {
  try {
    const { exitCode, output } = await runCommand(command, target, signal);
    return { outcome: exitCode === 0 ? "success" : "failure", output };
  } catch (thrown) {
    if (signal.aborted) return { outcome: "failure", output: `command "${command.join(" ")}" timed out` };
    return { outcome: "unknown", output: toError(thrown).message };
  }
}

function dialError(error: unknown, address: string): string {
  const code = (error as NodeJS.ErrnoException).code;
  const reasons: Record<string, string> = {
    ECONNREFUSED: "connect: connection refused",
    EHOSTUNREACH: "connect: no route to host",
    ENETUNREACH: "connect: network is unreachable",
    ETIMEDOUT: "connect: connection timed out",
  };
  if (error instanceof TimeoutError) return `dial tcp ${address}: i/o timeout`;
  return `dial tcp ${address}: ${code === undefined ? toError(error).message : (reasons[code] ?? toError(error).message)}`;
}

function addressOf(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

const LOOPBACK = /^(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|::1)$/;

/**
 * To the machine itself, by its address or its own loopback. Never to another host: the pod's author names it, and the
 * process that runs this may reach what the pod must not (Pod Security's baseline forbids `host` for that reason).
 */
async function dial(target: Target, host: string | undefined, port: number, signal: AbortSignal): Promise<Duplex> {
  if (host === undefined || target.addresses.includes(host))
    return await unlessAborted(target.dial(port, signal), signal);
  if (LOOPBACK.test(host) && target.dialLoopback !== undefined)
    return await unlessAborted(target.dialLoopback(port, signal), signal);
  throw new Error("probes and hooks reach the pod alone: leave its host field out");
}

/** A TCP connection. Rejects with the socket's error. */
export function connect(host: string, port: number, signal: AbortSignal): Promise<Duplex> {
  return new Promise<Duplex>((resolve, reject) => {
    const socket = connectTcp({ host, port, signal });
    socket.once("connect", () => resolve(socket));
    socket.once("error", reject);
  });
}

async function probeTcp(
  action: { port: number; host?: string },
  target: Target,
  signal: AbortSignal,
): Promise<ProbeResult> {
  const host = action.host ?? target.addresses[0]!;
  try {
    const socket = await dial(target, action.host, action.port, signal);
    socket.on("error", () => {});
    socket.destroy();
    return { outcome: "success", output: "" };
  } catch (thrown) {
    return { outcome: "failure", output: dialError(thrown, addressOf(host, action.port)) };
  }
}

/**
 * They are for one hop, or for one connection: with them a probe would be something else than one GET, an upgrade to a
 * session for example, or what follows it would be read as another request. `Sec-*` no client but a browser has to
 * send.
 */
const FORBIDDEN_HEADERS: ReadonlySet<string> = new Set([
  "connection",
  "content-length",
  "expect",
  "http2-settings",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

function isForbidden(name: string): boolean {
  const lower = name.trim().toLowerCase();
  return FORBIDDEN_HEADERS.has(lower) || lower.startsWith("sec-");
}

interface HttpReply {
  status: number;
  location: string | undefined;
  body: string;
}

async function httpGet(action: HttpAction, agent: string, target: Target, signal: AbortSignal): Promise<HttpReply> {
  const host = action.host === undefined || action.host === "" ? undefined : action.host;
  const headers: Record<string, string | string[]> = { "User-Agent": agent, Accept: "*/*", Connection: "close" };
  headers["Host"] = addressOf(host ?? target.addresses[0]!, action.port);
  const own = new Map<string, string[]>();
  for (const { name, value } of action.headers ?? [])
    if (!isForbidden(name)) own.set(name.toLowerCase(), [...(own.get(name.toLowerCase()) ?? []), value]);
  for (const [name, values] of own) {
    for (const known of Object.keys(headers)) if (known.toLowerCase() === name) delete headers[known];
    // An empty value takes a default header away (kubelet: `Accept: ""`).
    if (values.some((value) => value !== ""))
      // Of several hosts a kubelet takes the last; two lines could be read in two ways.
      headers[name] = values.length === 1 || name === "host" ? values.at(-1)! : values;
  }
  const socket = await dial(target, host, action.port, signal);
  const stream = action.scheme === "https" ? connectTls({ socket, rejectUnauthorized: false }) : socket;
  try {
    return await unlessAborted(
      new Promise<HttpReply>((resolve, reject) => {
        stream.on("error", reject);
        const request = httpRequest({
          createConnection: () => stream,
          path: action.path.startsWith("/") ? action.path : `/${action.path}`,
          headers,
        });
        request.on("error", reject);
        request.on("response", (reply) => {
          readBody(reply).then(
            (body) => resolve({ status: reply.statusCode!, location: reply.headers.location, body }),
            reject,
          );
        });
        request.end();
      }),
      signal,
    );
  } finally {
    stream.destroy();
    socket.destroy();
  }
}

function readBody(reply: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const done = () => resolve(Buffer.concat(chunks).subarray(0, MAX_OUTPUT_BYTES).toString());
    reply.on("data", (chunk: Buffer) => {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes >= MAX_OUTPUT_BYTES) {
        done();
        reply.destroy();
      }
    });
    reply.on("end", done);
    reply.on("error", reject);
  });
}

async function probeHttp(action: HttpAction, target: Target, signal: AbortSignal): Promise<ProbeResult> {
  let current = action;
  for (let redirects = 0; ; redirects++) {
    const address = addressOf(current.host || target.addresses[0]!, current.port);
    const url = `${current.scheme ?? "http"}://${address}${current.path.startsWith("/") ? "" : "/"}${current.path}`;
    let reply: HttpReply;
    try {
      reply = await httpGet(current, PROBE_AGENT, target, signal);
    } catch (thrown) {
      const dialing = (thrown as NodeJS.ErrnoException).syscall === "connect";
      let why = dialing ? dialError(thrown, address) : toError(thrown).message;
      if (thrown instanceof TimeoutError)
        why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
      return { outcome: "failure", output: `Get "${url}": ${why}` };
    }
    if (reply.status < 200 || reply.status >= 400)
      return { outcome: "failure", output: `HTTP probe failed with statuscode: ${reply.status}` };
    if (reply.status < 300 || reply.location === undefined) return { outcome: "success", output: reply.body };
    const next = new URL(reply.location, url);
    if (next.hostname !== new URL(url).hostname)
      return { outcome: "warning", output: `Probe terminated redirects, Response body: ${reply.body}` };
    if (redirects >= MAX_REDIRECTS)
      return { outcome: "failure", output: `Get "${reply.location}": stopped after ${MAX_REDIRECTS} redirects` };
    const scheme = next.protocol === "https:" ? "https" : "http";
    current = {
      ...current,
      scheme,
      port: next.port === "" ? (scheme === "https" ? 443 : 80) : Number(next.port),
      path: next.pathname + next.search,
    };
  }
}

/** A unary call by hand: one HTTP/2 request, one protobuf field each way. Plain text, as kubelet's. */
async function probeGrpc(
  action: { port: number; service?: string },
  target: Target,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<ProbeResult> {
  const address = addressOf(target.addresses[0]!, action.port);
  const cannotConnect = (error: unknown): ProbeResult => {
    if (error instanceof TimeoutError) {
      return {
        outcome: "failure",
        output: `timeout: failed to connect service "${address}" within ${timeoutMs / 1000}s: context deadline exceeded`,
      };
    }
    return {
      outcome: "failure",
      output: `error: failed to connect service "${address}": ${dialError(error, address)}`,
    };
  };
  let socket: Duplex;
  try {
    socket = await dial(target, undefined, action.port, signal);
  } catch (thrown) {
    return cannotConnect(thrown);
  }
  const session = connectHttp2(`http://${address}`, { createConnection: () => socket });
  try {
    const reply = await unlessAborted(
      new Promise<{ status: string; message: string; body: Buffer }>((resolve, reject) => {
        session.on("error", reject);
        session.on("close", () => reject(new Error("connection closed")));
        const service = Buffer.from(action.service ?? "");
        const message =
          service.length === 0
            ? Buffer.alloc(0)
            : Buffer.concat([Buffer.from([0x0a]), varint(service.length), service]);
        const stream = session.request({
          ":method": "POST",
          ":path": "/grpc.health.v1.Health/Check",
          "content-type": "application/grpc",
          te: "trailers",
          "user-agent": PROBE_AGENT,
        });
        const chunks: Buffer[] = [];
        let status = "";
        let text = "";
        const note = (headers: IncomingHttpHeaders) => {
          status = headers["grpc-status"]?.toString() ?? status;
          text = headers["grpc-message"]?.toString() ?? text;
        };
        stream.on("response", note);
        stream.on("trailers", note);
        stream.on("data", (chunk: Buffer) => {
          if (chunks.length < 16) chunks.push(chunk);
        });
        stream.on("error", reject);
        stream.on("end", () => resolve({ status, message: text, body: Buffer.concat(chunks) }));
        stream.end(grpcFrame(message));
      }),
      signal,
    );
    if (reply.status === "12") {
      return {
        outcome: "failure",
        output: `error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ${reply.message}`,
      };
    }
    if (reply.status !== "0")
      return {
        outcome: "failure",
        output: `error: health rpc probe failed: rpc error: code = ${reply.status} desc = ${reply.message}`,
      };
    const serving = reply.body[5] === 0x08 ? reply.body[6]! : 0;
    if (serving === GRPC_SERVING) return { outcome: "success", output: "service healthy" };
    return {
      outcome: "failure",
      output: `service unhealthy (responded with "${GRPC_STATUS_NAMES[serving] ?? serving}")`,
    };
  } catch (thrown) {
    return cannotConnect(thrown);
  } finally {
    session.destroy();
    socket.destroy();
  }
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest]);
    bytes.push((rest & 0x7f) | 0x80);
  }
}

/** One uncompressed message with its length before it. */
function grpcFrame(message: Buffer): Buffer {
  const header = Buffer.alloc(5);
  header.writeUInt32BE(message.length, 1);
  return Buffer.concat([header, message]);
}

export interface HookContext {
  clock: Clock;
  signal: AbortSignal;
  /** kubelet's LifecycleHTTPFallback: an https hook that met a plain http server. */
  onFallback(message: string): void;
}

/**
 * Runs a post_start or pre_stop hook; rejects when it failed. Any HTTP response is success: kubelet does not look at
 * the status code.
 */
export async function runHook(
  handler: Handler,
  target: Target,
  { clock, signal, onFallback }: HookContext,
): Promise<void> {
  if (handler.sleep !== undefined) {
    await clock.sleep(handler.sleep.seconds * 1000, signal);
  } else if (handler.exec !== undefined) {
    const { exitCode, output } = await runCommand(handler.exec.command, target, signal);
    if (exitCode !== 0)
      throw new Error(`command "${handler.exec.command.join(" ")}" exited with ${exitCode}: ${output}`);
  } else if (handler.http !== undefined) {
    try {
      await httpGet(handler.http, HOOK_AGENT, target, signal);
    } catch (thrown) {
      const plain =
        handler.http.scheme === "https" && /wrong version number|packet length too long/i.test(toError(thrown).message);
      if (!plain) throw thrown;
      onFallback(
        `request to HTTPS lifecycle hook ${addressOf(handler.http.host || target.addresses[0]!, handler.http.port)} got HTTP response, retried with HTTP`,
      );
      await httpGet({ ...handler.http, scheme: "http" }, HOOK_AGENT, target, signal);
    }
  } else if (handler.tcp !== undefined) {
    const socket = await dial(target, handler.tcp.host, handler.tcp.port, signal);
    socket.on("error", () => {});
    socket.destroy();
  }
}
