/** The connections to one backend: kept ones for calls, and one of its own for each stream. */
import { Agent as HttpAgent, type AgentOptions } from "node:http";
import { Agent as HttpsAgent } from "node:https";
import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { type Clock, ProviderError, toError, unlessAborted } from "../../src/provider/kit/index.ts";
import type { Credentials } from "./credentials.ts";
import type { Dial } from "./options.ts";

export interface Agents {
  calls: HttpAgent;
  streams: HttpAgent;
}

/**
 * A kept connection is not used for longer than this, so that calls follow a name to another address while the old one
 * still answers (a backend that moves, a load balancer that is replaced).
 */
const MAX_AGE_MS = 5 * 60_000;
/**
 * A host that vanishes sends nothing, and a command or a followed log may be silent for hours: after this much silence
 * the kernel probes the peer, and ends the connection ten seconds later.
 */
const KEEP_ALIVE_MS = 15_000;
/** Kept open at most, when they are idle. */
const MAX_IDLE = 64;

export function createAgents(options: {
  isTls: boolean;
  credentials: Pick<Credentials, "ca" | "cert" | "key">;
  maxSockets: number;
  connectMs: number;
  clock: Clock;
  /** Another way to the backend than its address. */
  dial: Dial | undefined;
  /** Whether what was dialled is used for more than one call. */
  keepDialled: boolean;
}): Agents {
  const { isTls, maxSockets, connectMs, clock, dial, keepDialled } = options;
  const { ca, cert, key } = options.credentials;
  const tls = { minVersion: "TLSv1.2" as const, ca, cert, key };
  const create = (pool: AgentOptions): HttpAgent => (isTls ? new HttpsAgent({ ...pool, ...tls }) : new HttpAgent(pool));
  const calls = create({
    keepAlive: true,
    maxSockets,
    maxFreeSockets: Math.min(maxSockets, MAX_IDLE),
    scheduling: "fifo",
  });
  // A stream has its connection for itself; a WebSocket could not be tried again on another one.
  const streams = create({ keepAlive: false });
  if (dial !== undefined) {
    for (const agent of [calls, streams]) dialWith(agent, { dial, connectMs, clock });
    // Elsewhere, what is at the other end may change with every call.
    if (!keepDialled) calls.keepSocketAlive = () => false;
    return { calls, streams };
  }
  limitAge(calls, clock);
  for (const agent of [calls, streams]) {
    onConnection(agent, (socket) => {
      limitConnect(socket, connectMs, clock);
      socket.setKeepAlive(true, KEEP_ALIVE_MS);
    });
  }
  return { calls, streams };
}

/** Its connections come from `dial`. */
function dialWith(agent: HttpAgent, options: { dial: Dial; connectMs: number; clock: Clock }): void {
  agent.createConnection = (_options, callback) => {
    const answer = async () => {
      const { stream, error = null } = await dialWithin(options);
      // A call hears of its connection's errors while it lasts. Some streams say that they were closed by an error.
      stream?.on("error", () => undefined);
      callback?.(error, stream === undefined ? stream! : asSocket(stream));
    };
    void answer();
    return undefined;
  };
}

/** With the functions of a socket that HTTP calls; deadlines are kept elsewhere. */
function asSocket(stream: Duplex): Duplex {
  if (stream instanceof Socket) return stream;
  const nothing = () => stream;
  const functions = ["setTimeout", "setNoDelay", "setKeepAlive", "ref", "unref"];
  return Object.assign(stream, Object.fromEntries(functions.map((name) => [name, nothing])));
}

/** Never rejects. */
async function dialWithin(options: {
  dial: Dial;
  connectMs: number;
  clock: Clock;
}): Promise<{ stream?: Duplex; error?: Error }> {
  const { dial, connectMs, clock } = options;
  const late = new AbortController();
  const cancel = clock.after(connectMs, () =>
    late.abort(new ProviderError("unavailable", `no connection within ${connectMs} ms`)),
  );
  const dialled = dial(late.signal);
  // What comes too late is not left open.
  dialled.then(
    (stream) => late.signal.aborted && stream.destroy(),
    () => undefined,
  );
  try {
    return { stream: await unlessAborted(dialled, late.signal) };
  } catch (thrown) {
    return { error: toError(thrown) };
  } finally {
    cancel();
  }
}

function onConnection(agent: HttpAgent, work: (socket: Socket) => void): void {
  const connect = agent.createConnection.bind(agent) as (...parameters: unknown[]) => Duplex | null | undefined;
  agent.createConnection = (...parameters: unknown[]) => {
    const socket = connect(...parameters) as Socket | null | undefined;
    if (socket !== null && socket !== undefined) work(socket);
    return socket;
  };
}

/** Gives a connection a deadline of its own until it stands. */
function limitConnect(socket: Socket, connectMs: number, clock: Clock): void {
  const cancel = clock.after(connectMs, () =>
    socket.destroy(new ProviderError("unavailable", `no connection within ${connectMs} ms`)),
  );
  socket.once("encrypted" in socket ? "secureConnect" : "connect", cancel).once("close", cancel);
}

/** A connection that is old is closed when it is idle, or after the call for which it is in use. */
function limitAge(agent: HttpAgent, clock: Clock): void {
  const old = new WeakSet<Duplex>();
  onConnection(agent, (socket) => {
    const cancel = clock.after(MAX_AGE_MS, () => {
      old.add(socket);
      if (Object.values(agent.freeSockets).some((idle) => idle?.includes(socket) === true)) socket.destroy();
    });
    socket.once("close", cancel);
  });
  const keep = agent.keepSocketAlive.bind(agent);
  agent.keepSocketAlive = (socket) => !old.has(socket) && keep(socket);
}
