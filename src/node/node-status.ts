/**
 * The Node object as pure functions of what is known: what a new Node looks like, what its status should be, and the
 * patch that leads from the one read last to that. The texts are the kubelet's, because tools match them.
 */
import { createHash } from "node:crypto";
import type { Node } from "../kube/wire.ts";
import { ALL_CAPABILITIES } from "../provider/capabilities.ts";
import { ZONE_KEY } from "../provider/csi-names.ts";
import { Quantity } from "../resources/quantity.ts";
import { rfc3339 } from "../util/clock.ts";
import type { NodeCapacity } from "./capacity.ts";
import { TAINTS_ANNOTATION, taintsRecord, wantedTaints } from "./node-spec.ts";
import type { BackendReport, NodeDescription, NodeSettings, Platform } from "./settings.ts";

/** Names the extended resources that we wrote into the status, so that we can tell them from other people's. */
const OWNED_RESOURCES_ANNOTATION = "vmlet.dev/extended-resources";
/** Whose agents answer for the Node. */
export const RELEASE_ANNOTATION = "vmlet.dev/release";
/** Names of the labels and annotations that the configuration gave the Node; what it gives no more is removed. */
const OWNED_METADATA_ANNOTATIONS = { labels: "vmlet.dev/labels", annotations: "vmlet.dev/annotations" } as const;

/** The kubelet's features that a control plane asks for by name (1.37), sorted as its validation wants them. */
function declaredFeatures({ capabilities }: NodeDescription, existing: Node | undefined): string[] {
  // An agent that has just been started does not know yet; its backend is the same as before.
  const before = existing?.status?.declaredFeatures;
  if (capabilities === undefined && before !== undefined) return [...before];
  return [
    // The API server passes WebSockets of exec, attach and port-forward through instead of translating them to SPDY.
    "ExtendWebSocketsToKubelet",
    // The API server refuses changes of resources that the node does not name here.
    ...(capabilities?.includes("resize_machine") ? ["InPlacePodLevelResourcesVerticalScaling"] : []),
    ...(capabilities?.includes("resize") ? ["InPlacePodVerticalScalingInitContainers"] : []),
    // The scheduler binds pods with a rule of that action only to nodes that say so.
    ...(capabilities?.includes("restart_rules") ? ["RestartAllContainersOnContainerExits"] : []),
  ];
}

/** What the scheduler and clients ask of a node's runtime as a whole (KEP-3619). */
function features({ capabilities }: NodeDescription, existing: Node | undefined) {
  // An agent that has just been started does not know yet.
  if (capabilities === undefined) return existing?.status?.features;
  return { supplementalGroupsPolicy: capabilities.includes("supplemental_groups_policy") };
}

/** As a kubelet: what its runtime has, by name. Undefined: the runtime gives no choice. */
function runtimeHandlers({ capabilities, runtimeHandlers }: NodeDescription, existing: Node | undefined) {
  const before = existing?.status?.runtimeHandlers;
  // An agent that has just been started does not know yet.
  if (capabilities === undefined) return before;
  // Those that were told once must be seen to be gone.
  return (runtimeHandlers ?? (before && []))?.map(({ name, user_namespaces, recursive_read_only_mounts }) => ({
    name,
    features: {
      recursiveReadOnlyMounts: recursive_read_only_mounts === true,
      userNamespaces: user_namespaces === true,
    },
  }));
}

/** Of Kubernetes 1.x: the newest whose kubelet the node behaves as. */
const NEWEST_MINOR = 37;

/**
 * The version that the node reports for its kubelet: of the API server's minor version, because a kubelet must not be
 * newer than its API server, and clusters have alerts for older ones.
 *
 * @param gitVersion as the API server has it in /version; undefined when it does not tell
 * @param version vmlet's own
 */
