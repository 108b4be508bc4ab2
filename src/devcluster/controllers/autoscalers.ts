/**
 * HorizontalPodAutoscalers (`pkg/controller/podautoscaler`): as many replicas as keep the pods' use of CPU or memory
 * near a target. Metrics of other kinds come from APIs that this cluster has not, and the condition says so.
 */
import type { Logger } from "../../telemetry/logger.ts";
import { toError } from "../../util/errors.ts";
import { Quantity } from "../../resources/quantity.ts";
import { storageName, type Kind } from "../kinds/kind.ts";
import { kinds, mustFindKind } from "../kinds/kinds.ts";
import { selects, selectorText } from "../kinds/pod-template.ts";
import { ApiStatusError, notFound, resourceNotFound } from "../objects/errors.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import type { Usage } from "../kubectl/usage.ts";
import { AutoscalerStatus } from "./autoscaler-status.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { keyOf } from "./object-index.ts";
import { proposeReplicas, type Failure, type Tolerance, type UsageTarget } from "./replica-proposal.ts";
import { ScalingPace } from "./scaling-pace.ts";

export type ReadUsage = Pick<Usage, "answer">;

const autoscalers = mustFindKind("autoscaling", "v2", "horizontalpodautoscalers");

/** kube-controller-manager's `--horizontal-pod-autoscaler-sync-period` and `--horizontal-pod-autoscaler-tolerance`. */
const PERIOD_MS = 15_000;
const TOLERANCE = 0.1;

/** What is scaled. */
interface Target {
  object: StoredObject;
  selector: Json;
  replicas: number;
}

interface MetricProposal {
  replicas: number;
  /** As events name the metric. */
  name: string;
  status: Json;
}

interface MetricFailure extends Failure {
  reason: string;
  /** What did not work, as the event about all metrics says it. */
  what: string;
}

/** What there is too much or too little of, whatever the metrics say. */
interface Bound {
  replicas: number;
  reason: string;
}

export class HorizontalPodAutoscalers extends KeyedController {
  readonly #usage: ReadUsage;
  readonly #logger: Logger;
  readonly #paces = new Map<string, { uid: string; pace: ScalingPace }>();
  /** Keys of those whose pods' usage is being read, which takes some seconds. */
  readonly #reading = new Set<string>();
  readonly #stopping = new AbortController();

  constructor(options: ControllerOptions & { usage: ReadUsage }) {
    super(options, "horizontal-pod-autoscaler");
    this.#usage = options.usage;
    this.#logger = options.logger;
  }

  start(): void {
    // Its own status changes with every look, and calls for no other.
    this.watch(storageName(autoscalers), ({ object, previous, deleted }) => {
      if (deleted || !jsonEqual(previous?.spec, object.spec)) this.queue.add(keyOf(object));
    });
    for (const autoscaler of this.storage.list(storageName(autoscalers))) this.queue.add(keyOf(autoscaler));
  }

  override stop(): void {
    this.#stopping.abort();
    super.stop();
  }

