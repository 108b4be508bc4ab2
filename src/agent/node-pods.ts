/** A node's pods: the provider as they see it, what they refer to, how they are rendered, and their controller. */
import { loadCredentialProviders } from "../config/credential-providers.ts";
import type { NodeConfig } from "../config/schema.ts";
import { isTerminal, uidOf } from "../kube/pod.ts";
import type { Kube } from "../kube/kube.ts";
import { AgentProber } from "../pods/agent-prober.ts";
import { GrowingClaims } from "../pods/growing-claims.ts";
import { GrownClaims } from "../pods/grown-claims.ts";
import { VolumesInUse } from "../node/volumes-in-use.ts";
import { PodController } from "../pods/controller.ts";
import { NodeAllocation } from "../podspec/admission/allocation.ts";
import { parseMachineId } from "../podspec/machine-id.ts";
import { PodRenderer } from "../podspec/pod-renderer.ts";
import { ExecCredentials } from "../podspec/references/credential-provider.ts";
import { mayUse } from "../podspec/render/context.ts";
import { withoutSecrets } from "../podspec/references/pod-secrets.ts";
import { PodClaims } from "../podspec/references/claims.ts";
import { PodCsiVolumes } from "../podspec/references/csi-volumes.ts";
import { PodDisks } from "../podspec/references/disks.ts";
import { PodCertificates } from "../podspec/references/pod-certificates.ts";
import { ReferenceCache } from "../podspec/references/references.ts";
import { TokenManager } from "../podspec/references/tokens.ts";
import { TrustBundles } from "../podspec/references/trust-bundles.ts";
import type { NodeFacts } from "../podspec/types.ts";
import { csiNodeId } from "../provider/csi-names.ts";
import { ownerLabels } from "../provider/owner.ts";
import { instrument } from "../provider/instrument.ts";
import type { Provider } from "../provider/provider.ts";
import { parseDuration } from "../resources/duration.ts";
import { inRanges } from "../util/cidr.ts";
import { oneOfEachFamily } from "../util/ip-families.ts";
import { hostResolvConf } from "../util/resolv-conf.ts";
import type { BackendInfo } from "./backend-info.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import type { OwnNode } from "./own-node.ts";
import { podMetrics, queueMetrics } from "./pod-metrics.ts";

export interface NodePods {
  controller: PodController;
  /** The node's, counted, and without secrets of pods in what it says. */
  provider: Provider;
  /** Runs probes where the backend does not; undefined where the agent may not. */
  prober: AgentProber | undefined;
  /** Their persistent volumes. */
  disks: PodDisks;
  /** What the Node tells of them. */
  volumesInUse: VolumesInUse;
  /** Tells of those that have grown. */
  grownClaims: GrownClaims;
  growingClaims: GrowingClaims;
  /** Ends the watches, renewals and probes that outlive single pods. */
  close(): void;
}

