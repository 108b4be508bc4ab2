/**
 * The agent's one configuration file: its shape, defaults and meaning. Strict: a key that is not here is an error,
 * because a misspelt key that is ignored is a setting that silently does not apply.
 */
import { isIP } from "node:net";
import { z } from "zod";
import { parseDuration } from "../resources/duration.ts";
import { DNS_1123, isLabelValue, isQualifiedName } from "../resources/names.ts";
import { isGlob } from "../util/glob.ts";
import { GO_NAME } from "../util/platform.ts";
import {
  duration,
  DURATION_PATTERN,
  isDuration,
  LABEL_KEY_FAULT,
  LABEL_VALUE_FAULT,
  labels,
  pairUp,
  port,
  quantity,
} from "./fields.ts";
import { capacityFault } from "./node-capacity.ts";
import { providerSchema } from "./provider-schema.ts";
import { tracingSchema } from "./tracing-schema.ts";

const API_VERSION = "vmlet.dev/v1";
const KIND = "AgentConfig";

/**
 * Of the labels that are Kubernetes' own, those that its NodeRestriction lets a kubelet give itself (KubeletLabels).
 */
const KUBELET_LABELS = [
  "kubernetes.io/hostname",
  "kubernetes.io/os",
  "kubernetes.io/arch",
  "beta.kubernetes.io/os",
  "beta.kubernetes.io/arch",
  "beta.kubernetes.io/instance-type",
  "topology.kubernetes.io/zone",
  "topology.kubernetes.io/region",
  "failure-domain.beta.kubernetes.io/zone",
  "failure-domain.beta.kubernetes.io/region",
];

function mayLabelItself(key: string): boolean {
  const [prefix = ""] = key.includes("/") ? key.split("/") : [];
  if (!/(^|\.)(kubernetes|k8s)\.io$/.test(prefix)) return true;
  return KUBELET_LABELS.includes(key) || /(^|\.)(kubelet|node)\.kubernetes\.io$/.test(prefix);
}

const globs = z.array(
  z
    .string()
    .min(1)
    .max(256)
    .refine(
      isGlob,
      "is not a glob: * any characters but '/', ? one, [a-z] one of these, \\ before each taken as it is",
    ),
);

const instanceTypeSchema = z.strictObject({
  namespaces: globs
    .min(1)
    .default(["*"])
    .describe("The rule is for pods of these namespaces; a name, or a glob such as team-*. Default: all."),
  podLabels: labels.describe(
    "Of these, for pods with all of these labels. Users choose the labels of their pods: this is a limit only where admission checks them.",
  ),
  allow: globs.describe("Instance types that they may have: a name, or a glob such as gpu-*."),
});

const taintSchema = z.strictObject({
  key: z.string().min(1).refine(isQualifiedName, LABEL_KEY_FAULT).describe("Key, in the form of a label's."),
  value: z.string().refine(isLabelValue, LABEL_VALUE_FAULT).default("").describe("Value, in the form of a label's."),
  effect: z
    .enum(["NoSchedule", "PreferNoSchedule", "NoExecute"])
    .describe("What becomes of pods that do not tolerate it."),
});

const goName = z.string().regex(GO_NAME, "must be a name of Go's, such as linux, amd64 or arm64");

const ipAddress = z.union([z.ipv4(), z.ipv6()], "must be an IP address");

const kubeletSchema = z
  .strictObject({
    address: z.string().default("0.0.0.0").describe("Address that the kubelet API listens on."),
    port: port.default(10250).describe("Port of the kubelet API; 0 picks a free one."),
    certFile: z.string().optional().describe("Serving certificate (PEM). Absent: see `certificate`."),
    keyFile: z.string().optional().describe("Its key (PEM)."),
    certificate: z
      .enum(["csr", "self-signed", "files"])
      .optional()
      .describe(
        "Where the serving certificate comes from. Default: files when certFile is set, else csr with self-signed until it is signed.",
      ),
    clientCAFile: z
      .string()
      .optional()
      .describe(
        "CA of clients such as kube-apiserver. Default: the ConfigMap kube-system/extension-apiserver-authentication.",
      ),
    sessionMaxAge: z
      .string()
      .refine(isDuration, "must be a duration such as 500ms, 10s, 5m or 1h")
      .meta({ pattern: DURATION_PATTERN })
      .optional()
      .describe(
        "How long an exec, attach, port-forward or followed log may go on: a right that was taken away ends with it. Absent: as long as it likes, as by a kubelet; without traffic, 4 hours.",
      ),
    anonymousMetrics: z
      .boolean()
      .default(false)
      .describe(
        "Serve /metrics/resource and /stats/summary without authentication. For test suites that scrape through pods/proxy.",
      ),
  })
  .superRefine((kubelet, context) => {
    pairUp(kubelet, context);
    if (kubelet.certificate === "files" && kubelet.certFile === undefined && kubelet.keyFile === undefined)
      context.addIssue({ code: "custom", path: ["certificate"], message: "files needs certFile and keyFile" });
  })
  .prefault({});

