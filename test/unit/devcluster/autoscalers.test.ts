/** HorizontalPodAutoscalers among the other controllers, with pods that run and usage that a test sets. */
import { expect, test } from "vitest";
import { ControllerManager } from "../../../src/devcluster/controllers/index.ts";
import { NamespaceLifecycle } from "../../../src/devcluster/controllers/namespaces.ts";
import { mustFindKind } from "../../../src/devcluster/kinds/kinds.ts";
import { ObjectApi } from "../../../src/devcluster/kinds/object-api.ts";
import type { Json, StoredObject } from "../../../src/devcluster/objects/object.ts";
import { Storage } from "../../../src/devcluster/objects/storage.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const autoscalers = mustFindKind("autoscaling", "v2", "horizontalpodautoscalers");
const context = {
  user: { username: "admin", groups: ["system:masters"] },
  dryRun: false,
  fieldValidation: "Strict" as const,
  warnings: [],
};
const PERIOD_MS = 15_000;

const template = (requests: Json = { cpu: "100m", memory: "64Mi" }): Json => ({
  metadata: { labels: { app: "web" } },
  spec: { containers: [{ name: "a", image: "busybox:1.36", ...(requests && { resources: { requests } }) }] },
});
const cpu = (averageUtilization: number): Json => ({
  type: "Resource",
  resource: { name: "cpu", target: { type: "Utilization", averageUtilization } },
});

interface Using {
  cpu: string;
  memory: string;
}

/** @param uses what each pod uses, by its place among the pods by name; undefined: the kubelet does not tell */
function setUp(uses: (index: number) => Using | undefined = () => ({ cpu: "50m", memory: "32Mi" })) {
  const clock = new VirtualClock();
  const storage = new Storage({ logSize: undefined });
  let serial = 0;
  const objects = new ObjectApi({ storage, clock, random: () => (serial++ * 0.137) % 1 });
  new NamespaceLifecycle({ objects, caBundle: "" }).start();
  const pods = () => [...storage.list("/pods")].toSorted((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  const state = { uses };
  const controllers = new ControllerManager({
    objects,
    clock,
    logger: silentLogger,
    usage: {
      answer: () =>
        Promise.resolve({
          items: pods().flatMap((pod, i) => {
            const usage = state.uses(i);
            const { name, namespace } = pod.metadata;
            const containers = [{ name: "a", usage }];
            const timestamp = new Date(clock.now()).toISOString();
            return usage ? [{ metadata: { name, namespace }, timestamp, window: "3.5s", containers }] : [];
          }),
        }),
    },
  });
  controllers.start();
  const create = (group: string, resource: string, body: Json) =>
    objects.create(mustFindKind(group, group === "autoscaling" ? "v2" : "v1", resource), "default", body, context);
  const workload = (kind: string, replicas: number, requests?: Json) =>
    create("apps", `${kind.toLowerCase()}s`, {
      metadata: { name: "web" },
      spec: { replicas, selector: { matchLabels: { app: "web" } }, template: template(requests) },
    });
  const autoscaler = (spec: Json = {}, name = "web"): StoredObject =>
    create("autoscaling", "horizontalpodautoscalers", {
      metadata: { name },
      spec: {
        scaleTargetRef: { apiVersion: "apps/v1", kind: "Deployment", name: "web" },
        minReplicas: 1,
        maxReplicas: 10,
        metrics: [cpu(50)],
        ...spec,
      },
    });
  /** Lets pods that are not running run since long ago, ready from the start. */
  const runPods = (condition: Json = { type: "Ready", status: "True" }) => {
    const startTime = new Date(clock.now() - 600_000).toISOString();
    for (const pod of pods()) {
      if (pod.status?.phase === "Running") continue;
      const conditions = [{ ...condition, lastTransitionTime: startTime }];
      storage.put("/pods", `default/${pod.metadata.name}`, {
        ...pod,
        status: { phase: "Running", startTime, conditions },
      });
    }
  };
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= PERIOD_MS) {
      await clock.advance(Math.min(left, PERIOD_MS));
      runPods();
    }
  };
  const status = (name = "web"): Json => storage.get("autoscaling/horizontalpodautoscalers", `default/${name}`)!.status;
  return {
    clock,
    objects,
    storage,
    state,
    controllers,
    pods,
    workload,
    autoscaler,
    runPods,
    pass,
    status,
    condition: (type: string) => status().conditions?.find((c: Json) => c.type === type),
    replicas: (resource = "deployments"): number => storage.get(`apps/${resource}`, "default/web")!.spec.replicas,
    events: () =>
      [...storage.list("/events")]
        .filter(({ involvedObject }: Json) => involvedObject.kind === "HorizontalPodAutoscaler")
        .map(({ type, reason, message }: Json) => `${type} ${reason}: ${message}`),
  };
}

