/** What the run of Kubernetes' suite makes of ginkgo's reports: the choice of tests, and the table. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  complete,
  differences,
  fromMarkdown,
  merge,
  resultsOf,
  toMarkdown,
  type Result,
} from "../../conformance/kubernetes/report.ts";
import {
  focusOn,
  isSlow,
  leftOut,
  portions,
  selectSpecs,
  suiteOf,
  wasRun,
  type Spec,
  type SpecReport,
} from "../../conformance/kubernetes/specs.ts";

function specReport(over: Partial<SpecReport> = {}): SpecReport {
  return {
    ContainerHierarchyTexts: ["[sig-node] Pods"],
    ContainerHierarchyLabels: [["sig-node"]],
    LeafNodeType: "It",
    LeafNodeLocation: { FileName: "k8s.io/kubernetes@v1.36.3/test/e2e/common/node/pods.go" },
    LeafNodeLabels: ["NodeConformance", "Conformance"],
    LeafNodeText: "should get a host IP [NodeConformance] [Conformance]",
    State: "passed",
    NumAttempts: 1,
    RunTime: 2_400_000_000,
    ...over,
  };
}

const HOST = {
  dummyLinks: true,
  oomScores: true,
  sctp: true,
  selinux: true,
  nfs: true,
  hostAccess: true,
  podResize: true,
  cgroupV1: true,
};

const spec = selectSpecs([{ SpecReports: [specReport()] }])[0]!;
const result: Result = {
  ...{ name: spec.name, group: spec.group, outcome: "passed", seconds: 1, release: "1.36.3", reason: "" },
};

test("A spec is known by all texts down to its own, and by the folder of its file", () => {
  expect(spec).toEqual({
    name: "[sig-node] Pods should get a host IP [NodeConformance] [Conformance]",
    group: "common/node",
    labels: ["sig-node", "NodeConformance", "Conformance"],
  });
});

test.each([
  ["of another group", { LeafNodeLocation: { FileName: "x/test/e2e/network/dns.go" } }],
  ["without the tag", { LeafNodeLabels: [] }],
  ["that is set-up and no test", { LeafNodeType: "BeforeEach" }],
])("A spec %s is not chosen", (_what, over) => {
  expect(selectSpecs([{ SpecReports: [specReport(over)] }])).toEqual([]);
});

test("A spec of another group is chosen when the focus names its group", () => {
  const dns = { SpecReports: [specReport({ LeafNodeLocation: { FileName: "x/test/e2e/network/dns.go" } })] };
  expect(selectSpecs([dns], { focus: "^network$" })).toMatchObject([{ group: "network" }]);
  expect(selectSpecs([dns], { focus: "host IP" })).toEqual([]);
});

test("A spec without the tag is chosen when those are asked for, and one with the tag is not", () => {
  const [tagged, untagged] = [specReport(), specReport({ LeafNodeLabels: [], LeafNodeText: "may be asked" })];
  expect(selectSpecs([{ SpecReports: [tagged, untagged] }], { untagged: true }).map(({ name }) => name)).toEqual([
    "[sig-node] Pods may be asked",
  ]);
});

test.each(["Alpha", "BetaOffByDefault", "Feature:OffByDefault", "Feature:LoadBalancer"])(
  "A spec without the tag is not chosen when it is %s",
  (label) => {
    const report = [{ SpecReports: [specReport({ LeafNodeLabels: [label] })] }];
    expect(selectSpecs(report, { untagged: true })).toEqual([]);
    expect(suiteOf(report, { untagged: true }).others.get("common/node")).toBe(1);
  },
);

test("A test that starts a pod on the node's network is left out where the engine does not give that", () => {
  const etcHosts = { ...spec, name: "[sig-node] KubeletManagedEtcHosts should test kubelet managed /etc/hosts file" };
  expect(leftOut(etcHosts, { ...HOST, hostAccess: false })).toContain("hostNetwork");
  expect(leftOut(etcHosts, HOST)).toBeUndefined();
});

test("A test that changes a pod's own resources is left out where its VM keeps its size", () => {
  const resize = { ...spec, name: "[sig-node] PLR Pod InPlace Resize burstable pods - pod-level cpu" };
  expect(leftOut(resize, { ...HOST, podResize: false })).toContain("size of its VM");
  expect(leftOut(resize, HOST)).toBeUndefined();
});

test("A test of something that the kernel lacks is left out only where it lacks it", () => {
  const privileged = { ...spec, name: "[sig-node] PrivilegedPod should enable privileged commands" };
  expect(leftOut(privileged, { ...HOST, dummyLinks: false })).toContain("dummy");
  expect(leftOut(privileged, HOST)).toBeUndefined();
});

test("The focus matches its specs by their whole name, whatever characters it has", () => {
  const focus = new RegExp(focusOn([spec]));
  expect(focus.test(`Kubernetes e2e suite ${spec.name}`)).toBe(true);
  expect(focus.test(`Kubernetes e2e suite ${spec.name} and more`)).toBe(false);
});

test("The focus matches a spec of a container without a text, which the report has and the name has not", () => {
  const nested = { ...spec, name: "Storage [Testpattern:  (delete policy)] snapshots  should be kept" };
  const focus = new RegExp(focusOn([nested]));
  expect(focus.test("Kubernetes e2e suite Storage [Testpattern:  (delete policy)] snapshots should be kept")).toBe(
    true,
  );
  expect(focus.test("Kubernetes e2e suite Storage [Testpattern: (delete policy)] snapshotsshould be kept")).toBe(false);
});

test("Every spec is in one portion, and a slow one has a portion to itself", () => {
  const label = fc.constantFrom("Slow", "Conformance");
  const specs = fc
    .array(label)
    .map((each) => each.map((of, index) => ({ name: `${index}`, group: "node", labels: [of] })));
  fc.assert(
    fc.property(specs, fc.integer({ min: 1, max: 9 }), (all, workers) => {
      const dealt = portions(all, workers);
      expect(dealt.flat().toSorted(byIndex)).toEqual(all);
      expect(dealt.every((portion) => portion.length === 1 || !portion.some(isSlow))).toBe(true);
    }),
  );
});

test("The table names what has no result, whatever its group", () => {
  const others = [
    specReport({ LeafNodeLocation: { FileName: "x/test/e2e/apimachinery/watch.go" }, LeafNodeText: "a" }),
    specReport({ LeafNodeText: "b [HostPort] HostPort validates" }),
    specReport({ LeafNodeText: "c" }),
  ];
  const suite = suiteOf([{ SpecReports: [specReport(), ...others] }]);
  const passed: Result = {
    name: spec.name,
    group: spec.group,
    outcome: "passed",
    seconds: 2,
    release: "1.36.3",
    reason: "",
  };
  const host = { ...HOST, hostAccess: false };
  const before = complete([passed], { specs: [spec, ...suite.specs], host });
  expect(before.map(({ name, outcome }) => [name, outcome])).toEqual([
    ["[sig-node] Pods a", "not run"],
    ["[sig-node] Pods b [HostPort] HostPort validates", "left out"],
    ["[sig-node] Pods c", "not run"],
    [spec.name, "passed"],
  ]);
});

test("How a test failed that is left out by now is no result of it", () => {
  const name = "[sig-node] HostPort validates";
  const failed: Result = { name, group: "node", outcome: "failed", seconds: 300, release: "1.37.1", reason: "late" };
  const known = complete([failed], { specs: [{ ...spec, name }], host: { ...HOST, hostAccess: false } });
  expect(known).toMatchObject([{ outcome: "left out", seconds: 0 }]);
});

test("What has gone from the suite leaves the table, whatever became of it", () => {
  const gone: Result[] = (["passed", "left out", "not run"] as const).map((outcome) => ({
    ...{ name: outcome, group: "node", outcome, seconds: 1, release: "1.36.3", reason: "" },
  }));
  expect(complete(gone, { specs: [spec], host: HOST }).map(({ name }) => name)).toEqual([spec.name]);
});

test("A result of an earlier release's suite keeps its release, and what is run again has the newer one", () => {
  const older: Result = { ...result, release: "1.36.3" };
  expect(complete([older], { specs: [spec], host: HOST })).toEqual([older]);
  expect(resultsOf([spec], [[{ SpecReports: [specReport()] }]], HOST, "1.37.1")).toEqual([
    { ...older, seconds: 2, release: "1.37.1" },
  ]);
});

test("A table that lacks a spec of the suite, or has one that is gone, is found out", () => {
  const renamed = { ...spec, name: `${spec.name} [Feature:New]` };
  expect(differences([result], [spec])).toEqual({ unnamed: [], gone: [] });
  expect(differences([result], [renamed])).toEqual({ unnamed: [renamed.name], gone: [spec.name] });
});

test("Specs without the tags are counted by their groups, and are no lines of the table", () => {
  const suite = suiteOf([{ SpecReports: [specReport(), specReport({ LeafNodeLabels: [] })] }]);
  expect(suite.specs).toEqual([spec]);
  expect([...suite.others]).toEqual([["common/node", 1]]);
  const table = toMarkdown([], { ...TABLE, others: suite.others });
  expect(table).toContain("| common/node | 0 | 0 | 0 | 0 | 1 |");
});

test("A few specs are dealt to all workers", () => {
  const few = Array.from({ length: 6 }, (_, index) => ({ ...spec, name: `${index}` }));
  expect(portions(few, 4).map(({ length }) => length)).toEqual([2, 2, 2]);
  expect(portions(few, 6)).toHaveLength(6);
});

const byIndex = (a: Spec, b: Spec) => Number(a.name) - Number(b.name);

test("A spec that no report mentions has failed", () => {
  expect(resultsOf([spec], [], HOST, "1.37.1")).toMatchObject([
    { outcome: "failed", reason: "the run ended before it" },
  ]);
});

test("A spec that was out of focus in one report takes its result from the report in which it ran", () => {
  const skipped = { SpecReports: [specReport({ State: "skipped", RunTime: 0 })] };
  const ran = { SpecReports: [specReport()] };
  expect(resultsOf([spec], [[ran], [skipped]], HOST, "1.37.1")).toMatchObject([{ outcome: "passed", seconds: 2 }]);
});

test("A spec that was interrupted has no result of its own", () => {
  expect(wasRun(specReport({ State: "interrupted", Failure: { Message: "Interrupted by User" } }))).toBe(false);
});

test("A failure says what and where, on one line", () => {
  const failed = specReport({
    State: "failed",
    Failure: {
      Message: "Expected\n    <int>: 1",
      FailureNodeLocation: { FileName: "k8s.io/kubernetes@v1.36.3/test/e2e/common/node/pods.go", LineNumber: 7 },
    },
  });
  expect(resultsOf([spec], [[{ SpecReports: [failed] }]], HOST, "1.37.1")[0]?.reason).toBe(
    "Expected <int>: 1 (common/node/pods.go:7)",
  );
});

test("A spec that skips itself is left out with its own reason", () => {
  const skips = specReport({ State: "skipped", Failure: { Message: "Only supported for Windows" } });
  expect(resultsOf([spec], [[{ SpecReports: [skips] }]], HOST, "1.37.1")).toMatchObject([
    { outcome: "left out", reason: "skips itself: Only supported for Windows" },
  ]);
});

const line = fc.string().map((text) => text.replaceAll(/[\s\u0085]+/g, " ").trim());
const anyResult: fc.Arbitrary<Result> = fc.record({
  name: line.filter((text) => text !== ""),
  group: fc.constantFrom("node", "common/node"),
  outcome: fc.constantFrom("passed", "failed", "left out", "not run"),
  seconds: fc.nat(),
  release: fc.constantFrom("", "1.36.3", "1.37.1"),
  reason: line,
});

const TABLE = { kubernetes: "1.36.3", engine: "oci", others: new Map([["storage", 7]]) };

test("The table is read back as it was written", () => {
  fc.assert(
    fc.property(fc.uniqueArray(anyResult, { selector: ({ name }) => name }), (results) => {
      expect(fromMarkdown(toMarkdown(results, TABLE))).toEqual(results);
    }),
  );
});

test("A table without a column for the release has that of its heading, for what was run", () => {
  const table = `the e2e suite of Kubernetes 1.36.3, unchanged

| passed | node | a | 3 |  |
| left out | node | b | 1 | skips itself: no such disks |
| left out | node | c | 0 | no machine has it |
| not run | node | d | 0 | not tried yet |`;
  expect(fromMarkdown(table).map(({ name, release }) => [name, release])).toEqual([
    ["a", "1.36.3"],
    ["b", "1.36.3"],
    ["c", ""],
    ["d", ""],
  ]);
});

test("A run of a few specs renews those and keeps the others", () => {
  const older: Result[] = [
    { name: "a", group: "node", outcome: "failed", seconds: 1, release: "1.36.3", reason: "x" },
    { name: "b", group: "node", outcome: "passed", seconds: 1, release: "1.36.3", reason: "" },
  ];
  const newer: Result[] = [{ name: "a", group: "node", outcome: "passed", seconds: 2, release: "1.37.1", reason: "" }];
  expect(merge(older, newer)).toEqual([newer[0], older[1]]);
});
