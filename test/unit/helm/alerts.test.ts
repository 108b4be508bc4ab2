/** Every alert: known to promtool, with a runbook page, firing when it must and silent when it need not. */
import { mkdtemp, readFile, readdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { parse, stringify } from "yaml";
import type { Json } from "../../e2e/harness/client.ts";
import { tryCommand } from "../../e2e/harness/exec.ts";
import { promtool, skip, unknownMetrics } from "./prometheus.ts";
import { chart, find, namespace, render } from "./render.ts";

const groups = parse(await readFile(join(chart, "alerts.yaml"), "utf8")).groups as Json[];
const rules = groups.flatMap((group) => group.rules);
const alerts = rules.map((rule) => rule.alert as string);
const pages = await Promise.all(
  (await readdir(join(chart, "runbooks"))).map(
    async (file) => [file.replace(".md", ""), await readFile(join(chart, "runbooks", file), "utf8")] as const,
  ),
);
/** As the chart renders them beside its ServiceMonitor: about the targets of that alone. */
const narrowed = find(await render(join(chart, "ci/full-values.yaml")), "PrometheusRule").spec.groups.flatMap(
  (group: Json) => group.rules,
) as Json[];

interface AlertCase {
  /** Series in promtool's notation, one sample a minute. */
  series: Record<string, string>;
  /** When the alert is asked for. */
  at: string;
  /** Labels of the alert that must fire, beside severity and those of its target. Absent: none may fire. */
  fires?: Record<string, string>;
  /** Instead of `agents`. */
  agents?: Record<string, string>;
}

/** What each scraped agent has: `a` leads, `b` stands by. */
const agents = {
  'vmlet_build_info{instance="a",version="1"}': "1+0x120",
  'vmlet_build_info{instance="b",version="1"}': "1+0x120",
  'leader_election_master_status{instance="a",name="l"}': "1+0x120",
  'leader_election_master_status{instance="b",name="l"}': "0+0x120",
};
/** `fires` and the silent neighbour of each alert: as close to it as the rule allows. Both have `agents` besides. */
const cases: Record<string, [fires: AlertCase, silent: AlertCase]> = {
  VmletDown: [
    { series: { 'up{job="other"}': "1+0x20" }, agents: {}, at: "6m", fires: {} },
    { series: {}, at: "6m" },
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
        // What the standby sees does not help the pods.
        'vmlet_backend_up{node="n",instance="b"}': "1+0x20",
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
        'vmlet_backend_requests_total{instance="a",op="create_machine",code="ok"}': "0+9x40",
        'vmlet_backend_requests_total{instance="a",op="create_machine",code="unavailable"}': "0+1x40",
      },
      at: "20m",
      fires: { op: "create_machine" },
    },
    {
      series: {
        'vmlet_backend_requests_total{instance="a",op="get_machine",code="ok"}': "0+5x40",
        'vmlet_backend_requests_total{instance="a",op="get_machine",code="not_found"}': "0+5x40",
      },
      at: "20m",
    },
  ],
  VmletBackendSlow: [
    {
      series: buckets("vmlet_backend_request_duration_seconds", 'instance="a",op="create_machine"', {
        "5": "0+1x40",
        "10": "0+9x40",
        "+Inf": "0+9x40",
      }),
      at: "20m",
      fires: { op: "create_machine" },
    },
    {
      series: buckets("vmlet_backend_request_duration_seconds", 'instance="a",op="port_forward"', {
        "5": "0+1x40",
        "10": "0+9x40",
        "+Inf": "0+9x40",
      }),
      at: "20m",
    },
  ],
  VmletPodsNotRunning: [
    { series: pods("a", "5+0x40", "3+0x40"), at: "16m", fires: {} },
    // One pod is always starting, but never the same for long. The standby's figures are old.
    { series: { ...pods("a", "5+0x40", "4+0x8 5+0x8 4+0x8 5+0x8"), ...pods("b", "6+0x40", "4+0x40") }, at: "20m" },
  ],
  VmletReconcilesFail: [
    {
      series: {
        'vmlet_reconcile_total{instance="a",result="retry"}': "0+6x40",
        'vmlet_reconcile_total{instance="a",result="settled"}': "0+4x40",
      },
      at: "25m",
      fires: {},
    },
    {
      series: {
        'vmlet_reconcile_total{instance="a",result="retry"}': "0+4x40",
        'vmlet_reconcile_total{instance="a",result="settled"}': "0+6x40",
      },
      at: "25m",
    },
  ],
  VmletApiServerErrors: [
    {
      series: {
        'rest_client_requests_total{instance="a",code="200"}': "0+9x40",
        'rest_client_requests_total{instance="a",code="503"}': "0+1x40",
      },
      at: "20m",
      fires: {},
    },
    {
      series: {
        'rest_client_requests_total{instance="a",code="200"}': "0+9x40",
        'rest_client_requests_total{instance="a",code="503"}': "0+0.4x40",
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
      series: { 'nodejs_eventloop_lag_p99_seconds{instance="a"}': "0.3+0x40" },
      at: "11m",
      fires: { instance: "a" },
    },
    { series: { 'nodejs_eventloop_lag_p99_seconds{instance="a"}': "0.1+0x40" }, at: "11m" },
  ],
  VmletMemoryHigh: [
    { series: memory("a", 460e6), at: "11m", fires: { instance: "a" } },
    { series: memory("a", 300e6), at: "11m" },
  ],
  VmletCertificateExpires: [
    {
      series: { 'kubelet_certificate_manager_server_ttl_seconds{instance="a"}': "500000+0x40" },
      at: "11m",
      fires: { instance: "a" },
    },
    { series: { 'kubelet_certificate_manager_server_ttl_seconds{instance="a"}': "700000+0x40" }, at: "11m" },
  ],
  VmletCertificateNotSigned: [
    {
      series: { 'kubelet_server_expiration_renew_errors{instance="a"}': "0+1x90" },
      at: "70m",
      fires: { instance: "a" },
    },
    { series: { 'kubelet_server_expiration_renew_errors{instance="a"}': "5+0x90" }, at: "70m" },
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
      series: { 'process_start_time_seconds{instance="a"}': "0+0x8 500+0x8 1000+0x8 1500+0x20" },
      at: "30m",
      fires: { instance: "a" },
    },
    { series: { 'process_start_time_seconds{instance="a"}': "0+0x8 500+0x40" }, at: "30m" },
  ],
  VmletNodeReregistered: [
    {
      series: { 'vmlet_node_registrations_total{instance="a"}': "1+0x10 2+0x10 3+0x10 4+0x40" },
      at: "60m",
      fires: {},
    },
    { series: { 'vmlet_node_registrations_total{instance="a"}': "1+0x70" }, at: "60m" },
  ],
  VmletVersionSkew: [
    { series: { 'vmlet_build_info{instance="c",version="2"}': "1+0x120" }, at: "65m", fires: {} },
    { series: { 'vmlet_build_info{instance="c",version="2"}': "1+0x20" }, at: "65m" },
  ],
  VmletMachineLeaked: [
    { series: { 'vmlet_machines_leaked_total{instance="a"}': "0+0x30 1+0x60" }, at: "60m", fires: { instance: "a" } },
    { series: { 'vmlet_machines_leaked_total{instance="a"}': "1+0x90" }, at: "60m" },
  ],
  VmletMachineLost: [
    { series: { 'vmlet_machines_lost_total{instance="a"}': "0+0x30 1+0x60" }, at: "60m", fires: { instance: "a" } },
    { series: { 'vmlet_machines_lost_total{instance="a"}': "1+0x90" }, at: "60m" },
  ],
  VmletMachinesMissing: [
    {
      series: {
        'vmlet_machines_missing{node="n",instance="a"}': "12+0x20",
        // The standby has not asked.
        'vmlet_machines_missing{node="n",instance="b"}': "0+0x20",
      },
      at: "3m",
      fires: { node: "n" },
    },
    {
      series: {
        'vmlet_machines_missing{node="n",instance="a"}': "12+0x1 0+0x20",
        'vmlet_machines_missing{node="n",instance="b"}': "12+0x20",
      },
      at: "6m",
    },
  ],
  VmletObjectsSkipped: [
    {
      series: { 'vmlet_informer_skipped_total{instance="a",resource="pods"}': "0+0x30 1+0x60" },
      at: "60m",
      fires: { instance: "a", resource: "pods" },
    },
    { series: { 'vmlet_informer_skipped_total{instance="a",resource="pods"}': "1+0x90" }, at: "60m" },
  ],
  VmletConfigNotTaken: [
    { series: { 'vmlet_config_last_reload_successful{instance="a"}': "0+0x20" }, at: "6m", fires: { instance: "a" } },
    { series: { 'vmlet_config_last_reload_successful{instance="a"}': "1+0x20" }, at: "6m" },
  ],
  VmletConfigAwaitsRestart: [
    { series: { 'vmlet_config_fields_awaiting_restart{instance="a"}': "2+0x40" }, at: "16m", fires: { instance: "a" } },
    { series: { 'vmlet_config_fields_awaiting_restart{instance="a"}': "0+0x40" }, at: "16m" },
  ],
  VmletClockSkew: [
    { series: { 'vmlet_clock_skew_seconds{instance="a"}': "-11+0x20" }, at: "6m", fires: { instance: "a" } },
    { series: { 'vmlet_clock_skew_seconds{instance="a"}': "10+0x20" }, at: "6m" },
  ],
  VmletUnhandledErrors: [
    {
      series: { 'vmlet_unhandled_errors_total{instance="a",kind="rejection"}': "0+0x30 1+0x60" },
      at: "60m",
      fires: { instance: "a", kind: "rejection" },
    },
    { series: { 'vmlet_unhandled_errors_total{instance="a",kind="rejection"}': "1+0x90" }, at: "60m" },
  ],
  VmletPodStartSlow: [
    {
      series: {
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
        ...buckets("kubelet_pod_start_duration_seconds", 'instance="a"', {
          "120": "0+9x60",
          "300": "0+9x60",
          "+Inf": "0+9x60",
        }),
      },
      at: "30m",
    },
  ],
};

