/**
 * The configMaps and secrets that this node's pods refer to. Nothing else is ever read: each object is followed by its
 * name for as long as a pod refers to it, so that changes reach running machines in seconds. Immutable objects are read
 * once.
 */
import { allContainersOf, uidOf } from "../../kube/pod.ts";
import type { Kube } from "../../kube/kube.ts";
import type { ConfigMap, Container, Pod, Secret } from "../../kube/wire.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { untilAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import type { Lookup, References } from "../types.ts";
import { ListPermissions, ReferencedObject } from "./referenced-object.ts";
import type { ServiceCache } from "./services.ts";
import { isServiceAccountVolume, usedVolumes } from "../pod-volumes.ts";

interface Reference {
  kind: "configmap" | "secret";
  name: string;
  /** True when the pod can do without: every use of it is optional. */
  optional: boolean;
}

/**
 * The configMaps and secrets that a pod refers to in env, volumes and pull secrets, each once.
 * Without `files` the service account's volume does not count: it is left out of the machine.
 */
export function podReferences(pod: Pod, options: { files: boolean } = { files: true }): Reference[] {
  const found = new Map<string, Reference>();
  const add: Add = (kind, name, optional = false) => {
    if (!name) return;
    const key = `${kind}/${name}`;
    found.set(key, { kind, name, optional: optional && (found.get(key)?.optional ?? true) });
  };
  const spec = pod.spec;
  const containers = allContainersOf(pod);
  for (const container of containers) addOfContainer(container, add);
  for (const { volume } of usedVolumes(pod))
    if (options.files || !isServiceAccountVolume(volume)) addOfVolume(volume, add);
  for (const { name } of spec?.imagePullSecrets ?? []) add("secret", name, true);
  return [...found.values()];
}

type Add = (kind: Reference["kind"], name: string | undefined, optional?: boolean) => void;

function addOfContainer({ envFrom, env }: Pick<Container, "envFrom" | "env">, add: Add): void {
  for (const source of envFrom ?? []) {
    add("configmap", source.configMapRef?.name, source.configMapRef?.optional);
    add("secret", source.secretRef?.name, source.secretRef?.optional);
  }
  for (const { valueFrom } of env ?? []) {
    add("configmap", valueFrom?.configMapKeyRef?.name, valueFrom?.configMapKeyRef?.optional);
    add("secret", valueFrom?.secretKeyRef?.name, valueFrom?.secretKeyRef?.optional);
  }
}

function addOfVolume(volume: ReturnType<typeof usedVolumes>[number]["volume"], add: Add): void {
  add("configmap", volume.configMap?.name, volume.configMap?.optional);
  add("secret", volume.secret?.secretName, volume.secret?.optional);
  add("secret", volume.csi?.nodePublishSecretRef?.name);
  for (const source of volume.projected?.sources ?? []) {
    add("configmap", source.configMap?.name, source.configMap?.optional);
    add("secret", source.secret?.name, source.secret?.optional);
  }
}

interface ReferenceCacheOptions {
  kube: Kube;
  services: ServiceCache;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Something that the pod with this UID refers to changed, appeared or went. */
  onChange: (podUid: string) => void;
  /** A read was forbidden: for metrics. */
  onDenied?: (() => void) | undefined;
}

/** This many of a pod's objects are asked for at once. */
const AT_ONCE = 8;

/** One object that some pod refers to. */
interface Entry {
  kind: Reference["kind"];
  namespace: string;
  name: string;
  /** UIDs of the pods that refer to it. */
  holders: Set<string>;
  object: ReferencedObject;
}

export class ReferenceCache {
  readonly #options: ReferenceCacheOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #byPod = new Map<string, Set<string>>();
  readonly #byNamespace = new Map<string, Set<Entry>>();
  /** Pods that were released because their namespace's had too much. */
  readonly #crowdedOut = new Set<string>();
  /** How many objects were let go, and made room. */
  #freed = 0;
  /** Pods that were rendered before the Services were listed for the first time. */
  readonly #withoutServices = new Set<string>();
  readonly #lists: ListPermissions;
  readonly #closed = new AbortController();

  constructor(options: ReferenceCacheOptions) {
    this.#options = options;
    this.#lists = new ListPermissions(options.clock);
    void this.#wakeWithServices();
  }

