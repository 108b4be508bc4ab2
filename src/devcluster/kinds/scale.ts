/** The subresource `scale`: how many replicas an object wants and has, in one form for all kinds (`autoscaling/v1`). */
import { invalid, invalidValue, modifiedConflict } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { jsonPatch, mergePatch, strategicMergePatch } from "../objects/patch.ts";
import { decode } from "../objects/schema.ts";
import type { Kind } from "./kind.ts";
import type { ObjectApi, PatchType, WriteContext } from "./object-api.ts";
import { selectorText } from "./pod-template.ts";

/** The Scale of an object whose kind has one. */
export function scaleOf(kind: Kind, object: StoredObject): Json {
  const { name, namespace, uid, resourceVersion, creationTimestamp } = object.metadata;
  const selector = selectorText(kind.scale!.selector(object));
  const replicas = object.spec.replicas as number;
  return {
    kind: "Scale",
    apiVersion: "autoscaling/v1",
    metadata: { name, namespace, uid, resourceVersion, creationTimestamp },
    spec: { ...(replicas !== 0 && { replicas }) },
    status: { replicas: object.status?.replicas ?? 0, ...(selector && { selector }) },
  };
}

/** PUT, or PATCH with `type`, of the Scale. @returns the new Scale. @throws ApiStatusError 404, 409, 422 */
export function writeScale(
  objects: ObjectApi,
  kind: Kind,
  at: { namespace: string; name: string },
  { body, type }: { body: Json; type: PatchType | undefined },
  context: WriteContext,
): Json {
  const { namespace, name } = at;
  const old = objects.get(kind, namespace, name);
  const next = decode<Json>("V1Scale", "Scale", "v1", patched(scaleOf(kind, old), body, type)).value;
  const asked = next.metadata?.resourceVersion as string | undefined;
  if (asked && asked !== old.metadata.resourceVersion) throw modifiedConflict(kind, name);
  const replicas = (next.spec?.replicas ?? 0) as number;
  if (replicas < 0) {
    throw invalid({ group: "autoscaling", kind: "Scale" }, name, [
      invalidValue("spec.replicas", replicas, "must be greater than or equal to 0"),
    ]);
  }
  const changed = { ...old, spec: { ...old.spec, replicas } };
  return scaleOf(kind, objects.replace({ kind, namespace, name, subresource: undefined }, changed, context).object);
}

function patched(scale: Json, patch: Json, type: PatchType | undefined): Json {
  switch (type) {
    case undefined:
      return patch;
    case "json":
      return jsonPatch(scale, patch);
    case "strategic":
      return strategicMergePatch("V1Scale", scale, patch);
    case "merge":
    case "apply":
      return mergePatch(scale, patch);
  }
}