export function kubeletVersion(gitVersion: string | undefined, version: string): string {
  // Build metadata, not a pre-release: that would sort below the version it follows.
  return `v1.${Math.min(minorOf(gitVersion), NEWEST_MINOR)}.0+vmlet.${version}`;
}

function minorOf(version: string | undefined): number {
  const [, minor = NEWEST_MINOR] = /^v1\.(\d+)/.exec(version ?? "") ?? [];
  return Number(minor);
}

function runtimeVersion({ name, version }: NodeDescription["runtime"], existing: Node | undefined): string {
  const before = existing?.status?.nodeInfo?.containerRuntimeVersion;
  return version === undefined ? (before ?? `${name}://unknown`) : `${name}://${version}`;
}

type Status = NonNullable<Node["status"]>;
type Condition = NonNullable<Status["conditions"]>[number];
type ResourceMap = Readonly<Record<string, string>>;

/** What the status is computed from, besides the settings and the Node as it was read last. */
export interface NodeObservation {
  /** See `kubeletVersion`. */
  kubeletVersion: string;
  /** Undefined while it is unknown. */
  capacity: NodeCapacity | undefined;
  /** How the backend has been; `graceOver` once it has not answered for longer than the grace. */
  backend:
    | { state: "answers" | "not_seen" }
    | { state: "doubtful"; missing: number }
    | { state: "failing"; error: string; graceOver: boolean };
  /** Extended resources that this process has reported and that no longer exist: they become zero. */
  retired: readonly string[];
  /** What machines have, or are to have; undefined: others' to tell. */
  volumesInUse?: readonly string[] | undefined;
}

/** A UUID that depends on nothing but its input: a node's ids must not change when the agent restarts. */
function stableUuid(...parts: readonly string[]): string {
  const hex = createHash("sha256").update(parts.join("\0")).digest("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), `8${hex.slice(13, 16)}`, `a${hex.slice(17, 20)}`, hex.slice(20, 32)].join(
    "-",
  );
}

export function providerId({ clusterId, name }: Pick<NodeSettings, "name" | "clusterId">): string {
  return `vmlet://${clusterId}/${name}`;
}

function systemUuid({ clusterId, name }: Pick<NodeSettings, "name" | "clusterId">): string {
  return stableUuid(clusterId, name);
}

/**
 * The sign that another kubelet answers for this Node, or an agent of another cluster id, whose pods would all look as
 * if their machines were lost. Undefined when the Node is ours, or has no owner yet: one that an administrator has made
 * in advance has neither a providerID nor a kubelet that ever reported.
 */
export function foreignIdentity(node: Node, settings: Pick<NodeSettings, "name" | "clusterId">): string | undefined {
  const { providerID } = node.spec ?? {};
  const own = providerId(settings);
  if (providerID) return providerID === own ? undefined : `its providerID is ${providerID}, not ${own}`;
  const { kubeletVersion, systemUUID } = node.status?.nodeInfo ?? {};
  if (!kubeletVersion || systemUUID === systemUuid(settings)) return undefined;
  return `it has no providerID, and a kubelet ${kubeletVersion} reports for it`;
}

/** Another release that has registered or taken over the Node; whether its agents live, the lease tells. */
export function otherRelease(node: Node, { release }: Pick<NodeSettings, "release">): string | undefined {
  const recorded = node.metadata?.annotations?.[RELEASE_ANNOTATION];
  return recorded === release ? undefined : recorded;
}

/** What to do about a Node that another kubelet or cluster id answers for. */
export function foreignNodeCure({ name }: Pick<NodeSettings, "name">): string {
  return (
    "give this node another name; a Node that this agent registered under another clusterId needs that clusterId back; " +
    `one that nobody runs any more can be removed: kubectl delete node ${name}`
  );
}

/**
 * Prefix of the labels that name what the backend can do, by which a pod's nodeSelector keeps it away from a node that
 * would refuse it: `capability.vmlet.dev/volumes.empty_dir: "true"`. NodeRestriction leaves prefixes outside
 * kubernetes.io and k8s.io to the node.
 * @internal
 */
