/** The summary API: usage per node, pod and container as JSON (k8s.io/kubelet: pkg/apis/stats/v1alpha1). */
import { rfc3339 } from "../../util/clock.ts";
import type { Handler } from "../router.ts";
import type { Stall } from "../../provider/provider.ts";
import type { ContainerSample, NodeSample, PodSample, StatsSource } from "../metrics/stats.ts";
import { sum } from "./metrics-resource.ts";

/** `/stats/summary` (v1alpha1 `Summary`); `?only_cpu_and_memory=true` drops the rest. */
export function statsSummary(stats: StatsSource, options: { nodeName: string; startedAtMs: number }): Handler {
  return {
    kind: "plain",
    async handle({ query }) {
      const node = await stats.sample();
      const body = JSON.stringify(
        renderSummary(node, { ...options, brief: query.get("only_cpu_and_memory") === "true" }),
      );
      return { status: 200, contentType: "application/json", body };
    },
  };
}

/** @internal */
export function renderSummary(
  node: NodeSample,
  options: { nodeName: string; startedAtMs: number; brief: boolean },
): object {
  const time = rfc3339(node.at);
  return {
    node: {
      nodeName: options.nodeName,
      startTime: rfc3339(options.startedAtMs),
      cpu: cpu(time, node.cpuNanoseconds, node.cpuNanocores),
      memory: memory(time, node.workingSetBytes, node.workingSetBytes, node.rssBytes, undefined),
      ...(!options.brief && {
        systemContainers: [
          {
            name: "kubelet",
            startTime: rfc3339(options.startedAtMs),
            cpu: cpu(time, node.agent.cpuNanoseconds, undefined),
            memory: {
              time,
              usageBytes: node.agent.memoryBytes,
              workingSetBytes: node.agent.memoryBytes,
              rssBytes: node.agent.memoryBytes,
            },
          },
        ],
      }),
    },
    pods: node.pods.map((pod) => renderPod(pod, options.brief)),
  };
}

function renderPod(sample: PodSample, brief: boolean): object {
  const time = rfc3339(sample.at);
  const { metadata, status } = sample.pod;
  const { containers } = sample;
  const nanocores = containers.map((container) => container.cpuNanocores);
  return {
    podRef: { name: metadata?.name, namespace: metadata?.namespace, uid: metadata?.uid },
    startTime: status?.startTime ?? metadata?.creationTimestamp,
    containers: containers.map((container) => renderContainer(container, time, brief)),
    cpu: cpu(
      time,
      sum(containers.map((container) => container.cpuNanoseconds)),
      nanocores.includes(undefined) ? undefined : sum(nanocores as number[]),
      sample.pressure?.cpu,
    ),
    memory: memory(
      time,
      sum(containers.map((container) => container.workingSetBytes)),
      total(containers.map((container) => container.usageBytes)),
      total(containers.map((container) => container.rssBytes)),
      sample.pressure?.memory,
    ),
    ...(!brief && {
      ...io(time, sample.pressure?.io),
      ...(sample.network && {
        network: { time, ...networkOf(sample.network), interfaces: [networkOf(sample.network)] },
      }),
      // What is undefined is left out of the JSON.
      volume: sample.volumes.map(({ claim, ...figures }) => ({
        time,
        ...figures,
        pvcRef: claim === undefined ? undefined : { name: claim, namespace: metadata?.namespace },
      })),
      "ephemeral-storage": {
        time,
        usedBytes: sum(containers.map((container) => (container.fsUsedBytes ?? 0) + (container.logsUsedBytes ?? 0))),
      },
    }),
  };
}

function renderContainer(container: ContainerSample, time: string, brief: boolean): object {
  return {
    name: container.name,
    startTime: rfc3339(container.startedAt),
    cpu: cpu(time, container.cpuNanoseconds, container.cpuNanocores, container.pressure?.cpu),
    memory: memory(
      time,
      container.workingSetBytes,
      container.usageBytes,
      container.rssBytes,
      container.pressure?.memory,
    ),
    ...(!brief && io(time, container.pressure?.io)),
    ...(!brief && container.fsUsedBytes !== undefined && { rootfs: { time, usedBytes: container.fsUsedBytes } }),
    ...(!brief && container.logsUsedBytes !== undefined && { logs: { time, usedBytes: container.logsUsedBytes } }),
  };
}

function cpu(time: string, usageCoreNanoSeconds: number, usageNanoCores: number | undefined, stall?: Stall): object {
  return { time, ...(usageNanoCores !== undefined && { usageNanoCores }), usageCoreNanoSeconds, ...psi(stall) };
}

function io(time: string, stall: Stall | undefined): object {
  return stall === undefined ? {} : { io: { time, ...psi(stall) } };
}

/** Totals are microseconds here, too, as in a kubelet, whatever its API says of nanoseconds. */
function psi(stall: Stall | undefined): object {
  if (stall === undefined) return {};
  const data = ({ total_us: total, avg10, avg60, avg300 }: Stall["some"]) => ({ total, avg10, avg60, avg300 });
  return { psi: { full: data(stall.full), some: data(stall.some) } };
}

function memory(
  time: string,
  workingSetBytes: number,
  usageBytes: number | undefined,
  rssBytes: number | undefined,
  stall: Stall | undefined,
): object {
  return {
    time,
    ...(usageBytes !== undefined && { usageBytes }),
    workingSetBytes,
    ...(rssBytes !== undefined && { rssBytes }),
    ...psi(stall),
  };
}

function networkOf(network: { rxBytes: number; txBytes: number }): object {
  return { name: "eth0", rxBytes: network.rxBytes, txBytes: network.txBytes };
}

/** A sum needs all its parts. */
function total(values: readonly (number | undefined)[]): number | undefined {
  return values.includes(undefined) ? undefined : sum(values as number[]);
}
