/**
 * A byte stream to the guest of an instance: a program in it passes on between its own streams and the guest's socket,
 * and Incus passes these streams on. Needs no address of the instance and no route to it, and a caller that may not
 * `exec` in the project does not get there.
 */
import { Duplex, Readable, Writable } from "node:stream";
import type WebSocket from "ws";
import { type CallOptions, ProviderError } from "../../../src/provider/kit/index.ts";
import type { IncusClient } from "./client.ts";

/** In the image: `vmlet cloud image` puts it there. */
const RELAY_COMMAND: readonly string[] = ["/usr/lib/vmlet/relay"];

/**
 * Incus gives up an operation whose streams have not come in 5 s. A stream that comes when an operation has just ended
 * may end Incus itself (6.0.4: `Operation.Connect` calls what `done` has taken away).
 */
const SETUP_MS = 4_000;

/**
 * @param options.setupMs within which all streams are open, or none is used
 * @throws ProviderError unavailable
 */
export async function dialGuest(
  client: IncusClient,
  instance: string,
  { setupMs = SETUP_MS, ...options }: CallOptions & { setupMs?: number },
): Promise<Duplex> {
  const late = AbortSignal.timeout(setupMs);
  const inTime = { signal: AbortSignal.any([options.signal, late]) };
  try {
    return await dial(client, instance, inTime);
  } catch (thrown) {
    options.signal.throwIfAborted();
    if (!late.aborted) throw thrown;
    const message = `Incus has not opened a way into ${instance} within ${setupMs / 1000} s`;
    throw new ProviderError("unavailable", message, { cause: thrown });
  }
}

async function dial(client: IncusClient, instance: string, options: CallOptions): Promise<Duplex> {
  const { operation, secrets } = await begin(client, instance, options);
  const open = (fd: string) => client.openStream(operation, secrets[fd]!, options);
  // The command runs, and may be over at once, when the other three are there: this one must not be on its way then.
  const control = await open("control");
  const opened = await Promise.allSettled(["0", "1", "2"].map(open));
  const sockets = [control, ...opened.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []))];
  const failed = opened.find((each) => each.status === "rejected");
  if (failed !== undefined) {
    for (const socket of sockets) socket.terminate();
    throw failed.reason;
  }
  const [, input, output, errors] = sockets as [WebSocket, WebSocket, WebSocket, WebSocket];
  // Nothing of the guest's is in these two; they are read so that their ends are seen.
  errors.resume();
  control.resume();
  input.resume();
  const stream = Duplex.from({ readable: reading(output), writable: writing(input) });
  const end = () => {
    for (const socket of sockets) socket.terminate();
  };
  stream.once("close", end);
  // Without its control connection Incus ends the relay, so nothing is left behind there.
  control.once("close", () => stream.destroy());
  stream.on("error", end);
  return stream;
}

async function begin(
  client: IncusClient,
  instance: string,
  { signal }: CallOptions,
): Promise<{ operation: string; secrets: Readonly<Record<string, string>> }> {
  const body = { command: RELAY_COMMAND, "wait-for-websocket": true, interactive: false, environment: {} };
  const reply = await client.ask({ method: "POST", path: `instances/${instance}/exec`, body, signal });
  const { metadata } = (reply.metadata ?? {}) as { metadata?: { fds?: Record<string, string> } };
  if (reply.error !== undefined || reply.operation === undefined || metadata?.fds === undefined)
    throw new ProviderError("unavailable", `Incus opens no way into ${instance}: ${reply.error ?? "no operation"}`);
  return { operation: reply.operation, secrets: metadata.fds };
}

/** What the relay says; its end is a message of text. */
function reading(socket: WebSocket): Readable {
  const stream = new Readable({ read: () => socket.resume() });
  let isOver = false;
  socket.on("message", (data: Buffer, isBinary: boolean) => {
    isOver ||= !isBinary;
    if (!isBinary) stream.push(null);
    else if (!stream.push(data)) socket.pause();
  });
  socket.once("close", () => {
    if (!isOver) stream.destroy(new ProviderError("unavailable", "the stream to the guest broke"));
  });
  return stream;
}

function writing(socket: WebSocket): Writable {
  return new Writable({
    write(chunk: Buffer, _encoding, done) {
      socket.send(chunk, { binary: true }, done);
    },
    final(done) {
      socket.send("", { binary: false }, done);
    },
  });
}