const busy = { cpu: "100m", memory: "64Mi" };
const fair = { cpu: "50m", memory: "32Mi" };
const idle = { cpu: "1m", memory: "1Mi" };

test.each(["Deployment", "ReplicaSet", "StatefulSet"])(
  "a busy %s gets as many replicas as its use calls for",
  async (kind) => {
    const { workload, autoscaler, replicas, status, condition, events, runPods, clock } = setUp(() => busy);
    workload(kind, 1);
    await clock.advance(100);
    runPods();
    autoscaler({ scaleTargetRef: { apiVersion: "apps/v1", kind, name: "web" } });
    await clock.advance(100);
    expect(replicas(`${kind.toLowerCase()}s`)).toBe(2);
    expect(status()).toMatchObject({
      currentReplicas: 1,
      desiredReplicas: 2,
      lastScaleTime: "2026-01-01T00:00:00Z",
      currentMetrics: [
        { type: "Resource", resource: { name: "cpu", current: { averageUtilization: 100, averageValue: "100m" } } },
      ],
    });
    expect(condition("AbleToScale")).toMatchObject({
      status: "True",
      reason: "SucceededRescale",
      message: "the HPA controller was able to update the target scale to 2",
    });
    expect(condition("ScalingActive")).toMatchObject({
      status: "True",
      reason: "ValidMetricFound",
      message:
        "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)",
    });
    expect(condition("ScalingLimited")).toMatchObject({ status: "False", reason: "DesiredWithinRange" });
    expect(events()).toEqual([
      "Normal SuccessfulRescale: New size: 2; reason: cpu resource utilization (percentage of request) above target",
    ]);
  },
);

/** A Deployment of so many running pods, an autoscaler for it, and its first look. */
async function scaled(options: {
  replicas: number;
  uses: (index: number) => Using | undefined;
  spec?: Json;
  requests?: Json;
}) {
  const world = setUp(options.uses);
  world.workload("Deployment", options.replicas, options.requests);
  await world.clock.advance(100);
  world.runPods();
  world.autoscaler(options.spec);
  await world.clock.advance(100);
  return world;
}

test("within a tenth of the target nothing is changed", async () => {
  const { replicas, status, condition } = await scaled({ replicas: 4, uses: () => ({ ...fair, cpu: "54m" }) });
  expect([replicas(), status().desiredReplicas]).toEqual([4, 4]);
  expect(condition("AbleToScale")).toMatchObject({ reason: "ReadyForNewScale" });
});

test("a tolerance of its own counts instead", async () => {
  const behavior = { scaleUp: { tolerance: "0.01" } };
  const { replicas } = await scaled({ replicas: 4, uses: () => ({ ...fair, cpu: "54m" }), spec: { behavior } });
  expect(replicas()).toBe(5);
});

test("memory by its average value is told in bytes", async () => {
  const target = { type: "AverageValue", averageValue: "16Mi" };
  const metrics = [{ type: "Resource", resource: { name: "memory", target } }];
  const { replicas, status } = await scaled({ replicas: 2, uses: () => fair, spec: { metrics } });
  expect(replicas()).toBe(4);
  expect(status().currentMetrics).toEqual([
    { type: "Resource", resource: { name: "memory", current: { averageValue: "32Mi" } } },
  ]);
});

