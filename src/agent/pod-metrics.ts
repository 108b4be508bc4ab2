/** What happens to pods, and how their watch and their work queue fare, as the kubelet's and client-go's metrics. */
import type { ReflectorCounters } from "../kube/reflector.ts";
import { priorityBucket } from "../pods/deferred-resizes.ts";
import type { PodHooks } from "../pods/hooks.ts";
import type { KeyedQueue, QueueMetrics } from "../queue/keyed-queue.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";

/** A backend may give any reason: only a kubelet's own become labels, for series stay. */
const TERMINATION_REASONS: ReadonlySet<string> = new Set([
  ...["Completed", "Error", "OOMKilled", "ContainerCannotRun", "StartError", "ContainerStatusUnknown"],
  "DeadlineExceeded",
]);

/** Reasons of a container's end that its program did not see. */
const NOT_STARTED: ReadonlySet<string> = new Set(["ContainerCannotRun", "StartError"]);

export function podMetrics(metrics: Metrics, clock: Clock): PodHooks {
  return {
    onCreate(result, { spec }) {
      metrics.startedPods.inc();
      if (!result.ok) metrics.startedPodErrors.inc({ code: result.code });
      if (spec?.hostUsers !== false) return;
      metrics.startedUserNamespacedPods.inc();
      if (!result.ok) metrics.startedUserNamespacedPodErrors.inc();
    },
    onRunning({ sinceCreated, sinceSeen, withoutBoot }) {
      metrics.podStartDuration.observe(sinceSeen);
      metrics.podStartSliDuration.observe(withoutBoot);
      metrics.podStartTotalDuration.observe(sinceCreated);
    },
    onStatusWritten: (seconds) => metrics.podStatusSyncDuration.observe(seconds),
    onTerminated({ containerType, exitCode, reason }, { spec }) {
      if (spec?.hostUsers === false && NOT_STARTED.has(reason)) metrics.startedUserNamespacedPodErrors.inc();
      metrics.terminatedContainers.inc({
        container_type: containerType,
        exit_code: Number.isInteger(exitCode) && exitCode >= 0 && exitCode <= 255 ? String(exitCode) : "other",
        reason: TERMINATION_REASONS.has(reason) ? reason : "Other",
      });
    },
    onDeferralEnded({ resolution, seconds, priority }) {
      metrics.deferredResizeDuration.observe({ resolution, priority_bucket: priorityBucket(priority) }, seconds);
      // What else a kubelet tries again by happens at the backend.
      if (resolution === "accepted") metrics.deferredAcceptedResizes.inc({ retry_trigger: "periodic_retry" });
    },
    onRejected(_reason, missing) {
      for (const feature of missing) metrics.unsupportedSpecs.inc({ feature });
    },
    onOrphan(seen) {
      metrics.orphanedRuntimePods.inc();
      if (!seen) metrics.machinesLeaked.inc();
    },
    onLost: () => metrics.machinesLost.inc(),
    onAddressIgnored: (count) => metrics.backendInvalidResponses.inc({ reason: "stray_address" }, count),
    onFirstLook: (seconds) => metrics.podWorkerStartDuration.observe(seconds),
    onListed(seconds, interval) {
      metrics.plegRelistDuration.observe(seconds);
      if (interval !== undefined) metrics.plegRelistInterval.observe(interval);
      metrics.plegLastSeen.set(clock.now() / 1000);
    },
    onReconciled(seconds, result) {
      metrics.podWorkerDuration.observe({ operation_type: "sync" }, seconds);
      metrics.reconciles.inc({ result });
    },
  };
}

/** @param name the node's, of which a process may have several */
export function queueMetrics({ workqueue }: Metrics, name: string): QueueMetrics {
  return {
    onAdd: () => workqueue.adds.inc({ name }),
    onStart: (seconds) => workqueue.queueDuration.observe({ name }, seconds),
    onDone: (seconds) => workqueue.workDuration.observe({ name }, seconds),
    onRetry: () => workqueue.retries.inc({ name }),
  };
}

/** What waits and what is under way show only when they are asked for. */
export function observeQueue({ workqueue }: Metrics, name: string, queue: KeyedQueue): void {
  workqueue.depth.set({ name }, queue.depth);
  const seconds = queue.workingSeconds();
  workqueue.unfinishedWork.set(
    { name },
    seconds.reduce((sum, each) => sum + each, 0),
  );
  workqueue.longestRunning.set({ name }, Math.max(0, ...seconds));
}

/**
 * The metrics carry no node label, so they count the pod watches of all nodes of a process, and show the most silent
 * one.
 */
export function observeWatches(
  metrics: Metrics,
  clock: Clock,
  reflectors: readonly { counters: Readonly<ReflectorCounters>; lastActivityAt: number | undefined }[],
): void {
  const resource = "pods";
  const heardAt = reflectors.flatMap(({ lastActivityAt }) => lastActivityAt ?? []);
  if (heardAt.length > 0) {
    const silentMs = clock.monotonic() - Math.min(...heardAt);
    metrics.informerLastEvent.set({ resource }, (clock.now() - silentMs) / 1000);
  }
  metrics.watchStarts.reset();
  metrics.watchErrors.reset();
  metrics.informerRelists.reset();
  metrics.informerSkipped.reset();
  for (const { counters } of reflectors) {
    metrics.watchStarts.inc({ resource }, counters.watches);
    metrics.watchErrors.inc({ resource }, counters.watchErrors);
    metrics.informerSkipped.inc({ resource }, counters.skipped);
    for (const [reason, count] of Object.entries(counters.relists))
      metrics.informerRelists.inc({ resource, reason }, count);
  }
}