  protected sync(key: string): void {
    const autoscaler = this.storage.get(storageName(autoscalers), key);
    if (!autoscaler) {
      this.#paces.delete(key);
      return;
    }
    this.queue.addAfter(key, PERIOD_MS);
    if (this.#reading.has(key)) return;
    const target = this.#targetOf(autoscaler);
    if ("failure" in target || !needsMetrics(autoscaler, target)) {
      this.#reconcile(key, undefined);
      return;
    }
    this.#reading.add(key);
    void this.#readAndReconcile(key, autoscaler.metadata.namespace!, selectorText(target.selector));
  }

  async #readAndReconcile(key: string, namespace: string, labelSelector: string): Promise<void> {
    const query = { resource: "pods", namespace, name: undefined, labelSelector };
    try {
      const { items } = await this.#usage.answer(query, this.#stopping.signal);
      if (!this.#stopping.signal.aborted) this.#reconcile(key, items as Json[]);
    } catch (thrown) {
      // What the API refuses is tried again in the next period.
      if (!this.#stopping.signal.aborted && !(thrown instanceof ApiStatusError))
        this.#logger.error({ err: thrown, controller: "horizontal-pod-autoscaler", key }, "Controller failed");
    } finally {
      this.#reading.delete(key);
    }
  }

  /** @param usage `PodMetrics` of the target's pods; undefined when they were not needed */
  #reconcile(key: string, usage: Json[] | undefined): void {
    const autoscaler = this.storage.get(storageName(autoscalers), key);
    if (!autoscaler) return;
    const status = new AutoscalerStatus(autoscaler, this.actor.objects.now());
    const target = this.#targetOf(autoscaler);
    if ("failure" in target) {
      this.actor.event(autoscaler, "Warning", "FailedGetScale", target.failure);
      const message = `the HPA controller was unable to get the target's current scale: ${target.failure}`;
      status.setCondition("AbleToScale", "False", { reason: "FailedGetScale", message });
    } else {
      // The target may have changed while usage was read; the next look has what it needs.
      if (usage === undefined && needsMetrics(autoscaler, target)) return;
      status.setCondition("AbleToScale", "True", {
        reason: "SucceededGetScale",
        message: "the HPA controller was able to get the target's current scale",
      });
      status.currentReplicas = target.replicas;
      this.#scale(autoscaler, target, usage ?? [], status);
    }
    this.actor.updateStatus(autoscaler, status.toJson());
  }

  #scale(autoscaler: StoredObject, target: Target, usage: readonly Json[], status: AutoscalerStatus): void {
    const pace = this.#paceOf(autoscaler, target.replicas);
    if (target.replicas === 0) {
      const message = "scaling is disabled since the replica count of the target is zero";
      status.setCondition("ScalingActive", "False", { reason: "ScalingDisabled", message });
      status.desiredReplicas = 0;
      return;
    }
    const wanted = boundOf(autoscaler, target) ?? this.#byMetrics(autoscaler, target, usage, status, pace);
    if (!wanted) return;
    if (wanted.replicas === target.replicas) {
      status.desiredReplicas = target.replicas;
      return;
    }
    try {
      this.actor.scale(target.object, wanted.replicas);
    } catch (thrown) {
      const { message } = toError(thrown);
      const text = `New size: ${wanted.replicas}; reason: ${wanted.reason}; error: ${message}`;
      this.actor.event(autoscaler, "Warning", "FailedRescale", text);
      status.setCondition("AbleToScale", "False", {
        reason: "FailedUpdateScale",
        message: `the HPA controller was unable to update the target scale: ${message}`,
      });
      return;
    }
    const message = `the HPA controller was able to update the target scale to ${wanted.replicas}`;
    status.setCondition("AbleToScale", "True", { reason: "SucceededRescale", message });
    const text = `New size: ${wanted.replicas}; reason: ${wanted.reason}`;
    this.actor.event(autoscaler, "Normal", "SuccessfulRescale", text);
    pace.changed(wanted.replicas - target.replicas, autoscaler.spec.behavior, this.clock.monotonic());
    status.desiredReplicas = wanted.replicas;
    status.isRescaled = true;
  }

