import type { Pod } from "./wire.ts";

/** The fields by which a line of the log names a pod. */
export function aboutPod({ metadata }: Pick<Pod, "metadata">): { namespace: string; pod: string; uid: string } {
  const { namespace = "", name = "", uid = "" } = metadata ?? {};
  return { namespace, pod: name, uid };
}
