/** Every alert: known to promtool, with a runbook page, firing when it must and silent when it need not. */
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, readdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parse, stringify } from "yaml";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { runCommand, tryCommand } from "../../e2e/harness/exec.ts";
import { chart, find, render } from "./render.ts";

const groups = parse(await readFile(join(chart, "alerts.yaml"), "utf8")).groups as Json[];
const rules = groups.flatMap((group) => group.rules);
const alerts = rules.map((rule) => rule.alert as string);
const pages = await Promise.all(
  (await readdir(join(chart, "runbooks"))).map(
    async (file) => [file.replace(".md", ""), await readFile(join(chart, "runbooks", file), "utf8")] as const,
  ),
);
const full = await render(join(chart, "ci/full-values.yaml"));

interface AlertCase {
  /** Series in promtool's notation, one sample a minute. */
  series: Record<string, string>;
  /** When the alert is asked for. */
  at: string;
  /** Labels of the alert that must fire, beside severity. Absent: none may fire. */
  fires?: Record<string, string>;
}

const build = 'vmlet_build_info{instance="a",version="1"}';
const up = { [build]: "1+0x120" };
/** `fires` and the silent neighbour of each alert: as close to it as the rule allows. */
const cases: Record<string, [fires: AlertCase, silent: AlertCase]> = {
  VmletDown: [
    { series: { 'up{job="other"}': "1+0x20" }, at: "6m", fires: {} },
    { series: up, at: "6m" },
  ],
  VmletLeaseStale: [
    {
      series: {
        'kubelet_node_name{node="n",instance="a"}': "1+0x20",
        'vmlet_lease_last_renew_timestamp_seconds{node="n",instance="a"}': "0+0x20",
      },
      at: "3m",
      fires: { node: "n" },
    },
    {
      // The standby's is old or absent; the leader's counts.
      series: {
        'kubelet_node_name{node="n",instance="a"}': "1+0x20",
        'kubelet_node_name{node="n",instance="b"}': "1+0x20",
        'vmlet_lease_last_renew_timestamp_seconds{node="n",instance="a"}': "0+0x20",
        'vmlet_lease_last_renew_timestamp_seconds{node="n",instance="b"}': "0+60x20",
      },
      at: "10m",
    },
  ],
  VmletNodeNotReady: [
    {
      series: {
        'kube_node_status_condition{node="n",condition="Ready",status="true"}': "0+0x20",
        'kubelet_node_name{node="n",instance="a"}': "1+0x20",
      },
      at: "6m",
      fires: { node: "n", condition: "Ready", status: "true" },
    },
    {
      series: {
        'kube_node_status_condition{node="real",condition="Ready",status="true"}': "0+0x20",
        'kubelet_node_name{node="n",instance="a"}': "1+0x20",
      },
      at: "6m",
    },
  ],
  VmletBackendDown: [
    {
      series: {
        'vmlet_backend_up{node="n",instance="a"}': "0+0x20",
        'vmlet_backend_up{node="n",instance="b"}': "0+0x20",
      },
      at: "3m",
      fires: { node: "n" },
    },
    {
      series: {
        'vmlet_backend_up{node="n",instance="a"}': "1+0x20",
        'vmlet_backend_up{node="n",instance="b"}': "0+0x20",
      },
      at: "3m",
    },
  ],
  VmletBackendErrors: [
    {
      series: {
        'vmlet_backend_requests_total{op="create_machine",code="ok"}': "0+9x40",
        'vmlet_backend_requests_total{op="create_machine",code="unavailable"}': "0+1x40",
      },
      at: "20m",
      fires: { op: "create_machine" },
    },
    {
      series: {
        'vmlet_backend_requests_total{op="get_machine",code="ok"}': "0+5x40",
        'vmlet_backend_requests_total{op="get_machine",code="not_found"}': "0+5x40",
      },
      at: "20m",
    },
  ],
  VmletBackendSlow: [
    {
      series: buckets("vmlet_backend_request_duration_seconds", 'op="create_machine"', {
        "5": "0+1x40",
        "10": "0+9x40",
        "+Inf": "0+9x40",
      }),
      at: "20m",
      fires: { op: "create_machine" },
    },
    {
      series: buckets("vmlet_backend_request_duration_seconds", 'op="port_forward"', {
        "5": "0+1x40",
        "10": "0+9x40",
        "+Inf": "0+9x40",
      }),
      at: "20m",
    },
  ],
  VmletPodsNotRunning: [
    { series: { kubelet_active_pods: "5+0x40", kubelet_running_pods: "3+0x40" }, at: "16m", fires: {} },
    // One pod is always starting, but never the same for long.
    { series: { kubelet_active_pods: "5+0x40", kubelet_running_pods: "4+0x8 5+0x8 4+0x8 5+0x8" }, at: "20m" },
  ],
  VmletReconcilesFail: [
    {
      series: {
        'vmlet_reconcile_total{result="retry"}': "0+6x40",
        'vmlet_reconcile_total{result="settled"}': "0+4x40",
      },
      at: "25m",
      fires: {},
    },
    {
      series: {
        'vmlet_reconcile_total{result="retry"}': "0+4x40",
        'vmlet_reconcile_total{result="settled"}': "0+6x40",
      },
      at: "25m",
    },
  ],
  VmletApiServerErrors: [
    {
      series: {
        ...up,
        'rest_client_requests_total{instance="a",code="200"}': "0+9x40",
        'rest_client_requests_total{instance="a",code="503"}': "0+1x40",
      },
      at: "20m",
      fires: {},
    },
    {
      series: {
        ...up,
        'rest_client_requests_total{instance="a",code="200"}': "0+9x40",
        'rest_client_requests_total{instance="other",code="503"}': "0+9x40",
      },
      at: "20m",
    },
  ],
  VmletWatchSilent: [
    {
      series: { 'vmlet_informer_last_event_timestamp_seconds{instance="a",resource="pods"}': "0+0x40" },
      at: "11m",
      fires: { instance: "a", resource: "pods" },
    },
    { series: { 'vmlet_informer_last_event_timestamp_seconds{instance="a",resource="pods"}': "0+60x40" }, at: "11m" },
  ],
  VmletRelistStorm: [
    {
      series: { 'vmlet_informer_relists_total{instance="a",resource="pods",reason="expired"}': "0+2x40" },
      at: "20m",
      fires: { instance: "a", resource: "pods", reason: "expired" },
    },
    {
      series: { 'vmlet_informer_relists_total{instance="a",resource="pods",reason="expired"}': "0+0.2x40" },
      at: "20m",
    },
  ],
  VmletEventLoopLag: [
    {
      series: { ...up, 'nodejs_eventloop_lag_p99_seconds{instance="a"}': "0.3+0x40" },
      at: "11m",
      fires: { instance: "a" },
    },
    { series: { ...up, 'nodejs_eventloop_lag_p99_seconds{instance="other"}': "0.3+0x40" }, at: "11m" },
  ],
  VmletMemoryHigh: [
    { series: memory("a", 460e6), at: "11m", fires: { instance: "a", namespace: "v", pod: "p" } },
    { series: memory("a", 300e6), at: "11m" },
  ],
  VmletCertificateExpires: [
    {
      series: { ...up, 'kubelet_certificate_manager_server_ttl_seconds{instance="a"}': "500000+0x40" },
      at: "11m",
      fires: { instance: "a" },
    },
    { series: { ...up, 'kubelet_certificate_manager_server_ttl_seconds{instance="a"}': "700000+0x40" }, at: "11m" },
  ],
  VmletCertificateNotSigned: [
    {
      series: { ...up, 'kubelet_server_expiration_renew_errors{instance="a"}': "0+1x90" },
      at: "70m",
      fires: { instance: "a" },
    },
    { series: { ...up, 'kubelet_server_expiration_renew_errors{instance="a"}': "5+0x90" }, at: "70m" },
  ],
  VmletUnauthenticatedRequests: [
    {
      series: { 'vmlet_authn_decisions_total{instance="a",result="denied"}': "0+120x40" },
      at: "16m",
      fires: { instance: "a" },
    },
    { series: { 'vmlet_authn_decisions_total{instance="a",result="allowed"}': "0+120x40" }, at: "16m" },
  ],
  VmletStreamsRejected: [
    {
      series: { 'vmlet_streams_rejected_total{instance="a",reason="limit"}': "0+12x40" },
      at: "12m",
      fires: { instance: "a", reason: "limit" },
    },
    { series: { 'vmlet_streams_rejected_total{instance="a",reason="limit"}': "0+1x40" }, at: "12m" },
  ],
  VmletRestarting: [
    {
      series: { ...up, 'process_start_time_seconds{instance="a"}': "0+0x8 500+0x8 1000+0x8 1500+0x20" },
      at: "30m",
      fires: { instance: "a" },
    },
    { series: { ...up, 'process_start_time_seconds{instance="a"}': "0+0x8 500+0x40" }, at: "30m" },
  ],
  VmletNodeReregistered: [
    { series: { vmlet_node_registrations_total: "1+0x10 2+0x10 3+0x10 4+0x40" }, at: "60m", fires: {} },
    { series: { vmlet_node_registrations_total: "1+0x70" }, at: "60m" },
  ],
  VmletVersionSkew: [
    { series: { [build]: "1+0x120", 'vmlet_build_info{instance="b",version="2"}': "1+0x120" }, at: "65m", fires: {} },
    { series: { [build]: "1+0x120", 'vmlet_build_info{instance="b",version="2"}': "1+0x20" }, at: "65m" },
  ],
  VmletMachineLeaked: [
    { series: { 'vmlet_machines_leaked_total{instance="a"}': "0+0x30 1+0x60" }, at: "60m", fires: { instance: "a" } },
    { series: { 'vmlet_machines_leaked_total{instance="a"}': "1+0x90" }, at: "60m" },
  ],
  VmletMachineLost: [
    { series: { 'vmlet_machines_lost_total{instance="a"}': "0+0x30 1+0x60" }, at: "60m", fires: { instance: "a" } },
    { series: { 'vmlet_machines_lost_total{instance="a"}': "1+0x90" }, at: "60m" },
  ],
  VmletPodStartSlow: [
    {
      series: {
        ...up,
        ...buckets("kubelet_pod_start_duration_seconds", 'instance="a"', {
          "120": "0+1x60",
          "300": "0+9x60",
          "+Inf": "0+9x60",
        }),
      },
      at: "30m",
      fires: {},
    },
    {
      series: {
        ...up,
        ...buckets("kubelet_pod_start_duration_seconds", 'instance="kubelet"', {
          "120": "0+1x60",
          "300": "0+9x60",
          "+Inf": "0+9x60",
        }),
      },
      at: "30m",
    },
  ],
};

