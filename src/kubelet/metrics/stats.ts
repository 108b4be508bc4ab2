/**
 * Usage of the machines, from one provider call for all scrapers within a few seconds. A machine or container without a
 * sample is left out, never shown as zero: metrics-server drops a whole pod in which one container is zero.
 */
import { claimNamesOf, uidOf } from "../../kube/pod.ts";
import type { MachineStats, Pressure, ProbeTally, Provider } from "../../provider/provider.ts";
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import { runningContainers, type NodePod, type PodLookup } from "../pod-lookup.ts";

export interface ContainerSample {
  name: string;
  image: string;
  /** The runtime's id without its scheme. */
  id: string;
  /** Milliseconds since the epoch. */
  startedAt: number;
  cpuNanoseconds: number;
  /** Over the last two samples; absent with one. */
  cpuNanocores?: number | undefined;
  workingSetBytes: number;
  usageBytes?: number | undefined;
  rssBytes?: number | undefined;
  fsUsedBytes?: number | undefined;
  logsUsedBytes?: number | undefined;
  pressure?: Pressure | undefined;
}

export interface PodSample {
  pod: NodePod["pod"];
  /** When it was taken, milliseconds since the epoch. */
  at: number;
  containers: ContainerSample[];
  network?: { rxBytes: number; txBytes: number };
  /** Of all its containers together: it is no sum of theirs. */
  pressure?: Pressure | undefined;
  volumes: VolumeUsage[];
}

export interface VolumeUsage {
  name: string;
  /** Of one that outlives the pod: the name of its claim. */
  claim?: string | undefined;
  usedBytes: number;
  capacityBytes?: number | undefined;
  availableBytes?: number | undefined;
  inodes?: number | undefined;
  inodesUsed?: number | undefined;
  inodesFree?: number | undefined;
}

export interface NodeSample {
  at: number;
  /** Never falls: it goes on counting what machines used that are gone. */
  cpuNanoseconds: number;
  cpuNanocores?: number | undefined;
  workingSetBytes: number;
  /** Of a container of which that is not known, its working set. */
  rssBytes: number;
  /** This process alone, which is part of the node's usage like a kubelet is. */
  agent: { cpuNanoseconds: number; memoryBytes: number };
  pods: PodSample[];
  /** Of the backend's own probes. */
  probes: ContainerProbes[];
  /** The provider could not be asked; what is here is the agent's own. */
  failed: boolean;
}

/** What a container's probes came to since it started. */
export interface ContainerProbes {
  podUid: string;
  container: string;
  tally: Readonly<ProbeTally>;
}

/** CPU time and memory of this process. */
export type SelfUsage = () => { cpuNanoseconds: number; memoryBytes: number };

export const processUsage: SelfUsage = () => {
  const { user, system } = process.cpuUsage();
  return { cpuNanoseconds: (user + system) * 1000, memoryBytes: process.memoryUsage.rss() };
};

const CACHE_MS = 3_000;
const TIMEOUT_MS = 10_000;

interface StatsSourceOptions {
  provider: Pick<Provider, "getStats">;
  pods: PodLookup;
  /** Select this node's machines. */
  labels: Readonly<Record<string, string>>;
  clock: Clock;
  logger: Logger;
  selfUsage: SelfUsage;
}

interface Reading {
  machineId: string;
  cpu: number;
  at: number;
  nanocores: number | undefined;
}

export class StatsSource {
  readonly #options: StatsSourceOptions;
  #last: { sample: Promise<NodeSample>; at: number; containers: ReadonlySet<string> } | undefined;
  /** By machine, container and start: the last reading of each, to tell what was used since. */
  readonly #readings = new Map<string, Reading>();
  /** What all machines used while we looked, gone ones included. */
  #machineNanoseconds = 0;
  #previousNode: { cpu: number; at: number } | undefined;

  constructor(options: StatsSourceOptions) {
    this.#options = options;
  }

  /** The usage now, or up to three seconds ago when no container has started since. Never rejects. */
  sample(): Promise<NodeSample> {
    const now = this.#options.clock.monotonic();
    const containers = new Set(
      this.#options.pods
        .list()
        .flatMap(({ pod, machineId }) => runningContainers(pod).map(({ name }) => `${machineId}/${name}`)),
    );
    const last = this.#last;
    if (last === undefined || now - last.at >= CACHE_MS || [...containers].some((each) => !last.containers.has(each))) {
      this.#last = { sample: this.#take(), at: now, containers };
    }
    return this.#last!.sample;
  }