test("of several metrics the one that calls for most counts", async () => {
  const target = { type: "AverageValue", averageValue: "16Mi" };
  const metrics = [cpu(50), { type: "Resource", resource: { name: "memory", target } }];
  const { replicas } = await scaled({ replicas: 2, uses: () => fair, spec: { metrics } });
  expect(replicas()).toBe(4);
});

test("one container's use can be the measure", async () => {
  const target = { type: "Utilization", averageUtilization: 50 };
  const metrics = [{ type: "ContainerResource", containerResource: { name: "cpu", container: "a", target } }];
  const { replicas, status } = await scaled({ replicas: 2, uses: () => busy, spec: { metrics } });
  expect(replicas()).toBe(4);
  expect(status().currentMetrics[0].containerResource).toMatchObject({ name: "cpu", container: "a" });
});

test("more than the maximum is not made, and a condition says so", async () => {
  const { replicas, condition } = await scaled({ replicas: 2, uses: () => busy, spec: { maxReplicas: 3 } });
  expect(replicas()).toBe(3);
  expect(condition("ScalingLimited")).toMatchObject({ status: "True", reason: "TooManyReplicas" });
});

test("it grows to the double at once, or to four, and no further", async () => {
  const metrics = [cpu(5)];
  const { replicas, condition, pass } = await scaled({
    replicas: 1,
    uses: () => busy,
    spec: { metrics, maxReplicas: 50 },
  });
  expect(replicas()).toBe(4);
  expect(condition("ScalingLimited")).toMatchObject({ status: "True", reason: "ScaleUpLimit" });
  await pass(PERIOD_MS);
  expect(replicas()).toBe(8);
});

test("what is above the maximum or below the minimum is brought back without metrics", async () => {
  const above = await scaled({ replicas: 5, uses: () => undefined, spec: { maxReplicas: 3 } });
  const below = await scaled({ replicas: 1, uses: () => undefined, spec: { minReplicas: 2 } });
  expect([above.replicas(), below.replicas()]).toEqual([3, 2]);
  expect([...above.events(), ...below.events()]).toEqual([
    "Normal SuccessfulRescale: New size: 3; reason: Current number of replicas above Spec.MaxReplicas",
    "Normal SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas",
  ]);
});

test("an idle target shrinks when it has been idle for five minutes, not before", async () => {
  const { replicas, condition, pass, events } = await scaled({ replicas: 4, uses: () => idle });
  expect(replicas()).toBe(4);
  expect(condition("AbleToScale")).toMatchObject({ status: "True", reason: "ScaleDownStabilized" });
  await pass(270_000);
  expect(replicas()).toBe(4);
  await pass(60_000);
  expect(replicas()).toBe(1);
  expect(events()).toEqual(["Normal SuccessfulRescale: New size: 1; reason: All metrics below target"]);
});

test("a moment of load in these five minutes keeps the replicas", async () => {
  const { replicas, pass, state } = await scaled({ replicas: 4, uses: () => idle });
  await pass(150_000);
  state.uses = () => fair;
  await pass(PERIOD_MS);
  state.uses = () => idle;
  await pass(240_000);
  expect(replicas()).toBe(4);
});

test("the wall clock, set forwards by an hour, does not make it shrink early", async () => {
  const { replicas, pass, clock } = await scaled({ replicas: 4, uses: () => idle });
  clock.step(3_600_000);
  await pass(60_000);
  expect(replicas()).toBe(4);
});

test("scaleDown.stabilizationWindowSeconds counts instead of the five minutes", async () => {
  const behavior = { scaleDown: { stabilizationWindowSeconds: 30 } };
  const { replicas, pass } = await scaled({ replicas: 4, uses: () => idle, spec: { behavior } });
  expect(replicas()).toBe(4);
  await pass(45_000);
  expect(replicas()).toBe(1);
});

