/**
 * What the reconciler asks of the API server about one pod, and writes to it. A failure means what the table in
 * `api-reactions.ts` says; what is thrown here is to be tried again. The caller sees to it that only who may act
 * writes.
 */
import { isKubeApiError } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { podStatusPatch } from "../kube/patch.ts";
import { podPath, resourcePath } from "../kube/paths.ts";
import type { Pod } from "../kube/wire.ts";
import { toError } from "../util/errors.ts";
import { ANNOTATIONS, reactionTo, refusedFields, type Reaction } from "./api-reactions.ts";
import type { Fields } from "./status-write.ts";

/** What became of writing a pod's status. */
type StatusWritten =
  /** `pod` is the API server's newest copy. */
  | { kind: "written"; pod: Pod }
  /** The pod has changed since it was decided on; `pod` is as it is now. */
  | { kind: "stale"; pod: Pod }
  /** There is no pod of this name and UID any more. */
  | { kind: "gone" }
  /** Nothing was written, nor will it ever be with these fields as they are. */
  | { kind: "refused"; fields: readonly string[]; message: string }
  /** Nothing was written. A person has to do something about it, but another try may succeed. */
  | { kind: "denied"; error: Error };

const EVICTION_MS = 5_000;

export class PodApi {
  readonly #kube: Kube;
  readonly #nodeName: string;

  constructor(options: { kube: Kube; nodeName: string }) {
    this.#kube = options.kube;
    this.#nodeName = options.nodeName;
  }

  /**
   * A read that no cache may answer. Undefined when there is no pod of this name on this node.
   *
   * Of a pod that is held here the API server is asked for no more than its metadata first: where UID and
   * resourceVersion are the same, so is all the rest.
   * @throws to be tried again
   */
  async read(pod: Pod, signal: AbortSignal): Promise<Pod | undefined> {
    const { namespace = "", name = "" } = pod.metadata ?? {};
    const request = { method: "GET", path: podPath(namespace, name), signal } as const;
    try {
      if (pod.metadata?.resourceVersion === undefined) return await this.#kube.request<Pod>(request);
      const newest = await this.#kube.request<Pod>({ ...request, metadataOnly: true });
      if (!isMetadataOnly(newest)) return newest;
      return isSameVersion(newest, pod) ? pod : await this.#kube.request<Pod>(request);
    } catch (thrown) {
      const reaction = this.#react("read", pod, thrown, signal);
      if (reaction.next === "go_on") return undefined;
      if (reaction.next === "list") return this.#readFromList(namespace, name, signal);
      throw thrown;
    }
  }

