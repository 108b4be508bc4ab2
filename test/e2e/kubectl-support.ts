/** What the kubectl tests share: the variants they run in, long-running kubectls, and clients of other kinds. */
import { spawn, type ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { request as httpsRequest } from "node:https";
import { connect, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { connect as tlsConnect, type PeerCertificate } from "node:tls";
import { spawn as spawnPty } from "@lydell/node-pty";
import { WebSocket } from "ws";
import type { Client } from "./harness/client.ts";
import type { KeyPair } from "./harness/certs.ts";
import type { Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";

export const versions = ["current", "old"] as const;
export type Version = (typeof versions)[number];
export const transports = ["WebSocket", "SPDY"] as const;
export type Transport = (typeof transports)[number];

/** A kubectl that runs until it is stopped, and what it has printed. */
export interface RunningKubectl {
  readonly child: ChildProcess;
  /** Both outputs together. */
  output(): string;
  /** Kills it and waits for its end. */
  stop(): Promise<void>;
}

/** @param digest takes standard output instead, when there is too much of it to hold */
export function startKubectl(kubectl: Kubectl, args: readonly string[], digest?: Digest): RunningKubectl {
  const child = spawn(kubectl.binary, args, { env: kubectl.env, stdio: "pipe" });
  let output = "";
  const collect = (chunk: Buffer) => (output += chunk.toString());
  child.stdout.on("data", digest ? (chunk: Buffer) => digest.add(chunk) : collect);
  child.stderr.on("data", collect);
  const exited = new Promise((resolve) => child.once("exit", resolve));
  return {
    child,
    output: () => output,
    async stop() {
      child.kill("SIGKILL");
      await exited;
    },
  };
}

export interface Forward extends RunningKubectl {
  /** The local port that kubectl chose. */
  readonly port: number;
}

/** `kubectl port-forward` of one remote port, listening. */
export async function startForward(
  kubectl: Kubectl,
  target: string,
  remotePort: number,
  options: readonly string[] = [],
): Promise<Forward> {
  const running = startKubectl(kubectl, [...options, "port-forward", target, `:${remotePort}`, "--address=127.0.0.1"]);
  const port = await waitFor({ what: "kubectl port-forward to listen" }, () => {
    const found = /127\.0\.0\.1:(\d+) ->/.exec(running.output())?.[1];
    must(found !== undefined, running.output());
    return Number(found);
  });
  return { ...running, port };
}

export interface Terminal {
  write(text: string): void;
  resize(columns: number, rows: number): void;
  /** Waits until the screen has shown this text. */
  shows(text: string | RegExp): Promise<void>;
  output(): string;
  readonly exitCode: Promise<number>;
  kill(): void;
}

/** kubectl on a terminal of its own. */
export function kubectlTerminal(
  kubectl: Kubectl,
  args: readonly string[],
  size: { cols: number; rows: number } = { cols: 80, rows: 24 },
): Terminal {
  const env = Object.fromEntries(Object.entries(kubectl.env).filter((entry) => entry[1] !== undefined));
  const pty = spawnPty(kubectl.binary, [...args], { ...size, env });
  let output = "";
  pty.onData((data) => (output += data));
  return {
    write: (text) => pty.write(text),
    resize: (columns, rows) => pty.resize(columns, rows),
    shows: (text) =>
      waitFor({ what: `the terminal of kubectl ${args.join(" ")} to show ${text}` }, () =>
        must(typeof text === "string" ? output.includes(text) : text.test(output), output),
      ),
    output: () => output,
    exitCode: new Promise((resolve) => pty.onExit(({ exitCode }) => resolve(exitCode))),
    kill: () => pty.kill("SIGKILL"),
  };
}

/** Sends so many bytes, ends its half, and returns what came back until the other half ended too. */
export function roundTrip(port: number, payload: Buffer): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket: Socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const chunks: Buffer[] = [];
    socket.on("data", (chunk: Buffer) => chunks.push(chunk));
    socket.on("end", () => resolve(Buffer.concat(chunks)));
    socket.on("error", reject);
    socket.end(payload);
  });
}

