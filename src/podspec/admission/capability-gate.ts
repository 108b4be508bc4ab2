/**
 * What a pod may ask for, and which capability of the backend it needs. One table: the gate refuses by it and the
 * README's support table is generated from it. What is not in these tables needs nothing beyond the core of the Machine
 * API.
 */
import type { Capability } from "../../provider/capabilities.ts";
import type { ReservedCapabilities } from "../../provider/machine.ts";
import { containersOf } from "../../kube/pod.ts";
import type { Container, Pod } from "../../kube/wire.ts";
import { shortened } from "../budget.ts";
import type { PodEvent } from "../types.ts";
import { isSidecar } from "../../resources/pod-resources.ts";
import { BANDWIDTH_ANNOTATIONS, bandwidthPaths } from "../bandwidth.ts";
import { appArmorPaths, effectiveSecurityContext } from "../security-context.ts";
import {
  ANNOTATION_INSTANCE_TYPE,
  INSTANCE_TYPE_FORBIDDEN,
  instanceTypeFault,
  type InstanceTypeRule,
} from "./instance-types.ts";
import { containerFields, containerPaths, isSet, paths } from "./pod-paths.ts";
import { isReserved } from "./reserved.ts";
import { isServiceAccountVolume, SUPPORTED_VOLUME_KINDS, usedVolumes, volumeKind } from "../pod-volumes.ts";

/** A feature of pods: how the documentation calls its field, and where this pod uses it. */
interface Feature {
  /** Field path for people, without indexes. */
  field: string;
  /** Field paths, with indexes, at which the pod asks for it; empty when it does not. */
  find: (pod: Pod) => string[];
}

interface GatedFeature extends Feature {
  capability: Capability;
  /** With this one in its place, and the leave of the node's configuration, the pod runs too. */
  instead?: "volumes.host_path";
  /** With this one in its place, the pod runs too, or waits: only what it refers to tells which it needs. */
  or?: "volumes.csi_persistent";
  /** Without the capability the pod still runs; its author is told by a Warning event. */
  warning?: { reason: string; effect: string };
  /** The kubelet's own reason and words for a node that lacks it, where there are some. */
  refusal?: { reason: string; why: string };
}

interface RefusedFeature extends Feature {
  /** Why no backend can have it. */
  why: string;
  /** The kubelet's own reason for it, where there is one. */
  reason?: string;
}

interface IgnoredFeature extends Feature {
  /** Of the Warning event that tells the pod's author. */
  reason: string;
  why: string;
}

/** The kubelet's reason for profiles that cannot be enforced. */
const APPARMOR = "AppArmor";

/** Reason of a rejected pod for which the kubelet has no word of its own. */
const UNSUPPORTED_FEATURE = "UnsupportedFeature";

const PATH_TERMINATION_DEFAULT = "/dev/termination-log";

/**
 * Pod field -> capability that the backend must declare.
 * @internal
 */
