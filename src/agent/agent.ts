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
import { EventLoopWatch, type Lag } from "./event-loop.ts";
import type { ConfigFile } from "./config-file.ts";
import { reload } from "../config/reload.ts";
import { NodeAgent } from "./node-agent.ts";
import type { NodeMeans } from "./served-node.ts";
import { ServedNodes } from "./served-nodes.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import { observeProcess, type Vitals } from "./process-metrics.ts";
import { EvictionZones } from "../pods/eviction-brake.ts";
import { EndpointCache } from "../kube/endpoints.ts";
import { ServiceCache } from "../podspec/references/services.ts";
import type { Provider } from "../provider/provider.ts";
import { HealthChecks, startHealthServer, type HealthServer } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import { createMetrics, type Metrics } from "../telemetry/metrics.ts";
import type { Tracing } from "../telemetry/tracing.ts";

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
  /** What `config` was read from, to be followed while the agent runs. Default: it never changes. */
  file?: ConfigFile | undefined;
  /** Absent: nothing is traced. The caller closes it, after the agent. */
  tracing?: Tracing | undefined;
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
  tracing?: Tracing | undefined;
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
    tracing: options.tracing,
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
  readonly #nodes: ServedNodes;
  readonly #options: AgentOptions;
  readonly #metrics: Metrics;
  readonly #failed: AbortController;
  #config: AgentConfig;
  #keptFields: readonly string[] = [];
  readonly #services: ServiceCache;
  readonly #endpoints: EndpointCache;
  readonly #health: HealthServer;
  readonly #eventLoop: EventLoopWatch;
  readonly #self: KubeTransport;
  readonly #elector: LeaderElector | undefined;
  readonly #logger: Logger;

  private constructor(parts: {
    nodes: ServedNodes;
    options: AgentOptions;
    metrics: Metrics;
    failed: AbortController;
    services: ServiceCache;
    endpoints: EndpointCache;
    health: HealthServer;
    eventLoop: EventLoopWatch;
    self: KubeTransport;
    elector: LeaderElector | undefined;
    logger: Logger;
  }) {
    this.#nodes = parts.nodes;
    this.#options = parts.options;
    this.#config = parts.options.config;
    this.#metrics = parts.metrics;
    this.#failed = parts.failed;
    this.#services = parts.services;
    this.#endpoints = parts.endpoints;
    this.#health = parts.health;
    this.#eventLoop = parts.eventLoop;
    this.#self = parts.self;
    this.#elector = parts.elector;
    this.#logger = parts.logger;
  }

  /** Those that are served now. */
  get nodes(): readonly NodeAgent[] {
    return this.#nodes.agents;
  }

  /** Port of /livez, /readyz and /metrics. */
  get healthPort(): number {
    return this.#health.port;
  }

  /** Builds everything and binds the ports; nothing is registered before `run`. @throws ConfigError, KubeApiError */
  static async open(options: AgentOptions): Promise<Agent> {
    const { config, logger, version } = options;
    tellExposed(await exposedSecrets(config), logger);
    const metrics = createMetrics({ nodeNames: config.nodes.map((node) => node.name), version });
    // What belongs to no node is asked for as the process itself: a node may read neither.
    const self = connect({ ...options, metrics });
    const failed = new AbortController();
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
    let nodes: ServedNodes | undefined;
    try {
      const clusterId = config.clusterId ?? (await readClusterId(self, options.signal));
      const asAnyNode = (): Kube => nodes?.anyKube ?? self;
      const services = new ServiceCache({
        ...options,
        kube: { request: (request) => asAnyNode().request(request), watch: (request) => asAnyNode().watch(request) },
      });
      const endpoints = new EndpointCache({ ...options, kube: self });
      const evictions = new EvictionZones(options);
      const guard = elector?.guard;
      const shared: SharedParts = { self, services, endpoints, evictions, clusterId, metrics, livez, readyz, guard };
      nodes = new ServedNodes({
        connect: (node) => connectNode(options, node, self, metrics),
        openProvider: (node) => openProvider(options, node, metrics),
        open: (node, means) => createNodeAgent(options, node, means, shared),
        self,
        clock: options.clock,
        logger,
        metrics,
        onFailed: (thrown) => failed.abort(thrown),
      });
      const served = nodes;
      metrics.onScrape((asked) => {
        observeProcess(asked, served.agents, options, metrics);
        for (const [name, seconds] of Object.entries(eventLoop.lag()))
          metrics.eventLoopLag[name as keyof Lag].set(seconds);
      });
      await nodes.open(config.nodes);
      isBuilt = true;
      return new Agent({
        nodes,
        options,
        metrics,
        failed,
        services,
        endpoints,
        health,
        eventLoop,
        self,
        elector,
        logger,
      });
    } catch (thrown) {
      eventLoop.close();
      await Promise.all([nodes?.close(), self.close(), health.close()]);
      throw thrown;
    }
  }

  /** Resolves when every node is registered and has reported itself ready, or the signal aborts. */
  async ready(signal: AbortSignal): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.ready(signal)));
  }

  /** Runs until the signal aborts, then stops in order. Rejects when a part fails for good. */
  async run(signal: AbortSignal): Promise<void> {
    const failed = this.#failed;
    const linked = AbortSignal.any([signal, failed.signal]);
    this.#logger.info({ nodes: this.nodes.map((n) => n.name), healthPort: this.#health.port }, "Agent starts");
    this.#nodes.observe(linked);
    const act = (leading: AbortSignal) => this.#nodes.act(leading);
    const parts = [
      this.#services.run(linked),
      this.#endpoints.run(linked),
      this.#followFile(linked),
      // A process that loses the leadership ends: its successor stands by with nothing left over from before.
      this.#elector === undefined
        ? act(linked)
        : this.#elector.run(linked, act).then(() => failed.abort(new NotLeaderError("not leading any more"))),
    ];
    await Promise.all(parts.map((part) => part.catch((thrown: unknown) => failed.abort(thrown))));
    await this.#nodes.close();
    this.#eventLoop.close();
    await this.#health.close();
    await this.#self.close();
    this.#logger.info({}, "Agent stopped; machines run on");
    if (failed.signal.aborted && !signal.aborted) throw failed.signal.reason;
  }

  /** Takes the configuration over again and again as its file changes. */
  async #followFile(signal: AbortSignal): Promise<void> {
    const { file } = this.#options;
    if (file === undefined) return;
    this.#metrics.onScrape(() => this.#tellOfFile(file));
    await file.run(
      signal,
      (config) => this.#change(config),
      () => this.#nodes.retry(),
    );
  }

  /** Brings about what can change while the process runs, and says of the rest that it does not. */
  #change(next: AgentConfig): void {
    const logger = this.#logger;
    const { config, kept } = reload(this.#config, next);
    this.#config = config;
    this.#keptFields = kept;
    if (kept.length > 0)
      logger.warn({ fields: kept }, "These fields of the configuration cannot change while the agent runs: restart it");
    void exposedSecrets(config).then((paths) => tellExposed(paths, logger));
    const rate = { perSecond: config.api.qps, burst: config.api.burst };
    this.#self.changeRate(rate);
    this.#nodes.changeRate(rate);
    this.#nodes.change(config.nodes);
    logger.info({ nodes: config.nodes.map(({ name }) => name) }, "The configuration was read again");
  }

  #tellOfFile({ fault, readAt }: ConfigFile): void {
    const isBroughtAbout = fault === undefined && this.#nodes.faults.size === 0;
    this.#metrics.configReloadSuccessful.set(isBroughtAbout ? 1 : 0);
    this.#metrics.nodeConfigError.set(isBroughtAbout ? 0 : 1);
    this.#metrics.configReloadSuccessTime.set(readAt / 1000);
    this.#metrics.configRestartRequired.set(this.#keptFields.length);
  }
}

