/** Results, and RESULTS.md: the table that is committed. It is read back, so that a run of a few specs renews only those. */
import {
  leftOut,
  notRunReason,
  specOf,
  wasRun,
  type SpecReport,
  type GinkgoReport,
  type HostFacts,
  type Spec,
  type Suite,
} from "./specs.ts";

/** "not run": nobody has tried yet; the table names it all the same. */
export type Outcome = "passed" | "failed" | "left out" | "not run";

export interface Result {
  name: string;
  group: string;
  outcome: Outcome;
  /** Whole seconds; 0 when it was not run. */
  seconds: number;
  /** Of the suite that it was run with; empty when it was not run. */
  release: string;
  /** Empty when it passed; one line. */
  reason: string;
}

const SKIPS_ITSELF = "skips itself: ";
const REASON_LENGTH = 400;
const NANOSECONDS = 1e9;

/**
 * A result for every spec: one that the reports do not mention failed.
 *
 * @param release of the suite
 */
export function resultsOf(
  specs: readonly Spec[],
  reports: readonly GinkgoReport[],
  host: HostFacts,
  release: string,
): Result[] {
  const byName = new Map<string, Result>();
  for (const report of reports.flat().flatMap((suite) => suite.SpecReports ?? [])) {
    if (!wasRun(report)) continue;
    const { name, group } = specOf(report);
    const where = report.Failure?.FailureNodeLocation;
    const at = where === undefined ? "" : ` (${where.FileName.replace(/^.*test\/e2e\//, "")}:${where.LineNumber})`;
    byName.set(name, {
      name,
      group,
      outcome: report.State === "passed" ? "passed" : report.State === "skipped" ? "left out" : "failed",
      seconds: Math.round(report.RunTime / NANOSECONDS),
      release,
      reason:
        report.State === "passed"
          ? ""
          : report.State === "skipped"
            ? `${SKIPS_ITSELF}${oneLine(report.Failure?.Message ?? "")}`
            : `${oneLine(report.Failure?.Message ?? report.State)}${at}`,
    });
  }
  return specs.map((spec) => {
    const design = leftOut(spec, host);
    if (design !== undefined) return notRun(spec, "left out", design);
    return (
      byName.get(spec.name) ?? {
        name: spec.name,
        group: spec.group,
        outcome: "failed",
        seconds: 0,
        release,
        reason: "the run ended before it",
      }
    );
  });
}

/** Of these specs, those that a run has to tell of: what an interrupt has cut off keeps the result that it had. */
export function toldOf(
  specs: readonly Spec[],
  reports: readonly GinkgoReport[],
  { isCut, nameOf }: { isCut: boolean; nameOf: (report: SpecReport) => string | undefined },
): readonly Spec[] {
  if (!isCut) return specs;
  const done = reports.flat().flatMap((suite) => suite.SpecReports ?? []);
  const ended = new Set(done.filter(wasRun).map((each) => nameOf(each)));
  return specs.filter(({ name }) => ended.has(name));
}

function notRun({ name, group }: Spec, outcome: Outcome, reason: string): Result {
  return { name, group, outcome, seconds: 0, release: "", reason };
}

/** The newer result of each name, sorted. */
export function merge(older: readonly Result[], newer: readonly Result[]): Result[] {
  const byName = new Map([...older, ...newer].map((result) => [result.name, result]));
  return [...byName.values()].toSorted((a, b) =>
    a.group === b.group ? (a.name < b.name ? -1 : 1) : a.group < b.group ? -1 : 1,
  );
}

/**
 * The table of a whole suite: what has no result is there as well, and why it has none. Results of specs that the suite no
 * longer has are dropped, and so is how one failed that is left out by now.
 */
export function complete(
  results: readonly Result[],
  { specs, host }: Pick<Suite, "specs"> & { host: HostFacts },
): Result[] {
  const counts = (result: Result) => result.outcome !== "failed" || leftOut(result, host) === undefined;
  return withNotRun(results.filter(counts), specs, (spec) => {
    const design = leftOut(spec, host);
    return design === undefined ? notRun(spec, "not run", notRunReason(spec)) : notRun(spec, "left out", design);
  });
}

/** A result for each of the specs and no others: `otherwise` has that of one without. */
export function withNotRun(
  results: readonly Result[],
  specs: readonly Spec[],
  otherwise: (spec: Spec) => Result = (spec) => notRun(spec, "not run", "not tried yet"),
): Result[] {
  const known = new Map(results.filter(({ outcome }) => outcome !== "not run").map((each) => [each.name, each]));
  return merge(
    [],
    specs.map((spec) => known.get(spec.name) ?? otherwise(spec)),
  );
}

/** Where a table and its suite are not of one mind; empty when they are. */
export function differences(results: readonly Result[], specs: readonly Spec[]): { unnamed: string[]; gone: string[] } {
  const [named, there] = [results, specs].map((of) => new Set(of.map(({ name }) => name)));
  return {
    unnamed: specs.map(({ name }) => name).filter((name) => !named!.has(name)),
    gone: results.map(({ name }) => name).filter((name) => !there!.has(name)),
  };
}

