/**
 * The table of the kubelet API: each path with its methods, the right that it needs, and the endpoint that serves it.
 */
import type { StreamLimits } from "../streaming/remote-command.ts";
import type { UnreadBytes } from "../util/unread.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import type { Abilities } from "./endpoints/ability.ts";
import { attach } from "./endpoints/attach.ts";
import { configz } from "./endpoints/configz.ts";
import { containerLogs } from "./endpoints/container-logs.ts";
import { exec } from "./endpoints/exec.ts";
import { healthz } from "./endpoints/healthz.ts";
import { agentMetrics } from "./endpoints/metrics.ts";
import { cadvisorMetrics, type MachineCapacity } from "./endpoints/metrics-cadvisor.ts";
import { probeMetrics } from "./endpoints/metrics-probes.ts";
import { resourceMetrics } from "./endpoints/metrics-resource.ts";
import { hostLogs } from "./endpoints/logs.ts";
import { pods } from "./endpoints/pods.ts";
import { portForward } from "./endpoints/port-forward.ts";
import { run } from "./endpoints/run.ts";
import { runningPods } from "./endpoints/running-pods.ts";
import { statusz } from "./endpoints/statusz.ts";
import { statsSummary } from "./endpoints/stats-summary.ts";
import type { PodLookup } from "./pod-lookup.ts";
import { SUBRESOURCES_BY_PREFIX, type AuditedAction, type Handler, type Route } from "./router.ts";
import type { Sessions } from "./sessions.ts";
import type { ContainerProbes, StatsSource } from "./metrics/stats.ts";

interface RouteOptions extends Abilities {
  lookup: PodLookup;
  clock: Clock;
  metrics: Metrics;
  sessions: Sessions;
  streamLimits: StreamLimits;
  unread: UnreadBytes;
  stats: StatsSource;
  nodeName: string;
  startedAtMs: number;
  version: string;
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
export function kubeletRoutes(options: RouteOptions): readonly Route[] {
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

  const health = healthz(options.livez);
  const resource = resourceMetrics(options.stats);
  return [
    read("/healthz", health),
    read("/healthz/:check", health),
    read("/pods", pods(options.lookup)),
    read("/pods/", pods(options.lookup)),
    read("/runningpods", runningPods(options.lookup)),
    read("/runningpods/", runningPods(options.lookup)),
    read("/configz", configz(options.configuration)),
    read("/statusz", statusz(options)),
    ...["/logs", "/logs/", "/logs/:file"].map((pattern) => read(pattern, hostLogs)),
    read("/stats/summary", statsSummary(options.stats, options), [...READ, "POST"]),
    read("/metrics", agentMetrics(options)),
    read("/metrics/resource", resource),
    read("/metrics/resource/", resource),
    read("/metrics/cadvisor", cadvisorMetrics(options.stats, options.capacity)),
    read("/metrics/probes", probeMetrics(options.lookup, options.stats, options.ownProbes)),
    read("/containerLogs/:namespace/:pod/:container", containerLogs(options)),
    ...session("exec", UPGRADE, inContainer("exec"), exec(options)),
    ...session("attach", UPGRADE, inContainer("attach"), attach(options)),
    ...session(
      "port-forward",
      UPGRADE,
      ["/portForward/:namespace/:pod", "/portForward/:namespace/:pod/:uid"],
      portForward(options),
    ),
    ...session("run", ["POST"], inContainer("run"), run(options)),
  ];
}
