/**
 * What an API server forwards to kubelets: a pod's log, exec, attach, portforward, and a node's proxy. Paths and
 * queries are changed as kube-apiserver changes them; bytes and upgrades pass through untouched, since our kubelet
 * speaks SPDY and every WebSocket form.
 */
import { request as httpsRequest, type RequestOptions } from "node:https";
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { toError, VmletError } from "../../util/errors.ts";

export interface KubeletTarget {
  /** `https://ADDRESS:PORT` */
  url: string;
  /**
   * PEM. Without one the serving certificate is not verified, as by an API server without
   * --kubelet-certificate-authority.
   */
  ca?: string;
  /** How we prove who we are: a bearer token, or a client certificate in PEM. */
  credential: { token: string } | { cert: string; key: string };
}

/** What is read of a pod. */
interface ProxiedPod {
  nodeName: string | undefined;
  phase: string | undefined;
  /** Names of the main containers. */
  containers: readonly string[];
  initContainers: readonly string[];
  ephemeralContainers: readonly string[];
}

interface KubeletProxyOptions {
  getPod(namespace: string, name: string): ProxiedPod | undefined;
  /** undefined when there is no such node, or it has no address. */
  resolveKubelet(nodeName: string): KubeletTarget | undefined | Promise<KubeletTarget | undefined>;
}

export interface KubeletProxy {
  /** Serves the request if it is for a kubelet; else resolves to false and has touched nothing. */
  handleRequest(request: IncomingMessage, response: ServerResponse): Promise<boolean>;
  /** Serves the upgrade if it is for a kubelet; else resolves to false and has touched nothing. */
  handleUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<boolean>;
  /** A GET of the server's own. @throws Error when the kubelet cannot be reached or answers anything but 200 */
  read(nodeName: string, path: string): Promise<string>;
}

/** Meant for one hop, or for the API server itself. */
const DROPPED_HEADERS = [
  "connection",
  "upgrade",
  "keep-alive",
  "transfer-encoding",
  "te",
  "trailer",
  "proxy-connection",
  "authorization",
  "host",
];

const POD_PATH = /^\/api\/v1\/namespaces\/([^/]+)\/pods\/([^/]+)\/(log|exec|attach|portforward)$/;
const NODE_PATH = /^\/api\/v1\/nodes\/([^/:]+)(?::[0-9]+)?\/proxy(\/.*)?$/;

class StatusError extends VmletError {
  readonly code = "DEVCLUSTER_PROXY";
  readonly status: number;
  readonly reason: string;