test.each([
  ["come", { scaleUp: { policies: [{ type: "Pods", value: 1, periodSeconds: 60 }] } }, busy, [5, 5, 6], "ScaleUpLimit"],
  [
    "go",
    { scaleDown: { policies: [{ type: "Percent", value: 25, periodSeconds: 60 }], stabilizationWindowSeconds: 0 } },
    idle,
    [3, 3, 2],
    "ScaleDownLimit",
  ],
])("policies limit how many %s within their period", async (_, behavior, use, expected, reason) => {
  const { replicas, pass, condition } = await scaled({ replicas: 4, uses: () => use, spec: { behavior } });
  const seen = [replicas()];
  await pass(30_000);
  seen.push(replicas());
  expect(condition("ScalingLimited")).toMatchObject({ status: "True", reason });
  await pass(60_000);
  expect([...seen, replicas()]).toEqual(expected);
});

test("selectPolicy Disabled keeps it from shrinking", async () => {
  const behavior = { scaleDown: { selectPolicy: "Disabled", stabilizationWindowSeconds: 0 } };
  const { replicas, pass } = await scaled({ replicas: 4, uses: () => idle, spec: { behavior } });
  await pass(600_000);
  expect(replicas()).toBe(4);
});

test("on the way up a pod without usage counts as idle", async () => {
  // One of three is unknown: 200m of 300m requested, 66 % against 50 %.
  const { replicas } = await scaled({ replicas: 3, uses: (i) => (i === 0 ? undefined : busy) });
  expect(replicas()).toBe(4);
});

test("on the way down a pod without usage counts as busy", async () => {
  // 102m of 300m requested, 34 % against 50 %: two of them would be too few without the guess.
  const behavior = { scaleDown: { stabilizationWindowSeconds: 0 } };
  const { replicas, pass } = await scaled({
    replicas: 3,
    uses: (i) => (i === 0 ? undefined : idle),
    spec: { behavior },
  });
  await pass(PERIOD_MS);
  expect(replicas()).toBe(3);
});

test("the CPU time of a pod that has never been ready does not count", async () => {
  const { workload, autoscaler, clock, runPods, replicas, condition } = setUp(() => busy);
  workload("Deployment", 2);
  await clock.advance(100);
  runPods({ type: "Ready", status: "False" });
  autoscaler();
  await clock.advance(100);
  expect(replicas()).toBe(2);
  expect(condition("ScalingActive")).toMatchObject({
    status: "False",
    reason: "FailedGetResourceMetric",
    message:
      "the HPA was unable to compute the replica count: failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)",
  });
});

test("where nothing is known the condition and events say why, and nothing is changed", async () => {
  const { replicas, condition, events, status } = await scaled({ replicas: 3, uses: () => undefined });
  expect([replicas(), status().currentReplicas, status().desiredReplicas]).toEqual([3, 3, 0]);
  const failure =
    "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API";
  expect(condition("ScalingActive")).toMatchObject({
    status: "False",
    reason: "FailedGetResourceMetric",
    message: `the HPA was unable to compute the replica count: ${failure}`,
  });
  expect(events()).toEqual([
    `Warning FailedGetResourceMetric: ${failure}`,
    `Warning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: ${failure}`,
  ]);
});

test("a share of a request that is not there is an error in words", async () => {
  const { condition, pods } = await scaled({ replicas: 1, uses: () => busy, requests: { memory: "64Mi" } });
  expect(condition("ScalingActive").message).toBe(
    `the HPA was unable to compute the replica count: failed to get cpu utilization: missing request for cpu in container a of Pod ${pods()[0]!.metadata.name}`,
  );
});

test("an unknown metric beside a known one may not take replicas away, but adds them", async () => {
  const external = { metric: { name: "queue" }, target: { type: "AverageValue", averageValue: "10" } };
  const metrics = [cpu(50), { type: "External", external }];
  const behavior = { scaleDown: { stabilizationWindowSeconds: 0 } };
  const { replicas, condition, state, pass } = await scaled({
    replicas: 2,
    uses: () => idle,
    spec: { metrics, behavior },
  });
  await pass(PERIOD_MS);
  expect(replicas()).toBe(2);
  expect(condition("ScalingActive")).toMatchObject({ status: "False", reason: "FailedGetExternalMetric" });
  expect(condition("ScalingActive").message).toContain("this cluster does not serve external.metrics.k8s.io");
  state.uses = () => busy;
  await pass(PERIOD_MS);
  expect(replicas()).toBe(4);
});

