import { negotiatePortForward, servePortForward } from "../../streaming/port-forward.ts";
import { findPod } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";
import { ability } from "./ability.ts";
import type { StreamOptions } from "./exec.ts";

/** `/portForward/NAMESPACE/POD[/UID]`: byte streams to TCP ports inside the pod's machine. */
export function portForward(options: StreamOptions): Handler {
  const { lookup, sessions, streamLimits, unread } = options;
  return {
    kind: "upgrade",
    async handle(context, upgrade) {
      const { params, query, user, signal, notes } = context;
      const { pod, machineId } = findPod(lookup, params as { namespace: string; pod: string; uid?: string });
      const protocol = negotiatePortForward(upgrade.request, query);
      const dial = ability(options, "portForward");
      const { name = "", uid = "" } = pod.metadata ?? {};
      const ports = new Set<number>();
      Object.assign(notes, { podUid: uid, ports });
      using _session = sessions.open("port-forward", pod.metadata, user.username);
      const target = {
        podName: name,
        podUid: uid,
        dial(port: number, cancel: AbortSignal) {
          notes.begun = true;
          ports.add(port);
          return dial(machineId, port, { signal: cancel });
        },
      };
      const limits = { ...streamLimits, unread: { budget: unread, tenant: params["namespace"]! } };
      await servePortForward(upgrade, protocol, target, limits, signal);
    },
  };
}