/** @param acting the API server for what only the leader does */
export function createPods(options: NodeAgentOptions, acting: Kube, backend: BackendInfo, own: OwnNode): NodePods {
  const { node, events, clusterId, clock, random, logger, metrics } = options;
  const changed = (podUid: string) => controller.requeue(podUid);
  const event: NodePods["controller"]["event"] = (pod, podEvent) => controller.event(pod, podEvent);
  const sources = createSources(options, acting, own, { changed, event });
  const allocation = new NodeAllocation();
  const isLive = (podUid: string) => {
    const pod = controller.store.get(podUid);
    return pod !== undefined && !isTerminal(pod);
  };
  const { volumesInUse, disks } = createDisks(options, acting, own, {
    ...{ changed, isLive, tokens: sources.tokens },
    offers: (capability, pod) => mayUse({ backend: backend.forPods(), pod }, capability),
  });
  const renderer = new PodRenderer({
    kube: acting,
    ...sources,
    disks,
    node: () => own.current,
    onNode: (...seen) => own.see(...seen),
    facts: () => nodeFacts(options, own),
    backend: () => backend.forPods(),
    allocation,
    daemonSets: node.daemonSets,
    allowedUnsafeSysctls: node.allowedUnsafeSysctls,
    clusterResources: node.clusterResources,
    runtimeHandlers: node.runtimeHandlers,
    imageCredentials:
      node.imageCredentialProvider && credentials(node.imageCredentialProvider, sources.tokens, options),
  });
  const provider = withoutSecrets(instrument(options.provider, metrics, clock, options.tracing), (id, text) =>
    renderer.redact(parseMachineId(clusterId, id) ?? "", text),
  );
  const grownClaims = new GrownClaims({ kube: acting, clock, random, logger });
  const growingClaims = new GrowingClaims({
    ...{ kube: acting, provider, nodeName: node.name, event, clock, random, logger },
    offers: (capability, pod) => mayUse({ backend: backend.forPods(), pod }, capability),
  });
  const prober = node.agentProbes
    ? new AgentProber({
        provider,
        isActive: () => backend.leavesProbes,
        onChange: changed,
        event,
        clock,
        logger,
      })
    : undefined;
  const controller = new PodController({
    kube: acting,
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
    evictions: options.evictions,
    clock,
    random,
    logger,
    onInfo: (info) => backend.tell(info),
    readiness: prober,
    hooks: {
      ...podMetrics(metrics, clock),
      onMachine: (pod, machine) => [grownClaims, growingClaims].forEach((each) => each.look(pod, machine)),
    },
    queueMetrics: queueMetrics(metrics, node.name),
    tracing: options.tracing,
  });
  controller.store.onChange((change) => {
    if (change.type === "delete") allocation.remove(uidOf(change.object));
    else allocation.put(change.object);
    // A pod that is over changes no more: its objects need not be watched nor its tokens replaced.
    if (change.type === "delete" || isTerminal(change.object))
      for (const claims of [grownClaims, growingClaims]) claims.release(uidOf(change.object));
    if (change.type === "delete") renderer.release(uidOf(change.object));
    else if (isTerminal(change.object)) renderer.rest(uidOf(change.object));
  });
  return {
    controller,
    provider,
    prober,
    disks,
    volumesInUse,
    grownClaims,
    growingClaims,
    close: () => {
      for (const source of Object.values(sources)) source.close();
      disks.close();
      prober?.close();
      controller.close();
    },
  };
}

/** What machines are rendered from besides their pods and persistent volumes. */
function createSources(
  options: NodeAgentOptions,
  acting: Kube,
  own: OwnNode,
  hooks: { changed: (podUid: string) => void; event: NodePods["controller"]["event"] },
) {
  const { node, services, clock, random, logger, metrics } = options;
  const parts = { kube: acting, clock, random, logger, onChange: hooks.changed };
  const onDenied = () => metrics.referencesDenied.inc();
  const onFailure = () => metrics.tokenFailures.inc();
  const tokens = new TokenManager({ ...parts, onFailure });
  return {
    references: new ReferenceCache({ ...parts, services, onDenied }),
    tokens,
    trustBundles: new TrustBundles({ ...parts, onDenied }),
    certificates: new PodCertificates({ ...parts, nodeName: node.name, node: () => own.current, event: hooks.event }),
    claims: new PodClaims(parts),
    csi: new PodCsiVolumes({ ...parts, tokens }),
  };
}

/** Persistent volumes: what pods have of them, and what the Node tells of that. */
function createDisks(
  { node, provider, clusterId, clock, random, logger, metrics }: NodeAgentOptions,
  acting: Kube,
  own: OwnNode,
  {
    changed,
    isLive,
    tokens,
    offers,
  }: {
    changed: (podUid: string) => void;
    isLive: (podUid: string) => boolean;
    tokens: TokenManager;
    offers: NonNullable<ConstructorParameters<typeof PodDisks>[0]["offers"]>;
  },
): Pick<NodePods, "disks" | "volumesInUse"> {
  const reservation = csiNodeId(clusterId, node.name);
  const instrumented = instrument(provider, metrics, clock);
  const labels = ownerLabels(clusterId, node.name);
  const volumesInUse = new VolumesInUse({
    provider: instrumented,
    machines: (signal) => instrumented.getPods({ labels, signal }),
    reservation,
    podOf: (machine) => parseMachineId(clusterId, machine),
    clock,
    random,
    logger,
    onChange: () => own.refresh(),
    onTold: changed,
  });
  const disks = new PodDisks({
    kube: acting,
    nodeName: node.name,
    reservation,
    use: volumesInUse,
    tokens,
    offers,
    clock,
    random,
    isLive,
    onChange: changed,
  });
  return { volumesInUse, disks };
}

function nodeFacts({ node, clusterId, clock }: NodeAgentOptions, own: OwnNode): NodeFacts {
  const { crashLoopBackoff } = node;
  const hostDns = hostResolvConf(clock);
  return {
    clusterId,
    nodeName: node.name,
    hostIPs: oneOfEachFamily(node.addresses),
    allocatable: own.allocatable,
    othersResources: own.othersResources,
    dns: {
      ...node.dns,
      // A kubelet reads it for each pod.
      get host() {
        return hostDns();
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
