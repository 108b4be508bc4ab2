/** The output of a command on a terminal, held back without losing its end. */
import type { Socket } from "node:net";
import type { IPty } from "@lydell/node-pty";

/** node-pty's own time for the output of a command that has ended (DESTROY_SOCKET_TIMEOUT_MS). */
const QUIET_MS = 200;

/**
 * Pauses and resumes a terminal's output. Not node-pty's `pause` alone: 200 ms after the command's end node-pty drops
 * what was not read yet, because somebody else may hold the terminal open for ever. Here what is held back waits for
 * `resume`, and the terminal is closed when nothing more came for 200 ms after that.
 *
 * @throws Error when this version of node-pty keeps its socket elsewhere
 */
export function terminalOutput(terminal: IPty): { pause(): void; resume(): void } {
  const { _socket: socket } = terminal as IPty & { _socket?: Socket };
  if (socket === undefined) throw new Error("this version of node-pty has no socket to hold");
  const destroy = socket.destroy.bind(socket);
  let held = false;
  let isOver = false;
  let quiet: NodeJS.Timeout | undefined;
  const closeWhenQuiet = () => {
    clearTimeout(quiet);
    if (isOver && !held && !socket.destroyed) quiet = setTimeout(destroy, QUIET_MS);
  };
  socket.destroy = (error) => {
    // With an error it is the stream's own end: EIO, all is read.
    if (error !== undefined || socket.readableEnded) return destroy(error);
    isOver = true;
    closeWhenQuiet();
    return socket;
  };
  socket.on("close", () => clearTimeout(quiet));
  terminal.onData(closeWhenQuiet);
  return {
    pause() {
      held = true;
      terminal.pause();
      closeWhenQuiet();
    },
    resume() {
      held = false;
      terminal.resume();
      closeWhenQuiet();
    },
  };
}