  async #take(): Promise<NodeSample> {
    const { provider, pods, labels, clock, logger, selfUsage } = this.#options;
    let machines: MachineStats[] = [];
    let failed = false;
    try {
      machines = (await provider.getStats?.({ labels: { ...labels }, signal: AbortSignal.timeout(TIMEOUT_MS) })) ?? [];
    } catch (thrown) {
      failed = true;
      logger.warn({ err: thrown }, "Machine stats not available");
    }
    const byMachine = new Map(machines.map((machine) => [machine.id, machine]));
    const listed = pods.list();
    const samples: PodSample[] = [];
    const probes: ContainerProbes[] = [];
    for (const nodePod of listed) {
      const machine = byMachine.get(nodePod.machineId);
      if (machine === undefined) continue;
      const sample = this.#podSample(nodePod, machine);
      if (sample !== undefined && sample.containers.length > 0) samples.push(sample);
      for (const { name, probes: tallies = [] } of machine.containers)
        for (const tally of tallies) probes.push({ podUid: uidOf(nodePod.pod), container: name, tally });
    }
    // Readings stay as long as their pod: a machine that misses one sample is not counted twice when it is back.
    const machineIds = new Set(listed.map((nodePod) => nodePod.machineId));
    for (const [key, { machineId }] of this.#readings) if (!machineIds.has(machineId)) this.#readings.delete(key);
    return { ...this.#nodeSample(samples, selfUsage(), clock.now()), probes, failed };
  }

  #nodeSample(pods: PodSample[], agent: NodeSample["agent"], at: number): Omit<NodeSample, "probes" | "failed"> {
    const cpu = this.#machineNanoseconds + agent.cpuNanoseconds;
    let memory = agent.memoryBytes;
    let rss = agent.memoryBytes;
    for (const container of pods.flatMap(({ containers }) => containers)) {
      memory += container.workingSetBytes;
      rss += container.rssBytes ?? container.workingSetBytes;
    }
    const previous = this.#previousNode;
    this.#previousNode = { cpu, at };
    return {
      at,
      cpuNanoseconds: cpu,
      workingSetBytes: memory,
      rssBytes: rss,
      agent,
      pods,
      cpuNanocores: previous !== undefined && at > previous.at ? rate(cpu - previous.cpu, at - previous.at) : undefined,
    };
  }

  #podSample({ pod, machineId }: NodePod, machine: MachineStats): PodSample | undefined {
    const at = Date.parse(machine.at);
    if (Number.isNaN(at)) return undefined;
    const running = new Map(runningContainers(pod).map((status) => [status.name, status]));
    const sample: PodSample = { pod, at, containers: [], volumes: [], pressure: machine.pressure };
    for (const stats of machine.containers) {
      const status = running.get(stats.name);
      const startedAt = Date.parse(stats.started_at);
      if (
        status === undefined ||
        Number.isNaN(startedAt) ||
        !(stats.cpu_usage_ns_total > 0) ||
        !(stats.memory_working_set_bytes > 0)
      )
        continue;
      const nanocores = this.#read(
        machineId,
        `${machineId}/${stats.name}/${stats.started_at}`,
        stats.cpu_usage_ns_total,
        at,
      );
      sample.containers.push({
        name: stats.name,
        image: status.image,
        id: (status.containerID ?? "").replace(/^.*:\/\//, ""),
        startedAt,
        cpuNanoseconds: stats.cpu_usage_ns_total,
        workingSetBytes: stats.memory_working_set_bytes,
        cpuNanocores: nanocores,
        usageBytes: stats.memory_usage_bytes,
        rssBytes: stats.memory_rss_bytes,
        fsUsedBytes: stats.fs_used_bytes,
        logsUsedBytes: stats.logs_used_bytes,
        pressure: stats.pressure,
      });
    }
    if (machine.network) sample.network = { rxBytes: machine.network.rx_bytes, txBytes: machine.network.tx_bytes };
    const claims = claimNamesOf(pod);
    for (const { name, used_bytes, capacity_bytes, available_bytes, ...volume } of machine.volumes ?? [])
      sample.volumes.push({
        name,
        claim: claims.get(name),
        usedBytes: used_bytes,
        capacityBytes: capacity_bytes,
        availableBytes:
          available_bytes ?? (capacity_bytes === undefined ? undefined : Math.max(0, capacity_bytes - used_bytes)),
        inodes: volume.inodes,
        inodesUsed: volume.inodes_used,
        inodesFree: volume.inodes_free,
      });
    return sample;
  }

  /** Notes a container's CPU time and returns its rate since the last reading, if there is one. */
  #read(machineId: string, key: string, cpu: number, at: number): number | undefined {
    const previous = this.#readings.get(key);
    const used = Math.max(0, cpu - (previous?.cpu ?? 0));
    this.#machineNanoseconds += used;
    // A backend may answer twice with the same sample: then the rate of before stands.
    const nanocores =
      previous === undefined ? undefined : at > previous.at ? rate(used, at - previous.at) : previous.nanocores;
    this.#readings.set(key, { machineId, cpu, at, nanocores });
    return nanocores;
  }
}

/** Nanoseconds of CPU per millisecond of time, as nanocores. */
function rate(nanoseconds: number, ms: number): number {
  return Math.max(0, Math.round((nanoseconds / ms) * 1000));
}
