/** The pods of this node, as far as the kubelet API needs them. The agent's pod store implements it. */
import type { Container, ContainerStatus, Pod } from "../kube/wire.ts";
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

export function allContainers(pod: Pod): readonly Pick<Container, "name" | "image" | "stdinOnce" | "tty">[] {
  return [
    ...(pod.spec?.initContainers ?? []),
    ...(pod.spec?.containers ?? []),
    ...(pod.spec?.ephemeralContainers ?? []),
  ];
}

export function hasContainer(pod: Pod, name: string): boolean {
  return allContainers(pod).some((container) => container.name === name);
}

/** @throws HttpError 500 with the kubelet's words when the spec has no such container */
export function requireContainer(pod: Pod, name: string): void {
  if (!hasContainer(pod, name)) throw new HttpError(500, `container not found (${JSON.stringify(name)})`);
}

export function containerStatus(pod: Pod, name: string): ContainerStatus | undefined {
  const { containerStatuses = [], initContainerStatuses = [], ephemeralContainerStatuses = [] } = pod.status ?? {};
  return [...containerStatuses, ...initContainerStatuses, ...ephemeralContainerStatuses].find(
    (status) => status.name === name,
  );
}

export function runningContainers(pod: Pod): ContainerStatus[] {
  const { containerStatuses = [], initContainerStatuses = [], ephemeralContainerStatuses = [] } = pod.status ?? {};
  return [...initContainerStatuses, ...containerStatuses, ...ephemeralContainerStatuses].filter(
    (status) => status.state?.running !== undefined,
  );
}
