/**
 * The agent's own metrics: one registry per agent, every metric named here and nowhere else, so that names, buckets and
 * label sets can be reviewed in one place. Metrics that mean the same as a kubelet's carry the kubelet's name, so that
 * the kubernetes-mixin dashboards and alerts work; the rest begin with `vmlet_`.
 *
 * Labels are bounded: no pod, UID, namespace or image labels here. Per-pod figures belong to /metrics/resource and
 * /stats/summary, which are made afresh for every scrape. Units are seconds and bytes.
 */
import Counter from "prom-client/lib/counter.js";
import Gauge from "prom-client/lib/gauge.js";
import Histogram from "prom-client/lib/histogram.js";
import Registry from "prom-client/lib/registry.js";
import { collectProcessFigures } from "./process-figures.ts";

interface MetricsOptions {
  /** The nodes of this process. */
  nodeNames: readonly string[];
  /** Version of this program, for `vmlet_build_info`. */
  version: string;
  /** Include figures of this process (CPU, memory, event loop). Default true. */
  process?: boolean | undefined;
}

/** kubelet's buckets of the pod start latencies. */
const POD_START_BUCKETS = [
  0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
];
const LATENCY_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];
const WORKQUEUE_BUCKETS = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10];
const STATUS_SYNC_BUCKETS = [0.01, 0.05, 0.1, 0.5, 1, 2, 3, 4, 5, 10, 20, 30, 45, 60];
const REST_CLIENT_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];

