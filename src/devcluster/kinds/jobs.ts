/** The kinds of `batch`: defaults, validation and update rules (`pkg/apis/batch`, `pkg/registry/batch`). */
import { toError } from "../../util/errors.ts";
import { invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { type Json, type StoredObject } from "../objects/object.ts";
import { isTimeZone, parseSchedule } from "./cron-schedule.ts";
import { bumpGeneration, defineKind, keepStatus, statusOnly, text } from "./kind.ts";
import { defaultTemplate, immutable, nonNegative, selects, unselected, validateTemplate } from "./pod-template.ts";

export const JOB_TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking";
const JOB_NAMES = ["job-name", "batch.kubernetes.io/job-name"];
const CONTROLLER_UIDS = ["controller-uid", "batch.kubernetes.io/controller-uid"];

function defaultJobSpec(spec: Json): void {
  defaultTemplate(spec);
  if (spec.completions === undefined && spec.parallelism === undefined) spec.completions = 1;
  spec.parallelism ??= 1;
  spec.backoffLimit ??= spec.backoffLimitPerIndex === undefined ? 6 : 2_147_483_647;
  spec.completionMode ??= "NonIndexed";
  spec.suspend ??= false;
  spec.manualSelector ??= false;
  spec.podReplacementPolicy ??= spec.podFailurePolicy ? "Failed" : "TerminatingOrFailed";
  for (const rule of spec.podFailurePolicy?.rules ?? [])
    for (const pattern of rule.onPodConditions ?? []) pattern.status ||= "True";
}

/** Labels and selector by which the pods of this Job, and of no other, are found. */
function generateSelector({ spec, metadata }: StoredObject): void {
  if (spec.manualSelector) return;
  const names = Object.fromEntries(JOB_NAMES.map((label) => [label, metadata.name]));
  const uids = Object.fromEntries(CONTROLLER_UIDS.map((label) => [label, metadata.uid]));
  const labels = { ...names, ...uids, ...spec.template.metadata?.labels };
  if (metadata.labels !== undefined && metadata.labels === spec.template.metadata?.labels) metadata.labels = labels;
  spec.template.metadata = { ...spec.template.metadata, labels };
  spec.selector = {
    ...spec.selector,
    matchLabels: { "batch.kubernetes.io/controller-uid": metadata.uid, ...spec.selector?.matchLabels },
  };
}

/** @param at `spec`, or `spec.jobTemplate.spec` for a Job that is yet to be made */
function validateJobSpec(spec: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  for (const field of [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
  ])
    causes.push(...nonNegative(`${at}.${field}`, spec[field]));
  for (const field of ["backoffLimitPerIndex", "maxFailedIndexes"])
    causes.push(...nonNegative(`${at}.${field}`, spec[field]));
  if (spec.maxFailedIndexes !== undefined && spec.backoffLimitPerIndex === undefined)
    causes.push(required(`${at}.backoffLimitPerIndex`, "when maxFailedIndexes is specified"));
  const indexed = spec.completionMode === "Indexed";
  if (!indexed && (spec.completionMode ?? "NonIndexed") !== "NonIndexed") {
    causes.push(notSupported(`${at}.completionMode`, spec.completionMode, ["Indexed", "NonIndexed"]));
  } else if (indexed && spec.completions === undefined) {
    causes.push(required(`${at}.completions`, "when completion mode is Indexed"));
  } else if (!indexed) {
    for (const field of ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"])
      if (spec[field] !== undefined)
        causes.push(invalidValue(`${at}.${field}`, spec[field], "requires indexed completion mode"));
  }
  if (spec.podFailurePolicy) causes.push(...validateFailurePolicy(spec, `${at}.podFailurePolicy`));
  causes.push(...validateTemplate(spec.template, `${at}.template`));
  const policy = spec.template.spec.restartPolicy;
  const field = `${at}.template.spec.restartPolicy`;
  if (policy === "Always") causes.push(required(field, 'valid values: "OnFailure", "Never"'));
  else if (policy !== "OnFailure" && policy !== "Never")
    causes.push(notSupported(field, policy, ["OnFailure", "Never"]));
  else if (spec.podFailurePolicy && policy !== "Never")
    causes.push(invalidValue(field, policy, 'only "Never" is supported when podFailurePolicy is specified'));
  return causes;
}

function validateFailurePolicy(spec: Json, at: string): FieldCause[] {
  const { initContainers = [], containers = [] } = spec.template.spec;
  const names = new Set([...initContainers, ...containers].map((c: Json) => c.name as string));
  const actions = ["Count", "FailIndex", "FailJob", "Ignore"];
  return ((spec.podFailurePolicy.rules ?? []) as Json[]).flatMap((rule, i) => {
    const path = `${at}.rules[${i}]`;
    const causes: FieldCause[] = [];
    if (!rule.action) causes.push(required(`${path}.action`, `valid values: ["Count" "FailIndex" "FailJob" "Ignore"]`));
    else if (!actions.includes(rule.action)) causes.push(notSupported(`${path}.action`, rule.action, actions));
    else if (rule.action === "FailIndex" && spec.backoffLimitPerIndex === undefined)
      causes.push(invalidValue(`${path}.action`, rule.action, "requires the backoffLimitPerIndex to be set"));
    const codes = rule.onExitCodes;
    if (codes) {
      const onExitCodes = `${path}.onExitCodes`;
      if (!["In", "NotIn"].includes(codes.operator))
        causes.push(notSupported(`${onExitCodes}.operator`, codes.operator, ["In", "NotIn"]));
      if (codes.containerName !== undefined && !names.has(codes.containerName)) {
        causes.push(
          invalidValue(
            `${onExitCodes}.containerName`,
            codes.containerName,
            "must be one of the container or initContainer names in the pod template",
          ),
        );
      }
      if (!codes.values?.length)
        causes.push(invalidValue(`${onExitCodes}.values`, codes.values ?? null, "at least one value is required"));
      if (codes.operator === "In" && codes.values?.includes(0)) {
        const index = codes.values.indexOf(0);
        causes.push(invalidValue(`${onExitCodes}.values[${index}]`, 0, "must not be 0 for the In operator"));
      }
    }
    const alternatives = Number(codes !== undefined) + Number((rule.onPodConditions?.length ?? 0) > 0);
    if (alternatives !== 1) {
      const word =
        alternatives === 0
          ? "specifying one of OnExitCodes and OnPodConditions is required"
          : "specifying both OnExitCodes and OnPodConditions is not supported";
      causes.push({ reason: "FieldValueInvalid", field: path, message: `Invalid value: ${word}` });
    }
    return causes;
  });
}

function validateJob({ spec }: StoredObject): FieldCause[] {
  const causes = validateJobSpec(spec, "spec");
  if (!spec.selector) causes.push(required("spec.selector"));
  else if (!selects(spec.selector, spec.template.metadata?.labels))
    causes.push(unselected("spec.template", spec.template));
  return causes;
}

const jobs = defineKind({
  group: "batch",
  kind: "Job",
  resource: "jobs",
  categories: ["all"],
  orphansByDefault: true,
  fields: { "status.successful": (o) => text(o.status?.succeeded ?? 0) },
  setDefaults(job) {
    defaultJobSpec((job.spec ??= {}));
    const { labels } = job.spec.template.metadata ?? {};
    // The very same, not a copy: what is generated for the template is then the Job's too.
    if (labels && Object.keys(job.metadata.labels ?? {}).length === 0) job.metadata.labels = labels;
  },
  prepareCreate(job) {
    generateSelector(job);
    job.metadata.generation = 1;
    job.status = {};
  },
  validate: validateJob,
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      bumpGeneration(next, old);
    },
    validate(next, old) {
      const mayChange = old.spec.suspend === true && old.status?.startTime === undefined;
      const isElastic = old.spec.completionMode === "Indexed" && next.spec.completions === next.spec.parallelism;
      const fixed = [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
        ...(isElastic ? [] : ["completions"]),
      ];
      return [
        ...validateJob(next),
        ...fixed.flatMap((field) => immutable(`spec.${field}`, next.spec[field], old.spec[field])),
        ...(mayChange ? [] : immutable("spec.template", next.spec.template, old.spec.template)),
      ];
    },
  },
  subresources: { status: statusOnly },
});

