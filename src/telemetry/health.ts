/**
 * Health of this process, and the plain HTTP port that tells it to the cluster's probes and to Prometheus.
 *
 * `/livez` (and `/healthz`) answer whether the process can make progress. They must never depend on the API server or
 * the backend: an outage there would become a restart loop here. `/readyz` answers whether the agent does its work.
 */
import { createServer, type ServerResponse } from "node:http";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Connections } from "../http/connections.ts";
import { closeNow, listen } from "../http/listen.ts";
import type { Logger } from "./logger.ts";
import type { Metrics } from "./metrics.ts";

/** Returns undefined when healthy, else what is wrong in a few words. */
export type HealthCheck = () => string | undefined | Promise<string | undefined>;

interface HealthReport {
  healthy: boolean;
  /** `ok`, or with `verbose` or on failure one line per check. */
  text: string;
}

/** Named checks in order of registration. */
export class HealthChecks {
  readonly #name: string;
  readonly #checks = new Map<string, HealthCheck>();

  /** @param name the endpoint's name, which ends the report: `livez check passed` */
  constructor(name: string) {
    this.#name = name;
    this.add("ping", () => undefined);
  }

  add(name: string, check: HealthCheck): void {
    this.#checks.set(name, check);
  }

  remove(name: string): void {
    this.#checks.delete(name);
  }

