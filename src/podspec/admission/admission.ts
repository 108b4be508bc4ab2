/**
 * Whether this node takes a pod that is bound to it: the kubelet's own checks, in its order and with its words
 * (pkg/kubelet/lifecycle/predicate.go, sysctl/allowlist.go, scheduler `AdmissionCheck`). Pure. A pod that already has a
 * machine is never asked again: a running pod is not rejected because the node changed.
 */
import { controllerOf } from "../../kube/pod.ts";
import type { Node, Pod } from "../../kube/wire.ts";
import { findUntoleratedTaint, isSubset, matchesNodeSelectorTerms } from "../../resources/labels.ts";
import { parseResourceList, podRequests, type ResourceList } from "../../resources/pod-resources.ts";
import { Quantity } from "../../resources/quantity.ts";
import { allocatedUnits, hostPorts, unitsOf, type OtherPods } from "./allocation.ts";
import type { PodEvent } from "../types.ts";
import { choosePodsToPreempt, isCriticalPod, type Shortage } from "./preemption.ts";

/** Sysctls that concern only the pod (pkg/kubelet/sysctl/safe_sysctls.go, with those that 1.37 adds). */
const SAFE_SYSCTLS: readonly string[] = [
  "kernel.shm_rmid_forced",
  "net.ipv4.ip_local_port_range",
  "net.ipv4.ip_local_reserved_ports",
  "net.ipv4.ip_unprivileged_port_start",
  "net.ipv4.ping_group_range",
  "net.ipv4.tcp_fin_timeout",
  "net.ipv4.tcp_keepalive_intvl",
  "net.ipv4.tcp_keepalive_probes",
  "net.ipv4.tcp_keepalive_time",
  "net.ipv4.tcp_notsent_lowat",
  "net.ipv4.tcp_rmem",
  "net.ipv4.tcp_slow_start_after_idle",
  "net.ipv4.tcp_syncookies",
  "net.ipv4.tcp_wmem",
];

export interface AdmissionInput {
  pod: Pod;
  /** This node as the API server has it; undefined while it is not known. */
  node: Node | undefined;
  otherPods: OtherPods;
  /** Names, or prefixes that end in `*`, beyond the safe ones. */
  allowedUnsafeSysctls?: readonly string[] | undefined;
  /**
   * Extended resources that others count for the whole cluster, by name or by a prefix that ends in `*`: the node need
   * not have them.
   */
  clusterResources?: readonly string[] | undefined;
  /** `ignore`: DaemonSet pods stay Pending without a machine. Failing them would have them recreated for ever. */
  daemonSets: "run" | "ignore";
}

/** Terminal: the pod fails with this reason and `Pod was rejected: ` before the message. */
interface Rejection {
  kind: "reject";
  reason: string;
  message: string;
}

type Admission =
  | { kind: "admit" }
  | Rejection
  /** The pod stays Pending, and a warning event says why. */
  | { kind: "hold"; reason: string; message: string }
  /** A critical pod for which there is room once these are gone. */
  | { kind: "preempt"; victims: readonly Pod[] };

const ADMIT: Admission = { kind: "admit" };

/** The first check that fails decides. */
export function admitPod(input: AdmissionInput): Admission {
  const { pod, node, otherPods } = input;
  if (input.daemonSets === "ignore" && isDaemonSetPod(pod)) {
    return {
      kind: "hold",
      reason: "DaemonSetNotSupported",
      message:
        "DaemonSet pods get no machine on this node; exclude it by node affinity in the DaemonSet, or set daemonSets: run",
    };
  }
  const sysctl = forbiddenSysctl(pod, input.allowedUnsafeSysctls ?? []);
  if (sysctl !== undefined) return reject("SysctlForbidden", `forbidden sysctl: "${sysctl}" not allowlisted`);
  if (node === undefined) return reject("InvalidNodeInfo", "Kubelet cannot get node info.");
  const unfit = checkPlatform(pod, node);
  if (unfit !== undefined) return unfit;

  const allocatable = parseResourceList(node.status?.allocatable);
  const elsewhere = (name: string) => matchesAny(input.clusterResources ?? [], name);
  const shortages = findShortages({ pod, allocatable, otherPods, elsewhere });
  if (shortages.length > 0 && !isCriticalPod(pod)) return outOf(shortages[0]!);
  const misplaced = checkPlacement(pod, node, otherPods);
  if (misplaced !== undefined) return misplaced;
  if (shortages.length === 0) return ADMIT;
  // A lack of resources alone does not keep a critical pod away.
  const choice = choosePodsToPreempt(pod, shortages, otherPods.list(), allocatedUnits);
  if (choice.ok) return { kind: "preempt", victims: choice.victims };
  return reject(
    "UnexpectedAdmissionError",
    `Unexpected error while attempting to recover from admission failure: ${choice.message}`,
  );
}