  /** What the metrics call for, within the limits; undefined when they tell nothing, which the status says. */
  #byMetrics(
    autoscaler: StoredObject,
    target: Target,
    usage: readonly Json[],
    status: AutoscalerStatus,
    pace: ScalingPace,
  ): Bound | undefined {
    const pods = this.index.podsIn(autoscaler.metadata.namespace!).filter((pod) => selectsPod(target, pod));
    const rivals = this.#rivals(autoscaler, pods);
    if (rivals.length > 0) {
      const all = [keyOf(autoscaler), ...rivals].toSorted().join(" ");
      const message = `pods by selector ${selectorText(target.selector)} are controlled by multiple HPAs: [${all}]`;
      status.setCondition("ScalingActive", "False", { reason: "AmbiguousSelector", message });
      for (const reason of ["AmbiguousSelector", "FailedComputeMetricsReplicas"])
        this.actor.event(autoscaler, "Warning", reason, message);
      return undefined;
    }
    const best = this.#bestProposal(autoscaler, target, { pods, usage }, status);
    if (!best) return undefined;
    const { behavior, minReplicas: min, maxReplicas: max } = autoscaler.spec;
    const current = target.replicas;
    const desired = best.replicas;
    const followed = pace.follow({ behavior, min, max, current, desired, now: this.clock.monotonic() });
    status.setCondition("AbleToScale", "True", followed.able);
    status.setCondition("ScalingLimited", followed.limit.isLimited ? "True" : "False", followed.limit);
    const reason =
      desired > current ? `${best.name} above target` : desired < current ? "All metrics below target" : "";
    return { replicas: followed.replicas, reason };
  }

  /** The largest of all proposals. Where one is missing, nothing is taken away. */
  #bestProposal(
    autoscaler: StoredObject,
    target: Target,
    { pods, usage }: { pods: readonly StoredObject[]; usage: readonly Json[] },
    status: AutoscalerStatus,
  ): MetricProposal | undefined {
    const specs = autoscaler.spec.metrics as Json[];
    const tolerance = toleranceOf(autoscaler.spec.behavior);
    const results = specs.map((metric) => {
      const found = targetOfMetric(metric);
      if ("failure" in found) return found;
      const input = {
        pods,
        metrics: usage,
        target: found,
        replicas: target.replicas,
        tolerance,
        now: this.clock.now(),
      };
      const proposal = proposeReplicas(input);
      return "failure" in proposal ? failureOf(metric, found, proposal) : describe(metric, found, proposal);
    });
    status.metrics = results.map((result) => ("failure" in result ? { type: "" } : result.status));
    const failures = results.filter((result) => "failure" in result);
    for (const { reason, failure } of failures) this.actor.event(autoscaler, "Warning", reason, failure);
    let best: MetricProposal | undefined;
    for (const result of results)
      if (!("failure" in result) && (!best || result.replicas > best.replicas)) best = result;
    const first = failures[0];
    if (first && (!best || best.replicas < target.replicas)) {
      const message = `the HPA was unable to compute the replica count: ${first.failure}`;
      status.setCondition("ScalingActive", "False", { reason: first.reason, message });
      const counts = `${failures.length} invalid out of ${specs.length}`;
      const text = `invalid metrics (${counts}), first error is: failed to get ${first.what}: ${first.failure}`;
      this.actor.event(autoscaler, "Warning", "FailedComputeMetricsReplicas", text);
      return undefined;
    }
    const message = `the HPA was able to successfully calculate a replica count from ${best!.name}`;
    status.setCondition("ScalingActive", "True", { reason: "ValidMetricFound", message });
    return best;
  }

  /** Keys of other autoscalers whose targets select some of these pods too. */
  #rivals(autoscaler: StoredObject, pods: readonly StoredObject[]): string[] {
    const { namespace, uid } = autoscaler.metadata;
    return this.index.inNamespace(storageName(autoscalers), namespace!).flatMap((other) => {
      if (other.metadata.uid === uid) return [];
      const target = this.#targetOf(other);
      return !("failure" in target) && pods.some((pod) => selectsPod(target, pod)) ? [keyOf(other)] : [];
    });
  }

  #paceOf(autoscaler: StoredObject, replicas: number): ScalingPace {
    const { uid } = autoscaler.metadata;
    const known = this.#paces.get(keyOf(autoscaler));
    if (known?.uid === uid) return known.pace;
    const pace = new ScalingPace(replicas, this.clock.monotonic());
    this.#paces.set(keyOf(autoscaler), { uid, pace });
    return pace;
  }

  #targetOf({ metadata, spec }: StoredObject): Target | Failure {
    const { apiVersion = "", kind: kindName, name } = spec.scaleTargetRef;
    // The group counts alone, as for the real one.
    const group = apiVersion.includes("/") ? (apiVersion as string).split("/")[0]! : "";
    const kind: Kind | undefined = kinds.find((each) => each.group === group && each.kind === kindName);
    if (!kind) return { failure: `no matches for kind ${JSON.stringify(kindName)} in group ${JSON.stringify(group)}` };
    if (!kind.scale) return { failure: resourceNotFound().message };
    const object = this.actor.get(kind, metadata.namespace, name);
    if (!object) return { failure: notFound(kind, name).message };
    return { object, selector: kind.scale.selector(object), replicas: object.spec.replicas as number };
  }
}

