import { allContainersOf, isDeleting } from "../../kube/pod.ts";
import { runningContainers, type PodLookup } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";

/**
 * `/runningpods/`: pods of which a container runs, with those containers alone. A pod that is being deleted does not
 * count.
 */
export function runningPods(lookup: PodLookup): Handler {
  return {
    kind: "plain",
    handle: () => {
      const items = lookup.list().flatMap(({ pod }) => {
        const running = new Set(runningContainers(pod).map((status) => status.name));
        if (running.size === 0 || isDeleting(pod)) return [];
        const { name, namespace, uid } = pod.metadata ?? {};
        const containers = allContainersOf(pod)
          .filter((container) => running.has(container.name))
          .map((container) => ({ name: container.name, image: container.image, resources: {} }));
        return [{ metadata: { name, namespace, uid, creationTimestamp: null }, spec: { containers }, status: {} }];
      });
      const body = JSON.stringify({ kind: "PodList", apiVersion: "v1", metadata: {}, items });
      return Promise.resolve({ status: 200, contentType: "application/json", body });
    },
  };
}
