/** HTTP to an Incus server, over its socket or by mutual TLS. What it answers is given back as it is, refusals too. */
import { readFileSync } from "node:fs";
import { X509Certificate } from "node:crypto";
import type { Readable } from "node:stream";
import { checkServerIdentity, type ConnectionOptions, type PeerCertificate } from "node:tls";
import { Agent, type Dispatcher, request } from "undici";
import WebSocket from "ws";
import {
  type CallOptions,
  ConfigError,
  onAbort,
  ProviderError,
  tlsFault,
  toError,
} from "../../../src/provider/kit/index.ts";

export interface IncusServer {
  /** `https://host:8443`, or `unix:///var/lib/incus/unix.socket`. */
  readonly url: string;
  /** All that is asked for is of this project. */
  readonly project: string;
  /** The server's own certificate, or the CA that signed it. */
  readonly caFile?: string | undefined;
  readonly certFile?: string | undefined;
  readonly keyFile?: string | undefined;
}

export interface IncusReply {
  /** Of the reply itself, or of the operation that it began. */
  readonly status: number;
  readonly metadata: unknown;
  /** The path of what goes on by itself. */
  readonly operation?: string | undefined;
  /** What was refused or failed, in Incus's own words; absent when all is well. */
  readonly error?: string | undefined;
}

interface IncusRequest extends CallOptions {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Below `/1.0/`, without a query; empty: the server itself. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>> | undefined;
  readonly body?: unknown;
  /** In place of `body`. */
  readonly file?: { readonly stream: Readable; readonly bytes: number } | undefined;
}

const CONNECT_MS = 5_000;
/** Between two bytes of a reply; each call has a limit of its own besides. */
const SILENCE_MS = 30_000;
const MOST_REPLY_BYTES = 64 * 1024 * 1024;
/** Longest message of a stream. */
const MOST_MESSAGE_BYTES = 1024 * 1024;
const FAILED = 400;
const OCTETS = { "content-type": "application/octet-stream" };

export class IncusClient {
  readonly project: string;
  readonly #server: IncusServer;
  readonly #socketPath: string | undefined;
  readonly #agent: Agent;
  readonly #tls: ConnectionOptions;

