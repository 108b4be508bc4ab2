/** StatefulSets (`pkg/controller/statefulset`): pods with a name and an order, replaced one by one. */
import { isTerminal } from "../../kube/pod.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { toError } from "../../util/errors.ts";
import { ApiStatusError } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { controllerReference } from "./actor.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { claim, isAvailable, isReady, nextAvailability, podKind } from "./pods.ts";
import { historyOf, REVISION_HASH, truncateHistory } from "./revisions.ts";

const statefulSets = mustFindKind("apps", "v1", "statefulsets");
const claims = mustFindKind("", "v1", "persistentvolumeclaims");

const NAME = "statefulset.kubernetes.io/pod-name";
const INDEX = "apps.kubernetes.io/pod-index";

/** The number at the end of the name; -1 for a pod of another set. */
function ordinalOf(set: StoredObject, pod: StoredObject): number {
  const match = /^(.*)-(\d+)$/.exec(pod.metadata.name);
  return match?.[1] === set.metadata.name ? Number(match[2]) : -1;
}

const isLeaving = (pod: StoredObject): boolean => pod.metadata.deletionTimestamp !== undefined;
const isRunningAndReady = (pod: StoredObject): boolean => pod.status?.phase === "Running" && isReady(pod);
const revisionOf = (pod: StoredObject): string | undefined => pod.metadata.labels?.[REVISION_HASH];

export class StatefulSets extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "statefulset-controller");
  }

  start(): void {
    this.watchOwn(statefulSets);
    this.watchDependents("/pods", statefulSets);
  }

  protected sync(key: string): void {
    const set = this.storage.get("apps/statefulsets", key);
    if (!set) return;
    const pods = claim(this.actor, this.index, set, "/pods", set.spec.selector).filter(
      (pod) => ordinalOf(set, pod) >= 0,
    );
    const history = historyOf(this.actor, this.index, set);
    const before = set.status?.currentRevision as string | undefined;
    const current = history.all.find(({ metadata }) => metadata.name === before) ?? history.current;
    const round = new Round(this.actor, this.clock.now(), set, pods, { current, update: history.current });
    let failure: unknown;
    try {
      if (!set.metadata.deletionTimestamp) round.run();
    } catch (thrown) {
      failure = thrown;
    }
    this.#writeStatus(set, current.metadata.name, history.current.metadata.name);
    const live = new Set([current.metadata.name, ...pods.map(revisionOf)]);
    truncateHistory(this.actor, history, set.spec.revisionHistoryLimit, ({ metadata }) => live.has(metadata.name));
    if (failure !== undefined) throw failure;
    const wait = nextAvailability(pods, set.spec.minReadySeconds ?? 0, this.clock.now());
    if (wait !== undefined) this.queue.addAfter(key, wait);
  }

  #writeStatus(before: StoredObject, current: string, update: string): void {
    const set = this.actor.fresh(before);
    if (!set) return;
    const { minReadySeconds = 0, replicas, updateStrategy } = set.spec;
    const pods = this.index.controlled("/pods", set.metadata.uid).filter((pod) => ordinalOf(set, pod) >= 0);
    const staying = pods.filter((pod) => !isLeaving(pod));
    const counts = {
      replicas: pods.length,
      readyReplicas: pods.filter(isRunningAndReady).length,
      availableReplicas: pods.filter(
        (pod) => isRunningAndReady(pod) && isAvailable(pod, minReadySeconds, this.clock.now()),
      ).length,
      currentReplicas: staying.filter((pod) => revisionOf(pod) === current).length,
      updatedReplicas: staying.filter((pod) => revisionOf(pod) === update).length,
    };
    const isDone =
      updateStrategy.type === "RollingUpdate" &&
      counts.updatedReplicas === counts.replicas &&
      counts.readyReplicas === counts.replicas &&
      counts.replicas === replicas;
    this.actor.updateStatus(set, {
      observedGeneration: set.metadata.generation,
      ...counts,
      ...(isDone && { currentReplicas: counts.updatedReplicas }),
      currentRevision: isDone ? update : current,
      updateRevision: update,
      collisionCount: set.status?.collisionCount ?? 0,
    });
  }
}

/** One look at one set. */
class Round {
  readonly #actor: StatefulSets["actor"];
  readonly #now: number;
  readonly #set: StoredObject;
  readonly #revisions: { current: StoredObject; update: StoredObject };
  readonly #first: number;
  /** By ordinal, from the first; undefined where a pod is missing. */
  readonly #replicas: (StoredObject | undefined)[];
  /** Beyond the number that is wished for, highest first. */
  readonly #condemned: StoredObject[];

  constructor(
    actor: StatefulSets["actor"],
    now: number,
    set: StoredObject,
    pods: readonly StoredObject[],
    revisions: { current: StoredObject; update: StoredObject },
  ) {
    this.#actor = actor;
    this.#now = now;
    this.#set = set;
    this.#revisions = revisions;
    this.#first = (set.spec.ordinals?.start ?? 0) as number;
    const byOrdinal = new Map(pods.map((pod) => [ordinalOf(set, pod), pod]));
    this.#replicas = Array.from({ length: set.spec.replicas as number }, (_, i) => byOrdinal.get(this.#first + i));
    const isCondemned = (ordinal: number) => ordinal < this.#first || ordinal >= this.#first + this.#replicas.length;
    this.#condemned = [...byOrdinal]
      .filter(([ordinal]) => isCondemned(ordinal))
      .toSorted(([a], [b]) => b - a)
      .map(([, pod]) => pod);
  }