export const nodeSchema = z.strictObject({
  name: z
    .string()
    .max(253)
    .regex(DNS_1123, "must be a DNS-1123 name: lower-case letters, digits, '-' and '.'")
    .describe("The Node's name. Must never change."),
  provider: providerSchema,
  addresses: z
    .array(ipAddress)
    .superRefine((addresses, context) => {
      addresses.forEach((address, index) => {
        const first = addresses.find((other) => isIP(other) === isIP(address))!;
        if (addresses.indexOf(first) === index) return;
        const message = `is of the same family as ${first}: a pod's hostIPs have one IPv4 and one IPv6 address at most; leave one of the two out`;
        context.addIssue({ code: "custom", path: [index], message });
      });
    })
    .default([])
    .describe(
      "The node's InternalIPs, one of a family; the first is every pod's hostIP. Default: the host's first address.",
    ),
  podCIDRs: z
    .array(z.union([z.cidrv4(), z.cidrv6()], "must be a range of addresses, as 10.0.0.0/8 or fd00::/8"))
    .default([])
    .describe(
      "Ranges that machines' addresses lie in. One that lies in none of them is not believed: it becomes no pod's and is not probed. Empty: any that a host can have but loopback and link-local ones.",
    ),
  hostname: z
    .string()
    .optional()
    .describe("Published as Hostname address only when set: it must resolve from the API server."),
  labels: labels.describe("Labels of the Node, beside the standard ones and winning over them."),
  annotations: z.record(z.string(), z.string()).default({}).describe("Annotations of the Node."),
  taints: z
    .array(taintSchema)
    .superRefine((taints, context) => {
      taints.forEach(({ key, effect }, index) => {
        const first = taints.findIndex((other) => other.key === key && other.effect === effect);
        if (first === index) return;
        const message = `has the key and the effect of taints[${first}]: a Node's taints differ in one of them; leave one of the two out`;
        context.addIssue({ code: "custom", path: [index], message });
      });
    })
    .default([{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }])
    .describe(
      "Taints that the Node gets; it keeps those of others. A node may not change its own later: where the agent acts as one, an administrator has to.",
    ),
  os: goName
    .optional()
    .describe("What the machines' programs are built for (GOOS), where the backend does not say. Default: linux."),
  architecture: goName
    .optional()
    .describe(
      "The same of the processor (GOARCH: amd64, arm64), where the backend does not say. Default: this host's.",
    ),
  capacity: z
    .record(z.string(), quantity)
    .superRefine((amounts, context) => {
      for (const [name, amount] of Object.entries(amounts)) {
        const message = capacityFault(name, amount);
        if (message !== undefined) context.addIssue({ code: "custom", path: [name], message });
      }
    })
    .optional()
    .describe(
      "Synthetic capacity by resource name, in place of the backend's own: its /v1/capacity is then not asked, for conditions and taints neither. Of 16 cpu, 64Gi memory, 110 pods and 256Gi ephemeral-storage, what it leaves out is as said here. Absent: the backend's /v1/capacity, else these.",
    ),
  kubelet: kubeletSchema,
  dns: z
    .strictObject({
      clusterDns: z.array(ipAddress).default([]).describe("Addresses of the cluster's DNS service."),
      clusterDomain: z.string().default("cluster.local").describe("Domain of the cluster's Services."),
    })
    .prefault({}),
  staticPodPath: z
    .string()
    .startsWith("/", "must be an absolute path")
    .optional()
    .describe(
      "Folder of static pods, as the kubelet's: each file is one pod of this node, which comes, changes and goes with it. A file is taken when it has not changed for two seconds. Absent: none.",
    ),
  allowHostPath: z.boolean().default(false).describe("Let hostPath mean a path in the pod's own machine."),
  allowedUnsafeSysctls: z
    .array(
      z
        .string()
        .regex(
          /^[a-z0-9][-_a-z0-9]*([./][a-z0-9*][-_a-z0-9*]*)*$/,
          "must be a sysctl, or a prefix of some that ends in *",
        ),
    )
    .default([])
    .describe("Sysctls that pods may set beyond the safe ones, as the kubelet's allowedUnsafeSysctls."),
  clusterResources: z
    .array(
      z
        .string()
        .regex(
          /^[a-z0-9][-.a-z0-9]*\/(\*|[A-Za-z0-9][-_.A-Za-z0-9]*\*?)$/,
          "must be an extended resource as in example.com/licence, or a prefix of some that ends in *",
        ),
    )
    .default([])
    .describe(
      "Extended resources that others count for the whole cluster, as a scheduler's extender does: pods that ask for them run though the Node has none. A pod that asks for any other extended resource of which the Node has none is refused.",
    ),
  runtimeHandlers: z
    .array(z.string().min(1))
    .default([])
    .describe(
      "RuntimeClass handlers that this node has besides those that its backend tells of: a pod's runtimeClassName may lead to them, and its machine is like any other.",
    ),
  instanceTypes: z
    .array(instanceTypeSchema)
    .optional()
    .describe(
      "Which pods may choose which of the backend's sizes by the annotation vmlet.dev/instance-type: those that a rule allows; others are refused (InstanceTypeForbidden). Pods without the annotation run. Absent: every pod may have any; empty: none.",
    ),
  imageCredentialProvider: z
    .strictObject({
      config: z
        .string()
        .min(1)
        .describe("File of kind CredentialProviderConfig, as the kubelet's --image-credential-provider-config."),
      binDir: z.string().startsWith("/", "must be an absolute path").describe("Folder of the plugins."),
    })
    .optional()
    .describe("Plugins that know credentials of image registries."),
  agentProbes: z
    .boolean()
    .default(false)
    .describe(
      "Run readiness probes in the agent where the backend lacks probes; machines' addresses must be reachable from here.",
    ),
  daemonSets: z
    .enum(["run", "ignore"])
    .default("run")
    .describe(
      "What happens to DaemonSet pods that tolerate the node's taints. Those that cannot run here stay Pending in any case: failing them would have them made again for ever.",
    ),
  backendOutageGrace: duration("10m").describe("How long the node stays Ready while its backend does not answer."),
  sweep: z
    .strictObject({
      enabled: z.boolean().default(true).describe("Remove machines of this node whose pod is gone."),
      maxPerMinute: z.int().min(1).default(10).describe("Machines of unknown pods removed in a minute at most."),
    })
    .prefault({}),
  crashLoopBackoff: z
    .strictObject({
      initial: duration("10s").describe("Wait before the second restart; it doubles each time."),
      max: duration("300s").describe("The longest wait."),
    })
    .superRefine(({ initial, max }, context) => {
      if (parseDuration(initial) > parseDuration(max))
        context.addIssue({ code: "custom", path: ["initial"], message: `must not be longer than max (${max})` });
    })
    .optional()
    .describe("Back-off of crashing containers, when it is not a kubelet's."),
  podConcurrency: z.int().min(1).max(512).default(32).describe("Pods worked on at once."),
  podDeletionCost: z
    .boolean()
    .default(false)
    .describe("Annotate pods of ReplicaSets so that scale-in removes this node's pods before those of other nodes."),
});

