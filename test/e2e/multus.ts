/** Multus, which gives a pod further interfaces by its annotation, as its project installs it: a DaemonSet brings the plugin. */
import { readFile } from "node:fs/promises";
import { busyboxImage } from "../support/registry.ts";
import { daemonSet } from "./daemonsets.ts";
import { buildMultus } from "./harness/build.ts";
import type { Json } from "./harness/client.ts";

const NAME = "multus";
const GROUP = "k8s.cni.cncf.io";

export const multusImage = async () =>
  await busyboxImage([{ path: "multus", content: await readFile(await buildMultus()), mode: 0o755 }]);

/**
 * @param nodes that run containers: on those it comes
 * @param kubeconfig the path of one on every host, of the user `multus`
 * @param network of the cluster: the path of its configuration
 */
export function multus(registry: string, nodes: readonly string[], kubeconfig: string, network: string): Json[] {
  const configuration = {
    ...{ cniVersion: "0.3.1", name: "multus-cni-network", type: "multus" },
    capabilities: { portMappings: true, bandwidth: true },
    kubeconfig,
  };
  const install = [
    "cp /multus /opt/cni/bin/.new && mv /opt/cni/bin/.new /opt/cni/bin/multus",
    // The cluster's network as it is on this host, as its project's own installer writes it.
    `printf '%s,"delegates":[%s]}' '${JSON.stringify(configuration).slice(0, -1)}' "$(cat ${network})" > /etc/cni/net.d/.new`,
    "mv /etc/cni/net.d/.new /etc/cni/net.d/00-multus.conf",
    "sleep 100000",
  ];
  const among = { key: "kubernetes.io/hostname", operator: "In", values: nodes };
  return [
    ...rights(),
    {
      ...{ apiVersion: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition" },
      metadata: { name: `network-attachment-definitions.${GROUP}` },
      spec: {
        ...{ group: GROUP, scope: "Namespaced" },
        names: {
          ...{ plural: "network-attachment-definitions", singular: "network-attachment-definition" },
          kind: "NetworkAttachmentDefinition",
        },
        versions: [
          {
            ...{ name: "v1", served: true, storage: true },
            schema: { openAPIV3Schema: { type: "object", "x-kubernetes-preserve-unknown-fields": true } },
          },
        ],
      },
    },
    daemonSet(NAME, "kube-system", {
      hostNetwork: true,
      affinity: {
        nodeAffinity: {
          requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchExpressions: [among] }] },
        },
      },
      containers: [
        {
          name: NAME,
          image: `${registry}/multus:1`,
          command: ["sh", "-ec", install.join("\n")],
          volumeMounts: [
            { name: "configuration", mountPath: "/etc/cni/net.d" },
            { name: "plugins", mountPath: "/opt/cni/bin" },
          ],
        },
      ],
      volumes: [
        { name: "configuration", hostPath: { path: "/etc/cni/net.d" } },
        { name: "plugins", hostPath: { path: "/opt/cni/bin", type: "DirectoryOrCreate" } },
      ],
    }),
  ];
}

/** A network beside the cluster's own, on a bridge of the host. */
export function sideNetwork(name: string, subnet: string): Json {
  const ipam = { type: "host-local", subnet };
  return {
    ...{ apiVersion: `${GROUP}/v1`, kind: "NetworkAttachmentDefinition" },
    metadata: { name },
    spec: { config: JSON.stringify({ cniVersion: "0.3.1", name, type: "bridge", bridge: name, ipam }) },
  };
}

/** What the plugin does by the API server, as its user. */
function rights(): Json[] {
  const apiGroup = "rbac.authorization.k8s.io";
  return [
    {
      ...{ apiVersion: `${apiGroup}/v1`, kind: "ClusterRole" },
      metadata: { name: NAME },
      rules: [
        { apiGroups: [GROUP], resources: ["*"], verbs: ["get", "list"] },
        { apiGroups: [""], resources: ["pods"], verbs: ["get"] },
        { apiGroups: [""], resources: ["pods/status"], verbs: ["get", "update", "patch"] },
        { apiGroups: ["", "events.k8s.io"], resources: ["events"], verbs: ["create", "patch"] },
      ],
    },
    {
      ...{ apiVersion: `${apiGroup}/v1`, kind: "ClusterRoleBinding" },
      metadata: { name: NAME },
      roleRef: { apiGroup, kind: "ClusterRole", name: NAME },
      subjects: [{ apiGroup, kind: "User", name: NAME }],
    },
  ];
}
