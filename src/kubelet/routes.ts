/**
 * The table of the kubelet API: each path with its methods, the right that it needs, and the endpoint that serves it.
 */
import type { Provider } from "../provider/provider.ts";
import type { StreamLimits } from "../streaming/remote-command.ts";
import type { UnreadBytes } from "../util/unread.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import { attach } from "./endpoints/attach.ts";
import { configz } from "./endpoints/configz.ts";
import { containerLogs } from "./endpoints/container-logs.ts";
import { exec } from "./endpoints/exec.ts";
import { healthz } from "./endpoints/healthz.ts";
import { agentMetrics } from "./endpoints/metrics.ts";
import { cadvisorMetrics, type MachineCapacity } from "./endpoints/metrics-cadvisor.ts";
import { probeMetrics } from "./endpoints/metrics-probes.ts";
import { resourceMetrics } from "./endpoints/metrics-resource.ts";
import { pods } from "./endpoints/pods.ts";
import { portForward } from "./endpoints/port-forward.ts";
import { run } from "./endpoints/run.ts";
import { runningPods } from "./endpoints/running-pods.ts";
import { statsSummary } from "./endpoints/stats-summary.ts";
import type { PodLookup } from "./pod-lookup.ts";
import { SUBRESOURCES_BY_PREFIX, type AuditedAction, type Handler, type Route } from "./router.ts";
import type { Sessions } from "./sessions.ts";
import type { ContainerProbes, StatsSource } from "./metrics/stats.ts";

interface RouteDeps {
  lookup: PodLookup;
  provider: Provider;
  clock: Clock;
  metrics: Metrics;
  sessions: Sessions;
  streamLimits: StreamLimits;
  unread: UnreadBytes;
  stats: StatsSource;
  nodeName: string;
  startedAtMs: number;
  capacity: () => MachineCapacity;
  livez: HealthChecks;
  configuration: () => object;
  ownProbes: () => readonly ContainerProbes[];
}

const READ = ["GET", "HEAD"];
const UPGRADE = ["GET", "POST"];

/**
 * All of the kubelet API that a machine backend can serve (pkg/kubelet/server/server.go:
 * InstallAuthNotRequiredHandlers, InstallAuthRequiredHandlers).
 */
export function kubeletRoutes(deps: RouteDeps): readonly Route[] {
  const read = (pattern: string, handler: Handler, methods: readonly string[] = READ): Route => ({
    methods,
    pattern,
    handler,
    subresources: SUBRESOURCES_BY_PREFIX[pattern.split("/")[1]!] ?? ["proxy"],
  });
  /** Both forms of the path; a session is always `create`, and audited. */
  const session = (
    audit: AuditedAction,
    methods: readonly string[],
    patterns: readonly string[],
    handler: Handler,
  ): Route[] =>
    patterns.map((pattern) => ({ audit, methods, pattern, handler, subresources: ["proxy"], verb: "create" }));
  const inContainer = (root: string) => [
    `/${root}/:namespace/:pod/:container`,
    `/${root}/:namespace/:pod/:uid/:container`,
  ];

  const health = healthz(deps.livez);
  const resource = resourceMetrics(deps.stats);
  return [
    read("/healthz", health),
    read("/healthz/:check", health),
    read("/pods", pods(deps.lookup)),
    read("/pods/", pods(deps.lookup)),
    read("/runningpods", runningPods(deps.lookup)),
    read("/runningpods/", runningPods(deps.lookup)),
    read("/configz", configz(deps.configuration)),
    read("/stats/summary", statsSummary(deps.stats, deps), [...READ, "POST"]),
    read("/metrics", agentMetrics(deps.metrics, deps.nodeName)),
    read("/metrics/resource", resource),
    read("/metrics/resource/", resource),
    read("/metrics/cadvisor", cadvisorMetrics(deps.stats, deps.capacity)),
    read("/metrics/probes", probeMetrics(deps.lookup, deps.stats, deps.ownProbes)),
    read("/containerLogs/:namespace/:pod/:container", containerLogs(deps)),
    ...session("exec", UPGRADE, inContainer("exec"), exec(deps)),
    ...session("attach", UPGRADE, inContainer("attach"), attach(deps)),
    ...session(
      "port-forward",
      UPGRADE,
      ["/portForward/:namespace/:pod", "/portForward/:namespace/:pod/:uid"],
      portForward(deps),
    ),
    ...session("run", ["POST"], inContainer("run"), run(deps)),
  ];
}
