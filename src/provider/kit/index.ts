/**
 * The provider kit: what the author of a provider needs. The contract and its errors, helpers that every provider
 * wants, and the conformance checks. The providers in this repository import nothing else of `src`, but for the
 * document that both ends of the Machine API validate by.
 *
 * @example
 *   import { assertCapable, noSuchMachine, type Provider, requiredCapabilities } from "vmlet/provider-kit";
 *
 *   export function createProvider(): Provider {
 *     return {
 *       name: "mine",
 *       async createPod(id, spec) {
 *         assertCapable(requiredCapabilities(spec), []); // refuses what this provider lacks
 *         ...
 */

// The contract: what a provider implements, what a machine is, and how calls fail.
export type * from "../provider.ts";
export * from "../machine.ts";
export * from "../volume.ts";
export * from "../image.ts";
export {
  type KeptPodRanges,
  otherNodesMachine,
  PodRangeBook,
  type PodRanges,
  type PodRangesProvider,
  type PodRangesSpec,
} from "../pod-ranges.ts";
export {
  isServiceAddress,
  type ServiceAddress,
  serviceKey,
  type ServicePort,
  type Services,
  type ServicesChange,
  type ServicesDifference,
  type ServicesProvider,
  type ServicesSpec,
  ServiceTable,
} from "../services.ts";
export { ToldServices } from "../told-services.ts";
export {
  ALL_CAPABILITIES,
  CAPABILITIES,
  type Capability,
  CONTAINER_CAPABILITIES,
  SUPERVISION_CAPABILITIES,
} from "../capabilities.ts";
export {
  isProviderError,
  machineIsThere,
  noSuchContainer,
  noSuchMachine,
  ProviderError,
  type ProviderErrorCode,
} from "../errors.ts";

// What is asked of a specification, and whose a machine is.
export { specFingerprint, specIdentity } from "../fingerprint.ts";
export { assertTellable, MACHINE_BYTES, MACHINE_GROUPS, MAX_GROUPS, patchExcess, specExcess } from "../limits.ts";
export {
  clusterPrefix,
  EVERY_NAMESPACE,
  formatOwner,
  LABEL_CLUSTER,
  LABEL_NAMESPACE,
  LABEL_POD,
  LABEL_NODE,
  LABEL_UID,
  namesNamespace,
  ownerLabels,
  tenantOf,
} from "../owner.ts";
export { nodeIdOf } from "../csi-names.ts";
export { MAX_REGISTRY_KEY_LENGTH, registryHostMatches } from "../registry-hosts.ts";
export {
  assertCapable,
  assertRuntimeHandler,
  patchCapabilities,
  requiredCapabilities,
  type Requirement,
} from "../requirements.ts";

// For a provider that runs containers by itself: a kubelet's rules, probes and hooks, logs, events, tombstones.
export {
  backoffLimits,
  backOffTexts,
  containersOf,
  firstWaitingReason,
  graceMs,
  isAhead,
  isSidecar,
  type NamedContainer,
  nextRestart,
  type RestartBackoff,
  restartDecision,
  withAddresses,
} from "../container-rules.ts";
export { ENV_FILE_BYTES, type EnvFileRef, envFilesOf, MAX_ENV_FILES, withEnvFiles } from "../env-files.ts";
export { MachineEvents } from "../machine-events.ts";
export {
  runHook,
  runProbe,
  type HookContext,
  type ProbeOutcome,
  type ProbeResult,
  type Target,
} from "../probes/actions.ts";
export { Prober, type ProbeKind, type ProberEvents } from "../probes/prober.ts";
export { tombstoneOf, unseenMachine } from "../tombstone.ts";
export { VolumeBook, type VolumeBookOptions, type VolumeContents, type VolumeRecord } from "../volume-book.ts";
export {
  assertCopy,
  assertFree,
  assertMode,
  assertPossible,
  assertSize,
  heldBy,
  isGoneVolume,
  reservationsWith,
  volumeClassOf,
  type VolumeOffer,
} from "../volume-rules.ts";
export { OutputLog } from "./output-log.ts";

// Does it keep the contract?
export type { Check } from "./check.ts";
export {
  CHECKS,
  runConformance,
  type CheckResult,
  type ConformanceOptions,
  type ConformanceReport,
} from "./conformance.ts";
export { Violation } from "./context.ts";
export { describeExchange, type Exchange, ExchangeLog } from "./exchanges.ts";
export type { HttpTarget, ReplySchema } from "./http-target.ts";

// Collaborators and waiting.
export { TokenBucket } from "../../queue/rate-limit.ts";
export { SharedPlaces } from "../../queue/shared-places.ts";
export { isSubset } from "../../resources/labels.ts";
export { isLabelValue, isQualifiedName } from "../../resources/names.ts";
export { Quantity } from "../../resources/quantity.ts";
export { silentLogger, type Logger } from "../../telemetry/logger.ts";
export { readTraceContext, type TraceContext } from "../../telemetry/trace-context.ts";
export { type Attributes, traced, tracedStep, type Tracing } from "../../telemetry/tracing.ts";
export { linkAbort, onAbort, pause, unlessAborted, untilAborted, type LinkedSignal } from "../../util/abort.ts";
export {
  containsRange,
  inRanges,
  ipv4Number,
  type Ipv4Range,
  ipv4Text,
  ipv6Number,
  overlaps,
  parseIpv4Range,
  parseIpv6Range,
  type Ipv6Range,
  ipv6Text,
} from "../../util/cidr.ts";
export { bisect } from "../../util/bisect.ts";
export { systemClock, type Clock } from "../../util/clock.ts";
export { doubledMs } from "../../util/doubled.ts";
export { toError, VmletError } from "../../util/errors.ts";
export { globMatches } from "../../util/glob.ts";
export { Once } from "../../util/once.ts";
export { failure, type Result, success } from "../../util/result.ts";
export { goArchitecture } from "../../util/platform.ts";
export { Pulse } from "../../util/pulse.ts";
export { systemRandom, type Random } from "../../util/random.ts";
export { followFiles, type Reloadable } from "../../util/reloadable.ts";
export { trimEnd } from "../../util/text.ts";

// For a provider that serves, or has a configuration file of its own.
export { ConfigError, parseFile } from "../../config/load.ts";
export { tracingSchema } from "../../config/tracing-schema.ts";
export { readBody } from "../../http/body.ts";
export { Connections, type ConnectionLimits } from "../../http/connections.ts";
export { loggedPath, sendReply, whileConnected } from "../../http/exchange.ts";
export { HttpError } from "../../http/http-error.ts";
export { sendLastWords } from "../../http/last-words.ts";
export { closeWithin, listen, removeStaleSocket, urlOf, withoutHost } from "../../http/listen.ts";
export { matchRoute, type RouteMatch, type RoutePattern } from "../../http/routes.ts";
export { serverOptions, tlsContext } from "../../http/server-options.ts";
export { shareUnread } from "../../http/share-unread.ts";
export { UnreadBytes } from "../../util/unread.ts";
export { SpdySession, type SpdyStream } from "../../spdy/session.ts";
export { AuditLog, type AuditedCommand } from "../../telemetry/audit.ts";
export { certificatesFault, pairFault } from "../../util/pem.ts";
export { TLS_CIPHERS } from "../../util/tls-ciphers.ts";
export { tlsFault } from "../../util/tls-fault.ts";
export { createCertificate, privateKeyPem } from "../../util/x509.ts";
