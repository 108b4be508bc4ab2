import { expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { renderProbeMetrics } from "../../../src/kubelet/endpoints/metrics-probes.ts";
import type { ContainerProbes } from "../../../src/kubelet/metrics/stats.ts";

const pod = { metadata: { name: "web", namespace: "ns", uid: "uid-1" } } as Pod;
const lookup = { get: () => undefined, list: () => [{ pod, machineId: "m-1" }] };
const probes = (podUid: string): ContainerProbes => ({
  podUid,
  container: "main",
  tally: { probe: "liveness", successful: 7, failed: 2, unknown: 0 },
});

test("each result of a probe that there was has its series, with the kubelet's name and labels", () => {
  const series = (result: string, count: number) =>
    `prober_probe_total{container="main",namespace="ns",pod="web",pod_uid="uid-1",probe_type="Liveness",result="${result}"} ${count}`;
  expect(renderProbeMetrics(lookup, [probes("uid-1")]).split("\n")).toEqual([
    expect.stringMatching(/^# HELP prober_probe_total /),
    "# TYPE prober_probe_total counter",
    series("successful", 7),
    series("failed", 2),
    "",
  ]);
});

test("a machine whose pod is not known any more has no series", () => {
  expect(renderProbeMetrics(lookup, [probes("uid-2")])).toBe("");
});
