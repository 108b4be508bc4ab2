import { expect, test } from "vitest";
import { runtimeProblems } from "../../../providers/local/engines/oci/runtime-version.ts";

test.each([
  ["runc version 1.1.5+ds1\ncommit: x", ["CVE-2024-21626", "CVE-2025-31133"]],
  ["runc version 1.1.12", ["CVE-2025-31133"]],
  ["runc version 1.2.7", ["CVE-2025-31133"]],
  ["runc version 1.0.0-rc93", ["CVE-2024-21626", "CVE-2025-31133"]],
  ["runc version 1.3.2", ["CVE-2025-31133"]],
])("an old runc is told with its known escapes: %s", (text, escapes) => {
  const [problem, ...more] = runtimeProblems(text);
  expect(more).toEqual([]);
  expect(problem).toMatchObject({ fatal: escapes.includes("CVE-2024-21626") });
  for (const escape of escapes) expect(problem!.problem).toContain(escape);
});

test.each([
  "runc version 1.2.8",
  "runc version 1.3.3-0ubuntu1",
  "runc version 1.4.0",
  "runc version 2.0.0",
  "crun version 1.8",
  "",
])("nothing is told of %j", (text) => expect(runtimeProblems(text)).toEqual([]));

const bookworm = "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n";
const entry = (version: string, ...mended: string[]) =>
  `runc (${version}) bookworm-security; urgency=medium\n\n${mended.map((cve) => `  * ${cve}: mended\n`).join("")}`;

test.each([
  ["what its packagers have mended", bookworm, "", ["CVE-2024-21626"]],
  [
    "what the changelog of this very package says is mended",
    bookworm,
    entry("1.1.5+ds1-1+deb12u1", "CVE-2025-31133", "CVE-2025-52565"),
    ["CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565"],
  ],
  [
    "nothing for the changelog of another version",
    bookworm.replace("deb12u1", "deb12u9"),
    entry("1.1.5+ds1-1+deb12u1", "CVE-2025-31133"),
    ["CVE-2024-21626"],
  ],
  ["nothing for a package before the mended one", bookworm.replaceAll("+deb12u1", ""), "", []],
  ["Ubuntu's", "runc version 1.1.7\ncommit: 1.1.7-0ubuntu1~22.04.2\n", "", ["CVE-2024-21626"]],
  ["not Ubuntu's before", "runc version 1.1.7\ncommit: 1.1.7-0ubuntu1~22.04.1\n", "", []],
])("a distribution's old runc is judged by its package: %s", (_title, text, changelog, mended) => {
  const [problem] = runtimeProblems(text, { changelog });
  for (const escape of ["CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"])
    expect(problem!.problem.includes(escape), escape).toBe(!mended.includes(escape));
});

test("a package that has mended all of them is not told of", () => {
  const all = ["CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"];
  const text = bookworm.replace("deb12u1", "deb12u7");
  expect(runtimeProblems(text, { changelog: entry("1.1.5+ds1-1+deb12u7", ...all) })).toEqual([]);
});

test("a runc that any image leads out of is refused, unless the host's owner says that it is mended", () => {
  const old = "runc version 1.1.11";
  expect(runtimeProblems(old, { changelog: "" })).toEqual([
    { fatal: true, problem: expect.stringContaining("CVE-2024-21626"), cure: expect.stringContaining("trustRuntime") },
  ]);
  expect(runtimeProblems(old, { changelog: "", isTrusted: true })).toMatchObject([{ fatal: false }]);
  expect(runtimeProblems(bookworm, { changelog: "" })).toMatchObject([{ fatal: false }]);
});
