/** RuntimeClass: which handlers this node has. The overhead was written into the pod's spec by admission. */
import type { Pod } from "../../kube/wire.ts";
import type { RuntimeHandler } from "../../provider/machine.ts";

export type HandlerLookup =
  | { kind: "found"; handler: string }
  | { kind: "absent" }
  | { kind: "unknown"; message: string };

/** `handler` is for the machine's specification: absent where the backend runs the pod like any other. */
type RuntimeClassResult = { ok: true; handler?: string } | { ok: false; message: string };

/**
 * Whether the pod's runtime class names a handler that this node has. A failure keeps the pod Pending with the event
 * `FailedCreatePodSandBox`, as with a kubelet: the class may be created or corrected later.
 * @param offered by the backend
 * @param configured by the agent's configuration, which the backend does not know
 */
export function checkRuntimeClass(
  pod: Pod,
  lookup: HandlerLookup | undefined,
  offered: readonly RuntimeHandler[],
  configured: readonly string[],
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
  const { handler } = lookup;
  // The empty handler is the default runtime, which every node has.
  if (handler === "") return { ok: true };
  const found = offered.find((each) => each.name === handler);
  if (found !== undefined) {
    // Of the default runtime, the capability user_namespace tells.
    if (pod.spec?.hostUsers !== false || found.user_namespaces === true) return { ok: true, handler };
    const message = `can't set \`spec.hostUsers: false\`, RuntimeClass handler "${handler}" does not support user namespaces`;
    return { ok: false, message };
  }
  if (configured.includes(handler)) return { ok: true };
  const known = [...offered.map((each) => each.name), ...configured].filter(Boolean).join(", ") || "none";
  return { ok: false, message: `no runtime for "${handler}" is configured (handlers of this node: ${known})` };
}