  constructor(status: number, reason: string, message: string) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

interface Destination {
  target: KubeletTarget;
  /** Path and query on the kubelet. */
  path: string;
}

export function createKubeletProxy(options: KubeletProxyOptions): KubeletProxy {
  const destinationOf = async (url: string): Promise<Destination | undefined> => {
    const { pathname, searchParams, search } = new URL(url, "http://api");
    const podMatch = POD_PATH.exec(pathname);
    if (podMatch) {
      const [namespace, name, subresource] = podMatch.slice(1).map(decodeURIComponent) as [string, string, string];
      const pod = options.getPod(namespace, name);
      if (pod === undefined) throw new StatusError(404, "NotFound", `pods ${JSON.stringify(name)} not found`);
      if (pod.nodeName === undefined)
        throw new StatusError(400, "BadRequest", `pod ${name} does not have a host assigned`);
      return { target: await kubeletOf(pod.nodeName), path: podPath(namespace, name, subresource, pod, searchParams) };
    }
    const nodeMatch = NODE_PATH.exec(pathname);
    if (nodeMatch)
      return { target: await kubeletOf(decodeURIComponent(nodeMatch[1]!)), path: `${nodeMatch[2] ?? "/"}${search}` };
    return undefined;
  };
  const kubeletOf = async (nodeName: string): Promise<KubeletTarget> => {
    const target = await options.resolveKubelet(nodeName);
    if (target === undefined) throw new StatusError(404, "NotFound", `nodes ${JSON.stringify(nodeName)} not found`);
    return target;
  };

  return {
    read: async (nodeName, path) => readFrom(await kubeletOf(nodeName), path),
    async handleRequest(request, response) {
      try {
        const destination = await destinationOf(request.url ?? "/");
        if (destination === undefined) return false;
        const asStatus = POD_PATH.test(new URL(request.url ?? "/", "http://api").pathname);
        await forward(request, response, destination, asStatus);
      } catch (thrown) {
        if (response.headersSent) response.destroy();
        else {
          const { status, body } = statusOf(thrown);
          response.writeHead(status, { "content-type": "application/json" }).end(body);
        }
      }
      return true;
    },
    async handleUpgrade(request, socket, head) {
      try {
        const destination = await destinationOf(request.url ?? "/");
        if (destination === undefined) return false;
        await forwardUpgrade(request, socket, head, destination);
      } catch (thrown) {
        const { status, body } = statusOf(thrown);
        answerRaw(socket, status, { "content-type": "application/json" }, body);
      }
      return true;
    },
  };
}

function podPath(
  namespace: string,
  name: string,
  subresource: string,
  pod: ProxiedPod,
  query: URLSearchParams,
): string {
  const kubeletQuery = new URLSearchParams();
  const where = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  if (subresource === "portforward") {
    const ports = query.getAll("ports").join(",");
    if (ports !== "") kubeletQuery.set("port", ports);
    return `/portForward/${where}?${kubeletQuery.toString()}`;
  }
  const container = encodeURIComponent(containerOf(name, pod, query.get("container")));
  if (subresource === "log") {
    for (const [key, value] of query)
      if (key !== "container" && key !== "insecureSkipTLSVerifyBackend") kubeletQuery.append(key, value);
    return `/containerLogs/${where}/${container}?${kubeletQuery.toString()}`;
  }
  if (pod.phase === "Succeeded" || pod.phase === "Failed") {
    throw new StatusError(
      400,
      "BadRequest",
      `cannot exec into a container in a completed pod; current phase is ${pod.phase}`,
    );
  }
  const flags = { stdin: "input", stdout: "output", stderr: "error", tty: "tty" };
  for (const [theirs, ours] of Object.entries(flags)) if (isTrue(query.get(theirs))) kubeletQuery.set(ours, "1");
  if (subresource === "exec") for (const word of query.getAll("command")) kubeletQuery.append("command", word);
  return `/${subresource}/${where}/${container}?${kubeletQuery.toString()}`;
}

function isTrue(value: string | null): boolean {
  return value !== null && value !== "0" && value.toLowerCase() !== "false";
}

function containerOf(podName: string, pod: ProxiedPod, asked: string | null): string {
  if (asked) {
    if ([...pod.containers, ...pod.initContainers, ...pod.ephemeralContainers].includes(asked)) return asked;
    throw new StatusError(400, "BadRequest", `container ${asked} is not valid for pod ${podName}`);
  }
  const [only, ...others] = pod.containers;
  if (only !== undefined && others.length === 0) return only;
  throw new StatusError(
    400,
    "BadRequest",
    `a container name must be specified for pod ${podName}, choose one of: [${pod.containers.join(" ")}]${pod.initContainers.length > 0 ? ` or one of the init containers: [${pod.initContainers.join(" ")}]` : ""}`,
  );
}

function forwardOptions(
  request: IncomingMessage,
  destination: Destination,
  headers: IncomingHttpHeaders,
): [string, RequestOptions] {
  return requestOptions(destination, request.method ?? "GET", {
    ...headers,
    "x-forwarded-for": request.socket.remoteAddress ?? "",
  });
}

function requestOptions(
  { target, path }: Destination,
  method: string,
  headers: IncomingHttpHeaders,
): [string, RequestOptions] {
  const { credential } = target;
  const options: RequestOptions = {
    method,
    headers,
    rejectUnauthorized: target.ca !== undefined,
    agent: false,
    ...(target.ca !== undefined && { ca: target.ca }),
    ...("cert" in credential && credential),
  };
  if ("token" in credential) options.headers = { ...headers, authorization: `Bearer ${credential.token}` };
  return [`${target.url}${path}`, options];
}

/** How long a kubelet may take to answer the server's own question. */
const READ_TIMEOUT_MS = 10_000;

function readFrom(target: KubeletTarget, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const [url, options] = requestOptions({ target, path }, "GET", {});
    const outgoing = httpsRequest(url, { ...options, signal: AbortSignal.timeout(READ_TIMEOUT_MS) }, (incoming) => {
      readText(incoming).then((text) => {
        if (incoming.statusCode === 200) resolve(text);
        else reject(new Error(`${path}: ${incoming.statusCode} ${text}`));
      }, reject);
    });
    outgoing.on("error", reject);
    outgoing.end();
  });
}