test("a target of no replicas is left alone", async () => {
  const { replicas, condition } = await scaled({ replicas: 0, uses: () => busy });
  expect(replicas()).toBe(0);
  expect(condition("ScalingActive")).toMatchObject({ status: "False", reason: "ScalingDisabled" });
});

test.each([
  [{ apiVersion: "apps/v1", kind: "Deployment", name: "nobody" }, 'deployments.apps "nobody" not found'],
  [{ apiVersion: "apps/v1", kind: "Thing", name: "web" }, 'no matches for kind "Thing" in group "apps"'],
  [{ apiVersion: "apps/v1", kind: "DaemonSet", name: "web" }, "the server could not find the requested resource"],
])("a target that cannot be scaled is told in AbleToScale: %j", async (scaleTargetRef, why) => {
  const { condition, events } = await scaled({ replicas: 1, uses: () => busy, spec: { scaleTargetRef } });
  expect(condition("AbleToScale")).toMatchObject({
    status: "False",
    reason: "FailedGetScale",
    message: `the HPA controller was unable to get the target's current scale: ${why}`,
  });
  expect(events()).toEqual([`Warning FailedGetScale: ${why}`]);
});

test("two autoscalers of the same pods scale nothing", async () => {
  const { workload, autoscaler, clock, runPods, replicas, condition } = setUp(() => busy);
  workload("Deployment", 1);
  await clock.advance(100);
  runPods();
  autoscaler({}, "web");
  autoscaler({}, "other");
  await clock.advance(100);
  expect(replicas()).toBe(1);
  expect(condition("ScalingActive")).toMatchObject({
    status: "False",
    reason: "AmbiguousSelector",
    message: "pods by selector app=web are controlled by multiple HPAs: [default/other default/web]",
  });
});

test("its own status calls for no other look; a new spec does", async () => {
  const { replicas, clock, state, storage, objects } = await scaled({ replicas: 1, uses: () => fair });
  const before = storage.revision;
  await clock.advance(5_000);
  expect(storage.revision).toBe(before);
  state.uses = () => busy;
  const found = storage.get("autoscaling/horizontalpodautoscalers", "default/web")!;
  const next = { ...found, spec: { ...found.spec, metrics: [cpu(40)] } };
  objects.replace({ kind: autoscalers, namespace: "default", name: "web", subresource: undefined }, next, context);
  await clock.advance(100);
  expect(replicas()).toBe(3);
});

test("usage that comes after the end changes nothing", async () => {
  const { replicas, clock, controllers, workload, runPods, autoscaler } = setUp(() => busy);
  workload("Deployment", 1);
  await clock.advance(100);
  runPods();
  autoscaler();
  controllers.stop();
  await clock.advance(PERIOD_MS);
  expect(replicas()).toBe(1);
});

test.each<[string, Json, string]>([
  [
    "a metric without its source",
    { metrics: [{ type: "Resource" }] },
    "spec.metrics[0].resource: Required value: must populate information for the given metric source",
  ],
  [
    "a metric of an unknown type",
    { metrics: [{ type: "Moon" }] },
    'spec.metrics[0].type: Unsupported value: "Moon": supported values: "ContainerResource", "External", "Object", "Pods", "Resource"',
  ],
  [
    "a target of nothing",
    { metrics: [{ type: "Resource", resource: { name: "cpu", target: { type: "Utilization" } } }] },
    "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
  ],
  [
    "a share of nought",
    { metrics: [cpu(0)] },
    "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
  ],
  [
    "a policy without a period",
    { behavior: { scaleUp: { policies: [{ type: "Pods", value: 1 }] } } },
    "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 0: must be greater than zero",
  ],
])("%s is refused", (_, spec, message) => {
  const { autoscaler } = setUp();
  expect(() => autoscaler(spec)).toThrow(`HorizontalPodAutoscaler.autoscaling "web" is invalid: ${message}`);
});
