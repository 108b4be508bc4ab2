/** Which of the suite's specs are about the driver of volumes, and RESULTS-storage.md. */
import { placeOf, resultRows, SUITE_COLUMN, summary, type Result } from "./report.ts";
import type { StorageEngine } from "./suite-reports.ts";
import { specOf, type GinkgoReport, type Spec, type SpecReport } from "./specs.ts";

const DRIVERS = /^External Storage \[Driver: [^\]]+\]/;
/** The suites by their names, after the pattern that they are run with: `[Testpattern: Dynamic PV (ext4)] volumes should ...`. */
const SUITE = /\[Testpattern: [^\]]*\] (?:\[[^\]]+\] )*([\w-]+)/;
/** Of sig-apps: those that want a default StorageClass. */
const STATEFUL_SETS =
  /^\[sig-apps\] StatefulSet .*(PVC|should (provide basic identity|adopt matching orphans|not deadlock when))/;
/** Clusters in a cloud, Windows nodes. */
const ELSEWHERE = /\[Feature:(Windows|StatefulUpgrade)\]|Deploy clustered applications/;

/** A spec with its suite as its group; undefined for one that is about something else. */
export function storageSpecOf(report: SpecReport): Spec | undefined {
  const spec = specOf(report);
  if (ELSEWHERE.test(spec.name)) return undefined;
  if (DRIVERS.test(spec.name)) return { ...spec, group: SUITE.exec(spec.name)?.[1] ?? "other" };
  return STATEFUL_SETS.test(spec.name) ? { ...spec, group: "StatefulSet" } : undefined;
}

/** Sorted by name. */
export function storageSpecs(report: GinkgoReport): Spec[] {
  return report
    .flatMap((suite) => suite.SpecReports ?? [])
    .filter(({ LeafNodeType }) => LeafNodeType === "It")
    .flatMap((each) => storageSpecOf(each) ?? [])
    .toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

/** What is the engine's own. */
const ENGINE_LINES: Readonly<Record<StorageEngine, readonly string[]>> = {
  cri: [
    "dynamically, so the patterns of pre-provisioned and inline volumes are of older plugins; the engine has ext4, xfs and block devices.",
    "The StorageClass names the backend's class `shared`, whose volumes several pods may have, and binds at once: a clone is made while no pod has its source.",
    "A snapshot is ready when no pod has its volume any more, for which the stress of snapshots does not wait: it is left out.",
    "The group topology is run with a backend for each node, each a zone (`--zones`).",
  ],
  vm: [
    "dynamically, so the patterns of pre-provisioned and inline volumes are of older plugins; the engine has ext4 and block devices.",
    "A volume is one machine's: a guest has a kernel of its own. So tests that have several pods on one volume at a time are left out.",
    "The StorageClass binds at once: a clone is made while no pod has its source. A snapshot is ready when no pod has its volume any more, for which the stress of",
    "snapshots does not wait: it is left out. The machines are emulated (no KVM), several times slower than a processor.",
  ],
  incus: [
    "dynamically, so the patterns of pre-provisioned and inline volumes are of older plugins. The machines are containers of an Incus cluster, the volumes its",
    "custom volumes, of a pool that is one file system (btrfs): they have no file system, mount options or block devices of their own, and one machine each,",
    "so tests that have several pods on one volume at a time are left out. Snapshots and clones are made while pods write.",
  ],
};

export function toStorageMarkdown(
  results: readonly Result[],
  { kubernetes, engine }: { kubernetes: string; engine: StorageEngine },
): string {
  const groups = [...new Set(results.map(({ group }) => group))].toSorted();
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  const totals = (of: readonly Result[]) => [
    ...Object.values(summary(of)),
    of.filter(({ outcome }) => outcome === "not run").length,
  ];
  return [
    "# Kubernetes' external storage suite",
    "",
    `Written by \`npm run conformance:storage\`: the tests of the suite of Kubernetes ${kubernetes} for CSI drivers, unchanged, with \`vmlet csi\` and the CSI project's`,
    `sidecars as the chart runs them, two nodes on ${placeOf(engine)}, and those StatefulSet tests of sig-apps that claim volumes. Windows' patterns are not counted.`,
    "A test that is left out skips itself, for what the driver's file (`kubernetes/storage.ts`) does not declare: volumes of CSI drivers are provisioned",
    ...ENGINE_LINES[engine],
    SUITE_COLUMN,
    "",
    // The formatter would rewrite what looks like emphasis in the names of tests.
    "<!-- prettier-ignore-start -->",
    "",
    row(["Group", "passed", "failed", "left out", "not run"]),
    row(["---", "--:", "--:", "--:", "--:"]),
    ...groups.map((group) => row([group, ...totals(results.filter((each) => each.group === group))])),
    row(["all", ...totals(results)]),
    "",
    ...resultRows(results),
    "",
    "<!-- prettier-ignore-end -->",
    "",
  ].join("\n");
}