export const GATED_FEATURES: readonly GatedFeature[] = [
  {
    capability: "multi_container",
    field: "spec.containers (more than one)",
    find: (pod) => ((pod.spec?.containers.length ?? 0) > 1 ? ["spec.containers[1]"] : []),
  },
  {
    capability: "init_containers",
    field: "spec.initContainers",
    find: (pod) => paths(pod.spec?.initContainers, "spec.initContainers", (c) => !isSidecar(c)),
  },
  {
    capability: "sidecars",
    field: "spec.initContainers.restartPolicy: Always",
    find: (pod) => paths(pod.spec?.initContainers, "spec.initContainers", isSidecar, ".restartPolicy"),
  },
  { capability: "restart_rules", field: "spec.containers.restartPolicy, restartPolicyRules", find: findRestartRules },
  {
    capability: "probes",
    field: "spec.containers.livenessProbe, readinessProbe, startupProbe",
    find: (pod) => containerFields(pod, ["livenessProbe", "readinessProbe", "startupProbe"]),
  },
  {
    capability: "hooks",
    field: "spec.containers.lifecycle",
    find: (pod) => containerPaths(pod, (c) => (c.lifecycle?.postStart || c.lifecycle?.preStop ? [".lifecycle"] : [])),
  },
  {
    capability: "termination_message",
    field: "spec.containers.terminationMessagePath, terminationMessagePolicy (other than the defaults)",
    find: findTerminationMessage,
  },
  {
    capability: "tty",
    field: "spec.containers.tty",
    find: (pod) => containerPaths(pod, (c) => (c.tty ? [".tty"] : [])),
  },
  {
    capability: "host_ports",
    field: "spec.containers.ports.hostPort",
    find: findHostPorts,
  },
  {
    capability: "privileged",
    field: "spec.containers.securityContext.privileged",
    find: (pod) => containerPaths(pod, (c) => (c.securityContext?.privileged ? [".securityContext.privileged"] : [])),
  },
  {
    capability: "security_context",
    field: "spec.securityContext, spec.containers.securityContext",
    find: findSecurityContext,
  },
  {
    capability: "supplemental_groups_policy",
    // kubelet: lifecycle/predicate.go
    refusal: {
      reason: "SupplementalGroupsPolicyNotSupported",
      why: "SupplementalGroupsPolicy=Strict is not supported in this node",
    },
    field: "spec.securityContext.supplementalGroupsPolicy",
    find: ({ spec }) =>
      spec?.securityContext?.supplementalGroupsPolicy === "Strict"
        ? ["spec.securityContext.supplementalGroupsPolicy"]
        : [],
  },
  {
    capability: "sysctls",
    field: "spec.securityContext.sysctls",
    find: (pod) => paths(pod.spec?.securityContext?.sysctls, "spec.securityContext.sysctls", () => true),
  },
  {
    capability: "share_process_namespace",
    field: "spec.shareProcessNamespace",
    find: (pod) => (pod.spec?.shareProcessNamespace ? ["spec.shareProcessNamespace"] : []),
  },
  {
    capability: "apparmor",
    refusal: { reason: APPARMOR, why: "Cannot enforce AppArmor: AppArmor is not enabled on the host" },
    field: "securityContext.appArmorProfile, and the annotations before it",
    find: appArmorPaths,
  },
  {
    capability: "user_namespace",
    field: "spec.hostUsers: false",
    find: (pod) => (pod.spec?.hostUsers === false ? ["spec.hostUsers"] : []),
  },
  {
    capability: "hostname",
    field: "spec.hostname, subdomain, hostnameOverride, setHostnameAsFQDN",
    find: findHostname,
  },
  {
    capability: "resource_claims",
    field: "spec.resourceClaims",
    find: (pod) => ((pod.spec?.resourceClaims?.length ?? 0) > 0 ? ["spec.resourceClaims"] : []),
  },
  {
    capability: "hosts",
    field: "spec.hostAliases",
    find: (pod) => ((pod.spec?.hostAliases?.length ?? 0) > 0 ? ["spec.hostAliases"] : []),
  },
  {
    capability: "dns",
    field: "spec.dnsConfig, dnsPolicy: None",
    find: (pod) =>
      pod.spec?.dnsPolicy === "None" ? ["spec.dnsPolicy"] : pod.spec?.dnsConfig ? ["spec.dnsConfig"] : [],
  },
  { capability: "pod_ip", field: "fieldRef status.podIP, status.podIPs", find: findPodIp },
  {
    capability: "resource_limits",
    warning: { reason: "ResourceLimitsNotEnforced", effect: "not enforced" },
    field: "resources.limits of cpu and memory",
    find: (pod) => findLimits(pod, ["cpu", "memory"]),
  },
  {
    capability: "ephemeral_storage_limits",
    field: "resources.limits of ephemeral-storage",
    find: (pod) => findLimits(pod, ["ephemeral-storage"]),
  },
  {
    capability: "registry_auth",
    warning: { reason: "ImagePullSecretsNotUsed", effect: "not used" },
    field: "spec.imagePullSecrets",
    find: (pod) => ((pod.spec?.imagePullSecrets?.length ?? 0) > 0 ? ["spec.imagePullSecrets"] : []),
  },
  {
    capability: "instance_types",
    warning: { reason: "InstanceTypeNotUsed", effect: "not used" },
    field: `metadata.annotations[${ANNOTATION_INSTANCE_TYPE}]`,
    find: (pod) =>
      pod.metadata?.annotations?.[ANNOTATION_INSTANCE_TYPE] === undefined
        ? []
        : [`metadata.annotations[${ANNOTATION_INSTANCE_TYPE}]`],
  },
  {
    capability: "bandwidth",
    warning: { reason: "BandwidthNotLimited", effect: "not enforced" },
    field: `metadata.annotations[${BANDWIDTH_ANNOTATIONS.join(", ")}]`,
    find: (pod) => (pod.spec?.hostNetwork ? [] : bandwidthPaths(pod)),
  },
  { capability: "volumes.empty_dir", field: "spec.volumes.emptyDir", find: (pod) => findVolumes(pod, "emptyDir") },
  { capability: "volumes.empty_dir.size_limit", field: "spec.volumes.emptyDir.sizeLimit", find: findSizeLimits },
  {
    capability: "env_files",
    field: "spec.containers.env.valueFrom.fileKeyRef",
    find: (pod) =>
      containerPaths(pod, (c) =>
        paths(c.env, ".env", (e) => Boolean(e.valueFrom?.fileKeyRef), ".valueFrom.fileKeyRef"),
      ),
  },
  {
    capability: "volumes.files",
    field: "spec.volumes.configMap, secret, downwardAPI, projected",
    find: findFileVolumes,
  },
  { capability: "volumes.image", field: "spec.volumes.image", find: (pod) => findVolumes(pod, "image") },
  {
    capability: "volumes.persistent",
    field: "spec.volumes.persistentVolumeClaim, ephemeral",
    or: "volumes.csi_persistent",
    find: (pod) => [...findVolumes(pod, "persistentVolumeClaim"), ...findVolumes(pod, "ephemeral")],
  },
  {
    capability: "volumes.block",
    field: "spec.containers.volumeDevices",
    find: (pod) => containerFields(pod, ["volumeDevices"]),
  },
  { capability: "volumes.csi", field: "spec.volumes.csi", find: (pod) => findVolumes(pod, "csi") },
  { capability: "volumes.nfs", field: "spec.volumes.nfs", find: (pod) => findVolumes(pod, "nfs") },
  {
    capability: "volumes.host",
    field: "spec.volumes.hostPath",
    // With that, the path is one of the pod's own machine.
    instead: "volumes.host_path",
    find: (pod) => findVolumes(pod, "hostPath"),
  },
  {
    capability: "mount_propagation",
    field: "spec.containers.volumeMounts.mountPropagation: Bidirectional",
    find: (pod) => findMounts(pod, (m) => m.mountPropagation === "Bidirectional", ".mountPropagation"),
  },
  {
    capability: "host_network",
    field: "spec.hostNetwork",
    find: (pod) => (pod.spec?.hostNetwork ? ["spec.hostNetwork"] : []),
  },
  { capability: "host_pid", field: "spec.hostPID", find: (pod) => (pod.spec?.hostPID ? ["spec.hostPID"] : []) },
  { capability: "host_ipc", field: "spec.hostIPC", find: (pod) => (pod.spec?.hostIPC ? ["spec.hostIPC"] : []) },
];

