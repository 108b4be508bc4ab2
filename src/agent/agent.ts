/**
 * The composition root: builds the objects of an agent from its configuration, starts them in order and stops them in
 * the reverse order. One process serves all nodes of the file; the nodes share nothing but the process, its health
 * port, and one watch of the Services.
 *
 * Stopping leaves everything as it is: machines run on, the Node stays, and the next process takes over from what the
 * API server and the backend say.
 */
import { randomUUID } from "node:crypto";
import { hostname, networkInterfaces } from "node:os";
import type { AgentConfig, NodeConfig, ProviderConfig } from "../config/schema.ts";
import { exposedSecrets } from "../config/exposed-files.ts";
import { ConfigError, configuredBy } from "../config/load.ts";
import { NodeCertificate } from "../kube/certificates.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { EventRecorder } from "../kube/events.ts";
import { isForbidden } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { guardedKube } from "../kube/guarded.ts";
import { LeaderElector, NotLeaderError } from "../kube/leader-election.ts";
import { resourcePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import { parseDuration } from "../resources/duration.ts";
import { systemClock, type Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { EventLoopWatch } from "./event-loop.ts";
import { NodeAgent } from "./node-agent.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import { observeProcess, type Vitals } from "./process-metrics.ts";
import { ServiceCache } from "../podspec/references/services.ts";
import type { Provider } from "../provider/provider.ts";
import { HealthChecks, startHealthServer, type HealthServer } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import { createMetrics, type Metrics } from "../telemetry/metrics.ts";

/** With more pods at once that something is done for, statuses come before events. */
const BUSY_PODS = 4;

/** What a provider reports beside its replies; each part is optional. */
export interface ProviderEvents {
  /** A reply was refused because it broke the contract. */
  onInvalidReply(reason: string): void;
}

export interface AgentOptions {
  config: AgentConfig;
  createProvider: (config: ProviderConfig, events: ProviderEvents) => Promise<Provider>;
  clock: Clock;
  random: Random;
  logger: Logger;
  version: string;
  signal: AbortSignal;
  /** For metrics. */
  vitals?: (() => Vitals) | undefined;
}

/**
 * A client of the API server as this node, by the identity that the configuration says; without a node as the process
 * itself.
 */
export function connect(options: {
  config: AgentConfig;
  node?: Pick<NodeConfig, "name"> | undefined;
  clock: Clock;
  logger: Logger;
  version: string;
  metrics?: Metrics | undefined;
  /** identity.mode certificate: the node's own. */
  certificate?: NodeCertificate | undefined;
}): KubeTransport {
  const { config, node, metrics, certificate } = options;
  let kubeConfig;
  try {
    kubeConfig = loadKubeConfig({ path: config.kubeconfig });
  } catch (thrown) {
    throw new ConfigError(`kubeconfig: ${toError(thrown).message}`, { cause: thrown });
  }
  return new KubeTransport({
    kubeConfig,
    clock: options.clock,
    logger: options.logger,
    version: options.version,
    rateLimit: { perSecond: config.api.qps, burst: config.api.burst },
    impersonate:
      node !== undefined && config.identity.mode === "impersonate"
        ? { user: `system:node:${node.name}`, groups: ["system:nodes"] }
        : undefined,
    clientCertificate: certificate?.current,
    metrics: metrics && {
      onRequest: ({ verb, host, code, seconds }) => {
        metrics.restClientRequests.inc({ code, method: verb, host });
        metrics.restClientDuration.observe({ verb, host }, seconds);
      },
      onRetry: ({ verb, host, code }) => metrics.restClientRetries.inc({ code, verb, host }),
      onRateLimited: ({ verb, host, seconds }) =>
        metrics.restClientRateLimiterDuration.observe({ verb, host }, seconds),
      onServerTime: (ms) => metrics.clockSkew.set(Math.trunc((options.clock.now() - ms) / 1000)),
    },
  });
}

export class Agent {
  readonly nodes: readonly NodeAgent[];
  readonly #services: ServiceCache;
  readonly #health: HealthServer;
  readonly #eventLoop: EventLoopWatch;
  readonly #self: KubeTransport;
  readonly #elector: LeaderElector | undefined;
  readonly #logger: Logger;

  private constructor(parts: {
    nodes: readonly NodeAgent[];
    services: ServiceCache;
    health: HealthServer;
    eventLoop: EventLoopWatch;
    self: KubeTransport;
    elector: LeaderElector | undefined;
    logger: Logger;
  }) {
    this.nodes = parts.nodes;
    this.#services = parts.services;
    this.#health = parts.health;
    this.#eventLoop = parts.eventLoop;
    this.#self = parts.self;
    this.#elector = parts.elector;
    this.#logger = parts.logger;
  }

  /** Port of /livez, /readyz and /metrics. */
  get healthPort(): number {
    return this.#health.port;
  }

  /** Builds everything and binds the ports; nothing is registered before `run`. @throws ConfigError, KubeApiError */
  static async open(options: AgentOptions): Promise<Agent> {
    const { config, logger, version } = options;
    for (const path of await exposedSecrets(config))
      logger.warn({ path }, "This file holds a secret, and every user of this host can read it: chmod o-r");
    const metrics = createMetrics({ nodeNames: config.nodes.map((node) => node.name), version });
    const nodes: NodeAgent[] = [];
    metrics.onScrape((asked) => observeProcess(asked, nodes, options, metrics));
    // What belongs to no node is asked for as the process itself: a node may read neither.
    const self = connect({ ...options, metrics });
    const elector = config.leaderElection.enabled ? createElector(options, self, metrics) : undefined;
    let isBuilt = false;
    const livez = new HealthChecks("livez");
    // By real time, whatever clock the agent goes by: it is this process's loop.
    const eventLoop = new EventLoopWatch(systemClock);
    livez.add("event-loop", eventLoop.check);
    const readyz = new HealthChecks("readyz");
    readyz.add("started", () => (isBuilt ? undefined : "still starting"));
    // First, because a node's certificate may have to wait for an administrator's approval: until then the process is
    // alive, not ready.
    const { address: host, port, probePort } = config.health;
    const health = await configuredBy("health", () =>
      startHealthServer({ host, port, probePort, livez, readyz, metrics, logger }),
    ).catch((thrown: unknown) => {
      eventLoop.close();
      throw thrown;
    });
    try {
      const clusterId = config.clusterId ?? (await readClusterId(self, options.signal));
      const clients = await connectNodes(options, self, metrics);
      // The configuration has at least one node.
      const services = new ServiceCache({ ...options, kube: clients[0]!.kube });
      const shared: SharedParts = { self, services, clusterId, metrics, livez, readyz, guard: elector?.guard };
      for (const client of clients) nodes.push(await createNodeAgent(options, client, shared));
      isBuilt = true;
      return new Agent({ nodes, services, health, eventLoop, self, elector, logger });
    } catch (thrown) {
      eventLoop.close();
      await Promise.all([...nodes.map((node) => node.close()), self.close(), health.close()]);
      throw thrown;
    }
  }

  /** Resolves when every node is registered and has reported itself ready, or the signal aborts. */
  async ready(signal: AbortSignal): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.ready(signal)));
  }

  /** Runs until the signal aborts, then stops in order. Rejects when a part fails for good. */
  async run(signal: AbortSignal): Promise<void> {
    const failed = new AbortController();
    const linked = AbortSignal.any([signal, failed.signal]);
    this.#logger.info({ nodes: this.nodes.map((n) => n.name), healthPort: this.#health.port }, "Agent starts");
    // One that fails stops the others in order.
    const act = async (leading: AbortSignal) => {
      await Promise.all(this.nodes.map((node) => node.act(leading).catch((thrown: unknown) => failed.abort(thrown))));
    };
    const parts = [
      ...this.nodes.map((node) => node.observe(linked)),
      this.#services.run(linked),
      // A process that loses the leadership ends: its successor stands by with nothing left over from before.
      this.#elector === undefined
        ? act(linked)
        : this.#elector.run(linked, act).then(() => failed.abort(new NotLeaderError("not leading any more"))),
    ];
    await Promise.all(parts.map((part) => part.catch((thrown: unknown) => failed.abort(thrown))));
    await Promise.all(this.nodes.map((node) => node.close()));
    this.#eventLoop.close();
    await this.#health.close();
    await this.#self.close();
    this.#logger.info({}, "Agent stopped; machines run on");
    if (failed.signal.aborted && !signal.aborted) throw failed.signal.reason;
  }
}

