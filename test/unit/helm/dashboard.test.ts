/** The dashboard's panels, asked of a Prometheus that scrapes one release with a standby, another release, and real kubelets. */
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { stringify } from "yaml";
import type { Json } from "../../e2e/harness/client.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { promtool, skip, unknownMetrics } from "./prometheus.ts";
import { chart } from "./render.ts";

const dashboard = JSON.parse(await readFile(join(chart, "dashboards/vmlet.json"), "utf8"));
const targets = (dashboard.panels as Json[]).flatMap((panel) =>
  (panel.targets as Json[]).map((target) => ({
    name: panel.targets.length === 1 ? panel.title : `${panel.title}, ${legendOf(target)}`,
    expr: target.expr as string,
  })),
);

/** The last word of a legend, which says what the line is when the panel has several. */
function legendOf(target: Json): string {
  return (target.legendFormat as string).split(" ").at(-1)!;
}

/** One scraped process. Counters grow by the given figure each minute; gauges keep it. */
interface Scraped {
  labels: string;
  nodes: string[];
  leads: 0 | 1;
  pods: number;
  /** Seconds since the node's lease was renewed, as this process knows. */
  leaseAge: number;
  counted: number;
  isAgent: boolean;
}

const MINUTES = 70;
const at = `${MINUTES}m`;

function seriesOf({ labels, nodes, leads, pods, leaseAge, counted, isAgent }: Scraped): Record<string, string> {
  const gauges: Record<string, number> = {
    kubelet_desired_pods: pods,
    kubelet_active_pods: pods,
    kubelet_running_pods: pods,
    nodejs_eventloop_lag_p99_seconds: counted,
    process_resident_memory_bytes: counted,
    kubelet_certificate_manager_server_ttl_seconds: counted,
    'leader_election_master_status{name="l"}': leads,
    'vmlet_machines{state="running"}': pods,
    'vmlet_streams{type="exec"}': counted,
    ...(isAgent && { 'vmlet_build_info{version="1"}': 1 }),
  };
  for (const node of nodes) {
    gauges[`kubelet_node_name{node="${node}"}`] = 1;
    gauges[`vmlet_backend_up{node="${node}"}`] = 1;
  }
  const perSecond: Record<string, number> = {
    'vmlet_reconcile_total{result="settled"}': counted,
    'vmlet_backend_requests_total{op="get_machine",code="ok"}': counted,
    'rest_client_requests_total{code="200"}': counted,
    vmlet_machines_leaked_total: counted,
    vmlet_machines_lost_total: counted,
  };
  for (const histogram of ["kubelet_pod_start_duration_seconds", "vmlet_backend_request_duration_seconds"]) {
    const op = histogram.startsWith("vmlet") ? 'op="get_machine",' : "";
    // All between the two buckets: the median is in the middle.
    perSecond[`${histogram}_bucket{${op}le="1"}`] = 0;
    perSecond[`${histogram}_bucket{${op}le="${1 + counted}"}`] = counted;
    perSecond[`${histogram}_bucket{${op}le="+Inf"}`] = counted;
  }
  return Object.fromEntries([
    ...Object.entries(gauges).map(([key, value]) => [labelled(key, labels), `${value}x${MINUTES}`]),
    ...Object.entries(perSecond).map(([key, value]) => [labelled(key, labels), `0+${value * 60}x${MINUTES}`]),
    ...nodes.map((node) => [
      labelled(`vmlet_lease_last_renew_timestamp_seconds{node="${node}"}`, labels),
      `${-leaseAge}+60x${MINUTES}`,
    ]),
  ]) as Record<string, string>;
}

const labelled = (key: string, labels: string) =>
  key.endsWith("}") ? key.replace(/\}$/, `,${labels}}`) : `${key}{${labels}}`;

const release = { namespace: "v", job: "burst-vmlet-metrics" };
const targetOf = (namespace: string, job: string, instance: string) =>
  `namespace="${namespace}",job="${job}",instance="${instance}",pod="agent-${instance}"`;