/** What the node's system cannot do for this pod (predicate.go, before the scheduler's checks). */
function checkPlatform(pod: Pod, { status }: Node): Rejection | undefined {
  const nodeOs = status?.nodeInfo?.operatingSystem ?? "linux";
  const podOs = pod.metadata?.labels?.["kubernetes.io/os"];
  if (podOs !== undefined && podOs !== nodeOs) {
    return reject(
      "PodOSSelectorNodeLabelDoesNotMatch",
      "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    );
  }
  const spec = pod.spec;
  if (spec?.os !== undefined && spec.os.name !== nodeOs)
    return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
  return undefined;
}

/** The scheduler's checks, as the kubelet repeats them (scheduler: `AdmissionCheck`). */
function checkPlacement(pod: Pod, node: Node, otherPods: OtherPods): Rejection | undefined {
  if (!matchesNodeAffinity(pod, node))
    return predicateFailed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
  const nodeName = pod.spec?.nodeName ?? "";
  if (nodeName !== "" && nodeName !== node.metadata?.name)
    return predicateFailed("NodeName", "node(s) didn't match the requested node name");
  if (hostPorts(pod).some((port) => otherPods.hasPort(port)))
    return predicateFailed("NodePorts", "node(s) didn't have free ports for the requested pod ports");
  const taint = findUntoleratedTaint(node.spec?.taints ?? [], pod.spec?.tolerations ?? [], ["NoExecute"]);
  if (taint !== undefined) return predicateFailed("TaintToleration", "node(s) had taints that the pod didn't tolerate");
  return undefined;
}

/**
 * Why a DaemonSet's pod stays Pending. Its controller would replace a pod that fails at once, and so for ever:
 * DaemonSets of node agents tolerate every taint, and need what no machine has.
 */
export function daemonSetHeld(message: string): PodEvent {
  return {
    type: "Warning",
    reason: "DaemonSetNotSupported",
    message: `The pod stays Pending: ${message}. Exclude this node by node affinity in the DaemonSet`,
  };
}

/** True for pods that a DaemonSet controls. */
export function isDaemonSetPod(pod: Pod): boolean {
  const owner = controllerOf(pod);
  return owner?.kind === "DaemonSet" && owner.apiVersion.startsWith("apps/");
}

/** nodeSelector and the required node affinity together. */
function matchesNodeAffinity(pod: Pod, node: Node): boolean {
  const labels = node.metadata?.labels ?? {};
  if (!isSubset(pod.spec?.nodeSelector ?? {}, labels)) return false;
  const required = pod.spec?.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  if (required === undefined || required === null) return true;
  return matchesNodeSelectorTerms({ name: node.metadata?.name ?? "", labels }, required.nodeSelectorTerms ?? []);
}

function reject(reason: string, message: string): Rejection {
  return { kind: "reject", reason, message };
}

function predicateFailed(name: string, description: string): Rejection {
  return reject(name, `Predicate ${name} failed: ${description}`);
}

function forbiddenSysctl(pod: Pod, allowed: readonly string[]): string | undefined {
  const patterns = [...SAFE_SYSCTLS, ...allowed.map((name) => name.replaceAll("/", "."))];
  return (pod.spec?.securityContext?.sysctls ?? [])
    .map(({ name }) => name.replaceAll("/", "."))
    .find((name) => !matchesAny(patterns, name));
}

/** @param patterns names, or prefixes that end in `*` */
function matchesAny(patterns: readonly string[], name: string): boolean {
  return patterns.some((p) => (p.endsWith("*") ? name.startsWith(p.slice(0, -1)) : name === p));
}

/** What a running pod would be short of if it were given what it asks for. */
export function checkResources(pod: Pod, allocatable: ResourceList, otherPods: OtherPods): Rejection | undefined {
  // It was admitted: what the node does not have is counted elsewhere, or was gone since.
  const [first] = findShortages({ pod, allocatable, otherPods, elsewhere: () => true });
  return first === undefined ? undefined : outOf(first);
}

/**
 * True when a pod asks for extended resources that a node does not show. Somebody may have given it some since it was
 * read.
 */
export function lacksExtended(pod: Pod, node: Node): boolean {
  const allocatable = parseResourceList(node.status?.allocatable);
  return [...podRequests(pod.spec ?? { containers: [] }).keys()].some(
    (name) => isExtended(name) && (allocatable.get(name)?.nano ?? 0n) === 0n,
  );
}

interface Demand {
  pod: Pod;
  allocatable: ResourceList;
  otherPods: OtherPods;
  /** Whether others than the node count this extended resource. */
  elsewhere: (name: string) => boolean;
}

/**
 * Pods, cpu, memory, local storage, then the rest by name. A kubelet leaves every extended resource that its node does
 * not have to others, and starts a pod without its GPU when the plugin is away; here that is so only for those that the
 * configuration names.
 */
function findShortages({ pod, allocatable, otherPods, elsewhere }: Demand): Shortage[] {
  const shortages: Shortage[] = [];
  const maxPods = allocatable.get("pods")?.toNumber() ?? 0;
  if (otherPods.count + 1 > maxPods) {
    shortages.push({ name: "pods", requested: 1n, used: BigInt(otherPods.count), capacity: BigInt(maxPods) });
  }
  const requests = podRequests(pod.spec ?? { containers: [] });
  if (requests.size === 0) return shortages;
  const first = ["cpu", "memory", "ephemeral-storage"];
  const names = [
    ...first.filter((name) => requests.has(name)),
    ...[...requests.keys()].filter((name) => !first.includes(name)).sort(),
  ];
  for (const name of names) {
    const available = allocatable.get(name);
    if (available === undefined && isExtended(name) && elsewhere(name)) continue;
    const requested = unitsOf(name, requests.get(name) ?? Quantity.zero);
    const total = otherPods.allocated(name);
    const capacity = unitsOf(name, available ?? Quantity.zero);
    if (requested > 0n && requested > capacity - total) shortages.push({ name, requested, used: total, capacity });
  }
  return shortages;
}

function outOf({ name, requested, used, capacity }: Shortage): Rejection {
  return reject(
    `OutOf${name}`,
    `Node didn't have enough resource: ${name}, requested: ${requested}, used: ${used}, capacity: ${capacity}`,
  );
}

/** Names with a domain that is not Kubernetes' own (pkg/apis/core/v1/helper `IsExtendedResourceName`). */
function isExtended(name: string): boolean {
  if (!name.includes("/")) return false;
  const domain = name.slice(0, name.indexOf("/"));
  return domain !== "kubernetes.io" && !domain.endsWith(".kubernetes.io") && !name.startsWith("requests.");
}
