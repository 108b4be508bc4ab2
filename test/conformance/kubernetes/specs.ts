/** Which of the suite's specs are run, and why the others are not. */

/** What a node agent is answerable for; the suite's other groups only on demand. Paths below Kubernetes' test/e2e. */
export const GROUPS = [
  "common/node",
  "common/storage",
  "node",
  "storage",
  "auth",
  "instrumentation",
  "scheduling",
] as const;

/** Of these also what is tagged neither [Conformance] nor [NodeConformance] has a table. */
const UNTAGGED_GROUPS: readonly string[] = [
  "apps",
  "common/network",
  "common/node",
  "common/storage",
  "dra",
  "kubectl",
  "network",
  "network/netpol",
  "node",
  "storage",
];

/** Labels of what a cluster has to be made for: gates that are off by default, and a cloud's load balancers. */
const ASKED_OF_FEW: readonly string[] = ["Alpha", "BetaOffByDefault", "Feature:OffByDefault", "Feature:LoadBalancer"];

export interface Spec {
  /** The whole text, as ginkgo's focus sees it. */
  name: string;
  /** Folder below test/e2e. */
  group: string;
  labels: readonly string[];
}

/** What ginkgo's `--ginkgo.json-report` has of a spec; only the fields that are read here. */
export interface SpecReport {
  ContainerHierarchyTexts: string[] | null;
  ContainerHierarchyLabels: (string[] | null)[] | null;
  LeafNodeType: string;
  LeafNodeLocation: { FileName: string };
  LeafNodeLabels: string[] | null;
  LeafNodeText: string;
  State: string;
  NumAttempts: number;
  /** Nanoseconds. */
  RunTime: number;
  Failure?: { Message: string; FailureNodeLocation?: { FileName: string; LineNumber: number } };
}

export type GinkgoReport = { SpecReports: SpecReport[] | null }[];

export function specOf(report: SpecReport): Spec {
  const folder = /test\/e2e\/(.*)\/[^/]+$/.exec(report.LeafNodeLocation.FileName)?.[1];
  return {
    name: [...(report.ContainerHierarchyTexts ?? []), report.LeafNodeText].join(" "),
    group: folder ?? "",
    labels: [
      ...(report.ContainerHierarchyLabels ?? []).flatMap((each) => each ?? []),
      ...(report.LeafNodeLabels ?? []),
    ],
  };
}

export interface Selection {
  /** A regular expression of names, or of groups; a group that is none of GROUPS is chosen only by itself. */
  focus?: string;
  /** Those of the table of untagged ones, in place of the tagged. */
  untagged?: boolean;
}

/** The specs that are tagged [Conformance] or [NodeConformance], or those that are not, sorted by name. */
export function selectSpecs(report: GinkgoReport, { focus = "", untagged = false }: Selection = {}): Spec[] {
  const groups: readonly string[] = untagged ? UNTAGGED_GROUPS : GROUPS;
  const pattern = new RegExp(focus);
  return suiteOf(report, { untagged })
    .specs.filter(
      ({ name, group }) => (groups.includes(group) && pattern.test(name)) || (focus !== "" && pattern.test(group)),
    )
    .toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

export interface Suite {
  /** Those of a table. */
  specs: readonly Spec[];
  /** How many others each group has. */
  others: ReadonlyMap<string, number>;
}

/** All that the suite has, chosen or not: of the table of the tagged, or of that of the untagged. */
export function suiteOf(report: GinkgoReport, { untagged = false }: Pick<Selection, "untagged"> = {}): Suite {
  const belongs = untagged ? isUntagged : isTagged;
  const all = allSpecs(report);
  const others = new Map<string, number>();
  for (const spec of all) if (!belongs(spec)) others.set(spec.group, (others.get(spec.group) ?? 0) + 1);
  return { specs: all.filter(belongs), others };
}

function allSpecs(report: GinkgoReport): Spec[] {
  return report
    .flatMap((suite) => suite.SpecReports ?? [])
    .filter(({ LeafNodeType }) => LeafNodeType === "It")
    .map(specOf);
}

function isTagged({ labels }: Spec): boolean {
  return labels.includes("Conformance") || labels.includes("NodeConformance");
}

function isUntagged(spec: Spec): boolean {
  return (
    !isTagged(spec) && UNTAGGED_GROUPS.includes(spec.group) && !spec.labels.some((each) => ASKED_OF_FEW.includes(each))
  );
}

/** Of groups that are run on demand alone. */
const NOT_RUN: Readonly<Record<string, string>> = {
  apimachinery: "of the API server: a node only runs the servers that some of these tests install",
  architecture: "counts the nodes of the cluster",
  dra: "of the API server: they make and change objects of resource claims, and no pod",
};

/** Why a spec has no result. */
export function notRunReason({ group }: Spec): string {
  return NOT_RUN[group] ?? "not tried on this engine yet";
}

/** The specs that want the cluster for themselves. */
export function isSerial({ labels }: Spec): boolean {
  return labels.includes("Serial") || labels.includes("Disruptive");
}

/** Minutes rather than seconds. */
export function isSlow({ labels }: Spec): boolean {
  return labels.includes("Slow");
}

/** Whether the report says how a test went. A spec that was out of focus is in it too, as skipped, without a word. */
export function wasRun({ LeafNodeType, State, Failure }: SpecReport): boolean {
  return LeafNodeType === "It" && State !== "interrupted" && (State !== "skipped" || (Failure?.Message ?? "") !== "");
}

/** What a host, or the engine on it, may lack. */
export interface HostFacts {
  /** The kernel has links of type dummy. */
  dummyLinks: boolean;
  /** A process may make it less likely to be killed when memory runs out (CAP_SYS_RESOURCE). */
  oomScores: boolean;
  /** The kernel speaks SCTP. */
  sctp: boolean;
  selinux: boolean;
  /** The kernel mounts file systems of NFS servers. */
  nfs: boolean;
  /** The engine gives pods the host's network and files, where its owner lets it. */
  hostAccess: boolean;
  /** The engine changes a pod's own resources in place (capability `resize_machine`). */
  podResize: boolean;
  /** Control groups of containers are of version 1. */
  cgroupV1: boolean;
}

export type EngineFacts = Pick<HostFacts, "hostAccess" | "podResize" | "cgroupV1">;

/** Of a pod of class Guaranteed, those in which the policy of what changes is a restart. */
const GUARANTEED_RESTART =
  /\bguaranteed qos .*\] (cpu & mem restart.* resizing (only pod-level )?(cpu|mem)\b|cpu restart resizing (only pod-level )?cpu\b|mem restart resizing ((only pod-level )?mem\b|cpu & mem\b))/;