function validateCronJob({ metadata, spec }: StoredObject): FieldCause[] {
  const causes: FieldCause[] = [];
  if (spec.schedule) causes.push(...validateSchedule(spec));
  else causes.push(required("spec.schedule"));
  causes.push(...nonNegative("spec.startingDeadlineSeconds", spec.startingDeadlineSeconds));
  if (spec.timeZone !== undefined && !isTimeZone(spec.timeZone))
    causes.push(invalidValue("spec.timeZone", spec.timeZone, `unknown time zone ${spec.timeZone}`));
  if (!["Allow", "Forbid", "Replace"].includes(spec.concurrencyPolicy)) {
    const allowed = ["Allow", "Forbid", "Replace"];
    causes.push(notSupported("spec.concurrencyPolicy", spec.concurrencyPolicy, allowed));
  }
  const at = "spec.jobTemplate.spec";
  if (spec.jobTemplate.spec.selector)
    causes.push(invalidValue(`${at}.selector`, spec.jobTemplate.spec.selector, "`selector` will be auto-generated"));
  if (spec.jobTemplate.spec.manualSelector) causes.push(notSupported(`${at}.manualSelector`, true, ["nil", "false"]));
  causes.push(...validateJobSpec(spec.jobTemplate.spec, at));
  causes.push(...nonNegative("spec.successfulJobsHistoryLimit", spec.successfulJobsHistoryLimit));
  causes.push(...nonNegative("spec.failedJobsHistoryLimit", spec.failedJobsHistoryLimit));
  // The time of a run, 11 characters, is appended to make the Job's name.
  if (metadata.name?.length > 52)
    causes.push(invalidValue("metadata.name", metadata.name, "must be no more than 52 characters"));
  return causes;
}

