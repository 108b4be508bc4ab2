/** The agent's own metrics, and the usage of volumes, which is a kubelet's too (pkg/kubelet/metrics/collectors). */
import { claimNamesOf } from "../../kube/pod.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { pause } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { family, type Sample } from "../metrics/exposition.ts";
import type { NodeSample, StatsSource, VolumeUsage } from "../metrics/stats.ts";
import type { PodLookup } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";

/** A scrape may take ten seconds, and a backend that says nothing must not take the agent's own figures with it. */
const PATIENCE_MS = 3_000;

interface MetricsEndpointOptions {
  metrics: Metrics;
  nodeName: string;
  stats: Pick<StatsSource, "sample">;
  lookup: Pick<PodLookup, "list">;
  clock: Clock;
}

/** `/metrics`: the agent's own, as far as they are of this node, and those of its pods' volumes. */
export function agentMetrics({ metrics, nodeName, stats, lookup, clock }: MetricsEndpointOptions): Handler {
  const ofVolumes = async () => {
    // Most nodes have none: their backends are not asked for this.
    if (lookup.list().every(({ pod }) => claimNamesOf(pod).size === 0)) return "";
    const patience = new AbortController();
    const sample = await Promise.race([stats.sample(), pause(clock, PATIENCE_MS, patience.signal)]);
    patience.abort();
    return sample === undefined ? "" : renderVolumeMetrics(sample);
  };
  return {
    kind: "plain",
    handle: async () => {
      const volumes = await ofVolumes();
      return {
        status: 200,
        contentType: metrics.registry.contentType,
        body: `${await metrics.render(nodeName)}${volumes}`,
      };
    },
  };
}

/** A kubelet's, in its order and words. */
const FIGURES: readonly [name: string, help: string, figure: keyof VolumeUsage][] = [
  ["capacity_bytes", "Capacity in bytes of the volume", "capacityBytes"],
  ["available_bytes", "Number of available bytes in the volume", "availableBytes"],
  ["used_bytes", "Number of used bytes in the volume", "usedBytes"],
  ["inodes", "Maximum number of inodes in the volume", "inodes"],
  ["inodes_free", "Number of free inodes in the volume", "inodesFree"],
  ["inodes_used", "Number of used inodes in the volume", "inodesUsed"],
];

/** @internal */
export function renderVolumeMetrics({ pods }: Pick<NodeSample, "pods">): string {
  // By claim: several pods of a node may have the volume, and a series must not come twice.
  const claims = new Map<string, { labels: Sample["labels"]; usage: VolumeUsage }>();
  for (const { pod, volumes } of pods)
    for (const usage of volumes) {
      if (usage.claim === undefined) continue;
      const namespace = pod.metadata?.namespace ?? "";
      const labels = [["namespace", namespace] as const, ["persistentvolumeclaim", usage.claim] as const];
      claims.set(`${namespace}/${usage.claim}`, { labels, usage });
    }
  return FIGURES.map(([name, help, figure]) => {
    const samples = [...claims.values()].flatMap(({ labels, usage }): Sample[] => {
      const value = usage[figure];
      return typeof value === "number" ? [{ labels, value }] : [];
    });
    return family(`kubelet_volume_stats_${name}`, "gauge", `[ALPHA] ${help}`, samples);
  }).join("");
}