/**
 * Added to a pod that runs, so its want refuses no pod. What else they ask for is judged by the tables, as for any
 * container.
 */
const EPHEMERAL = { capability: "ephemeral_containers", field: "spec.ephemeralContainers" } as const;

/**
 * What a machine of its own cannot have, on any backend.
 * @internal
 */
export const REFUSED_FEATURES: readonly RefusedFeature[] = [
  {
    field: "spec.volumes of any other kind",
    why: "this kind of volume cannot be given to a machine",
    find: findOtherVolumes,
  },
  {
    field: "spec.volumes.emptyDir.medium: HugePages",
    why: "machines have no huge pages",
    find: (pod) => volumePaths(pod, (v) => (v.emptyDir?.medium?.startsWith("HugePages") ? [".emptyDir.medium"] : [])),
  },
  {
    field: "spec.containers.volumeMounts.recursiveReadOnly: Enabled",
    why: "recursive read-only mounts are not supported by this node",
    find: (pod) => findMounts(pod, (m) => m.recursiveReadOnly === "Enabled", ".recursiveReadOnly"),
  },
  {
    field: "securityContext.seccompProfile: Localhost",
    why: "profiles of the host do not exist in a machine",
    find: (pod) => findEffective(pod, (c) => c.seccompProfile?.type === "Localhost", "seccompProfile"),
  },
  {
    field: "securityContext.appArmorProfile: Localhost, without a name",
    why: "Cannot enforce AppArmor: invalid empty AppArmor profile name",
    reason: APPARMOR,
    find: (pod) =>
      findEffective(
        pod,
        (c) => c.appArmorProfile?.type === "Localhost" && !c.appArmorProfile.localhostProfile?.trim(),
        "appArmorProfile",
      ),
  },
];

