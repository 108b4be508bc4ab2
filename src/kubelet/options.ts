/** What a kubelet API is made of, and how much its clients may hold open. */
import type { Kube } from "../kube/kube.ts";
import type { Capability } from "../provider/capabilities.ts";
import type { Provider } from "../provider/provider.ts";
import type { AuditedCommand } from "../telemetry/audit.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import type { AuthOptions } from "./auth.ts";
import type { Reloadable } from "../util/reloadable.ts";
import type { ServingCertificate } from "./certificates/serving.ts";
import type { MachineCapacity } from "./endpoints/metrics-cadvisor.ts";
import type { ContainerProbes, SelfUsage } from "./metrics/stats.ts";
import type { PodLookup } from "./pod-lookup.ts";
import { DEFAULT_SESSION_LIMITS, type SessionLimits } from "./sessions.ts";

export interface KubeletLimits {
  /**
   * Connections in all. Default 1024. Beyond that, a new one takes the place of one on which no request has been
   * allowed yet, or, if there is none, of an idle one.
   */
  connections: number;
  /**
   * Connections of one address on which nothing was allowed yet; a new one beyond takes the place of the oldest.
   * Default 512: all users of an API server come from its one address, and a hundred may come at once. Others do not
   * count.
   */
  unauthenticatedPerAddress: number;
  /** Default 10 s. */
  headersTimeoutMs: number;
  /** Until a request is read in whole. Default 30 s. */
  requestTimeoutMs: number;
  /** A client that takes nothing of a plain reply for so long is cut off. Default 30 s. */
  responseIdleMs: number;
  /** Default 90 s, the kubelet's. */
  keepAliveMs: number;
  /** Sessions without traffic. Default 4 h, the kubelet's streamingConnectionIdleTimeout. */
  streamIdleMs: number;
  /** The greatest age of a session or of a log that is followed; then it is ended. Default: none, as in a kubelet. */
  sessionMaxAgeMs: number;
  /** How long a client may take to open its streams. Default 30 s. */
  streamCreationMs: number;
  /** Unread bytes of all sessions that are held in memory. Default 64 MiB. */
  unreadBytes: number;
  sessions: SessionLimits;
}

export const DEFAULT_LIMITS: KubeletLimits = {
  connections: 1024,
  unauthenticatedPerAddress: 512,
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 30_000,
  responseIdleMs: 30_000,
  keepAliveMs: 90_000,
  streamIdleMs: 4 * 3600_000,
  sessionMaxAgeMs: Infinity,
  streamCreationMs: 30_000,
  unreadBytes: 64 * 1024 * 1024,
  sessions: DEFAULT_SESSION_LIMITS,
};

export interface KubeletServerOptions {
  host: string;
  /** 0 takes a free one. */
  port: number;
  nodeName: string;
  provider: Provider;
  /** Whether the backend declares it; undefined while that is not known. Default: never known. */
  can?: ((capability: Capability) => boolean | undefined) | undefined;
  pods: PodLookup;
  /** For reviews. Needs `create` on tokenreviews and subjectaccessreviews. */
  kube: Kube;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  certificate: Reloadable<ServingCertificate>;
  /** Without one, or while it has no value, only bearer tokens are accepted. */
  clientCa?: Reloadable<string> | undefined;
  /**
   * Answer GET of /metrics/resource and /stats/summary without credentials. For test suites that scrape through
   * pods/proxy. Default false.
   */
  anonymousMetrics?: boolean | undefined;
  /** Select this node's machines, for one call of `getStats`. */
  machineLabels: Readonly<Record<string, string>>;
  capacity: () => MachineCapacity;
  livez: HealthChecks;
  /** vmlet's. */
  version: string;
  /** The effective KubeletConfiguration, without kind and apiVersion. */
  configuration: () => object;
  /** The tallies of the probes that the agent runs itself. */
  ownProbes?: (() => readonly ContainerProbes[]) | undefined;
  /** How much of a command the audit says. Default: its first word. */
  auditCommands?: AuditedCommand | undefined;
  auth?:
    | Pick<AuthOptions, "tokenTtlMs" | "allowTtlMs" | "denyTtlMs" | "failuresPerSecond" | "maxReviewsInFlight">
    | undefined;
  limits?: Partial<KubeletLimits> | undefined;
  selfUsage?: SelfUsage | undefined;
}
