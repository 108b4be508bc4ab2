/** Connections to the ports of machines. */
import { connect } from "node:net";
import type { Duplex } from "node:stream";

/**
 * Connects by TCP. Half-open: the client's end of input must not cut off the answer.
 * @throws what the system says, or the signal's reason
 */
export function dialTcp(host: string, port: number, signal: AbortSignal): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, noDelay: true, allowHalfOpen: true, signal });
    socket.once("error", reject);
    socket.once("connect", () => {
      socket.off("error", reject);
      resolve(socket);
    });
  });
}
