/** What tests of alerts and dashboards share: promtool, where it is, and the names of metrics in an expression. */
import { execFileSync } from "node:child_process";
import { createMetrics } from "../../../src/telemetry/metrics.ts";

/** The command, or undefined where it is not installed. */
export const promtool = findPromtool();
/** To be said in the title of what cannot run without it. */
export const skip =
  promtool === undefined ? " (skipped: no promtool on the PATH; Debian has it in the package prometheus)" : "";

/** Metrics in an expression that neither the agent nor kube-state-metrics has. */
export function unknownMetrics(expr: string): string[] {
  const metrics = createMetrics({ nodeNames: ["n"], version: "1" });
  const known = new Set(metrics.registry.getMetricsAsArray().map((metric) => metric.name));
  const words = expr
    .replaceAll(/\{[^}]*\}/g, " ")
    .replaceAll(/\b(by|on|without|group_left)\s*\([^)]*\)/g, " ")
    .match(/\b(vmlet|kubelet|kube|rest_client|process|nodejs|leader_election|workqueue)_[a-z0-9_]+/g);
  const ofKubeStateMetrics = ["kube_node_status_condition", "kube_pod_container_resource_limits"];
  return (words ?? []).filter(
    (word) => !known.has(word) && !known.has(word.replace(/_bucket$/, "")) && !ofKubeStateMetrics.includes(word),
  );
}

function findPromtool(): string | undefined {
  try {
    execFileSync("promtool", ["--version"], { stdio: "ignore" });
    return "promtool";
  } catch {
    return undefined;
  }
}
