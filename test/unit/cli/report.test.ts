import { expect, test } from "vitest";
import { Report, type ReportOptions } from "../../../src/cli/report.ts";

function told(options: ReportOptions): string {
  const lines: string[] = [];
  const report = new Report(options, (text) => lines.push(text));
  report.section("Node a: API server");
  report.ok("answers");
  report.section("Node a: backend");
  report.note("no events");
  report.fault("does not answer", "check the url");
  expect(report.end("Nothing is missing.")).toBe(2);
  return lines.join("\n");
}

test("people are told section by section, with the number of faults", () => {
  expect(told({})).toBe(`Node a: API server
  ok      answers

Node a: backend
  note    no events
  FAULT   does not answer
          check the url

Faults to fix: 1.`);
});

test("who wants faults alone gets those, with the sections that they are of", () => {
  expect(told({ quiet: true })).toMatch(
    /^\n?Node a: backend\n {2}FAULT {3}does not answer\n {10}check the url\n\nFaults to fix: 1\.$/,
  );
});

test("a program gets one JSON document with all findings", () => {
  expect(JSON.parse(told({ output: "json" }))).toEqual({
    faults: 1,
    findings: [
      { section: "Node a: API server", level: "ok", text: "answers" },
      { section: "Node a: backend", level: "note", text: "no events" },
      { section: "Node a: backend", level: "fault", text: "does not answer", cure: "check the url" },
    ],
  });
});

test("a report without a fault is 0, and silent when that is all that is asked for", () => {
  const lines: string[] = [];
  const report = new Report({ quiet: true }, (text) => lines.push(text));
  report.ok("answers");
  expect(report.end("Nothing is missing.")).toBe(0);
  expect(lines).toEqual([]);
});
