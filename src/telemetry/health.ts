/**
 * Health of this process, and the plain HTTP port that tells it to the cluster's probes and to Prometheus.
 *
 * `/livez` (and `/healthz`) answer whether the process can make progress. They must never depend on the API server or the
 * backend: an outage there would become a restart loop here. `/readyz` answers whether the agent does its work.
 */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Logger } from "./logger.ts";
import type { Metrics } from "./metrics.ts";

/** Returns undefined when healthy, else what is wrong in a few words. */
export type HealthCheck = () => string | undefined | Promise<string | undefined>;

export interface HealthReport {
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

  names(): string[] {
    return [...this.#checks.keys()];
  }

  /** Runs the checks but those in `exclude`; in the words and marks of Kubernetes' health endpoints. */
  async report(options: { verbose?: boolean; exclude?: readonly string[]; only?: string } = {}): Promise<HealthReport> {
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
  close(): Promise<void>;
}

/**
 * Serves `/livez`, `/healthz`, `/readyz` (each with `/NAME` for a single check) and `/metrics` over plain HTTP.
 *
 * @throws when the address cannot be bound
 */
export async function startHealthServer(options: {
  host: string;
  port: number;
  livez: HealthChecks;
  readyz: HealthChecks;
  metrics: Metrics;
  logger: Logger;
}): Promise<HealthServer> {
  const endpoints: Record<string, HealthChecks> = {
    livez: options.livez,
    healthz: options.livez,
    readyz: options.readyz,
  };
  const answer = async (
    path: string,
    query: URLSearchParams,
  ): Promise<{ status: number; type: string; body: string }> => {
    const [, first = "", only, ...rest] = path.split("/");
    if (path === "/metrics")
      return { status: 200, type: options.metrics.registry.contentType, body: await options.metrics.render() };
    const checks = Object.hasOwn(endpoints, first) ? endpoints[first] : undefined;
    if (
      checks === undefined ||
      rest.length > 0 ||
      (only !== undefined && only !== "" && !checks.names().includes(only))
    ) {
      return { status: 404, type: "text/plain; charset=utf-8", body: "404 page not found\n" };
    }
    const report = await checks.report({ ...healthQuery(query), ...(only && { only }) });
    return { status: report.healthy ? 200 : 500, type: "text/plain; charset=utf-8", body: report.text };
  };

  const server = createServer(
    { headersTimeout: 5_000, requestTimeout: 5_000, connectionsCheckingInterval: 1_000 },
    (request, response) => {
      if (request.method !== "GET" && request.method !== "HEAD") {
        response.writeHead(405, { allow: "GET, HEAD" }).end();
        return;
      }
      const [path = "/", query = ""] = (request.url ?? "/").split("?", 2);
      answer(path, new URLSearchParams(query)).then(
        ({ status, type, body }) => {
          response
            .writeHead(status, {
              "content-type": type,
              "x-content-type-options": "nosniff",
              "cache-control": "no-cache",
            })
            .end(body);
        },
        (error: unknown) => {
          options.logger.error({ err: error, path }, "health endpoint failed");
          response.writeHead(500).end();
        },
      );
    },
  );
  server.maxConnections = 64;
  await listen(server, options.port, options.host);
  return {
    port: (server.address() as AddressInfo).port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, () => {
      server.off("error", reject);
      resolve();
    });
  });
}
