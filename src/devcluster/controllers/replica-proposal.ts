/**
 * How many replicas the usage of pods calls for (`pkg/controller/podautoscaler/replica_calculator.go`). Amounts are
 * thousandths: of a core, or of a byte.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { Quantity } from "../../resources/quantity.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { parseRfc3339Ms } from "./times.ts";

/** kube-controller-manager's `--horizontal-pod-autoscaler-cpu-initialization-period` and `-initial-readiness-delay`. */
const CPU_INITIALIZATION_MS = 300_000;
const INITIAL_READINESS_MS = 30_000;

/** A resource of pods, or of one of their containers, and what one pod should use of it. */
export interface UsageTarget {
  resource: string;
  /** undefined: the whole pod */
  container: string | undefined;
  /** Percent of the request. */
  utilization: number | undefined;
  /** Where there is no `utilization`. */
  averageMillis: number | undefined;
}

/** By how much of the target usage may differ from it, each as a fraction. */
export interface Tolerance {
  down: number;
  up: number;
}

interface ProposalInput {
  /** All that the target of the autoscaler selects. */
  pods: readonly StoredObject[];
  /** `PodMetrics` of those that have them. */
  metrics: readonly Json[];
  target: UsageTarget;
  replicas: number;
  tolerance: Tolerance;
  /** Milliseconds since the epoch. */
  now: number;
}

interface Proposal {
  replicas: number;
  /** Percent, where the target is one. */
  utilization: number | undefined;
  averageMillis: number;
}

export interface Failure {
  failure: string;
}

interface Reading {
  at: number;
  windowMs: number;
  millis: number;
}

/** Names of pods whose usage counts, of those whose usage does not count yet, and of those that have none. */
interface Groups {
  ready: string[];
  unready: string[];
  missing: string[];
}

interface Ratio {
  ratio: number;
  utilization: number | undefined;
  averageMillis: number;
}

/** The replicas that this target calls for, or why that cannot be told, in the words of the real controller. */
export function proposeReplicas(input: ProposalInput): Proposal | Failure {
  const { pods, metrics, target, replicas, tolerance } = input;
  if (metrics.length === 0)
    return {
      failure: `unable to get metrics for resource ${target.resource}: no metrics returned from resource metrics API`,
    };
  if (pods.length === 0) return { failure: "no pods returned by selector while calculating replica count" };
  const readings = readingsOf(metrics, target);
  const groups = groupPods(pods, readings, target.resource, input.now);
  const usages = new Map(groups.ready.map((name) => [name, readings.get(name)!.millis]));
  if (usages.size === 0) return { failure: "did not receive metrics for targeted pods (pods might be unready)" };
  const requests = target.utilization === undefined ? new Map<string, number>() : requestsOf(pods, target);
  if ("failure" in requests) return requests;
  const measured = ratioOf(usages, requests, target);
  if ("failure" in measured) return measured;
  const { ratio, utilization, averageMillis } = measured;
  const isWithin = (value: number) => 1 - tolerance.down <= value && value <= 1 + tolerance.up;
  if (groups.missing.length === 0 && (groups.unready.length === 0 || ratio <= 1)) {
    const proposed = isWithin(ratio) ? replicas : Math.ceil(ratio * groups.ready.length);
    return { replicas: proposed, utilization, averageMillis };
  }
  guess(usages, ratio, groups, (name) => assumedMillis(target, requests.get(name) ?? 0));
  const guessed = ratioOf(usages, requests, target);
  if ("failure" in guessed) return guessed;
  const proposed = Math.ceil(guessed.ratio * usages.size);
  const isCertain = !isWithin(guessed.ratio) && !turnsRound(ratio, guessed.ratio, proposed - replicas);
  return { replicas: isCertain ? proposed : replicas, utilization, averageMillis };
}

/** What is not known is guessed so that the change is rather too small: idle when pods are added, busy when they go. */
function guess(
  usages: Map<string, number>,
  ratio: number,
  { missing, unready }: Groups,
  assumed: (name: string) => number,
): void {
  if (ratio < 1) for (const name of missing) usages.set(name, assumed(name));
  if (ratio > 1) for (const name of [...missing, ...unready]) usages.set(name, 0);
}

/** Whether the guesses would change the direction, so that nothing is known for certain. */
const turnsRound = (ratio: number, guessed: number, change: number): boolean =>
  (ratio < 1 && guessed > 1) ||
  (ratio > 1 && guessed < 1) ||
  (guessed < 1 && change > 0) ||
  (guessed > 1 && change < 0);

