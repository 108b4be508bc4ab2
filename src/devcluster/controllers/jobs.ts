/**
 * Jobs (`pkg/controller/job`): pods until enough have succeeded, or too many failed. Each pod that ends is counted
 * exactly once: it keeps its finalizer until its end is in the Job's status.
 */
import { isTerminal } from "../../kube/pod.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { JOB_TRACKING_FINALIZER } from "../kinds/jobs.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { formatIndexes, parseIndexes } from "./indexes.ts";
import { judgeFailure, succeedsBy } from "./job-policies.ts";
import type { Actor } from "./actor.ts";
import { controllerOf, keyOf } from "./object-index.ts";
import { byDispensability, claim, createPod, deletePod, isActive, isReady, isTerminating, podOf } from "./pods.ts";
import { parseRfc3339Ms } from "./times.ts";
import { doubledMs } from "../../util/doubled.ts";

const jobs = mustFindKind("batch", "v1", "jobs");

const INDEX = "batch.kubernetes.io/job-completion-index";
const INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count";
const INDEX_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count";
/** Changes in one round; the rest follows in the next. */
const BURST = 500;
/** The back-off after failures: ten seconds, doubled with each, up to ten minutes. */
const BACKOFF_MS = { first: 10_000, max: 600_000 };

const hasTracking = (pod: StoredObject): boolean => Boolean(pod.metadata.finalizers?.includes(JOB_TRACKING_FINALIZER));
const conditionOf = (job: StoredObject, type: string): Json =>
  job.status?.conditions?.find((c: Json) => c.type === type && c.status === "True");
export const isFinished = (job: StoredObject): boolean =>
  Boolean(conditionOf(job, "Complete") ?? conditionOf(job, "Failed"));

function indexOf(pod: StoredObject): number {
  const text = pod.metadata.annotations?.[INDEX];
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : -1;
}

/** Failures since the last success, and when the last of them was: the back-off is made of them. */
interface Failures {
  count: number;
  lastAt: number;
}

export class Jobs extends KeyedController {
  readonly #failures = new Map<string, Failures>();

  constructor(options: ControllerOptions) {
    super(options, "job-controller");
  }

  start(): void {
    this.watchOwn(jobs);
    this.watchDependents("/pods", jobs);
    // Pods whose Job is gone wait for nobody to count them.
    this.watch("/pods", ({ object, deleted }) => {
      const owner = controllerOf(object);
      if (!deleted && hasTracking(object) && (owner === undefined || owner.kind === "Job")) this.#freeOrphan(object);
    });
  }

  protected sync(key: string): void {
    const job = this.storage.get("batch/jobs", key);
    if (!job) {
      this.#failures.delete(key);
      const [namespace] = key.split("/");
      for (const pod of this.index.podsIn(namespace!)) if (hasTracking(pod)) this.#freeOrphan(pod);
      return;
    }
    // Another controller has said that the Job is its own.
    if ((job.spec.managedBy ?? "kubernetes.io/job-controller") !== "kubernetes.io/job-controller") return;
    const pods = claim(this.actor, this.index, job, "/pods", job.spec.selector);
    if (isFinished(job)) {
      this.#failures.delete(key);
      for (const pod of pods) untrack(this.actor, pod);
      this.#deleteAfterTtl(job);
      return;
    }
    const before = this.#failures.get(key) ?? { count: 0, lastAt: 0 };
    const round = new Round(this.actor, this.clock.now(), job, pods, before);
    try {
      round.run();
    } finally {
      this.#failures.set(key, round.failures);
    }
    if (round.wait !== undefined) this.queue.addAfter(key, round.wait);
  }

  /** `ttlSecondsAfterFinished` (`pkg/controller/ttlafterfinished`). */
  #deleteAfterTtl(job: StoredObject): void {
    const seconds = job.spec.ttlSecondsAfterFinished as number | undefined;
    if (seconds === undefined || job.metadata.deletionTimestamp) return;
    const end = conditionOf(job, "Complete") ?? conditionOf(job, "Failed");
    const wait = parseRfc3339Ms(end.lastTransitionTime) + seconds * 1000 - this.clock.now();
    if (wait > 0) this.queue.addAfter(keyOf(job), wait);
    else this.actor.delete(job, { propagationPolicy: "Foreground" });
  }

  #freeOrphan(pod: StoredObject): void {
    const owner = controllerOf(pod);
    const job = owner && this.storage.get("batch/jobs", `${pod.metadata.namespace}/${owner.name}`);
    if (job?.metadata.uid === owner?.uid && owner !== undefined) return;
    untrack(this.actor, pod);
  }
}

