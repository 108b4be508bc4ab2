/**
 * The cluster's trust anchors, for projected volumes (pkg/kubelet/clustertrustbundle): ClusterTrustBundles by name, or
 * all of a signer with certain labels. They are listed and watched from the first pod on that wants one, in the newest
 * version of their API that the server has. Nodes and ServiceAccounts may read them by roles that the API server makes
 * itself.
 */
import { isForbidden, isNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { Reflector } from "../../kube/reflector.ts";
import { Store } from "../../kube/store.ts";
import { uidOf } from "../../kube/pod.ts";
import type { KubeObject, Pod } from "../../kube/wire.ts";
import { isSubset, matchesRequirements } from "../../resources/labels.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { linkAbort, pause, unlessAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { certificatesIn } from "../../util/pem.ts";
import type { Random } from "../../util/random.ts";
import { trustKey, type Lookup, type TrustWish } from "../types.ts";

interface TrustBundle extends KubeObject {
  readonly spec?: { readonly signerName?: string; readonly trustBundle?: string };
}

interface TrustBundlesOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** What this pod wants of them has changed. */
  onChange: (podUid: string) => void;
  /** Reading them was refused: for metrics. */
  onDenied?: (() => void) | undefined;
}

const VERSIONS = ["v1", "v1beta1", "v1alpha1"];
/** A server without any may be upgraded, or have them switched on. */
const LOOK_AGAIN_MS = 60_000;
const NOT_READ = "ClusterTrustBundles have not been read yet";

interface Holder {
  wishes: readonly TrustWish[];
  /** Of what it was told last. */
  version: string;
}

export class TrustBundles {
  readonly #options: TrustBundlesOptions;
  readonly #store: Store<TrustBundle>;
  readonly #pods = new Map<string, Holder>();
  readonly #closed = new AbortController();
  readonly #answered = Promise.withResolvers<void>();
  /** Certificates of a bundle: pods name the same ones again and again. */
  readonly #certificates = new WeakMap<TrustBundle, readonly string[]>();
  #isStarted = false;
  /** Why they are not known; undefined while they are. */
  #problem: string | undefined = NOT_READ;

  constructor(options: TrustBundlesOptions) {
    this.#options = options;
    this.#store = new Store<TrustBundle>({ logger: options.logger });
    this.#store.onChange(() => this.#tell());
  }

  /** Watches nothing any more. */
  close(): void {
    this.#closed.abort();
    this.#answered.resolve();
  }

  /** Anchors in PEM by `trustKey`; from now on the pod hears of changes. @throws the signal's reason on abort */
  async get(pod: Pod, wishes: readonly TrustWish[], signal: AbortSignal): Promise<Map<string, Lookup<string>>> {
    const uid = uidOf(pod);
    if (wishes.length === 0) {
      this.#pods.delete(uid);
      return new Map();
    }
    if (!this.#isStarted) {
      this.#isStarted = true;
      void this.#follow();
    }
    await unlessAborted(this.#answered.promise, signal);
    this.#pods.set(uid, { wishes, version: this.#versionOf(wishes) });
    return new Map(wishes.map((wish) => [trustKey(wish), this.#anchors(wish)]));
  }

  /** Changes with what the pod wants of them. */
  version(wishes: readonly TrustWish[]): string {
    return wishes.length === 0 ? "" : this.#versionOf(wishes);
  }

  /** Forgets a pod that is gone. */
  release(podUid: string): void {
    this.#pods.delete(podUid);
  }

  async #follow(): Promise<void> {
    const { clock } = this.#options;
    const { signal } = this.#closed;
    while (!signal.aborted) {
      for (const version of VERSIONS) if (!signal.aborted) await this.#watch(version);
      if (signal.aborted) return;
      this.#learn("the API server has no ClusterTrustBundles");
      await pause(clock, LOOK_AGAIN_MS, signal);
    }
  }

  /** Keeps the store current until the server says that it does not have this version. */
  async #watch(version: string): Promise<void> {
    const { kube, clock, random, logger, onDenied } = this.#options;
    const missing = new AbortController();
    using linked = linkAbort(this.#closed.signal, missing.signal);
    const reflector = new Reflector<TrustBundle>({
      kube,
      path: resourcePath({ group: "certificates.k8s.io", version, resource: "clustertrustbundles" }),
      store: this.#store,
      clock,
      random,
      logger,
      onError: (error) => {
        // Also later: what was read stays until another version is.
        if (isNotFound(error)) return missing.abort();
        if (this.#store.synced) return;
        if (isForbidden(error)) onDenied?.();
        this.#learn(error.message);
      },
    });
    this.#store.hasSynced(linked.signal).then(
      () => this.#learn(undefined),
      () => undefined,
    );
    await reflector.run(linked.signal);
  }

  #learn(problem: string | undefined): void {
    this.#problem = problem;
    this.#answered.resolve();
    this.#tell();
  }

  #tell(): void {
    if (!this.#store.synced && this.#problem === NOT_READ) return;
    for (const [uid, holder] of this.#pods) {
      const version = this.#versionOf(holder.wishes);
      if (version === holder.version) continue;
      holder.version = version;
      this.#options.onChange(uid);
    }
  }

  #versionOf(wishes: readonly TrustWish[]): string {
    if (!this.#store.synced) return this.#problem ?? NOT_READ;
    const seen = wishes.map((wish) => this.#bundles(wish).map(({ metadata }) => metadata?.resourceVersion));
    return JSON.stringify(seen);
  }

  #bundles(wish: TrustWish): TrustBundle[] {
    if ("name" in wish) return [this.#store.getByName("", wish.name) ?? []].flat();
    const { signerName, labelSelector } = wish;
    // As a kubelet: no selector selects nothing, an empty one everything.
    if (labelSelector === undefined) return [];
    const { matchLabels = {}, matchExpressions = [] } = labelSelector;
    return this.#store
      .list()
      .filter(({ spec }) => spec?.signerName === signerName)
      .filter(({ metadata: { labels = {} } = {} }) => {
        return isSubset(matchLabels, labels) && matchesRequirements(labels, matchExpressions);
      });
  }

  #anchors(wish: TrustWish): Lookup<string> {
    if (!this.#store.synced) return { kind: "unknown", message: this.#problem ?? NOT_READ };
    const bundles = this.#bundles(wish);
    if (bundles.length === 0) return { kind: "absent" };
    // Each once, in an order that is the same for the same certificates: the machine's file changes only if they do.
    const unique = new Set(bundles.flatMap((bundle) => this.#certificatesOf(bundle)));
    return { kind: "found", object: [...unique].toSorted().join("") };
  }

  #certificatesOf(bundle: TrustBundle): readonly string[] {
    const known = this.#certificates.get(bundle) ?? certificatesIn(bundle.spec?.trustBundle ?? "");
    this.#certificates.set(bundle, known);
    return known;
  }
}
