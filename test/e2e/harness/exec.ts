/** Short-lived commands: kubectl, openssl, go. Long-lived ones are in processes.ts. */
import { spawn } from "node:child_process";

export interface CommandResult {
  code: number;
  stdout: string;
  stderr: string;
}

export interface CommandOptions {
  cwd?: string | undefined;
  env?: NodeJS.ProcessEnv | undefined;
  input?: string | undefined;
  signal?: AbortSignal | undefined;
}

/** Runs a command to its end, whatever its exit code. A command that a signal ended has code 128 + that signal's place. */
export function tryCommand(
  command: string,
  args: readonly string[],
  options: CommandOptions = {},
): Promise<CommandResult> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      stdio: ["pipe", "pipe", "pipe"],
      ...(options.cwd !== undefined && { cwd: options.cwd }),
      ...(options.env && { env: options.env }),
      ...(options.signal && { signal: options.signal }),
    });
    const stdout: Buffer[] = [];
    const stderr: Buffer[] = [];
    child.stdout.on("data", (chunk: Buffer) => stdout.push(chunk));
    child.stderr.on("data", (chunk: Buffer) => stderr.push(chunk));
    child.once("error", reject);
    child.once("close", (code) => {
      resolve({
        code: code ?? 137,
        stdout: Buffer.concat(stdout).toString(),
        stderr: Buffer.concat(stderr).toString(),
      });
    });
    // A command that ends before it read its input closes the pipe; its exit code says the rest.
    child.stdin.on("error", () => undefined);
    child.stdin.end(options.input);
  });
}

/** @throws Error with the command's output when it does not exit 0 */
export async function runCommand(
  command: string,
  args: readonly string[],
  options: CommandOptions = {},
): Promise<CommandResult> {
  const result = await tryCommand(command, args, options);
  if (result.code !== 0) {
    throw new Error(`${command} ${args.join(" ")} exited ${result.code}\n${result.stdout}${result.stderr}`);
  }
  return result;
}