describe(`alerts, by promtool${skip}`, () => {
  test.runIf(promtool)("have rules that Prometheus accepts", async () => {
    const file = await writeRules(groups);
    const { code, stdout, stderr } = await tryCommand(promtool!, ["check", "rules", file]);
    expect(code, stdout + stderr).toBe(0);
  });

  const all = Object.entries(cases).map(([alert, [fires, silent]]) => ({ alert, fires, silent }));
  const other = { namespace: "elsewhere", job: "other-vmlet-metrics", node: "n2" };
  const trials: Record<string, (one: (typeof all)[number]) => RuleTest> = {
    "$alert fires": ({ alert, fires }) => ({ alert, wanted: fires, series: seriesOf(fires) }),
    "$alert stays silent next to its limit": ({ alert, silent }) => ({
      alert,
      wanted: silent,
      series: seriesOf(silent),
    }),

    // Prometheus scrapes the cluster's kubelets, and the nodes' own kubelet API among them.
    "$alert fires once, whatever kubelets report": ({ alert, fires, silent }) => ({
      alert,
      wanted: fires,
      series: { ...seriesOf(fires), ...ofKubelets(silent), ...ofNodes(fires) },
    }),
    "$alert stays silent, whatever kubelets report": ({ alert, fires, silent }) => ({
      alert,
      wanted: silent,
      series: { ...seriesOf(silent), ...ofKubelets(fires), ...ofNodes(silent) },
    }),

    "$alert fires for its release beside another that is well": ({ alert, fires, silent }) => ({
      alert,
      wanted: fires,
      series: { ...seriesOf(fires), ...seriesOf(silent, other) },
      from: narrowed,
    }),
    "$alert stays silent for its release beside another that is not well": ({ alert, fires, silent }) => ({
      alert,
      wanted: silent,
      series: { ...seriesOf(silent), ...seriesOf(fires, other) },
      from: narrowed,
    }),
  };

  // promtool takes longer to start than to judge, so that it judges all in one run.
  let verdicts: Map<string, string>;
  beforeAll(async () => {
    if (!promtool) return;
    const tests = Object.entries(trials).flatMap(([name, trial]) =>
      all.map((one) => [`${name} ${one.alert}`, trial(one)] as const),
    );
    verdicts = await judge(new Map(tests));
  }, 120_000);
  for (const name of Object.keys(trials))
    test.runIf(promtool).each(all)(name, ({ alert }) => {
      expect(verdicts.get(`${name} ${alert}`)).toBe("SUCCESS");
    });
});

