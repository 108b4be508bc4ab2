/**
 * The first ten minutes on a host that can run containers: `npm start` takes them by itself. Docker Hub is a registry of
 * this test, behind a proxy as companies have one.
 */
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { type AddressInfo, connect, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect } from "vitest";
import { findTool, run } from "../../providers/local/host/command.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../../src/util/x509.ts";
import { missingForContainerd } from "../support/containerd.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../support/registry.ts";
import { newcomerSuite } from "./newcomer.ts";

const DOCKER_HUB = "registry-1.docker.io";
const open: (() => unknown)[] = [];
afterAll(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});

async function listenOn(server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on("connection", (socket: Socket) => void sockets.add(socket.once("close", () => sockets.delete(socket))));
  await once(server.listen(0, "127.0.0.1"), "listening");
  open.push(async () => {
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of sockets) socket.destroy();
    await closed;
  });
  return (server.address() as AddressInfo).port;
}

/** A small web server that is an image, and a shell. */
async function pushImages(registry: TestRegistry): Promise<void> {
  const busybox = await busyboxImage();
  await registry.push("library/busybox:latest", busybox);
  await registry.push("library/busybox:1.36", busybox);
  const web = await busyboxImage([{ path: "var/index.html", content: "hello\n" }], {
    Cmd: ["/bin/httpd", "-f", "-p", "80", "-h", "/var"],
  });
  for (const name of ["nginx", "httpd"]) await registry.push(`library/${name}:latest`, web);
}

/** What `npm start` must know to find Docker Hub here. */
async function dockerHub(): Promise<NodeJS.ProcessEnv> {
  const missing = (await missingForContainerd()) ?? missingForImages();
  if (missing !== undefined) throw new Error(`this test needs containers: ${missing}`);
  const registry = await startRegistry();
  open.push(() => registry.stop());
  await pushImages(registry);

  const keys = generateKeyPair();
  const day = 86_400_000;
  const cert = createCertificate({
    subject: { commonName: DOCKER_HUB },
    keys,
    altNames: { dnsNames: [DOCKER_HUB], ipAddresses: [] },
    usages: ["serverAuth"],
    notBeforeMs: Date.now() - day,
    notAfterMs: Date.now() + day,
  });
  const [host, port] = registry.host.split(":");
  const hub = await listenOn(
    createTlsServer({ cert, key: privateKeyPem(keys.privateKey) }, (asked, reply) => {
      const { method, url: path, headers } = asked;
      const passed = request({ host, port, method, path, headers }, (answer) => {
        reply.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(reply);
      });
      passed.on("error", () => reply.destroy());
      asked.pipe(passed);
    }),
  );
  const proxy = createServer();
  proxy.on("connect", ({ url }, socket: Socket) => {
    if (url !== `${DOCKER_HUB}:443`) return void socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const passed = connect({ host: "127.0.0.1", port: hub }, () => {
      socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
      passed.pipe(socket).pipe(passed);
    });
    for (const [one, other] of [
      [passed, socket],
      [socket, passed],
    ] as const)
      one.on("error", () => other.destroy());
  });
  const proxyPort = await listenOn(proxy);

  const dir = await mkdtemp(join(tmpdir(), "vmlet-hub-"));
  open.push(() => rm(dir, { recursive: true, force: true }));
  const ca = join(dir, "ca.crt");
  await writeFile(ca, cert);
  return { PATH: process.env["PATH"], HTTPS_PROXY: `http://127.0.0.1:${proxyPort}`, NODE_EXTRA_CA_CERTS: ca };
}

newcomerSuite({
  flags: [],
  surroundings: dockerHub,
  toldOfMachines: "Engine cri: this host can run containers and pull their images; --engine process",
  toldOfWeb: 'Successfully pulled image "nginx"',
  async isClean() {
    const { stdout } = await run(findTool("ip")!, ["-json", "link"]);
    expect(stdout.toString()).not.toContain('"vmlet0"');
  },
});
