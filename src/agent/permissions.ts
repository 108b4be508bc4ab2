/**
 * Every permission that the agent needs, each with what stops working without it. `vmlet check` asks the API server for
 * each; the chart's roles are held to the same list.
 */
import type { AgentConfig, NodeConfig } from "../config/schema.ts";
import type { ResourceAttributes } from "../kube/reviews.ts";

export interface Permission {
  attributes: ResourceAttributes;
  /** What does not work without it. */
  purpose: string;
  /** The agent runs without it; only the named feature is missing. */
  optional?: boolean;
  /** Needed by the process itself, not by the identity that it acts as. */
  asProcess?: boolean;
  /**
   * The namespace and name that are asked about are examples: of every namespace, or of those whose pods may run on the
   * node. Absent: they are meant.
   */
  exampleOf?: "namespaces" | "workloads" | undefined;
  /** What an attacker could do with it besides: to be granted on purpose only. */
  danger?: string;
}

interface PermissionNeeds {
  /**
   * Unless direct, it acts as `system:node:<name>`: then the Node authorizer decides by pod, which cannot be asked in
   * advance.
   */
  mode: "direct" | "impersonate" | "certificate";
  /** Asks the cluster to sign the serving certificate. */
  csr: boolean;
  /** Derives the cluster's identity from kube-system. */
  clusterId: boolean;
  /** Reads the client CA that the API server publishes. */
  clientCa: boolean;
  leaderElection: { namespace: string; name: string } | undefined;
  /** Makes pods of files. */
  staticPods?: boolean | undefined;
  /** Tells guests of a cloud where Services lead. */
  services?: boolean | undefined;
}

/**
 * What the agent must be allowed for one node.
 * @internal
 */
export function nodePermissions(nodeName: string, needs: PermissionNeeds): Permission[] {
  const ownPods = {
    fieldSelector: { requirements: [{ key: "spec.nodeName", operator: "In" as const, values: [nodeName] }] },
  };
  const ownNode = {
    // RBAC looks at the name, the Node authorizer at the selector; a list by this selector has both.
    name: nodeName,
    fieldSelector: { requirements: [{ key: "metadata.name", operator: "In" as const, values: [nodeName] }] },
  };
  const core = (
    verb: string,
    resource: string,
    purpose: string,
    more: Partial<ResourceAttributes> = {},
    exampleOf?: Permission["exampleOf"],
  ): Permission => ({
    attributes: { verb, resource, ...more },
    purpose,
    exampleOf,
  });
  const probe = { namespace: "default", name: "probe" };
  /** What a node may do to objects that a pod of its own refers to: known only once there is such a pod. */
  const byPod: Permission[] = [
    core("get", "pods", "no machine can be created: each create is confirmed by a read of the pod"),
    core("patch", "pods", "pod status cannot be reported", { subresource: "status" }),
    core("delete", "pods", "deleted pods stay Terminating"),
    core("get", "configmaps", "pods that refer to ConfigMaps stay Pending", probe, "workloads"),
    core("get", "secrets", "pods that refer to Secrets stay Pending", probe, "workloads"),
    core(
      "create",
      "serviceaccounts",
      "service-account tokens cannot be given to pods",
      { subresource: "token", namespace: "default", name: "default" },
      "workloads",
    ),
  ];
  const permissions: Permission[] = [
    ...(needs.mode === "direct" ? [CLAIMS, CSI_DRIVERS, ...diskPermissions(nodeName)] : []),
    core("create", "nodes", "the Node cannot be registered"),
    core("get", "nodes", "the Node's state cannot be read", { name: nodeName }),
    core("list", "nodes", "changes of the Node by others go unnoticed", ownNode),
    core("watch", "nodes", "changes of the Node by others go unnoticed", ownNode),
    core("patch", "nodes", "the Node's status cannot be reported", { subresource: "status", name: nodeName }),
    {
      ...core(
        "patch",
        "nodes",
        "changed taints, and the cordon of a node taken out of the configuration, are left to you",
        {
          name: nodeName,
        },
      ),
      optional: true,
    },
    ...(needs.staticPods ? [core("create", "pods", "static pods are not made of their files")] : []),
    core("list", "pods", "pods of this node cannot be found", ownPods),
    core("watch", "pods", "pods of this node cannot be followed", ownPods),
    core("list", "services", "service environment variables are missing"),
    core("watch", "services", "service environment variables are missing"),
    core("create", "events", "events are lost", { namespace: "default" }, "namespaces"),
    core("patch", "events", "repeated events are not counted", { namespace: "default" }, "namespaces"),
    {
      attributes: { verb: "get", group: "node.k8s.io", resource: "runtimeclasses" },
      purpose: "pods with a runtimeClassName stay Pending",
    },
    ...(needs.mode === "direct" ? byPod : []),
    ...["create", "patch"].map((verb) => ({
      attributes: {
        verb,
        group: "coordination.k8s.io",
        resource: "leases",
        namespace: "kube-node-lease",
        ...(verb !== "create" && { name: nodeName }),
      },
      purpose: "the node turns Unknown within a minute",
    })),
    {
      attributes: { verb: "create", group: "authentication.k8s.io", resource: "tokenreviews" },
      purpose: "clients of the kubelet API cannot authenticate by token",
    },
    {
      attributes: { verb: "create", group: "authorization.k8s.io", resource: "subjectaccessreviews" },
      purpose: "every request to the kubelet API is refused",
    },
  ];
  if (needs.csr) permissions.push(...SERVING_CERTIFICATE);
  return [...permissions, ...processPermissions(nodeName, needs)];
}