export const CAPABILITY_LABEL_PREFIX = "capability.vmlet.dev/";

function capabilityLabels({ capabilities }: NodeDescription, existing: Node | undefined): Record<string, string> {
  if (capabilities !== undefined) {
    const known = ALL_CAPABILITIES.filter((capability) => capabilities.includes(capability));
    return Object.fromEntries(known.map((capability) => [CAPABILITY_LABEL_PREFIX + capability, "true"]));
  }
  // An agent that has just been started does not know yet; its backend is the same as before.
  const before = Object.entries(existing?.metadata?.labels ?? {});
  return Object.fromEntries(before.filter(([key]) => key.startsWith(CAPABILITY_LABEL_PREFIX)));
}

/** A label that the configuration gives wins, for the labels' twins and nodeInfo too: they never disagree. */
function platformOf({ platform, labels = {} }: NodeDescription, existing: Node | undefined): Platform {
  const known = platform ?? { os: "linux", architecture: "amd64" };
  const before = known.assumed ? existing?.status?.nodeInfo : undefined;
  return {
    os: labels["kubernetes.io/os"] ?? (before?.operatingSystem || known.os),
    architecture: labels["kubernetes.io/arch"] ?? (before?.architecture || known.architecture),
  };
}

/**
 * Labels that the node keeps true; labels that others added are left alone, except those of capabilities, which only
 * this agent sets.
 *
 * @param existing the Node as it was read last; it says what a backend that has not answered yet said before
 */
export function nodeLabels(settings: NodeDescription, existing: Node | undefined): Record<string, string> {
  const { name, hostname, labels = {} } = settings;
  const { os, architecture } = platformOf(settings, existing);
  return {
    "kubernetes.io/hostname": hostname ?? name,
    "kubernetes.io/os": os,
    "kubernetes.io/arch": architecture,
    "beta.kubernetes.io/os": os,
    "beta.kubernetes.io/arch": architecture,
    // By this DaemonSets of kube-proxy, CNI and CSI leave virtual nodes out.
    type: "virtual-kubelet",
    // A cloud's load balancer cannot reach the machines through this node.
    "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    ...capabilityLabels(settings, existing),
    // Where volumes must be that its machines are to have.
    ...(settings.volumes?.zone !== undefined && { [ZONE_KEY]: settings.volumes.zone }),
    ...labels,
  };
}

/** Without it the attach-detach controller attaches nothing to a node. */
const ATTACHED_BY_CONTROLLER = { "volumes.kubernetes.io/controller-managed-attach-detach": "true" };

export function nodeAnnotations(
  settings: NodeSettings & Pick<BackendReport, "volumes">,
  capacity: NodeCapacity | undefined,
  existing?: Node,
): Record<string, string> {
  const { labels = {}, annotations = {}, taints, release } = settings;
  // Where the Node's own differ, the record stays until they are written.
  const isTainted = existing === undefined || wantedTaints(existing, taints) === undefined;
  return {
    ...(settings.volumes && ATTACHED_BY_CONTROLLER),
    ...annotations,
    ...(capacity && { [OWNED_RESOURCES_ANNOTATION]: extendedNames(capacity.resources).join(",") }),
    [OWNED_METADATA_ANNOTATIONS.labels]: Object.keys(labels).toSorted().join(","),
    [OWNED_METADATA_ANNOTATIONS.annotations]: Object.keys(annotations).toSorted().join(","),
    ...(isTainted && { [TAINTS_ANNOTATION]: taintsRecord(taints) }),
    ...(release !== undefined && { [RELEASE_ANNOTATION]: release }),
  };
}

