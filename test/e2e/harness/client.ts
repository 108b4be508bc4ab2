/**
 * The tests' own view of the API server: a plain HTTP client that shares no code with the agent, so that a fault in the
 * agent's transport or reflector cannot hide itself.
 */
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { dirname, resolve } from "node:path";
import { createInterface } from "node:readline";
import { parse } from "yaml";

// Tests read whatever they like from objects; the API server has already validated them.
// oxlint-disable-next-line typescript/no-explicit-any
export type Json = any;

export type PatchType =
  | "application/merge-patch+json"
  | "application/strategic-merge-patch+json"
  | "application/json-patch+json";

export interface WatchEvent {
  type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR";
  object: Json;
}

export class HttpError extends Error {
  readonly status: number;
  /** The reply's body, parsed when it is JSON. */
  readonly body: Json;
  constructor(what: string, status: number, body: Json) {
    super(`${what}: ${status} ${typeof body === "string" ? body : (body?.message ?? JSON.stringify(body))}`);
    this.status = status;
    this.body = body;
  }
}

export interface Client {
  get(path: string): Promise<Json>;
  create(path: string, object: Json): Promise<Json>;
  update(path: string, object: Json): Promise<Json>;
  patch(path: string, patch: Json, type?: PatchType): Promise<Json>;
  /** `body` is a DeleteOptions. */
  delete(path: string, body?: Json): Promise<Json>;
  /** The body as text, of whatever type it is. */
  text(path: string): Promise<string>;
  /** The events of one watch connection. `path` carries the query, `watch=true` is added. */
  watch(path: string, signal: AbortSignal): AsyncGenerator<WatchEvent>;
  close(): void;
}

interface KubeconfigUser {
  token?: string;
  tokenFile?: string;
  "client-certificate"?: string;
  "client-certificate-data"?: string;
  "client-key"?: string;
  "client-key-data"?: string;
}

/** @param kubeconfig path of the file; its current context is used */
export async function createClient(kubeconfig: string): Promise<Client> {
  const config: Json = parse(readFileSync(kubeconfig, "utf8"));
  const { context } = config.contexts.find((each: Json) => each.name === config["current-context"]);
  const { cluster } = config.clusters.find((each: Json) => each.name === context.cluster);
  const user = config.users.find((each: Json) => each.name === context.user)?.user as KubeconfigUser | undefined;
  const pem = (file?: string, data?: string) =>
    data !== undefined
      ? Buffer.from(data, "base64")
      : file !== undefined
        ? readFileSync(resolve(dirname(kubeconfig), file))
        : undefined;
  const token =
    user?.token ?? (user?.tokenFile !== undefined ? readFileSync(user.tokenFile, "utf8").trim() : undefined);
  return clientOf(cluster.server, {
    ca: pem(cluster["certificate-authority"], cluster["certificate-authority-data"]),
    cert: pem(user?.["client-certificate"], user?.["client-certificate-data"]),
    key: pem(user?.["client-key"], user?.["client-key-data"]),
    token,
  });
}

/** A client of any HTTP server that speaks JSON: also the reference backend's. */
export function clientOf(
  baseUrl: string,
  options: {
    ca?: Buffer | undefined;
    cert?: Buffer | undefined;
    key?: Buffer | undefined;
    token?: string | undefined;
  } = {},
): Client {
  const secure = baseUrl.startsWith("https:");
  const { ca, cert, key, token } = options;
  const agent = secure
    ? new https.Agent({ keepAlive: true, ...(ca && { ca }), ...(cert && { cert }), ...(key && { key }) })
    : new http.Agent({ keepAlive: true });

  const open = (
    method: string,
    path: string,
    request: { body?: Json; type?: string; signal?: AbortSignal } = {},
  ): Promise<http.IncomingMessage> =>
    new Promise<http.IncomingMessage>((resolve, reject) => {
      const payload = request.body === undefined ? undefined : JSON.stringify(request.body);
      const outgoing = (secure ? https : http).request(
        new URL(path, baseUrl),
        {
          method,
          agent,
          headers: {
            accept: "application/json",
            ...(token !== undefined && { authorization: `Bearer ${token}` }),
            ...(payload !== undefined && {
              "content-type": request.type ?? "application/json",
              "content-length": Buffer.byteLength(payload),
            }),
          },
          ...(request.signal && { signal: request.signal }),
        },
        resolve,
      );
      outgoing.once("error", (error: NodeJS.ErrnoException) => {
        // The server closed the idle connection when the request was on its way, and has not read it.
        if (outgoing.reusedSocket && error.code === "ECONNRESET" && request.signal?.aborted !== true)
          resolve(open(method, path, request));
        else reject(error);
      });
      outgoing.end(payload);
    });

  const exchange = async (
    method: string,
    path: string,
    request: { body?: Json; type?: string } = {},
  ): Promise<string> => {
    const reply = await open(method, path, { ...request, signal: AbortSignal.timeout(30_000) });
    const chunks: Buffer[] = [];
    for await (const chunk of reply) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    if (reply.statusCode === undefined || reply.statusCode >= 300) {
      throw new HttpError(`${method} ${path}`, reply.statusCode ?? 0, parsed(text));
    }
    return text;
  };
  const json = async (...args: Parameters<typeof exchange>): Promise<Json> => parsed(await exchange(...args));

  return {
    get: (path) => json("GET", path),
    create: (path, body) => json("POST", path, { body }),
    update: (path, body) => json("PUT", path, { body }),
    patch: (path, body, type = "application/merge-patch+json") => json("PATCH", path, { body, type }),
    delete: (path, body) => json("DELETE", path, body === undefined ? {} : { body }),
    text: (path) => exchange("GET", path),
    async *watch(path, signal) {
      const reply = await open("GET", `${path}${path.includes("?") ? "&" : "?"}watch=true`, { signal });
      if (reply.statusCode !== 200) throw new HttpError(`watch ${path}`, reply.statusCode ?? 0, "");
      for await (const line of createInterface({ input: reply })) yield JSON.parse(line) as WatchEvent;
    },
    close: () => agent.destroy(),
  };
}

function parsed(text: string): Json {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
