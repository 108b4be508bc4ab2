/** What one WebSocket holds in memory, charged to the budget of all. */
import type { Duplex } from "node:stream";
import type { UnreadShare } from "../util/unread.ts";

/** Each chunk is an object besides its bytes. */
const PIECE_BYTES = 256;

/** What of a WebSocket of `ws` is used: the provider kit's declarations come without that package's. */
interface WebSocket {
  close(code: number, reason: string): void;
  terminate(): void;
  on(event: "message" | "close", listener: () => void): unknown;
}

/**
 * Has a WebSocket share in the budget of unread bytes.
 *
 * @param transport the connection below it
 * @param buffered bytes of whole messages that have not been read yet
 */
export function shareUnread(
  webSocket: WebSocket,
  transport: Duplex,
  { budget, tenant }: UnreadShare,
  buffered: () => number,
): void {
  /** Of a message that is not whole; the library does not tell. */
  let begun = 0;
  let latest = 0;
  const account = budget.join({
    tenant,
    measure: () => begun + buffered(),
    cut() {
      webSocket.close(1009, "too many bytes that nobody reads");
      webSocket.terminate();
    },
  });
  // Before the library sees them.
  transport.prependListener("data", (chunk: Buffer) => {
    latest = chunk.length + PIECE_BYTES;
    begun += latest;
    account.add(chunk.length);
  });
  // What is left of the chunk may be the beginning of the next one.
  webSocket.on("message", () => (begun = latest));
  webSocket.on("close", () => account.leave());
}
