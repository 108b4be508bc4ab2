import { expect, test } from "vitest";
import { podMetrics } from "../../../src/agent/pod-metrics.ts";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

test("a resize that was deferred and accepted is counted, with how long it took and for whom", async () => {
  const metrics = createMetrics({ nodeNames: ["n"], version: "1" });
  const ended = { resolution: "accepted", seconds: 12, priority: 2_000_000_000 } as const;
  podMetrics(metrics, new VirtualClock()).onDeferralEnded?.(ended);
  const text = await metrics.render();
  expect(text).toContain('kubelet_pod_deferred_accepted_resizes_total{retry_trigger="periodic_retry"} 1\n');
  expect(text).toMatch(/resize_duration_seconds_sum\{resolution="accepted",priority_bucket="system-critical"\} 12\n/);
});

const NAME = "kubelet_terminated_containers_total";

test.each([
  [139, "Error", "139", "Error"],
  [0, "a tenant's own words", "0", "Other"],
  [70_000, "OOMKilled", "other", "OOMKilled"],
])("a container that ended with %i and %j is counted as %s, %s", async (exitCode, reason, code, label) => {
  const metrics = createMetrics({ nodeNames: ["n"], version: "1" });
  podMetrics(metrics, new VirtualClock()).onTerminated?.({ containerType: "container", exitCode, reason }, {});
  const lines = (await metrics.render()).split("\n").filter((line) => line.startsWith(`${NAME}{`));
  expect(lines).toEqual([`${NAME}{container_type="container",exit_code="${code}",reason="${label}"} 1`]);
});

test("pods with users of their own are counted besides, and what of them did not start", async () => {
  const metrics = createMetrics({ nodeNames: ["n"], version: "1" });
  const hooks = podMetrics(metrics, new VirtualClock());
  const mapped = { spec: { containers: [], hostUsers: false } };
  hooks.onCreate?.({ ok: true }, mapped);
  hooks.onCreate?.({ ok: false, code: "unavailable" }, mapped);
  hooks.onCreate?.({ ok: true }, { spec: { containers: [] } });
  const ended = { containerType: "container", exitCode: 128 } as const;
  hooks.onTerminated?.({ ...ended, reason: "StartError" }, mapped);
  hooks.onTerminated?.({ ...ended, reason: "Error" }, mapped);
  hooks.onTerminated?.({ ...ended, reason: "StartError" }, {});
  const text = await metrics.render();
  expect(text).toContain("kubelet_started_user_namespaced_pods_total 2\n");
  expect(text).toContain("kubelet_started_user_namespaced_pods_errors_total 2\n");
});