/** Lets go of a pod whose end is counted, or need not be. */
function untrack(actor: Actor, pod: StoredObject): void {
  const current = actor.fresh(pod);
  if (!current || !hasTracking(current)) return;
  const { finalizers = [], ...meta } = current.metadata;
  const rest = finalizers.filter((each) => each !== JOB_TRACKING_FINALIZER);
  actor.update({ ...current, metadata: { ...meta, ...(rest.length > 0 && { finalizers: rest }) } });
}

/** One look at one Job. */
class Round {
  readonly #actor: Actor;
  readonly #now: number;
  readonly #job: StoredObject;
  readonly #pods: readonly StoredObject[];
  readonly #status: Json;
  #active: StoredObject[];
  #terminating: number;
  #succeededIndexes = new Set<number>();
  #failedIndexes: Set<number> | undefined;
  failures: Failures;
  /** Milliseconds until the Job wants to be looked at again. */
  wait: number | undefined;

  constructor(actor: Actor, now: number, job: StoredObject, pods: readonly StoredObject[], failures: Failures) {
    this.#actor = actor;
    this.#now = now;
    this.#job = job;
    this.#pods = pods;
    this.#status = { ...job.status, conditions: [...(job.status?.conditions ?? [])] };
    this.#active = pods.filter(isActive);
    this.#terminating = pods.filter(isTerminating).length;
    this.failures = failures;
  }

