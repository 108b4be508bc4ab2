/** The way to a guest whose address is reached, for clouds that have nothing closer. */
import { connect, type Socket } from "node:net";
import { type CallOptions, ProviderError, toError } from "../../src/provider/kit/index.ts";
import type { Vm } from "./cloud.ts";
import { GUEST_PORT } from "./guest-keys.ts";
import { opened } from "./opened.ts";

/**
 * Only for guests with keys (`VmRequest.keys`): the connection itself proves nothing to either side.
 *
 * @throws ProviderError unavailable when the VM has no address yet, or nothing listens there
 */
export async function dialAddress(
  { name, addresses: [host] }: Pick<Vm, "name" | "addresses">,
  { signal, port = GUEST_PORT }: CallOptions & { port?: number },
): Promise<Socket> {
  if (host === undefined) throw new ProviderError("unavailable", `${name} has no address yet`);
  const socket = connect({ host, port, noDelay: true, keepAlive: true });
  try {
    await opened(socket, "connect", { signal });
  } catch (thrown) {
    signal.throwIfAborted();
    throw new ProviderError("unavailable", `the guest of ${name} at ${host}: ${toError(thrown).message}`, {
      cause: thrown,
    });
  }
  return socket;
}