/** The Node to create. */
export function newNode(settings: NodeDescription, observation: NodeObservation, nowMs: number): Node {
  return {
    apiVersion: "v1",
    kind: "Node",
    metadata: {
      name: settings.name,
      labels: nodeLabels(settings, undefined),
      annotations: nodeAnnotations(settings, observation.capacity),
    },
    spec: {
      providerID: providerId(settings),
      taints: [...(settings.taints ?? []), ...(observation.capacity?.taints ?? [])].map(({ key, value, effect }) => ({
        key,
        effect,
        ...(value !== undefined && { value }),
      })),
    },
    status: nodeStatus(settings, undefined, observation, nowMs),
  };
}

/**
 * The status that the node should have. Conditions, resources and fields of others are carried over from `existing`.
 *
 * @param nowMs wall clock; becomes every own condition's lastHeartbeatTime
 */
export function nodeStatus(
  settings: NodeDescription,
  existing: Node | undefined,
  observation: NodeObservation,
  nowMs: number,
): Status {
  const { clusterId, name, version, runtime } = settings;
  const { os, architecture } = platformOf(settings, existing);
  const { capacity, allocatable } = resources(existing, observation);
  const handlers = runtimeHandlers(settings, existing);
  const ofRuntime = features(settings, existing);
  const uuid = systemUuid(settings);
  return {
    ...existing?.status,
    addresses: [
      ...settings.addresses.map((address) => ({ type: "InternalIP", address })),
      ...(settings.hostname === undefined ? [] : [{ type: "Hostname", address: settings.hostname }]),
    ],
    capacity,
    allocatable,
    conditions: conditions(existing?.status?.conditions ?? [], observation, capacity, nowMs),
    daemonEndpoints: { kubeletEndpoint: { Port: settings.kubeletPort } },
    declaredFeatures: declaredFeatures(settings, existing),
    ...(handlers === undefined ? {} : { runtimeHandlers: handlers }),
    ...(ofRuntime && { features: ofRuntime }),
    ...(observation.volumesInUse && { volumesInUse: observation.volumesInUse }),
    nodeInfo: {
      machineID: uuid.replaceAll("-", ""),
      systemUUID: uuid,
      // Must survive restarts: a changed one is reported as a reboot.
      bootID: stableUuid(clusterId, name, "boot"),
      kernelVersion: "unknown",
      osImage: `vmlet ${version}`,
      containerRuntimeVersion: runtimeVersion(runtime, existing),
      kubeletVersion: observation.kubeletVersion,
      kubeProxyVersion: "",
      operatingSystem: os,
      architecture,
      ...inUserNamespace(settings, existing, observation.kubeletVersion),
    },
  };
}

/** Since 1.37: a kubelet of an older one does not say it. */
function inUserNamespace(
  { capabilities, runningInUserNamespace }: NodeDescription,
  existing: Node | undefined,
  kubeletVersion: string,
) {
  if (minorOf(kubeletVersion) < 37) return {};
  // An agent that has just been started does not know yet.
  const told = capabilities === undefined ? existing?.status?.nodeInfo?.runningInUserNamespace : runningInUserNamespace;
  return told === undefined ? {} : { runningInUserNamespace: told };
}

const NOTHING: ResourceMap = { cpu: "0", memory: "0", pods: "0", "ephemeral-storage": "0" };

/**
 * What there is, and what of it pods may have. Resources that others put there are both: the scheduler's conformance
 * tests do that.
 */
function resources(
  existing: Node | undefined,
  observation: NodeObservation,
): { capacity: ResourceMap; allocatable: ResourceMap } {
  const { capacity: known } = observation;
  const before = existing?.status;
  // As a kubelet that cannot read its machine: keys are there, values are zero.
  if (!known)
    return {
      capacity: { ...NOTHING, ...before?.capacity },
      allocatable: { ...NOTHING, ...(before?.allocatable ?? before?.capacity) },
    };
  const { resources: own, total = {} } = known;
  const capacity = capacityMap(existing, observation, { ...own, ...total });
  const kept = Object.keys(total).map(
    (name) => [name, sameText(before?.allocatable?.[name], own[name] ?? "0")] as const,
  );
  return { capacity, allocatable: { ...capacity, ...Object.fromEntries(kept) } };
}