/**
 * What a pod runs without, as on a kubelet whose host or network has nothing for it, but not in silence.
 * @internal
 */
export const IGNORED_FEATURES: readonly IgnoredFeature[] = [
  {
    field: "securityContext.seLinuxOptions",
    reason: "SELinuxNotUsed",
    why: "not used, machines have no SELinux",
    find: (pod) => findEffective(pod, (c) => isSet(c.seLinuxOptions), "seLinuxOptions"),
  },
  {
    field: "spec.hostNetwork, with limits of bandwidth",
    reason: "BandwidthNotLimited",
    why: "not enforced, the pod is on its host's network",
    find: (pod) => (pod.spec?.hostNetwork ? bandwidthPaths(pod) : []),
  },
];

export interface GateContext {
  backend: string;
  capabilities: ReadonlySet<Capability>;
  /** Of the capabilities, those that only pods of some namespaces have. */
  reserved?: ReservedCapabilities | undefined;
  allowHostPath: boolean;
  /** Probes are run by the agent where the backend cannot. */
  agentProbes: boolean;
  /** Which pods may choose which size; undefined: any pod any size. */
  instanceTypes?: readonly InstanceTypeRule[] | undefined;
}

/** `missing`: the capabilities that the backend lacks, of those that the message speaks of. */
type GateResult = { ok: true } | { ok: false; reason: string; message: string; missing: Capability[] };

/** Whether a backend with these capabilities can run the pod as it is written; if not, every field at fault. */
export function checkCapabilities(pod: Pod, context: GateContext): GateResult {
  return resultOf(findProblems(pod, context));
}

/** Likewise for one of the ephemeral containers of a pod that it runs. */
export function checkEphemeralContainer(pod: Pod, index: number, context: GateContext): GateResult {
  const own = `spec.ephemeralContainers[${index}]`;
  if (!context.capabilities.has(EPHEMERAL.capability)) return resultOf([lacks(own, EPHEMERAL, context)]);
  // As if it were the pod's only container; of what comes out, only what is its own: the rest was judged with the pod.
  const { initContainers: _init, ephemeralContainers = [], ...spec } = pod.spec ?? { containers: [] };
  const alone = { ...pod, spec: { ...spec, containers: [ephemeralContainers[index]!] } };
  const problems = findProblems(alone, context).filter(({ path }) => path.startsWith("spec.containers[0]"));
  return resultOf(problems.map((problem) => ({ ...problem, path: problem.path.replace("spec.containers[0]", own) })));
}