/** On the way down a pod without usage counts as one that uses its whole request, or the target where that is more. */
const assumedMillis = ({ utilization, averageMillis }: UsageTarget, request: number): number =>
  utilization === undefined ? averageMillis! : Math.trunc((request * Math.max(100, utilization)) / 100);

function ratioOf(
  usages: ReadonlyMap<string, number>,
  requests: ReadonlyMap<string, number>,
  { utilization: wanted, averageMillis: wantedMillis }: UsageTarget,
): Ratio | Failure {
  const total = sum([...usages.values()]);
  const averageMillis = Math.trunc(total / usages.size);
  if (wanted === undefined) return { ratio: averageMillis / wantedMillis!, utilization: undefined, averageMillis };
  const requested = sum([...usages.keys()].map((name) => requests.get(name)!));
  if (requested === 0) return { failure: "no metrics returned matched known pods" };
  const utilization = Math.trunc((total * 100) / requested);
  return { ratio: utilization / wanted, utilization, averageMillis };
}

const sum = (amounts: readonly number[]): number => amounts.reduce((total, amount) => total + amount, 0);

/** What each pod uses; a pod of which one container is unknown is unknown itself. */
function readingsOf(metrics: readonly Json[], { resource, container }: UsageTarget): Map<string, Reading> {
  const readings = new Map<string, Reading>();
  for (const { metadata, timestamp, window, containers } of metrics) {
    const counted = (containers as Json[]).filter(({ name }) => container === undefined || name === container);
    const amounts = counted.map(({ usage }) => usage[resource] as string | undefined);
    if (amounts.length === 0 || amounts.includes(undefined)) continue;
    readings.set(metadata.name as string, {
      at: parseRfc3339Ms(timestamp),
      windowMs: Number.parseFloat(window) * 1000,
      millis: sum(amounts.map((amount) => Quantity.parse(amount!).toMillis())),
    });
  }
  return readings;
}

function groupPods(
  pods: readonly StoredObject[],
  readings: ReadonlyMap<string, Reading>,
  resource: string,
  now: number,
): Groups {
  const groups: Groups = { ready: [], unready: [], missing: [] };
  for (const pod of pods) {
    const { name, deletionTimestamp } = pod.metadata;
    const phase = pod.status?.phase as string | undefined;
    if (deletionTimestamp || phase === "Failed") continue;
    const reading = readings.get(name);
    if (phase === "Pending") groups.unready.push(name);
    else if (!reading) groups.missing.push(name);
    else if (resource === "cpu" && isWarmingUp(pod, reading, now)) groups.unready.push(name);
    else groups.ready.push(name);
  }
  return groups;
}

/** CPU time at a pod's start says nothing of its load. */
function isWarmingUp({ status }: StoredObject, reading: Reading, now: number): boolean {
  const condition = (status?.conditions as Json[] | undefined)?.find(({ type }) => type === "Ready");
  if (!condition || !status?.startTime) return true;
  const startedAt = parseRfc3339Ms(status.startTime);
  const changedAt = parseRfc3339Ms(condition.lastTransitionTime);
  const isUnready = condition.status === "False";
  if (startedAt + CPU_INITIALIZATION_MS > now) return isUnready || reading.at < changedAt + reading.windowMs;
  // Later only one that has never been ready.
  return isUnready && startedAt + INITIAL_READINESS_MS > changedAt;
}

function requestsOf(
  pods: readonly StoredObject[],
  { resource, container }: UsageTarget,
): Map<string, number> | Failure {
  const requests = new Map<string, number>();
  for (const { metadata, spec } of pods) {
    const ofPod = container === undefined ? spec.resources?.requests : undefined;
    if (ofPod) {
      if (ofPod[resource] === undefined)
        return { failure: `missing pod-level request for ${resource} in Pod ${metadata.name}` };
      requests.set(metadata.name, Quantity.parse(ofPod[resource]).toMillis());
      continue;
    }
    const running = [...(spec.containers as Json[]), ...((spec.initContainers ?? []) as Json[]).filter(isSidecar)];
    const counted = running.filter(({ name }) => container === undefined || name === container);
    if (counted.length === 0) return { failure: `container ${container} not found in Pod ${metadata.name}` };
    let millis = 0;
    for (const { name, resources } of counted) {
      const request = resources?.requests?.[resource] as string | undefined;
      if (request === undefined)
        return { failure: `missing request for ${resource} in container ${name} of Pod ${metadata.name}` };
      millis += Quantity.parse(request).toMillis();
    }
    requests.set(metadata.name, millis);
  }
  return requests;
}