/** Lines of the exposition that the kubelet API of a node leaves out. */
const OF_THE_PROCESS = /^(# (HELP|TYPE) )?vmlet_build_info\b/;

/**
 * Builds the registry with every metric in it.
 *
 * @example
 * const metrics = createMetrics({ nodeNames: ["vm-1"], version: "0.1.0" });
 * metrics.podStartDuration.observe(1.2);
 * metrics.runtimeOperations.inc({ operation_type: "create_vm" });
 * metrics.workqueue.depth.set({ name: "pods" }, 3);
 */
export function createMetrics(options: MetricsOptions) {
  const registry = new Registry();
  if (options.process ?? true) collectProcessFigures(registry);

  const make = makers([registry]);
  const { gauge } = make;
  const nodeName = gauge("kubelet_node_name", "The node's name. The count is always 1.", ["node"]);
  for (const node of options.nodeNames) nodeName.set({ node }, 1);
  gauge("vmlet_build_info", "Version of this agent. The value is always 1.", ["version"]).set(
    { version: options.version },
    1,
  );
  // Counters in the kubelet, whose old names lack `_total`. As gauges they keep the name that the alerts ask for.
  gauge(
    "kubelet_evictions",
    "Pods evicted by the node for lack of its resources: machines do not share any, so always 0.",
  ).set(0);
  const beforeScrape = new Set<(node: string | undefined) => void>();
  const ofNodes = nodeMetrics(make);
  const ofBackends = backendMetrics(make);
  const queues = queueMetrics(make);

  return {
    registry,

    /**
     * Calls `update` before each rendering: for gauges that are cheaper to compute when asked than to keep current. It
     * is told whose kubelet is asked, undefined when the process is, and must not wait: another scrape may come
     * meanwhile.
     *
     * @returns ends that
     */
    onScrape(update: (node: string | undefined) => void): () => void {
      beforeScrape.add(update);
      return () => void beforeScrape.delete(update);
    },

    /** A node that this process serves from now on. */
    addNode(node: string): void {
      nodeName.set({ node }, 1);
    },

    /** One that it serves no more: what was last known of it would be taken for its state. */
    removeNode(node: string): void {
      const { leaseLastRenew, nodeLeaving } = ofNodes;
      const { backendUp, machinesMissing } = ofBackends;
      for (const each of [nodeName, leaseLastRenew, nodeLeaving, backendUp, machinesMissing]) each.remove({ node });
      for (const each of [queues.depth, queues.unfinishedWork, queues.longestRunning]) each.remove({ name: node });
    },

    /**
     * The exposition text (content type `registry.contentType`): of the process, or as the kubelet of one of its nodes
     * gives it. Then no series tells of another node, because dashboards take the scraped kubelet for that of the one
     * node that it names, and none of the process as such, because alerts and dashboards of the process know its target
     * by `vmlet_build_info`: they must not count it again for each node that is scraped too. Counters and histograms
     * without a node label are those of the process in either case.
     */
    async render(node?: string): Promise<string> {
      for (const update of beforeScrape) update(node);
      const text = await registry.metrics();
      if (node === undefined) return text;
      const lines = text.split("\n");
      return lines
        .filter(
          (line) => !OF_THE_PROCESS.test(line) && [undefined, node].includes(/[{,]node="([^"]*)"/.exec(line)?.[1]),
        )
        .join("\n");
    },

    ...podMetrics(make),
    ...ofBackends,
    ...kubeletMetrics(make),
    ...apiServerMetrics(make),
    ...ofNodes,
    ...configMetrics(make),
    eventLoopLag: eventLoopMetrics(make),
    workqueue: queues,
  };
}

type Make = ReturnType<typeof makers>;

/** By the names that prom-client gives them in all Node.js programs. */
function eventLoopMetrics({ gauge }: Make) {
  const of = (name: string, what: string) =>
    gauge(`nodejs_eventloop_lag_${name}`, `${what} of what the event loop's delays were since the last scrape.`);
  return {
    last: gauge("nodejs_eventloop_lag_seconds", "Lag of event loop in seconds."),
    min: of("min_seconds", "The minimum"),
    max: of("max_seconds", "The maximum"),
    mean: of("mean_seconds", "The mean"),
    stddev: of("stddev_seconds", "The standard deviation"),
    p50: of("p50_seconds", "The 50th percentile"),
    p90: of("p90_seconds", "The 90th percentile"),
    p99: of("p99_seconds", "The 99th percentile"),
  };
}

function makers(registers: Registry[]) {
  return {
    counter: <L extends string = never>(name: string, help: string, labelNames: readonly L[] = []) =>
      new Counter<L>({ name, help, labelNames, registers }),
    gauge: <L extends string = never>(name: string, help: string, labelNames: readonly L[] = []) =>
      new Gauge<L>({ name, help, labelNames, registers }),
    histogram: <L extends string = never>(
      name: string,
      help: string,
      buckets: number[],
      labelNames: readonly L[] = [],
    ) => new Histogram<L>({ name, help, buckets, labelNames, registers }),
  };
}

/** Of pods, and of the work on them. */
function podMetrics({ counter, gauge, histogram }: Make) {
  return {
    runningPods: gauge("kubelet_running_pods", "Pods whose machine was seen running."),
    runningContainers: gauge("kubelet_running_containers", "Containers by state.", ["container_state"]),
    desiredPods: gauge("kubelet_desired_pods", "Pods bound to this node by the API server."),
    activePods: gauge("kubelet_active_pods", "Pods bound to this node that are not in a terminal phase."),
    workingPods: gauge("kubelet_working_pods", "Pods with a reconciler of their own, terminating ones included."),
    startedPods: counter("kubelet_started_pods_total", "Machines that were asked to start."),
    startedPodErrors: counter(
      "kubelet_started_pods_errors_total",
      "Machine starts that failed, by provider error code.",
      ["code"],
    ),
    startedUserNamespacedPods: counter(
      "kubelet_started_user_namespaced_pods_total",
      "Machines with users of their own (hostUsers: false) that were asked to start.",
    ),
    startedUserNamespacedPodErrors: counter(
      "kubelet_started_user_namespaced_pods_errors_total",
      "Starts of machines with users of their own, and of their containers, that failed.",
    ),
    terminatedContainers: counter("kubelet_terminated_containers_total", "Containers that have ended.", [
      "container_type",
      "exit_code",
      "reason",
    ]),
    pendingResizes: gauge(
      "kubelet_pod_pending_resizes",
      "Resizes that wait for room (deferred) or never get it (infeasible).",
      ["reason", "priority_bucket"],
    ),
    resizesInProgress: gauge("kubelet_pod_in_progress_resizes", "Resizes that the backend has begun."),
    deferredAcceptedResizes: counter(
      "kubelet_pod_deferred_accepted_resizes_total",
      "Resizes that were accepted after being deferred.",
      ["retry_trigger"],
    ),
    deferredResizeDuration: histogram(
      "kubelet_pod_deferred_resize_duration_seconds",
      "How long a resize was deferred until it was accepted or reverted, or its pod was over.",
      [5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600],
      ["resolution", "priority_bucket"],
    ),
    orphanedRuntimePods: counter("kubelet_orphaned_runtime_pods_total", "Machines swept because no pod owned them."),
    podStartDuration: histogram(
      "kubelet_pod_start_duration_seconds",
      "From first sight of a pod to running.",
      POD_START_BUCKETS,
    ),
    podStartSliDuration: histogram(
      "kubelet_pod_start_sli_duration_seconds",
      "From first sight of a pod to running, without image pull and machine boot.",
      POD_START_BUCKETS,
    ),
    podStartTotalDuration: histogram(
      "kubelet_pod_start_total_duration_seconds",
      "From creation of a pod to running.",
      POD_START_BUCKETS,
    ),
    podWorkerDuration: histogram(
      "kubelet_pod_worker_duration_seconds",
      "One pass of a pod's reconciler.",
      LATENCY_BUCKETS,
      ["operation_type"],
    ),
    podWorkerStartDuration: histogram(
      "kubelet_pod_worker_start_duration_seconds",
      "From first sight of a pod to its first pass.",
      LATENCY_BUCKETS,
    ),
    podStatusSyncDuration: histogram(
      "kubelet_pod_status_sync_duration_seconds",
      "From a change of a pod's status to its acknowledgement by the API server.",
      STATUS_SYNC_BUCKETS,
    ),
    reconciles: counter("vmlet_reconcile_total", "Passes of pod reconcilers.", ["result"]),
    stuckPods: gauge("vmlet_reconcile_stuck_pods", "Pods whose reconciler failed ten times in a row or more."),
    referencesDenied: counter(
      "vmlet_references_denied_total",
      "Reads of Secrets and ConfigMaps of pods that the API server forbade.",
    ),
    tokenFailures: counter(
      "vmlet_token_failures_total",
      "Service-account tokens of pods that were asked for in vain; one that is over meanwhile has an event FailedMount.",
    ),
    unsupportedSpecs: counter("vmlet_unsupported_specs_total", "Pods refused because the backend lacks a capability.", [
      "feature",
    ]),
  };
}

/** Of the backend: in the kubelet's words first, then in ours. */
function backendMetrics({ counter, gauge, histogram }: Make) {
  return {
    plegRelistDuration: histogram(
      "kubelet_pleg_relist_duration_seconds",
      "One listing of the backend's machines.",
      LATENCY_BUCKETS,
    ),
    plegRelistInterval: histogram(
      "kubelet_pleg_relist_interval_seconds",
      "Between two listings of the backend's machines.",
      LATENCY_BUCKETS,
    ),
    plegLastSeen: gauge(
      "kubelet_pleg_last_seen_seconds",
      "Unix time of the last listing of the backend that succeeded.",
    ),
    runtimeOperations: counter("kubelet_runtime_operations_total", "Provider calls.", ["operation_type"]),
    runtimeOperationErrors: counter("kubelet_runtime_operations_errors_total", "Provider calls that failed.", [
      "operation_type",
    ]),
    runtimeOperationDuration: histogram(
      "kubelet_runtime_operations_duration_seconds",
      "Time of provider calls.",
      LATENCY_BUCKETS,
      ["operation_type"],
    ),
    backendUp: gauge("vmlet_backend_up", "1 when the node's backend answers.", ["node"]),
    backendRequests: counter(
      "vmlet_backend_requests_total",
      "Calls of the backend by result: ok or a provider error code.",
      ["op", "code"],
    ),
    backendDuration: histogram(
      "vmlet_backend_request_duration_seconds",
      "Time of calls of the backend.",
      LATENCY_BUCKETS,
      ["op"],
    ),
    backendInflight: gauge("vmlet_backend_inflight", "Calls of the backend under way."),
    backendInvalidResponses: counter(
      "vmlet_backend_invalid_responses_total",
      "Replies of the backend that broke the contract.",
      ["reason"],
    ),
    machines: gauge("vmlet_machines", "Machines by state.", ["state"]),
    machineCost: gauge(
      "vmlet_machine_cost",
      "What the machines of a node that are there cost by the hour, in the backend's currency.",
      ["node", "instance_type", "zone"],
    ),
    machinesLeaked: counter("vmlet_machines_leaked_total", "Machines found without an owner."),
    machinesLost: counter("vmlet_machines_lost_total", "Machines that vanished while their pod wanted them."),
    machinesMissing: gauge(
      "vmlet_machines_missing",
      "Machines that the backend lacks, too many at once to be believed lost.",
      ["node"],
    ),
  };
}

/** Of the kubelet's API and its certificates. */
function kubeletMetrics({ counter, gauge, histogram }: Make) {
  const certificateTtl = (side: "server" | "client", name: string) => {
    const ttl = gauge(
      `kubelet_certificate_manager_${side}_ttl_seconds`,
      `Until the ${name} certificate expires; negative when it has, +Inf when there is none.`,
    );
    ttl.set(Infinity);
    return ttl;
  };
  return {
    serverCertificateTtl: certificateTtl("server", "serving"),
    clientCertificateTtl: certificateTtl("client", "client"),
    serverCertificateRenewErrors: gauge(
      "kubelet_server_expiration_renew_errors",
      "Renewals of the serving certificate that failed.",
    ),
    clientCertificateRenewErrors: gauge(
      "kubelet_certificate_manager_client_expiration_renew_errors",
      "Renewals of the client certificate that failed.",
    ),
    httpRequests: counter("kubelet_http_requests_total", "Requests to the kubelet API.", [
      "method",
      "path",
      "server_type",
      "long_running",
    ]),
    httpDuration: histogram(
      "kubelet_http_requests_duration_seconds",
      "Time to serve requests to the kubelet API.",
      LATENCY_BUCKETS,
      ["method", "path", "server_type", "long_running"],
    ),
    httpInflight: gauge("kubelet_http_inflight_requests", "Requests to the kubelet API being served.", [
      "method",
      "path",
      "server_type",
      "long_running",
    ]),
    streams: gauge("vmlet_streams", "Open exec, attach, port-forward and log sessions.", ["type"]),
    streamsRejected: counter("vmlet_streams_rejected_total", "Sessions refused by a limit.", ["reason"]),
    authnDecisions: counter("vmlet_authn_decisions_total", "Authentications of the kubelet API.", ["result"]),
    authzDecisions: counter("vmlet_authz_decisions_total", "Authorisations of the kubelet API.", ["result"]),
  };
}

/** Of what is asked of the API server. */
function apiServerMetrics({ counter, gauge, histogram }: Make) {
  return {
    restClientRequests: counter("rest_client_requests_total", "Requests to the API server.", [
      "code",
      "method",
      "host",
    ]),
    restClientDuration: histogram(
      "rest_client_request_duration_seconds",
      "Time of requests to the API server.",
      REST_CLIENT_BUCKETS,
      ["verb", "host"],
    ),
    restClientRateLimiterDuration: histogram(
      "rest_client_rate_limiter_duration_seconds",
      "Time that requests to the API server waited for the client's rate limiter.",
      REST_CLIENT_BUCKETS,
      ["verb", "host"],
    ),
    restClientRetries: counter("rest_client_request_retries_total", "Requests to the API server sent again.", [
      "code",
      "verb",
      "host",
    ]),
    informerLastEvent: gauge(
      "vmlet_informer_last_event_timestamp_seconds",
      "Unix time of the last watch event or bookmark.",
      ["resource"],
    ),
    informerRelists: counter("vmlet_informer_relists_total", "Full lists after the first.", ["resource", "reason"]),
    watchStarts: counter("vmlet_watch_starts_total", "Watches opened.", ["resource"]),
    watchErrors: counter("vmlet_watch_errors_total", "Watches that broke.", ["resource"]),
    informerSkipped: counter(
      "vmlet_informer_skipped_total",
      "Objects and events of lists and watches that were left out: without UID, of another node, of unknown type, or larger than any legal one.",
      ["resource"],
    ),
    eventsDropped: counter(
      "vmlet_events_dropped_total",
      "Events about pods and the node that were not sent: queue_full, spam, rejected or unreachable.",
      ["reason"],
    ),
  };
}

/** Of nodes, and of this process. */
function nodeMetrics({ counter, gauge, histogram }: Make) {
  return {
    leaseRenewDuration: histogram(
      "vmlet_lease_renew_duration_seconds",
      "Time of one renewal of the node's lease.",
      LATENCY_BUCKETS,
    ),
    leaseLastRenew: gauge(
      "vmlet_lease_last_renew_timestamp_seconds",
      "Unix time of the last renewal of the node's lease that succeeded.",
      ["node"],
    ),
    clockSkew: gauge(
      "vmlet_clock_skew_seconds",
      "How far this host's clock is ahead of the API server's, by the last reply to a lease; whole seconds.",
    ),
    kubernetesBuildInfo: gauge(
      "kubernetes_build_info",
      "Version of the kubelet that the node reports. The value is always 1.",
      ["git_version"],
    ),
    nodeLeaving: gauge(
      "vmlet_node_leaving",
      "1 when the node was taken out of the configuration and is served until nothing of it is left.",
      ["node"],
    ),
    nodeRegistrations: counter("vmlet_node_registrations_total", "Times that the Node object was created."),
    leaderElectionMaster: gauge("leader_election_master_status", "1 when this replica leads.", ["name"]),
    unhandledErrors: counter(
      "vmlet_unhandled_errors_total",
      "Errors of foreign code, such as a provider module, that nobody caught: rejection or exception.",
      ["kind"],
    ),
    logLinesDropped: counter(
      "vmlet_log_lines_dropped_total",
      "Log lines that could not be written, because nobody read them or the disk was full.",
    ),
  };
}

/** Of the configuration file, which is read again when it changes; the first names are Prometheus' own. */
function configMetrics({ gauge }: Make) {
  const configReloadSuccessful = gauge(
    "vmlet_config_last_reload_successful",
    "1 when the configuration file as it is now could be used; else the one before stays in use.",
  );
  // That of the start was, or there would be no metrics.
  configReloadSuccessful.set(1);
  return {
    configReloadSuccessful,
    configReloadSuccessTime: gauge(
      "vmlet_config_last_reload_success_timestamp_seconds",
      "Unix time at which a configuration was last taken.",
    ),
    configRestartRequired: gauge(
      "vmlet_config_fields_awaiting_restart",
      "Fields of the configuration file that differ from those in use and cannot change while the process runs.",
    ),
    nodeConfigError: gauge(
      "kubelet_node_config_error",
      "1 when the configuration file as it is now could not be used.",
    ),
  };
}

/** Of each work queue, by its name. */
function queueMetrics({ counter, gauge, histogram }: Make) {
  return {
    depth: gauge("workqueue_depth", "Keys waiting.", ["name"]),
    adds: counter("workqueue_adds_total", "Keys added.", ["name"]),
    queueDuration: histogram("workqueue_queue_duration_seconds", "Time that keys waited.", WORKQUEUE_BUCKETS, ["name"]),
    workDuration: histogram("workqueue_work_duration_seconds", "Time to handle a key.", WORKQUEUE_BUCKETS, ["name"]),
    unfinishedWork: gauge("workqueue_unfinished_work_seconds", "Sum of the ages of the keys being handled.", ["name"]),
    longestRunning: gauge("workqueue_longest_running_processor_seconds", "Age of the oldest key being handled.", [
      "name",
    ]),
    retries: counter("workqueue_retries_total", "Keys added again after a failure.", ["name"]),
  };
}

export type Metrics = ReturnType<typeof createMetrics>;

/**
 * A fresh registry without process figures: for tests and tools that need a `Metrics` but read none.
 * @internal
 */
export function unusedMetrics(): Metrics {
  return createMetrics({ nodeNames: [], version: "", process: false });
}
