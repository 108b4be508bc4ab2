/**
 * Where a Service's pods are: its Endpoints and EndpointSlices (`pkg/controller/{endpoint,endpointslice}`). A slice
 * holds a hundred endpoints, as the real ones do.
 */
import { isIPv6 } from "node:net";
import { isTerminal } from "../../kube/pod.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { isSubset } from "../../resources/labels.ts";
import { jsonEqual, withMeta, type Json, type StoredObject } from "../objects/object.ts";
import { controllerReference, Actor } from "./actor.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { canonical } from "./hash.ts";
import { isReady } from "./pods.ts";

const services = mustFindKind("", "v1", "services");
const endpointsKind = mustFindKind("", "v1", "endpoints");
const slices = mustFindKind("discovery.k8s.io", "v1", "endpointslices");

const SLICE_SIZE = 100;
const SERVICE_NAME = "kubernetes.io/service-name";
const MANAGED_BY = "endpointslice.kubernetes.io/managed-by";
const SLICE_CONTROLLER = "endpointslice-controller.k8s.io";
const HEADLESS = "service.kubernetes.io/headless";

export class ServiceEndpoints extends KeyedController {
  /** Endpoints have a controller of their own, which its events and its label name. */
  readonly #endpoints: Actor;

  constructor(options: ControllerOptions) {
    super(options, "endpointslice-controller");
    this.#endpoints = new Actor({ ...options, component: "endpoint-controller" });
  }

  start(): void {
    this.watchOwn(services);
    this.watch("/pods", ({ object, previous, deleted }) => {
      if (previous && !deleted && !matters(object, previous)) return;
      for (const service of this.index.inNamespace("/services", object.metadata.namespace!)) {
        const isMine = (pod: StoredObject) => isSubset(service.spec.selector ?? {}, pod.metadata.labels ?? {});
        if (service.spec.selector && (isMine(object) || (previous && isMine(previous))))
          this.queue.add(`${service.metadata.namespace}/${service.metadata.name}`);
      }
    });
  }

  protected sync(key: string): void {
    const service = this.storage.get("/services", key);
    if (!service) {
      // Slices have an owner, and go with it; Endpoints have only the name.
      const left = this.storage.get("/endpoints", key);
      if (left) this.#endpoints.delete(left);
      return;
    }
    // Without a selector somebody else says where it is.
    if (service.spec.type === "ExternalName" || !service.spec.selector) return;
    const all = this.index
      .podsIn(service.metadata.namespace!)
      .filter((pod) => isSubset(service.spec.selector, pod.metadata.labels ?? {}) && hasAddress(pod));
    this.#writeSlices(service, all);
    this.#writeEndpoints(service, all);
  }

  #writeSlices(service: StoredObject, pods: readonly StoredObject[]): void {
    const existing = this.index
      .controlled("discovery.k8s.io/endpointslices", service.metadata.uid)
      .filter(({ metadata }) => metadata.labels?.[MANAGED_BY] === SLICE_CONTROLLER);
    const wanted = ((service.spec.ipFamilies ?? ["IPv4"]) as string[]).flatMap((family) =>
      slicesOf(service, pods, family),
    );
    // Each keeps the slice that is nearest to it: the one with the same ports, in the order of their making.
    const free = [...existing];
    for (const content of wanted) {
      const same = free.findIndex(
        (slice) => slice["addressType"] === content.addressType && jsonEqual(slice["ports"] ?? [], content.ports),
      );
      const [slice] = same < 0 ? [] : free.splice(same, 1);
      const labels = sliceLabels(service);
      if (slice) {
        this.actor.update({ ...withMeta(slice, { labels }), ...content });
      } else {
        this.actor.create(slices, service.metadata.namespace, {
          metadata: {
            generateName: `${service.metadata.name}-`,
            labels,
            ownerReferences: [controllerReference(service)],
          },
          ...content,
        });
      }
    }
    for (const slice of free) this.actor.delete(slice);
  }

  #writeEndpoints(service: StoredObject, pods: readonly StoredObject[]): void {
    const { namespace, name } = service.metadata;
    const labels: Record<string, string> = {
      ...service.metadata.labels,
      "endpoints.kubernetes.io/managed-by": "endpoint-controller",
      ...(service.spec.clusterIP === "None" && { [HEADLESS]: "" }),
    };
    const subsets = subsetsOf(service, pods);
    const before = this.#endpoints.get(endpointsKind, namespace, name);
    if (before) {
      if (jsonEqual(before["subsets"] ?? [], subsets) && jsonEqual(before.metadata.labels, labels)) return;
      const { subsets: _, ...rest } = before;
      this.#endpoints.update({
        ...withMeta(rest, { labels }),
        ...(subsets.length > 0 && { subsets }),
      });
    } else {
      this.#endpoints.create(endpointsKind, namespace, { metadata: { name, labels }, subsets });
    }
  }
}

/** What of a pod can change an endpoint. */
function matters(pod: StoredObject, before: StoredObject): boolean {
  return (
    pod.metadata.deletionTimestamp !== before.metadata.deletionTimestamp ||
    isReady(pod) !== isReady(before) ||
    pod.status?.phase !== before.status?.phase ||
    !jsonEqual(pod.status?.podIPs, before.status?.podIPs) ||
    pod.spec.nodeName !== before.spec.nodeName ||
    !jsonEqual(pod.metadata.labels, before.metadata.labels)
  );
}