function validateSchedule({ schedule, timeZone }: Json): FieldCause[] {
  if (/TZ/.test(schedule))
    return [
      invalidValue(
        "spec.schedule",
        schedule,
        timeZone === undefined
          ? "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
          : "cannot use both timeZone field and TZ or CRON_TZ in schedule",
      ),
    ];
  try {
    parseSchedule(schedule);
    return [];
  } catch (thrown) {
    return [invalidValue("spec.schedule", schedule, toError(thrown).message)];
  }
}

const cronJobs = defineKind({
  group: "batch",
  kind: "CronJob",
  resource: "cronjobs",
  shortNames: ["cj"],
  categories: ["all"],
  setDefaults(cronJob) {
    const spec = (cronJob.spec ??= {});
    spec.concurrencyPolicy ||= "Allow";
    spec.suspend ??= false;
    spec.successfulJobsHistoryLimit ??= 3;
    spec.failedJobsHistoryLimit ??= 1;
    spec.jobTemplate ??= {};
    spec.jobTemplate.spec ??= {};
    // The rest gets its defaults when a Job is made of it.
    defaultTemplate(spec.jobTemplate.spec);
  },
  prepareCreate(cronJob) {
    cronJob.metadata.generation = 1;
    cronJob.status = {};
  },
  validate: validateCronJob,
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      bumpGeneration(next, old);
    },
    validate: (next) => validateCronJob(next),
  },
  subresources: { status: statusOnly },
});

/** In the order of discovery. */
export const jobKinds = [cronJobs, jobs];
