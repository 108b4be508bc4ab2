/**
 * The newest known copy of each pod: the cache's, or that of a reply which the cache has not caught up with.
 */
import { uidOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import type { Desired } from "./decision.ts";
import type { PodRecords } from "./pod-record.ts";
import type { PodSource } from "./reconciler-options.ts";
import { isSame } from "./status/diff.ts";

export class PodCopies {
  readonly #cache: PodSource;
  readonly #records: PodRecords;

  constructor(cache: PodSource, records: PodRecords) {
    this.#cache = cache;
    this.#records = records;
  }

  /** What the API server wants for this UID. */
  desired(uid: string): Desired {
    if (!this.#cache.synced) return { kind: "unknown" };
    const cached = this.#cache.get(uid);
    const record = this.#records.find(uid);
    const overlay = record?.overlay;
    if (cached !== undefined && overlay?.olderVersions.has(cached.metadata!.resourceVersion!))
      return { kind: "pod", pod: overlay.pod };
    if (record !== undefined) record.overlay = undefined;
    return cached === undefined ? { kind: "none" } : { kind: "pod", pod: cached };
  }

  /**
   * The cache has got this copy: the one from a reply is not needed any more, if it is of the same version.
   *
   * @returns whether they are the same in all that a write of this process has changed. A server may have made
   *   something else of a status than it was told.
   */
  caughtUp(cached: Pod): boolean {
    const record = this.#records.find(uidOf(cached));
    const known = record?.overlay?.pod;
    if (record === undefined || known?.metadata!.resourceVersion !== cached.metadata!.resourceVersion) return false;
    record.overlay = undefined;
    return isSame(known?.status, cached.status);
  }

  /** Version of the cache's copy. */
  cachedVersion(uid: string): string | undefined {
    return this.#cache.get(uid)?.metadata!.resourceVersion;
  }

  /**
   * Uses a newer copy of the pod, from a reply, until the cache has moved on from what it holds now. A cache that moved
   * while the reply travelled may hold something newer still, so the reply is not used then.
   *
   * @param cachedBefore version of the cache's copy before the request
   */
  learn(uid: string, pod: Pod, cachedBefore: string | undefined): void {
    const cached = this.cachedVersion(uid);
    const version = pod.metadata!.resourceVersion!;
    if (cached === undefined || cached !== cachedBefore || cached === version) return;
    const record = this.#records.of(uid);
    const olderVersions = record.overlay?.olderVersions ?? new Set<string>();
    if (record.overlay !== undefined) olderVersions.add(record.overlay.pod.metadata!.resourceVersion!);
    olderVersions.add(cached);
    olderVersions.delete(version);
    record.overlay = { olderVersions, pod };
  }
}
