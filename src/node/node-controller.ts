/**
 * Keeps the virtual Node in the API server: registers it, reports its status, renews its lease, and registers it again
 * when it is deleted. What the Node looks like is decided in `node-status.ts`; here is when and how it is written.
 */
import { ConfigError } from "../config/load.ts";
import { isAlreadyExists, isConflict, isForbidden, isNotFound } from "../kube/errors.ts";
import type { EventRecorder } from "../kube/events.ts";
import type { Kube } from "../kube/kube.ts";
import { strategicPatch } from "../kube/patch.ts";
import { nodePath, nodesPath } from "../kube/paths.ts";
import { Reflector } from "../kube/reflector.ts";
import { Store } from "../kube/store.ts";
import type { Node } from "../kube/wire.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { untilAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { Pulse } from "../util/pulse.ts";
import type { Random } from "../util/random.ts";
import type { CapacitySource, NodeCapacity } from "./capacity.ts";
import { CsiNodeWriter } from "./csi-node.ts";
import { ResourceSlices } from "./resource-slices.ts";
import { LEASE_DURATION_SECONDS, NodeLease } from "./lease.ts";
import { NodeSpec } from "./node-spec.ts";
import type { VolumesInUse } from "./volumes-in-use.ts";
import type { BackendHealth, BackendReport, NodeDescription, NodeSettings } from "./settings.ts";
import {
  RELEASE_ANNOTATION,
  extendedNames,
  kubeletVersion,
  foreignIdentity,
  foreignNodeCure,
  newNode,
  nodeAnnotations,
  nodeLabels,
  nodeStatus,
  otherRelease,
  providerId,
  statusPatch,
  type NodeObservation,
} from "./node-status.ts";

interface NodeMetrics {
  onRegistered(): void;
  /** Which version the node reports, as soon as the API server has told its own. */
  onKubeletVersion(version: string): void;
  onLeaseRenewed(seconds: number): void;
}

interface NodeControllerOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  events: Pick<EventRecorder, "event">;
  settings: NodeSettings;
  capacity: CapacitySource;
  /** What the backend is; asked whenever the Node is looked at. */
  report: () => BackendReport;
  /** Whether it answers. */
  backend: BackendHealth;
  metrics?: NodeMetrics | undefined;
  /** What the Node says of volumes that machines have; undefined: nothing. */
  volumes?: Pick<VolumesInUse, "wanted" | "isNews" | "told"> | undefined;
}

// The kubelet's frequencies (nodeStatusUpdateFrequency, nodeStatusReportFrequency, fast status update).
export const STATUS_UPDATE_MS = 10_000;
export const STATUS_REPORT_MS = 300_000;
const FAST_MS = 100;
const FAST_FOR_MS = 120_000;
/** A backend that fails a call or two is not worth an event. */
const BLIP_MS = 10_000;
const DEFAULT_GRACE_MS = 600_000;

type Condition = NonNullable<NonNullable<Node["status"]>["conditions"]>[number];

export class NodeController {
  /** The own Node as the API server has it: one object, or none. */
  readonly store: Store<Node>;
  readonly lease: NodeLease;
  readonly #options: NodeControllerOptions;
  readonly #reflector: Reflector<Node>;
  /** Extended resources that this process has reported. */
  readonly #reported = new Set<string>();
  #kubeletVersion: string | undefined;
  #uid: string | undefined;
  #ready: boolean | undefined;
  /** Whether the last event said so. */
  #unschedulable = false;
  /** What was last told of, and the version of the Node that it was a change of. */
  #announced: { of: string | undefined; status: Node["status"] } | undefined;
  /** After a failure the cached Node is not trusted: it may be what the failure was about. */
  #readLive = true;
  #reportDueAt = 0;
  readonly #claimed = Promise.withResolvers<void>();
  /** No other release's agents live that answer for the Node, or it is taken over from them. */
  readonly #admitted = Promise.withResolvers<void>();
  /** The release that answered for the Node before, until this one is written. */
  #predecessor: string | undefined;
  readonly #wake = new Pulse();
  #isRefreshDue = false;
  #lastSyncAt: number | undefined;
  #isLeaving = false;
  #isGone = false;
  readonly #spec: NodeSpec;
  readonly #csiNode: CsiNodeWriter;
  readonly #resourceSlices: ResourceSlices;

