/** One virtual node: its Node object, its pods, its kubelet API, and the wires between them. */
import { loadCredentialProviders } from "../config/credential-providers.ts";
import { ConfigError, configuredBy } from "../config/load.ts";
import type { NodeConfig } from "../config/schema.ts";
import type { EventRecorder } from "../kube/events.ts";
import type { NodeCertificate } from "../kube/certificates.ts";
import { guardedKube } from "../kube/guarded.ts";
import type { Kube } from "../kube/kube.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { Node, Pod } from "../kube/wire.ts";
import type { KubeletServer } from "../kubelet/options.ts";
import { createKubeletServer } from "../kubelet/server.ts";
import { configMapClientCa, fileClientCa } from "../kubelet/certificates/client-ca.ts";
import type { Reloadable } from "../kubelet/certificates/reloadable.ts";
import {
  fileCertificate,
  selfSignedCertificate,
  signedCertificate,
  type AdvertisedNames,
  type ServingCertificate,
} from "../kubelet/certificates/serving.ts";
import { fixedCapacity, ProviderCapacitySource, type CapacitySource } from "../node/capacity.ts";
import { NodeController } from "../node/node-controller.ts";
import type { BackendHealth } from "../node/settings.ts";
import { nodePlatform } from "../node/platform.ts";
import { AgentProber } from "../pods/agent-prober.ts";
import { PodController } from "../pods/controller.ts";
import { kubeletConfiguration } from "./kubelet-configuration.ts";
import { observeQueue, podMetrics, queueMetrics } from "./pod-metrics.ts";
import { isTerminal } from "../pods/status/facts.ts";
import { NodeAllocation } from "../podspec/admission/allocation.ts";
import { ExecCredentials } from "../podspec/references/credential-provider.ts";
import type { Backend, NodeFacts } from "../podspec/types.ts";
import { machineId, ownerLabels, parseMachineId } from "../podspec/machine-id.ts";
import { PodRenderer } from "../podspec/pod-renderer.ts";
import { withoutSecrets } from "../podspec/references/pod-secrets.ts";
import { ReferenceCache } from "../podspec/references/references.ts";
import type { ServiceCache } from "../podspec/references/services.ts";
import { TokenManager } from "../podspec/references/tokens.ts";
import type { Capability } from "../provider/capabilities.ts";
import { ProviderError } from "../provider/errors.ts";
import { instrument } from "../provider/instrument.ts";
import type { Provider, ProviderInfo } from "../provider/provider.ts";
import { parseResourceList, type ResourceList } from "../resources/pod-resources.ts";
import { parseDuration } from "../resources/duration.ts";
import type { AuditedCommand } from "../telemetry/audit.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { untilAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { inRanges } from "../util/cidr.ts";
import type { Random } from "../util/random.ts";
import { oneOfEachFamily } from "../util/ip-families.ts";
import { hostResolvConf } from "../util/resolv-conf.ts";

interface NodeAgentOptions {
  node: NodeConfig;
  /** The API server as this node. */
  kube: KubeTransport;
  /** The API server as the process itself. */
  self: KubeTransport;
  events: EventRecorder;
  /** Shared by the nodes of this process. */
  services: ServiceCache;
  provider: Provider;
  clusterId: string;
  /** How much of a command the audit says. */
  auditCommands: AuditedCommand;
  version: string;
  metrics: Metrics;
  livez: HealthChecks;
  readyz: HealthChecks;
  clock: Clock;
  random: Random;
  logger: Logger;
  signal: AbortSignal;
  /** Throws when this agent has lost its leadership. */
  guard?: (() => void) | undefined;
  /** The client certificate that `kube` acts by, when it has to be kept fresh. */
  certificate?: NodeCertificate | undefined;
}

/** Requests are served only after this much of the shutdown grace; streams get what is left. */
const CLOSE_GRACE_MS = 5_000;
const READY_POLL_MS = 100;
/** An attempt may take three requests of 10 s, and the next follows within 10 s. */
const LONGEST_LEASE_ATTEMPT_MS = 60_000;
const FLUSH_MS = 2_000;

export class NodeAgent {
  readonly name: string;
  readonly pods: PodController;
  readonly server: KubeletServer;
  readonly #options: NodeAgentOptions;
  /** The API server for all that only the leader does. */
  readonly #acting: Kube;
  readonly #references: ReferenceCache;
  readonly #tokens: TokenManager;
  readonly #provider: Provider;
  readonly #agentProber: AgentProber | undefined;
  #node: NodeController | undefined;
  #providerCapacity: ProviderCapacitySource | undefined;
  #info: ProviderInfo | undefined;
  #capabilities: ReadonlySet<Capability> = new Set();
  /** Parsed once for each copy of the Node: every pod asks for it several times. */
  #allocatableOf: { node: Node | undefined; list: ResourceList } = { node: undefined, list: new Map() };
  #acts = false;
  readonly #informed = Promise.withResolvers<void>();

