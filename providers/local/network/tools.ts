/**
 * The programs by which this host's network is looked at and changed. They take milliseconds; one that came to no end
 * would hold up each machine of the backend, for bridge and rules are all machines'.
 */
import { findTool, run } from "../host/command.ts";

/** Much more than one takes on a host that is overrun. */
const END_MS = 60_000;

/** As `run`, by the name of a tool. @throws CommandError also when it has not ended after a minute */
export async function runSoon(
  tool: string,
  args: readonly string[],
  options: Omit<NonNullable<Parameters<typeof run>[2]>, "withinMs"> = {},
): ReturnType<typeof run> {
  return await run(findTool(tool) ?? tool, args, { ...options, withinMs: END_MS });
}
