/**
 * Commands and attached sessions by the runtime's streaming server: the URL that it gives for each, SPDY/3.1 and the
 * kubelet's protocol (remotecommand v4). Ports are loopback-relay.ts.
 */
import { request } from "node:http";
import type { Socket } from "node:net";
import { finished } from "node:stream/promises";
import {
  type Clock,
  onAbort,
  type ProcessStreams,
  ProviderError,
  SpdySession,
  type SpdyStream,
  type StreamOptions,
} from "../../../../src/provider/kit/index.ts";
import { KILLED_EXIT } from "../../engine.ts";

const REMOTE_COMMAND = "v4.channel.k8s.io";
/** For the upgrade, and for the streams. */
const OPEN_MS = 30_000;
/** Between two looks at input that nobody may read any more. */
const UNREAD_MS = 2_000;
/** Of what the runtime says about the end of a command. */
const MAX_STATUS_BYTES = 64 * 1024;

/** What remotecommand v4 says at the end: a Kubernetes Status. */
interface EndStatus {
  status?: string;
  reason?: string;
  message?: string;
  details?: { causes?: { reason?: string; message?: string }[] };
}

/** @param url of the runtime's streaming server, once @throws ProviderError unavailable */
async function connect(url: string, clock: Clock, signal: AbortSignal): Promise<SpdySession> {
  const { hostname, port, pathname, search, protocol: scheme } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, "");
  // A runtime that lies, or was told to listen to others, must not lead us, and what is typed, anywhere else.
  if (scheme !== "http:" || !/^(?:127\.[\d.]+|::1|localhost)$/.test(host))
    throw new ProviderError(
      "unavailable",
      `the runtime streams at ${scheme}//${hostname}: let it listen without TLS on 127.0.0.1 (stream_server_address)`,
    );
  const late = new AbortController();
  const cancel = clock.after(OPEN_MS, () => late.abort(new Error("the runtime's streaming server does not answer")));
  const outgoing = request({
    host,
    port,
    path: pathname + search,
    method: "POST",
    headers: { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": REMOTE_COMMAND },
    signal: AbortSignal.any([signal, late.signal]),
  });
  try {
    const [socket, head] = await new Promise<[Socket, Buffer]>((resolve, reject) => {
      outgoing.once("upgrade", (_response, socket, head) => resolve([socket, head]));
      outgoing.once("response", (response) => {
        response.resume();
        reject(new Error(`the runtime's streaming server answers ${response.statusCode}`));
      });
      outgoing.once("error", reject);
      outgoing.end();
    });
    socket.setNoDelay(true);
    return new SpdySession(socket, head, { clock, side: "client" });
  } catch (thrown) {
    signal.throwIfAborted();
    throw new ProviderError("unavailable", `no session with the runtime: ${String(thrown)}`, { cause: thrown });
  } finally {
    cancel();
  }
}

/**
 * The streams of a command, or of a container's main process.
 * @param ended on the end of a session of which the runtime says nothing: its exit code, or an error
 * @throws ProviderError unavailable
 */
export async function commandStreams(
  url: string,
  options: StreamOptions,
  { clock, ended }: { clock: Clock; ended: () => Promise<{ exitCode: number }> },
): Promise<ProcessStreams> {
  const session = await connect(url, clock, options.signal);
  const open = async (streamtype: string, wanted: boolean) => (wanted ? await session.open({ streamtype }) : null);
  let closedByUs = false;
  const close = () => {
    closedByUs = true;
    session.destroy();
  };
  const listening = onAbort(options.signal, close);
  void session.closed.then(() => listening[Symbol.dispose]());
  try {
    const error = (await open("error", true))!;
    const [stdin, stdout, stderr, resize] = [
      await open("stdin", options.stdin),
      await open("stdout", options.stdout),
      await open("stderr", options.stderr && !options.tty),
      await open("resize", options.tty),
    ];
    // The server waits for the end of what we do not send.
    error.end();
    const exit = (async () => {
      // It comes behind all that the command has written: that is with its reader by then, read or not.
      const status = await readStatus(error);
      if (closedByUs) return { exitCode: KILLED_EXIT };
      if (status === undefined) return await ended();
      session.close();
      return exitOf(status);
    })();
    // A caller that only closes the session need not look at it.
    exit.catch(() => {});
    if (stdin !== null) void endUnread(stdin, [stdout, stderr], session, clock).catch(() => {});
    return {
      stdin,
      stdout,
      stderr,
      exit,
      close,
      resize: (columns, rows) => {
        if (resize !== null && !resize.destroyed) resize.write(JSON.stringify({ Width: columns, Height: rows }));
      },
    };
  } catch (thrown) {
    close();
    options.signal.throwIfAborted();
    throw new ProviderError("unavailable", `no session with the runtime: ${String(thrown)}`, { cause: thrown });
  }
}

/**
 * Ends the session of a command that has ended while more of its input was under way than the runtime takes: containerd
 * then waits for somebody to read that, and never tells the end (internal/cri/io/exec_io.go waits for its copy of
 * stdin). Seen by outputs that are over, and input that does not get on.
 */
async function endUnread(
  stdin: SpdyStream,
  outputs: readonly (SpdyStream | null)[],
  session: SpdySession,
  clock: Clock,
): Promise<void> {
  const open = outputs.filter((output) => output !== null);
  await Promise.all(open.map((output) => finished(output, { writable: false })));
  for (let before = 0; !stdin.destroyed && !stdin.writableFinished;) {
    await clock.sleep(UNREAD_MS);
    const { writableLength: left } = stdin;
    if (left > 0 && left === before) return session.destroy();
    before = left;
  }
}

/** Undefined when the session ended before the runtime could tell. */
async function readStatus(stream: SpdyStream): Promise<EndStatus | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes <= MAX_STATUS_BYTES) chunks.push(chunk);
    }
  } catch {
    // What has come counts.
  }
  const text = Buffer.concat(chunks).toString();
  if (text === "") return undefined;
  try {
    return JSON.parse(text) as EndStatus;
  } catch {
    return { status: "Failure", message: text };
  }
}

/** @throws ProviderError invalid when there is no such command, else unavailable */
function exitOf({ status, message = "", details }: EndStatus): { exitCode: number } {
  if (status === "Success") return { exitCode: 0 };
  const code = Number(details?.causes?.find(({ reason }) => reason === "ExitCode")?.message);
  if (Number.isInteger(code)) return { exitCode: code };
  const text = /exec failed: (.*)$/s.exec(message)?.[1] ?? message;
  const isUnknown = /executable file not found|no such file|permission denied/i.test(text);
  throw new ProviderError(isUnknown ? "invalid" : "unavailable", `cannot run the command: ${text.slice(0, 500)}`, {
    field: "command",
  });
}