describe("every alert", () => {
  test("has a case here", () => {
    expect(Object.keys(cases).toSorted()).toEqual(alerts.toSorted());
  });

  test("has a runbook page, and every page an alert", () => {
    expect(pages.map(([name]) => name).toSorted()).toEqual(alerts.toSorted());
  });

  test("names its page", () => {
    const base = "https://github.com/vmlet/vmlet/blob/main/helm/vmlet/runbooks";
    expect(narrowed.map((rule) => rule.annotations.runbook_url)).toEqual(alerts.map((alert) => `${base}/${alert}.md`));
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
    const [, type] = /type RelistReason =([^;]+);/.exec(await sources())!;
    const told = Object.fromEntries(pages)["VmletRelistStorm"]!.matchAll(/^- `(\w+)`/gm);
    expect(new Set([...told].map(([, reason]) => reason))).toEqual(
      new Set([...type!.matchAll(/"(\w+)"/g)].map(([, reason]) => reason)),
    );
  });

  test("name no object by the release, whose full name may be another", () => {
    expect(lines.filter(([, line]) => line.includes("RELEASE"))).toEqual([]);
  });
});

/** The agent's own source, as one text. */
async function sources(): Promise<string> {
  const src = join(import.meta.dirname, "../../../src");
  const files = (await readdir(src, { recursive: true })).filter((file) => file.endsWith(".ts"));
  return (await Promise.all(files.map((file) => readFile(join(src, file), "utf8")))).join("\n");
}