const agent = { nodes: ["n"], counted: 1, isAgent: true };
const scraped: Scraped[] = [
  { ...agent, labels: targetOf(release.namespace, release.job, "a"), leads: 1, pods: 5, leaseAge: 7 },
  { ...agent, labels: targetOf(release.namespace, release.job, "b"), leads: 0, pods: 4, leaseAge: 500 },
  { ...agent, labels: targetOf("w", "other-vmlet-metrics", "c"), nodes: ["m"], leads: 1, pods: 9, leaseAge: 9 },
  // The node's kubelet API, and a real kubelet, whose instance is relabelled to what an agent's is.
  { ...agent, labels: 'namespace="kube-system",job="kubelet",instance="a:10250"', leads: 1, pods: 5, leaseAge: 7 },
  {
    ...agent,
    labels: 'namespace="kube-system",job="kubelet",instance="a"',
    nodes: ["worker-1"],
    leads: 1,
    pods: 90,
    leaseAge: 90,
  },
].map((each, index) => (index < 3 ? each : { ...each, isAgent: false, counted: 1000 })) as Scraped[];
const series = Object.assign({}, ...scraped.map(seriesOf)) as Record<string, string>;

const [a, b] = ["a", "b"].map((instance) => targetOf(release.namespace, release.job, instance));
const pods = [`{namespace="${release.namespace}",job="${release.job}"}`, 5] as const;
const both = (metric: string) => [a, b].map((labels) => [`${metric}{${labels}}`, 1] as const);

/** What each target of each panel shows of the release: samples by their labels. */
const shown: Record<string, (readonly [labels: string, value: number])[]> = {
  Nodes: [["{}", 1]],
  Leaders: [["{}", 1]],
  "Seconds since the oldest lease renewal": [["{}", 7]],
  "Backends that answer": [["{}", 1]],
  "Pods, bound": [pods],
  "Pods, active": [pods],
  "Pods, running": [pods],
  Machines: [['{state="running"}', 5]],
  "Pod start, p50": [["{}", 1.5]],
  "Pod start, p99": [["{}", 1.99]],
  "Passes over pods": [['{result="settled"}', 2]],
  "Backend calls": [['{op="get_machine",code="ok"}', 2]],
  "Backend latency, p99": [['{op="get_machine"}', 1.99]],
  "API server requests": [['{code="200"}', 2]],
  "Kubelet API sessions": [['{type="exec"}', 2]],
  "Leaked and lost machines, leaked": [["{}", 7200]],
  "Leaked and lost machines, lost": [["{}", 7200]],
  "Event loop lag, p99": both("nodejs_eventloop_lag_p99_seconds"),
  Memory: both("process_resident_memory_bytes"),
  "Serving certificate: time left": both("kubelet_certificate_manager_server_ttl_seconds"),
};

describe(`the dashboard${skip}`, () => {
  test("asks for metrics that there are", () => {
    expect(targets.flatMap(({ expr }) => unknownMetrics(expr))).toEqual([]);
  });

  test("has an expectation here for each of its targets", () => {
    expect(targets.map(({ name }) => name)).toEqual(Object.keys(shown));
  });

  test("lets one choose namespace, release and node", () => {
    const variables = dashboard.templating.list as Json[];
    expect(variables.map(({ name }) => name)).toEqual(["datasource", "namespace", "release", "node"]);
  });

  test.runIf(promtool).each(targets)(
    "$name: of the chosen release alone, each agent once",
    ({ name, expr }) => ask(expr, { ...release, node: ".*" }, shown[name]!),
    30_000,
  );

  test.runIf(promtool)("shows all releases when none is chosen, and no kubelet", async () => {
    const nodes = targets.find(({ name }) => name === "Nodes")!.expr;
    await ask(nodes, { namespace: ".*", job: ".*", node: ".*" }, [["{}", 2]]);
  });

  test.runIf(promtool)("shows of a chosen node the agents that serve it", async () => {
    const machines = targets.find(({ name }) => name === "Machines")!.expr;
    await ask(machines, { namespace: ".*", job: ".*", node: "m" }, [['{state="running"}', 9]]);
  });
});

async function ask(
  expr: string,
  chosen: { namespace: string; job: string; node: string },
  samples: readonly (readonly [labels: string, value: number])[],
): Promise<void> {
  const file = join(await mkdtemp(join(tmpdir(), "vmlet-dashboard-")), "test.yaml");
  const filled = expr
    .replaceAll("$namespace", chosen.namespace)
    .replaceAll("$release", chosen.job)
    .replaceAll("$node", chosen.node);
  const exp_samples = samples.map(([labels, value]) => ({ labels, value }));
  const test = {
    interval: "1m",
    input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
    promql_expr_test: [{ expr: filled, eval_time: at, exp_samples }],
  };
  await writeFile(file, stringify({ rule_files: [], evaluation_interval: "1m", tests: [test] }));
  await runCommand(promtool!, ["test", "rules", file]);
}
