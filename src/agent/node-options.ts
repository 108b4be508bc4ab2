/** What one virtual node is made of. */
import type { NodeConfig } from "../config/schema.ts";
import type { NodeCertificate } from "../kube/certificates.ts";
import type { EndpointCache } from "../kube/endpoints.ts";
import type { EventRecorder } from "../kube/events.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { EvictionZones } from "../pods/eviction-brake.ts";
import type { ServiceCache } from "../podspec/references/services.ts";
import type { Provider } from "../provider/provider.ts";
import type { AuditedCommand } from "../telemetry/audit.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";

/** Shared by what builds a node: node-pods.ts, node-kubelet.ts and node-object.ts. */
export interface NodeAgentOptions {
  /** Those of its fields that describe the Node object may change (`NodeAgent.describe`). */
  node: NodeConfig;
  /** The API server as this node. */
  kube: KubeTransport;
  /** The API server as the process itself. */
  self: KubeTransport;
  events: EventRecorder;
  /** Shared by the nodes of this process. */
  services: ServiceCache;
  /** The same, for backends that take Services. */
  endpoints: EndpointCache;
  evictions: EvictionZones;
  provider: Provider;
  clusterId: string;
  /** Whose agents answer for the node: `namespace/name` of their election, or else where their machines are. */
  release?: string | undefined;
  /** Whether there may be another agent of it that goes on when this one ends. */
  isReleaseElected?: boolean | undefined;
  /** Answer for it although another release does. */
  takeOver?: boolean | undefined;
  /** How much of a command the audit says. */
  auditCommands: AuditedCommand;
  version: string;
  metrics: Metrics;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  livez: HealthChecks;
  readyz: HealthChecks;
  clock: Clock;
  random: Random;
  logger: Logger;
  signal: AbortSignal;
  /** Throws when this agent has lost its leadership. */
  guard?: (() => void) | undefined;
  /** The client certificate that `kube` acts by, when it has to be kept fresh. */
  certificate?: NodeCertificate | undefined;
}
