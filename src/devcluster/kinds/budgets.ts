/** What an eviction asks of the pod's disruption budget (`pkg/registry/core/pod/storage/eviction.go`). */
import { ApiStatusError, disruptionBudgetExceeded } from "../objects/errors.ts";
import type { StoredObject } from "../objects/object.ts";
import type { Storage } from "../objects/storage.ts";
import { objectKey } from "./kind.ts";
import { selects } from "./pod-template.ts";

const BUDGETS = "policy/poddisruptionbudgets";

/**
 * Takes one disruption from the budget of the pod, if it has one.
 * @param now the time, as the API writes it
 * @throws ApiStatusError 429 when it allows none now, 500 when the pod has two budgets
 */
export function spendBudget(storage: Storage, pod: StoredObject, now: string, dryRun: boolean): void {
  const { phase, conditions = [] } = pod.status ?? {};
  if (["Succeeded", "Failed", "Pending"].includes(phase) || pod.metadata.deletionTimestamp) return;
  const found = storage
    .list(BUDGETS)
    .filter(
      ({ metadata, spec }) =>
        metadata.namespace === pod.metadata.namespace && selects(spec.selector, pod.metadata.labels),
    );
  if (found.length > 1) {
    throw new ApiStatusError(
      500,
      undefined,
      "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    );
  }
  const [budget] = found;
  if (!budget) return;
  const { status, spec, metadata } = budget;
  const isReady = conditions.some((c: { type: string; status: string }) => c.type === "Ready" && c.status === "True");
  // A pod that does not serve takes nothing away, where the others are enough.
  const enough = status.currentHealthy >= status.desiredHealthy && status.desiredHealthy > 0;
  if (!isReady && (spec.unhealthyPodEvictionPolicy === "AlwaysAllow" || enough)) return;
  if ((status.observedGeneration ?? 0) < metadata.generation!) {
    const why = `The disruption budget ${metadata.name} is still being processed by the server.`;
    throw disruptionBudgetExceeded(why, 10);
  }
  if (status.disruptionsAllowed === 0) {
    const why =
      status.currentHealthy <= status.desiredHealthy
        ? `The disruption budget ${metadata.name} needs ${status.desiredHealthy} healthy pods and has ${status.currentHealthy} currently`
        : `The disruption budget ${metadata.name} does not allow evicting pods currently`;
    throw disruptionBudgetExceeded(why);
  }
  if (dryRun) return;
  storage.put(BUDGETS, objectKey(metadata.namespace, metadata.name), {
    ...budget,
    status: {
      ...status,
      disruptionsAllowed: status.disruptionsAllowed - 1,
      disruptedPods: { ...status.disruptedPods, [pod.metadata.name]: now },
    },
  });
}
