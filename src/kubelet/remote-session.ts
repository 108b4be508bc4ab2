/** What exec and attach have in common once the process is open. */
import type { ProcessStreams } from "../provider/provider.ts";
import {
  acceptRemoteCommand,
  serveRemoteCommand,
  type RemoteCommandOptions,
  type RemoteCommandProtocol,
  type StreamLimits,
} from "../streaming/remote-command.ts";
import type { UpgradeRequest } from "../streaming/upgrade.ts";
import { toError } from "../util/errors.ts";
import type { SessionNotes } from "./router.ts";
import { onAbort } from "../util/abort.ts";

/** Upgrades the connection and serves `process` on it until one side ends. The process is closed whatever happens. */
export async function runSession(session: {
  upgrade: UpgradeRequest;
  protocol: RemoteCommandProtocol;
  options: RemoteCommandOptions;
  process: ProcessStreams;
  kind: "exec" | "attach";
  /** The end of the client's stdin ends the session. */
  endsWithStdin?: boolean;
  limits: StreamLimits;
  signal: AbortSignal;
  notes: SessionNotes;
}): Promise<void> {
  const { upgrade, process, signal, notes } = session;
  Object.assign(notes, { begun: true, tty: session.options.tty, stdin: session.options.stdin });
  // It may end while the client still opens its streams; serveRemoteCommand looks at it again.
  process.exit.catch(() => {});
  try {
    const client = await acceptRemoteCommand(upgrade, session.protocol, session.options, session.limits);
    using _ = onAbort(signal, () => client.destroy(toError(signal.reason).message));
    const endsWithStdin = session.endsWithStdin ? session.limits : undefined;
    const outcome = await serveRemoteCommand(client, process, session.kind, endsWithStdin);
    if ("error" in outcome) notes.failure = outcome.error.message;
    else if (session.kind === "exec") notes.exitCode = outcome.exitCode;
    await client.closed;
  } finally {
    process.close();
  }
}
