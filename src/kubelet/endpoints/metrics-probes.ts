/** The probe metrics of a kubelet (pkg/kubelet/prober/prober_manager.go). */
import { TEXT_FORMAT, family, type Sample } from "../metrics/exposition.ts";
import type { PodLookup } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";
import type { ContainerProbes, StatsSource } from "../metrics/stats.ts";

/**
 * `/metrics/probes`: how often each probe came out which way. Most backends run the probes in their machines and tell
 * it with the usage; what the agent runs itself comes from `own`.
 */
export function probeMetrics(lookup: PodLookup, stats: StatsSource, own: () => readonly ContainerProbes[]): Handler {
  return {
    kind: "plain",
    handle: async () => {
      const { probes } = await stats.sample();
      return { status: 200, contentType: TEXT_FORMAT, body: renderProbeMetrics(lookup, [...probes, ...own()]) };
    },
  };
}

const TITLES = { startup: "Startup", readiness: "Readiness", liveness: "Liveness" } as const;

/** @internal */
export function renderProbeMetrics(lookup: PodLookup, probes: readonly ContainerProbes[]): string {
  const pods = new Map(lookup.list().map(({ pod }) => [pod.metadata?.uid, pod.metadata]));
  const samples = probes.flatMap(({ podUid, container, tally }): Sample[] => {
    const metadata = pods.get(podUid);
    if (metadata === undefined) return [];
    const results = ["successful", "failed", "unknown"] as const;
    // As the kubelet: a result has its series once there was one.
    return results
      .filter((result) => tally[result] > 0)
      .map((result) => ({
        labels: [
          ["container", container],
          ["namespace", metadata.namespace ?? ""],
          ["pod", metadata.name ?? ""],
          ["pod_uid", podUid],
          ["probe_type", TITLES[tally.probe]],
          ["result", result],
        ],
        value: tally[result],
      }));
  });
  const help = "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
  return family("prober_probe_total", "counter", help, samples);
}