  names(): string[] {
    return [...this.#checks.keys()];
  }

  /** Runs the checks but those in `exclude`; in the words and marks of Kubernetes' health endpoints. */
  async report(
    options: { verbose?: boolean | undefined; exclude?: readonly string[] | undefined; only?: string | undefined } = {},
  ): Promise<HealthReport> {
    const lines: string[] = [];
    let healthy = true;
    for (const [name, check] of this.#checks) {
      if (options.only !== undefined && options.only !== name) continue;
      if (options.exclude?.includes(name)) {
        lines.push(`[+]${name} excluded: ok`);
        continue;
      }
      const fault = await run(check);
      healthy &&= fault === undefined;
      lines.push(fault === undefined ? `[+]${name} ok` : `[-]${name} failed: ${fault}`);
    }
    if (!healthy) return { healthy, text: `${lines.join("\n")}\n${this.#name} check failed\n` };
    return { healthy, text: options.verbose ? `${lines.join("\n")}\n${this.#name} check passed\n` : "ok" };
  }
}

async function run(check: HealthCheck): Promise<string | undefined> {
  try {
    return await check();
  } catch (thrown) {
    return thrown instanceof Error ? thrown.message : String(thrown);
  }
}

/** The query of a health endpoint: `?verbose`, `?exclude=NAME` (repeated). */
export function healthQuery(query: URLSearchParams): { verbose: boolean; exclude: string[] } {
  return { verbose: query.has("verbose"), exclude: query.getAll("exclude") };
}

export interface HealthServer {
  /** The port that is listened on, which differs from the wanted one when that was 0. */
  readonly port: number;
  /** That for probes alone, when there is one. */
  readonly probePort: number | undefined;
  close(): Promise<void>;
}

/**
 * There are no credentials on this port. An attacker's connections take each other's places, not that of an address
 * with fewer, and there are so many that a probe is answered long before it could become the oldest.
 */
const MAX_CONNECTIONS = 1024;
/**
 * More than Node's 511: a probe that waits for its turn is answered, one that finds no place waits a second to try
 * again.
 */
const BACKLOG = 4096;
/** For a request's header, and between two reads of a reply. */
const PATIENCE_MS = 5_000;
/** Replies of /metrics on their way, each of which is held in memory; the oldest is broken off for a newer one. */
const MAX_SCRAPES = 32;

interface HealthServerOptions {
  host: string;
  port: number;
  /** Another port, without `/metrics`, for the cluster's probes alone: there, no other client can crowd them out. */
  probePort?: number | undefined;
  livez: HealthChecks;
  readyz: HealthChecks;
  metrics: Scraped;
  logger: Logger;
}

/** What /metrics tells. */
type Scraped = Pick<Metrics, "render" | "registry">;

/**
 * Serves `/livez`, `/healthz`, `/readyz` (each with `/NAME` for a single check) and `/metrics` over plain HTTP.
 *
 * @throws when an address cannot be bound
 */
export async function startHealthServer(options: HealthServerOptions): Promise<HealthServer> {
  const main = await listenOn(options.port, options, options.metrics);
  let probes: Listener | undefined;
  try {
    if (options.probePort !== undefined) probes = await listenOn(options.probePort, options);
  } catch (thrown) {
    await main.close();
    throw thrown;
  }
  return {
    port: main.port,
    probePort: probes?.port,
    close: async () => void (await Promise.all([main.close(), probes?.close()])),
  };
}

interface Listener {
  port: number;
  close(): Promise<void>;
}

async function listenOn(port: number, options: HealthServerOptions, metrics?: Scraped): Promise<Listener> {
  const { livez, readyz } = options;
  const endpoints: Record<string, HealthChecks> = { livez, healthz: livez, readyz };
  const render = metrics && together(() => metrics.render());
  const scrapes = new Set<ServerResponse>();
  const scrape = async (response: ServerResponse): Promise<string> => {
    const [oldest] = scrapes;
    if (scrapes.size >= MAX_SCRAPES) oldest!.destroy();
    scrapes.add(response);
    response.once("close", () => scrapes.delete(response));
    return (await render?.()) ?? "";
  };
  const answer = async (
    path: string,
    query: URLSearchParams,
    response: ServerResponse,
  ): Promise<{ status: number; type: string; body: string }> => {
    const [, first = "", only, ...rest] = path.split("/");
    if (path === "/metrics" && metrics)
      return { status: 200, type: metrics.registry.contentType, body: await scrape(response) };
    const checks = Object.hasOwn(endpoints, first) ? endpoints[first] : undefined;
    if (
      checks === undefined ||
      rest.length > 0 ||
      (only !== undefined && only !== "" && !checks.names().includes(only))
    ) {
      return { status: 404, type: "text/plain; charset=utf-8", body: "404 page not found\n" };
    }
    const report = await checks.report({ ...healthQuery(query), only: only || undefined });
    return { status: report.healthy ? 200 : 500, type: "text/plain; charset=utf-8", body: report.text };
  };

  const server = createServer(
    { headersTimeout: PATIENCE_MS, requestTimeout: PATIENCE_MS, connectionsCheckingInterval: 1_000 },
    (request, response) => {
      response.setTimeout(PATIENCE_MS, () => response.destroy());
      if (request.method !== "GET" && request.method !== "HEAD") {
        response.writeHead(405, { allow: "GET, HEAD" }).end();
        return;
      }
      const [path = "/", query = ""] = (request.url ?? "/").split("?", 2);
      answer(path, new URLSearchParams(query), response).then(
        ({ status, type, body }) => {
          if (response.destroyed) return;
          const headers = { "content-type": type, "x-content-type-options": "nosniff", "cache-control": "no-cache" };
          // In chunks: metrics may be megabytes, and so they are not put together with the header first.
          response.writeHead(status, headers).end(body);
        },
        (thrown: unknown) => {
          options.logger.error({ err: thrown, path }, "Health endpoint failed");
          response.writeHead(500).end();
        },
      );
    },
  );
  const connections = new Connections(server, { total: MAX_CONNECTIONS });
  const bound = await listen(server, { port, host: options.host, backlog: BACKLOG }, (error) =>
    options.logger.warn({ err: error }, "Health port: a connection was not accepted"),
  );
  return {
    port: bound,
    close: async () => {
      connections.close();
      await closeNow(server);
    },
  };
}

/**
 * All who ask in one turn of the event loop get the same answer: however many scrape, a probe is answered in between.
 */
function together(work: () => Promise<string>): () => Promise<string> {
  let pending: Promise<string> | undefined;
  return () => {
    pending ??= nextTurn().then(() => {
      pending = undefined;
      return work();
    });
    return pending;
  };
}
