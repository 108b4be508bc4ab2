/** Builders of patches. A patch always says which UID it is for where a name could have been given to another object. */
import type { KubeRequest } from "./kube.ts";
import { podPath } from "./paths.ts";
import type { Pod, PodStatus } from "./wire.ts";

/** The API server has no default that fits everything, so each PATCH names its kind. */
export const PATCH_TYPE = {
  /** RFC 7386: objects merge, lists are replaced, null deletes. */
  merge: "application/merge-patch+json",
  /** As merge, but lists with a merge key (conditions by type, containers by name) merge by element; built-in kinds only. */
  strategic: "application/strategic-merge-patch+json",
  /** RFC 6902: a list of operations. Not safe to repeat. */
  json: "application/json-patch+json",
} as const;

type PatchRequest = Pick<KubeRequest, "method" | "path" | "body" | "contentType">;

export function mergePatch(path: string, body: object): PatchRequest {
  return { method: "PATCH", path, body, contentType: PATCH_TYPE.merge };
}

export function strategicPatch(path: string, body: object): PatchRequest {
  return { method: "PATCH", path, body, contentType: PATCH_TYPE.strategic };
}

export type JsonPatchOperation =
  | { op: "add" | "replace" | "test"; path: string; value: unknown }
  | { op: "remove"; path: string }
  | { op: "move" | "copy"; from: string; path: string };

export function jsonPatch(path: string, operations: readonly JsonPatchOperation[]): PatchRequest {
  return { method: "PATCH", path, body: operations, contentType: PATCH_TYPE.json };
}

/** Fields of a pod's status that only the kubelet writes: absent from a new status, they are removed. */
const KUBELET_FIELDS = [
  "message",
  "reason",
  "hostIP",
  "hostIPs",
  "podIP",
  "podIPs",
  "initContainerStatuses",
  "containerStatuses",
  "ephemeralContainerStatuses",
] as const satisfies readonly (keyof PodStatus)[];

/**
 * Sets a pod's status. `status` must have been computed from `pod`: its lists replace those of the API server, foreign
 * conditions included, so it has to carry them on. A merge patch, because strategic merge never removes a list element.
 * Fields that the pod has, `status` lacks and only a kubelet writes are removed; others are left alone.
 *
 * The server answers 409 when the UID or the resourceVersion no longer holds.
 */
export function podStatusPatch(pod: Pod, status: PodStatus): PatchRequest {
  const { namespace, name, uid, resourceVersion } = pod.metadata ?? {};
  const removed = KUBELET_FIELDS.filter((key) => pod.status?.[key] !== undefined && status[key] === undefined);
  return mergePatch(podPath(namespace ?? "", name ?? "", "status"), {
    metadata: { uid, resourceVersion },
    status: { ...status, ...Object.fromEntries(removed.map((key) => [key, null])) },
  });
}

/** Escapes a key for a JSON pointer (RFC 6901). */
export function pointer(...keys: readonly (string | number)[]): string {
  return keys.map((key) => `/${String(key).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}
