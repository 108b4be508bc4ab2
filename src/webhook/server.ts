/**
 * `vmlet webhook`: answers the API server's questions where the pods of a namespace go. The path is the policy, so that
 * the API server, which sees the namespace's label, asks only where there is one, and nothing here has to be looked up.
 *
 * Who asks is not known, nor does it matter: the answer follows from the question alone, and changes nothing.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer, type Server } from "node:https";
import { Counter, Registry } from "prom-client";
import { readBody } from "../http/body.ts";
import { Connections } from "../http/connections.ts";
import { sendReply, whileConnected } from "../http/exchange.ts";
import { HttpError } from "../http/http-error.ts";
import { sendLastWords } from "../http/last-words.ts";
import { closeWithin, listen, urlOf } from "../http/listen.ts";
import { serverOptions, tlsContext } from "../http/server-options.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { type BurstPolicy, BURST_POLICIES, type VirtualNodes } from "./placement.ts";
import { answer } from "./review.ts";

/** The API server keeps a few to each webhook; strangers take each other's places. */
const CONNECTIONS = 256;
/** What the API server itself takes at most of a client is 3 MiB, and the question holds the pod once. */
const MAX_BODY_BYTES = 4 << 20;
/** Questions read at once: each may be as large as that, and the chart's limit of memory has room for all of them. */
const MAX_ASKED = 64;
/** An answer that comes later than the webhook's timeout is for nobody. */
const REQUEST_MS = 10_000;
const GRACE_MS = 5_000;

interface Pair {
  cert: string;
  key: string;
}

interface WebhookServerOptions {
  host: string;
  /** 0 takes a free one. */
  port: number;
  /** In PEM. */
  tls: Pair;
  nodes: VirtualNodes;
  clock: Clock;
  logger: Logger;
}

export class WebhookServer {
  readonly registry = new Registry();
  readonly #reviews = new Counter({
    name: "vmlet_webhook_reviews_total",
    help: "Pods that the API server asked about, by their namespace's policy and what became of them.",
    labelNames: ["policy", "outcome"],
    registers: [this.registry],
  });
  readonly #options: WebhookServerOptions;
  readonly #server: Server;
  readonly #connections: Connections;
  readonly #stopping = new AbortController();
  #asked = 0;

  constructor(options: WebhookServerOptions) {
    this.#options = options;
    const limits = serverOptions({ headersMs: REQUEST_MS, requestMs: REQUEST_MS, keepAliveMs: 120_000 });
    this.#server = createServer({ ...limits, ...tlsContext(options.tls, undefined) });
    this.#connections = new Connections(this.#server, { total: CONNECTIONS });
    this.#connections.answerGarbage((_error, socket) => {
      sendLastWords(socket, { status: 400, headers: [], body: "this is not HTTP\n" });
    });
    this.#server.on("request", (request, response) => void this.#serve(request, response));
  }

  /** @throws Error when the address cannot be bound */
  async listen(): Promise<{ url: string; port: number }> {
    const { host, port, logger } = this.#options;
    const bound = await listen(this.#server, { host, port }, (error) =>
      logger.warn({ err: error }, "A connection was not accepted"),
    );
    return { url: urlOf("https", host, bound), port: bound };
  }

  /** Another certificate, for new connections. @throws Error when it does not belong to its key */
  setTls(tls: Pair): void {
    this.#server.setSecureContext(tlsContext(tls, undefined));
    this.#server.closeIdleConnections();
  }

  /** Answers what was asked already. */
  async close(): Promise<void> {
    this.#connections.close();
    await closeWithin(this.#server, GRACE_MS, this.#options.clock, () => {
      this.#stopping.abort(new Error("the webhook is stopping"));
      this.#connections.destroyAll();
    });
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    using exchange = whileConnected(response, () => new Error("the client is gone"), this.#stopping.signal);
    try {
      const policy = policyOf(request);
      const body = await this.#read(request);
      const given = answer(parse(body), policy, this.#options.nodes);
      if (given === undefined) throw new HttpError(400, "the body is no AdmissionReview of admission.k8s.io/v1");
      this.#reviews.inc({ policy, outcome: given.outcome });
      sendReply(response, 200, { "content-type": "application/json" }, JSON.stringify(given.body));
    } catch (thrown) {
      if (exchange.signal.aborted || response.headersSent) return void response.destroy();
      if (!(thrown instanceof HttpError)) this.#options.logger.error({ err: thrown }, "A pod could not be looked at");
      const { status, message } = thrown instanceof HttpError ? thrown : new HttpError(500, "this failed: see the log");
      sendReply(response, status, { "content-type": "text/plain; charset=utf-8" }, `${message}\n`);
    }
  }

  async #read(request: IncomingMessage): Promise<Buffer> {
    if (this.#asked >= MAX_ASKED) throw new HttpError(429, "too much is asked at once");
    this.#asked++;
    try {
      return await readBody(request, MAX_BODY_BYTES);
    } finally {
      this.#asked--;
    }
  }
}

/** @throws HttpError */
function policyOf({ method, url = "" }: IncomingMessage): BurstPolicy {
  const path = url.split("?", 1)[0]!;
  const policy = BURST_POLICIES.find((each) => path === `/${each}`);
  if (policy === undefined)
    throw new HttpError(404, `there is ${BURST_POLICIES.map((each) => `/${each}`).join(" and ")}`);
  if (method !== "POST") throw new HttpError(405, "questions come by POST", [["Allow", "POST"]]);
  return policy;
}

/** @throws HttpError */
function parse(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString());
  } catch {
    throw new HttpError(400, "the body is no JSON");
  }
}