const selectsPod = ({ selector }: Target, pod: StoredObject): boolean => selects(selector, pod.metadata.labels);

const needsMetrics = (autoscaler: StoredObject, target: Target): boolean =>
  target.replicas !== 0 && !boundOf(autoscaler, target);

/** Where the target is outside the autoscaler's range. */
function boundOf({ spec }: StoredObject, { replicas }: Target): Bound | undefined {
  if (replicas > spec.maxReplicas)
    return { replicas: spec.maxReplicas, reason: "Current number of replicas above Spec.MaxReplicas" };
  if (replicas < spec.minReplicas)
    return { replicas: spec.minReplicas, reason: "Current number of replicas below Spec.MinReplicas" };
  return undefined;
}

function toleranceOf(behavior: Json): Tolerance {
  const of = (rules: Json): number =>
    rules?.tolerance === undefined ? TOLERANCE : Quantity.parse(rules.tolerance).toMillis() / 1000;
  return { down: of(behavior?.scaleDown), up: of(behavior?.scaleUp) };
}

/** Metrics that need an API which this cluster has not, and how the real one words their failures. */
const UNSERVED: Readonly<
  Record<string, { field: string; reason: string; api: string; what: (metric: Json) => string }>
> = {
  Pods: {
    field: "pods",
    reason: "FailedGetPodsMetric",
    api: "custom.metrics.k8s.io",
    what: () => "pods metric value",
  },
  Object: {
    field: "object",
    reason: "FailedGetObjectMetric",
    api: "custom.metrics.k8s.io",
    what: () => "object metric value",
  },
  External: {
    field: "external",
    reason: "FailedGetExternalMetric",
    api: "external.metrics.k8s.io",
    what: ({ external }) => `${external?.metric?.name} external metric value`,
  },
};

function targetOfMetric(metric: Json): UsageTarget | MetricFailure {
  const unserved = UNSERVED[metric.type];
  if (unserved) {
    const name = metric[unserved.field]?.metric?.name as string | undefined;
    const failure = `unable to get metric ${name}: this cluster does not serve ${unserved.api}, only cpu and memory of pods`;
    return { reason: unserved.reason, what: unserved.what(metric), failure };
  }
  const { name, container, target } = metric.type === "Resource" ? metric.resource : metric.containerResource;
  const { averageUtilization, averageValue } = target;
  const isValue = averageValue !== undefined;
  const found: UsageTarget = {
    resource: name,
    container,
    utilization: isValue ? undefined : averageUtilization,
    averageMillis: isValue ? Quantity.parse(averageValue).toMillis() : undefined,
  };
  if (isValue || averageUtilization !== undefined) return found;
  const failure =
    "invalid resource metric source: neither an average utilization target nor an average value target was set";
  return failureOf(metric, found, { failure });
}

function failureOf(
  metric: Json,
  { resource, container, utilization }: UsageTarget,
  { failure }: Failure,
): MetricFailure {
  return {
    reason: `FailedGet${metric.type}Metric`,
    what: container === undefined ? `${resource} resource metric value` : `${container} container metric value`,
    failure: `failed to get ${resource} ${utilization === undefined ? "usage" : "utilization"}: ${failure}`,
  };
}

function describe(
  { type }: Json,
  { resource, container }: UsageTarget,
  found: { replicas: number; utilization: number | undefined; averageMillis: number },
): MetricProposal {
  const { replicas, utilization, averageMillis } = found;
  const isBinary = resource === "memory" && averageMillis % 1000 === 0;
  const amount = isBinary ? Quantity.of(averageMillis / 1000, "BinarySI") : Quantity.ofMillis(averageMillis);
  const current = {
    averageValue: amount.toString(),
    ...(utilization !== undefined && { averageUtilization: utilization }),
  };
  const kind = container === undefined ? "resource" : "container resource";
  return {
    replicas,
    name:
      utilization === undefined ? `${resource} resource` : `${resource} ${kind} utilization (percentage of request)`,
    status:
      container === undefined
        ? { type, resource: { name: resource, current } }
        : { type, containerResource: { name: resource, container, current } },
  };
}
