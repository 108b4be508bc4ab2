/**
 * Deployments (`pkg/controller/deployment`): one ReplicaSet for each template they have had, and the way from one to
 * the next.
 */
import { isTerminal } from "../../kube/pod.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { toError } from "../../util/errors.ts";
import { resolveIntOrPercent } from "../kinds/pod-template.ts";
import { ApiStatusError } from "../objects/errors.ts";
import { jsonEqual, withMeta, type Json, type StoredObject } from "../objects/object.ts";
import { controllerReference, type Actor } from "./actor.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { hashOf } from "./hash.ts";
import { controllerOf, keyOf, type ObjectIndex } from "./object-index.ts";
import { claim } from "./pods.ts";
import { setProgress, withAvailability, withoutCondition, type DeploymentStatus } from "./rollout-status.ts";
import { parseRfc3339Ms } from "./times.ts";
import type { WorkQueue } from "./work-queue.ts";

const deployments = mustFindKind("apps", "v1", "deployments");
const replicaSets = mustFindKind("apps", "v1", "replicasets");

const HASH = "pod-template-hash";
const REVISION = "deployment.kubernetes.io/revision";
const HISTORY = "deployment.kubernetes.io/revision-history";
const DESIRED = "deployment.kubernetes.io/desired-replicas";
const MAX = "deployment.kubernetes.io/max-replicas";
/** Annotations of a Deployment that its ReplicaSets do not get. */
const OWN_ANNOTATIONS = new Set([
  "kubectl.kubernetes.io/last-applied-configuration",
  "deprecated.deployment.rollback.to",
  REVISION,
  HISTORY,
  DESIRED,
  MAX,
]);

const replicasOf = (object: StoredObject): number => object.spec.replicas as number;
const sum = (sets: readonly StoredObject[], count: (set: StoredObject) => number): number =>
  sets.reduce((total, set) => total + count(set), 0);
const availableOf = (set: StoredObject): number => (set.status?.availableReplicas ?? 0) as number;
const revisionOf = (object: StoredObject): number => Number(object.metadata.annotations?.[REVISION] ?? 0) || 0;
const createdAt = (object: StoredObject): number => parseRfc3339Ms(object.metadata.creationTimestamp);
const oldestFirst = (sets: readonly StoredObject[]): StoredObject[] =>
  sets.toSorted((a, b) => createdAt(a) - createdAt(b) || (a.metadata.name < b.metadata.name ? -1 : 1));
const active = (sets: readonly StoredObject[]): StoredObject[] => sets.filter((set) => replicasOf(set) > 0);

/** How many pods there may be beside those that are wished for, and how many may be missing. */
function bounds(deployment: StoredObject): { surge: number; unavailable: number } {
  const { replicas, strategy } = deployment.spec;
  if (strategy.type !== "RollingUpdate") return { surge: 0, unavailable: 0 };
  const surge = resolveIntOrPercent(strategy.rollingUpdate.maxSurge, replicas, "up");
  const unavailable = resolveIntOrPercent(strategy.rollingUpdate.maxUnavailable, replicas, "down");
  if (replicas === 0) return { surge, unavailable: 0 };
  return { surge, unavailable: Math.min(replicas, surge === 0 && unavailable === 0 ? 1 : unavailable) };
}

const withoutHash = (template: Json): Json => {
  const { [HASH]: _, ...labels } = template.metadata?.labels ?? {};
  return { ...template, metadata: { ...template.metadata, labels } };
};

export class Deployments extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "deployment-controller");
  }

  start(): void {
    this.watchOwn(deployments);
    this.watchDependents("apps/replicasets", deployments);
    // Recreate waits for the last old pod; no status of a ReplicaSet tells of it.
    this.watch("/pods", ({ object, deleted }) => {
      const owner = deleted ? controllerOf(object) : undefined;
      if (owner?.kind !== "ReplicaSet") return;
      const set = this.storage.get("apps/replicasets", `${object.metadata.namespace}/${owner.name}`);
      const parent = set && controllerOf(set);
      if (parent?.kind === "Deployment") this.queue.add(`${object.metadata.namespace}/${parent.name}`);
    });
  }

  protected sync(key: string): void {
    const deployment = this.storage.get("apps/deployments", key);
    if (!deployment) return;
    const sets = claim(this.actor, this.index, deployment, "apps/replicasets", deployment.spec.selector);
    const { actor, index, queue } = this;
    new Rollout({ actor, index, queue, now: () => this.clock.now() }, deployment, sets).run();
  }
}