interface Problem {
  path: string;
  why: string;
  reason: string;
  missing?: Capability;
}

function lacks(
  path: string,
  { capability: missing, refusal }: Pick<GatedFeature, "capability" | "refusal">,
  { backend }: GateContext,
): Problem {
  const { reason = UNSUPPORTED_FEATURE, why = `backend "${backend}" lacks capability ${missing}` } = refusal ?? {};
  return { path, why, reason, missing };
}

function findProblems(pod: Pod, context: GateContext): Problem[] {
  const problems: Problem[] = [];
  for (const { find, why, reason = UNSUPPORTED_FEATURE } of REFUSED_FEATURES) {
    for (const path of find(pod)) problems.push({ path, why, reason });
  }
  for (const feature of GATED_FEATURES) {
    if (feature.warning !== undefined) continue;
    if (feature.capability === "probes" && context.agentProbes) {
      const why = "probes are run by the agent on this node (agentProbes), and it cannot restart a container";
      for (const path of containerFields(pod, ["livenessProbe", "startupProbe"]))
        problems.push({ path, why, reason: UNSUPPORTED_FEATURE });
      continue;
    }
    const refusal = refusalOf(feature, pod, context);
    if (refusal !== undefined) problems.push(...feature.find(pod).map(refusal));
  }
  const forbidden = instanceTypeFault(pod, context.instanceTypes);
  if (forbidden !== undefined)
    problems.push({
      path: `metadata.annotations[${ANNOTATION_INSTANCE_TYPE}]`,
      why: forbidden,
      reason: INSTANCE_TYPE_FORBIDDEN,
    });
  return problems;
}

/** Undefined when the pod may ask for it. */
function refusalOf(feature: GatedFeature, pod: Pod, context: GateContext): ((path: string) => Problem) | undefined {
  const { capability, instead, or } = feature;
  if (or !== undefined && context.capabilities.has(or) && !isReserved(or, pod, context)) return undefined;
  const isThere = context.capabilities.has(capability);
  if (isThere && !isReserved(capability, pod, context)) return undefined;
  const hasInstead = instead !== undefined && context.capabilities.has(instead);
  if (hasInstead && context.allowHostPath) return undefined;
  const refuse = (why: string) => (path: string) => ({ path, why, reason: UNSUPPORTED_FEATURE });
  if (isThere) {
    const namespace = pod.metadata?.namespace ?? "default";
    return refuse(`backend "${context.backend}" has ${capability} for other namespaces than "${namespace}"`);
  }
  if (hasInstead) return refuse("hostPath is not allowed on this node (allowHostPath)");
  return (path) => lacks(path, feature, context);
}

function resultOf(problems: readonly Problem[]): GateResult {
  const [first] = problems;
  if (first === undefined) return { ok: true };
  const told = problems.filter((problem) => problem.reason === first.reason);
  // The kubelet's own reasons come with the kubelet's own words.
  const texts = told.map(({ path, why, reason }) => (reason === UNSUPPORTED_FEATURE ? `${path}: ${why}` : why));
  const unique = <T>(values: readonly T[]) => [...new Set(values)];
  return {
    ok: false,
    reason: first.reason,
    message: shortened(unique(texts).join("; ")),
    missing: unique(told.flatMap(({ missing }) => missing ?? [])),
  };
}

/** What the pod will have to do without on this backend although it runs: one event for each such wish. */
export function capabilityWarnings(pod: Pod, context: Pick<GateContext, "backend" | "capabilities">): PodEvent[] {
  const ignored = IGNORED_FEATURES.flatMap(({ find, reason, why }): PodEvent[] => {
    const found = find(pod);
    if (found.length === 0) return [];
    return [{ type: "Warning", reason, message: shortened(`${found.join(", ")}: ${why}`) }];
  });
  const lacking = GATED_FEATURES.flatMap((feature): PodEvent[] => {
    if (feature.warning === undefined || context.capabilities.has(feature.capability)) return [];
    const found = feature.find(pod);
    if (found.length === 0) return [];
    const { reason, effect } = feature.warning;
    const message = `${found.join(", ")}: ${effect}, backend "${context.backend}" lacks capability ${feature.capability}`;
    return [{ type: "Warning", reason, message: shortened(message) }];
  });
  return [...lacking, ...ignored];
}

