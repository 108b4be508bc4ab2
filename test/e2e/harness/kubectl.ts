/** The real kubectl, for what only a user's tool can show. */
import { kubectlBinary } from "./binaries.ts";
import { tryCommand, type CommandResult } from "./exec.ts";

export interface Kubectl {
  /** The program and its environment, for what runs longer than one call or on a terminal. */
  readonly binary: string;
  readonly env: NodeJS.ProcessEnv;
  /** Runs to the end, whatever the exit code. */
  try(args: readonly string[], options?: { input?: string; signal?: AbortSignal }): Promise<CommandResult>;
  /** @returns standard output. @throws Error with both outputs when the exit code is not 0 */
  run(args: readonly string[], options?: { input?: string; signal?: AbortSignal }): Promise<string>;
}

/** @param webSockets whether exec, attach, cp and port-forward use WebSockets or SPDY; absent: kubectl's own choice */
export async function createKubectl(
  kubeconfig: string,
  which: "current" | "old" = "current",
  webSockets?: boolean,
): Promise<Kubectl> {
  const binary = await kubectlBinary(which);
  const env = {
    PATH: process.env["PATH"],
    KUBECONFIG: kubeconfig,
    // Neither the user's kubeconfig nor a discovery cache of another cluster can leak in.
    HOME: `${kubeconfig}.home`,
    ...(webSockets !== undefined && {
      KUBECTL_REMOTE_COMMAND_WEBSOCKETS: String(webSockets),
      KUBECTL_PORT_FORWARD_WEBSOCKETS: String(webSockets),
    }),
  };
  const attempt: Kubectl["try"] = (args, options) => tryCommand(binary, args, { env, ...options });
  return {
    binary,
    env,
    try: attempt,
    async run(args, options) {
      const { code, stdout, stderr } = await attempt(args, options);
      if (code !== 0) throw new Error(`kubectl ${args.join(" ")} exited ${code}\n${stdout}${stderr}`);
      return stdout;
    },
  };
}
