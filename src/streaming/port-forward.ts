/**
 * Port-forward: many byte streams to ports of one pod over one connection. Three forms: SPDY with a pair of streams per
 * connection; the same SPDY bytes inside a WebSocket; and the old WebSocket form with two channels per port.
 */
import { shareUnread } from "../http/share-unread.ts";
import { pipeline, type Duplex, type Readable, type Writable } from "node:stream";
import { finished } from "node:stream/promises";
import { createWebSocketStream } from "ws";
import { HttpError } from "../http/http-error.ts";
import { linkAbort, onAbort } from "../util/abort.ts";
import { toError } from "../util/errors.ts";
import { plainText } from "./plain-text.ts";
import { RST_STATUS } from "../spdy/frames.ts";
import { SpdySession, type SpdyStream } from "../spdy/session.ts";
import type { StreamLimits } from "./remote-command.ts";
import { acceptSpdyUpgrade, negotiateSpdyProtocol, upgradeKind, type UpgradeRequest } from "./upgrade.ts";
import { ChannelSocket, acceptWebSocketUpgrade, negotiateWebSocketProtocol } from "./websocket.ts";

const SPDY_PROTOCOL = "portforward.k8s.io";
const TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io";
const CHANNEL_PROTOCOLS = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];
/** Channel numbers are one byte and each port takes two. */
const MAX_CHANNEL_PORTS = 127;
/** Two streams each. */
const MAX_CONNECTIONS = 256;

type PortForwardProtocol =
  | { kind: "spdy"; name: string }
  | { kind: "tunnel"; name: string }
  | { kind: "channels"; name: string; ports: number[] };

/**
 * @param query `port` (repeated, comma separated) says the ports of the channel form
 * @throws HttpError 400 or 403
 */
export function negotiatePortForward(request: UpgradeRequest["request"], query: URLSearchParams): PortForwardProtocol {
  if (upgradeKind(request) === "spdy") return { kind: "spdy", name: negotiateSpdyProtocol(request, [SPDY_PROTOCOL]) };
  const name = negotiateWebSocketProtocol(request, [TUNNEL_PROTOCOL, ...CHANNEL_PROTOCOLS]);
  if (name === TUNNEL_PROTOCOL) return { kind: "tunnel", name };
  const values = query.getAll("port").flatMap((value) => value.split(","));
  if (values.length === 0) throw new HttpError(400, 'query parameter "port" is required');
  const ports = values.map((value) => {
    const port = parsePort(value);
    if (port === undefined) throw new HttpError(400, `invalid port ${JSON.stringify(value)} in query parameter "port"`);
    return port;
  });
  if (ports.length > MAX_CHANNEL_PORTS)
    throw new HttpError(400, `${ports.length} ports are more than the limit of ${MAX_CHANNEL_PORTS}`);
  return { kind: "channels", name, ports };
}

interface PortForwardTarget {
  /** For error texts: `error forwarding port 80 to pod NAME, uid UID: ...`. */
  podName: string;
  podUid: string;
  /** Opens a byte stream to a TCP port inside the machine; `signal` aborts when the client is gone. */
  dial(port: number, signal: AbortSignal): Promise<Duplex>;
}

/**
 * Answers 101 and forwards until the client closes or `signal` aborts.
 * @throws HttpError for a malformed handshake
 */
export async function servePortForward(
  upgrade: UpgradeRequest,
  protocol: PortForwardProtocol,
  target: PortForwardTarget,
  limits: StreamLimits,
  signal: AbortSignal,
): Promise<void> {
  if (protocol.kind === "channels") {
    await serveChannels(upgrade, protocol, target, limits, signal);
    return;
  }
  if (protocol.kind === "spdy") {
    acceptSpdyUpgrade(upgrade, protocol.name);
    await serveSpdy(upgrade.socket, upgrade.head, target, limits, signal);
    return;
  }
  const webSocket = await acceptWebSocketUpgrade(upgrade, protocol.name);
  const tunnel = createWebSocketStream(webSocket);
  if (limits.unread !== undefined) shareUnread(webSocket, upgrade.socket, limits.unread, () => tunnel.readableLength);
  await serveSpdy(tunnel, Buffer.alloc(0), target, limits, signal);
  webSocket.terminate();
}

