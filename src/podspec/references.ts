/**
 * The configMaps and secrets that this node's pods refer to. Nothing else is ever read: each object is fetched
 * one at a time by name, then watched by name for as long as a pod refers to it, so that changes reach running machines in
 * seconds. Immutable objects are read once. "Not found" is an answer of the API server; every other failure is "unknown".
 */
import { isForbidden, saysNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { resourcePath } from "../kube/paths.ts";
import { Reflector } from "../kube/reflector.ts";
import { Store } from "../kube/store.ts";
import type { ConfigMap, Pod, Secret } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import type { Lookup, References } from "./inputs.ts";
import type { ServiceCache } from "./services.ts";
import { isServiceAccountVolume, usedVolumes } from "./volumes.ts";

export interface Reference {
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
  const add = (kind: Reference["kind"], name: string | undefined, optional = false) => {
    if (!name) return;
    const key = `${kind}/${name}`;
    found.set(key, { kind, name, optional: optional && (found.get(key)?.optional ?? true) });
  };
  const spec = pod.spec;
  for (const container of [
    ...(spec?.initContainers ?? []),
    ...(spec?.containers ?? []),
    ...(spec?.ephemeralContainers ?? []),
  ]) {
    for (const source of container.envFrom ?? []) {
      add("configmap", source.configMapRef?.name, source.configMapRef?.optional);
      add("secret", source.secretRef?.name, source.secretRef?.optional);
    }
    for (const { valueFrom } of container.env ?? []) {
      add("configmap", valueFrom?.configMapKeyRef?.name, valueFrom?.configMapKeyRef?.optional);
      add("secret", valueFrom?.secretKeyRef?.name, valueFrom?.secretKeyRef?.optional);
    }
  }
  for (const { volume } of usedVolumes(pod)) {
    if (!options.files && isServiceAccountVolume(volume)) continue;
    add("configmap", volume.configMap?.name, volume.configMap?.optional);
    add("secret", volume.secret?.secretName, volume.secret?.optional);
    for (const source of volume.projected?.sources ?? []) {
      add("configmap", source.configMap?.name, source.configMap?.optional);
      add("secret", source.secret?.name, source.secret?.optional);
    }
  }
  for (const { name } of spec?.imagePullSecrets ?? []) add("secret", name, true);
  return [...found.values()];
}

export interface ReferenceCacheOptions {
  kube: Kube;
  services: ServiceCache;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Something that the pod with this UID refers to changed, appeared or went. */
  onChange: (podUid: string) => void;
  /** A read was forbidden: for metrics. */
  onDenied?: () => void;
}

type Referenced = ConfigMap | Secret;

/** Without permission to watch, an object is read again this often. */
const POLL_MS = 60_000;
/** A read that failed is repeated this soon. */
const RETRY_MS = 5_000;

/** One object that some pod refers to. */
interface Entry {
  namespace: string;
  reference: Pick<Reference, "kind" | "name">;
  /** UIDs of the pods that refer to it. */
  holders: Set<string>;
  /** What is known: undefined before the first read. */
  lookup: Lookup<Referenced> | undefined;
  /** True while a watch keeps `lookup` up to date. */
  watched: boolean;
  /** True while a later read is scheduled. */
  polled: boolean;
  stop: AbortController;
}

export class ReferenceCache {
  readonly #o: ReferenceCacheOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #byPod = new Map<string, Set<string>>();

  constructor(options: ReferenceCacheOptions) {
    this.#o = options;
  }

  /** Watches no object any more. */
  close(): void {
    for (const entry of this.#entries.values()) entry.stop.abort();
  }

  /** Names what a pod refers to; what it referred to before and does no more is let go of. */
  track(pod: Pod, references: readonly Reference[]): void {
    const uid = pod.metadata?.uid ?? "";
    const namespace = pod.metadata?.namespace ?? "";
    const wanted = new Set<string>();
    for (const { kind, name } of references) {
      const key = `${kind}/${namespace}/${name}`;
      wanted.add(key);
      let entry = this.#entries.get(key);
      if (entry === undefined) {
        entry = {
          namespace,
          reference: { kind, name },
          holders: new Set(),
          lookup: undefined,
          watched: false,
          polled: false,
          stop: new AbortController(),
        };
        this.#entries.set(key, entry);
      }
      entry.holders.add(uid);
    }
    const before = this.#byPod.get(uid) ?? new Set();
    this.#byPod.set(uid, wanted);
    for (const key of before) if (!wanted.has(key)) this.#letGo(key, uid);
  }

  /** Forgets a pod; objects that no other pod refers to are no longer watched. */
  release(podUid: string): void {
    for (const key of this.#byPod.get(podUid) ?? []) this.#letGo(key, podUid);
    this.#byPod.delete(podUid);
  }

  /** Reads what is not kept up to date by a watch. Afterwards `references` has an answer for everything tracked. */
  async read(podUid: string, signal: AbortSignal): Promise<void> {
    const entries = [...(this.#byPod.get(podUid) ?? [])].flatMap((key) => this.#entries.get(key) ?? []);
    const reads = entries.filter((entry) => !isSettled(entry)).map((entry) => this.#get(entry, signal));
    await Promise.all([...reads, this.#o.services.firstList(signal)]);
  }

  /** What is known now, for rendering this pod. Tokens are not the cache's. */
  references(pod: Pod): Omit<References, "tokens"> {
    const configMaps = new Map<string, Lookup<ConfigMap>>();
    const secrets = new Map<string, Lookup<Secret>>();
    for (const key of this.#byPod.get(pod.metadata?.uid ?? "") ?? []) {
      const entry = this.#entries.get(key);
      if (entry?.lookup === undefined) continue;
      (entry.reference.kind === "configmap" ? configMaps : secrets).set(entry.reference.name, entry.lookup);
    }
    const services = this.#o.services.of(new Set([pod.metadata?.namespace ?? "", "default"]));
    return { configMaps, secrets, services };
  }

  /** Changes when anything that the pod refers to changes; undefined while something has not been read. */
  version(podUid: string): string | undefined {
    const parts: string[] = [];
    for (const key of this.#byPod.get(podUid) ?? []) {
      const lookup = this.#entries.get(key)?.lookup;
      if (lookup === undefined || lookup.kind === "unknown") return undefined;
      parts.push(`${key}@${lookup.kind === "found" ? (lookup.object.metadata?.resourceVersion ?? "") : "absent"}`);
    }
    return parts.sort().join(",");
  }

  #letGo(key: string, podUid: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    entry.holders.delete(podUid);
    if (entry.holders.size > 0) return;
    entry.stop.abort();
    this.#entries.delete(key);
  }

  async #get(entry: Entry, signal: AbortSignal): Promise<void> {
    let lookup: Lookup<Referenced>;
    const { namespace } = entry;
    const { kind, name } = entry.reference;
    const resource = `${kind}s`;
    try {
      const path = resourcePath({ resource, namespace, name });
      lookup = { kind: "found", object: await this.#o.kube.request<Referenced>({ method: "GET", path, signal }) };
    } catch (thrown) {
      signal.throwIfAborted();
      if (isForbidden(thrown)) this.#o.onDenied?.();
      const isAbsent = saysNotFound(thrown, { resource, name });
      lookup = isAbsent ? { kind: "absent" } : { kind: "unknown", message: toError(thrown).message };
    }
    // A watch that came to life meanwhile knows better.
    if (isSettled(entry)) return;
    this.#learn(entry, lookup);
    if (lookup.kind === "unknown") void this.#poll(entry);
    else this.#watch(entry);
  }

  #learn(entry: Entry, lookup: Lookup<Referenced>): void {
    // What was once known is not lost because a later read failed.
    if (lookup.kind === "unknown" && entry.lookup !== undefined && entry.lookup.kind !== "unknown") return;
    const before = entry.lookup;
    entry.lookup = lookup;
    // Whoever asked for the first read gets it as an answer.
    if (before === undefined || versionOf(before) === versionOf(lookup)) return;
    for (const uid of entry.holders) this.#o.onChange(uid);
  }

  #watch(entry: Entry): void {
    if (entry.watched || isImmutable(entry) || entry.stop.signal.aborted) return;
    entry.watched = true;
    const { kube, clock, random, logger } = this.#o;
    const { reference, namespace } = entry;
    const store = new Store<Referenced>({ logger });
    const watching = new AbortController();
    const stop = () => watching.abort();
    entry.stop.signal.addEventListener("abort", stop, { once: true });
    store.onChange((change) => {
      this.#learn(entry, change.type === "delete" ? { kind: "absent" } : { kind: "found", object: change.object });
      if (isImmutable(entry)) stop();
    });
    const reflector = new Reflector<Referenced>({
      kube,
      path: resourcePath({ resource: reference.kind === "configmap" ? "configmaps" : "secrets", namespace }),
      query: { fieldSelector: `metadata.name=${reference.name}` },
      store,
      clock,
      random,
      logger,
      accept: (object) => object.metadata?.name === reference.name,
      onError: (error) => {
        if (isForbidden(error)) stop();
      },
    });
    void reflector.run(watching.signal).then(() => {
      entry.stop.signal.removeEventListener("abort", stop);
      if (entry.stop.signal.aborted || isImmutable(entry)) return;
      // Reading by name is allowed and watching is not: read again from time to time.
      entry.watched = false;
      void this.#poll(entry);
    });
    void store.hasSynced(watching.signal).then(
      () => {
        if (store.size === 0) this.#learn(entry, { kind: "absent" });
      },
      () => undefined,
    );
  }

  /** Reads again later, for as long as no watch does better. */
  async #poll(entry: Entry): Promise<void> {
    if (entry.polled) return;
    entry.polled = true;
    const { clock, random } = this.#o;
    const delayMs = entry.lookup?.kind === "unknown" ? RETRY_MS : POLL_MS;
    try {
      await clock.sleep(delayMs * (1 + random() / 2), entry.stop.signal);
      entry.polled = false;
      if (!isSettled(entry)) await this.#get(entry, entry.stop.signal);
    } catch {
      // Only the abort of entry.stop ends up here: no pod refers to the object any more.
    }
  }
}

/** Nothing is to be gained by reading it again. */
function isSettled(entry: Entry): boolean {
  return entry.lookup !== undefined && entry.lookup.kind !== "unknown" && (entry.watched || isImmutable(entry));
}

function isImmutable(entry: Entry): boolean {
  return entry.lookup?.kind === "found" && entry.lookup.object.immutable === true;
}

function versionOf(lookup: Lookup<Referenced>): string {
  if (lookup.kind !== "found") return lookup.kind;
  return `${lookup.object.metadata?.uid ?? ""}/${lookup.object.metadata?.resourceVersion ?? ""}`;
}
