/** How a remote command ended, in the two forms that clients understand. */
import { plainText } from "./plain-text.ts";

export type CommandOutcome = { exitCode: number } | { error: Error };

/** A `metav1.Status` as the `v4` and `v5` protocols want it on the error stream: it carries the exit code. */
export function outcomeStatus(outcome: CommandOutcome): object {
  if ("error" in outcome) {
    const message = plainText(outcome.error.message);
    return {
      metadata: {},
      status: "Failure",
      message,
      reason: "InternalError",
      details: { causes: [{ message }] },
      code: 500,
    };
  }
  if (outcome.exitCode === 0) return { metadata: {}, status: "Success" };
  return {
    metadata: {},
    status: "Failure",
    message: `command terminated with non-zero exit code: exit code ${outcome.exitCode}`,
    reason: "NonZeroExitCode",
    details: { causes: [{ reason: "ExitCode", message: String(outcome.exitCode) }] },
  };
}

/** What the protocols before `v4` want: text on failure, nothing on success. */
export function outcomeText(outcome: CommandOutcome): string {
  if ("error" in outcome) return plainText(outcome.error.message);
  return outcome.exitCode === 0 ? "" : `command terminated with non-zero exit code: exit code ${outcome.exitCode}`;
}