  get #inOrder(): boolean {
    return this.#set.spec.podManagementPolicy === "OrderedReady";
  }

  run(): void {
    const isHeld = this.#fill();
    if (isHeld && this.#inOrder) return;
    if (this.#scaleDown() && this.#inOrder) return;
    if (isHeld) return;
    this.#update();
  }

  #isUnavailable(pod: StoredObject | undefined): boolean {
    return !pod || isLeaving(pod) || !this.#isUp(pod);
  }

  #isUp(pod: StoredObject): boolean {
    return isRunningAndReady(pod) && isAvailable(pod, this.#set.spec.minReadySeconds ?? 0, this.#now);
  }

  /** Makes what is missing. @returns whether something is on its way, for which an ordered set waits */
  #fill(): boolean {
    let isHeld = false;
    for (const [i, pod] of this.#replicas.entries()) {
      if (pod && isTerminal(pod)) {
        // Its name is needed again.
        if (!isLeaving(pod)) this.#delete(pod);
        isHeld = true;
      } else if (!pod) {
        this.#create(this.#first + i);
        isHeld = true;
      } else if (this.#inOrder && (isLeaving(pod) || !this.#isUp(pod))) {
        isHeld = true;
      }
      if (isHeld && this.#inOrder) return true;
    }
    return isHeld;
  }

  /** @returns whether there is something to take away yet */
  #scaleDown(): boolean {
    const all = [...this.#replicas, ...this.#condemned.toReversed()];
    const firstUnavailable = all.find((pod) => this.#isUnavailable(pod));
    for (const pod of this.#condemned) {
      if (isLeaving(pod)) {
        if (this.#inOrder) return true;
        continue;
      }
      // One that does not serve is waited for, so that not two are missing; unless it is this very one.
      if (this.#inOrder && !this.#isUp(pod) && pod !== firstUnavailable) return true;
      this.#delete(pod);
      if (this.#inOrder) return true;
    }
    return this.#condemned.length > 0;
  }

  /** Takes the last pod of an old revision, once all after it serve. */
  #update(): void {
    const { type, rollingUpdate } = this.#set.spec.updateStrategy;
    if (type === "OnDelete") return;
    const partition = (rollingUpdate?.partition ?? 0) as number;
    const update = this.#revisions.update.metadata.name;
    for (let i = this.#replicas.length - 1; i >= partition; i--) {
      const pod = this.#replicas[i];
      if (pod && revisionOf(pod) !== update && !isLeaving(pod)) {
        this.#delete(pod);
        return;
      }
      if (this.#isUnavailable(pod)) return;
    }
  }

  /** An ordinal below the partition, or that was never updated, is made again as it was. */
  #revisionFor(ordinal: number): StoredObject {
    const { current, update } = this.#revisions;
    if (current === update) return update;
    const { rollingUpdate } = this.#set.spec.updateStrategy;
    const index = ordinal - this.#first;
    const before = rollingUpdate
      ? index < (rollingUpdate.partition ?? 0)
      : index < ((this.#set.status?.currentReplicas ?? 0) as number);
    return before ? current : update;
  }

  #create(ordinal: number): void {
    const { metadata, spec } = this.#set;
    const revision = this.#revisionFor(ordinal);
    const { $patch: _, ...template } = revision.data.spec.template;
    const name = `${metadata.name}-${ordinal}`;
    const podSpec = structuredClone(template.spec);
    const templates = (spec.volumeClaimTemplates ?? []) as Json[];
    const volumes = templates.map((each) => ({
      name: each.metadata.name,
      persistentVolumeClaim: { claimName: `${each.metadata.name}-${name}` },
    }));
    const names = new Set(volumes.map((volume) => volume.name as string));
    const others = ((podSpec.volumes ?? []) as Json[]).filter((volume) => !names.has(volume.name));
    try {
      for (const each of templates) this.#createClaim(each, `${each.metadata.name}-${name}`);
      this.#actor.create(podKind, metadata.namespace, {
        metadata: {
          name,
          labels: {
            ...template.metadata?.labels,
            [NAME]: name,
            [INDEX]: String(ordinal),
            [REVISION_HASH]: revision.metadata.name,
          },
          ...(template.metadata?.annotations && { annotations: template.metadata.annotations }),
          ownerReferences: [controllerReference(this.#set)],
        },
        spec: {
          ...podSpec,
          hostname: name,
          ...(spec.serviceName && { subdomain: spec.serviceName }),
          ...(volumes.length + others.length > 0 && { volumes: [...volumes, ...others] }),
        },
      });
      this.#tell("Normal", "SuccessfulCreate", `create Pod ${name} in StatefulSet ${metadata.name} successful`);
    } catch (thrown) {
      const why = `create Pod ${name} in StatefulSet ${metadata.name} failed error: ${toError(thrown).message}`;
      if (thrown instanceof ApiStatusError) this.#tell("Warning", "FailedCreate", why);
      throw thrown;
    }
  }

  #createClaim(template: Json, name: string): void {
    const { namespace } = this.#set.metadata;
    if (this.#actor.get(claims, namespace, name)) return;
    const { labels, annotations } = template.metadata;
    this.#actor.create(claims, namespace, {
      metadata: {
        name,
        labels: { ...labels, ...this.#set.spec.selector.matchLabels },
        ...(annotations && { annotations }),
      },
      spec: template.spec,
    });
    this.#tell(
      "Normal",
      "SuccessfulCreate",
      `create Claim ${name} Pod in StatefulSet ${this.#set.metadata.name} success`,
    );
  }

  #delete(pod: StoredObject): void {
    this.#actor.delete(pod);
    const { name } = this.#set.metadata;
    this.#tell("Normal", "SuccessfulDelete", `delete Pod ${pod.metadata.name} in StatefulSet ${name} successful`);
  }

  #tell(type: "Normal" | "Warning", reason: string, message: string): void {
    this.#actor.event(this.#set, type, reason, message);
  }
}