export const agentConfigSchema = z
  .strictObject({
    apiVersion: z.literal(API_VERSION).describe("Version of the file's format."),
    kind: z.literal(KIND).describe("What the file is."),
    clusterId: z
      .string()
      .min(1)
      .max(63)
      .refine(
        (id) => isLabelValue(id),
        "must be letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
      )
      .optional()
      .describe(
        "Tells clusters apart that share a backend. Must never change. Default: the UID of the namespace kube-system, if it may be read.",
      ),
    kubeconfig: z
      .string()
      .optional()
      .describe(
        "File that says where the API server is. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
      ),
    identity: z
      .strictObject({
        mode: z
          .enum(["direct", "impersonate", "certificate"])
          .default("direct")
          .describe(
            "direct: as the credentials say. impersonate: as system:node:<name> in group system:nodes. " +
              "certificate: the same, by a client certificate that the cluster signs; its key never leaves the process.",
          ),
      })
      .prefault({}),
    logLevel: z
      .enum(["debug", "info", "warn", "error"])
      .default("info")
      .describe("Lowest level of log lines that are written."),
    audit: z
      .strictObject({
        commands: z
          .enum(["first", "full"])
          .default("first")
          .describe(
            "How much of a command a line of the audit says, at level info of the log: its first word, or all of it, with the secrets that may stand there.",
          ),
      })
      .prefault({}),
    tracing: tracingSchema,
    health: z
      .strictObject({
        address: z.string().default("127.0.0.1").describe("Address that health and metrics are served on."),
        port: port.default(10248).describe("Plain HTTP: /livez, /readyz, /metrics. 0 picks a free port."),
        probePort: port
          .optional()
          .describe("Another port for /livez and /readyz alone, for probes that no scraper should come in the way of."),
      })
      .prefault({}),
    leaderElection: z
      .strictObject({
        enabled: z.boolean().default(false).describe("Act only while this agent leads; others stand by."),
        namespace: z.string().default("kube-system").describe("Namespace of the lease that the agents compete for."),
        name: z.string().default("vmlet").describe("Its name."),
        leaseDuration: duration("15s").describe("A standby takes over when the leader has not renewed for this long."),
        renewDeadline: duration("10s").describe("A leader that could not renew for this long stops acting."),
        retryPeriod: duration("2s").describe("Time between renewals."),
        takeOver: z
          .boolean()
          .default(false)
          .describe(
            "Answer for nodes although agents of another election do, or without one those of another backend, which then end. Without it, one that finds such a Node ends.",
          ),
      })
      .superRefine(({ leaseDuration, renewDeadline, retryPeriod }, context) => {
        const [lease, renew, retry] = [leaseDuration, renewDeadline, retryPeriod].map(parseDuration) as [
          number,
          number,
          number,
        ];
        // Or a second agent would lead before the first has stopped.
        if (renew >= lease) {
          const message = `must be shorter than leaseDuration (${leaseDuration})`;
          context.addIssue({ code: "custom", path: ["renewDeadline"], message });
        }
        // The elector waits for up to one and a half.
        if (retry <= 0 || retry * 1.5 >= renew) {
          const message = `must be more than 0 and less than two thirds of renewDeadline (${renewDeadline})`;
          context.addIssue({ code: "custom", path: ["retryPeriod"], message });
        }
      })
      .prefault({}),
    api: z
      .strictObject({
        qps: z
          .number()
          .positive()
          .default(500)
          .describe(
            "Requests to the API server per second. A kubelet's 50 would hold back the bursts that this node is for.",
          ),
        burst: z.int().positive().default(1000).describe("Requests that may exceed that rate for a moment."),
      })
      .prefault({}),
    nodes: z.array(nodeSchema).min(1),
  })
  .superRefine(({ nodes }, context) => {
    nodes.forEach(({ name }, index) => {
      const first = nodes.findIndex((other) => other.name === name);
      if (first === index) return;
      const message = `${name} is the name of nodes[${first}] too: node names must differ`;
      context.addIssue({ code: "custom", path: ["nodes", index, "name"], message });
    });
  })
  .superRefine(uniquePorts)
  .superRefine(({ identity, nodes }, context) => {
    // The API server would refuse the whole registration of an agent that acts as the node itself.
    if (identity.mode === "direct") return;
    nodes.forEach((node, index) => {
      for (const [key, value] of Object.entries(node.labels)) {
        if (mayLabelItself(key)) continue;
        const message = `a node may not give itself this label (NodeRestriction); an administrator may: kubectl label node ${node.name} ${key}=${value}`;
        context.addIssue({ code: "custom", path: ["nodes", index, "labels", key], message });
      }
    });
  });

