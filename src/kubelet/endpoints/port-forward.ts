import { negotiatePortForward, servePortForward } from "../../streaming/port-forward.ts";
import { HttpError } from "../../http/http-error.ts";
import { findPod } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";
import type { StreamOptions } from "./exec.ts";

/** `/portForward/NAMESPACE/POD[/UID]`: byte streams to TCP ports inside the pod's machine. */
export function portForward({ lookup, provider, sessions, streamLimits, unread }: StreamOptions): Handler {
  return {
    kind: "upgrade",
    async handle(context, upgrade) {
      const { params, query, user, signal, notes } = context;
      const { pod, machineId } = findPod(lookup, params as { namespace: string; pod: string; uid?: string });
      const protocol = negotiatePortForward(upgrade.request, query);
      const dial = provider.portForward?.bind(provider);
      if (dial === undefined) throw new HttpError(501, `the provider ${provider.name} cannot forward ports`);
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
