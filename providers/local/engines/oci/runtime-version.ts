/** Known ways out of a container, by the runtime that had them. */
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import type { HostProblem } from "../../engine.ts";

/**
 * runc: first versions of each line without CVE-2024-21626 (Leaky Vessels), and without CVE-2025-31133, -52565 and
 * -52881.
 */
const FIXED: { since: readonly (readonly [number, number, number])[]; escapes: readonly string[]; fatal: boolean }[] = [
  // An image or a working directory is enough, and every distribution has mended it.
  { since: [[1, 1, 12]], escapes: ["CVE-2024-21626"], fatal: true },
  {
    // Races between containers that share a volume: stable distributions still have them.
    fatal: false,
    since: [
      [1, 2, 8],
      [1, 3, 3],
      [1, 4, 0],
    ],
    escapes: ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"],
  },
];
/** Debian's and Ubuntu's, which mend old versions without a new number (DSA-5615, USN-6619). */
const MENDED_PACKAGES: { package: RegExp; escape: string }[] = [
  { package: /^1\.0\.0~rc93\+ds1-5\+deb11u(?:[3-9]|\d\d)/, escape: "CVE-2024-21626" },
  { package: /^1\.1\.5\+ds1-1\+deb12u/, escape: "CVE-2024-21626" },
  { package: /^1\.1\.7-0ubuntu1~2[02]\.04\.(?:[2-9]|\d\d)/, escape: "CVE-2024-21626" },
];
const CHANGELOG = "/usr/share/doc/runc/changelog.Debian.gz";
const MAX_CHANGELOG_BYTES = 4 << 20;

/**
 * What is known of the version that `runc --version` prints. One that any image leads out of is refused, unless the
 * host's owner knows better: distributions mend old versions without a new number. Debian and Ubuntu say so in the
 * package's changelog, which counts when it is that of this very version. Other runtimes are not known.
 */
export function runtimeProblems(
  versionText: string,
  { changelog = packageChangelog(), isTrusted = false }: { changelog?: string; isTrusted?: boolean } = {},
): HostProblem[] {
  const match = /^runc version (\d+)\.(\d+)\.(\d+)/.exec(versionText);
  if (match === null) return [];
  const [major, minor, patch] = match.slice(1).map(Number) as [number, number, number];
  const isFixed = (since: (typeof FIXED)[number]["since"]) => {
    const line = since.find((version) => version[0] === major && version[1] === minor);
    if (line !== undefined) return patch >= line[2];
    const newest = since.at(-1)!;
    return major > newest[0] || (major === newest[0] && minor > newest[1]);
  };
  const built = /^commit: (\S+)$/m.exec(versionText)?.[1] ?? "";
  const told = changelog.startsWith(`runc (${built}) `) ? changelog : "";
  const isMended = (escape: string) =>
    told.includes(escape) || MENDED_PACKAGES.some((mended) => mended.escape === escape && mended.package.test(built));
  const open = FIXED.filter(({ since, escapes }) => !isFixed(since) && !escapes.every(isMended));
  const escapes = open.flatMap(({ escapes }) => escapes).filter((escape) => !isMended(escape));
  if (escapes.length === 0) return [];
  return [
    {
      fatal: !isTrusted && open.some(({ fatal }) => fatal),
      problem: `${built === "" ? match[0] : `${match[0]} (${built})`} is older than the versions without known ways out of a container (${escapes.join(", ")})`,
      cure: "install runc 1.3.3 or newer; or make sure that your distribution has mended this one, and set engine.trustRuntime",
    },
  ];
}

/** Empty where there is none, as in images without documentation. */
function packageChangelog(): string {
  try {
    return gunzipSync(readFileSync(CHANGELOG), { maxOutputLength: MAX_CHANGELOG_BYTES }).toString("utf8");
  } catch {
    return "";
  }
}
