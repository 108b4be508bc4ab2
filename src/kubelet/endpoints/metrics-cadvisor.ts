/** Container metrics under cAdvisor's names, which dashboards expect of every kubelet. */
import type { Pressure } from "../../provider/provider.ts";
import { TEXT_FORMAT, family, type Labels, type Sample } from "../metrics/exposition.ts";
import type { Handler } from "../router.ts";
import type { NodeSample, StatsSource } from "../metrics/stats.ts";

/** What the node offers in all, from its Node object. */
export interface MachineCapacity {
  cpuMillis: number;
  memoryBytes: number;
}

/** `/metrics/cadvisor`: the series that the usual dashboards read, as far as a backend's figures go. */
export function cadvisorMetrics(stats: StatsSource, capacity: () => MachineCapacity): Handler {
  return {
    kind: "plain",
    handle: async () => ({
      status: 200,
      contentType: TEXT_FORMAT,
      body: renderCadvisorMetrics(await stats.sample(), capacity()),
    }),
  };
}

/** @internal */
export function renderCadvisorMetrics(node: NodeSample, capacity: MachineCapacity): string {
  const cpu: Sample[] = [];
  const workingSet: Sample[] = [];
  const usage: Sample[] = [];
  const rss: Sample[] = [];
  const fs: Sample[] = [];
  const started: Sample[] = [];
  const received: Sample[] = [];
  const sent: Sample[] = [];
  const stalls = new Stalls();
  for (const { pod, at, containers, network, pressure } of node.pods) {
    const { name = "", namespace = "", uid = "" } = pod.metadata ?? {};
    const podLabels: Labels = [
      ["container", ""],
      ["id", `/kubepods/pod${uid}`],
      ["image", ""],
      ["name", ""],
      ["namespace", namespace],
      ["pod", name],
    ];
    stalls.add(podLabels, at, pressure);
    for (const container of containers) {
      const labels: Labels = [
        ["container", container.name],
        ["id", `/kubepods/pod${uid}/${container.id}`],
        ["image", container.image],
        ["name", container.id],
        ["namespace", namespace],
        ["pod", name],
      ];
      const add = (list: Sample[], value: number | undefined) => {
        if (value !== undefined) list.push({ labels, value, timestampMs: at });
      };
      cpu.push({
        labels: [...labels.slice(0, 1), ["cpu", "total"], ...labels.slice(1)],
        value: container.cpuNanoseconds / 1e9,
        timestampMs: at,
      });
      add(workingSet, container.workingSetBytes);
      add(usage, container.usageBytes);
      add(rss, container.rssBytes);
      add(fs, container.fsUsedBytes);
      add(started, container.startedAt / 1000);
      stalls.add(labels, at, container.pressure);
    }
    if (network === undefined) continue;
    // cAdvisor shows a pod's network at its pause container: no container name, the image of pause.
    const labels: Labels = [
      ["container", ""],
      ["id", `/kubepods/pod${uid}`],
      ["image", "registry.k8s.io/pause"],
      ["interface", "eth0"],
      ["name", ""],
      ["namespace", namespace],
      ["pod", name],
    ];
    received.push({ labels, value: network.rxBytes, timestampMs: at });
    sent.push({ labels, value: network.txBytes, timestampMs: at });
  }
  return [
    family("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", cpu),
    family("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", workingSet),
    family("container_memory_usage_bytes", "gauge", "Current memory usage in bytes.", usage),
    family("container_memory_rss", "gauge", "Size of RSS in bytes.", rss),
    family(
      "container_fs_usage_bytes",
      "gauge",
      "Number of bytes that are consumed by the container on this filesystem.",
      fs,
    ),
    family(
      "container_start_time_seconds",
      "gauge",
      "Start time of the container since unix epoch in seconds.",
      started,
    ),
    family("container_network_receive_bytes_total", "counter", "Cumulative count of bytes received.", received),
    family("container_network_transmit_bytes_total", "counter", "Cumulative count of bytes transmitted.", sent),
    stalls.render(),
    family("machine_cpu_cores", "gauge", "Number of logical CPU cores.", [
      { labels: [], value: capacity.cpuMillis / 1000 },
    ]),
    family("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.", [
      { labels: [], value: capacity.memoryBytes },
    ]),
  ].join("");
}

const RESOURCES = { cpu: "CPU", memory: "memory", io: "IO" } as const;
const KINDS = {
  full: { name: "stalled", help: "no tasks in the container could make progress" },
  some: { name: "waiting", help: "tasks in the container have waited" },
} as const;

/** Pressure stall figures: a counter for each resource and each kind of wait. */
class Stalls {
  readonly #samples = new Map<string, Sample[]>();

  add(labels: Labels, timestampMs: number, pressure: Pressure | undefined): void {
    for (const resource of ["cpu", "memory", "io"] as const) {
      const stall = pressure?.[resource];
      if (stall === undefined) continue;
      for (const kind of ["full", "some"] as const) {
        const key = `${resource} ${kind}`;
        const samples = this.#samples.get(key) ?? [];
        samples.push({ labels, value: stall[kind].total_us / 1e6, timestampMs });
        this.#samples.set(key, samples);
      }
    }
  }

  render(): string {
    return (["cpu", "memory", "io"] as const)
      .flatMap((resource) =>
        (["full", "some"] as const).map((kind) =>
          family(
            `container_pressure_${resource}_${KINDS[kind].name}_seconds_total`,
            "counter",
            `Total time duration ${KINDS[kind].help} due to ${RESOURCES[resource]} congestion.`,
            this.#samples.get(`${resource} ${kind}`) ?? [],
          ),
        ),
      )
      .join("");
  }
}