const promtool = findPromtool();
const skip =
  promtool === undefined ? " (skipped: no promtool on the PATH; Debian has it in the package prometheus)" : "";

describe(`alerts, by promtool${skip}`, () => {
  test.runIf(promtool)("have rules that Prometheus accepts", async () => {
    const file = await writeRules(groups);
    const { code, stdout, stderr } = await tryCommand(promtool!, ["check", "rules", file]);
    expect(code, stdout + stderr).toBe(0);
  });

  const one = (index: 0 | 1) => Object.entries(cases).map(([alert, both]) => [alert, both[index]] as const);
  test.runIf(promtool).each(one(0))("%s fires", (alert, alertCase) => ruleTest(alert, alertCase), 30_000);
  test.runIf(promtool).each(one(1))(
    "%s stays silent next to its limit",
    (alert, alertCase) => ruleTest(alert, alertCase),
    30_000,
  );
});

describe("every alert", () => {
  test("has a case here", () => {
    expect(Object.keys(cases).toSorted()).toEqual(alerts.toSorted());
  });

  test("has a runbook page, and every page an alert", () => {
    expect(pages.map(([name]) => name).toSorted()).toEqual(alerts.toSorted());
  });

  test("names its page", () => {
    const rendered = find(full, "PrometheusRule").spec.groups.flatMap((group: Json) => group.rules) as Json[];
    const base = "https://github.com/vmlet/vmlet/blob/main/helm/vmlet/runbooks";
    expect(rendered.map((rule) => rule.annotations.runbook_url)).toEqual(alerts.map((alert) => `${base}/${alert}.md`));
  });

  test.each(rules.map((rule) => [rule.alert as string, rule.expr as string]))(
    "%s asks for metrics that there are",
    async (_, expr) => {
      expect(unknownMetrics(expr)).toEqual([]);
    },
  );
});

