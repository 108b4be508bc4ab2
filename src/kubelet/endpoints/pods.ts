import type { PodLookup } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";

/** `/pods`: the pods bound to this node with the status that the agent knows now. */
export function pods(lookup: PodLookup): Handler {
  return {
    kind: "plain",
    handle: () => {
      const items = lookup.list().map(({ pod }) => ({ metadata: pod.metadata, spec: pod.spec, status: pod.status }));
      const body = JSON.stringify({ kind: "PodList", apiVersion: "v1", metadata: {}, items });
      return Promise.resolve({ status: 200, contentType: "application/json", body });
    },
  };
}
