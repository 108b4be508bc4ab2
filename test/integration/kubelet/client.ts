import { request as httpsRequest, type RequestOptions } from "node:https";
import type { IncomingMessage } from "node:http";
import type { TestKubelet } from "./support.ts";

export interface Answer {
  status: number;
  headers: IncomingMessage["headers"];
  body: string;
}

export type Credential = "certificate" | "none" | { token: string } | { cert: string; key: string };

/** One request on a connection of its own. */
export function ask(
  kubelet: TestKubelet,
  path: string,
  options: {
    as?: Credential;
    method?: string;
    headers?: Record<string, string>;
    localAddress?: string;
    signal?: AbortSignal;
    onStart?: (response: IncomingMessage) => void;
  } = {},
): Promise<Answer> {
  const credential = options.as ?? "certificate";
  const request: RequestOptions = {
    host: "127.0.0.1",
    port: kubelet.server.port,
    path,
    method: options.method ?? "GET",
    headers: { ...options.headers },
    ca: kubelet.authority.cert,
    agent: false,
    ...(options.localAddress && { localAddress: options.localAddress }),
    ...(options.signal && { signal: options.signal }),
  };
  if (credential === "certificate") Object.assign(request, kubelet.client);
  else if (credential !== "none" && "token" in credential)
    Object.assign(request.headers!, { authorization: `Bearer ${credential.token}` });
  else if (credential !== "none") Object.assign(request, credential);
  return new Promise((resolve, reject) => {
    const outgoing = httpsRequest(request, (response) => {
      options.onStart?.(response);
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("error", reject);
      response.on("close", () => reject(new Error("the response was cut off")));
      response.on("end", () =>
        resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.concat(chunks).toString() }),
      );
    });
    outgoing.on("upgrade", (response, socket) => {
      socket.destroy();
      resolve({ status: 101, headers: response.headers, body: "" });
    });
    outgoing.on("error", reject);
    outgoing.end();
  });
}

/** The `metav1.Status` that a session was refused with. */
export function statusOf({ status, body }: Answer): {
  code: number;
  reason: string;
  message: string;
  details?: { retryAfterSeconds: number };
} {
  const parsed = JSON.parse(body) as ReturnType<typeof statusOf>;
  if (parsed.code !== status) throw new Error(`HTTP ${status}, but the Status says ${parsed.code}`);
  return parsed;
}
