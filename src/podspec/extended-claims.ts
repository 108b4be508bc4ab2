/**
 * Extended resources that a DRA driver has (KEP-5004, GA in Kubernetes 1.37). The scheduler makes a ResourceClaim of
 * them for the pod, and its status says which container's resource is which request of it. From there on they are like
 * claims that the pod names itself. Pure.
 */
import type { Container, Pod } from "../kube/wire.ts";

const NAME = "extended-resources";

/**
 * The pod with that claim among its own, each container with its part of it in place of the resource (kubelet:
 * dra/manager.go, removeMissingExtendedResources). The pod itself where there is none.
 */
export function withExtendedClaims(pod: Pod): Pod {
  const { resourceClaimName, requestMappings = [] } = pod.status?.extendedResourceClaimStatus ?? {};
  const { spec } = pod;
  if (!resourceClaimName || spec === undefined) return pod;
  const own = spec.resourceClaims ?? [];
  const name = freeName(own.map((claim) => claim.name));
  const mapped = (container: Container): Container => {
    const { resources = {} } = container;
    const requests = requestMappings.filter(
      ({ containerName, resourceName }) =>
        containerName === container.name && Number(resources.requests?.[resourceName] ?? 0) !== 0,
    );
    if (requests.length === 0) return container;
    const names = new Set(requests.map(({ resourceName }) => resourceName));
    const others = (list: Readonly<Record<string, string>> = {}) =>
      Object.fromEntries(Object.entries(list).filter(([resource]) => !names.has(resource)));
    const claims = [
      ...(resources.claims ?? []),
      ...requests.map(({ requestName }) => ({ name, request: requestName })),
    ];
    const rest = { requests: others(resources.requests), limits: others(resources.limits) };
    return { ...container, resources: { ...resources, ...rest, claims } };
  };
  return {
    ...pod,
    spec: {
      ...spec,
      resourceClaims: [...own, { name, resourceClaimName }],
      containers: spec.containers.map(mapped),
      ...(spec.initContainers && { initContainers: spec.initContainers.map(mapped) }),
    },
  };
}

/** One that no claim of the pod's own has. */
function freeName(taken: readonly string[]): string {
  for (let at = 0; ; at++) {
    const name = at === 0 ? NAME : `${NAME}-${at}`;
    if (!taken.includes(name)) return name;
  }
}