/**
 * What cannot be passed without something that not every host or engine has. More work would not change it; what more
 * work would change is not left out but fails.
 */
const LEFT_OUT: readonly { pattern: RegExp; fact?: keyof HostFacts; reason: string }[] = [
  {
    pattern:
      /subPath should (remount stale subpath bind mount|unmount if pod is (gracefully|force) deleted while kubelet is down)/,
    reason:
      "looks for the bind mount below /var/lib/kubelet/pods, where a kubelet has it: a backend keeps what it has of a machine in its own folder",
  },
  {
    pattern: /block volmode\)\] disruptive .* while the kubelet is down cleans up/,
    reason:
      "looks for links to devices below /var/lib/kubelet, where a kubelet has them: a backend keeps what it has of a machine in its own folder",
  },
  {
    pattern: /deleted while the kubelet is down is usable by a new pod/,
    fact: "hostAccess",
    reason: "looks for the pod's mounts on the host of its node: a guest has them, and the host does not",
  },
  {
    pattern: /volume mounted to a pod that is force deleted while the kubelet is down/,
    reason:
      "looks after half a minute: a machine whose pod went while no agent was there is stopped after two sightings a minute apart, lest one be lost by mistake",
  },
  {
    pattern: /Flexvolumes/,
    reason:
      "installs FlexVolume drivers, programs that a kubelet calls on its own host: deprecated since Kubernetes 1.23",
  },
  {
    pattern: /KubeletManagedEtcHosts|if pod uses host network|when hostNetwork is enabled/,
    fact: "hostAccess",
    reason: "starts a pod with hostNetwork: a machine has a network of its own, and never the node's",
  },
  {
    pattern: /when running a container with a new image/,
    fact: "hostAccess",
    reason: "its registry is a pod with hostNetwork, reached as localhost:5000 of the node",
  },
  {
    pattern: /should not mount \/ map unused volumes/,
    fact: "hostAccess",
    reason:
      "looks for mounts from a pod with hostNetwork and the node's own folders: a guest has them, and no pod sees the host's",
  },
  {
    pattern: /\] Job should allow to use (the|a) pod failure policy/,
    fact: "hostAccess",
    reason:
      "its pods leave marks for each other in a folder of the node (hostPath): no machine sees what another one writes",
  },
  {
    pattern: /\] HostPort validates/,
    fact: "hostAccess",
    reason: "its client is a pod with hostNetwork, which speaks with the node's own address",
  },
  {
    pattern: /Granular Checks: Pods should function for node-pod communication/,
    fact: "hostAccess",
    reason: "its client is a pod with hostNetwork: a machine has a network of its own, and never the node's",
  },
  {
    pattern: /^\[sig-node\] PLR Pod InPlace Resize/,
    fact: "podResize",
    reason:
      "changes a pod's own resources in place, and reads its control group by its UID: here they are the size of its VM, which it keeps",
  },
  {
    pattern: /should support resizing a non-sidecar init container/,
    fact: "cgroupV1",
    reason:
      "asks the container that waits behind its init container which version control groups are of, and takes none for an answer as version 1",
  },
  {
    pattern: GUARANTEED_RESTART,
    fact: "oomScores",
    reason:
      "asks for oom_score_adj -997 of a container that was restarted: this host lets no process go below 0 (no CAP_SYS_RESOURCE)",
  },
  {
    pattern: /DNS configMap nameserver Forward PTR lookup/,
    reason: "asks public name servers for the name of 8.8.8.8, before it asks the cluster's for one of its own",
  },
  {
    pattern: /loopback local block volume should support online expansion on node/,
    fact: "oomScores",
    reason: "has an ext4 grow while it is mounted: this host's kernel lets no process do that (no CAP_SYS_RESOURCE)",
  },
  {
    pattern: /\[Feature:SCTPConnectivity\]/,
    fact: "sctp",
    reason: "speaks SCTP, which the kernel of this host does not (CONFIG_IP_SCTP)",
  },
  {
    pattern: /volume SELinux relabeling/,
    fact: "selinux",
    reason: "asks for labels of SELinux, which this host does not have",
  },
  {
    pattern: /\[Feature:NodeLogQuery\] should return the kubelet logs/,
    reason:
      "asks for what systemd's journal has of a service named kubelet, by what a kubelet serves only where it is told to, and by SSH",
  },
  {
    pattern: /\[Feature:LocalhostNodePorts\]|should recreate its iptables rules if they are deleted/,
    reason: "asks for what kube-proxy does in mode iptables alone: here it is in mode nftables",
  },
  {
    pattern: /Internet connection for containers/,
    reason: "asks for servers of the Internet, which is not there where the tests run",
  },
  {
    pattern: /should proxy logs on node/,
    reason:
      "asks for the log folder of the node's host, which a kubelet serves unless it is told not to: the agent is not on the host of its machines",
  },
  {
    pattern: /Mount propagation should propagate mounts within defined scopes/,
    reason: "looks for the process of a kubelet on the host of the node, to see what is mounted there",
  },
  {
    pattern:
      /local terminating endpoints when there are no ready endpoints with (external|internal)TrafficPolicy=Local|fail health check node port if there are only terminating|service endpoints using hostNetwork|internalTrafficPolicy=Local|externalTrafficPolicy=Local for type=NodePort/,
    reason: "wants the nodes to be hosts of their own: here both are one, with one kube-proxy",
  },
  {
    pattern:
      /PersistentVolumes NFS|NFSPersistentVolumes|disrupting NFS volume|should let an external dynamic provisioner/,
    fact: "nfs",
    reason: "mounts file systems of an NFS server, which the kernel of this host does not (CONFIG_NFS_FS)",
  },
  {
    pattern: /^\[sig-storage\] Volume metrics|should run after kubelet stopped with CSI volume mounted/,
    reason: "starts the CSI driver hostpath, of which there is neither an image nor a Go module where the tests run",
  },
  {
    pattern: /Pod garbage collector .*should handle the creation of 1000 pods/,
    reason: "wants a controller manager that leaves 100 pods that are over (--terminated-pod-gc-threshold)",
  },
  {
    pattern: /should run iperf2/,
    reason: "reads what an older iperf prints than the one that the stand-in of its image has",
  },
  {
    pattern: /image credentials fetched from external credential provider/,
    reason: "its image is in a registry of Google's, for which its cloud gives the credentials",
  },
  {
    pattern: /DaemonRestart .*Kubelet should not restart containers/,
    reason: "asks the port 10248 of each node's host for a kubelet's health, and kills the process of that name",
  },
  {
    pattern: /should report RunningInUserNamespace/,
    reason: "looks for a process named kubelet, and for the user namespace that it is in",
  },
  {
    pattern: /resource usage tracking/,
    reason:
      "measures the container runtime of the node's own host (systemContainers of /stats/summary): machines are a backend's, whose programs are no part of the node",
  },
  {
    pattern: /NonGracefulNodeShutdown .* via gce pd driver/,
    reason: "wants disks of Google's cloud",
  },
  {
    pattern: /PrivilegedPod/,
    fact: "dummyLinks",
    reason: "adds a link of type dummy, which the kernel of this host does not have (CONFIG_DUMMY)",
  },
];