describe("the runbooks", () => {
  const lines = pages.flatMap(([name, text]) => text.split("\n").map((line) => [name, line] as const));
  const logs = lines.filter(([, line]) => line.includes("kubectl logs"));

  test.each(logs)("%s reads the logs of all replicas: %s", (_, line) => {
    expect(line).toMatch(/kubectl logs -n NAMESPACE -l app\.kubernetes\.io\/component=agent --prefix --tail=-1/);
  });

  test.each(logs.filter(([, line]) => line.includes("grep")))(
    "%s looks for what the agent logs: %s",
    async (_, line) => {
      expect(await sources()).toContain(/ grep '([^']+)'$/.exec(line)?.[1]);
    },
  );

  test("speak of every reason for a relist that the reflector counts, and of no other", async () => {
    const [, type] = /type RelistReason = ([^;]+);/.exec(await sources())!;
    const told = Object.fromEntries(pages)["VmletRelistStorm"]!.matchAll(/^- `(\w+)`/gm);
    expect(new Set([...told].map(([, reason]) => reason))).toEqual(new Set(type!.match(/\w+/g)));
  });

  test("name no object by the release, whose full name may be another", () => {
    expect(lines.filter(([, line]) => line.includes("RELEASE"))).toEqual([]);
  });
});

describe("the dashboard", () => {
  test("asks for metrics that there are", async () => {
    const { panels } = JSON.parse(await readFile(join(chart, "dashboards/vmlet.json"), "utf8"));
    const exprs = panels.flatMap((panel: Json) => panel.targets.map((target: Json) => target.expr as string));
    expect(exprs.flatMap(unknownMetrics)).toEqual([]);
  });
});

