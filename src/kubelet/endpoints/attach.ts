import { allContainersOf } from "../../kube/pod.ts";
import { negotiateRemoteCommand, remoteCommandOptions } from "../../streaming/remote-command.ts";
import { HttpError } from "../../http/http-error.ts";
import { findPod, requireContainer } from "../pod-lookup.ts";
import { runSession } from "../remote-session.ts";
import type { Handler } from "../router.ts";
import type { StreamOptions } from "./exec.ts";

/** `/attach/NAMESPACE/POD[/UID]/CONTAINER`: the streams of a running container's main process. */
export function attach({ lookup, provider, sessions, streamLimits, unread }: StreamOptions): Handler {
  return {
    kind: "upgrade",
    async handle(context, upgrade) {
      const { params, query, user, signal, notes } = context;
      const found = findPod(lookup, params as { namespace: string; pod: string; uid?: string });
      notes.podUid = found.pod.metadata?.uid;
      const container = params["container"]!;
      requireContainer(found.pod, container);
      const options = remoteCommandOptions(query);
      const protocol = negotiateRemoteCommand(upgrade.request);
      if (provider.attach === undefined)
        throw new HttpError(501, `the provider ${provider.name} cannot attach to a container`);
      using _session = sessions.open("attach", found.pod.metadata, user.username);
      const process = await provider.attach(found.machineId, container, { ...options, signal });
      // As container runtimes do it: stdin that is open to one client only ends with that client's; any other stays
      // open.
      const spec = allContainersOf(found.pod).find(({ name }) => name === container);
      const endsWithStdin = spec?.stdinOnce !== true || spec.tty === true;
      const limits = { ...streamLimits, unread: { budget: unread, tenant: params["namespace"]! } };
      await runSession({ upgrade, protocol, options, process, kind: "attach", endsWithStdin, limits, signal, notes });
    },
  };
}