/** A node of the configuration, and the API server as that node. */
interface NodeClient {
  node: NodeConfig;
  kube: KubeTransport;
  /** identity.mode certificate: the node's own. */
  certificate: NodeCertificate | undefined;
}

/** What all nodes of a process have in common. */
type SharedParts = Pick<NodeAgentOptions, "self" | "services" | "clusterId" | "metrics" | "livez" | "readyz" | "guard">;

/** The nodes' certificates are requested together, so that the person who approves them sees them all at once. */
async function connectNodes(options: AgentOptions, self: Kube, metrics: Metrics): Promise<readonly NodeClient[]> {
  const { config, logger, signal } = options;
  const needsCertificate = config.identity.mode === "certificate";
  const connected = config.nodes.map(async (node): Promise<NodeClient> => {
    const own = { ...options, nodeName: node.name, logger: logger.child({ node: node.name }), metrics };
    const certificate = needsCertificate ? new NodeCertificate(own) : undefined;
    await certificate?.obtain(self, signal);
    return { node, kube: connect({ ...options, node, metrics, certificate }), certificate };
  });
  return await Promise.all(connected);
}

async function createNodeAgent(
  options: AgentOptions,
  { node, kube, certificate }: NodeClient,
  shared: SharedParts,
): Promise<NodeAgent> {
  const { metrics, guard } = shared;
  const logger = options.logger.child({ node: node.name });
  let agent: NodeAgent | undefined;
  const events = new EventRecorder({
    kube: guard === undefined ? kube : guardedKube(kube, guard),
    clock: options.clock,
    logger,
    random: options.random,
    component: "kubelet",
    host: node.name,
    isBusy: () => agent !== undefined && agent.pods.queue.depth + agent.pods.queue.working > BUSY_PODS,
    onDropped: (reason) => metrics.eventsDropped.inc({ reason }),
  });
  const provider = await options.createProvider(node.provider, {
    onInvalidReply: (reason) => metrics.backendInvalidResponses.inc({ reason }),
  });
  agent = await NodeAgent.open({
    ...options,
    ...shared,
    logger,
    node: { ...node, addresses: node.addresses.length > 0 ? node.addresses : hostAddresses() },
    kube,
    events,
    provider,
    auditCommands: options.config.audit.commands,
    certificate,
  });
  return agent;
}

