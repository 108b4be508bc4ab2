/** What a Node is told of its machines' network. */

interface Lack {
  reason?: string | undefined;
  message: string;
}

/**
 * Whether there is a network for machines, in the words of the cluster's own components (kubelet: runtimeState; node
 * lifecycle: NetworkUnavailable). While there is none, the control plane keeps away pods that want addresses of their
 * own.
 * @param lack absent where there is one: told all the same, for the Node may have had another backend before
 */
export function networkCondition(lack: Lack | undefined) {
  const type = "NetworkUnavailable";
  if (lack === undefined)
    return { type, status: "False", reason: "NetworkPluginReady", message: "container runtime network ready" } as const;
  const { reason, message } = lack;
  return {
    type,
    status: "True",
    reason: reason || "NetworkPluginNotReady",
    message: `container runtime network not ready: NetworkReady=false reason:${reason || "NetworkPluginNotReady"} message:${message}`,
  } as const;
}
