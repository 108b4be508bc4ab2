/** What metrics say of all nodes of a process together, and of the process itself. */
import { isTerminal } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { conditionOf, IN_PROGRESS, PENDING, priorityBucket } from "../pods/deferred-resizes.ts";
import type { ContainerState } from "../provider/machine.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import type { NodeAgent } from "./node-agent.ts";
import { observeWatches } from "./pod-metrics.ts";

/** What happened to the process itself, counted since it started. */
export interface Vitals {
  readonly droppedLogLines: number;
  readonly unhandledErrors: Readonly<Record<string, number>>;
}

/** Called for each scrape. @param asked the one node that the scrape is about; undefined for all */
export function observeProcess(
  asked: string | undefined,
  nodes: readonly NodeAgent[],
  { clock, vitals }: { clock: Clock; vitals?: (() => Vitals) | undefined },
  metrics: Metrics,
): void {
  countPods(asked === undefined ? nodes : nodes.filter(({ name }) => name === asked), metrics);
  const reflectors = nodes.map(({ pods }) => pods.reflector);
  observeWatches(metrics, clock, reflectors);
  if (vitals) countVitals(vitals(), metrics);
}

/** The kubelet's gauges carry no node label, so they count the pods of all these nodes. */
function countPods(nodes: readonly NodeAgent[], metrics: Metrics): void {
  const pods = nodes.flatMap((node) => node.pods.store.list());
  metrics.desiredPods.set(pods.length);
  metrics.activePods.set(pods.filter((pod) => !isTerminal(pod)).length);
  metrics.runningPods.set(pods.filter((pod) => pod.status?.phase === "Running").length);
  countResizes(pods, metrics);
  metrics.workingPods.set(nodes.reduce((sum, node) => sum + node.pods.working, 0));
  const machines = nodes.flatMap((node) => [...node.pods.machines.values()]);
  metrics.stuckPods.set(nodes.reduce((sum, node) => sum + node.pods.stuck, 0));
  metrics.machines.reset();
  for (const { state } of machines) metrics.machines.inc({ state });
  for (const _ of nodes.flatMap(({ pods }) => [...pods.machines.unknown()])) metrics.machines.inc({ state: "unknown" });
  metrics.machineCost.reset();
  for (const node of nodes) countCost(node, metrics);
  metrics.runningContainers.reset();
  for (const container of machines.flatMap((machine) => machine.containers)) {
    metrics.runningContainers.inc({ container_state: containerState(container) });
  }
  for (const { name, pods } of nodes)
    metrics.backendUp.set({ node: name }, pods.observer.failingSince === undefined ? 1 : 0);
}

/** kubelet: observePendingResizeCount, recordInProgressResizeCount. */
function countResizes(pods: readonly Pod[], metrics: Metrics): void {
  metrics.pendingResizes.reset();
  for (const pod of pods) {
    const pending = conditionOf(pod, PENDING);
    const reason = pending?.reason === "Deferred" ? "deferred" : "infeasible";
    if (pending) metrics.pendingResizes.inc({ reason, priority_bucket: priorityBucket(pod.spec?.priority) });
  }
  metrics.resizesInProgress.set(pods.filter((pod) => conditionOf(pod, IN_PROGRESS) !== undefined).length);
}

/** Also of what has ended: it is paid for until it is deleted. */
function countCost({ name, pods }: NodeAgent, { machineCost }: Metrics): void {
  for (const { state, price, instance_type = "", zone = "" } of pods.machines.values())
    if (price !== undefined && state !== "deleted") machineCost.inc({ node: name, instance_type, zone }, price);
}

function countVitals({ droppedLogLines, unhandledErrors }: Vitals, metrics: Metrics): void {
  metrics.logLinesDropped.reset();
  metrics.logLinesDropped.inc(droppedLogLines);
  metrics.unhandledErrors.reset();
  for (const [kind, count] of Object.entries(unhandledErrors)) metrics.unhandledErrors.inc({ kind }, count);
}

/** kubelet's words: what waits for its first start was `created`, what waits for its next has `exited`. */
function containerState({ state, id }: ContainerState): string {
  if (state === "running") return "running";
  return state === "waiting" && id === undefined ? "created" : "exited";
}
