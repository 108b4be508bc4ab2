/** Known ways out of a container, by the runtime that had them. */
import type { HostProblem } from "../../engine.ts";

/**
 * runc: first versions of each line without CVE-2024-21626 (Leaky Vessels), and without CVE-2025-31133, -52565 and
 * -52881.
 */
const FIXED: { since: readonly (readonly [number, number, number])[]; escape: string }[] = [
  { since: [[1, 1, 12]], escape: "CVE-2024-21626" },
  {
    since: [
      [1, 2, 8],
      [1, 3, 3],
      [1, 4, 0],
    ],
    escape: "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881",
  },
];

/**
 * What is known of the version that `runc --version` prints. A warning, no more: distributions mend old versions
 * without a new number. Other runtimes are not known.
 */
export function runtimeProblems(versionText: string): HostProblem[] {
  const match = /^runc version (\d+)\.(\d+)\.(\d+)/.exec(versionText);
  if (match === null) return [];
  const [major, minor, patch] = match.slice(1).map(Number) as [number, number, number];
  const isFixed = (since: (typeof FIXED)[number]["since"]) => {
    const line = since.find((version) => version[0] === major && version[1] === minor);
    if (line !== undefined) return patch >= line[2];
    const newest = since.at(-1)!;
    return major > newest[0] || (major === newest[0] && minor > newest[1]);
  };
  const escapes = FIXED.filter(({ since }) => !isFixed(since)).map(({ escape }) => escape);
  if (escapes.length === 0) return [];
  return [
    {
      fatal: false,
      problem: `${match[0]} is older than the versions without known ways out of a container (${escapes.join(", ")})`,
      cure: "install runc 1.3.3 or newer, or make sure that your distribution has mended this one",
    },
  ];
}
