/** What `kubectl attach` asks of a node. */
import { allContainersOf } from "../../kube/pod.ts";
import { negotiateRemoteCommand, remoteCommandOptions } from "../../streaming/remote-command.ts";
import { findPod, requireContainer } from "../pod-lookup.ts";
import { runSession } from "../remote-session.ts";
import type { Handler } from "../router.ts";
import { ability } from "./ability.ts";
import type { StreamOptions } from "./exec.ts";

/** `/attach/NAMESPACE/POD[/UID]/CONTAINER`: the streams of a running container's main process. */
export function attach(options: StreamOptions): Handler {
  const { lookup, sessions, streamLimits, unread } = options;
  return {
    kind: "upgrade",
    async handle(context, upgrade) {
      const { params, query, user, signal, notes } = context;
      const found = findPod(lookup, params as { namespace: string; pod: string; uid?: string });
      notes.podUid = found.pod.metadata?.uid;
      const container = params["container"]!;
      requireContainer(found.pod, container);
      const streams = remoteCommandOptions(query);
      const protocol = negotiateRemoteCommand(upgrade.request);
      const open = ability(options, "attach");
      using _session = sessions.open("attach", found.pod.metadata, user.username);
      const process = await open(found.machineId, container, { ...streams, signal });
      // As container runtimes do it: stdin that is open to one client only ends with that client's; any other stays
      // open.
      const spec = allContainersOf(found.pod).find(({ name }) => name === container);
      const endsWithStdin = spec?.stdinOnce !== true || spec.tty === true;
      const limits = { ...streamLimits, unread: { budget: unread, tenant: params["namespace"]! } };
      await runSession({
        upgrade,
        protocol,
        options: streams,
        process,
        kind: "attach",
        endsWithStdin,
        limits,
        signal,
        notes,
      });
    },
  };
}
