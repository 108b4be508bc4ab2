/** Takes what listens on loopback alone to another address of this host. */
import { createConnection, createServer, type Server } from "node:net";

export async function relayTo(address: string, port: number): Promise<Server> {
  const server = createServer((socket) => {
    const target = createConnection(port, "127.0.0.1");
    socket.pipe(target).pipe(socket);
    for (const each of [socket, target]) each.on("error", () => each.destroy());
  });
  await new Promise<void>((resolve) => server.listen(port, address, resolve));
  return server;
}