  /** Binds the kubelet port; registers nothing yet. @throws when the port is taken or a certificate cannot be read */
  static async create(options: NodeAgentOptions): Promise<NodeAgent> {
    const certificate = await servingCertificate(options);
    const { kubelet } = options.node;
    const clientCa =
      kubelet.clientCAFile === undefined
        ? await configMapClientCa({ ...options, kube: options.self })
        : await fileClientCa({ file: kubelet.clientCAFile, clock: options.clock, logger: options.logger });
    const agent = new NodeAgent(options, certificate, clientCa);
    await configuredBy(`nodes[${options.node.name}].kubelet`, () => agent.server.listen());
    agent.#node = agent.#nodeController();
    return agent;
  }

  private constructor(
    options: NodeAgentOptions,
    certificate: Reloadable<ServingCertificate>,
    clientCa: Reloadable<string>,
  ) {
    this.#options = options;
    const { node, events, services, clusterId, clock, random, logger, metrics } = options;
    const kube = (this.#acting = options.guard ? guardedKube(options.kube, options.guard) : options.kube);
    this.name = node.name;
    const uidOf = (id: string) => parseMachineId(clusterId, id) ?? "";
    const instrumented = instrument(options.provider, metrics, clock);
    const redact = (id: string, text: string) => renderer.redact(uidOf(id), text);
    const provider = (this.#provider = withoutSecrets(instrumented, redact));
    const changed = (podUid: string) => this.pods.poke(podUid);
    this.#references = new ReferenceCache({
      kube,
      services,
      clock,
      random,
      logger,
      onChange: changed,
      onDenied: () => metrics.referencesDenied.inc(),
    });
    const tokens = (this.#tokens = new TokenManager({ kube, clock, random, logger, onChange: changed }));
    const allocation = new NodeAllocation();
    const renderer = new PodRenderer({
      kube,
      references: this.#references,
      tokens,
      node: () => this.#registered(),
      facts: () => this.#facts(),
      backend: () => this.#backend(),
      allocation,
      daemonSets: node.daemonSets,
      allowedUnsafeSysctls: node.allowedUnsafeSysctls,
      runtimeHandlers: node.runtimeHandlers,
      imageCredentials: node.imageCredentialProvider && credentials(node.imageCredentialProvider, tokens, options),
    });
    const prober = (this.#agentProber = node.agentProbes ? this.#prober(provider) : undefined);
    this.pods = new PodController({
      kube,
      provider,
      renderer,
      events,
      nodeName: node.name,
      clusterId,
      hostIPs: () => node.addresses,
      acceptsAddress: node.podCIDRs.length > 0 ? inRanges(node.podCIDRs) : undefined,
      concurrency: node.podConcurrency,
      sweep: node.sweep,
      markCheapToDelete: node.podDeletionCost,
      guard: options.guard,
      clock,
      random,
      logger,
      onInfo: (info) => {
        this.#info = info;
        this.#capabilities = new Set(info.capabilities);
        this.#informed.resolve();
      },
      readiness: prober,
      hooks: podMetrics(metrics, clock),
      queueMetrics: queueMetrics(metrics, node.name),
    });
    this.pods.store.onChange((change) => {
      if (change.type === "delete") allocation.remove(change.object.metadata!.uid!);
      else allocation.put(change.object);
      // A pod that is over changes no more: its objects need not be watched nor its tokens replaced.
      if (change.type === "delete") renderer.release(change.object.metadata!.uid!);
      else if (isTerminal(change.object)) renderer.rest(change.object.metadata!.uid!);
    });
    this.server = createKubeletServer({
      host: node.kubelet.address,
      port: node.kubelet.port,
      nodeName: node.name,
      anonymousMetrics: node.kubelet.anonymousMetrics,
      auditCommands: options.auditCommands,
      provider,
      pods: {
        get: (namespace, name) => this.#nodePod(this.pods.store.getByName(namespace, name)),
        list: () => this.pods.store.list().map((pod) => this.#nodePod(pod)!),
      },
      // A standby serves it, too.
      kube: options.kube,
      clock,
      logger,
      metrics,
      certificate,
      clientCa,
      machineLabels: ownerLabels(clusterId, node.name),
      capacity: () => this.#machineCapacity(),
      livez: options.livez,
      ownProbes: () => prober?.tallies() ?? [],
      configuration: () =>
        kubeletConfiguration(node, {
          port: this.server.port,
          maxPods: this.#allocatable().get("pods")?.toNumber(),
        }),
    });
    // The attempts have limits of their own, so this depends on the process alone.
    options.livez.add(`${node.name}-lease`, () => {
      const attemptedAt = this.#node?.lease.attemptedAt;
      const silentMs = attemptedAt === undefined ? 0 : clock.monotonic() - attemptedAt;
      if (!this.#acts || silentMs < LONGEST_LEASE_ATTEMPT_MS) return undefined;
      return `nothing has tried to renew the lease for ${Math.round(silentMs / 1000)} s`;
    });
    options.readyz.add(`${node.name}-pods-synced`, () =>
      this.pods.store.synced ? undefined : "the list of pods is not complete yet",
    );
    // A standby is ready to take over; only who acts answers for the registration.
    options.readyz.add(`${node.name}-registered`, () =>
      this.#acts && this.#registered() === undefined ? "the node is not registered yet" : undefined,
    );
    metrics.onScrape(() => metrics.machinesMissing.set({ node: node.name }, this.pods.losses.missing));
    metrics.onScrape(() => observeQueue(metrics, node.name, this.pods.queue));
  }

  /** Follows pods, machines and references, and serves the kubelet API: all that a standby does. */
  async observe(signal: AbortSignal): Promise<void> {
    const { certificate, kube } = this.#options;
    await Promise.all([this.server.run(signal), this.pods.observe(signal), certificate?.run(kube, signal)]);
  }

  /**
   * Registers the node, keeps its lease and status, and works on its pods. Needs `observe` beside it; may be called
   * once.
   *
   * @throws ConfigError when another kubelet or cluster id answers for the Node of this name
   */
  async act(signal: AbortSignal): Promise<void> {
    const { events } = this.#options;
    this.#acts = true;
    const sending = new AbortController();
    const sender = events.run(sending.signal);
    const refused = new AbortController();
    const linked = AbortSignal.any([signal, refused.signal]);
    await Promise.all([
      this.#node!.run(linked).catch((thrown: unknown) => refused.abort(thrown)),
      this.#runCapacity(linked),
      // The pods of a Node that is not ours belong to its own kubelet.
      this.#node!.claimed(linked).then(() => this.pods.act(linked)),
    ]);
    // The last events say why the node failed, so they get a short time to be sent.
    await events.flush(AbortSignal.timeout(FLUSH_MS)).catch(() => undefined);
    sending.abort(signal.reason);
    await sender;
    refused.signal.throwIfAborted();
  }

  /** Resolves when the API server's copy of the Node says Ready, or the signal aborts. */
  async ready(signal: AbortSignal): Promise<void> {
    const isReady = () =>
      this.#registered()?.status?.conditions?.some((c) => c.type === "Ready" && c.status === "True") ?? false;
    while (!signal.aborted && !isReady()) await this.#options.clock.sleep(READY_POLL_MS, signal).catch(() => undefined);
  }

  async close(): Promise<void> {
    this.#references.close();
    this.#tokens.close();
    this.#agentProber?.close();
    await this.server.close(CLOSE_GRACE_MS);
    // Even if the provider fails to close, connections must not keep the process alive.
    await this.#options.provider
      .close()
      .catch((thrown: unknown) => this.#options.logger.warn({ err: thrown }, "The provider could not be closed"));
    await this.#options.kube.close();
  }

  /** Made when the server listens, because a Node says which port. */
  #nodeController(): NodeController {
    const { node, events, clusterId, clock, random, logger, metrics, version } = this.#options;
    const info = () => this.#info;
    return new NodeController({
      kube: this.#acting,
      clock,
      random,
      logger,
      events,
      settings: {
        name: node.name,
        clusterId,
        version,
        addresses: node.addresses,
        hostname: node.hostname,
        labels: node.labels,
        annotations: node.annotations,
        taints: node.taints,
        kubeletPort: this.server.port,
        get runtime() {
          return { name: info()?.name ?? node.provider.type, version: info()?.version };
        },
        get capabilities() {
          return info()?.capabilities;
        },
        get platform() {
          return nodePlatform({ reported: info(), configured: node, hostArchitecture: process.arch });
        },
        backendOutageGraceMs: parseDuration(node.backendOutageGrace),
      },
      capacity: this.#capacity(),
      backend: this.#backendHealth(),
      metrics: {
        onRegistered: () => metrics.nodeRegistrations.inc(),
        onKubeletVersion: (version) => metrics.kubernetesBuildInfo.set({ git_version: version }, 1),
        onLeaseRenewed: (seconds) => {
          metrics.leaseRenewDuration.observe(seconds);
          metrics.leaseLastRenew.set({ node: node.name }, clock.now() / 1000);
        },
      },
    });
  }

  #backendHealth(): BackendHealth {
    const { observer, losses } = this.pods;
    return {
      get seen() {
        return observer.seen;
      },
      get failingSince() {
        return observer.failingSince;
      },
      get lastError() {
        return observer.lastError;
      },
      get missing() {
        return losses.missing;
      },
    };
  }

  /** The file's capacity; without one the backend's own, where it can tell; else a default. */
  #capacity(): CapacitySource {
    const { node, clock, random, logger } = this.#options;
    if (node.capacity !== undefined) return fixedCapacity(node.capacity);
    const fallback = fixedCapacity();
    const reported = new ProviderCapacitySource({
      provider: this.#provider,
      clock,
      random,
      logger,
      onChange: () => this.#node?.poke(),
    });
    this.#providerCapacity = reported;
    return {
      current: () =>
        this.#info === undefined
          ? undefined
          : this.#info.capabilities.includes("capacity")
            ? reported.current()
            : fallback.current(),
    };
  }

  async #runCapacity(signal: AbortSignal): Promise<void> {
    await untilAborted(signal, this.#informed.promise);
    this.#node?.poke();
    if (!signal.aborted && this.#info!.capabilities.includes("capacity")) await this.#providerCapacity?.run(signal);
  }

  /** This node as the API server has it. */
  #registered(): Node | undefined {
    return this.#node?.store.getByName("", this.name);
  }

  #allocatable(): ResourceList {
    const node = this.#registered();
    if (this.#allocatableOf.node !== node) {
      this.#allocatableOf = { node, list: parseResourceList(node?.status?.allocatable) };
    }
    return this.#allocatableOf.list;
  }

  #nodePod(pod: Pod | undefined) {
    return pod === undefined
      ? undefined
      : { pod: this.pods.latest(pod), machineId: machineId(this.#options.clusterId, pod.metadata!.uid!) };
  }

  #facts(): NodeFacts {
    const { node, clusterId } = this.#options;
    const { crashLoopBackoff } = node;
    return {
      clusterId,
      nodeName: node.name,
      hostIPs: oneOfEachFamily(node.addresses),
      allocatable: this.#allocatable(),
      dns: {
        ...node.dns,
        // Read for each pod, as a kubelet does, but only where a pod's DNS is made.
        get host() {
          return hostResolvConf();
        },
      },
      allowHostPath: node.allowHostPath,
      instanceTypes: node.instanceTypes,
      backoff: crashLoopBackoff && {
        initial_ms: parseDuration(crashLoopBackoff.initial),
        max_ms: parseDuration(crashLoopBackoff.max),
      },
    };
  }

  #backend(): Backend {
    if (this.#info === undefined) throw new ProviderError("unavailable", "the backend has not answered yet");
    return { name: this.#info.name, capabilities: this.#capabilities, agentProbes: this.#runsProbes() };
  }

  /** The agent probes only where the backend does not. */
  #runsProbes(): boolean {
    return this.#options.node.agentProbes && !this.#capabilities.has("probes");
  }

  #prober(provider: Provider): AgentProber {
    const { clock, logger } = this.#options;
    return new AgentProber({
      provider,
      isActive: () => this.#runsProbes(),
      onChange: (podUid) => this.pods.poke(podUid),
      event: (pod, event) => this.pods.event(pod, event),
      clock,
      logger,
    });
  }

