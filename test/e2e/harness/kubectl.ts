/** The real kubectl, for what only a user's tool can show. */
import { kubectlBinary } from "./binaries.ts";
import { tryCommand, type CommandResult } from "./exec.ts";

export interface Kubectl {
  /** Runs to the end, whatever the exit code. */
  try(args: readonly string[], options?: { input?: string; signal?: AbortSignal }): Promise<CommandResult>;
  /** @returns standard output. @throws Error with both outputs when the exit code is not 0 */
  run(args: readonly string[], options?: { input?: string; signal?: AbortSignal }): Promise<string>;
}

export async function createKubectl(kubeconfig: string, which: "current" | "old" = "current"): Promise<Kubectl> {
  const binary = await kubectlBinary(which);
  const attempt: Kubectl["try"] = (args, options) =>
    // No HOME: neither the user's kubeconfig nor a discovery cache of another cluster can leak in.
    tryCommand(binary, args, {
      env: { PATH: process.env["PATH"], KUBECONFIG: kubeconfig, HOME: `${kubeconfig}.home` },
      ...options,
    });
  return {
    try: attempt,
    async run(args, options) {
      const { code, stdout, stderr } = await attempt(args, options);
      if (code !== 0) throw new Error(`kubectl ${args.join(" ")} exited ${code}\n${stdout}${stderr}`);
      return stdout;
    },
  };
}
