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
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { AgentConfig, NodeConfig, ProviderConfig } from "../config/schema.ts";
import { exposedSecrets } from "../config/exposed-files.ts";
import { ConfigError, configuredBy } from "../config/load.ts";
import { isTerminal } from "../kube/pod.ts";
import { NodeCertificate } from "../kube/certificates.ts";
import { loadKubeConfig } from "../kube/credentials.ts";
import { EventRecorder } from "../kube/events.ts";
import { isForbidden } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { guardedKube } from "../kube/guarded.ts";
import { LeaderElector, NotLeaderError } from "../kube/leader-election.ts";
import { resourcePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import { parseDuration } from "../resources/duration.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { NodeAgent } from "./node-agent.ts";
import { observeWatches } from "./pod-metrics.ts";
import { ServiceCache } from "../podspec/references/services.ts";
import type { ContainerState } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import { HealthChecks, startHealthServer, type HealthCheck, type HealthServer } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import { createMetrics, type Metrics } from "../telemetry/metrics.ts";

const MAX_LOOP_STALL_MS = 5_000;
/** With more pods at once that something is done for, statuses come before events. */
const BUSY_PODS = 4;

/** What a provider reports beside its replies; each part is optional. */
export interface ProviderEvents {
  /** A reply was refused because it broke the contract. */
  onInvalidReply(reason: string): void;
}

/** What happened to the process itself, counted since it started. */
interface Vitals {
  readonly droppedLogLines: number;
  readonly unhandledErrors: Readonly<Record<string, number>>;
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
  readonly #self: KubeTransport;
  readonly #elector: LeaderElector | undefined;
  readonly #logger: Logger;

  private constructor(parts: {
    nodes: readonly NodeAgent[];
    services: ServiceCache;
    health: HealthServer;
    self: KubeTransport;
    elector: LeaderElector | undefined;
    logger: Logger;
  }) {
    this.nodes = parts.nodes;
    this.#services = parts.services;
    this.#health = parts.health;
    this.#self = parts.self;
    this.#elector = parts.elector;
    this.#logger = parts.logger;
  }

  /** Port of /livez, /readyz and /metrics. */
  get healthPort(): number {
    return this.#health.port;
  }

  /** Builds everything and binds the ports; nothing is registered before `run`. @throws ConfigError, KubeApiError */
  static async create(options: AgentOptions): Promise<Agent> {
    const { config, clock, logger, version } = options;
    for (const path of await exposedSecrets(config))
      logger.warn({ path }, "This file holds a secret, and every user of this host can read it: chmod o-r");
    const livez = new HealthChecks("livez");
    const readyz = new HealthChecks("readyz");
    const metrics = createMetrics({ nodeNames: config.nodes.map((node) => node.name), version });
    const nodes: NodeAgent[] = [];
    let services: ServiceCache | undefined;
    metrics.onScrape((asked) => {
      countPods(asked === undefined ? nodes : nodes.filter(({ name }) => name === asked), metrics);
      const reflectors = nodes.map(({ pods }) => pods.reflector);
      observeWatches(metrics, clock, reflectors);
      if (options.vitals) countVitals(options.vitals(), metrics);
    });
    // What belongs to no node is asked for as the process itself: a node may read neither.
    const self = connect({ config, clock, logger, version, metrics });
    livez.add("event-loop", eventLoopCheck());
    const elector = config.leaderElection.enabled ? createElector(options, self, metrics) : undefined;
    // From the first scrape on, metrics show whether this process is the leader or a standby.
    if (elector !== undefined) metrics.leaderElectionMaster.set({ name: config.leaderElection.name }, 0);
    let isBuilt = false;
    readyz.add("started", () => (isBuilt ? undefined : "still starting"));
    // First, because a node's certificate may have to wait for an administrator's approval: until then the process is
    // alive, not ready.
    const { address: host, port, probePort } = config.health;
    const health = await configuredBy("health", () =>
      startHealthServer({ host, port, probePort, livez, readyz, metrics, logger }),
    );
    try {
      const clusterId = config.clusterId ?? (await readClusterId(self, options.signal));
      const certificates = await obtainCertificates(options, self, metrics);
      for (const node of config.nodes) {
        const nodeLogger = logger.child({ node: node.name });
        const certificate = certificates.get(node.name);
        const kube = connect({ config, node, clock, logger, version, metrics, certificate });
        let agent: NodeAgent | undefined;
        const events = new EventRecorder({
          kube: elector === undefined ? kube : guardedKube(kube, elector.guard),
          clock,
          logger: nodeLogger,
          random: options.random,
          component: "kubelet",
          host: node.name,
          isBusy: () => agent !== undefined && agent.pods.queue.depth + agent.pods.queue.working > BUSY_PODS,
          onDropped: (reason) => metrics.eventsDropped.inc({ reason }),
        });
        services ??= new ServiceCache({ kube, clock, random: options.random, logger });
        const provider = await options.createProvider(node.provider, {
          onInvalidReply: (reason) => metrics.backendInvalidResponses.inc({ reason }),
        });
        agent = await NodeAgent.create({
          ...options,
          logger: nodeLogger,
          node: { ...node, addresses: node.addresses.length > 0 ? node.addresses : hostAddresses() },
          kube,
          self,
          events,
          services,
          provider,
          clusterId,
          auditCommands: config.audit.commands,
          metrics,
          livez,
          readyz,
          certificate,
          guard: elector?.guard,
        });
        nodes.push(agent);
      }
      isBuilt = true;
      // The configuration has at least one node.
      return new Agent({ nodes, services: services!, health, self, elector, logger });
    } catch (thrown) {
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
    await this.#health.close();
    await this.#self.close();
    this.#logger.info({}, "Agent stopped; machines run on");
    if (failed.signal.aborted && !signal.aborted) throw failed.signal.reason;
  }
}

/** The kubelet's gauges carry no node label, so they count the pods of all these nodes. */
function countPods(nodes: readonly NodeAgent[], metrics: Metrics): void {
  const pods = nodes.flatMap((node) => node.pods.store.list());
  metrics.desiredPods.set(pods.length);
  metrics.activePods.set(pods.filter((pod) => !isTerminal(pod)).length);
  metrics.runningPods.set(pods.filter((pod) => pod.status?.phase === "Running").length);
  metrics.workingPods.set(nodes.reduce((sum, node) => sum + node.pods.working, 0));
  const machines = nodes.flatMap((node) => [...node.pods.machines.values()]);
  metrics.stuckPods.set(nodes.reduce((sum, node) => sum + node.pods.stuck, 0));
  metrics.machines.reset();
  for (const { state } of machines) metrics.machines.inc({ state });
  for (const _ of nodes.flatMap(({ pods }) => [...pods.machines.unknown()])) metrics.machines.inc({ state: "unknown" });
  metrics.runningContainers.reset();
  for (const container of machines.flatMap((machine) => machine.containers)) {
    metrics.runningContainers.inc({ container_state: containerState(container) });
  }
  for (const { name, pods } of nodes)
    metrics.backendUp.set({ node: name }, pods.observer.failingSince === undefined ? 1 : 0);
}

/** The nodes' own certificates, requested together, so that the person who approves them sees them all at once. */
async function obtainCertificates(
  options: AgentOptions,
  self: Kube,
  metrics: Metrics,
): Promise<ReadonlyMap<string, NodeCertificate>> {
  const { config, logger, signal } = options;
  if (config.identity.mode !== "certificate") return new Map();
  const obtained = config.nodes.map(async ({ name }) => {
    const certificate = new NodeCertificate({
      ...options,
      nodeName: name,
      logger: logger.child({ node: name }),
      metrics,
    });
    await certificate.obtain(self, signal);
    return [name, certificate] as const;
  });
  return new Map(await Promise.all(obtained));
}

function countVitals({ droppedLogLines, unhandledErrors }: Vitals, metrics: Metrics): void {
  metrics.logLinesDropped.reset();
  metrics.logLinesDropped.inc(droppedLogLines);
  metrics.unhandledErrors.reset();
  for (const [kind, count] of Object.entries(unhandledErrors)) metrics.unhandledErrors.inc({ kind }, count);
}

/** kubelet's words: what waits for its first start was `created`, what waits for its next has `exited`. */
function containerState({ state, id }: ContainerState): string {
  if (state === "running") return "running";
  return state === "waiting" && id === undefined ? "created" : "exited";
}

/**
 * A process that cannot turn its loop for seconds is stuck; one turn of five is not. What measures it is a timer: a
 * standstill of this very turn is known when the timers of the next have run.
 */
function eventLoopCheck(): HealthCheck {
  const delay = monitorEventLoopDelay({ resolution: 100 });
  delay.enable();
  return async () => {
    await nextTurn();
    await nextTurn();
    const worstMs = delay.max / 1e6;
    delay.reset();
    return worstMs > MAX_LOOP_STALL_MS ? `the event loop stood still for ${Math.round(worstMs)} ms` : undefined;
  };
}

function createElector(
  { config, clock, random, logger }: AgentOptions,
  kube: KubeTransport,
  metrics: Metrics,
): LeaderElector {
  const { namespace, name, leaseDuration, renewDeadline, retryPeriod } = config.leaderElection;
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