  /** Watches no object any more. */
  close(): void {
    this.#closed.abort();
    for (const { object } of this.#entries.values()) object.stop();
  }

  /** Names what a pod refers to; objects that it no longer refers to are released. */
  track(pod: Pod, references: readonly Reference[]): void {
    const uid = uidOf(pod);
    const namespace = pod.metadata?.namespace ?? "";
    const wanted = new Set<string>();
    for (const { kind, name } of references) {
      const key = `${kind}/${namespace}/${name}`;
      wanted.add(key);
      let entry = this.#entries.get(key);
      if (entry === undefined) {
        entry = this.#entry(kind, namespace, name);
        this.#entries.set(key, entry);
        const others = this.#byNamespace.get(namespace) ?? new Set();
        this.#byNamespace.set(namespace, others.add(entry));
      }
      entry.holders.add(uid);
    }
    const before = this.#byPod.get(uid) ?? new Set();
    this.#byPod.set(uid, wanted);
    for (const key of before) if (!wanted.has(key)) this.#dropHolder(key, uid);
  }

  /** Forgets a pod; objects that no other pod refers to are no longer watched. */
  release(podUid: string): void {
    for (const key of this.#byPod.get(podUid) ?? []) this.#dropHolder(key, podUid);
    this.#byPod.delete(podUid);
    this.#withoutServices.delete(podUid);
    this.#crowdedOut.delete(podUid);
  }

  /**
   * Waits until there is an answer for everything tracked, even if the answer is that it cannot be read. Objects that
   * are followed already have one.
   *
   * @throws OverBudgetError when it is more than one pod, or all of its namespace, may have; then the pod is released
   */
  async read(podUid: string, signal: AbortSignal): Promise<void> {
    await Promise.all([this.#readObjects(podUid, signal), this.#options.services.firstList(signal)]);
  }

  /** What is known now, for rendering this pod. Tokens are not the cache's. */
  references(pod: Pod): Omit<References, "tokens"> {
    const uid = uidOf(pod);
    const configMaps = new Map<string, Lookup<ConfigMap>>();
    const secrets = new Map<string, Lookup<Secret>>();
    for (const { kind, name, object } of this.#entriesOf(uid)) {
      if (object.lookup !== undefined) (kind === "configmap" ? configMaps : secrets).set(name, object.lookup);
    }
    const services = this.#options.services.of(new Set([pod.metadata?.namespace ?? "", "default"]));
    if (services === undefined) this.#withoutServices.add(uid);
    return { configMaps, secrets, services };
  }

  /**
   * Changes when anything that the pod refers to changes, or can be read where it could not, or there may be room for
   * it again; undefined for a pod that is not tracked. An object that cannot be read delays no other.
   */
  version(podUid: string): string | undefined {
    const keys = this.#byPod.get(podUid);
    if (keys === undefined) return this.#crowdedOut.has(podUid) ? `no room ${this.#freed}` : undefined;
    const parts = [...keys].map((key) => `${key}@${this.#entries.get(key)?.object.version}`);
    return parts.sort().join(",");
  }

  /**
   * True while something is refused that may be allowed in a moment: the pod may be newer than the authorizer's view of
   * it.
   */
  isEarly(podUid: string): boolean {
    return this.#entriesOf(podUid).some(({ object }) => object.isEarly);
  }

  #entriesOf(podUid: string): Entry[] {
    return [...(this.#byPod.get(podUid) ?? [])].flatMap((key) => this.#entries.get(key) ?? []);
  }

  #entry(kind: Reference["kind"], namespace: string, name: string): Entry {
    const { kube, clock, random, logger, onDenied, onChange } = this.#options;
    const holders = new Set<string>();
    const object = new ReferencedObject(
      { resource: `${kind}s`, namespace, name },
      {
        kube,
        clock,
        random,
        logger,
        lists: this.#lists,
        onDenied,
        onChange: () => {
          for (const uid of holders) onChange(uid);
        },
      },
    );
    return { kind, namespace, name, holders, object };
  }

  /** A few at a time, and no more of them when they are too much already. */
  async #readObjects(podUid: string, signal: AbortSignal): Promise<void> {
    const entries = this.#entriesOf(podUid);
    for (let at = 0; at < entries.length; at += AT_ONCE) {
      const some = entries.slice(at, at + AT_ONCE);
      this.#checkNamespace(podUid, some);
      await Promise.all(some.map(({ object }) => object.answer(signal)));
      const bytes = entries.reduce((sum, { object }) => sum + object.bytes, 0);
      if (bytes <= POD_LIMITS.referenceBytes) continue;
      this.release(podUid);
      throw new OverBudgetError(
        `the ConfigMaps and Secrets that the pod refers to have more than ${POD_LIMITS.referenceBytes} bytes`,
      );
    }
    const last = entries.at(-1);
    if (last !== undefined) this.#checkNamespace(podUid, [last]);
  }

  /** @throws OverBudgetError when the namespace's pods would have too much with these */
  #checkNamespace(podUid: string, next: readonly Entry[]): void {
    const { namespaceReferences, namespaceReferenceBytes } = POD_LIMITS;
    const namespace = next[0]?.namespace ?? "";
    const followed = [...(this.#byNamespace.get(namespace) ?? [])].filter(({ object }) => object.isFollowed);
    const count = followed.length + next.filter(({ object }) => !object.isFollowed).length;
    const bytes = followed.reduce((sum, { object }) => sum + object.bytes, 0);
    const what = `the ConfigMaps and Secrets that this node's pods of namespace "${namespace}" refer to`;
    let problem: string | undefined;
    if (count > namespaceReferences) problem = `${what} are more than ${namespaceReferences}`;
    else if (bytes > namespaceReferenceBytes) problem = `${what} have more than ${namespaceReferenceBytes} bytes`;
    if (problem === undefined) return;
    this.release(podUid);
    this.#crowdedOut.add(podUid);
    throw new OverBudgetError(problem);
  }

  #dropHolder(key: string, podUid: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    entry.holders.delete(podUid);
    if (entry.holders.size > 0) return;
    entry.object.stop();
    this.#entries.delete(key);
    if (entry.object.isFollowed) this.#freed++;
    const others = this.#byNamespace.get(entry.namespace);
    others?.delete(entry);
    if (others?.size === 0) this.#byNamespace.delete(entry.namespace);
  }

  /** Without Services no container has its environment; their first list lets those go on that waited for it. */
  async #wakeWithServices(): Promise<void> {
    const { signal } = this.#closed;
    await untilAborted(signal, this.#options.services.listed(signal));
    if (signal.aborted) return;
    for (const uid of this.#withoutServices) this.#options.onChange(uid);
    this.#withoutServices.clear();
  }
}