  /**
   * The Node authorizer forbids a node the GET of a pod that it does not know to be bound to this node: one that is
   * gone (it never says 404 then), or one that was bound a moment ago. A list of this node's pods is always allowed;
   * without a resourceVersion it is as fresh as the GET.
   */
  async #readFromList(namespace: string, name: string, signal: AbortSignal): Promise<Pod | undefined> {
    const { items } = await this.#kube.request<{ items: Pod[] }>({
      method: "GET",
      path: resourcePath({ resource: "pods", namespace }),
      query: { fieldSelector: `metadata.name=${name},spec.nodeName=${this.#nodeName}` },
      signal,
    });
    return items[0];
  }

  /**
   * Writes fields of the status, and annotations with them, onto exactly this copy of the pod.
   * @throws to be tried again
   */
  async writeStatus(
    pod: Pod,
    status: Fields,
    annotations: Readonly<Record<string, string>> | undefined,
    signal: AbortSignal,
  ): Promise<StatusWritten> {
    try {
      const patch = podStatusPatch(pod, status, annotations);
      const reply = await this.#kube.request<Pod>({ ...patch, signal, metadataOnly: true });
      return { kind: "written", pod: isMetadataOnly(reply) ? patched(pod, status, reply) : reply };
    } catch (thrown) {
      const reaction = this.#react("status", pod, thrown, signal);
      const error = toError(thrown);
      if (reaction.next === "go_on") return { kind: "gone" };
      if (reaction.next === "read") return await this.#stale(pod, error, signal);
      const fields = refusedFields(thrown, [...Object.keys(status), ...(annotations ? [ANNOTATIONS] : [])]);
      if (reaction.next === "without" && fields.length > 0) return { kind: "refused", fields, message: error.message };
      if (reaction.tell) return { kind: "denied", error };
      throw thrown;
    }
  }

  /**
   * Not by way of the watch: it may be dead for minutes before that is noticed, and each write would lose again until
   * then.
   */
  async #stale(pod: Pod, error: Error, signal: AbortSignal): Promise<StatusWritten> {
    const { namespace, name } = pod.metadata!;
    const now = await this.read({ metadata: { namespace: namespace!, name: name! } }, signal);
    if (now?.metadata!.uid !== pod.metadata!.uid) return { kind: "gone" };
    if (now!.metadata!.resourceVersion === pod.metadata!.resourceVersion) throw error;
    return { kind: "stale", pod: now! };
  }

  /**
   * Removes the pod's object, if it still has this UID: at once, or as soon as its finalizers let it go.
   *
   * @throws to be tried again
   */
  async remove(pod: Pod, signal: AbortSignal): Promise<{ kind: "removed" } | { kind: "denied"; error: Error }> {
    const { namespace = "", name = "", uid } = pod.metadata ?? {};
    try {
      await this.#kube.request({
        method: "DELETE",
        path: podPath(namespace, name),
        body: { kind: "DeleteOptions", apiVersion: "v1", gracePeriodSeconds: 0, preconditions: { uid } },
        signal,
        metadataOnly: true,
      });
    } catch (thrown) {
      const reaction = this.#react("remove", pod, thrown, signal);
      if (reaction.tell) return { kind: "denied", error: toError(thrown) };
      // Another pod may have the name by now; else another writer was faster, and this is to be done again.
      const isGone =
        reaction.next === "go_on" ||
        (reaction.next === "read" && (await this.read(pod, signal))?.metadata!.uid !== uid);
      if (!isGone) throw thrown;
    }
    return { kind: "removed" };
  }

  /**
   * Has the API server delete the pod, if it still has this UID and its budgets allow that now.
   *
   * @throws to be tried again
   */
  async evict(
    pod: Pod,
    signal: AbortSignal,
  ): Promise<{ kind: "evicted" | "gone" } | { kind: "refused" | "denied"; error: Error }> {
    const { namespace = "", name = "", uid } = pod.metadata ?? {};
    const deleteOptions = { preconditions: { uid } };
    const body = { apiVersion: "policy/v1", kind: "Eviction", metadata: { namespace, name }, deleteOptions };
    try {
      const path = podPath(namespace, name, "eviction");
      const limits = { once: true, timeoutMs: EVICTION_MS, metadataOnly: true };
      await this.#kube.request({ method: "POST", path, body, signal, ...limits });
      return { kind: "evicted" };
    } catch (thrown) {
      if (isKubeApiError(thrown) && thrown.status === 429) return { kind: "refused", error: thrown };
      const reaction = this.#react("remove", pod, thrown, signal);
      if (reaction.next === "go_on" || reaction.next === "read") return { kind: "gone" };
      if (reaction.tell) return { kind: "denied", error: toError(thrown) };
      throw thrown;
    }
  }

  #react(call: "read" | "status" | "remove", pod: Pod, thrown: unknown, signal: AbortSignal): Reaction {
    signal.throwIfAborted();
    return reactionTo(call, thrown, pod.metadata?.name ?? "");
  }
}

function isMetadataOnly(reply: Pod): boolean {
  return reply.kind === "PartialObjectMetadata";
}

function isSameVersion({ metadata: a }: Pod, { metadata: b }: Pod): boolean {
  return a?.uid === b?.uid && a?.resourceVersion === b?.resourceVersion;
}

/**
 * The pod after a merge patch of these fields onto exactly this copy of it: they replaced what was there, null removed.
 * What the API server made of them beyond that, the watch brings.
 */
function patched(pod: Pod, changes: Fields, { metadata }: Pod): Pod {
  const status = Object.fromEntries(
    Object.entries({ ...pod.status, ...changes }).filter(([, value]) => value !== null),
  ) as Pod["status"];
  return { ...pod, metadata: metadata!, status: status! };
}