  constructor(options: NodeControllerOptions) {
    this.#options = options;
    const { kube, clock, random, logger, settings, metrics } = options;
    this.store = new Store<Node>({ logger });
    const warn = (reason: string, message: string) =>
      options.events.event(this.#reference(), "Warning", reason, message);
    this.#spec = new NodeSpec({ kube, logger, warn });
    this.#csiNode = new CsiNodeWriter({ kube, clock, logger, warn });
    this.#resourceSlices = new ResourceSlices({ node: settings.name, kube, clock, logger });
    this.#reflector = new Reflector<Node>({
      kube,
      path: nodesPath(),
      query: { fieldSelector: `metadata.name=${settings.name}` },
      store: this.store,
      clock,
      random,
      logger,
      accept: (node) => node.metadata?.name === settings.name,
    });
    this.lease = new NodeLease({
      kube,
      clock,
      random,
      logger,
      nodeName: settings.name,
      nodeUid: () => this.#uid,
      admit: (lastRenewalMs, signal) => this.#admit(lastRenewalMs, signal),
      onRenewed: metrics && ((seconds: number) => metrics.onLeaseRenewed(seconds)),
    });
    this.store.onChange(({ type, object }) => {
      const { uid } = object.metadata!;
      if (type === "upsert") this.#uid = uid;
      else if (this.#uid === uid) {
        this.#uid = undefined;
        // A Node that was deleted comes back as long as its agent runs: a cloud's controller may have taken it for
        // lost.
        if (!this.#isLeaving) logger.warn({}, "The Node was deleted and will be registered again");
        this.refresh();
      }
    });
  }

  /** The Node's UID, once it is registered. */
  get uid(): string | undefined {
    return this.#uid;
  }

  /** What was reported last; undefined before the first report. */
  get ready(): boolean | undefined {
    return this.#ready;
  }

  /** Monotonic time at which the status was last brought in order, in milliseconds. */
  get lastSyncAt(): number | undefined {
    return this.#lastSyncAt;
  }

  /** Whether the Node was seen to be no more after it was to leave. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /**
   * Whether the node was taken out of the configuration: then it takes no new pods, and when its Node is deleted it is
   * not registered again.
   */
  get isLeaving(): boolean {
    return this.#isLeaving;
  }

  set isLeaving(leaving: boolean) {
    if (leaving === this.#isLeaving) return;
    this.#isLeaving = leaving;
    this.refresh();
  }

  /** Has the status computed at once: capacity or health have changed. */
  refresh(): void {
    this.#isRefreshDue = true;
    this.#wake.fire();
  }

  /** Resolves when the Node is there and was seen to be ours, or the signal aborts. Needs `run` beside it. */
  async claimed(signal: AbortSignal): Promise<void> {
    await untilAborted(signal, this.#claimed.promise);
  }

  /**
   * Resolves when `signal` aborts. The Node and its lease stay.
   * @throws ConfigError when the Node belongs to another kubelet or cluster id
   */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#reflector.run(signal), this.lease.run(signal), this.#report(signal)]);
  }

  async #report(signal: AbortSignal): Promise<void> {
    const { clock, random, logger, events } = this.#options;
    const backoff = new Backoff({ initialMs: 100, maxMs: 7_000, jitter: "none", clock, random });
    const startedAt = clock.monotonic();
    let announced = false;
    while (!signal.aborted) {
      let delayMs: number;
      try {
        await this.#sync(signal);
        this.#lastSyncAt = clock.monotonic();
        this.#readLive = false;
        backoff.reset();
        if (!announced) {
          announced = true;
          events.event(this.#reference(), "Normal", "Starting", "Starting kubelet.");
        }
        const isFast = !this.#ready && clock.monotonic() - startedAt < FAST_FOR_MS;
        delayMs = isFast ? FAST_MS : STATUS_UPDATE_MS * (1 + 0.04 * random());
      } catch (thrown) {
        if (signal.aborted) return;
        if (thrown instanceof ConfigError) throw thrown;
        this.#readLive = true;
        delayMs = backoff.next();
        const level = isConflict(thrown) ? "debug" : "warn";
        logger[level]({ err: thrown, delayMs }, "The Node could not be brought up to date");
      }
      await this.#pause(delayMs, signal);
    }
  }

  /** Waits, unless `refresh` was called since the last pause or is called meanwhile. */
  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#isRefreshDue) await this.#wake.waitAtMost(this.#options.clock, ms, signal);
    this.#isRefreshDue = false;
  }

