/**
 * The nodes of a process, brought to what the configuration says: at the start all at once, where one that cannot be
 * opened is the end of it; later one by one, where what fails is told, tried again, and concerns that node alone.
 */
import { ConfigError } from "../config/load.ts";
import { nodeChange } from "../config/reload.ts";
import type { NodeConfig } from "../config/schema.ts";
import type { Kube } from "../kube/kube.ts";
import type { Logger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
import { untilAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { leave } from "./leaving.ts";
import type { NodeAgent } from "./node-agent.ts";
import { closeMeans, ServedNode, type NodeMeans } from "./served-node.ts";

/** Before a node whose name is another's in the cluster is tried again. */
const REFUSED_MS = 60_000;

interface ServedNodesOptions {
  /** Connects to the API server and the backend; may wait for a certificate. */
  connect: (node: NodeConfig) => Promise<NodeMeans>;
  /** Another way to speak to the same backend. */
  openProvider: (node: NodeConfig) => Promise<NodeMeans["provider"]>;
  /** Binds the kubelet port. */
  open: (node: NodeConfig, means: NodeMeans) => Promise<NodeAgent>;
  /** The API server as the process itself. */
  self: Kube;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /** A node that was there from the start failed, or one failed by more than its configuration: the process ends. */
  onFailed: (thrown: unknown) => void;
}

export class ServedNodes {
  readonly #options: ServedNodesOptions;
  readonly #served = new Map<string, ServedNode>();
  /** What the configuration says. */
  #wanted = new Map<string, NodeConfig>();
  /** Names at which something is done right now. */
  readonly #busy = new Map<string, Promise<void>>();
  readonly #leaving = new Map<string, AbortController>();
  readonly #faults = new Map<string, string>();
  /** Monotonic times at which the cluster had another node of this name. */
  readonly #refusedAt = new Map<string, number>();
  #rate: { perSecond: number; burst: number } | undefined;
  #observing: AbortSignal | undefined;
  #acting: AbortSignal | undefined;

  constructor(options: ServedNodesOptions) {
    this.#options = options;
  }

  get agents(): NodeAgent[] {
    return [...this.#served.values()].map(({ agent }) => agent);
  }

  /** What of the configuration could not be brought about yet, by node. */
  get faults(): ReadonlyMap<string, string> {
    return this.#faults;
  }

  /** The API server as one of the nodes; undefined while none is connected. */
  get anyKube(): Kube | undefined {
    return this.#served.values().next().value?.means.kube;
  }

  /** Of requests to the API server, of the nodes to come as well. */
  changeRate(limit: { perSecond: number; burst: number }): void {
    this.#rate = limit;
    for (const { means } of this.#served.values()) means.kube.changeRate(limit);
  }

  /** Opens the first nodes; their connections all at once, so that one approval does not wait for another. */
  async open(nodes: readonly NodeConfig[]): Promise<void> {
    const { connect, logger, open } = this.#options;
    this.#wanted = byName(nodes);
    const connecting = nodes.map(async (node) => ({ node, means: await connect(node) }));
    const connected = await Promise.allSettled(connecting);
    const ready = connected.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
    const opened = new Set<NodeMeans>();
    try {
      // Throws what the first failed with.
      await Promise.all(connecting);
      for (const { node, means } of ready) {
        this.#add(node, means, await open(node, means));
        opened.add(means);
      }
    } catch (thrown) {
      for (const { means } of ready) if (!opened.has(means)) await closeMeans(means, logger);
      await this.close();
      throw thrown;
    }
  }

  /** Has all nodes observe, those to come as well, until the signal aborts. */
  observe(signal: AbortSignal): void {
    this.#observing = signal;
    for (const served of this.#served.values()) served.observe(signal, this.#options.onFailed);
  }

  /** Has all nodes act, those to come as well. Resolves when the signal aborts and what they do is over. */
  async act(signal: AbortSignal): Promise<void> {
    this.#acting = signal;
    for (const served of this.#served.values()) served.act(signal, this.#options.onFailed);
    await untilAborted(signal);
    await Promise.all(this.#busy.values());
    await Promise.all([...this.#served.values()].map((served) => served.acted));
  }

  /** Takes over another configuration; what takes time goes on afterwards. */
  change(nodes: readonly NodeConfig[]): void {
    this.#wanted = byName(nodes);
    this.retry();
  }

  /** Goes on with what is not as it should be. */
  retry(): void {
    for (const name of new Set([...this.#wanted.keys(), ...this.#served.keys()])) this.#look(name);
    for (const name of this.#faults.keys())
      if (!this.#wanted.has(name) && !this.#served.has(name)) this.#faults.delete(name);
  }

  async close(): Promise<void> {
    for (const controller of this.#leaving.values()) controller.abort(new Error("the process ends"));
    await Promise.all(this.#busy.values());
    await Promise.all(
      [...this.#served.values()].map(async (served) => {
        await served.stop();
        await served.closeMeans();
      }),
    );
    this.#served.clear();
  }

  #look(name: string): void {
    if (this.#busy.has(name) || this.#observing?.aborted) return;
    const { logger, clock } = this.#options;
    if (clock.monotonic() - (this.#refusedAt.get(name) ?? -Infinity) < REFUSED_MS) return;
    const work = this.#bring(name)
      .then(
        () => void this.#faults.delete(name),
        (thrown: unknown) => {
          const fault = toError(thrown).message;
          if (this.#faults.get(name) !== fault)
            logger.error(
              { node: name, err: thrown },
              "The node cannot be as the configuration says; it is tried again",
            );
          this.#faults.set(name, fault);
        },
      )
      .finally(() => this.#busy.delete(name));
    this.#busy.set(name, work);
  }

  async #bring(name: string): Promise<void> {
    const wanted = this.#wanted.get(name);
    const served = this.#served.get(name);
    if (wanted === undefined) {
      if (served !== undefined) this.#startLeaving(served);
      return;
    }
    if (served === undefined) return await this.#begin(wanted);
    this.#stopLeaving(served);
    const change = nodeChange(served.config, wanted);
    if (change === "node-object") {
      served.config = wanted;
      served.agent.describe(wanted);
      this.#options.logger.info({ node: name }, "The Node follows its changed configuration");
    } else if (change === "everything") await this.#renew(served, wanted);
  }

  async #begin(node: NodeConfig): Promise<void> {
    const { connect, open, logger } = this.#options;
    const means = await connect(node);
    try {
      this.#start(this.#add(node, means, await open(node, means)));
    } catch (thrown) {
      await closeMeans(means, logger);
      throw thrown;
    }
    logger.info({ node: node.name }, "A node was added by the configuration");
  }

  /** Ends the node's agent and makes another; with the old configuration if it cannot be by the new one. */
  async #renew(served: ServedNode, wanted: NodeConfig): Promise<void> {
    const { openProvider, open, logger } = this.#options;
    const { config: before, means } = served;
    const isOther = JSON.stringify(before.provider) !== JSON.stringify(wanted.provider);
    // First, because what a file lacks is noticed here, while the node is still served.
    const provider = isOther ? await openProvider(wanted) : means.provider;
    logger.info({ node: before.name }, "The node's agent is made anew by its changed configuration; its sessions end");
    await served.stop();
    const again = { ...means, provider };
    try {
      this.#start(this.#add(wanted, again, await open(wanted, again)));
    } catch (thrown) {
      if (isOther) await provider.close().catch(() => undefined);
      await this.#goBack(served);
      throw thrown;
    }
    if (isOther) await means.provider.close().catch(() => undefined);
  }

  async #goBack(served: ServedNode): Promise<void> {
    const { config: before, means } = served;
    try {
      this.#start(this.#add(before, means, await this.#options.open(before, means)));
    } catch (thrown) {
      // The next round begins with nothing.
      this.#served.delete(before.name);
      await served.closeMeans();
      this.#options.logger.error(
        { node: before.name, err: thrown },
        "The node cannot be served by its configuration before either",
      );
    }
  }

  #add(config: NodeConfig, means: NodeMeans, agent: NodeAgent): ServedNode {
    const logger = this.#options.logger.child({ node: config.name });
    const served = new ServedNode({ config, means, agent, logger });
    this.#served.set(config.name, served);
    if (this.#rate !== undefined) means.kube.changeRate(this.#rate);
    this.#options.metrics.addNode(config.name);
    return served;
  }

  /** Of a node that comes later: the configuration may be wrong for it, and the others go on. */
  #start(served: ServedNode): void {
    const { name } = served.config;
    const onFailed = (thrown: unknown) => {
      if (!(thrown instanceof ConfigError)) return this.#options.onFailed(thrown);
      this.#faults.set(name, thrown.message);
      this.#refusedAt.set(name, this.#options.clock.monotonic());
      this.#options.logger.error({ node: name, err: thrown }, "A node that the configuration changed cannot be served");
      void this.#drop(served);
    };
    if (this.#observing !== undefined) served.observe(this.#observing, onFailed);
    if (this.#acting !== undefined) served.act(this.#acting, onFailed);
  }

  #startLeaving(served: ServedNode): void {
    const { name } = served.config;
    if (this.#leaving.has(name) || this.#observing === undefined) return;
    const { self, clock, metrics, logger } = this.#options;
    const controller = new AbortController();
    this.#leaving.set(name, controller);
    metrics.nodeLeaving.set({ node: name }, 1);
    const signal = AbortSignal.any([controller.signal, this.#observing]);
    const own = logger.child({ node: name });
    void leave({ agent: served.agent, kubes: [served.means.kube, self], clock, logger: own }, signal)
      .then(async (isOver) => {
        if (!isOver) return;
        await this.#drop(served);
        own.info({}, "The node that was taken out of the configuration is served no more");
      })
      .catch((thrown: unknown) => own.error({ err: thrown }, "The node could not be given up"));
  }

  #stopLeaving({ agent, config: { name } }: ServedNode): void {
    const controller = this.#leaving.get(name);
    if (controller === undefined) return;
    controller.abort(new Error("the node is in the configuration again"));
    this.#leaving.delete(name);
    agent.controller.isLeaving = false;
    this.#options.metrics.nodeLeaving.remove({ node: name });
  }

  async #drop(served: ServedNode): Promise<void> {
    const { name } = served.config;
    if (this.#served.get(name) !== served) return;
    this.#served.delete(name);
    this.#leaving.delete(name);
    const work = served.stop().then(() => served.closeMeans());
    this.#busy.set(name, work);
    await work.finally(() => this.#busy.delete(name));
    if (!this.#served.has(name)) this.#options.metrics.removeNode(name);
  }
}

const byName = (nodes: readonly NodeConfig[]): Map<string, NodeConfig> =>
  new Map(nodes.map((node) => [node.name, node]));