/** What a rollout needs of its controller. */
interface Tools {
  actor: Actor;
  index: ObjectIndex;
  queue: WorkQueue;
  now: () => number;
}

/** One look at one Deployment. */
class Rollout {
  readonly #tools: Tools;
  #deployment: StoredObject;
  #new: StoredObject | undefined;
  #old: StoredObject[];

  constructor(tools: Tools, deployment: StoredObject, sets: StoredObject[]) {
    this.#tools = tools;
    this.#deployment = deployment;
    const { template } = deployment.spec;
    // Of several with this template, which only a lost hash can make, the oldest is the one.
    this.#new = oldestFirst(sets).find((set) => jsonEqual(withoutHash(set.spec.template), withoutHash(template)));
    this.#old = sets.filter((set) => set !== this.#new);
  }

  get #all(): StoredObject[] {
    return this.#new ? [...this.#old, this.#new] : this.#old;
  }

  run(): void {
    const { spec, metadata } = this.#deployment;
    if (metadata.deletionTimestamp) {
      this.#writeStatus(this.#status());
      return;
    }
    this.#notePause();
    const scaled = active(this.#all).some((set) => {
      const desired = set.metadata.annotations?.[DESIRED];
      return desired !== undefined && Number(desired) !== spec.replicas;
    });
    if (spec.paused || scaled) {
      this.#ensureNew(false);
      this.#scale();
      if (spec.paused) this.#cleanUp();
      this.#writeStatus(this.#status());
    } else if (spec.strategy.type === "Recreate") {
      this.#recreate();
    } else {
      this.#roll();
    }
  }

  #roll(): void {
    this.#ensureNew(true);
    if (this.#scaleUpNew()) return this.#report();
    if (this.#scaleDownOld()) return this.#report();
    if (this.#isComplete(this.#deployment.status)) this.#cleanUp();
    this.#report();
  }

  #recreate(): void {
    this.#ensureNew(false);
    if (active(this.#old).length > 0) {
      for (const set of active(this.#old)) this.#resize(set, 0);
      return this.#report();
    }
    const isRunning = (set: StoredObject) =>
      (set.status?.replicas ?? 0) > 0 ||
      this.#tools.index.controlled("/pods", set.metadata.uid).some((pod) => !isTerminal(pod));
    if (this.#old.some(isRunning)) return this.#report();
    this.#ensureNew(true);
    if (this.#new) this.#resize(this.#new, replicasOf(this.#deployment));
    if (this.#isComplete(this.#deployment.status)) this.#cleanUp();
    this.#report();
  }

  /** The ReplicaSet of today's template, with its revision; made when there is none and `create` says so. */
  #ensureNew(create: boolean): void {
    const revision = Math.max(0, ...this.#old.map(revisionOf)) + 1;
    if (this.#new) {
      const annotations = this.#annotations(this.#new, revision);
      const minReadySeconds = this.#deployment.spec.minReadySeconds ?? 0;
      const next = withMeta(this.#new, { annotations });
      if (
        !jsonEqual(annotations, this.#new.metadata.annotations ?? {}) ||
        (this.#new.spec.minReadySeconds ?? 0) !== minReadySeconds
      )
        this.#new = this.#tools.actor.update({ ...next, spec: { ...next.spec, minReadySeconds } });
      this.#setRevision(this.#new.metadata.annotations?.[REVISION] ?? String(revision), {
        reason: "FoundNewReplicaSet",
        message: `Found new replica set "${this.#new.metadata.name}"`,
      });
    } else if (create) {
      this.#createNew(revision);
    }
  }

  #createNew(revision: number): void {
    const { actor } = this.#tools;
    const { metadata, spec, status } = this.#deployment;
    const hash = hashOf(withoutHash(spec.template), status?.collisionCount);
    const name = `${metadata.name.slice(0, 252 - hash.length)}-${hash}`;
    const labels = { ...spec.template.metadata?.labels, [HASH]: hash };
    const body = {
      metadata: { name, labels, annotations: {}, ownerReferences: [controllerReference(this.#deployment)] },
      spec: {
        replicas: 0,
        minReadySeconds: spec.minReadySeconds ?? 0,
        selector: { ...spec.selector, matchLabels: { ...spec.selector.matchLabels, [HASH]: hash } },
        template: { ...spec.template, metadata: { ...spec.template.metadata, labels } },
      },
    };
    const replicas = this.#newReplicas(0);
    body.spec.replicas = replicas;
    body.metadata.annotations = {
      ...this.#annotations(body as unknown as StoredObject, revision),
      ...this.#sizes(),
    };
    try {
      this.#new = actor.create(replicaSets, metadata.namespace, body);
    } catch (thrown) {
      if (thrown instanceof ApiStatusError && thrown.body.reason === "AlreadyExists") {
        // Another template has this hash: the next look takes another one.
        const collisionCount = ((status?.collisionCount ?? 0) as number) + 1;
        this.#writeStatus({ ...status, collisionCount });
        throw thrown;
      }
      const message = `Failed to create new replica set "${name}": ${toError(thrown).message}`;
      this.#writeStatus(this.#withProgress(status ?? {}, "False", "ReplicaSetCreateError", message));
      actor.event(this.#deployment, "Warning", "ReplicaSetCreateError", message);
      throw thrown;
    }
    if (replicas > 0) this.#tellScaled("up", name, 0, replicas);
    this.#setRevision(
      String(revision),
      { reason: "NewReplicaSetCreated", message: `Created new replica set "${name}"` },
      true,
    );
  }

  /**
   * Annotations of the new ReplicaSet: those of the Deployment, its revision, and the revisions that it has been
   * before.
   */
  #annotations(set: StoredObject, revision: number): Record<string, string> {
    const copied = Object.entries(this.#deployment.metadata.annotations ?? {}).filter(
      ([key]) => !OWN_ANNOTATIONS.has(key),
    );
    const annotations: Record<string, string> = { ...set.metadata.annotations, ...Object.fromEntries(copied) };
    const before = annotations[REVISION];
    if (Number(before ?? 0) >= revision) return annotations;
    annotations[REVISION] = String(revision);
    if (before !== undefined) annotations[HISTORY] = [annotations[HISTORY], before].filter(Boolean).join(",");
    return annotations;
  }

  #sizes(): Record<string, string> {
    const replicas = replicasOf(this.#deployment);
    return { [DESIRED]: String(replicas), [MAX]: String(replicas + bounds(this.#deployment).surge) };
  }

  #setRevision(revision: string, progress: { reason: string; message: string }, always = false): void {
    const { metadata, spec, status } = this.#deployment;
    const known = status?.conditions?.some((c: Json) => c.type === "Progressing");
    const tells = spec.progressDeadlineSeconds !== undefined && (always || !known);
    if (metadata.annotations?.[REVISION] === revision && !tells) return;
    const marked = withMeta(this.#deployment, { annotations: { ...metadata.annotations, [REVISION]: revision } });
    const next = tells ? this.#withProgress(status ?? {}, "True", progress.reason, progress.message) : (status ?? {});
    this.#deployment = this.#tools.actor.update({ ...marked, status: next }, "status");
  }

  /** How large the new ReplicaSet may be by now, given its size. */
  #newReplicas(size: number): number {
    const { spec } = this.#deployment;
    if (spec.strategy.type !== "RollingUpdate") return spec.replicas as number;
    const most = spec.replicas + bounds(this.#deployment).surge;
    const others = sum(this.#all, replicasOf);
    if (others >= most) return size;
    return size + Math.min(most - others, spec.replicas - size);
  }

  #scaleUpNew(): boolean {
    const set = this.#new!;
    const wanted = replicasOf(this.#deployment);
    if (replicasOf(set) === wanted) return false;
    return this.#resize(set, replicasOf(set) > wanted ? wanted : this.#newReplicas(replicasOf(set)));
  }

  #scaleDownOld(): boolean {
    const old = active(this.#old);
    if (old.length === 0) return false;
    const minAvailable = replicasOf(this.#deployment) - bounds(this.#deployment).unavailable;
    const newUnavailable = replicasOf(this.#new!) - availableOf(this.#new!);
    let room = sum(this.#all, replicasOf) - minAvailable - newUnavailable;
    if (room <= 0) return false;
    let total = 0;
    // Those that do not serve go first: nobody misses them.
    for (const set of oldestFirst(old)) {
      const unhealthy = Math.min(room, replicasOf(set) - availableOf(set));
      if (unhealthy <= 0) continue;
      this.#resize(set, replicasOf(set) - unhealthy);
      room -= unhealthy;
      total += unhealthy;
    }
    let spare = sum(this.#all, availableOf) - minAvailable;
    for (const set of oldestFirst(active(this.#old))) {
      const leaving = Math.min(spare, replicasOf(set));
      if (leaving <= 0) continue;
      this.#resize(set, replicasOf(set) - leaving);
      spare -= leaving;
      total += leaving;
    }
    return total > 0;
  }

  /**
   * Another size of the Deployment in the middle of a rollout, or while it is paused: its ReplicaSets share it in
   * proportion.
   */
  #scale(): void {
    const wanted = replicasOf(this.#deployment);
    const living = active(this.#all);
    if (living.length <= 1) {
      const only = living[0] ?? this.#new ?? oldestFirst(this.#old).at(-1);
      if (only && replicasOf(only) !== wanted) this.#resize(only, wanted);
      return;
    }
    if (this.#new && this.#isSaturated(this.#new)) {
      for (const set of active(this.#old)) this.#resize(set, 0);
      return;
    }
    if (this.#deployment.spec.strategy.type !== "RollingUpdate") return;
    const allowed = wanted > 0 ? wanted + bounds(this.#deployment).surge : 0;
    const toAdd = allowed - sum(living, replicasOf);
    const newestFirst = oldestFirst(living).toReversed();
    const ordered = (toAdd > 0 ? newestFirst : oldestFirst(living)).toSorted((a, b) => replicasOf(b) - replicasOf(a));
    let added = 0;
    const sizes = ordered.map((set) => {
      const share = toAdd === 0 ? 0 : this.#share(set, toAdd - added, allowed);
      added += share;
      return replicasOf(set) + share;
    });
    sizes[0] = Math.max(0, sizes[0]! + toAdd - added);
    for (const [i, set] of ordered.entries()) this.#resize(set, sizes[i]!, true);
  }

  #share(set: StoredObject, left: number, allowed: number): number {
    if (left === 0) return 0;
    const wanted = replicasOf(this.#deployment);
    if (wanted === 0) return Math.max(-replicasOf(set), left);
    const before = Number(set.metadata.annotations?.[MAX] ?? 0) || this.#deployment.status?.replicas || 0;
    if (before === 0) return 0;
    const share = Math.round((replicasOf(set) * allowed) / before) - replicasOf(set);
    return left > 0 ? Math.min(share, left) : Math.max(share, left);
  }

  #isSaturated(set: StoredObject): boolean {
    const wanted = replicasOf(this.#deployment);
    const desired = Number(set.metadata.annotations?.[DESIRED]);
    return replicasOf(set) === wanted && desired === wanted && availableOf(set) === wanted;
  }

  /** @returns whether the size changed */
  #resize(set: StoredObject, size: number, always = false): boolean {
    const sizes = this.#sizes();
    const before = replicasOf(set);
    if (before === size && !always) return false;
    const annotations = { ...set.metadata.annotations, ...sizes };
    if (before === size && jsonEqual(annotations, set.metadata.annotations)) return false;
    const next = withMeta({ ...set, spec: { ...set.spec, replicas: size } }, { annotations });
    const updated = this.#tools.actor.update(next);
    if (set === this.#new) this.#new = updated;
    else this.#old = this.#old.map((each) => (each === set ? updated : each));
    if (before === size) return false;
    this.#tellScaled(before < size ? "up" : "down", set.metadata.name, before, size);
    return true;
  }

  #tellScaled(direction: string, name: string, from: number, to: number): void {
    const message = `Scaled ${direction} replica set ${name} from ${from} to ${to}`;
    this.#tools.actor.event(this.#deployment, "Normal", "ScalingReplicaSet", message);
  }

  /** Old ReplicaSets beyond the history that is to be kept. */
  #cleanUp(): void {
    const old = this.#old.filter((set) => !set.metadata.deletionTimestamp);
    const surplus = old.length - (this.#deployment.spec.revisionHistoryLimit as number);
    if (surplus <= 0) return;
    for (const set of old.toSorted((a, b) => revisionOf(a) - revisionOf(b)).slice(0, surplus)) {
      const isSettled = set.status?.observedGeneration >= set.metadata.generation!;
      if (replicasOf(set) === 0 && !set.status?.replicas && isSettled) this.#tools.actor.delete(set);
    }
  }

  #notePause(): void {
    const { spec, status } = this.#deployment;
    const progressing = status?.conditions?.find((c: Json) => c.type === "Progressing");
    if (spec.progressDeadlineSeconds === undefined || progressing?.reason === "ProgressDeadlineExceeded") return;
    const isNoted = progressing?.reason === "DeploymentPaused";
    if (Boolean(spec.paused) === isNoted) return;
    const [reason, message] = spec.paused
      ? ["DeploymentPaused", "Deployment is paused"]
      : ["DeploymentResumed", "Deployment is resumed"];
    this.#writeStatus(this.#withProgress(status ?? {}, "Unknown", reason, message));
  }

  #isComplete(status: Json): boolean {
    const wanted = replicasOf(this.#deployment);
    return (
      (status?.updatedReplicas ?? 0) === wanted &&
      (status?.replicas ?? 0) === wanted &&
      (status?.availableReplicas ?? 0) === wanted &&
      (status?.observedGeneration ?? 0) >= this.#deployment.metadata.generation!
    );
  }

  #status(): DeploymentStatus {
    const { metadata, spec, status } = this.#deployment;
    const all = this.#all;
    const available = sum(all, availableOf);
    const counts = {
      observedGeneration: metadata.generation,
      replicas: sum(all, (set) => set.status?.replicas ?? 0),
      updatedReplicas: this.#new?.status?.replicas ?? 0,
      readyReplicas: sum(all, (set) => set.status?.readyReplicas ?? 0),
      availableReplicas: available,
      unavailableReplicas: Math.max(0, sum(all, replicasOf) - available),
      terminatingReplicas: sum(all, (set) => set.status?.terminatingReplicas ?? 0),
      ...(status?.collisionCount !== undefined && { collisionCount: status.collisionCount }),
      conditions: status?.conditions ?? [],
    };
    return withAvailability(counts, available >= spec.replicas - bounds(this.#deployment).unavailable, this.#time());
  }

  /** Writes how far the rollout is, and whether it still moves. */
  #report(): void {
    const { spec, metadata, status: before } = this.#deployment;
    let status = this.#status();
    const progressing = before?.conditions?.find((c: Json) => c.type === "Progressing");
    const subject = this.#new ? `ReplicaSet "${this.#new.metadata.name}"` : `Deployment "${metadata.name}"`;
    if (spec.progressDeadlineSeconds === undefined) {
      status = withoutCondition(status, "Progressing");
    } else if (!(status.replicas === status.updatedReplicas && progressing?.reason === "NewReplicaSetAvailable")) {
      const isOverdue =
        progressing !== undefined &&
        progressing.reason !== "DeploymentPaused" &&
        parseRfc3339Ms(progressing.lastUpdateTime) + spec.progressDeadlineSeconds * 1000 < this.#tools.now();
      if (this.#isComplete(status)) {
        const message = `${subject} has successfully progressed.`;
        status = this.#withProgress(status, "True", "NewReplicaSetAvailable", message);
      } else if (this.#hasMoved(status, before ?? {})) {
        status = this.#withProgress(status, "True", "ReplicaSetUpdated", `${subject} is progressing.`, true);
      } else if (progressing?.reason === "ProgressDeadlineExceeded" || isOverdue) {
        const message = `${subject} has timed out progressing.`;
        status = this.#withProgress(status, "False", "ProgressDeadlineExceeded", message);
      }
    }
    const failure = [...(this.#new ? [this.#new] : []), ...this.#old]
      .flatMap((set) => (set.status?.conditions ?? []) as Json[])
      .find(({ type }) => type === "ReplicaFailure");
    status = withoutCondition(status, "ReplicaFailure");
    if (failure) status.conditions = [...status.conditions, { ...failure, lastUpdateTime: failure.lastTransitionTime }];
    this.#writeStatus(status);
    this.#watchDeadline(status);
  }

  #hasMoved(status: DeploymentStatus, before: Json): boolean {
    const old = (s: Json) => (s.replicas ?? 0) - (s.updatedReplicas ?? 0);
    return (
      status.updatedReplicas > (before.updatedReplicas ?? 0) ||
      old(status) < old(before) ||
      status.readyReplicas > (before.readyReplicas ?? 0) ||
      status.availableReplicas > (before.availableReplicas ?? 0)
    );
  }

  /** Nothing that happens tells that nothing happens any more. */
  #watchDeadline(status: DeploymentStatus): void {
    const { spec } = this.#deployment;
    const progressing = status.conditions.find(({ type }) => type === "Progressing");
    if (spec.progressDeadlineSeconds === undefined || progressing === undefined) return;
    if (this.#isComplete(status) || progressing.reason === "ProgressDeadlineExceeded") return;
    const end = parseRfc3339Ms(progressing.lastUpdateTime) + spec.progressDeadlineSeconds * 1000;
    this.#tools.queue.addAfter(keyOf(this.#deployment), Math.max(0, end - this.#tools.now()) + 1000);
  }

  #time(): string {
    return this.#tools.actor.objects.now();
  }

  #withProgress(status: Json, value: string, reason: string, message: string, renew = false): DeploymentStatus {
    return setProgress(status, { status: value, reason, message }, this.#time(), renew);
  }

  #writeStatus(status: Json): void {
    this.#deployment = this.#tools.actor.updateStatus(this.#deployment, status);
  }
}