function tellExposed(paths: readonly string[], logger: Logger): void {
  for (const path of paths)
    logger.warn({ path }, "This file holds a secret, and every user of this host can read it: chmod o-r");
}

/** What all nodes of a process have in common. */
type SharedParts = Pick<
  NodeAgentOptions,
  "self" | "services" | "endpoints" | "evictions" | "clusterId" | "metrics" | "livez" | "readyz" | "guard"
>;

async function connectNode(options: AgentOptions, node: NodeConfig, self: Kube, metrics: Metrics): Promise<NodeMeans> {
  const own = { ...options, nodeName: node.name, logger: options.logger.child({ node: node.name }), metrics };
  const certificate = options.config.identity.mode === "certificate" ? new NodeCertificate(own) : undefined;
  await certificate?.obtain(self, options.signal);
  const kube = connect({ ...options, node, metrics, certificate });
  try {
    return { kube, certificate, provider: await openProvider(options, node, metrics) };
  } catch (thrown) {
    await kube.close();
    throw thrown;
  }
}

async function openProvider(options: AgentOptions, node: NodeConfig, metrics: Metrics): Promise<Provider> {
  return await options.createProvider(node.provider, {
    onInvalidReply: (reason) => metrics.backendInvalidResponses.inc({ reason }),
  });
}

async function createNodeAgent(
  options: AgentOptions,
  node: NodeConfig,
  { kube, certificate, provider }: NodeMeans,
  shared: SharedParts,
): Promise<NodeAgent> {
  const { metrics, guard } = shared;
  const logger = options.logger.child({ node: node.name });
  const { leaderElection } = options.config;
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
  agent = await NodeAgent.open({
    ...options,
    ...shared,
    logger,
    node: { ...node, addresses: node.addresses.length > 0 ? node.addresses : hostAddresses() },
    kube,
    events,
    provider,
    auditCommands: options.config.audit.commands,
    ...releaseOf(leaderElection, node.provider),
    takeOver: leaderElection.takeOver,
    certificate,
  });
  return agent;
}

/** Those of an election are one; others are as long as they have their machines on the same backend. */
function releaseOf(
  { enabled, namespace, name }: AgentConfig["leaderElection"],
  provider: NodeConfig["provider"],
): Pick<NodeAgentOptions, "release" | "isReleaseElected"> {
  if (enabled) return { release: `${namespace}/${name}`, isReleaseElected: true };
  return { release: `backend ${placeOf(provider)}`, isReleaseElected: false };
}

function placeOf(provider: NodeConfig["provider"]): string {
  switch (provider.type) {
    case "http-vm":
      return provider.url;
    case "module":
      return provider.module;
    case "memory":
      return provider.type;
    case "cloud":
      return `${provider.cloud.url} ${provider.cloud.project} ${provider.scope}`;
  }
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