  #machineCapacity() {
    const allocatable = this.#allocatable();
    return {
      cpuMillis: allocatable.get("cpu")?.toMillis() ?? 0,
      memoryBytes: allocatable.get("memory")?.toNumber() ?? 0,
    };
  }
}

function credentials(
  { config, binDir }: NonNullable<NodeConfig["imageCredentialProvider"]>,
  tokens: TokenManager,
  { clock, logger }: NodeAgentOptions,
): ExecCredentials {
  return new ExecCredentials({
    ...loadCredentialProviders(config),
    binDir,
    tokens: { get: (pod, wishes, signal) => tokens.issue(pod, wishes, signal) },
    clock,
    logger,
  });
}

async function servingCertificate(options: NodeAgentOptions): Promise<Reloadable<ServingCertificate>> {
  const { node, kube, clock, random, logger, metrics } = options;
  const { certFile, keyFile, certificate = certFile === undefined ? "csr" : "files" } = node.kubelet;
  const names: AdvertisedNames = () => ({
    ipAddresses: node.addresses,
    dnsNames: node.hostname === undefined ? [] : [node.hostname],
  });
  switch (certificate) {
    case "files":
      if (certFile === undefined || keyFile === undefined) {
        throw new ConfigError(`nodes[${node.name}].kubelet: certificate: files needs certFile and keyFile`);
      }
      return fileCertificate({ certFile, keyFile, clock, logger, metrics });
    case "self-signed":
      return selfSignedCertificate({ nodeName: node.name, names, clock, logger, metrics });
    case "csr":
      return signedCertificate({ nodeName: node.name, names, kube, clock, random, logger, metrics });
  }
}