const hasAddress = (pod: StoredObject): boolean =>
  Boolean(pod.spec.nodeName) && !isTerminal(pod) && (pod.status?.podIPs?.length ?? 0) > 0;

/** The port of a pod that a Service's port leads to; undefined when its container ports have no such name. */
function portOf(pod: StoredObject, port: Json): number | undefined {
  if (typeof port.targetPort === "number") return port.targetPort || port.port;
  const sidecars = ((pod.spec.initContainers ?? []) as Json[]).filter((c) => c.restartPolicy === "Always");
  return [...pod.spec.containers, ...sidecars]
    .flatMap((c: Json) => (c.ports ?? []) as Json[])
    .find(({ name, protocol }) => name === port.targetPort && protocol === port.protocol)?.containerPort;
}

const portsOf = (service: StoredObject, pod: StoredObject): Json[] =>
  ((service.spec.ports ?? []) as Json[]).flatMap((port) => {
    const found = portOf(pod, port);
    if (found === undefined) return [];
    const { name, protocol, appProtocol } = port;
    return [{ name: name ?? "", port: found, protocol, ...(appProtocol && { appProtocol }) }];
  });

const targetOf = ({ metadata }: StoredObject): Json => ({
  kind: "Pod",
  namespace: metadata.namespace,
  name: metadata.name,
  uid: metadata.uid,
});

const hasHostname = (pod: StoredObject, service: StoredObject): boolean =>
  Boolean(pod.spec.hostname) && pod.spec.subdomain === service.metadata.name;

function sliceLabels({ metadata, spec }: StoredObject): Record<string, string> {
  return {
    ...metadata.labels,
    [SERVICE_NAME]: metadata.name,
    [MANAGED_BY]: SLICE_CONTROLLER,
    ...(spec.clusterIP === "None" && { [HEADLESS]: "" }),
  };
}

/** Pods whose ports are the same share slices. A Service without pods has one empty slice. */
function slicesOf(service: StoredObject, pods: readonly StoredObject[], family: string): Json[] {
  const byPorts = new Map<string, { ports: Json[]; endpoints: Json[] }>();
  for (const pod of pods) {
    const ports = portsOf(service, pod);
    const addresses = ((pod.status.podIPs ?? []) as Json[])
      .map(({ ip }) => ip as string)
      .filter((ip) => isIPv6(ip) === (family === "IPv6"));
    if (addresses.length === 0) continue;
    const group = byPorts.get(canonical(ports)) ?? { ports, endpoints: [] };
    byPorts.set(canonical(ports), group);
    const serving = isReady(pod);
    const terminating = pod.metadata.deletionTimestamp !== undefined;
    const always = service.spec.publishNotReadyAddresses === true;
    group.endpoints.push({
      addresses,
      conditions: { ready: always || (serving && !terminating), serving, terminating },
      targetRef: targetOf(pod),
      ...(hasHostname(pod, service) && { hostname: pod.spec.hostname }),
      ...(pod.spec.nodeName && { nodeName: pod.spec.nodeName }),
    });
  }
  const groups = byPorts.size > 0 ? [...byPorts.values()] : [{ ports: [], endpoints: [] }];
  return groups.flatMap(({ ports, endpoints }) => {
    const chunks = Array.from({ length: Math.max(1, Math.ceil(endpoints.length / SLICE_SIZE)) }, (_, i) =>
      endpoints.slice(i * SLICE_SIZE, (i + 1) * SLICE_SIZE),
    );
    return chunks.map((chunk) => ({ addressType: family, endpoints: chunk, ports }));
  });
}

/** Addresses with the same ports together, ready ones apart from the others. */
function subsetsOf(service: StoredObject, pods: readonly StoredObject[]): Json[] {
  const always = service.spec.publishNotReadyAddresses === true;
  const byPorts = new Map<string, Json>();
  for (const pod of pods) {
    // One that leaves is no address any more, unless the Service wants all.
    if (pod.metadata.deletionTimestamp && !always) continue;
    const ports = portsOf(service, pod).map(({ name, ...port }) => ({ ...(name && { name }), ...port }));
    if (ports.length === 0 && service.spec.clusterIP !== "None") continue;
    const subset = byPorts.get(canonical(ports)) ?? { addresses: [], notReadyAddresses: [], ports };
    byPorts.set(canonical(ports), subset);
    const list = always || isReady(pod) ? subset.addresses : subset.notReadyAddresses;
    list.push({
      ip: pod.status.podIPs[0].ip,
      ...(hasHostname(pod, service) && { hostname: pod.spec.hostname }),
      ...(pod.spec.nodeName && { nodeName: pod.spec.nodeName }),
      targetRef: targetOf(pod),
    });
  }
  return [...byPorts.values()].map(({ addresses, notReadyAddresses, ports }) => ({
    ...(addresses.length > 0 && { addresses }),
    ...(notReadyAddresses.length > 0 && { notReadyAddresses }),
    ...(ports.length > 0 && { ports }),
  }));
}