  /**
   * Of two releases that name one Node, one answers for it: the other one is refused while the first one lives, and
   * ends when it was taken over from.
   * @throws ConfigError when another one answers for it
   */
  async #requireRelease(current: Node, signal: AbortSignal): Promise<void> {
    const other = otherRelease(current, this.#options.settings);
    if (other === undefined) {
      this.#predecessor = undefined;
      return;
    }
    // The lease's first renewal tells whether its agents live.
    await untilAborted(signal, this.#admitted.promise);
    signal.throwIfAborted();
    if (other !== this.#predecessor) throw this.#isOthers(other, "has taken it over");
  }

  /** Before the first renewal of the lease, which goes on where the Node cannot be read. */
  async #admit(lastRenewalMs: number, signal: AbortSignal): Promise<void> {
    const { kube, settings, clock, logger } = this.#options;
    const node = await kube
      .request<Node>({ method: "GET", path: nodePath(settings.name), signal })
      .catch(() => undefined);
    const other = node && otherRelease(node, settings);
    const ageMs = clock.now() - lastRenewalMs;
    if (other !== undefined && ageMs < LEASE_DURATION_SECONDS * 1000) {
      if (!settings.takeOver)
        throw this.#isOthers(other, `renewed its lease ${Math.max(0, Math.round(ageMs / 1000))} s ago`);
      logger.warn({ release: other }, "The Node is taken over from another release whose agents live");
    }
    this.#predecessor = other;
    this.#admitted.resolve();
  }

  #isOthers(release: string, why: string): ConfigError {
    const { name, release: own } = this.#options.settings;
    const theirs = named(release);
    return new ConfigError(
      `nodes[${name}].name: ${theirs} answers for this Node, and ${why}; give this node another name, end the agents of ${release} and start again in ${LEASE_DURATION_SECONDS} s, or set leaderElection.takeOver for ${own === undefined ? "this agent" : named(own)}, which ends them`,
    );
  }

  /**
   * At an orderly end, for the next one, with machines elsewhere. Another agent of the same release, if there is
   * one after all, says again whose the Node is.
   */
  async giveUp(signal: AbortSignal): Promise<void> {
    const { kube, settings } = this.#options;
    const { name, release, isReleaseElected } = settings;
    const node = this.store.getByName("", name);
    const isOurs = release !== undefined && node?.metadata?.annotations?.[RELEASE_ANNOTATION] === release;
    if (!isOurs || isReleaseElected) return;
    const patch = { metadata: { annotations: { [RELEASE_ANNOTATION]: null } } };
    await kube.request({ ...strategicPatch(nodePath(name, "status"), patch), signal });
  }

