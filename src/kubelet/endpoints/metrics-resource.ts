/** The resource metrics of a kubelet (pkg/kubelet/metrics/collectors/resource_metrics.go). */
import { TEXT_FORMAT, family, type Labels, type Sample } from "../metrics/exposition.ts";
import type { Handler } from "../router.ts";
import type { NodeSample, StatsSource } from "../metrics/stats.ts";

/** `/metrics/resource`: what metrics-server reads. */
export function resourceMetrics(stats: StatsSource): Handler {
  return {
    kind: "plain",
    handle: async () => ({ status: 200, contentType: TEXT_FORMAT, body: renderResourceMetrics(await stats.sample()) }),
  };
}

/**
 * The kubelet's metrics in its order, but with `pod` as the second label of both kinds: virtual-kubelet's e2e suite
 * looks for it there, and metrics-server finds labels by name. A container has all three series or none, and none is
 * zero: else metrics-server drops its whole pod (metrics-server: pkg/scraper/client/resource/decode.go).
 * @internal
 */
export function renderResourceMetrics(node: NodeSample): string {
  const cpu: Sample[] = [];
  const memory: Sample[] = [];
  const started: Sample[] = [];
  const podCpu: Sample[] = [];
  const podMemory: Sample[] = [];
  for (const { pod, at, containers } of node.pods) {
    const { name = "", namespace = "" } = pod.metadata ?? {};
    for (const container of containers) {
      const labels: Labels = [
        ["container", container.name],
        ["pod", name],
        ["namespace", namespace],
      ];
      cpu.push({ labels, value: container.cpuNanoseconds / 1e9, timestampMs: at });
      memory.push({ labels, value: container.workingSetBytes, timestampMs: at });
      started.push({ labels, value: container.startedAt / 1000 });
    }
    const labels: Labels = [
      ["namespace", namespace],
      ["pod", name],
    ];
    podCpu.push({ labels, value: sum(containers.map((container) => container.cpuNanoseconds)) / 1e9, timestampMs: at });
    podMemory.push({ labels, value: sum(containers.map((container) => container.workingSetBytes)), timestampMs: at });
  }
  const one = (value: number, timestampMs?: number): Sample[] => [{ labels: [], value, timestampMs }];
  return [
    family(
      "container_cpu_usage_seconds_total",
      "counter",
      "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
      cpu,
    ),
    family(
      "container_memory_working_set_bytes",
      "gauge",
      "[STABLE] Current working set of the container in bytes",
      memory,
    ),
    family(
      "container_start_time_seconds",
      "gauge",
      "[STABLE] Start time of the container since unix epoch in seconds",
      started,
    ),
    family(
      "node_cpu_usage_seconds_total",
      "counter",
      "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
      one(node.cpuNanoseconds / 1e9, node.at),
    ),
    family(
      "node_memory_working_set_bytes",
      "gauge",
      "[STABLE] Current working set of the node in bytes",
      one(node.workingSetBytes, node.at),
    ),
    family(
      "pod_cpu_usage_seconds_total",
      "counter",
      "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
      podCpu,
    ),
    family("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes", podMemory),
    family(
      "resource_scrape_error",
      "gauge",
      "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
      one(node.failed ? 1 : 0),
    ),
  ].join("");
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