/** What Prometheus knows of where a series comes from: the release that is rendered here, unless told otherwise. */
interface Release {
  namespace: string;
  job: string;
  /** The name of its node. */
  node: string;
}
const own: Release = { namespace, job: "burst-vmlet-metrics", node: "n" };

/** What a scrape of the release's agents gives, and what kube-state-metrics says of them. */
function seriesOf(alertCase: AlertCase, release: Release = own): Record<string, string> {
  const all = { ...(alertCase.agents ?? agents), ...alertCase.series };
  return relabelled(all, (name, { instance, node, ...labels }) => ({
    ...labels,
    ...(node && { node: node === "n" ? release.node : `${release.node}-${node}` }),
    ...(instance && { instance, pod: `agent-${instance}` }),
    ...(name === "up" || isOfObjects(name) ? {} : { job: release.job }),
    ...(name === "kube_node_status_condition" ? {} : { namespace: release.namespace }),
  }));
}

/**
 * The same names from the kubelets of real nodes. Their instance may be what an agent's is, for example where it is
 * relabelled.
 */
function ofKubelets({ series }: AlertCase): Record<string, string> {
  return relabelled(series, (name, labels) =>
    /^(vmlet|up)/.test(name)
      ? undefined
      : {
          ...labels,
          ...(labels["node"] && { node: "worker-1" }),
          ...(labels["pod"] && { pod: "other" }),
          ...(isOfObjects(name) ? {} : { job: "kubelet", namespace: "kube-system" }),
        },
  );
}