/** For a backend whose host has plugins of drivers (Dynamic Resource Allocation). */
const CLAIMS: Permission = {
  attributes: {
    verb: "get",
    group: "resource.k8s.io",
    resource: "resourceclaims",
    namespace: "default",
    name: "probe",
  },
  exampleOf: "workloads",
  purpose: "pods with resource claims stay Pending",
  optional: true,
};

/** For a backend whose host has node plugins of CSI drivers. */
const CSI_DRIVERS: Permission = {
  attributes: { verb: "get", group: "storage.k8s.io", resource: "csidrivers" },
  purpose: "pods with volumes of CSI drivers of others stay Pending",
  optional: true,
};

/** For a backend with volumes that outlive machines. */
function diskPermissions(nodeName: string): Permission[] {
  const purpose = "pods with persistent volumes stay Pending";
  const storage = { group: "storage.k8s.io", name: nodeName };
  return [
    {
      attributes: { verb: "get", resource: "persistentvolumeclaims", namespace: "default", name: "probe" },
      exampleOf: "workloads" as const,
      purpose,
    },
    {
      attributes: {
        ...{ verb: "patch", resource: "persistentvolumeclaims", subresource: "status" },
        ...{ namespace: "default", name: "probe" },
      },
      exampleOf: "workloads" as const,
      purpose: "claims of CSI drivers of others do not say that they have grown",
    },
    { attributes: { verb: "get", resource: "persistentvolumes" }, purpose },
    { attributes: { verb: "get", group: "storage.k8s.io", resource: "volumeattachments" }, purpose },
    { attributes: { verb: "create", group: "storage.k8s.io", resource: "csinodes" }, purpose },
    ...["get", "patch"].map((verb) => ({ attributes: { verb, resource: "csinodes", ...storage }, purpose })),
  ].map((permission) => ({ ...permission, optional: true }));
}

const SERVING_CERTIFICATE: readonly Permission[] = ["create", "get"].map((verb) => ({
  attributes: { verb, group: "certificates.k8s.io", resource: "certificatesigningrequests" },
  purpose: "the kubelet API keeps a self-signed certificate",
  optional: true,
}));