/** The agent's own source, as one text. */
async function sources(): Promise<string> {
  const src = join(import.meta.dirname, "../../../src");
  const files = (await readdir(src, { recursive: true })).filter((file) => file.endsWith(".ts"));
  return (await Promise.all(files.map((file) => readFile(join(src, file), "utf8")))).join("\n");
}

/** Metrics in an expression that neither the agent nor kube-state-metrics has. */
function unknownMetrics(expr: string): string[] {
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

async function ruleTest(alert: string, { series, at, fires }: AlertCase): Promise<void> {
  // Annotations are left out: promtool would want their text repeated here.
  const rule: Json = { ...rules.find((each) => each.alert === alert) };
  delete rule.annotations;
  const file = await writeRules([{ name: "one", rules: [rule] }]);
  const exp_alerts = fires === undefined ? [] : [{ exp_labels: { ...rule.labels, ...fires } }];
  const testFile = file.replace("rules.yaml", "test.yaml");
  await writeFile(
    testFile,
    stringify({
      rule_files: [file],
      evaluation_interval: "30s",
      tests: [
        {
          interval: "1m",
          input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
          alert_rule_test: [{ eval_time: at, alertname: alert, exp_alerts }],
        },
      ],
    }),
  );
  await runCommand(promtool!, ["test", "rules", testFile]);
}

async function writeRules(content: Json[]): Promise<string> {
  const file = join(await mkdtemp(join(tmpdir(), "vmlet-rules-")), "rules.yaml");
  await writeFile(file, stringify({ groups: content }));
  return file;
}

function buckets(name: string, labels: string, counts: Record<string, string>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(counts).map(([le, values]) => [`${name}_bucket{${labels},le="${le}"}`, values]),
  );
}

function memory(instance: string, bytes: number): Record<string, string> {
  const at = `instance="${instance}",namespace="v",pod="p"`;
  return {
    [`vmlet_build_info{${at},version="1"}`]: "1+0x40",
    [`process_resident_memory_bytes{${at}}`]: `${bytes}+0x40`,
    'kube_pod_container_resource_limits{namespace="v",pod="p",container="agent",resource="memory"}': "512000000+0x40",
  };
}

function findPromtool(): string | undefined {
  try {
    execFileSync("promtool", ["--version"], { stdio: "ignore" });
    return "promtool";
  } catch {
    return undefined;
  }
}