/**
 * The tables as one in Markdown, for the README: what a pod may ask for, and what that needs.
 * @internal
 */
export function supportTable(): string {
  const rows = [
    ...GATED_FEATURES.map(
      ({ field, capability, warning, instead, or }) =>
        `| ${field} | \`${capability}\`${or ? `, or \`${or}\` for those of CSI drivers of others` : ""}${instead ? `, or \`${instead}\` and the node's allowHostPath` : ""}${warning ? `; without it the pod runs, with event ${warning.reason}` : ""} |`,
    ),
    `| ${EPHEMERAL.field} | \`${EPHEMERAL.capability}\`; without it the pod runs on, with event ${UNSUPPORTED_FEATURE} |`,
    ...IGNORED_FEATURES.map(({ field, reason, why }) => `| ${field} | ${why}; the pod runs, with event ${reason} |`),
    ...REFUSED_FEATURES.map(({ field, why }) => `| ${field} | refused: ${why} |`),
  ];
  return ["| Pod field | Needs |", "|---|---|", ...rows].join("\n");
}

// ------------------------------------------------------------------------------------------------------------ finders

function findRestartRules(pod: Pod): string[] {
  const rules = containerFields(pod, ["restartPolicyRules"]);
  const policies = paths(
    pod.spec?.containers,
    "spec.containers",
    (c) => c.restartPolicy !== undefined,
    ".restartPolicy",
  );
  const initPolicies = paths(
    pod.spec?.initContainers,
    "spec.initContainers",
    (c) => c.restartPolicy !== undefined && !isSidecar(c),
    ".restartPolicy",
  );
  return [...rules, ...policies, ...initPolicies];
}

function findTerminationMessage(pod: Pod): string[] {
  return containerPaths(pod, (c) => [
    ...((c.terminationMessagePath ?? PATH_TERMINATION_DEFAULT) === PATH_TERMINATION_DEFAULT
      ? []
      : [".terminationMessagePath"]),
    ...((c.terminationMessagePolicy ?? "File") === "File" ? [] : [".terminationMessagePolicy"]),
  ]);
}

function findSecurityContext(pod: Pod): string[] {
  const context = pod.spec?.securityContext;
  const found: string[] = [];
  for (const field of ["fsGroup", "supplementalGroups"] as const) {
    if (isSet(context?.[field])) found.push(`spec.securityContext.${field}`);
  }
  return [...found, ...findEffective(pod, hasSecurityWish, "securityContext")];
}

function hasSecurityWish(context: ReturnType<typeof effectiveSecurityContext>): boolean {
  return (
    context.runAsUser !== undefined ||
    context.runAsGroup !== undefined ||
    context.runAsNonRoot === true ||
    context.readOnlyRootFilesystem === true ||
    context.allowPrivilegeEscalation === false ||
    (context.capabilities?.add?.length ?? 0) > 0 ||
    (context.capabilities?.drop?.length ?? 0) > 0 ||
    context.seccompProfile?.type === "RuntimeDefault" ||
    context.procMount === "Unmasked"
  );
}

/** Looks at the merged security context of every container; the path says where the wish comes from. */
function findEffective(
  pod: Pod,
  isUsed: (context: ReturnType<typeof effectiveSecurityContext>) => boolean,
  field: string,
): string[] {
  const suffix = field === "securityContext" ? ".securityContext" : `.securityContext.${field}`;
  const isOwn = (container: Container) => isUsed(container.securityContext ?? {});
  const own = containerPaths(pod, (container) => (isOwn(container) ? [suffix] : []));
  const isInherited = containersOf(pod).some(
    (container) => !isOwn(container) && isUsed(effectiveSecurityContext(pod, container)),
  );
  return isInherited ? [`spec${suffix}`, ...own] : own;
}

