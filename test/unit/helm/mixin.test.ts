/**
 * kubernetes-mixin's dashboard and alerts for kubelets, asked of the metrics of an agent with two nodes: each query must have an answer.
 * Left out are its panels on Go's runtime, cgroups and storage plugins, of which an agent has none.
 */
import { execFileSync } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { stringify } from "yaml";
import { kubeletVersion } from "../../../src/node/node-status.ts";
import { createMetrics, type Metrics } from "../../../src/telemetry/metrics.ts";
import { tryCommand } from "../../e2e/harness/exec.ts";

// What Prometheus adds at a scrape, by the ServiceMonitor of the chart.
const at = 'cluster="c", job="kubelet", metrics_path="/metrics"';
const quantile = (metric: string, by: string) =>
  `histogram_quantile(0.99, sum(rate(${metric}_bucket{${at}}[5m])) by (${by}, le))`;

const nodeNames = ["n", "m"];

/** dashboards/kubelet.libsonnet and alerts/kubelet.libsonnet, with their variables filled in. */
const queries: Record<string, string> = {
  "running kubelets": `sum(kubelet_node_name{${at}})`,
  "running pods": `sum(kubelet_running_pods{${at}, instance=~".+"})`,
  "running containers": `sum(kubelet_running_containers{${at}, instance=~".+"})`,
  "config errors": `sum(rate(kubelet_node_config_error{${at}}[5m])) == 0`,
  "operation rate": `sum(rate(kubelet_runtime_operations_total{${at}}[5m])) by (operation_type, instance)`,
  "operation errors": `sum(rate(kubelet_runtime_operations_errors_total{${at}}[5m])) by (instance, operation_type)`,
  "operation duration": quantile("kubelet_runtime_operations_duration_seconds", "instance, operation_type"),
  "pod start rate": `sum(rate(kubelet_pod_start_duration_seconds_count{${at}}[5m])) by (instance)`,
  "pod worker rate": `sum(rate(kubelet_pod_worker_duration_seconds_count{${at}}[5m])) by (instance)`,
  "pod start duration": quantile("kubelet_pod_start_duration_seconds", "instance"),
  "pod worker duration": quantile("kubelet_pod_worker_duration_seconds", "instance"),
  "PLEG relist rate": `sum(rate(kubelet_pleg_relist_duration_seconds_count{${at}}[5m])) by (instance)`,
  "PLEG relist interval": quantile("kubelet_pleg_relist_interval_seconds", "instance"),
  "PLEG relist duration": quantile("kubelet_pleg_relist_duration_seconds", "instance"),
  "requests to the API server": `sum(rate(rest_client_requests_total{${at}, code=~"2.."}[5m]))`,
  "request duration": quantile("rest_client_request_duration_seconds", "instance, verb"),
  memory: `process_resident_memory_bytes{${at}}`,
  cpu: `rate(process_cpu_seconds_total{${at}}[5m])`,
  "KubeletPlegDurationHigh, its recording rule": `${quantile("kubelet_pleg_relist_duration_seconds", "cluster, instance")} * on(cluster, instance) group_left(node) kubelet_node_name{${at}}`,
  KubeletPodStartUpLatencyHigh: `${quantile("kubelet_pod_worker_duration_seconds", "cluster, instance")} * on(cluster, instance) group_left(node) kubelet_node_name{${at}}`,
  KubeletServerCertificateExpiration: `kubelet_certificate_manager_server_ttl_seconds < 1e9`,
  KubeletServerCertificateRenewalErrors: `increase(kubelet_server_expiration_renew_errors[5m]) > 0`,
  KubeletClientCertificateExpiration: `kubelet_certificate_manager_client_ttl_seconds < 1e9`,
  KubeletClientCertificateRenewalErrors: `increase(kubelet_certificate_manager_client_expiration_renew_errors[5m]) > 0`,
  KubeletTooManyPods: `count by (cluster, instance) (kubelet_node_name{${at}}) + on(cluster, instance) kubelet_running_pods{${at}}`,
  "KubeletTooManyPods, by node": `max by (cluster, instance) (kubelet_running_pods{${at}}) * on(cluster, instance) group_left(node) max by (cluster, instance, node) (kubelet_node_name{${at}}) == 1`,
  "KubeVersionMismatch, beside an API server": `count(count by (git_version, cluster) (label_replace(kubernetes_build_info, "git_version", "$1", "git_version", "(v[0-9]*.[0-9]*).*"))) == 1`,
  KubeNodeEviction: `sum(rate(kubelet_evictions{${at}}[15m])) by (cluster, instance) == 0`,
};

