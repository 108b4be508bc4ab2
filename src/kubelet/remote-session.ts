import type { ProcessStreams } from "../provider/provider.ts";
import {
  acceptRemoteCommand,
  serveRemoteCommand,
  type RemoteCommandOptions,
  type RemoteCommandProtocol,
  type StreamLimits,
} from "../streaming/remote-command.ts";
import type { UpgradeRequest } from "../streaming/upgrade.ts";

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
}): Promise<void> {
  const { upgrade, process, signal } = session;
  // It may end while the client still opens its streams; serveRemoteCommand looks at it again.
  process.exit.catch(() => {});
  try {
    const client = await acceptRemoteCommand(upgrade, session.protocol, session.options, session.limits);
    const stop = () => client.destroy("the node is shutting down");
    signal.addEventListener("abort", stop, { once: true });
    await serveRemoteCommand(client, process, session.kind, session.endsWithStdin ? session.limits : undefined);
    await client.closed;
    signal.removeEventListener("abort", stop);
  } finally {
    process.close();
  }
}
