/** The suite's view of an API server: raw requests and watches, nothing hidden. Works on any server, over HTTP or HTTPS. */
import http from "node:http";
import https from "node:https";
import { createInterface } from "node:readline";

// What a server answers is what the suite is there to look at.
// oxlint-disable-next-line typescript/no-explicit-any
export type Json = any;

export interface ApiTarget {
  url: string;
  token?: string;
  ca?: string;
  cert?: string;
  key?: string;
}

export interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  /** Parsed when it is JSON. */
  body: Json;
}

export interface WatchEvent {
  type: string;
  object: Json;
}

export interface Watch {
  /** The next event. @throws Error when none comes in time or the stream ends */
  next(timeoutMs?: number): Promise<WatchEvent>;
  /** The next event that is no bookmark. */
  nextChange(timeoutMs?: number): Promise<WatchEvent>;
  /** Resolves when the server ends the stream. */
  ended(timeoutMs?: number): Promise<void>;
  close(): void;
}

export interface Api {
  request(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>;
  /** Opens a watch; `path` says everything, `watch=true` included. */
  watch(path: string, headers?: Record<string, string>): Promise<Watch>;
  close(): void;
}

export function connect(target: ApiTarget): Api {
  const url = new URL(target.url);
  const client = url.protocol === "https:" ? https : http;
  const { ca, cert, key } = target;
  const agent = new (client.Agent as typeof https.Agent)({
    keepAlive: true,
    ...(ca && { ca }),
    ...(cert && { cert }),
    ...(key && { key }),
  });
  const open = (method: string, path: string, body: string | undefined, headers: Record<string, string>) =>
    new Promise<http.IncomingMessage>((resolve, reject) => {
      const request = client.request(new URL(path, url), {
        method,
        agent,
        headers: {
          ...(target.token && { authorization: `Bearer ${target.token}` }), // Node frames the body of a DELETE only when its length is said.
          ...(body !== undefined && { "content-type": "application/json", "content-length": Buffer.byteLength(body) }),
          ...headers,
        },
      });
      request.on("response", resolve);
      request.on("error", reject);
      request.end(body);
    });
  return {
    async request(method, path, body, headers = {}) {
      const sent = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
      const response = await open(method, path, sent, headers);
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk as Buffer);
      const text = Buffer.concat(chunks).toString();
      // OpenAPI indexes are JSON that calls itself text.
      return {
        status: response.statusCode!,
        headers: response.headers,
        body: /^[{[]/.test(text) ? JSON.parse(text) : text,
      };
    },
    async watch(path, headers = {}) {
      const response = await open("GET", path, undefined, headers);
      if (response.statusCode !== 200) throw new Error(`watch ${path}: ${response.statusCode}`);
      return new LineWatch(response);
    },
    close: () => agent.destroy(),
  };
}

class LineWatch implements Watch {
  readonly #response: http.IncomingMessage;
  readonly #events: WatchEvent[] = [];
  #isEnded = false;
  #wake: () => void = () => {};

  constructor(response: http.IncomingMessage) {
    this.#response = response;
    const end = () => {
      this.#isEnded = true;
      this.#wake();
    };
    response.on("error", end);
    const lines = createInterface({ input: response });
    lines.on("line", (line) => {
      this.#events.push(JSON.parse(line) as WatchEvent);
      this.#wake();
    });
    lines.on("close", end);
  }

  async next(timeoutMs = 20_000): Promise<WatchEvent> {
    await this.#until(() => this.#events.length > 0 || this.#isEnded, timeoutMs, "an event");
    const event = this.#events.shift();
    if (!event) throw new Error("the watch ended where an event was expected");
    return event;
  }

  async nextChange(timeoutMs?: number): Promise<WatchEvent> {
    for (;;) {
      const event = await this.next(timeoutMs);
      if (event.type !== "BOOKMARK") return event;
    }
  }

  ended(timeoutMs = 20_000): Promise<void> {
    return this.#until(() => this.#isEnded, timeoutMs, "the end of the watch");
  }

  close(): void {
    this.#response.destroy();
  }

  async #until(isDone: () => boolean, timeoutMs: number, what: string): Promise<void> {
    const timeout = AbortSignal.timeout(timeoutMs);
    while (!isDone()) {
      if (timeout.aborted) throw new Error(`waited ${timeoutMs} ms for ${what}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        timeout.addEventListener("abort", () => resolve(), { once: true });
      });
    }
  }
}