/** Bytes and SHA-256 of a stream, without holding it. */
export class Digest {
  readonly #hash = createHash("sha256");
  bytes = 0;

  add(chunk: Buffer): void {
    this.bytes += chunk.length;
    this.#hash.update(chunk);
  }

  hex(): string {
    return this.#hash.digest("hex");
  }
}

export function sha256(data: Buffer): string {
  return createHash("sha256").update(data).digest("hex");
}

/** Peak of a process's resident memory in MiB while `work` runs, over what it was before; read every 50 ms. */
export async function memoryGrowth(pid: number, work: () => Promise<unknown>): Promise<number> {
  const before = residentMiB(pid);
  let peak = before;
  const timer = setInterval(() => (peak = Math.max(peak, residentMiB(pid))), 50);
  try {
    await work();
  } finally {
    clearInterval(timer);
  }
  return peak - before;
}

export function residentMiB(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) / 1024;
}

/** Waits until the process has read next to nothing, from sockets and files together, for a while. */
export async function untilAtRest(pid: number): Promise<void> {
  const bytesRead = () => Number(/^rchar: (\d+)/m.exec(readFileSync(`/proc/${pid}/io`, "utf8"))?.[1]);
  let last = bytesRead();
  await waitFor({ what: `process ${pid} to be at rest`, intervalMs: 300 }, () => {
    const now = bytesRead();
    const since = now - last;
    last = now;
    must(since < 100_000, `${since} bytes read in 300 ms`);
  });
}

/** Who to the API server or the kubelet: a client certificate, a token, or nobody. */
export type Identity = KeyPair | { token: string } | undefined;

export interface Endpoint {
  /** https://HOST:PORT */
  url: string;
  caFile: string;
}

export interface Reply {
  status: number;
  body: string;
}

function credentials(identity: Identity) {
  if (identity === undefined) return {};
  if ("token" in identity) return { headers: { authorization: `Bearer ${identity.token}` } };
  return { cert: readFileSync(identity.certFile), key: readFileSync(identity.keyFile) };
}

/** One request on a connection of its own, whatever the status of its reply. */
export function ask(
  { url, caFile }: Endpoint,
  path: string,
  options: { as?: Identity; method?: string; headers?: Record<string, string> } = {},
): Promise<Reply> {
  const { headers, ...pair } = { headers: {}, ...credentials(options.as) };
  return new Promise((resolve, reject) => {
    const request = httpsRequest(
      new URL(path, url),
      {
        ...pair,
        ca: readFileSync(caFile),
        agent: false,
        method: options.method ?? "GET",
        headers: { ...headers, ...options.headers },
      },
      (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("error", reject);
        response.on("end", () => resolve({ status: response.statusCode!, body: Buffer.concat(chunks).toString() }));
      },
    );
    request.on("upgrade", (_response, socket) => {
      socket.destroy();
      resolve({ status: 101, body: "" });
    });
    request.on("error", reject);
    request.end();
  });
}

/** The headers of a streaming reply; its body is thrown away. */
export function responseStart({ url, caFile }: Endpoint, path: string, as: Identity): Promise<number> {
  return new Promise((resolve, reject) => {
    const request = httpsRequest(
      new URL(path, url),
      { ...credentials(as), ca: readFileSync(caFile), agent: false },
      (response) => {
        resolve(response.statusCode!);
        response.destroy();
      },
    );
    request.on("error", reject);
    request.end();
  });
}

