/** `/exec`: a new command in a running container, over SPDY or WebSocket. */
import { negotiateRemoteCommand, remoteCommandOptions, type StreamLimits } from "../../streaming/remote-command.ts";
import type { UnreadBytes } from "../../util/unread.ts";
import { HttpError } from "../../http/http-error.ts";
import { ability, type Abilities } from "./ability.ts";
import { findPod, requireContainer, type PodLookup } from "../pod-lookup.ts";
import { runSession } from "../remote-session.ts";
import type { Handler } from "../router.ts";
import type { Sessions } from "../sessions.ts";

export interface StreamOptions extends Abilities {
  lookup: PodLookup;
  sessions: Sessions;
  streamLimits: StreamLimits;
  /** Shared by all sessions. */
  unread: UnreadBytes;
}

/** `/exec/NAMESPACE/POD[/UID]/CONTAINER?command=...`: runs a command in a running container. */
export function exec(options: StreamOptions): Handler {
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
      const command = query.getAll("command");
      if (command.length === 0) throw new HttpError(400, 'query parameter "command" is required');
      const protocol = negotiateRemoteCommand(upgrade.request);
      const start = ability(options, "exec");
      using _session = sessions.open("exec", found.pod.metadata, user.username);
      const process = await start(found.machineId, container, command, { ...streams, signal });
      const limits = { ...streamLimits, unread: { budget: unread, tenant: params["namespace"]! } };
      await runSession({
        upgrade,
        protocol,
        options: streams,
        process,
        kind: "exec",
        limits,
        signal,
        notes,
      });
    },
  };
}
