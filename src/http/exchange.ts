/** What belongs to one request while it is answered. */
import { ServerResponse, type IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { linkAbort, type LinkedSignal } from "../util/abort.ts";

/**
 * A signal that aborts when the client is gone before it has its whole answer, or with the server's own, until the
 * stream closes or it is given back. Errors of the stream are heard and mean no more than that.
 *
 * @param stream the response, or the connection of a request to upgrade
 * @param gone makes the reason to abort with when the client is gone
 * @param stopping aborts when the server takes no more time for requests
 */
export function whileConnected(
  stream: ServerResponse | Duplex,
  gone: () => Error,
  stopping: AbortSignal,
): LinkedSignal {
  const left = new AbortController();
  const linked = linkAbort(left.signal, stopping);
  stream.on("error", () => {});
  stream.once("close", () => {
    if (!(stream instanceof ServerResponse && stream.writableFinished)) left.abort(gone());
    linked.release();
  });
  return linked;
}

/** The path of a request for the log: a query may hold commands and tokens. */
export function loggedPath({ url = "" }: IncomingMessage): string {
  return url.split("?", 1)[0]!;
}

/** A whole reply, which tells its own length. To a HEAD, Node leaves the body out. */
export function sendReply(
  response: ServerResponse,
  status: number,
  headers: Readonly<Record<string, string>>,
  body: string | Buffer,
): void {
  response.writeHead(status, { ...headers, "content-length": Buffer.byteLength(body) });
  response.end(body);
}