/** Upgrades to SPDY/3.1 with one subprotocol. @throws Error with status and body when the server refuses */
export function upgradeToSpdy(
  { url, caFile }: Endpoint,
  path: string,
  protocol: string,
  as: Identity,
): Promise<{ socket: Duplex; head: Buffer }> {
  return new Promise((resolve, reject) => {
    const { headers, ...pair } = { headers: {}, ...credentials(as) };
    const request = httpsRequest(new URL(path, url), {
      ...pair,
      ca: readFileSync(caFile),
      agent: false,
      method: "POST",
      headers: { ...headers, connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": protocol },
    });
    request.on("upgrade", (_response, socket, head) => resolve({ socket, head }));
    request.on("response", (response) => {
      response.resume();
      reject(new Error(`${path}: ${response.statusCode}`));
    });
    request.on("error", reject);
    request.end();
  });
}

/** A client as a JavaScript dashboard writes it: channels over a WebSocket, by number. */
export class ChannelClient {
  readonly #socket: WebSocket;
  readonly #base64: boolean;
  readonly #received = new Map<number, Buffer[]>();
  readonly closed: Promise<number>;
  pongs = 0;

  private constructor(socket: WebSocket, base64: boolean) {
    this.#socket = socket;
    this.#base64 = base64;
    socket.on("message", (data: Buffer) => {
      const channel = base64 ? data[0]! - 48 : data[0]!;
      const payload = base64 ? Buffer.from(data.subarray(1).toString(), "base64") : data.subarray(1);
      this.#received.set(channel, [...(this.#received.get(channel) ?? []), payload]);
    });
    socket.on("pong", () => this.pongs++);
    this.closed = new Promise((resolve) => socket.on("close", resolve));
  }

  /** @throws Error naming the status with which the server refused */
  static open({ url, caFile }: Endpoint, path: string, protocol: string, as: Identity): Promise<ChannelClient> {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(new URL(path, url.replace(/^http/, "ws")), protocol === "" ? [] : [protocol], {
        ...credentials(as),
        ca: readFileSync(caFile),
      });
      const client = new ChannelClient(socket, protocol.includes("base64"));
      socket.once("open", () => resolve(client));
      socket.once("error", reject);
    });
  }

  get protocol(): string {
    return this.#socket.protocol;
  }

  send(channel: number, text: string): void {
    const payload = Buffer.from(text);
    if (this.#base64) this.#socket.send(`${channel}${payload.toString("base64")}`);
    else this.#socket.send(Buffer.concat([Buffer.from([channel]), payload]));
  }

  /** Half-closes a channel, which only `v5` can. */
  closeChannel(channel: number): void {
    this.#socket.send(Buffer.from([255, channel]));
  }

  ping(): void {
    this.#socket.ping();
  }

  text(channel: number): string {
    return Buffer.concat(this.#received.get(channel) ?? []).toString();
  }

  shows(channel: number, text: string): Promise<void> {
    return waitFor({ what: `channel ${channel} to carry ${JSON.stringify(text)}` }, () =>
      must(this.text(channel).includes(text), this.text(channel)),
    );
  }

  close(): void {
    this.#socket.terminate();
  }
}

/** The certificate that a server shows; `authorized` when it is the CA's and names the host. */
export function servedCertificate({
  url,
  caFile,
}: Endpoint): Promise<{ certificate: PeerCertificate; authorized: boolean }> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const socket = tlsConnect(
      { host: hostname, port: Number(port), ca: readFileSync(caFile), rejectUnauthorized: false },
      () => {
        resolve({ certificate: socket.getPeerCertificate(), authorized: socket.authorized });
        socket.destroy();
      },
    );
    socket.once("error", reject);
  });
}

/** How often the API server passed a WebSocket on to a kubelet, or translated it, by `SUBRESOURCE PROXY_TYPE`. */
export async function proxiedWebSockets(client: Client): Promise<Map<string, number>> {
  const text = await client.text("/metrics");
  const line = /^apiserver_websocket_streaming_requests_total\{proxy_type="(\w+)",subresource="(\w+)"\} (\d+)/gm;
  return new Map(
    [...text.matchAll(line)].map(([, type, subresource, count]) => [`${subresource} ${type}`, Number(count)]),
  );
}

/** What a cluster's operator does, by hand or by an approver; resolves when the kubelet serves the certificate. */
export async function approveServingCertificate(kubectl: Kubectl, client: Client, kubelet: Endpoint): Promise<void> {
  const request = await waitFor({ what: "the node's request for a serving certificate" }, async () => {
    const { items } = await client.get("/apis/certificates.k8s.io/v1/certificatesigningrequests");
    must(items.length > 0, "no request");
    return items[0].metadata.name as string;
  });
  await kubectl.run(["certificate", "approve", request]);
  await waitFor({ what: "the signed certificate to be served" }, async () =>
    must((await servedCertificate(kubelet)).authorized, "another is served"),
  );
}
