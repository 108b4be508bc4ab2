/** What this host lacks for any engine. */
import type { HostProblem } from "./engine.ts";
import { findTool } from "./host/command.ts";

/** What a backend lacks on this host, whatever its engine. @param self the backend's own process */
export function checkHost(self: { pid: number } = process): HostProblem[] {
  const problems: HostProblem[] = [];
  if (findTool("flock") === undefined)
    problems.push({
      fatal: true,
      problem: "flock is not on the PATH: a backend locks its state directory and its bridge with it",
      cure: "install the package util-linux (Debian: apt-get install util-linux)",
    });
  if (self.pid === 1)
    problems.push({
      fatal: false,
      problem:
        "the backend is process 1 of its container and reaps nobody: containers whose commands were called off cannot end",
      cure: "give the container an init (docker run --init; the image's own entrypoint has tini)",
    });
  return problems;
}
