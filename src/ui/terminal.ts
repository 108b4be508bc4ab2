/**
 * A terminal in a container, as kubectl has it: a WebSocket to the API server, which asks the kubelet. Both sides speak
 * `v5.channel.k8s.io`, so messages are passed on as they are; a side that does not read holds up the other.
 */
import { WebSocket } from "ws";
import { resourcePath } from "../kube/paths.ts";
import type { Credentials } from "../kube/credentials.ts";
import { statusError } from "../kube/replies.ts";
import { HttpError } from "../http/http-error.ts";
import { onAbort } from "../util/abort.ts";

/** What one side may have unread, in bytes, before nothing more is taken from the other. */
const MAX_UNREAD = 1 << 20;
const MAX_MESSAGE = 4 << 20;
const HANDSHAKE_MS = 20_000;
const PROTOCOLS = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/** Of the shells that a container may have, the most comfortable. */
const SHELL = ["sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"];
/** A close frame's reason has no room for more, in bytes. */
const MAX_REASON = 120;

interface TerminalTarget {
  namespace: string;
  pod: string;
  container: string;
}

/** A shell on a terminal. @throws as `openExec` */
export function openTerminal(
  target: TerminalTarget,
  credentials: Credentials,
  signal: AbortSignal,
): Promise<WebSocket> {
  return openExec(target, { command: SHELL, stdin: true, stdout: true, tty: true }, credentials, signal);
}

/**
 * A command whose messages wait until the socket is resumed.
 * @throws KubeApiError with the API server's refusal, HttpError for what cannot be done, the signal's reason
 */
export async function openExec(
  { namespace, pod, container }: TerminalTarget,
  {
    command,
    ...streams
  }: { command: readonly string[] } & Partial<Record<"stdin" | "stdout" | "stderr" | "tty", true>>,
  { server, proxyUrl, headers, tls }: Credentials,
  signal: AbortSignal,
): Promise<WebSocket> {
  if (proxyUrl !== undefined)
    throw new HttpError(501, "the kubeconfig has a proxy-url: terminals do not go through proxies, use kubectl exec");
  const url = new URL(server + resourcePath({ resource: "pods", namespace, name: pod, subresource: "exec" }));
  url.protocol = url.protocol === "http:" ? "ws:" : "wss:";
  for (const [name, value] of Object.entries({ container, ...streams })) url.searchParams.set(name, String(value));
  for (const word of command) url.searchParams.append("command", word);
  const socket = new WebSocket(url, PROTOCOLS, {
    ...tls,
    headers,
    handshakeTimeout: HANDSHAKE_MS,
    maxPayload: MAX_MESSAGE,
    perMessageDeflate: false,
  });
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  using _ = onAbort(signal, () => {
    reject(signal.reason as Error);
    socket.terminate();
  });
  socket.once("open", resolve);
  socket.on("error", reject);
  socket.once("unexpected-response", (_request, reply) => {
    const chunks: Buffer[] = [];
    reply.on("data", (chunk: Buffer) => chunks.length < 16 && chunks.push(chunk));
    const told = { status: reply.statusCode ?? 0, headers: reply.headers, body: reply as never };
    reply.on("end", () => {
      reject(statusError(`exec in ${namespace}/${pod}`, told, Buffer.concat(chunks).toString()));
      socket.terminate();
    });
  });
  // What the container says before anybody listens stays where it is.
  socket.once("open", () => socket.pause());
  await promise;
  return socket;
}

/** Passes messages on in both directions until one side closes; then the other is closed too. */
export async function joinSockets(browser: WebSocket, cluster: WebSocket, signal: AbortSignal): Promise<void> {
  using _ = onAbort(signal, () => {
    browser.terminate();
    cluster.terminate();
  });
  const ends = [passOn(browser, cluster), passOn(cluster, browser)];
  cluster.resume();
  await Promise.all(ends);
}

async function passOn(from: WebSocket, to: WebSocket): Promise<void> {
  from.on("error", () => undefined);
  from.on("message", (data, isBinary) => {
    if (to.readyState !== WebSocket.OPEN) return;
    to.send(data as Buffer, { binary: isBinary }, () => {
      if (from.isPaused && to.bufferedAmount < MAX_UNREAD) from.resume();
    });
    if (to.bufferedAmount >= MAX_UNREAD) from.pause();
  });
  await new Promise<void>((resolve) => {
    const ended = (code: number, reason: Buffer) => {
      // 1005 and 1006 stand for what was not said and may not be sent.
      if (code === 1000 || (code >= 3000 && code < 5000)) to.close(code, reason.subarray(0, MAX_REASON));
      else to.close(1011);
      resolve();
    };
    if (from.readyState === WebSocket.CLOSED) ended(1006, Buffer.alloc(0));
    else from.once("close", ended);
  });
}
