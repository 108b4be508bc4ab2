/** RuntimeClass: which handlers this node has. The overhead was written into the pod's spec by admission. */
import type { Pod } from "../../kube/wire.ts";

export type HandlerLookup =
  | { kind: "found"; handler: string }
  | { kind: "absent" }
  | { kind: "unknown"; message: string };

type RuntimeClassResult = { ok: true } | { ok: false; message: string };

/**
 * Whether the pod's runtime class names a handler that this node has. A failure keeps the pod Pending with the event
 * `FailedCreatePodSandBox`, as with a kubelet: the class may be created or corrected later.
 */
export function checkRuntimeClass(
  pod: Pod,
  lookup: HandlerLookup | undefined,
  handlers: readonly string[],
): RuntimeClassResult {
  const name = pod.spec?.runtimeClassName;
  if (name === undefined || name === "") return { ok: true };
  if (lookup === undefined || lookup.kind === "unknown") {
    return {
      ok: false,
      message: `unable to get OCI runtime: RuntimeClass "${name}": ${lookup?.message ?? "not read yet"}`,
    };
  }
  if (lookup.kind === "absent")
    return { ok: false, message: `unable to get OCI runtime: RuntimeClass "${name}" not found` };
  // The empty handler is the default runtime, which every node has.
  if (lookup.handler === "" || handlers.includes(lookup.handler)) return { ok: true };
  const known = handlers.length === 0 ? "none" : handlers.join(", ");
  return { ok: false, message: `no runtime for "${lookup.handler}" is configured (handlers of this node: ${known})` };
}