interface Listen {
  address: string;
  port: number;
}

function uniquePorts(
  config: { health: Listen & { probePort?: number | undefined }; nodes: readonly { kubelet: Listen }[] },
  context: z.RefinementCtx,
): void {
  const { address, port, probePort } = config.health;
  const listens: (Listen & { by: string; path: (string | number)[] })[] = [
    { address, port, by: "health.port", path: ["health", "port"] },
    ...(probePort === undefined
      ? []
      : [{ address, port: probePort, by: "health.probePort", path: ["health", "probePort"] }]),
    ...config.nodes.map(({ kubelet }, index) => ({
      address: kubelet.address,
      port: kubelet.port,
      by: `nodes[${index}]`,
      path: ["nodes", index, "kubelet", "port"],
    })),
  ];
  listens.forEach((listen, index) => {
    const first = listens.slice(0, index).find((other) => clash(other, listen));
    if (first === undefined) return;
    let free = listen.port;
    while (listens.some((other) => clash(other, { ...listen, port: free }))) free++;
    const cure = free > 65_535 ? "set another" : `set another, such as ${free}`;
    context.addIssue({ code: "custom", path: listen.path, message: `${listen.port} is taken by ${first.by}; ${cure}` });
  });
}

function clash(one: Listen, other: Listen): boolean {
  return (
    one.port === other.port &&
    one.port !== 0 &&
    (covers(one.address, other.address) || covers(other.address, one.address))
  );
}

/** Whether who listens on `wide` listens on `address` too. */
function covers(wide: string, address: string): boolean {
  return wide === address || wide === "::" || (wide === "0.0.0.0" && !address.includes(":"));
}

export type AgentConfig = z.infer<typeof agentConfigSchema>;
export type NodeConfig = AgentConfig["nodes"][number];
export type ProviderConfig = NodeConfig["provider"];

export type CloudProviderConfig = Extract<ProviderConfig, { type: "cloud" }>;