/** The server may write the same amount differently. */
function sameText(before: string | undefined, amount: string): string {
  return before !== undefined && Quantity.tryParse(before)?.equals(Quantity.parse(amount)) ? before : amount;
}

function capacityMap(existing: Node | undefined, { retired }: NodeObservation, wanted: ResourceMap): ResourceMap {
  const before: ResourceMap = existing?.status?.capacity ?? {};
  const owned = new Set(namesIn(existing, OWNED_RESOURCES_ANNOTATION));
  const after: Record<string, string> = {};
  for (const [name, amount] of Object.entries(before)) {
    if (!owned.has(name) || name in wanted) after[name] = amount;
  }
  for (const name of retired) if (!(name in wanted)) after[name] = "0";
  for (const [name, amount] of Object.entries(wanted)) after[name] = sameText(after[name], amount);
  return after;
}

function namesIn(node: Node | undefined, annotation: string): string[] {
  return node?.metadata?.annotations?.[annotation]?.split(",").filter((name) => name !== "") ?? [];
}

/**
 * Extended resources that somebody else has written into the Node's status, so that they are counted: no backend has
 * them, and none is asked for them (kubelet: kubelet_node_status.go, updateDefaultResources).
 */
export function othersResources(node: Node): ReadonlySet<string> {
  const owned = new Set(namesIn(node, OWNED_RESOURCES_ANNOTATION));
  const there = Object.entries(node.status?.allocatable ?? {}).filter(([, amount]) => amount !== "0");
  return new Set(extendedNames(Object.fromEntries(there)).filter((name) => !owned.has(name)));
}

/** Names with a domain, as Kubernetes tells extended resources from its own. */
export function extendedNames(resourceMap: ResourceMap): string[] {
  return Object.keys(resourceMap)
    .filter((name) => name.includes("/"))
    .toSorted((a, b) => (a < b ? -1 : 1));
}