async function serveSpdy(
  transport: Duplex,
  head: Buffer,
  target: PortForwardTarget,
  limits: StreamLimits,
  signal: AbortSignal,
): Promise<void> {
  interface Pair {
    data?: SpdyStream;
    error?: SpdyStream;
    cancelTimeout: () => void;
  }
  const pairs = new Map<string, Pair>();
  const gone = new AbortController();

  const session = new SpdySession(transport, head, {
    clock: limits.clock,
    maxStreams: 2 * MAX_CONNECTIONS,
    unread: limits.unread,
    idleTimeoutMs: limits.idleTimeoutMs,
    pingIntervalMs: limits.pingIntervalMs,
    onStream(stream) {
      const type = stream.headers.get("streamtype");
      const port = parsePort(stream.headers.get("port") ?? "");
      if ((type !== "data" && type !== "error") || port === undefined) {
        stream.reset(RST_STATUS.protocolError);
        return;
      }
      // Old clients send no id: their error stream comes just before its data stream.
      const requestId = stream.headers.get("requestid") ?? String(type === "error" ? stream.id : stream.id - 2);
      let pair = pairs.get(requestId);
      if (pair === undefined) {
        const cancelTimeout = limits.clock.after(limits.creationTimeoutMs ?? 30_000, () => {
          const half = pairs.get(requestId);
          pairs.delete(requestId);
          half?.data?.reset();
          half?.error?.end("timed out waiting for the other stream of the connection");
        });
        pair = { cancelTimeout };
        pairs.set(requestId, pair);
        stream.once("close", () => {
          if (pairs.get(requestId)?.[type] !== stream) return;
          cancelTimeout();
          pairs.delete(requestId);
        });
      }
      if (pair[type] !== undefined) {
        stream.reset(RST_STATUS.protocolError);
        return;
      }
      pair[type] = stream;
      if (type === "error") stream.resume();
      if (pair.data === undefined || pair.error === undefined) return;
      pair.cancelTimeout();
      pairs.delete(requestId);
      void forwardPair(pair.data, pair.error, port, target, gone.signal);
    },
  });
  using _ = onAbort(signal, () => session.close());
  await session.closed;
  for (const pair of pairs.values()) pair.cancelTimeout();
  gone.abort(new Error("the client closed the connection"));
}

/**
 * Any byte on an error stream makes kubectl give up the whole session, so only a failure to connect is reported there,
 * and none that the client itself caused. The error stream ends when the port's data has ended: kubectl waits for it
 * before it closes the connection, and old ones before they end their own side of it.
 */
async function forwardPair(
  data: SpdyStream,
  error: SpdyStream,
  port: number,
  target: PortForwardTarget,
  gone: AbortSignal,
): Promise<void> {
  const cancel = new AbortController();
  data.once("close", () => {
    // Ended on both sides is not given up: the last of it may still be on its way to the port.
    if (!data.readableEnded || !data.writableFinished) cancel.abort(new Error("the client closed the stream"));
  });
  using linked = linkAbort(gone, cancel.signal);
  const { signal } = linked;
  try {
    const remote = await target.dial(port, signal);
    await copyBothWays(data, remote, () => error.end());
  } catch (thrown) {
    error.end(signal.aborted ? undefined : forwardError(port, target, thrown));
    data.reset();
  }
}

function forwardError(port: number, target: PortForwardTarget, thrown: unknown): string {
  return `error forwarding port ${port} to pod ${target.podName}, uid ${target.podUid}: ${plainText(toError(thrown).message)}`;
}

/** Copies until both directions ended or either end broke; a half-close is passed on. Leaves both ends closed. */
function copyBothWays(client: Duplex, remote: Duplex, onRemoteEnd: () => void): Promise<void> {
  return new Promise((resolve) => {
    let open = 2;
    const ended = (error?: Error | null) => {
      open--;
      if (error && open > 0) {
        client.destroy();
        remote.destroy();
      }
      if (open === 0) resolve();
    };
    pipeline(client as Readable, remote as Writable, ended);
    pipeline(remote as Readable, client as Writable, (error) => {
      onRemoteEnd();
      ended(error);
    });
  });
}

async function serveChannels(
  upgrade: UpgradeRequest,
  protocol: { name: string; ports: number[] },
  target: PortForwardTarget,
  limits: StreamLimits,
  signal: AbortSignal,
): Promise<void> {
  const webSocket = await acceptWebSocketUpgrade(upgrade, protocol.name);
  const socket = new ChannelSocket(webSocket, {
    clock: limits.clock,
    base64: protocol.name.includes("base64"),
    closableChannels: false,
    unread: limits.unread && { ...limits.unread, transport: upgrade.socket },
    inbound: protocol.ports.map((_, index) => 2 * index),
    idleTimeoutMs: limits.idleTimeoutMs,
    pingIntervalMs: limits.pingIntervalMs,
  });
  const gone = new AbortController();
  const connections = protocol.ports.map(async (port, index) => {
    const toClient = socket.writable(2 * index);
    const errors = socket.writable(2 * index + 1);
    // The first message of each channel is the port, in two bytes, low byte first.
    const announcement = Buffer.alloc(2);
    announcement.writeUInt16LE(port);
    toClient.write(announcement);
    errors.write(announcement);
    try {
      const remote = await target.dial(port, gone.signal);
      remote.on("error", () => {});
      pipeline(socket.readable(2 * index), remote as Writable, () => {});
      // This form has no half-close: the port's end is the connection's.
      await new Promise<void>((resolve) => pipeline(remote as Readable, toClient, () => resolve()));
      remote.destroy();
    } catch (thrown) {
      // Input for this port is dropped: no process would read it, and the other ports would wait behind it.
      socket.readable(2 * index).destroy();
      // Flushed before the connection may be closed.
      errors.end(forwardError(port, target, thrown));
      await finished(errors).catch(() => {});
    }
  });
  // One connection per port: when all are over there is nothing left to do.
  void Promise.allSettled(connections).then(() => socket.close());
  using _ = onAbort(signal, () => socket.close());
  await socket.closed;
  gone.abort(new Error("the client closed the connection"));
  await Promise.allSettled(connections);
}

function parsePort(text: string): number | undefined {
  if (!/^[0-9]{1,5}$/.test(text)) return undefined;
  const port = Number(text);
  return port >= 1 && port <= 65535 ? port : undefined;
}