/**
 * The kubelet API of the release's nodes, scraped as the kubelets are: all that the health port has but
 * vmlet_build_info.
 */
function ofNodes(alertCase: AlertCase): Record<string, string> {
  const all = { ...(alertCase.agents ?? agents), ...alertCase.series };
  return relabelled(all, (name, { instance, ...labels }) =>
    name === "vmlet_build_info" || name === "up" || isOfObjects(name)
      ? undefined
      : { ...labels, instance: `${instance!}:10250`, job: "kubelet", namespace: "kube-system" },
  );
}

/** Metrics of kube-state-metrics are about nodes and pods, not about the process that is scraped. */
const isOfObjects = (name: string) => name.startsWith("kube_");

type Labels = Record<string, string>;

/** Each series with the labels that `change` makes of its own; without it when that is undefined. */
function relabelled(
  series: Record<string, string>,
  change: (name: string, labels: Labels) => Labels | undefined,
): Record<string, string> {
  const changed = Object.entries(series).flatMap(([key, values]) => {
    const [, name, text = ""] = /^(\w+)(?:\{(.*)\})?$/.exec(key)!;
    const before = Object.fromEntries(
      [...text.matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label!, value!]),
    );
    const labels = change(name!, before);
    if (labels === undefined) return [];
    const after = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
    return [[`${name!}{${after.join(",")}}`, values] as const];
  });
  return Object.fromEntries(changed);
}

interface RuleTest {
  alert: string;
  wanted: AlertCase;
  series: Record<string, string>;
  /** Default: the rules as they stand in the chart's file. */
  from?: readonly Json[];
}

/** What promtool says of each test: `SUCCESS`, or what is wrong. */
async function judge(tests: ReadonlyMap<string, RuleTest>): Promise<Map<string, string>> {
  const files = new Map<string, string>();
  for (const [name, each] of tests) files.set(await writeRuleTest(each), name);
  // One paragraph for each file: its name on standard output, and what is wrong on standard error.
  const inOrder = ["-c", 'exec "$0" test rules "$@" 2>&1', promtool!];
  const { stdout } = await tryCommand("sh", [...inOrder, ...files.keys()]);
  const said = stdout.split(/^Unit Testing: +/m).slice(1);
  return new Map(
    said.map((paragraph) => {
      const [file = "", ...verdict] = paragraph.split("\n");
      return [files.get(file.trim())!, verdict.join("\n").trim()];
    }),
  );
}

/** The file that it is written to. */
async function writeRuleTest({ alert, wanted: { at, fires }, series, from = rules }: RuleTest): Promise<string> {
  // Annotations are left out: promtool would want their text repeated here.
  const { annotations: _, ...rule }: Json = from.find((each) => each.alert === alert);
  const file = await writeRules([{ name: "one", rules: [rule] }]);
  const target = { namespace: own.namespace, job: own.job };
  const labels = {
    ...rule.labels,
    ...fires,
    // Only an alert about what nobody scrapes has no target; one about a Node has what kube-state-metrics says.
    ...(!(alert === "VmletDown" && from === rules) && alert !== "VmletNodeNotReady" && target),
    ...(fires?.["instance"] && { pod: `agent-${fires["instance"]}` }),
  };
  const exp_alerts = fires === undefined ? [] : [{ exp_labels: labels }];
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
  return testFile;
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
  const limited = `namespace="${namespace}",pod="agent-${instance}",container="agent",resource="memory"`;
  return {
    [`process_resident_memory_bytes{instance="${instance}"}`]: `${bytes}+0x40`,
    [`kube_pod_container_resource_limits{${limited}}`]: "512000000+0x40",
  };
}

function pods(instance: string, active: string, running: string): Record<string, string> {
  return {
    [`kubelet_active_pods{instance="${instance}"}`]: active,
    [`kubelet_running_pods{instance="${instance}"}`]: running,
  };
}