/** The conditions' kubelet texts, by type and then by whether the pressure is on. */
const PRESSURES = [
  ["MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
  ["DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
  ["PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"],
] as const;

const NOT_THE_PROVIDERS = ["Ready", "BackendReady"];

function conditions(
  existing: readonly Condition[],
  observation: NodeObservation,
  capacity: ResourceMap,
  nowMs: number,
): Condition[] {
  const now = rfc3339(nowMs);
  const before = new Map(existing.map((condition) => [condition.type, condition]));
  const provided = new Map(
    (observation.capacity?.conditions ?? [])
      .filter((condition) => !NOT_THE_PROVIDERS.includes(condition.type))
      .map((condition) => [condition.type, condition]),
  );
  const own = new Map<string, { status: string; reason: string; message: string }>();
  for (const [type, reason, message] of PRESSURES) own.set(type, { status: "False", reason, message });
  for (const [type, { status, reason, message }] of provided) own.set(type, { status, reason, message });
  own.set("BackendReady", backendCondition(observation));
  // Last, as the kubelet has it.
  own.set("Ready", readyCondition(observation, capacity, before.get("Ready")));

  return [
    ...existing.filter((condition) => !own.has(condition.type)),
    ...[...own].map(([type, { status, reason, message }]) => {
      const previous = before.get(type);
      const lastTransitionTime = previous?.status === status ? (previous.lastTransitionTime ?? now) : now;
      return { type, status, reason, message, lastHeartbeatTime: now, lastTransitionTime };
    }),
  ];
}

function backendCondition({ backend }: NodeObservation) {
  switch (backend.state) {
    case "answers":
      return { status: "True", reason: "BackendAnswers", message: "the machine backend answers" };
    case "not_seen":
      return { status: "Unknown", reason: "BackendNotSeen", message: "the machine backend has not answered yet" };
    case "doubtful":
      return {
        status: "False",
        reason: "MachinesMissing",
        message: `the machine backend answers, but lacks the machines of ${backend.missing} pods that ran: was it restored, or does its address lead to another? Until they are back, these pods are failed a few a minute; whoever knows that the machines are lost may delete the pods`,
      };
    case "failing":
      return {
        status: "False",
        reason: "BackendUnavailable",
        message: `the machine backend does not answer: ${backend.error}`,
      };
  }
}

/**
 * A backend that does not answer leaves a Ready node Ready at first: NotReady would evict pods whose machines are well,
 * and which could not be stopped anyway. A node that is not Ready waits for the backend. Unknown is not a verdict of
 * ours: it only says that the agent was away.
 */
function readyCondition({ backend, capacity }: NodeObservation, amounts: ResourceMap, before: Condition | undefined) {
  const benefitOfDoubt = before !== undefined && before.status !== "False";
  if (backend.state === "failing" && (backend.graceOver || !benefitOfDoubt)) {
    return {
      status: "False",
      reason: "BackendUnavailable",
      message: `the machine backend does not answer: ${backend.error}`,
    };
  }
  const faults: string[] = [];
  if (backend.state === "not_seen" && !benefitOfDoubt) faults.push("the machine backend has not answered yet");
  if (!capacity && Object.values(amounts).every((amount) => amount === "0")) {
    faults.push("missing node capacity for resources: cpu, memory, pods, ephemeral-storage");
  }
  if (faults.length > 0) {
    const message = faults.length === 1 ? faults[0]! : `[${faults.join(", ")}]`;
    return { status: "False", reason: "KubeletNotReady", message };
  }
  return { status: "True", reason: "KubeletReady", message: "kubelet is posting ready status" };
}

/**
 * The strategic merge patch of `nodes/status` from `current` to the desired status and metadata. Labels and annotations
 * ride on it, as the kubelet's do. It names only what we own, so whatever others write meanwhile survives.
 *
 * @returns the patch, and whether it changes anything but heartbeat times
 */
export function statusPatch(
  current: Node,
  desired: {
    status: Status;
    labels: ResourceMap;
    annotations: ResourceMap;
    /** `current` is not to be believed about them. */
    mustTellVolumes?: boolean | undefined;
  },
): { patch: object; changed: boolean } {
  const before: Status = current.status ?? {};
  const { status } = desired;
  const fields = changedFields(before, status);
  const wasTold = JSON.stringify(before.volumesInUse ?? []) === JSON.stringify(status.volumesInUse ?? []);
  if (desired.mustTellVolumes === true || !wasTold) fields["volumesInUse"] = status.volumesInUse ?? [];
  const conditions = changedConditions(before.conditions ?? [], status.conditions ?? []);
  const metadata: Record<string, unknown> = {};
  for (const field of ["labels", "annotations"] as const) {
    const owned = namesIn(current, OWNED_METADATA_ANNOTATIONS[field]);
    const difference = metadataDifference(current.metadata?.[field] ?? {}, desired[field], owned);
    if (difference) metadata[field] = difference;
  }
  const hasMetadata = Object.keys(metadata).length > 0;
  if (fields["volumesInUse"] !== undefined) requireVersion(current, metadata);
  return {
    patch: {
      ...(Object.keys(metadata).length > 0 && { metadata }),
      status: { ...fields, conditions: conditions.own, ...changedFeatures(before, status) },
    },
    changed: Object.keys(fields).length > 0 || conditions.changed || hasMetadata,
  };
}

/**
 * Sent along with other changes, but no reason to send: API servers that are older, or have them off, drop them each
 * time.
 */
function changedFeatures(before: Status, status: Status): Record<string, unknown> {
  const patch: Record<string, unknown> = {};
  for (const field of ["declaredFeatures", "features", "runtimeHandlers"] as const)
    if (JSON.stringify(before[field]) !== JSON.stringify(status[field])) patch[field] = status[field];
  const { runningInUserNamespace } = status.nodeInfo ?? {};
  if (before.nodeInfo?.runningInUserNamespace !== runningInUserNamespace)
    patch["nodeInfo"] = { ...status.nodeInfo, runningInUserNamespace: runningInUserNamespace ?? null };
  return patch;
}

/** The list is replaced as a whole: by what another process has read before, or sent long ago, it must not be. */
function requireVersion({ metadata: { resourceVersion } = {} }: Node, metadata: Record<string, unknown>): void {
  if (resourceVersion !== undefined) metadata["resourceVersion"] = resourceVersion;
}

/** But conditions and features. */
function changedFields(before: Status, status: Status): Record<string, unknown> {
  const patch: Record<string, unknown> = {};
  for (const field of ["capacity", "allocatable"] as const) {
    const difference = mapDifference(before[field] ?? {}, status[field] ?? {});
    if (difference) patch[field] = difference;
  }
  const { runningInUserNamespace: _, ...nodeInfo } = status.nodeInfo ?? {};
  for (const [field, wanted] of Object.entries({ nodeInfo, daemonEndpoints: status.daemonEndpoints }))
    if (!sameFields(before[field as "nodeInfo" | "daemonEndpoints"], wanted)) patch[field] = wanted;
  // The merge key of addresses is their type, which is not unique: two InternalIPs would be merged into one.
  if (JSON.stringify(before.addresses ?? []) !== JSON.stringify(status.addresses ?? []))
    patch["addresses"] = [...(status.addresses ?? []), { $patch: "replace" }];
  return patch;
}

type Conditions = NonNullable<Status["conditions"]>;

/** Those that are not just the ones that were there, and whether more than a heartbeat is new in them. */
function changedConditions(before: Conditions, conditions: Conditions): { own: Conditions; changed: boolean } {
  const old = new Map(before.map((condition) => [condition.type, condition]));
  const own = conditions.filter((condition) => condition !== old.get(condition.type));
  const changed = own.some(({ type, status, reason, message }) => {
    const previous = old.get(type);
    return status !== previous?.status || reason !== previous.reason || message !== previous.message;
  });
  return { own, changed };
}

/** What turns `from` into `to`: null removes. Undefined when nothing does. */
function mapDifference(from: ResourceMap, to: ResourceMap): Record<string, string | null> | undefined {
  const difference: Record<string, string | null> = { ...missingEntries(from, to) };
  for (const key of Object.keys(from)) if (!(key in to)) difference[key] = null;
  return Object.keys(difference).length > 0 ? difference : undefined;
}

/** The same for metadata that others write too: removed is only what this agent alone writes and wants no more. */
function metadataDifference(
  from: ResourceMap,
  to: ResourceMap,
  owned: readonly string[],
): Record<string, string | null> | undefined {
  const own = Object.entries(from).filter(
    ([key]) => key in to || key.startsWith(CAPABILITY_LABEL_PREFIX) || owned.includes(key),
  );
  return mapDifference(Object.fromEntries(own), to);
}

/** Entries of `wanted` that `present` lacks or has otherwise. */
function missingEntries(present: ResourceMap, wanted: ResourceMap): Record<string, string> | undefined {
  const missing = Object.entries(wanted).filter(([key, value]) => present[key] !== value);
  return missing.length > 0 ? Object.fromEntries(missing) : undefined;
}

/** Equal in every field that `wanted` has; others belong to other writers (or to a newer API). */
function sameFields(present: unknown, wanted: unknown): boolean {
  if (typeof wanted !== "object" || wanted === null) return present === wanted;
  if (typeof present !== "object" || present === null) return false;
  return Object.entries(wanted).every(([key, value]) => sameFields((present as Record<string, unknown>)[key], value));
}
