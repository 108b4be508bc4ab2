/** CronJobs (`pkg/controller/cronjob`): a Job at each time of a schedule, and the last few of them kept. */
import { rfc3339 } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import { parseSchedule, type Schedule } from "../kinds/cron-schedule.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { ApiStatusError } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { controllerReference } from "./actor.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { isFinished } from "./jobs.ts";
import { parseRfc3339Ms } from "./times.ts";

const cronJobs = mustFindKind("batch", "v1", "cronjobs");
const jobKind = mustFindKind("batch", "v1", "jobs");

/** A little after the time, so that no rounding makes it a little before. */
const SLACK_MS = 100;
/** So many times without a run are worth a warning. */
const MANY_MISSED = 100;

interface Status {
  active: Json[];
  lastScheduleTime?: string;
  lastSuccessfulTime?: string;
}

export class CronJobs extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "cronjob-controller");
  }

  start(): void {
    this.watchOwn(cronJobs);
    this.watchDependents("batch/jobs", cronJobs);
  }

  protected sync(key: string): void {
    const cronJob = this.storage.get("batch/cronjobs", key);
    if (!cronJob) return;
    const jobs = this.index.controlled("batch/jobs", cronJob.metadata.uid);
    const status = this.#observe(cronJob, jobs);
    this.#prune(cronJob, jobs);
    try {
      if (!cronJob.metadata.deletionTimestamp && !cronJob.spec.suspend) this.#runDue(key, cronJob, status);
    } finally {
      const { active, ...rest } = status;
      const current = this.actor.fresh(cronJob);
      if (current) this.actor.updateStatus(current, { ...rest, ...(active.length > 0 && { active }) });
    }
  }

  /** What has become of the Jobs that it started. */
  #observe(cronJob: StoredObject, jobs: readonly StoredObject[]): Status {
    const status: Status = { ...cronJob.status, active: [...(cronJob.status?.active ?? [])] };
    for (const job of jobs) {
      const isActive = status.active.some(({ uid }) => uid === job.metadata.uid);
      if (!isFinished(job)) continue;
      const isComplete = job.status.conditions.some(({ type, status: s }: Json) => type === "Complete" && s === "True");
      if (isActive) {
        status.active = status.active.filter(({ uid }) => uid !== job.metadata.uid);
        const message = `Saw completed job: ${job.metadata.name}, condition: ${isComplete ? "Complete" : "Failed"}`;
        this.actor.event(cronJob, "Normal", "SawCompletedJob", message);
      }
      const completed = job.status.completionTime as string | undefined;
      if (
        isComplete &&
        completed !== undefined &&
        parseRfc3339Ms(completed) > parseRfc3339Ms(status.lastSuccessfulTime)
      )
        status.lastSuccessfulTime = completed;
    }
    for (const reference of status.active) {
      if (jobs.some(({ metadata }) => metadata.uid === reference.uid)) continue;
      status.active = status.active.filter(({ uid }) => uid !== reference.uid);
      this.actor.event(cronJob, "Normal", "MissingJob", `Active job went missing: ${reference.name}`);
    }
    return status;
  }

  /** Deletes the oldest finished Jobs beyond what is to be kept. */
  #prune(cronJob: StoredObject, jobs: readonly StoredObject[]): void {
    const { successfulJobsHistoryLimit, failedJobsHistoryLimit } = cronJob.spec;
    for (const [type, limit] of [
      ["Complete", successfulJobsHistoryLimit],
      ["Failed", failedJobsHistoryLimit],
    ] as const) {
      const finished = jobs
        .filter((job) => job.status?.conditions?.some((c: Json) => c.type === type && c.status === "True"))
        .toSorted((a, b) => parseRfc3339Ms(a.status.startTime) - parseRfc3339Ms(b.status.startTime));
      for (const job of finished.slice(0, Math.max(0, finished.length - limit))) this.#deleteJob(cronJob, job);
    }
  }

  #deleteJob(cronJob: StoredObject, job: StoredObject): void {
    this.actor.delete(job, { propagationPolicy: "Background" });
    this.actor.event(cronJob, "Normal", "SuccessfulDelete", `Deleted job ${job.metadata.name}`);
  }

  #runDue(key: string, cronJob: StoredObject, status: Status): void {
    const schedule = parseSchedule(cronJob.spec.schedule, cronJob.spec.timeZone);
    const now = this.clock.now();
    const due = this.#due(cronJob, status, schedule, now);
    const next = schedule.next(now);
    if (next !== undefined) this.queue.addAfter(key, next - now + SLACK_MS);
    if (due === undefined || parseRfc3339Ms(status.lastScheduleTime) === due) return;
    if (cronJob.spec.concurrencyPolicy === "Forbid" && status.active.length > 0) {
      const message = "Not starting job because prior execution is running and concurrency policy is Forbid";
      this.actor.event(cronJob, "Normal", "JobAlreadyActive", message);
      return;
    }
    if (cronJob.spec.concurrencyPolicy === "Replace") {
      for (const { name } of status.active) {
        const job = this.actor.get(jobKind, cronJob.metadata.namespace, name);
        if (job) this.#deleteJob(cronJob, job);
      }
      status.active = [];
    }
    this.#startJob(cronJob, status, due);
  }

  /** The latest time that has come and was not served; undefined when there is none. */
  #due(cronJob: StoredObject, status: Status, schedule: Schedule, now: number): number | undefined {
    let from = parseRfc3339Ms(status.lastScheduleTime ?? cronJob.metadata.creationTimestamp);
    const deadline = cronJob.spec.startingDeadlineSeconds as number | undefined;
    if (deadline !== undefined) from = Math.max(from, now - deadline * 1000);
    let due: number | undefined;
    let missed = 0;
    // A cluster that outlives no process has no more to make up for than a laptop's sleep.
    for (let at = schedule.next(from); at !== undefined && at <= now; at = schedule.next(at)) {
      due = at;
      missed++;
    }
    if (missed > MANY_MISSED) {
      const message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
      this.actor.event(cronJob, "Warning", "TooManyMissedTimes", message);
    }
    return due;
  }

  #startJob(cronJob: StoredObject, status: Status, due: number): void {
    const { jobTemplate } = cronJob.spec;
    const { namespace } = cronJob.metadata;
    const name = `${cronJob.metadata.name}-${Math.floor(due / 60_000)}`;
    let job = this.actor.get(jobKind, namespace, name);
    if (!job) {
      try {
        job = this.actor.create(jobKind, namespace, {
          metadata: {
            name,
            ...(jobTemplate.metadata?.labels && { labels: jobTemplate.metadata.labels }),
            annotations: {
              ...jobTemplate.metadata?.annotations,
              "batch.kubernetes.io/cronjob-scheduled-timestamp": rfc3339(due),
            },
            ownerReferences: [controllerReference(cronJob)],
          },
          spec: structuredClone(jobTemplate.spec),
        });
      } catch (thrown) {
        if (thrown instanceof ApiStatusError)
          this.actor.event(cronJob, "Warning", "FailedCreate", `Error creating job: ${toError(thrown).message}`);
        throw thrown;
      }
      this.actor.event(cronJob, "Normal", "SuccessfulCreate", `Created job ${name}`);
    }
    const { uid, resourceVersion } = job.metadata;
    status.active = [
      ...status.active.filter((each) => each.uid !== uid),
      { kind: "Job", namespace, name, uid, apiVersion: "batch/v1", resourceVersion },
    ];
    status.lastScheduleTime = rfc3339(due);
  }
}