  /** @throws ConfigError when a file cannot be read */
  constructor(server: IncusServer) {
    this.#server = server;
    this.project = server.project;
    this.#socketPath = server.url.startsWith("unix:") ? server.url.replace(/^unix:(\/\/)?/, "") : undefined;
    this.#tls = this.#socketPath === undefined ? tlsOf(server) : {};
    const { ca, cert, key, checkServerIdentity: check } = this.#tls;
    const place =
      this.#socketPath === undefined
        ? { ca, cert, key, ...(check && { checkServerIdentity: check }) }
        : { socketPath: this.#socketPath };
    const connect = { ...place, timeout: CONNECT_MS };
    this.#agent = new Agent({ connect, headersTimeout: SILENCE_MS, bodyTimeout: SILENCE_MS, connections: 32 });
  }

  /** @throws ProviderError unavailable when there is no answer that can be understood */
  async ask({ method, path, query = {}, body, file, signal }: IncusRequest): Promise<IncusReply> {
    const base = this.#socketPath === undefined ? this.#server.url : "http://incus";
    const url = new URL(
      `/1.0${path && `/${path}`}?${new URLSearchParams({ project: this.project, ...query }).toString()}`,
      base,
    );
    let text: string;
    let status: number;
    try {
      const reply = await request(url, {
        method,
        dispatcher: this.#agent,
        signal,
        ...(body !== undefined && { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
        ...(file && { body: file.stream, headers: { "content-length": String(file.bytes), ...OCTETS } }),
      });
      status = reply.statusCode;
      text = await textOf(reply.body);
    } catch (thrown) {
      signal.throwIfAborted();
      throw this.#silence(thrown);
    }
    return replyOf(status, text);
  }

  /** The same, and how the operation ended that it began, as far as it has within so many seconds. */
  async carryOut(asked: IncusRequest, seconds: number): Promise<IncusReply & { isOver: boolean }> {
    const reply = await this.ask(asked);
    if (reply.error !== undefined || reply.operation === undefined) return { ...reply, isOver: true };
    const path = `${reply.operation.replace(/^\/1\.0\//, "")}/wait`;
    const query = { timeout: String(seconds) };
    const waited = await this.ask({ method: "GET", path, query, signal: asked.signal });
    if (waited.error !== undefined) return { ...waited, isOver: true };
    const { status_code: status = 0, err = "" } = waited.metadata as { status_code?: number; err?: string };
    const isOver = status >= 200;
    const error = status >= FAILED ? err || "the operation failed" : undefined;
    return { status: status >= FAILED ? status : 200, metadata: waited.metadata, error, isOver };
  }

  /** A stream of an operation that waits for it. @throws ProviderError unavailable */
  async openStream(operation: string, secret: string, { signal }: CallOptions): Promise<WebSocket> {
    const path = `${operation}/websocket?${new URLSearchParams({ secret, project: this.project }).toString()}`;
    const address =
      this.#socketPath === undefined
        ? `${this.#server.url.replace(/^http/, "ws")}${path}`
        : `ws+unix://${this.#socketPath}:${path}`;
    const socket = new WebSocket(address, {
      ...this.#tls,
      followRedirects: false,
      perMessageDeflate: false,
      maxPayload: MOST_MESSAGE_BYTES,
      handshakeTimeout: CONNECT_MS,
    });
    using _ = onAbort(signal, () => socket.terminate());
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    socket.once("open", () => {
      // Messages that come right behind the handshake wait until their reader is there.
      socket.pause();
      resolve();
    });
    socket.once("error", reject);
    try {
      await promise;
    } catch (thrown) {
      signal.throwIfAborted();
      throw this.#silence(thrown);
    }
    // Its reader is told of later ones by its end.
    socket.on("error", () => {});
    return socket;
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  #silence(thrown: unknown): ProviderError {
    const error = toError(thrown);
    const why = tlsFault(thrown, { ca: "cloud.caFile", pair: "cloud.certFile and cloud.keyFile" }) ?? error.message;
    return new ProviderError("unavailable", `Incus at ${this.#server.url}: ${why || "no answer"}`, { cause: thrown });
  }
}

async function textOf(body: Dispatcher.ResponseData["body"]): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MOST_REPLY_BYTES) throw new Error(`its reply is longer than ${MOST_REPLY_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

function replyOf(status: number, text: string): IncusReply {
  let parsed: { metadata?: unknown; operation?: unknown; error?: unknown; error_code?: unknown };
  try {
    parsed = JSON.parse(text) as typeof parsed;
    if (typeof parsed !== "object" || parsed === null) throw new TypeError("it is no object");
  } catch (thrown) {
    throw new ProviderError("unavailable", `Incus answered ${status}, with what is none of its replies`, {
      cause: thrown,
    });
  }
  const { metadata, operation, error } = parsed;
  const isRefusal = status >= FAILED || (typeof error === "string" && error !== "");
  return {
    status,
    metadata,
    // That of another member is told with a query.
    operation: told(operation).split("?", 1)[0] || undefined,
    error: isRefusal ? told(error) || `status ${status}` : undefined,
  };
}

const told = (text: unknown): string => (typeof text === "string" ? text : "");

/** @throws ConfigError */
function tlsOf({ caFile, certFile, keyFile }: IncusServer): ConnectionOptions {
  const read = (field: string, path: string | undefined) => {
    if (path === undefined) return undefined;
    try {
      return readFileSync(path, "utf8");
    } catch (thrown) {
      throw new ConfigError(`provider.cloud.${field}: ${toError(thrown).message}`, { cause: thrown });
    }
  };
  const [ca, cert, key] = [read("caFile", caFile), read("certFile", certFile), read("keyFile", keyFile)];
  return { ca, cert, key, minVersion: "TLSv1.3", ...(ca !== undefined && { checkServerIdentity: pinned(ca) }) };
}

/** A server whose very certificate is given is known by that, and need not have the name that it is called by. */
function pinned(ca: string): (host: string, certificate: PeerCertificate) => Error | undefined {
  const known = new Set<string>();
  for (const [pem] of ca.matchAll(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g))
    known.add(new X509Certificate(pem).fingerprint256);
  return (host, certificate) =>
    known.has(certificate.fingerprint256) ? undefined : checkServerIdentity(host, certificate);
}

/** The named objects of a list; what is none, or no list, is left out: nobody could be asked about it. */
export function namedIn<T extends { readonly name: string }>(metadata: unknown): T[] {
  const items: unknown[] = Array.isArray(metadata) ? metadata : [];
  return items.filter((item): item is T => typeof (item as Partial<T> | null)?.name === "string");
}
