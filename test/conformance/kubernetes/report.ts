/** Results, and RESULTS.md: the table that is committed. It is read back, so that a run of a few specs renews only those. */
import {
  leftOut,
  notRunReason,
  specOf,
  wasRun,
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
  /** Empty when it passed; one line. */
  reason: string;
}

const REASON_LENGTH = 400;
const NANOSECONDS = 1e9;

/** A result for every spec: one that the reports do not mention failed. */
export function resultsOf(specs: readonly Spec[], reports: readonly GinkgoReport[], host: HostFacts): Result[] {
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
      reason:
        report.State === "passed"
          ? ""
          : report.State === "skipped"
            ? `skips itself: ${oneLine(report.Failure?.Message ?? "")}`
            : `${oneLine(report.Failure?.Message ?? report.State)}${at}`,
    });
  }
  return specs.map((spec) => {
    const design = leftOut(spec, host);
    if (design !== undefined)
      return { name: spec.name, group: spec.group, outcome: "left out", seconds: 0, reason: design };
    return (
      byName.get(spec.name) ?? {
        name: spec.name,
        group: spec.group,
        outcome: "failed",
        seconds: 0,
        reason: "the run ended before it",
      }
    );
  });
}

/** The newer result of each name, sorted. */
export function merge(older: readonly Result[], newer: readonly Result[]): Result[] {
  const byName = new Map([...older, ...newer].map((result) => [result.name, result]));
  return [...byName.values()].toSorted((a, b) =>
    a.group === b.group ? (a.name < b.name ? -1 : 1) : a.group < b.group ? -1 : 1,
  );
}

/** The table of a whole suite: what has no result is there as well, and why it has none. */
export function complete(
  results: readonly Result[],
  { tagged, host }: Pick<Suite, "tagged"> & { host: HostFacts },
): Result[] {
  const known = new Set(results.filter(({ outcome }) => outcome !== "not run").map(({ name }) => name));
  const others = tagged
    .filter(({ name }) => !known.has(name))
    .map((spec): Result => {
      const { name, group } = spec;
      const design = leftOut(spec, host);
      if (design !== undefined) return { name, group, outcome: "left out", seconds: 0, reason: design };
      return { name, group, outcome: "not run", seconds: 0, reason: notRunReason(spec) };
    });
  return merge(
    results.filter(({ name }) => known.has(name)),
    others,
  );
}

/** Of what a run has chosen: each of these has an outcome. */
export function summary(results: readonly Result[]): Record<Exclude<Outcome, "not run">, number> {
  const count = (outcome: Outcome) => results.filter((each) => each.outcome === outcome).length;
  return { passed: count("passed"), failed: count("failed"), "left out": count("left out") };
}

/** @param untagged how many specs each group has besides those of the table, by group */
export function toMarkdown(
  results: readonly Result[],
  { kubernetes, engine, untagged }: { kubernetes: string; engine: string; untagged: ReadonlyMap<string, number> },
): string {
  const groups = [...new Set([...results.map(({ group }) => group), ...untagged.keys()])].toSorted();
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  const totals = (of: readonly Result[]) => [
    ...Object.values(summary(of)),
    of.filter(({ outcome }) => outcome === "not run").length,
  ];
  const allUntagged = [...untagged.values()].reduce((sum, count) => sum + count, 0);
  return [
    "# Kubernetes conformance",
    "",
    `Written by \`npm run conformance\`: the e2e suite of Kubernetes ${kubernetes}, unchanged, against two nodes on engine \`${engine}\`.`,
    "A test is left out only when more work would not make it pass; the reason says why. One that was not run has no result yet.",
    "",
    `Each test that is tagged [Conformance] or [NodeConformance] has its line. The suite's other ${allUntagged} are counted as untagged, and not run:`,
    "Kubernetes asks them of no cluster. They are of features that are off by default, of Windows, of clouds, storage drivers and plugins, or were never promoted.",
    "",
    // The formatter would rewrite what looks like emphasis in the names of tests.
    "<!-- prettier-ignore-start -->",
    "",
    row(["Group", "passed", "failed", "left out", "not run", "untagged"]),
    row(["---", "--:", "--:", "--:", "--:", "--:"]),
    ...groups.map((group) =>
      row([group, ...totals(results.filter((each) => each.group === group)), untagged.get(group) ?? 0]),
    ),
    row(["all", ...totals(results), allUntagged]),
    "",
    row(["Result", "Group", "Test", "Seconds", "Reason"]),
    row(["---", "---", "---", "--:", "---"]),
    ...results.map(({ outcome, group, name, seconds, reason }) =>
      row([outcome, group, escapeCell(name), seconds, escapeCell(reason)]),
    ),
    "",
    "<!-- prettier-ignore-end -->",
    "",
  ].join("\n");
}

/** The results that `toMarkdown` wrote. */
export function fromMarkdown(text: string): Result[] {
  const results: Result[] = [];
  for (const line of text.split("\n")) {
    const cells =
      /^\| (passed|failed|left out|not run) \| (\S+) \| ((?:[^\\|]|\\.)*) \| (\d+) \| ((?:[^\\|]|\\.)*) \|$/.exec(line);
    if (cells === null) continue;
    const [, outcome, group, name, seconds, reason] = cells as unknown as [
      string,
      Outcome,
      string,
      string,
      string,
      string,
    ];
    results.push({ outcome, group, name: unescapeCell(name), seconds: Number(seconds), reason: unescapeCell(reason) });
  }
  return results;
}

export function escapeCell(text: string): string {
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