/** For machines that reach Services by what the agent tells. */
const ENDPOINTS: readonly Permission[] = ["list", "watch"].map((verb) => ({
  attributes: { verb, group: "discovery.k8s.io", resource: "endpointslices" },
  purpose: "pods in VMs of a cloud reach Services only where the VMs' network leads to them",
  optional: true,
  asProcess: true,
}));

/** What the process needs by its own identity, whatever it acts as. */
function processPermissions(nodeName: string, needs: PermissionNeeds): Permission[] {
  const permissions: Permission[] = [];
  if (needs.services) permissions.push(...ENDPOINTS);
  if (needs.clientCa) {
    permissions.push({
      attributes: {
        verb: "get",
        resource: "configmaps",
        namespace: "kube-system",
        name: "extension-apiserver-authentication",
      },
      purpose: "the API server's client certificate cannot be verified: set kubelet.clientCAFile",
      optional: true,
      asProcess: true,
    });
  }
  if (needs.clusterId) {
    permissions.push({
      attributes: { verb: "get", resource: "namespaces", name: "kube-system" },
      purpose: "the cluster's identity cannot be read: set clusterId",
      asProcess: true,
    });
  }
  if (needs.mode === "certificate") {
    for (const verb of ["create", "get"]) {
      permissions.push({
        attributes: { verb, group: "certificates.k8s.io", resource: "certificatesigningrequests" },
        purpose: "the node's client certificate cannot be asked for",
        asProcess: true,
      });
    }
    permissions.push({
      attributes: {
        verb: "create",
        group: "certificates.k8s.io",
        resource: "certificatesigningrequests",
        subresource: "nodeclient",
      },
      purpose: "an administrator has to approve the node's client certificate after each start",
      optional: true,
      asProcess: true,
      danger: "an attacker who takes over the agent may become any node of the cluster",
    });
  }
  if (needs.mode === "impersonate") {
    for (const [resource, name] of [
      ["users", `system:node:${nodeName}`],
      ["groups", "system:nodes"],
    ] as const) {
      permissions.push({
        attributes: { verb: "impersonate", resource, name },
        purpose: "the agent cannot act as the node",
        asProcess: true,
      });
    }
  }
  if (needs.leaderElection !== undefined) {
    const { namespace, name } = needs.leaderElection;
    for (const verb of ["get", "create", "update"]) {
      permissions.push({
        attributes: {
          verb,
          group: "coordination.k8s.io",
          resource: "leases",
          namespace,
          ...(verb !== "create" && { name }),
        },
        purpose: "no agent can become the leader",
        asProcess: true,
      });
    }
  }
  return permissions;
}

/** `get configmaps/probe in default`, as kubectl auth can-i would be asked. */
export function describePermission({ attributes: a }: Permission): string {
  const resource = a.subresource ? `${a.resource}/${a.subresource}` : a.resource;
  const group = a.group ? `.${a.group}` : "";
  return `${a.verb} ${resource}${group}${a.name && a.name !== "probe" ? ` "${a.name}"` : ""}${a.namespace ? ` in ${a.namespace}` : ""}`;
}

/**
 * What `node` needs by this configuration.
 * @returns of the certificate mode the process' own alone: the rest is asked by a running agent
 */
export function configuredPermissions(config: AgentConfig, node: NodeConfig): Permission[] {
  const { mode } = config.identity;
  return nodePermissions(node.name, {
    mode,
    leaderElection: config.leaderElection.enabled ? config.leaderElection : undefined,
    csr:
      node.kubelet.certificate === "csr" ||
      (node.kubelet.certificate === undefined && node.kubelet.certFile === undefined),
    staticPods: node.staticPodPath !== undefined,
    services: node.provider.type === "cloud" && node.provider.services,
    clusterId: config.clusterId === undefined,
    clientCa: node.kubelet.clientCAFile === undefined,
    // The node's own certificate is asked for by a running agent only.
  }).filter((permission) => mode !== "certificate" || permission.asProcess);
}
