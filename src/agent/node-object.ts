/** A node's Node object: what is written into it, and where that comes from. */
import type { Kube } from "../kube/kube.ts";
import type { Node } from "../kube/wire.ts";
import { PodRange } from "../node/pod-range.ts";
import {
  fixedCapacity,
  type NodeCapacity,
  ProviderCapacitySource,
  type CapacitySource,
  withConditions,
} from "../node/capacity.ts";
import { NodeServices } from "../node/node-services.ts";
import { NodeController } from "../node/node-controller.ts";
import type { BackendHealth } from "../node/settings.ts";
import type { PodController } from "../pods/controller.ts";
import type { Provider } from "../provider/provider.ts";
import { parseDuration } from "../resources/duration.ts";
import type { BackendInfo } from "./backend-info.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import type { NodePods } from "./node-pods.ts";

export interface NodeObject {
  controller: NodeController;
  /** Asks the backend for its capacity and its host's conditions until the signal aborts. */
  followCapacity(signal: AbortSignal): Promise<void>;
  /** Tells the backend the Node's podCIDRs, where it takes them, until the signal aborts. */
  tellRange(signal: AbortSignal): Promise<void>;
  /** Tells the backend where the cluster's Services lead, where it takes them, until the signal aborts. */
  tellServices(signal: AbortSignal): Promise<void>;
  /** The node is served no longer. @returns whether its range is free for another one */
  releaseRange(signal: AbortSignal): Promise<boolean>;
}

const CAPACITY_EVERY_MS = 30_000;
/** Plugins come and go, and a device that has failed is not to be given to the next pod. */
const DEVICES_EVERY_MS = 5_000;

/**
 * @param acting the API server for what only the leader does
 * @param kubeletPort on which the node's kubelet API listens
 */
export function createNode(
  options: NodeAgentOptions,
  acting: Kube,
  backend: BackendInfo,
  { controller: pods, provider, volumesInUse }: NodePods,
  kubeletPort: number,
): NodeObject {
  const { node, events, clusterId, release, isReleaseElected, takeOver, clock, random, logger, metrics, version } =
    options;
  const onChange = () => controller.refresh();
  const hasDevices = () => backend.can("devices") === true;
  const reported = new ProviderCapacitySource({
    provider,
    clock,
    random,
    logger,
    onChange,
    everyMs: () => (hasDevices() ? DEVICES_EVERY_MS : CAPACITY_EVERY_MS),
  });
  const warn = (reason: string, message: string) =>
    events.event({ apiVersion: "v1", kind: "Node", name: node.name, uid: node.name }, "Warning", reason, message);
  const range = new PodRange({
    provider,
    clusterId,
    nodeName: node.name,
    node: () => controller.store.getByName("", node.name),
    clock,
    random,
    logger,
    warn,
    onChange,
  });
  const services = servicesOf(options, provider, () => controller.store.getByName("", node.name), warn);
  const ofBackend = capacityOf(backend, reported);
  const controller = new NodeController({
    kube: acting,
    clock,
    random,
    logger,
    events,
    // Read again each time: some of it follows the configuration file.
    get settings() {
      return {
        name: node.name,
        clusterId,
        release,
        isReleaseElected,
        takeOver,
        version,
        addresses: node.addresses,
        hostname: node.hostname,
        labels: node.labels,
        annotations: node.annotations,
        taints: node.taints,
        kubeletPort,
        backendOutageGraceMs: parseDuration(node.backendOutageGrace),
      };
    },
    report: () => backend.forNode(),
    capacity: {
      current: () => {
        const source =
          node.capacity === undefined ? ofBackend : withConditions(fixedCapacity(node.capacity), reported, hasDevices);
        return withCondition(source.current(), range.condition);
      },
    },
    backend: healthOf(pods),
    volumes: volumesInUse,
    metrics: {
      onRegistered: () => metrics.nodeRegistrations.inc(),
      onKubeletVersion: (version) => metrics.kubernetesBuildInfo.set({ git_version: version }, 1),
      onLeaseRenewed: (seconds) => {
        metrics.leaseRenewDuration.observe(seconds);
        metrics.leaseLastRenew.set({ node: node.name }, clock.now() / 1000);
      },
    },
  });
  controller.store.onChange(() => range.nodeChanged());
  return {
    controller,
    async followCapacity(signal) {
      await backend.known(signal);
      controller.refresh();
      if (!signal.aborted && backend.can("capacity")) await reported.run(signal);
    },
    async tellRange(signal) {
      await Promise.all([backend.known(signal), controller.claimed(signal)]);
      if (!signal.aborted && backend.can("pod_ranges") === true) await range.run(signal);
    },
    async tellServices(signal) {
      await Promise.all([backend.known(signal), controller.claimed(signal)]);
      if (!signal.aborted && backend.can("services") === true) await services.run(signal);
    },
    releaseRange: async (signal) => backend.can("pod_ranges") !== true || (await range.release(signal)),
  };
}

function servicesOf(
  { node, services, endpoints, clusterId, clock, random, logger }: NodeAgentOptions,
  provider: Provider,
  ownNode: () => Node | undefined,
  warn: (reason: string, message: string) => void,
): NodeServices {
  return new NodeServices({
    ...{ provider, clusterId, nodeName: node.name, endpoints, clock, random, logger, warn },
    services: services.store,
    node: ownNode,
  });
}

/** With what is known here of the Node, not by the backend. */
function withCondition(
  capacity: NodeCapacity | undefined,
  condition: NodeCapacity["conditions"][number] | undefined,
): NodeCapacity | undefined {
  if (capacity === undefined || condition === undefined) return capacity;
  const others = capacity.conditions.filter(({ type }) => type !== condition.type);
  return { ...capacity, conditions: [...others, condition] };
}

/** The backend's own capacity, where it can tell; else a default. */
function capacityOf(backend: BackendInfo, reported: CapacitySource): CapacitySource {
  const fallback = fixedCapacity();
  return {
    current: () => {
      const tells = backend.can("capacity");
      return tells === undefined ? undefined : (tells ? reported : fallback).current();
    },
  };
}

function healthOf({ observer, losses }: PodController): BackendHealth {
  return {
    get seen() {
      return observer.seen;
    },
    get failingSince() {
      return observer.failingSince;
    },
    get lastError() {
      return observer.lastError;
    },
    get missing() {
      return losses.missing;
    },
  };
}