/**
 * The StatefulSet controller writes the pod's own name as `hostname`, and its Service as `subdomain`, into each of its
 * pods; the Job controller writes JOB-INDEX into each of an Indexed Job's. No user has asked for that, so a backend
 * that cannot name machines still runs them.
 */
function findHostname(pod: Pod): string[] {
  const { name, annotations, ownerReferences } = pod.metadata ?? {};
  const job = ownerReferences?.find((owner) => owner.controller && owner.kind === "Job")?.name;
  const byController = [name, job && `${job}-${annotations?.["batch.kubernetes.io/job-completion-index"]}`];
  const isDefault = pod.spec?.hostname !== undefined && byController.includes(pod.spec.hostname);
  const fields = isDefault
    ? (["hostnameOverride", "setHostnameAsFQDN"] as const)
    : (["hostname", "subdomain", "hostnameOverride", "setHostnameAsFQDN"] as const);
  return fields.filter((field) => Boolean(pod.spec?.[field])).map((field) => `spec.${field}`);
}

/** On the host's network each port is one of the host's, and none is forwarded. */
function findHostPorts(pod: Pod): string[] {
  if (pod.spec?.hostNetwork) return [];
  return containerPaths(pod, (c) => paths(c.ports, ".ports", (p) => (p.hostPort ?? 0) > 0, ".hostPort"));
}

function findPodIp(pod: Pod): string[] {
  return containerPaths(pod, (c) =>
    paths(c.env, ".env", (e) => ["status.podIP", "status.podIPs"].includes(e.valueFrom?.fieldRef?.fieldPath ?? "")),
  );
}

function findLimits(pod: Pod, names: readonly string[]): string[] {
  const ofPod = names
    .filter((name) => pod.spec?.resources?.limits?.[name] !== undefined)
    .map((name) => `spec.resources.limits.${name}`);
  const ofContainers = containerPaths(pod, (c) =>
    names.filter((name) => c.resources?.limits?.[name] !== undefined).map((name) => `.resources.limits.${name}`),
  );
  return [...ofPod, ...ofContainers];
}

function volumePaths(pod: Pod, find: (volume: ReturnType<typeof usedVolumes>[number]["volume"]) => string[]): string[] {
  return usedVolumes(pod).flatMap(({ volume, index }) => find(volume).map((path) => `spec.volumes[${index}]${path}`));
}

function findVolumes(pod: Pod, kind: string): string[] {
  return volumePaths(pod, (volume) => (volumeKind(volume) === kind ? [`.${kind}`] : []));
}

function findSizeLimits(pod: Pod): string[] {
  // In memory, the limit is the size of the file system.
  return volumePaths(pod, ({ emptyDir }) =>
    emptyDir?.sizeLimit === undefined || emptyDir.medium === "Memory" ? [] : [".emptyDir.sizeLimit"],
  );
}

function findFileVolumes(pod: Pod): string[] {
  const kinds = ["configMap", "secret", "downwardAPI", "projected"];
  return volumePaths(pod, (volume) =>
    kinds.includes(volumeKind(volume)) && !isServiceAccountVolume(volume) ? [`.${volumeKind(volume)}`] : [],
  );
}

function findOtherVolumes(pod: Pod): string[] {
  const known: readonly string[] = SUPPORTED_VOLUME_KINDS;
  return volumePaths(pod, (volume) => (known.includes(volumeKind(volume)) ? [] : [`.${volumeKind(volume)}`]));
}

function findMounts(
  pod: Pod,
  isUsed: (mount: NonNullable<Container["volumeMounts"]>[number]) => boolean,
  suffix: string,
): string[] {
  return containerPaths(pod, (c) => paths(c.volumeMounts, ".volumeMounts", isUsed, suffix));
}
