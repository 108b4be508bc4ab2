import { expect, test } from "vitest";
import { podMetrics } from "../../../src/agent/pod-metrics.ts";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const NAME = "kubelet_terminated_containers_total";

test.each([
  [139, "Error", "139", "Error"],
  [0, "a tenant's own words", "0", "Other"],
  [70_000, "OOMKilled", "other", "OOMKilled"],
])("a container that ended with %i and %j is counted as %s, %s", async (exitCode, reason, code, label) => {
  const metrics = createMetrics({ nodeNames: ["n"], version: "1" });
  podMetrics(metrics, new VirtualClock()).onTerminated?.({ containerType: "container", exitCode, reason });
  const lines = (await metrics.render()).split("\n").filter((line) => line.startsWith(`${NAME}{`));
  expect(lines).toEqual([`${NAME}{container_type="container",exit_code="${code}",reason="${label}"} 1`]);
});
