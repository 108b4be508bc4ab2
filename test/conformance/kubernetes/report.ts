/** Results, and RESULTS.md: the table that is committed. It is read back, so that a run of a few specs renews only those. */
import { leftOut, specOf, wasRun, type GinkgoReport, type HostFacts, type Spec } from "./specs.ts";

export type Outcome = "passed" | "failed" | "left out";

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

export function summary(results: readonly Result[]): Record<Outcome, number> {
  const count = (outcome: Outcome) => results.filter((each) => each.outcome === outcome).length;
  return { passed: count("passed"), failed: count("failed"), "left out": count("left out") };
}

export function toMarkdown(
  results: readonly Result[],
  { kubernetes, engine }: { kubernetes: string; engine: string },
): string {
  const groups = [...new Set(results.map(({ group }) => group))];
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  const totals = (of: readonly Result[]) => Object.values(summary(of));
  return [
    "# Kubernetes conformance",
    "",
    `Written by \`npm run conformance\`: the e2e suite of Kubernetes ${kubernetes}, unchanged, against two nodes on engine \`${engine}\`.`,
    "A test is left out only when more work would not make it pass; the reason says why.",
    "",
    // The formatter would rewrite what looks like emphasis in the names of tests.
    "<!-- prettier-ignore-start -->",
    "",
    row(["Group", "passed", "failed", "left out"]),
    row(["---", "--:", "--:", "--:"]),
    ...groups.map((group) => row([group, ...totals(results.filter((each) => each.group === group))])),
    row(["all", ...totals(results)]),
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
    const cells = /^\| (passed|failed|left out) \| (\S+) \| ((?:[^\\|]|\\.)*) \| (\d+) \| ((?:[^\\|]|\\.)*) \|$/.exec(
      line,
    );
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