/** Of what a run has chosen: each of these has an outcome. */
export function summary(results: readonly Result[]): Record<Exclude<Outcome, "not run">, number> {
  const count = (outcome: Outcome) => results.filter((each) => each.outcome === outcome).length;
  return { passed: count("passed"), failed: count("failed"), "left out": count("left out") };
}

export interface Table {
  kubernetes: string;
  engine: string;
  /** Of those that are not tagged. */
  untagged?: boolean;
  /** How many specs each group has besides those of the table. */
  others: ReadonlyMap<string, number>;
}

export function toMarkdown(results: readonly Result[], { kubernetes, engine, untagged, others }: Table): string {
  const groups = [...new Set([...results.map(({ group }) => group), ...others.keys()])].toSorted();
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  const totals = (of: readonly Result[]) => [
    ...Object.values(summary(of)),
    of.filter(({ outcome }) => outcome === "not run").length,
  ];
  const allOthers = [...others.values()].reduce((sum, count) => sum + count, 0);
  const otherColumn = untagged === true ? "others" : "untagged";
  return [
    "# Kubernetes conformance",
    "",
    `Written by \`npm run conformance\`: the tests of the e2e suite of Kubernetes ${kubernetes}, unchanged, against two nodes on ${placeOf(engine)}.`,
    SUITE_COLUMN,
    "A test is left out only when more work would not make it pass; the reason says why. One that was not run has no result yet.",
    "",
    ...(untagged === true
      ? [
          "Each test of these groups that is tagged neither [Conformance] nor [NodeConformance], and wants neither a gate that is off by default nor a",
          `cloud's load balancer, has its line: Kubernetes asks them of no cluster. The suite's other ${allOthers} are counted as others.`,
        ]
      : [
          `Each test that is tagged [Conformance] or [NodeConformance] has its line. The suite's other ${allOthers} are counted as untagged:`,
          "Kubernetes asks them of no cluster. They are of features that are off by default, of Windows, of clouds, storage drivers and plugins, or were never promoted.",
          "Those that want no such thing have a table of their own on engine `cri`: RESULTS-untagged.md.",
        ]),
    "",
    // The formatter would rewrite what looks like emphasis in the names of tests.
    "<!-- prettier-ignore-start -->",
    "",
    row(["Group", "passed", "failed", "left out", "not run", otherColumn]),
    row(["---", "--:", "--:", "--:", "--:", "--:"]),
    ...groups.map((group) =>
      row([group, ...totals(results.filter((each) => each.group === group)), others.get(group) ?? 0]),
    ),
    row(["all", ...totals(results), allOthers]),
    "",
    ...resultRows(results),
    "",
    "<!-- prettier-ignore-end -->",
    "",
  ].join("\n");
}

/** Of an option `--engine`. */
export const placeOf = (engine: string) =>
  engine === "incus" ? "an Incus cluster, whose containers are the machines" : `engine \`${engine}\``;

/** A sentence about what `resultRows` tells. */
export const SUITE_COLUMN =
  "Suite is the release whose suite, run against a control plane of the same release, the result is of.";

export function resultRows(results: readonly Result[]): string[] {
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  return [
    row(["Result", "Group", "Test", "Seconds", "Suite", "Reason"]),
    row(["---", "---", "---", "--:", "---", "---"]),
    ...results.map(({ outcome, group, name, seconds, release, reason }) =>
      row([outcome, group, escapeCell(name), seconds, release, escapeCell(reason)]),
    ),
  ];
}

const ROW =
  /^\| (passed|failed|left out|not run) \| (\S+) \| ((?:[^\\|]|\\.)*) \| (\d+) \| (?:([\d.]*) \| )?((?:[^\\|]|\\.)*) \|$/;

/** The results that `toMarkdown` wrote. Tables had no column for the release once: all of one had that of its heading. */
export function fromMarkdown(text: string): Result[] {
  const [, ofHeading = ""] = /of Kubernetes (\d+\.\d+\.\d+)/.exec(text) ?? [];
  return text.split("\n").flatMap((line) => {
    const cells = ROW.exec(line);
    if (cells === null) return [];
    const [, outcome, group, name, seconds, release, cell] = cells as unknown as [
      ...[string, Outcome, string, string, string],
      ...[string | undefined, string],
    ];
    const reason = unescapeCell(cell);
    const wasRun = outcome !== "not run" && (outcome !== "left out" || reason.startsWith(SKIPS_ITSELF));
    return {
      ...{ outcome, group, name: unescapeCell(name), seconds: Number(seconds) },
      release: release ?? (wasRun ? ofHeading : ""),
      reason,
    };
  });
}

function escapeCell(text: string): string {
  return text.replaceAll(/[\\|]/g, "\\$&");
}

function unescapeCell(text: string): string {
  return text.replaceAll(/\\([\\|])/g, "$1");
}

/** Without what differs from run to run: names of namespaces and pods, addresses and times stay, colours and line ends go. */
function oneLine(text: string): string {
  const line = text.replaceAll(/\s+/g, " ").trim();
  return line.length > REASON_LENGTH ? `${line.slice(0, REASON_LENGTH)}…` : line;
}
