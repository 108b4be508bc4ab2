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
  expect(problem).toMatchObject({ fatal: false });
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