function createElector(
  { config, clock, random, logger }: AgentOptions,
  kube: KubeTransport,
  metrics: Metrics,
): LeaderElector {
  const { namespace, name, leaseDuration, renewDeadline, retryPeriod } = config.leaderElection;
  // From the first scrape on, metrics show whether this process is the leader or a standby.
  metrics.leaderElectionMaster.set({ name }, 0);
  return new LeaderElector({
    kube,
    clock,
    random,
    logger,
    namespace,
    name,
    identity: `${hostname()}_${randomUUID()}`,
    leaseDurationMs: parseDuration(leaseDuration),
    renewDeadlineMs: parseDuration(renewDeadline),
    retryPeriodMs: parseDuration(retryPeriod),
    onLeading: (leading) => metrics.leaderElectionMaster.set({ name }, leading ? 1 : 0),
  });
}

/** The UID of kube-system outlives everything but the cluster itself. @throws ConfigError when it may not be read */
export async function readClusterId(kube: Kube, signal: AbortSignal): Promise<string> {
  try {
    const namespace = await kube.request<{ metadata: { uid: string } }>({
      method: "GET",
      path: resourcePath({ resource: "namespaces", name: "kube-system" }),
      signal,
    });
    return namespace.metadata.uid;
  } catch (thrown) {
    if (!isForbidden(thrown)) throw thrown;
    throw new ConfigError(
      "clusterId: is not set, and these credentials may not read the namespace kube-system to derive it; " +
        "set it to any text that is this cluster's own and never changes, such as the UID of kube-system",
      { cause: thrown },
    );
  }
}

function hostAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  const outside = all.filter((a) => !a.internal && !a.address.startsWith("fe80:"));
  const first = outside.find((a) => a.family === "IPv4") ?? outside[0];
  return [first?.address ?? "127.0.0.1"];
}