  /** Makes sure that the Node exists and says what is true. @throws KubeApiError, ConfigError */
  async #sync(signal: AbortSignal): Promise<void> {
    const { kube, settings, clock, random } = this.#options;
    const version = (this.#kubeletVersion ??= await this.#readVersion(signal));
    const found = await this.#read(signal);
    this.#isGone = this.#isLeaving && found === undefined;
    if (this.#isGone) return;
    const current = found ?? (await this.#register(version, signal));
    const foreign = foreignIdentity(current, settings);
    if (foreign !== undefined) {
      throw new ConfigError(
        `nodes[${settings.name}].name: a Node of this name exists and is not this agent's: ${foreign}; ${foreignNodeCure(settings)}`,
      );
    }
    await this.#requireRelease(current, signal);
    this.#uid = current.metadata?.uid;
    this.#claimed.resolve();
    await this.#spec.write(current, settings, this.#isLeaving, signal);

    const { volumes } = this.#options;
    const description = this.#description;
    const volumesInUse = volumes?.wanted(current);
    const observation = { ...this.#observe(version), volumesInUse };
    const status = nodeStatus(description, current, observation, clock.now());
    const { patch, changed } = statusPatch(current, {
      status,
      // A cached Node may be older than what was written last, and look like what is to be written.
      mustTellVolumes: volumesInUse && volumes?.isNews(volumesInUse),
      labels: nodeLabels(description, current),
      annotations: nodeAnnotations(description, observation.capacity, current),
    });
    const now = clock.monotonic();
    if (changed || now >= this.#reportDueAt) {
      await kube.request({ ...strategicPatch(nodePath(settings.name, "status"), patch), signal });
      // Spreads the reports of many nodes that changed together, for example when the API server came back.
      this.#reportDueAt = now + STATUS_REPORT_MS * (changed ? 0.5 + random() : 1);
    }
    for (const name of extendedNames(observation.capacity?.resources ?? {})) this.#reported.add(name);
    if (volumesInUse !== undefined) volumes?.told(volumesInUse);
    this.#announce(current, status);
    await this.#csiNode.write(current, description, csiDriversOf(observation.capacity), signal);
    await this.#resourceSlices.clean(observation.capacity?.resourceDrivers, signal);
  }

  /**
   * The version to report. Asked for once: it changes when the control plane is upgraded, and the next start follows.
   */
  async #readVersion(signal: AbortSignal): Promise<string> {
    const { kube, settings, metrics } = this.#options;
    let gitVersion: string | undefined;
    try {
      ({ gitVersion } = await kube.request<{ gitVersion?: string }>({ method: "GET", path: "/version", signal }));
    } catch (thrown) {
      // Some clusters keep it from all but administrators.
      if (!isForbidden(thrown)) throw thrown;
    }
    const version = kubeletVersion(gitVersion, settings.version);
    metrics?.onKubeletVersion(version);
    return version;
  }

  /** The Node as it is now; undefined when there is none. */
  async #read(signal: AbortSignal): Promise<Node | undefined> {
    const { kube, settings } = this.#options;
    const cached = this.#readLive ? undefined : this.store.getByName("", settings.name);
    if (cached) return cached;
    try {
      return await kube.request<Node>({ method: "GET", path: nodePath(settings.name), signal });
    } catch (thrown) {
      if (isNotFound(thrown)) return undefined;
      // A node's identity may be allowed to create its Node before it may read it.
      if (isForbidden(thrown)) return undefined;
      throw thrown;
    }
  }

  /** Creates the Node; one that was created by another client meanwhile is taken as it is. */
  async #register(version: string, signal: AbortSignal): Promise<Node> {
    const { kube, settings, clock, logger, metrics } = this.#options;
    const body = newNode(this.#description, this.#observe(version), clock.now());
    try {
      const node = await kube.request<Node>({ method: "POST", path: nodesPath(), body, signal });
      logger.info({ uid: node.metadata?.uid, providerID: providerId(settings) }, "Node registered");
      metrics?.onRegistered();
      return node;
    } catch (thrown) {
      if (!isAlreadyExists(thrown)) throw thrown;
      return await kube.request<Node>({ method: "GET", path: nodePath(settings.name), signal });
    }
  }

  get #description(): NodeDescription {
    return { ...this.#options.settings, ...this.#options.report() };
  }

  #observe(version: string): NodeObservation {
    const { capacity: source, backend, clock, settings } = this.#options;
    const capacity = source.current();
    const retired = capacity ? [...this.#reported].filter((name) => !(name in capacity.resources)) : [];
    const known = { kubeletVersion: version, capacity, retired };
    const failingForMs = backend.failingSince === undefined ? 0 : clock.monotonic() - backend.failingSince;
    const graceMs = settings.backendOutageGraceMs ?? DEFAULT_GRACE_MS;
    if (failingForMs >= BLIP_MS) {
      const error = backend.lastError ?? "no reason known";
      return { ...known, backend: { state: "failing", error, graceOver: failingForMs >= graceMs } };
    }
    if (backend.missing) return { ...known, backend: { state: "doubtful", missing: backend.missing } };
    return { ...known, backend: { state: backend.seen === false ? "not_seen" : "answers" } };
  }

  /** Remembers what was reported, and tells of changes as events on the Node. */
  #announce(before: Node, status: NonNullable<Node["status"]>): void {
    const { events } = this.#options;
    const of = before.metadata?.resourceVersion;
    // The watch may not have brought what was patched since: the same change is told of once.
    const known = this.#announced !== undefined && this.#announced.of === of ? this.#announced.status : before.status;
    this.#announced = { of, status };
    const find = (type: string) => ({
      now: status.conditions?.find((condition) => condition.type === type),
      was: known?.conditions?.find((condition) => condition.type === type)?.status,
    });
    this.#announceReady(find("Ready"));
    const unschedulable = before.spec?.unschedulable ?? false;
    if (unschedulable !== this.#unschedulable) {
      this.#unschedulable = unschedulable;
      this.#announceState(unschedulable ? "NodeNotSchedulable" : "NodeSchedulable");
    }
    const { now: backend, was } = find("BackendReady");
    if (backend && backend.status !== was && (backend.status === "False" || was === "False")) {
      const type = backend.status === "False" ? "Warning" : "Normal";
      events.event(this.#reference(), type, backend.reason ?? "", backend.message ?? "");
    }
  }

  #announceReady({ now, was }: { now: Condition | undefined; was: string | undefined }): void {
    this.#ready = now?.status === "True";
    if (now === undefined || was === undefined || now.status === was) return;
    this.#announceState(this.#ready ? "NodeReady" : "NodeNotReady");
    this.#options.logger.info({ ready: now.status, why: now.message }, "The Node's readiness changed");
  }

  /** kubelet: kubelet_node_status.go, `recordNodeStatusEvent`. */
  #announceState(reason: string): void {
    const { events, settings } = this.#options;
    events.event(this.#reference(), "Normal", reason, `Node ${settings.name} status is now: ${reason}`);
  }

  /**
   * As the kubelet refers to its Node: by name where a UID is asked for, which is how `kubectl describe node` searches.
   */
  #reference() {
    const { name } = this.#options.settings;
    return { apiVersion: "v1", kind: "Node", name, uid: name };
  }
}

/** Undefined while the backend has not told what there is. */
const csiDriversOf = (capacity: NodeCapacity | undefined) => capacity && (capacity.csiDrivers ?? []);

const named = (release: string): string =>
  release.startsWith("backend ") ? `an agent with ${release}` : `release ${release}`;
