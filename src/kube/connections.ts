/** The connections to the API server: one pool for each kind of traffic, replaced when the TLS credentials change. */
import { createSecureContext } from "node:tls";
import type { Dispatcher } from "undici";
import Agent from "undici/lib/dispatcher/agent.js";
import ProxyAgent from "undici/lib/dispatcher/proxy-agent.js";
import type { Logger } from "../telemetry/logger.ts";
import type { Credentials } from "./credentials.ts";
import type { KubeRequest } from "./kube.ts";

/**
 * Traffic that never waits for other traffic: `review` asks who may use the kubelet API, `lease` is the node's
 * heartbeat and the leader's, `event` what people are told, a watch has a connection of its own.
 */
export type Lane = NonNullable<KubeRequest["lane"]> | "watch";

/** As client-node and client-go: below the idle limit of common load balancers (60 s). */
const TCP_KEEPALIVE_MS = 30_000;
/** kube-apiserver closes idle connections after 90 s; being first avoids sending into a closed one. */
const IDLE_CONNECTION_MS = 60_000;
const CONNECT_TIMEOUT_MS = 10_000;
/** As many namespaces' events as are sent at once. */
const EVENT_CONNECTIONS = 32;
/** More reviews than that at once wait for each other; what they answer is kept for minutes. */
const REVIEW_CONNECTIONS = 8;

interface ConnectionsOptions {
  /** Of lane `default`. */
  connections: number;
  logger: Logger;
}

export class Connections {
  readonly #options: ConnectionsOptions;
  #current: { key: string; lanes: Record<Lane, Dispatcher> } | undefined;
  #closed = false;

  constructor(options: ConnectionsOptions) {
    this.#options = options;
  }

  /** @throws Error when they are closed, or for a proxy that is not supported */
  dispatcher(credentials: Credentials, lane: Lane): Dispatcher {
    if (this.#closed) throw new Error("The transport is closed");
    if (this.#current?.key !== credentials.tlsKey) {
      const old = this.#current;
      this.#current = { key: credentials.tlsKey, lanes: this.#connect(credentials) };
      if (old) {
        this.#options.logger.info({ server: credentials.server }, "TLS credentials changed, connecting anew");
        // close() drains; destroy() would kill requests under way. Watches end by themselves within minutes.
        for (const dispatcher of Object.values(old.lanes)) {
          dispatcher.close().catch((thrown: unknown) => {
            this.#options.logger.debug({ err: thrown }, "Closing old connections failed");
          });
        }
      }
    }
    return this.#current.lanes[lane];
  }

  /** Takes no more requests; resolves when those under way have ended and all connections are closed. */
  async close(): Promise<void> {
    this.#closed = true;
    const lanes = Object.values(this.#current?.lanes ?? {});
    this.#current = undefined;
    await Promise.all(lanes.map((lane) => lane.close()));
  }

  #connect(credentials: Credentials): Record<Lane, Dispatcher> {
    const { proxyUrl, server, tls } = credentials;
    const connect = {
      ...tls,
      // One for all: each connection would read certificates and key again, and keep them.
      ...(server.startsWith("https:") && { secureContext: createSecureContext(tls) }),
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEPALIVE_MS,
      timeout: CONNECT_TIMEOUT_MS,
    };
    const shared = {
      // A tenth of the connections and a fifth of the CPU time for watches, but not in undici 8.12: after a GOAWAY new
      // streams wait for those of the old connection to end, and a connection that is lost ends its streams as if the
      // server had ended them.
      allowH2: false,
      pipelining: 1,
      keepAliveTimeout: IDLE_CONNECTION_MS,
      // Our own deadlines cover whole exchanges, and a watch may be silent.
      headersTimeout: 0,
      bodyTimeout: 0,
    };
    const pool = (connections: number | null): Dispatcher => {
      if (proxyUrl === undefined || proxyUrl === null) return new Agent({ ...shared, connections, connect });
      if (!/^https?:/.test(proxyUrl)) {
        throw new Error(
          `The kubeconfig's proxy-url ${new URL(proxyUrl).protocol}// is not supported: use an http proxy`,
        );
      }
      return new ProxyAgent({ ...shared, connections, uri: proxyUrl, requestTls: connect });
    };
    return {
      default: pool(this.#options.connections),
      review: pool(REVIEW_CONNECTIONS),
      lease: pool(1),
      event: pool(EVENT_CONNECTIONS),
      watch: pool(null),
    };
  }
}
