/**
 * One node that this process serves, with what outlives a change of its configuration: its connections and its
 * provider. The node agent between them is made again when more changes than the Node object, as by a process that is
 * started again, in a second and without the other nodes.
 */
import type { NodeConfig } from "../config/schema.ts";
import type { NodeCertificate } from "../kube/certificates.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { Provider } from "../provider/provider.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { NodeAgent } from "./node-agent.ts";

/** What a node's agent is made of, and what is given back when the node is served no more. */
export interface NodeMeans {
  kube: KubeTransport;
  /** identity.mode certificate: the node's own. */
  certificate: NodeCertificate | undefined;
  provider: Provider;
}

export class ServedNode {
  readonly means: NodeMeans;
  readonly agent: NodeAgent;
  config: NodeConfig;
  readonly #logger: Logger;
  readonly #stop = new AbortController();
  #observed: Promise<void> | undefined;
  #acted: Promise<void> | undefined;

  constructor(options: { config: NodeConfig; means: NodeMeans; agent: NodeAgent; logger: Logger }) {
    this.config = options.config;
    this.means = options.means;
    this.agent = options.agent;
    this.#logger = options.logger;
  }

  /** Aborts with the first of `signal` and the end of this node. */
  #until(signal: AbortSignal): AbortSignal {
    return AbortSignal.any([signal, this.#stop.signal]);
  }

  /** See `NodeAgent.observe`. */
  observe(signal: AbortSignal, onFailed: (thrown: unknown) => void): void {
    this.#observed = this.agent.observe(this.#until(signal)).catch(onFailed);
  }

  /** See `NodeAgent.act`. */
  act(signal: AbortSignal, onFailed: (thrown: unknown) => void): void {
    this.#acted = this.agent.act(this.#until(signal)).catch(onFailed);
  }

  /** Resolves when what `act` began is over. */
  get acted(): Promise<void> {
    return this.#acted ?? Promise.resolve();
  }

  /** The same of `observe`. */
  get observed(): Promise<void> {
    return this.#observed ?? Promise.resolve();
  }

  /** Ends its work and its kubelet API; the means are left. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("this node's agent ends"));
    await Promise.all([this.observed, this.acted]);
    await this.agent.close();
  }

  async closeMeans(): Promise<void> {
    await closeMeans(this.means, this.#logger);
  }
}

export async function closeMeans({ provider, kube }: NodeMeans, logger: Logger): Promise<void> {
  // Even if the provider fails to close, connections must not keep the process alive.
  await provider.close().catch((thrown: unknown) => logger.warn({ err: thrown }, "The provider could not be closed"));
  await kube.close();
}
