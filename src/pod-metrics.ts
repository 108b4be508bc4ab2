/** What happens to pods, as the kubelet's metrics. */
import type { PodHooks } from "./pods/hooks.ts";
import type { Metrics } from "./telemetry/metrics.ts";
import type { Clock } from "./util/clock.ts";

export function podMetrics(metrics: Metrics, clock: Clock): PodHooks {
  return {
    onCreate(result) {
      metrics.startedPods.inc();
      if (!result.ok) metrics.startedPodErrors.inc({ code: result.code });
    },
    onRunning({ sinceCreated, sinceSeen, withoutBoot }) {
      metrics.podStartDuration.observe(sinceSeen);
      metrics.podStartSliDuration.observe(withoutBoot);
      metrics.podStartTotalDuration.observe(sinceCreated);
    },
    onStatusWritten: (seconds) => metrics.podStatusSyncDuration.observe(seconds),
    onRejected(_reason, missing) {
      for (const feature of missing) metrics.unsupportedSpecs.inc({ feature });
    },
    onOrphan(seen) {
      metrics.orphanedRuntimePods.inc();
      if (!seen) metrics.machinesLeaked.inc();
    },
    onLost: () => metrics.machinesLost.inc(),
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
