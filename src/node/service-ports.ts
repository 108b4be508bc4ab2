/**
 * Where a Service's addresses lead, for the pods of one node, by the rules of kube-proxy (kubernetes: pkg/proxy,
 * topology.go and endpointslicecache.go). ClusterIPs alone: externalIPs are any tenant's word on others' traffic
 * (CVE-2020-8554), and what comes from outside is for the nodes that it comes to.
 */
import { isIPv6 } from "node:net";
import type { EndpointSlice, Service } from "../kube/wire.ts";
import { isServiceAddress, type ServicePort } from "../provider/services.ts";

/** Where the callers are. */
interface Place {
  readonly nodeName: string;
  /** Label topology.kubernetes.io/zone of the Node; "" where it has none. */
  readonly zone: string;
}

/** Somebody else's than kube-proxy's (KEP-2447). */
const OTHER_PROXY = "service.kubernetes.io/service-proxy-name";
/** The Machine API takes no more of them. */
const MOST_ENDPOINTS = 1_000;
/** Kubernetes' default for `ClientIP`. */
const AFFINITY_S = 10_800;
const PROTOCOLS: ReadonlySet<string> = new Set(["TCP", "UDP", "SCTP"]);

type Endpoint = NonNullable<EndpointSlice["endpoints"]>[number];

/** @param slices of this Service; what of them makes no sense is left out */
export function servicePorts(service: Service, slices: readonly EndpointSlice[], place: Place): ServicePort[] {
  const { spec, metadata } = service;
  if (spec === undefined || spec.type === "ExternalName" || metadata?.labels?.[OTHER_PROXY] !== undefined) return [];
  const addresses = spec.clusterIPs ?? [spec.clusterIP ?? ""];
  const seconds = spec.sessionAffinityConfig?.clientIP?.timeoutSeconds ?? AFFINITY_S;
  return addresses.filter(isServiceAddress).flatMap((address) =>
    (spec.ports ?? []).flatMap(({ port, protocol = "TCP", name = "" }) => {
      if (!PROTOCOLS.has(protocol)) return [];
      const ofFamily = slices.filter(({ addressType }) => addressType === (isIPv6(address) ? "IPv6" : "IPv4"));
      const all = ofFamily.flatMap((slice) => endpointsOf(slice, { name, protocol }));
      return {
        address,
        protocol: protocol as ServicePort["protocol"],
        port,
        endpoints: distinct(usable(all, spec.internalTrafficPolicy === "Local", place)),
        ...(spec.sessionAffinity === "ClientIP" && { affinity_s: seconds }),
      };
    }),
  );
}

interface Candidate {
  readonly endpoint: Endpoint;
  readonly address: string;
  readonly port: number;
}

function endpointsOf(slice: EndpointSlice, { name, protocol }: { name: string; protocol: string }): Candidate[] {
  const port = slice.ports?.find((each) => (each.name ?? "") === name && (each.protocol ?? "TCP") === protocol)?.port;
  if (port === undefined) return [];
  return (slice.endpoints ?? []).flatMap((endpoint) => {
    // Those behind the first are the same endpoint's (kubernetes: EndpointSlice).
    const address = endpoint.addresses?.[0] ?? "";
    const isOfSlice = isIPv6(address) === (slice.addressType === "IPv6");
    return isServiceAddress(address) && isOfSlice ? { endpoint, address, port } : [];
  });
}

const isReady = ({ endpoint: { conditions } }: Candidate): boolean => conditions?.ready ?? true;
/** It is being deleted, and answers still. */
const isLast = ({ endpoint: { conditions } }: Candidate): boolean =>
  (conditions?.serving ?? conditions?.ready ?? true) && conditions?.terminating === true;

/** Those that are ready; where none is, those that answer still (KEP-1669). */
function usable(all: readonly Candidate[], isLocal: boolean, place: Place): Candidate[] {
  const near = isLocal ? all.filter(({ endpoint }) => endpoint.nodeName === place.nodeName) : all;
  const ready = near.filter(isReady);
  if (ready.length === 0) return near.filter(isLast);
  return isLocal ? ready : nearest(ready, place);
}

/** By hints for this node or its zone, where each has one (KEP-2433, KEP-3015). */
function nearest(ready: Candidate[], { nodeName, zone }: Place): Candidate[] {
  const hinted = ready.map((each) => ({ each, hints: each.endpoint.hints }));
  for (const [kind, name] of [
    ["forNodes", nodeName],
    ["forZones", zone],
  ] as const) {
    if (!hinted.every(({ hints }) => (hints?.[kind] ?? []).length > 0)) continue;
    const here = hinted.filter(({ hints }) => hints?.[kind]?.some((hint) => hint.name === name));
    if (here.length > 0) return here.map(({ each }) => each);
  }
  return ready;
}

/** In an order that does not depend on slices, so that nothing is told when nothing has changed. */
function distinct(candidates: readonly Candidate[]): ServicePort["endpoints"] {
  const found = new Map(candidates.map(({ address, port }) => [`${address} ${port}`, { address, port }]));
  return [...found]
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .slice(0, MOST_ENDPOINTS)
    .map(([, each]) => each);
}
