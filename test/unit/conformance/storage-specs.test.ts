import { expect, test } from "vitest";
import { fromMarkdown, withNotRun, type Result } from "../../conformance/kubernetes/report.ts";
import { storageSpecOf, storageSpecs, toStorageMarkdown } from "../../conformance/kubernetes/storage-specs.ts";
import type { SpecReport } from "../../conformance/kubernetes/specs.ts";

const DRIVER = "External Storage [Driver: volumes.vmlet.dev]";
const report = (...texts: string[]): SpecReport => ({
  ContainerHierarchyTexts: texts.slice(0, -1),
  ContainerHierarchyLabels: [],
  LeafNodeType: "It",
  LeafNodeLocation: { FileName: "k8s.io/kubernetes/test/e2e/storage/testsuites/subpath.go" },
  LeafNodeLabels: [],
  LeafNodeText: texts.at(-1)!,
  State: "passed",
  NumAttempts: 1,
  RunTime: 0,
});

test.each([
  ["subPath", [DRIVER, "[Testpattern: Dynamic PV (default fs)] subPath", "should support file as subpath"]],
  ["multiVolume", [DRIVER, "[Testpattern: Dynamic PV (ext4)] multiVolume [Slow]", "should access to two volumes"]],
  ["volumeMode", [DRIVER, "[Testpattern: Dynamic PV (filesystem volmode)] [Slow] volumeMode", "should fail"]],
  ["StatefulSet", ["[sig-apps] StatefulSet", "Basic StatefulSet functionality", "should provide basic identity"]],
  ["StatefulSet", ["[sig-apps] StatefulSet", "Non-retain", "should delete PVCs with a WhenDeleted policy"]],
])("of the suites about volumes, this is one of %s", (group, texts) => {
  expect(storageSpecOf(report(...texts))).toMatchObject({ group, name: texts.join(" ") });
});

test.each([
  [[DRIVER, "[Testpattern: Dynamic PV (ntfs)] [Feature:Windows] subPath", "should support file as subpath"]],
  [["[sig-apps] StatefulSet", "Basic StatefulSet functionality", "should have a working scale subresource"]],
  [["[sig-storage] CSI Volumes [Driver: csi-hostpath]", "[Testpattern: Dynamic PV (ext4)] volumes", "should store"]],
])("of others and of Windows, %j is none", (texts) => {
  expect(storageSpecs([{ SpecReports: [report(...texts)] }])).toEqual([]);
});

test("the table is read back as it was written", () => {
  const results: Result[] = [
    { name: `${DRIVER} a|b`, group: "subPath", outcome: "passed", seconds: 7, release: "1.37.1", reason: "" },
    {
      name: `${DRIVER} c`,
      group: "volumes",
      outcome: "left out",
      seconds: 1,
      release: "1.37.1",
      reason: 'skips itself: "xfs" | none',
    },
  ];
  const text = toStorageMarkdown(results, { kubernetes: "1.37.1", engine: "cri" });
  expect(fromMarkdown(text)).toEqual(results);
  expect(text).toContain("| all | 1 | 0 | 1 | 0 |");
});

test("what has no result yet is in the table all the same, and what has one keeps it", () => {
  const passed: Result = { name: "a", group: "g", outcome: "passed", seconds: 1, release: "1.37.1", reason: "" };
  const specs = ["a", "b"].map((name) => ({ name, group: "g", labels: [] }));
  const outcomes = withNotRun([passed], specs).map(({ name, outcome }) => [name, outcome]);
  expect(outcomes).toEqual([
    ["a", "passed"],
    ["b", "not run"],
  ]);
});
