/** Jobs and CronJobs. */
import { expect } from "vitest";
import type { Api, Json } from "../../api.ts";
import { MERGE, expectStatus, must, podsIn, type FidelityCase } from "../../support.ts";
import { conditionOf, end, jobsIn, pods, template, until } from "./support.ts";

const job = (name: string, spec: Json = {}): Json => ({
  apiVersion: "batch/v1",
  kind: "Job",
  metadata: { name },
  spec: { template: template(name, { restartPolicy: "Never" }), ...spec },
});

const create = (api: Api, ns: string, body: Json): Promise<Json> => must(api.request("POST", jobsIn(ns), body), 201);

const untilCondition = (api: Api, ns: string, name: string, type: string): Promise<Json> =>
  until(api, jobsIn(ns, name), `to be ${type}`, (object) => conditionOf(object, type)?.status === "True");

const INDEX = "batch.kubernetes.io/job-completion-index";

export const jobCases: readonly FidelityCase[] = [
  {
    name: "a Job has defaults, a selector of its own, and pods that it keeps until they are counted",
    async run(api, ns) {
      const created = await create(api, ns, job("j"));
      const { uid } = created.metadata;
      expect(created.spec).toMatchObject({
        parallelism: 1,
        completions: 1,
        backoffLimit: 6,
        completionMode: "NonIndexed",
        suspend: false,
        podReplacementPolicy: "TerminatingOrFailed",
        selector: { matchLabels: { "batch.kubernetes.io/controller-uid": uid } },
      });
      expect(created.spec.template.metadata.labels).toEqual({
        app: "j",
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
      });
      // A Job without labels has those of its template, the generated ones included.
      expect(created.metadata.labels).toEqual(created.spec.template.metadata.labels);
      const [pod] = await pods(api, ns, "j", 1);
      expect(pod!.metadata.finalizers).toEqual(["batch.kubernetes.io/job-tracking"]);
      expect(pod!.metadata.generateName).toBe("j-");
    },
  },
  {
    name: "a Job is complete when enough pods have succeeded",
    async run(api, ns) {
      await create(api, ns, job("j", { completions: 2, parallelism: 1 }));
      const [first] = await pods(api, ns, "j", 1);
      await end(api, first);
      const both = await pods(api, ns, "j", 2);
      await end(
        api,
        both.find(({ metadata }) => metadata.uid !== first!.metadata.uid),
      );
      const done = await untilCondition(api, ns, "j", "Complete");
      expect(done.status).toMatchObject({ succeeded: 2, ready: 0, terminating: 0, uncountedTerminatedPods: {} });
      expect(done.status.completionTime).toBeDefined();
      expect(done.status.conditions.map(({ type, reason }: Json) => `${type} ${reason}`)).toEqual([
        "SuccessCriteriaMet CompletionsReached",
        "Complete CompletionsReached",
      ]);
      for (const { metadata } of both)
        await until(api, podsIn(ns, metadata.name), "to be let go", (p) => p.metadata.finalizers === undefined);
    },
  },
  {
    name: "a Job has failed when more pods failed than it allows",
    async run(api, ns) {
      await create(api, ns, job("j", { backoffLimit: 0, parallelism: 2, completions: 2 }));
      const [first] = await pods(api, ns, "j", 2);
      await end(api, first, 1);
      const failed = await untilCondition(api, ns, "j", "Failed");
      expect(conditionOf(failed, "Failed")).toMatchObject({
        reason: "BackoffLimitExceeded",
        message: "Job has reached the specified backoff limit",
      });
      expect(conditionOf(failed, "FailureTarget")).toMatchObject({ status: "True", reason: "BackoffLimitExceeded" });
      // The other one was stopped, and counts too.
      expect(failed.status).toMatchObject({ failed: 2 });
    },
  },
  {
    name: "after a failure a Job waits before it makes the next pod",
    async run(api, ns) {
      await create(api, ns, job("j"));
      const [first] = await pods(api, ns, "j", 1);
      await end(api, first, 1);
      await until(api, jobsIn(ns, "j"), "to have counted it", ({ status }) => status.failed === 1);
      await pods(api, ns, "j", 1);
      const all = await pods(api, ns, "j", 2);
      const [before, after] = all.toSorted(
        (a, b) => Date.parse(a.metadata.creationTimestamp) - Date.parse(b.metadata.creationTimestamp),
      );
      const { finishedAt } = before!.status.containerStatuses[0].state.terminated;
      expect(Date.parse(after!.metadata.creationTimestamp) - Date.parse(finishedAt)).toBeGreaterThanOrEqual(9000);
    },
  },
  {
    name: "an indexed Job numbers its pods, and remembers which have succeeded",
    async run(api, ns) {
      await create(api, ns, job("j", { completions: 3, parallelism: 3, completionMode: "Indexed" }));
      const made = await pods(api, ns, "j", 3);
      expect(made.map(({ metadata }) => metadata.annotations[INDEX])).toEqual(["0", "1", "2"]);
      expect(made[1]!.metadata.labels[INDEX]).toBe("1");
      expect(made[1]!.metadata.generateName).toBe("j-1-");
      expect(made[1]!.spec.hostname).toBe("j-1");
      expect(made[1]!.spec.containers[0].env).toEqual([
        {
          name: "JOB_COMPLETION_INDEX",
          valueFrom: { fieldRef: { apiVersion: "v1", fieldPath: `metadata.labels['${INDEX}']` } },
        },
      ]);
      await end(api, made[0]);
      await end(api, made[2]);
      await until(api, jobsIn(ns, "j"), "to remember", ({ status }) => status.completedIndexes === "0,2");
      await end(api, made[1]);
      const done = await untilCondition(api, ns, "j", "Complete");
      expect(done.status).toMatchObject({ completedIndexes: "0-2", succeeded: 3 });
    },
  },
  {
    name: "a pod failure policy ends a Job at once, or leaves a failure uncounted",
    async run(api, ns) {
      const podFailurePolicy = {
        rules: [
          { action: "Ignore", onPodConditions: [{ type: "DisruptionTarget" }] },
          { action: "FailJob", onExitCodes: { containerName: "a", operator: "In", values: [42] } },
        ],
      };
      const created = await create(api, ns, job("j", { podFailurePolicy }));
      expect(created.spec.podReplacementPolicy).toBe("Failed");
      const [first] = await pods(api, ns, "j", 1);
      await end(api, first, 42);
      const failed = await untilCondition(api, ns, "j", "Failed");
      expect(conditionOf(failed, "Failed")).toMatchObject({
        reason: "PodFailurePolicy",
        message: `Container a for pod ${ns}/${first!.metadata.name} failed with exit code 42 matching FailJob rule at index 1`,
      });
      expect(failed.status.failed).toBe(1);
    },
  },
  {
    name: "with a limit for each index, an index fails and the others go on",
    async run(api, ns) {
      const spec = { completions: 2, parallelism: 2, completionMode: "Indexed", backoffLimitPerIndex: 0 };
      await create(api, ns, job("j", spec));
      const [zero, one] = await pods(api, ns, "j", 2);
      expect(zero!.metadata.annotations["batch.kubernetes.io/job-index-failure-count"]).toBe("0");
      await end(api, zero, 1);
      await until(api, jobsIn(ns, "j"), "to have a failed index", ({ status }) => status.failedIndexes === "0");
      await end(api, one);
      const failed = await untilCondition(api, ns, "j", "Failed");
      expect(conditionOf(failed, "Failed")).toMatchObject({
        reason: "FailedIndexes",
        message: "Job has failed indexes",
      });
      expect(failed.status).toMatchObject({ completedIndexes: "1", failedIndexes: "0", succeeded: 1, failed: 1 });
    },
  },
  {
    name: "a suspended Job has no pods until it is resumed",
    async run(api, ns) {
      await create(api, ns, job("j", { suspend: true }));
      const suspended = await untilCondition(api, ns, "j", "Suspended");
      expect(suspended.status).not.toHaveProperty("startTime");
      await pods(api, ns, "j", 0);
      await must(api.request("PATCH", jobsIn(ns, "j"), { spec: { suspend: false } }, MERGE), 200);
      await pods(api, ns, "j", 1);
      const resumed = await until(api, jobsIn(ns, "j"), "to run", ({ status }) => status.active === 1);
      expect(conditionOf(resumed, "Suspended")).toMatchObject({ status: "False", reason: "JobResumed" });
    },
  },
  {
    name: "a finished Job goes when its time to live is over",
    async run(api, ns) {
      await create(api, ns, job("j", { ttlSecondsAfterFinished: 0 }));
      const [pod] = await pods(api, ns, "j", 1);
      await end(api, pod);
      await until(api, jobsIn(ns, "j"), "to be gone", ({ code }) => code === 404);
      await pods(api, ns, "j", 0);
    },
  },
  {
    name: "a Job refuses pods that always run, and another template once it has begun",
    async run(api, ns) {
      const always = await api.request("POST", jobsIn(ns), job("j", { template: template("j") }));
      expectStatus(always, {
        code: 422,
        reason: "Invalid",
        message:
          'Job.batch "j" is invalid: spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
      });
      await create(api, ns, job("j"));
      await pods(api, ns, "j", 1);
      const patch = { spec: { template: { metadata: { annotations: { mark: "two" } } } } };
      const changed = await api.request("PATCH", jobsIn(ns, "j"), patch, MERGE);
      expectStatus(changed, {
        code: 422,
        reason: "Invalid",
        message: /spec\.template: Invalid value: .*field is immutable$/s,
      });
    },
  },
  {
    name: "a CronJob makes a Job at its time, and knows it",
    async run(api, ns) {
      const path = `/apis/batch/v1/namespaces/${ns}/cronjobs`;
      const jobTemplate = { metadata: { labels: { of: "tick" } }, spec: job("tick").spec };
      const body = {
        apiVersion: "batch/v1",
        kind: "CronJob",
        metadata: { name: "tick" },
        spec: { schedule: "@every 1s", jobTemplate },
      };
      const created = await must(api.request("POST", path, body), 201);
      expect(created.spec).toMatchObject({
        concurrencyPolicy: "Allow",
        suspend: false,
        successfulJobsHistoryLimit: 3,
        failedJobsHistoryLimit: 1,
      });
      expect(created.spec.jobTemplate.spec).not.toHaveProperty("backoffLimit");
      const { items } = await until(api, jobsIn(ns), "to be made", (list) => list.items.length > 0);
      const [made] = items as Json[];
      // First: a change of the CronJob would keep the controller from writing that down, and what is suspended it leaves be.
      const cronJob = await until(api, `${path}/tick`, "to know it", ({ status }) => status.active?.length > 0);
      await must(api.request("PATCH", `${path}/tick`, { spec: { suspend: true } }, MERGE), 200);
      expect(made!.metadata.name).toMatch(/^tick-\d{8}$/);
      expect(made!.metadata.labels).toEqual({ of: "tick" });
      expect(made!.metadata.annotations).toHaveProperty("batch.kubernetes.io/cronjob-scheduled-timestamp");
      expect(made!.metadata.ownerReferences[0]).toMatchObject({ kind: "CronJob", name: "tick", controller: true });
      const known = { kind: "Job", name: made!.metadata.name, apiVersion: "batch/v1" };
      expect(cronJob.status.active).toContainEqual(expect.objectContaining(known));
      expect(cronJob.status.lastScheduleTime).toBeDefined();
    },
  },
  {
    name: "a CronJob's schedule must be one",
    async run(api, ns) {
      const path = `/apis/batch/v1/namespaces/${ns}/cronjobs`;
      const at = (schedule: string, more: Json = {}) =>
        api.request("POST", path, {
          apiVersion: "batch/v1",
          kind: "CronJob",
          metadata: { name: "tick" },
          spec: { schedule, jobTemplate: { spec: job("tick").spec }, ...more },
        });
      const invalid = (why: string) => `CronJob.batch "tick" is invalid: ${why}`;
      expectStatus(await at("* * *"), {
        code: 422,
        reason: "Invalid",
        message: invalid('spec.schedule: Invalid value: "* * *": expected exactly 5 fields, found 3: [* * *]'),
      });
      expectStatus(await at("61 * * * *"), {
        code: 422,
        reason: "Invalid",
        message: invalid('spec.schedule: Invalid value: "61 * * * *": end of range (61) above maximum (59): 61'),
      });
      expectStatus(await at("0 * * * *", { timeZone: "Nowhere/Land" }), {
        code: 422,
        reason: "Invalid",
        message: invalid('spec.timeZone: Invalid value: "Nowhere/Land": unknown time zone Nowhere/Land'),
      });
    },
  },
];
