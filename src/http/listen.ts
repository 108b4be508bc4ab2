/** How a server begins to listen and comes to an end. */
import { once } from "node:events";
import { existsSync, lstatSync, unlinkSync } from "node:fs";
import type { Server } from "node:http";
import type { Http2ServerRequest, Http2ServerResponse } from "node:http2";
import { connect } from "node:net";
import type { AddressInfo, ListenOptions, Server as AnyServer } from "node:net";
import type { Clock } from "../util/clock.ts";

/**
 * Listens on `address`; port 0 takes a free one.
 *
 * @param onError told of a connection that could not be accepted later, for example without a free file descriptor:
 *   unheard, it would end the process
 * @returns the port, 0 for a socket in the file system
 * @throws Error when the address cannot be bound
 */
export async function listen(
  server: AnyServer,
  address: ListenOptions,
  onError: (error: Error) => void,
): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once("error", reject);
  server.listen(address, resolve);
  await promise;
  server.off("error", reject);
  server.on("error", onError);
  const bound = server.address() as AddressInfo | string;
  return typeof bound === "string" ? 0 : bound.port;
}

/**
 * A socket file that a killed server left behind would make listening fail for ever.
 *
 * @returns false when a server listens there, which is left alone
 */
export async function removeStaleSocket(path: string): Promise<boolean> {
  if (!existsSync(path) || !lstatSync(path).isSocket()) return true;
  const socket = connect(path);
  try {
    await once(socket, "connect");
    return false;
  } catch {
    unlinkSync(path);
    return true;
  } finally {
    socket.destroy();
  }
}

/**
 * For servers on unix sockets, which have no host: what clients say of one is no part of a URL. Some in Go say the
 * socket's path, escaped, and connect's adapter, which makes a URL of it, would throw where nobody catches that.
 */
export function withoutHost(
  handler: (request: Http2ServerRequest, response: Http2ServerResponse) => void,
): (request: Http2ServerRequest, response: Http2ServerResponse) => void {
  return (request, response) => {
    request.headers[":authority"] = "localhost";
    handler(request, response);
  };
}

/**
 * Takes no new connections, closes idle ones, and waits for the others; after `graceMs` milliseconds `cut` has to end
 * those that are left.
 */
export async function closeWithin(server: Server, graceMs: number, clock: Clock, cut: () => void): Promise<void> {
  const closed = ended(server);
  const cancel = clock.after(graceMs, cut);
  await closed;
  cancel();
}

/** Ends all connections, however busy; upgraded ones are no longer the server's. */
export async function closeNow(server: Server): Promise<void> {
  const closed = ended(server);
  server.closeAllConnections();
  await closed;
}

function ended(server: Server): Promise<void> {
  return new Promise((resolve) => server.close(() => resolve()));
}

/** `https://127.0.0.1:8443`, with the brackets that an IPv6 address needs in a URL. */
export function urlOf(scheme: "http" | "https", host: string, port: number): string {
  return `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`;
}
