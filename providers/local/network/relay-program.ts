/**
 * Runs inside a machine's network namespace and connects to its loopback for port-forward: `relay-program SOCKET`. Each
 * connection to the unix socket begins with the port and a newline, is answered with a newline, or with the error's
 * code and a newline, and is then the TCP stream. Ends by itself when standard input closes, that is with the backend.
 */
import { connect, createServer, type Socket } from "node:net";

const LOOPBACKS = ["127.0.0.1", "::1"];

function dial(port: number, hosts: readonly string[], done: (result: Socket | string) => void): void {
  const socket = connect({ host: hosts[0]!, port, noDelay: true, allowHalfOpen: true });
  socket.once("connect", () => done(socket));
  socket.once("error", (error: NodeJS.ErrnoException) => {
    if (hosts.length > 1)
      dial(port, hosts.slice(1), (result) => done(typeof result === "string" ? (error.code ?? "EIO") : result));
    else done(error.code ?? "EIO");
  });
}

const server = createServer({ allowHalfOpen: true }, (client) => {
  client.on("error", () => client.destroy());
  let request = Buffer.alloc(0);
  const read = (chunk: Buffer) => {
    request = Buffer.concat([request, chunk]);
    const newline = request.indexOf(10);
    if (newline < 0) return;
    client.off("data", read);
    client.pause();
    dial(Number(request.subarray(0, newline).toString()), LOOPBACKS, (result) => {
      if (typeof result === "string") {
        client.end(`${result}\n`);
        return;
      }
      result.on("error", () => client.destroy());
      client.on("close", () => result.destroy());
      client.write("\n");
      result.write(request.subarray(newline + 1));
      client.pipe(result);
      result.pipe(client);
    });
  };
  client.on("data", read);
});
server.listen(process.argv[2]!, () => process.stdout.write("ready\n"));
process.stdin.on("end", () => process.exit(0)).resume();
