/** Whether a port is free to listen on. */
import { createServer } from "node:net";
import { toError } from "../util/errors.ts";

/**
 * Listens for a moment.
 *
 * @param listen `port` 0 always is free
 * @returns what the operating system says against it, such as EADDRINUSE
 */
export async function portFault(listen: { address: string; port: number }): Promise<string | undefined> {
  const server = createServer();
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen({ host: listen.address, port: listen.port, exclusive: true }, resolve);
    });
  } catch (thrown) {
    const error = toError(thrown) as NodeJS.ErrnoException;
    if (error.code === "EADDRINUSE") return `port ${listen.port} of ${listen.address} is taken by another program`;
    if (error.code === "EADDRNOTAVAIL") return `${listen.address} is no address of this host`;
    return error.message;
  }
  await new Promise((resolve) => server.close(resolve));
  return undefined;
}
