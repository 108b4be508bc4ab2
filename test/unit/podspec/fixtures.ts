import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import type { ConfigMap, Pod, Secret, Service } from "../../../src/kube/wire.ts";
import { NodeAllocation, type OtherPods } from "../../../src/podspec/admission/allocation.ts";
import type { Lookup, NodeFacts, References } from "../../../src/podspec/types.ts";
import type { RenderInput } from "../../../src/podspec/render/context.ts";
import { parseResourceList } from "../../../src/resources/pod-resources.ts";

export type PodSpec = NonNullable<Pod["spec"]>;
type ContainerSpec = PodSpec["containers"][number];
type ServicePort = NonNullable<NonNullable<Service["spec"]>["ports"]>[number];

/** A pod of one container, `app`, with what the test adds. */
export function podWith(spec: Partial<PodSpec> = {}, metadata: Pod["metadata"] = {}): Pod {
  return {
    metadata: { name: "web", namespace: "shop", uid: "0a1b", ...metadata },
    spec: { nodeName: "burst-0", containers: [{ name: "app", image: "nginx" }], ...spec },
  };
}

/** A pod whose container `app` has what the test adds. */
export function podWithContainer(container: Partial<ContainerSpec>, spec: Partial<PodSpec> = {}): Pod {
  return podWith({ containers: [{ name: "app", image: "nginx", ...container }], ...spec });
}

export const base64 = (text: string): string => Buffer.from(text).toString("base64");

export function found<T>(object: T): Lookup<T> {
  return { kind: "found", object };
}

export function configMap(data: Record<string, string>, binaryData: Record<string, string> = {}): Lookup<ConfigMap> {
  return found({ data, binaryData });
}

/** A secret of plain texts. */
export function secret(data: Record<string, string>, type = "Opaque"): Lookup<Secret> {
  return found({ type, data: Object.fromEntries(Object.entries(data).map(([key, text]) => [key, base64(text)])) });
}

export function service(namespace: string, name: string, clusterIP: string, ports: ServicePort[]): Service {
  return { metadata: { namespace, name }, spec: { clusterIP, ports } };
}

export function referencesWith(parts: {
  configMaps?: Record<string, Lookup<ConfigMap>>;
  secrets?: Record<string, Lookup<Secret>>;
  services?: Service[] | undefined;
  tokens?: Record<string, Lookup<string>>;
}): References {
  return {
    configMaps: new Map(Object.entries(parts.configMaps ?? {})),
    secrets: new Map(Object.entries(parts.secrets ?? {})),
    services: "services" in parts ? parts.services : [],
    tokens: new Map(Object.entries(parts.tokens ?? {})),
  };
}

/** Pods that this node has admitted, each with a UID of its own. */
export function otherPods(...pods: readonly Pod[]): OtherPods {
  const allocation = new NodeAllocation();
  pods.forEach((pod, index) => {
    const isNamed = pod.metadata?.uid !== "0a1b";
    const other = isNamed ? pod : { ...pod, metadata: { ...pod.metadata, uid: `other-${index}` } };
    allocation.put(other);
    allocation.admit(other.metadata!.uid!);
  });
  return allocation.others("0a1b");
}

export const node: NodeFacts = {
  clusterId: "cluster-1",
  nodeName: "burst-0",
  hostIPs: ["10.0.0.1", "fd00::1"],
  allocatable: parseResourceList({ cpu: "8", memory: "16Gi", "ephemeral-storage": "100Gi" }),
  dns: {
    clusterDns: ["10.96.0.10"],
    clusterDomain: "cluster.local",
    host: { nameservers: ["192.0.2.53"], searches: ["corp.example"], options: ["timeout:1"] },
  },
  allowHostPath: false,
};

/** A render input for a backend that can do everything but `lacking`. */
export function inputFor(
  pod: Pod,
  options: { references?: References; lacking?: Capability[]; node?: Partial<NodeFacts> } = {},
): RenderInput {
  return {
    pod,
    references: options.references ?? referencesWith({}),
    node: { ...node, ...options.node },
    backend: {
      name: "test",
      capabilities: new Set(ALL_CAPABILITIES.filter((c) => !(options.lacking ?? []).includes(c))),
    },
  };
}
