/** The pods of this node, as far as the kubelet API needs them. The agent's pod store implements it. */
import { allContainerStatusesOf, allContainersOf } from "../kube/pod.ts";
import type { ContainerStatus, Pod } from "../kube/wire.ts";
import { HttpError } from "../http/http-error.ts";

export interface NodePod {
  /** Spec from the API server, status as the agent knows it now. */
  pod: Pod;
  /** The provider's id of the pod's machine, derived from the UID. */
  machineId: string;
}

export interface PodLookup {
  get(namespace: string, name: string): NodePod | undefined;
  list(): readonly NodePod[];
}

/**
 * The pod that a path names. A UID in the path must be the pod's: a client that opened its session with another pod of
 * that name must not land in this one.
 *
 * @throws HttpError 404
 */
export function findPod(
  pods: PodLookup,
  params: { namespace: string; pod: string; uid?: string | undefined },
): NodePod {
  const found = pods.get(params.namespace, params.pod);
  if (found === undefined || (params.uid !== undefined && found.pod.metadata?.uid !== params.uid)) {
    throw new HttpError(404, "pod does not exist");
  }
  return found;
}

/** Whether the spec has it, of whatever kind. */
export function hasContainer(pod: Pod, name: string): boolean {
  return allContainersOf(pod).some((container) => container.name === name);
}

/** @throws HttpError 500 with the kubelet's words when the spec has no such container */
export function requireContainer(pod: Pod, name: string): void {
  if (!hasContainer(pod, name)) throw new HttpError(500, `container not found (${JSON.stringify(name)})`);
}

export function containerStatus(pod: Pod, name: string): ContainerStatus | undefined {
  return allContainerStatusesOf(pod).find((status) => status.name === name);
}

export function runningContainers(pod: Pod): ContainerStatus[] {
  return allContainerStatusesOf(pod).filter(({ state }) => state?.running !== undefined);
}
