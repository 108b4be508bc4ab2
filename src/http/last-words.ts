import { STATUS_CODES } from "node:http";
import { Socket } from "node:net";
import type { Duplex } from "node:stream";

const LINGER_MS = 5_000;

/**
 * Writes one HTTP reply to a connection that no server looks after any more, and closes it: after a failed upgrade or a
 * malformed request it must not be used again (CVE-2018-1002105). Nothing more is read from it, and a peer that takes
 * nothing is cut off.
 */
export function sendLastWords(
  socket: Duplex,
  reply: { status: number; headers: readonly (readonly [string, string])[]; body: string },
): void {
  if (socket.destroyed) return;
  const headers = [
    ...reply.headers,
    ["Content-Length", String(Buffer.byteLength(reply.body))],
    ["Connection", "close"],
  ];
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`);
  socket.on("error", () => {});
  socket.pause();
  if (socket instanceof Socket) socket.setTimeout(LINGER_MS, () => socket.destroy());
  socket.end(
    `HTTP/1.1 ${reply.status} ${STATUS_CODES[reply.status] ?? "Error"}\r\n${lines.join("")}\r\n${reply.body}`,
    () => socket.destroy(),
  );
}
