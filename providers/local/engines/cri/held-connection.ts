/**
 * A connection to a runtime that stays open for a while when this process is killed. containerd cancels a call whose
 * client goes, and with it a container whose command has begun already. So another process, a shell of a megabyte,
 * holds the same connection: it says and reads nothing, and ends by itself.
 */
import { spawn } from "node:child_process";
import { connect, type Socket } from "node:net";

/** `read` ends with this process, whatever ends it. */
const HOLD = "read -r _; exec sleep";

/** @param seconds it stays open after this process; when it is closed, nothing of it stays */
export function heldConnection(path: string, seconds: number): Socket {
  const socket = connect(path);
  // Before anything is written to it.
  socket.once("connect", () => {
    // Given to spawn itself, the socket would be read no more here.
    const { fd } = (socket as unknown as { _handle: { fd: number } })._handle;
    const holder = spawn("/bin/sh", ["-c", `${HOLD} ${seconds}`], {
      detached: true,
      cwd: "/",
      env: { PATH: process.env["PATH"] ?? "" },
      stdio: ["pipe", "ignore", "ignore", fd],
    });
    // Without one, the connection is as others are.
    holder.on("error", () => {});
    holder.stdin?.on("error", () => {});
    holder.unref();
    socket.once("close", () => holder.kill("SIGKILL"));
  });
  return socket;
}
