/** Connections to the ports of machines. */
import { connect } from "node:net";
import { networkInterfaces } from "node:os";
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

/**
 * A port of this host, as its own programs and as others reach it: not all listen on every address.
 * @param target `loopback`: what listens there alone
 * @throws what the system says of the loopback, or the signal's reason
 */
export async function dialHost(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
  try {
    return await dialTcp("127.0.0.1", port, signal);
  } catch (thrown) {
    if (target === "loopback" || signal.aborted) throw thrown;
    for (const address of outerAddresses()) {
      const socket = await dialTcp(address, port, signal).catch(() => undefined);
      if (socket !== undefined) return socket;
    }
    throw thrown;
  }
}

function outerAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  return all.filter(({ family, internal }) => family === "IPv4" && !internal).map(({ address }) => address);
}
