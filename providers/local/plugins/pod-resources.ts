/**
 * Which pods have which devices, for exporters of metrics and meta-plugins of networks: the PodResources API v1 of a
 * kubelet (pkg/kubelet/apis/podresources). No processors or memory of certain NUMA nodes are given to anybody, so none
 * are told.
 */
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import {
  type Clock,
  containersOf,
  isSidecar,
  LABEL_NAMESPACE,
  LABEL_POD,
  type MachineSpec,
  TokenBucket,
} from "../../../src/provider/kit/index.ts";
import type { PreparedClaims } from "../claims.ts";
import type { HeldDevices } from "../devices.ts";
import { PodResourcesLister } from "./api/pod-resources/api.gen.js";

/** As a kubelet: for all callers together. */
const CALLS = { perSecond: 100, burst: 10 };

interface ResourceHolder {
  readonly isOver: boolean;
  readonly spec: MachineSpec;
  readonly record: {
    readonly devices?: HeldDevices | "lost" | undefined;
    readonly prepared?: PreparedClaims | undefined;
  };
}

interface PodResourcesOptions {
  clock: Clock;
  machines: () => Iterable<ResourceHolder>;
  allocatable: () => readonly { resource: string; id: string; numa: readonly number[] }[];
}

/** @returns what adds the service to a server */
export function podResources({ clock, machines, allocatable }: PodResourcesOptions): (router: ConnectRouter) => void {
  const bucket = new TokenBucket({ ...CALLS, clock });
  const answer = <T>(work: () => T): T => {
    if (!bucket.tryTake()) throw new ConnectError("rejected by rate limit", Code.ResourceExhausted);
    return work();
  };
  const pods = () => [...machines()].filter(({ isOver, spec }) => !isOver && spec.labels[LABEL_POD] !== undefined);
  return (router) => {
    router.service(PodResourcesLister, {
      list: () => answer(() => ({ podResources: pods().map(resourcesOf) })),
      get: ({ podName, podNamespace }) =>
        answer(() => {
          const pod = pods().find(
            ({ spec: { labels } }) => labels[LABEL_POD] === podName && labels[LABEL_NAMESPACE] === podNamespace,
          );
          if (pod === undefined)
            throw new ConnectError(`pod ${podName} in namespace ${podNamespace} not found`, Code.Unknown);
          return { podResources: resourcesOf(pod) };
        }),
      getAllocatableResources: () => answer(() => ({ devices: allocatable().map(deviceOf) })),
    });
  };
}

/** Of containers that stay: what an init container has had is another's by then. */
function resourcesOf({ spec, record: { devices, prepared } }: ResourceHolder) {
  const held = devices === undefined || devices === "lost" ? {} : devices;
  return {
    name: spec.labels[LABEL_POD] ?? "",
    namespace: spec.labels[LABEL_NAMESPACE] ?? "",
    containers: containersOf(spec)
      .filter(({ spec: container, kind }) => kind === "main" || isSidecar(container, kind))
      .map(({ spec: { name, claims = [] } }) => ({
        name,
        dynamicResources: claimsOf(
          prepared,
          claims.map((claim) => claim.name),
        ),
        devices: (held[name] ?? []).flatMap(({ resource, devices: own }) =>
          own.map(({ id, numa = [] }) => deviceOf({ resource, id, numa })),
        ),
      })),
  };
}

/** All devices of each claim that the container names, as a kubelet tells them. */
function claimsOf(prepared: PreparedClaims = {}, names: readonly string[]) {
  return Object.values(prepared)
    .filter((each) => each.names.some((name) => names.includes(name)))
    .map(({ claim, namespace, drivers }) => ({
      claimName: claim,
      claimNamespace: namespace,
      claimResources: Object.entries(drivers).flatMap(([driverName, devices]) =>
        (devices ?? []).map(({ pool, device, cdi }) => ({
          driverName,
          poolName: pool,
          deviceName: device,
          cdiDevices: cdi.map((name) => ({ name })),
        })),
      ),
    }));
}

function deviceOf({ resource, id, numa }: { resource: string; id: string; numa: readonly number[] }) {
  const topology = numa.length === 0 ? {} : { topology: { nodes: numa.map((node) => ({ ID: BigInt(node) })) } };
  return { resourceName: resource, deviceIds: [id], ...topology };
}