  get #spec(): Json {
    return this.#job.spec;
  }
  get #indexed(): boolean {
    return this.#spec.completionMode === "Indexed";
  }
  get #perIndex(): boolean {
    return this.#spec.backoffLimitPerIndex !== undefined;
  }

  run(): void {
    if (!this.#spec.suspend) this.#status.startTime ??= this.#actor.objects.now();
    const counted = this.#count();
    let end = this.#end();
    let failure: unknown;
    if (end) {
      for (const pod of this.#active) deletePod(this.#actor, this.#job, pod);
      this.#terminating += this.#active.filter(({ spec }) => spec.nodeName).length;
      this.#active = [];
    } else if (!this.#job.metadata.deletionTimestamp) {
      try {
        this.#manage();
      } catch (thrown) {
        failure = thrown;
      }
      if (this.#isComplete()) {
        const message = "Reached expected number of succeeded pods";
        end = { type: "SuccessCriteriaMet", reason: "CompletionsReached", message };
      } else {
        this.#noteSuspension();
      }
    }
    const isOver = end !== undefined || this.#job.metadata.deletionTimestamp !== undefined;
    const rest = isOver ? this.#pods.filter((pod) => hasTracking(pod) && !counted.includes(pod)) : [];
    if (end) this.#mark(end.type, end.reason, end.message);
    // What a failed Job stops has failed with it.
    if (end?.type === "FailureTarget") this.#status.failed += rest.length;
    this.#finish();
    this.#write();
    for (const pod of [...counted, ...rest]) untrack(this.#actor, pod);
    if (failure !== undefined) throw failure;
  }

  /** Counts what has ended since the last look. @returns the pods whose finalizer may go once that is written */
  #count(): StoredObject[] {
    const completions = (this.#spec.completions ?? Infinity) as number;
    if (this.#indexed) {
      this.#succeededIndexes = parseIndexes(this.#status.completedIndexes, completions);
      if (this.#perIndex) this.#failedIndexes = parseIndexes(this.#status.failedIndexes, completions);
    }
    const ended = this.#pods.filter((pod) => hasTracking(pod) && this.#hasEnded(pod));
    const succeeded = ended.filter(({ status }) => status.phase === "Succeeded");
    const failed = ended.filter(({ status }) => status.phase !== "Succeeded");
    const inRange = (pod: StoredObject) => !this.#indexed || (indexOf(pod) >= 0 && indexOf(pod) < completions);
    if (this.#indexed) for (const pod of succeeded.filter(inRange)) this.#succeededIndexes.add(indexOf(pod));
    const counting = failed.filter((pod) => inRange(pod) && judgeFailure(this.#spec.podFailurePolicy, pod).counts);
    this.#status.succeeded = this.#indexed
      ? this.#succeededIndexes.size
      : (this.#status.succeeded ?? 0) + succeeded.length;
    // With a limit per index, the last failure of each stays uncounted until it is known what becomes of the index.
    const waiting = this.#perIndex ? this.#awaitReplacement(failed.filter(inRange)) : new Set<StoredObject>();
    this.#status.failed = (this.#status.failed ?? 0) + counting.filter((pod) => !waiting.has(pod)).length;
    this.#noteFailures(succeeded, failed);
    return ended.filter((pod) => !waiting.has(pod));
  }

  #hasEnded(pod: StoredObject): boolean {
    if (isTerminal(pod)) return true;
    return this.#spec.podReplacementPolicy !== "Failed" && pod.metadata.deletionTimestamp !== undefined;
  }

  /** Failed pods whose index will be tried again: the new pod carries their number of failures on. */
  #awaitReplacement(failed: readonly StoredObject[]): Set<StoredObject> {
    const active = new Set(this.#active.map(indexOf));
    const last = new Map<number, StoredObject>();
    for (const pod of failed) {
      const verdict = judgeFailure(this.#spec.podFailurePolicy, pod);
      const index = indexOf(pod);
      const spent = verdict.counts && failuresOf(pod).counted >= this.#spec.backoffLimitPerIndex;
      if (verdict.failsIndex || spent) this.#failedIndexes!.add(index);
      const other = last.get(index);
      if (!other || endOf(other) <= endOf(pod)) last.set(index, pod);
    }
    const isOpen = (index: number) =>
      !active.has(index) && !this.#succeededIndexes.has(index) && !this.#failedIndexes!.has(index);
    return new Set([...last].filter(([index]) => isOpen(index)).map(([, pod]) => pod));
  }

  #noteFailures(succeeded: readonly StoredObject[], failed: readonly StoredObject[]): void {
    const lastSuccess = Math.max(0, ...succeeded.map(endOf));
    const since = succeeded.length > 0 ? { count: 0, lastAt: 0 } : this.failures;
    const later = failed.filter((pod) => succeeded.length === 0 || endOf(pod) > lastSuccess);
    this.failures =
      later.length === 0 ? since : { count: since.count + later.length, lastAt: Math.max(...later.map(endOf)) };
  }

  /** Whether the Job is over, and why. */
  #end(): { type: "FailureTarget" | "SuccessCriteriaMet"; reason: string; message: string } | undefined {
    for (const type of ["SuccessCriteriaMet", "FailureTarget"] as const) {
      const known = conditionOf({ ...this.#job, status: this.#status }, type);
      if (known) return { type, reason: known.reason, message: known.message };
    }
    const fail = (reason: string, message: string) => ({ type: "FailureTarget" as const, reason, message });
    for (const pod of this.#pods) {
      if (pod.status?.phase === "Succeeded" || !this.#hasEnded(pod)) continue;
      const { failsJob } = judgeFailure(this.#spec.podFailurePolicy, pod);
      if (failsJob !== undefined) return fail("PodFailurePolicy", failsJob);
    }
    if (this.#status.failed > this.#spec.backoffLimit || this.#restartedTooOften())
      return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    const deadline = this.#spec.activeDeadlineSeconds as number | undefined;
    if (deadline !== undefined && !this.#spec.suspend) {
      const left = parseRfc3339Ms(this.#status.startTime) + deadline * 1000 - this.#now;
      if (left <= 0) return fail("DeadlineExceeded", "Job was active longer than specified deadline");
      this.#waitFor(left);
    }
    if (this.#failedIndexes) {
      const { maxFailedIndexes, completions } = this.#spec;
      if (maxFailedIndexes !== undefined && this.#failedIndexes.size > maxFailedIndexes)
        return fail("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes");
      if (this.#failedIndexes.size > 0 && this.#failedIndexes.size + this.#succeededIndexes.size >= completions)
        return fail("FailedIndexes", "Job has failed indexes");
    }
    const enough = succeedsBy(this.#spec.successPolicy, this.#spec.completions, this.#succeededIndexes);
    return enough === undefined ? undefined : { type: "SuccessCriteriaMet", reason: "SuccessPolicy", message: enough };
  }

  /** With `OnFailure` the kubelet starts containers again: their restarts count as failures. */
  #restartedTooOften(): boolean {
    if (this.#spec.template.spec.restartPolicy !== "OnFailure") return false;
    let restarts = 0;
    for (const { status } of this.#pods) {
      if (status?.phase !== "Running" && status?.phase !== "Pending") continue;
      for (const container of [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])])
        restarts += container.restartCount ?? 0;
    }
    const limit = this.#spec.backoffLimit as number;
    return limit === 0 ? restarts > 0 : restarts >= limit;
  }

  #isComplete(): boolean {
    if (this.#active.length > 0) return false;
    const { completions } = this.#spec;
    return completions === undefined ? this.#status.succeeded > 0 : this.#status.succeeded >= completions;
  }

  /** As many pods as there is work for. */
  #manage(): void {
    const { completions, parallelism, suspend } = this.#spec;
    if (suspend) {
      this.#remove(this.#active);
      return;
    }
    const open = completions === undefined ? Infinity : Math.max(0, completions - this.#status.succeeded);
    let wanted = Math.min(open, parallelism);
    // A work queue: once one pod has found it empty, the others end by themselves.
    if (completions === undefined && this.#status.succeeded > 0) wanted = this.#active.length;
    const surplus = this.#surplus(wanted);
    if (surplus.length > 0) {
      this.#remove(surplus.slice(0, BURST));
      return;
    }
    const leaving = this.#spec.podReplacementPolicy === "Failed" ? this.#terminating : 0;
    const missing = Math.min(BURST, wanted - leaving - this.#active.length);
    if (missing <= 0) return;
    const wait = this.#perIndex ? 0 : this.#backoff(this.failures.count, this.failures.lastAt);
    if (wait > 0) return this.#waitFor(wait);
    if (this.#indexed) this.#createIndexed(missing);
    else for (let i = 0; i < missing; i++) this.#create(undefined);
  }

  #surplus(wanted: number): StoredObject[] {
    const seen = new Set<number>();
    const isSecond = (pod: StoredObject) => {
      const index = indexOf(pod);
      const isExtra = index < 0 || index >= this.#spec.completions || seen.has(index);
      seen.add(index);
      return isExtra;
    };
    const ordered = this.#active.toSorted(byDispensability(this.#now, undefined, false));
    const doubled = this.#indexed ? ordered.toReversed().filter(isSecond) : [];
    const others = ordered.filter((pod) => !doubled.includes(pod));
    return [...doubled, ...others.slice(0, Math.max(0, this.#active.length - wanted - doubled.length))];
  }

  #remove(pods: readonly StoredObject[]): void {
    for (const pod of pods) {
      // Its end is the Job's own doing: it is not counted.
      untrack(this.#actor, pod);
      const current = this.#actor.fresh(pod);
      if (current) deletePod(this.#actor, this.#job, current);
      if (pod.spec.nodeName) this.#terminating++;
    }
    this.#active = this.#active.filter((pod) => !pods.includes(pod));
  }

  #createIndexed(missing: number): void {
    const taken = new Set([...this.#succeededIndexes, ...(this.#failedIndexes ?? []), ...this.#active.map(indexOf)]);
    if (this.#spec.podReplacementPolicy === "Failed")
      for (const pod of this.#pods.filter(isTerminating)) taken.add(indexOf(pod));
    const failed = new Map<number, StoredObject>();
    for (const pod of this.#pods) {
      const other = failed.get(indexOf(pod));
      if (hasTracking(pod) && pod.status?.phase === "Failed" && (!other || endOf(other) <= endOf(pod)))
        failed.set(indexOf(pod), pod);
    }
    for (let index = 0, left = missing; index < this.#spec.completions && left > 0; index++) {
      if (taken.has(index)) continue;
      const before = this.#perIndex ? failed.get(index) : undefined;
      const wait = before ? this.#backoff(totalFailures(before) + 1, endOf(before)) : 0;
      if (wait > 0) this.#waitFor(wait);
      else this.#create(index, before);
      left--;
    }
  }

  /** @param before the failed pod whose place it takes, where failures are counted for each index */
  #create(index: number | undefined, before?: StoredObject): void {
    const pod = podOf(this.#spec.template, this.#job);
    pod.metadata.finalizers = [...(pod.metadata.finalizers ?? []), JOB_TRACKING_FINALIZER];
    if (index !== undefined) this.#number(pod, index, before);
    this.#active.push(createPod(this.#actor, this.#job, pod));
  }

  #number(pod: Json, index: number, before: StoredObject | undefined): void {
    const { name } = this.#job.metadata;
    pod.metadata.generateName = `${name}-${index}-`;
    pod.metadata.annotations = { ...pod.metadata.annotations, [INDEX]: String(index) };
    pod.metadata.labels = { ...pod.metadata.labels, [INDEX]: String(index) };
    pod.spec.hostname = `${name}-${index}`;
    if (this.#perIndex) {
      const was = before ? failuresOf(before) : { counted: 0, ignored: 0 };
      const { counts } = before ? judgeFailure(this.#spec.podFailurePolicy, before) : { counts: false };
      const ignored = was.ignored + Number(before !== undefined && !counts);
      pod.metadata.annotations[INDEX_FAILURES] = String(was.counted + Number(counts));
      if (ignored > 0) pod.metadata.annotations[INDEX_IGNORED] = String(ignored);
    }
    for (const container of [...(pod.spec.initContainers ?? []), ...pod.spec.containers]) {
      if (container.env?.some((each: Json) => each.name === "JOB_COMPLETION_INDEX")) continue;
      const fieldRef = { apiVersion: "v1", fieldPath: `metadata.labels['${INDEX}']` };
      container.env = [...(container.env ?? []), { name: "JOB_COMPLETION_INDEX", valueFrom: { fieldRef } }];
    }
  }

  #backoff(failures: number, lastAt: number): number {
    if (failures === 0) return 0;
    return Math.max(0, lastAt + doubledMs(BACKOFF_MS, failures - 1) - this.#now);
  }

  #waitFor(ms: number): void {
    this.wait = Math.min(this.wait ?? Infinity, ms);
  }

  #noteSuspension(): void {
    const known = this.#status.conditions.find(({ type }: Json) => type === "Suspended");
    const value = this.#spec.suspend ? "True" : "False";
    if (value === (known?.status ?? "False")) return;
    const [reason, message] = this.#spec.suspend ? ["JobSuspended", "Job suspended"] : ["JobResumed", "Job resumed"];
    this.#setCondition("Suspended", value, reason, message);
    if (this.#spec.suspend) delete this.#status.startTime;
    else this.#status.startTime = this.#actor.objects.now();
    this.#actor.event(this.#job, "Normal", this.#spec.suspend ? "Suspended" : "Resumed", message);
  }

  #mark(type: string, reason: string, message: string): void {
    if (!conditionOf({ ...this.#job, status: this.#status }, type)) this.#setCondition(type, "True", reason, message);
  }

  #setCondition(type: string, status: string, reason: string, message: string): void {
    const now = this.#actor.objects.now();
    const others = this.#status.conditions.filter((c: Json) => c.type !== type);
    this.#status.conditions = [
      ...others,
      { type, status, lastProbeTime: now, lastTransitionTime: now, reason, message },
    ];
  }

  /** The last word, once no pod of the Job runs any more. */
  #finish(): void {
    if (this.#terminating > 0 || this.#active.length > 0) return;
    const target = this.#status.conditions.find(
      ({ type, status }: Json) => status === "True" && (type === "FailureTarget" || type === "SuccessCriteriaMet"),
    );
    if (!target) return;
    const { reason, message } = target;
    if (target.type === "FailureTarget") {
      this.#setCondition("Failed", "True", reason, message);
      this.#actor.event(this.#job, "Warning", reason, message);
    } else {
      this.#setCondition("Complete", "True", reason, message);
      this.#status.completionTime = this.#actor.objects.now();
      this.#actor.event(this.#job, "Normal", "Completed", "Job completed");
    }
  }

  #write(): void {
    const { completedIndexes: _, failedIndexes: __, conditions, ...rest } = this.#status;
    const completed = formatIndexes(this.#succeededIndexes);
    const current = this.#actor.fresh(this.#job);
    if (!current) return;
    this.#actor.updateStatus(current, {
      ...rest,
      active: this.#active.length,
      ready: this.#active.filter(isReady).length,
      terminating: this.#terminating,
      uncountedTerminatedPods: {},
      ...(completed && { completedIndexes: completed }),
      ...(this.#failedIndexes && { failedIndexes: formatIndexes(this.#failedIndexes) }),
      ...(conditions.length > 0 && { conditions }),
    });
  }
}

function failuresOf({ metadata }: StoredObject): { counted: number; ignored: number } {
  const { annotations = {} } = metadata;
  return { counted: Number(annotations[INDEX_FAILURES] ?? 0), ignored: Number(annotations[INDEX_IGNORED] ?? 0) };
}

const totalFailures = (pod: StoredObject): number => failuresOf(pod).counted + failuresOf(pod).ignored;

/** When a pod ended, in milliseconds since the epoch. */
function endOf({ metadata, status }: StoredObject): number {
  const ends = ((status?.containerStatuses ?? []) as Json[]).map((c) =>
    parseRfc3339Ms(c.state?.terminated?.finishedAt),
  );
  if (ends.length > 0 && ends.every((at) => at > 0)) return Math.max(...ends);
  const ready = status?.conditions?.find((c: Json) => c.type === "Ready" && c.status === "False");
  if (ready?.lastTransitionTime) return parseRfc3339Ms(ready.lastTransitionTime);
  if (metadata.deletionTimestamp)
    return parseRfc3339Ms(metadata.deletionTimestamp) - (metadata.deletionGracePeriodSeconds ?? 0) * 1000;
  return parseRfc3339Ms(metadata.creationTimestamp);
}