function endToEndHeaders(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !DROPPED_HEADERS.includes(name)));
}

/** @param asStatus errors of the kubelet are text and become `Status` objects, as for all but a node's proxy */
function forward(
  request: IncomingMessage,
  response: ServerResponse,
  destination: Destination,
  asStatus: boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const outgoing = httpsRequest(...forwardOptions(request, destination, endToEndHeaders(request.headers)));
    outgoing.on("error", (error) =>
      reject(new StatusError(502, "InternalError", `error trying to reach the kubelet: ${error.message}`)),
    );
    outgoing.on("response", (incoming) => {
      const code = incoming.statusCode ?? 502;
      if (asStatus && (code < 200 || code > 299)) {
        readText(incoming).then((text) => reject(kubeletError(code, text)), reject);
        return;
      }
      response.writeHead(code, endToEndHeaders(incoming.headers)).flushHeaders();
      incoming.on("error", () => response.destroy());
      incoming.pipe(response);
      incoming.on("end", resolve);
    });
    response.on("close", () => {
      outgoing.destroy();
      resolve();
    });
    request.pipe(outgoing);
  });
}

function forwardUpgrade(
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  destination: Destination,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const headers = { ...endToEndHeaders(request.headers), connection: "Upgrade", upgrade: request.headers.upgrade };
    const outgoing = httpsRequest(...forwardOptions(request, destination, headers));
    socket.on("error", () => outgoing.destroy());
    socket.on("close", () => outgoing.destroy());
    outgoing.on("error", (error) =>
      reject(new StatusError(502, "InternalError", `error trying to reach the kubelet: ${error.message}`)),
    );
    outgoing.on("response", (incoming) => {
      readText(incoming).then((text) => {
        answerRaw(
          socket,
          incoming.statusCode ?? 502,
          { "content-type": incoming.headers["content-type"] ?? "text/plain" },
          text,
        );
        resolve();
      }, reject);
    });
    outgoing.on("upgrade", (incoming, kubelet, kubeletHead) => {
      const lines = ["HTTP/1.1 101 Switching Protocols"];
      for (let index = 0; index < incoming.rawHeaders.length; index += 2)
        lines.push(`${incoming.rawHeaders[index]}: ${incoming.rawHeaders[index + 1]}`);
      socket.write(`${lines.join("\r\n")}\r\n\r\n`);
      socket.write(kubeletHead);
      kubelet.write(head);
      kubelet.on("error", () => socket.destroy());
      kubelet.on("close", () => socket.destroy());
      socket.on("close", () => kubelet.destroy());
      socket.pipe(kubelet).pipe(socket);
      resolve();
    });
    outgoing.end();
  });
}

async function readText(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString("utf8");
}

function kubeletError(code: number, text: string): StatusError {
  if (code === 400) return new StatusError(400, "BadRequest", text);
  if (code === 404) return new StatusError(404, "NotFound", text);
  return new StatusError(code, "InternalError", code === 500 ? `Internal error occurred: ${text}` : text);
}

function statusOf(thrown: unknown): { status: number; body: string } {
  const error = thrown instanceof StatusError ? thrown : new StatusError(500, "InternalError", toError(thrown).message);
  const { status, reason, message } = error;
  const body = { kind: "Status", apiVersion: "v1", metadata: {}, status: "Failure", message, reason, code: status };
  return { status, body: JSON.stringify(body) };
}

function answerRaw(socket: Duplex, code: number, headers: Record<string, string>, body: string): void {
  if (socket.destroyed) return;
  const lines = Object.entries({ ...headers, connection: "close", "content-length": String(Buffer.byteLength(body)) });
  socket.end(
    `HTTP/1.1 ${code} Error\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join("")}\r\n${body}`,
    () => socket.destroy(),
  );
}
