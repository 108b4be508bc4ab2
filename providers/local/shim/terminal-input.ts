/** The input of a command on a terminal, without waiting for a command that does not read. */
import { writeSync } from "node:fs";
import type { Socket } from "node:net";
import { Writable } from "node:stream";
import type { IPty } from "@lydell/node-pty";

/** How long what the terminal does not take is held before the next try: the first time, and at most. */
const RETRY_MS = { first: 1, max: 64 };
/** At once: a terminal takes a few KiB, and meanwhile the process does nothing else. */
const PIECE_BYTES = 16 * 1024;
const END_OF_FILE = Buffer.from("\u0004");

/**
 * What a terminal's command is to read. It takes no more than the terminal does and a buffer's worth
 * (`writableHighWaterMark`); what is left when the command is over is dropped.
 *
 * Not node-pty's `write`: that has libuv write to the terminal's master and, as libuv cannot have such a file wait
 * without the process, stops this whole process while the command does not read. The file does not block (node-pty:
 * pty_nonblock).
 *
 * @throws Error when this version of node-pty keeps its socket or file elsewhere
 */
export function terminalInput(terminal: IPty): Writable {
  const { _socket: socket, fd } = terminal as IPty & { _socket?: Socket; fd?: number };
  if (socket === undefined || fd === undefined) throw new Error("this version of node-pty has no file to write to");
  const write = (data: Buffer, retryMs: number, done: () => void): void => {
    // The file is closed in the very moment in which the socket is destroyed: later, its number may be another file's.
    if (socket.destroyed) {
      done();
      return;
    }
    const written = writeSome(fd, data);
    if (written === data.length) done();
    else if (written > 0) setImmediate(write, data.subarray(written), RETRY_MS.first, done);
    else setTimeout(write, retryMs, data, Math.min(retryMs * 2, RETRY_MS.max), done);
  };
  return new Writable({
    write: (chunk: Buffer, _encoding, callback) => write(chunk, RETRY_MS.first, callback),
    // End of file on a terminal is a character.
    final: (callback) => write(END_OF_FILE, RETRY_MS.first, callback),
  });
}

/** @returns how many bytes the terminal took; all of them when there is nobody to read them any more */
function writeSome(fd: number, data: Buffer): number {
  try {
    return writeSync(fd, data, 0, Math.min(data.length, PIECE_BYTES));
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code === "EAGAIN" ? 0 : data.length;
  }
}