/** Why the spec cannot be passed on this host by this engine; undefined when it is to be run. */
export function leftOut({ name }: Pick<Spec, "name">, host: HostFacts): string | undefined {
  return LEFT_OUT.find(({ pattern, fact }) => pattern.test(name) && (fact === undefined || !host[fact]))?.reason;
}

/**
 * A value of `--ginkgo.focus` that matches these specs and no others. Ginkgo puts the suite's description before the name,
 * and leaves out the texts that are empty, which the report has.
 */
export function focusOn(specs: readonly Spec[]): string {
  const pattern = ({ name }: Spec) => name.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&").replaceAll(/ +/g, " +");
  return `(${specs.map(pattern).join("|")})$`;
}

/** A process of the suite takes seconds to begin; more tests in each leave too few portions to share the work out evenly. */
const MAX_PORTION = 8;

/** The specs in portions, for so many workers that take one after another: the slow ones each by itself. */
export function portions(specs: readonly Spec[], workers: number): Spec[][] {
  const slow = specs.filter(isSlow).map((spec) => [spec]);
  const quick = specs.filter((spec) => !isSlow(spec));
  const size = Math.min(MAX_PORTION, Math.ceil(quick.length / workers));
  const chunks = Array.from({ length: Math.ceil(quick.length / size) || 0 }, (_, index) =>
    quick.slice(index * size, (index + 1) * size),
  );
  return [...slow, ...chunks];
}
