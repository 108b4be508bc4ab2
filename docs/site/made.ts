/** Pages that no document holds, from what the program itself says: its API, its metrics, its alerts, its events. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import { createMetrics } from "../../src/telemetry/metrics.ts";
import { EVENT_REASONS } from "./event-reasons.ts";
import { machineApi } from "./machine-api.ts";
import { table } from "./markdown.ts";

const ROOT = join(import.meta.dirname, "../..");

const PAGES: Readonly<Record<string, () => string>> = {
  alerts: alertsPage,
  events: eventsPage,
  metrics: metricsPage,
  "machine-api": () => machineApi(readFileSync(join(ROOT, "src/provider/contract/openapi.yaml"), "utf8")),
};

/** @throws Error when no page is called so */
export function made(name: string): string {
  const page = PAGES[name];
  if (page === undefined) throw new Error(`no page is called ${name}`);
  return page();
}

interface Alert {
  alert: string;
  for?: string;
  labels: { severity: string };
  annotations: { summary: string };
}

function alertsPage(): string {
  const { groups } = parse(readFileSync(join(ROOT, "helm/vmlet/alerts.yaml"), "utf8")) as {
    groups: { rules: Alert[] }[];
  };
  const rows = groups
    .flatMap(({ rules }) => rules)
    .map(({ alert, annotations, labels, for: after = "" }) => [
      `[${alert}](helm/vmlet/runbooks/${alert}.md)`,
      labels.severity,
      after,
      // The label is filled in by Prometheus.
      annotations.summary.replaceAll(/\{\{ \$labels\.(\w+) \}\}/g, "_$1_"),
    ]);
  return `# Alerts

The chart brings them with \`prometheusRule.enabled\` ([how](helm/vmlet/README.md#metrics-alerts-dashboard)); the name of each leads to
its runbook.

${table(["Alert", "Severity", "After", "What it says"], rows)}
`;
}

function eventsPage(): string {
  const rows = Object.entries(EVENT_REASONS)
    .toSorted(([a], [b]) => a.localeCompare(b))
    .map(([reason, { on, from, meaning, cure = "" }]) => [`\`${reason}\``, on, from, meaning, cure]);
  return `# Events

What \`kubectl describe\` shows of pods and nodes that vmlet serves, by reason. Where a kubelet has an event for the same, it is the kubelet's. Those of the
backend are the reference backend's and the clouds', which come with a machine's notices; another backend may have others.

${table(["Reason", "On a", "From", "What it means", "What to do"], rows)}
`;
}

/** What of prom-client's metrics its own types keep to themselves. */
interface Described {
  name: string;
  help: string;
  labelNames: readonly string[];
}

function metricsPage(): string {
  const { registry } = createMetrics({ nodeNames: ["node"], version: "version" });
  const rows = (registry.getMetricsAsArray() as unknown as Described[])
    .toSorted((a, b) => a.name.localeCompare(b.name))
    .map(({ name, help, labelNames, constructor }) => [
      `\`${name}\``,
      constructor.name.toLowerCase(),
      labelNames.map((label) => `\`${label}\``).join(", "),
      help,
    ]);
  return `# Metrics

What an agent serves at \`/metrics\` of its health port, and a node's share of it at that of the node's kubelet API. Metrics that mean the same
as a kubelet's carry the kubelet's name. Figures of pods are at \`/metrics/resource\` and \`/stats/summary\` of the kubelet API, as a kubelet's.

${table(["Metric", "Kind", "Labels", "Meaning"], rows)}
`;
}
