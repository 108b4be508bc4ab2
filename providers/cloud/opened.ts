/** Connections on their way. */
import type { Socket } from "node:net";
import { type CallOptions, onAbort } from "../../src/provider/kit/index.ts";

/**
 * Resolves at the event that says that it is there; else it is destroyed.
 *
 * @throws why it broke, or the signal's reason
 */
export async function opened(socket: Socket, event: "connect" | "secureConnect", { signal }: CallOptions) {
  using _ = onAbort(signal, () => socket.destroy());
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  socket.once(event, resolve);
  socket.once("error", reject);
  socket.once("close", () => reject(new Error("the connection broke")));
  try {
    await promise;
  } catch (thrown) {
    socket.destroy();
    signal.throwIfAborted();
    throw thrown;
  }
}
