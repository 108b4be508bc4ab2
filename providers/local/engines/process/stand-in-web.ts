/**
 * A small web server in the place of an image: `stand-in-web IMAGE ADDRESS PORT PORT_FILE`. It says on its page and in
 * its log what it is, and logs requests. When it may not have the port (below 1024, for a user without rights; taken on
 * all addresses by another program of the host), it serves on a free one, says so, and writes that to PORT_FILE, by
 * which the engine leads the machine's port there.
 */
import { rmSync, writeFileSync } from "node:fs";
import { createServer, STATUS_CODES } from "node:http";
import type { AddressInfo } from "node:net";

const [image = "", address = "", port = "", portFile = ""] = process.argv.slice(2);

const page = `This is vmlet's stand-in for image ${image}: the machine is a plain process, without images.
`;

const server = createServer((request, response) => {
  const { method = "", url = "" } = request;
  const isPage = url === "/" || url === "/index.html" || url.startsWith("/?");
  const isRead = method === "GET" || method === "HEAD";
  const status = isRead ? (isPage ? 200 : 404) : 405;
  const body = status === 200 ? page : `${status} ${STATUS_CODES[status]}\n`;
  response.writeHead(status, {
    "content-type": "text/plain; charset=utf-8",
    "content-length": Buffer.byteLength(body),
  });
  response.end(method === "HEAD" ? undefined : body);
  console.log(`${request.socket.remoteAddress} "${method} ${url}" ${status}`);
});

let refusal: string | undefined;
server.on("error", ({ code = "" }: NodeJS.ErrnoException) => {
  if (refusal !== undefined || (code !== "EACCES" && code !== "EADDRINUSE")) {
    console.error(`The stand-in for image ${image} cannot listen on ${address}: ${code}`);
    process.exit(1);
  }
  refusal = code === "EACCES" ? "this user may not have it" : "another program of this host has it";
  server.listen(0, address);
});
server.on("listening", () => {
  const own = (server.address() as AddressInfo).port;
  if (refusal !== undefined) writeFileSync(portFile, String(own));
  const aside =
    refusal === undefined
      ? ""
      : ` instead of port ${port}, because ${refusal}; port-forward and probes of ${port} lead here`;
  console.log(`vmlet's stand-in for image ${image} serves on ${address}:${own}${aside}`);
});
for (const signal of ["SIGTERM", "SIGINT", "SIGQUIT"] as const) process.once(signal, () => process.exit(0));

rmSync(portFile, { force: true });
server.listen(Number(port), address);
