/**
 * Builders of patches. A patch always says which UID it is for where a name could have been given to another object.
 */
import type { KubeRequest } from "./kube.ts";
import { podPath } from "./paths.ts";
import type { Pod } from "./wire.ts";

/** The API server has no default that fits everything, so each PATCH names its kind. */
const PATCH_TYPE = {
  /** RFC 7386: objects merge, lists are replaced, null deletes. */
  merge: "application/merge-patch+json",
  /**
   * As merge, but lists with a merge key (conditions by type, containers by name) merge by element; built-in kinds
   * only.
   */
  strategic: "application/strategic-merge-patch+json",
} as const;

type PatchRequest = Pick<KubeRequest, "method" | "path" | "body" | "contentType">;

export function mergePatch(path: string, body: object): PatchRequest {
  return { method: "PATCH", path, body, contentType: PATCH_TYPE.merge };
}

export function strategicPatch(path: string, body: object): PatchRequest {
  return { method: "PATCH", path, body, contentType: PATCH_TYPE.strategic };
}

/**
 * Changes fields of a pod's status, null removes one. The lists in `changes` replace those of the API server, so they
 * have to carry foreign conditions on; a merge patch, because strategic merge never removes an element of a list.
 *
 * The server answers 409 when the UID or the resourceVersion no longer holds.
 *
 * @param annotations written along: the one thing of a pod's metadata that NodeRestriction lets a node change this way
 */
export function podStatusPatch(
  pod: Pod,
  changes: Readonly<Record<string, unknown>>,
  annotations?: Readonly<Record<string, string>>,
): PatchRequest {
  const { namespace, name, uid, resourceVersion } = pod.metadata ?? {};
  return mergePatch(podPath(namespace ?? "", name ?? "", "status"), {
    metadata: { uid, resourceVersion, ...(annotations && { annotations }) },
    status: changes,
  });
}