/** One round of everything that an agent does. */
function work(metrics: Metrics, seconds: number): void {
  metrics.runningContainers.set({ container_state: "running" }, 1);
  metrics.kubernetesBuildInfo.set({ git_version: kubeletVersion("v1.35.4", "1") }, 1);
  metrics.runtimeOperations.inc({ operation_type: "createPod" });
  metrics.runtimeOperationErrors.inc({ operation_type: "createPod" });
  metrics.runtimeOperationDuration.observe({ operation_type: "createPod" }, 0.1);
  metrics.podStartDuration.observe(1);
  metrics.podWorkerDuration.observe({ operation_type: "create" }, 0.1);
  metrics.plegRelistDuration.observe(0.1);
  metrics.plegRelistInterval.observe(seconds);
  metrics.restClientRequests.inc({ code: "200", method: "GET", host: "api" });
  metrics.restClientDuration.observe({ verb: "GET", host: "api" }, 0.1);
  metrics.serverCertificateTtl.set(3600);
  metrics.clientCertificateTtl.set(3600);
  metrics.serverCertificateRenewErrors.inc();
  metrics.clientCertificateRenewErrors.inc();
}

/** Series in promtool's notation: each metric as it was at the scrapes, a minute apart. */
async function scrape(times: number): Promise<Map<string, string[]>> {
  const metrics = createMetrics({ nodeNames, version: "1" });
  // Each node runs one pod.
  metrics.onScrape((node) => metrics.runningPods.set(node === undefined ? nodeNames.length : 1));
  const series = new Map([
    ['kubernetes_build_info{cluster="c", job="apiserver", git_version="v1.35.4"}', Array(times).fill("1")],
  ]);
  for (let minute = 0; minute < times; minute++) {
    work(metrics, 60);
    for (const node of nodeNames) {
      for (const line of (await metrics.render(node)).split("\n")) {
        const [, name, labels = "", value] = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)/.exec(line) ?? [];
        if (name === undefined || value === "Nan") continue;
        const key = `${name}{${[at, `instance="kubelet-of-${node}"`, labels].filter(Boolean).join(",")}}`;
        series.set(key, [...(series.get(key) ?? []), value!]);
      }
    }
  }
  return series;
}

const hasPromtool = (() => {
  try {
    execFileSync("promtool", ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
})();

describe(`kubernetes-mixin's queries${hasPromtool ? "" : " (skipped: no promtool on the PATH)"}`, () => {
  test.runIf(hasPromtool)(
    "are all answered",
    async () => {
      const folder = await mkdtemp(join(tmpdir(), "vmlet-mixin-"));
      const [rules, tests] = [join(folder, "rules.yaml"), join(folder, "test.yaml")];
      const names = Object.keys(queries);
      const alerts = names.map((alert) => ({ alert, expr: `count(${queries[alert]!}) > 0` }));
      await writeFile(rules, stringify({ groups: [{ name: "queries", rules: alerts }] }));
      const series = await scrape(11);
      const expected = names.map((alertname) => ({ eval_time: "10m", alertname, exp_alerts: [{}] }));
      await writeFile(
        tests,
        stringify({
          rule_files: [rules],
          evaluation_interval: "1m",
          tests: [
            {
              interval: "1m",
              input_series: [...series].map(([name, values]) => ({ series: name, values: values.join(" ") })),
              alert_rule_test: expected,
            },
          ],
        }),
      );
      const { stdout, stderr } = await tryCommand("promtool", ["test", "rules", tests]);
      const unanswered = [...(stdout + stderr).matchAll(/alertname: ?(.*?), time/g)].map(([, name]) => name);
      expect([unanswered, stderr]).toEqual([[], ""]);
    },
    30_000,
  );
});
