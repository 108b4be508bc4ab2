/** The site's page of events says every reason that there is in the code, and no other. */
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { EVENT_REASONS } from "../../docs/site/event-reasons.ts";
import { made } from "../../docs/site/made.ts";

const root = join(import.meta.dirname, "../..");
const sources = globSync("{src/{agent,pods,podspec,node,provider},providers/{local,cloud}}/**/*.ts", { cwd: root })
  .filter((path) => !path.includes("/kit"))
  .map((path) => readFileSync(join(root, path), "utf8"))
  .join("\n");

/** How reasons stand in the code where they are written whole. */
const WRITTEN = [
  /type: "(?:Warning|Normal)",\s*reason: "([A-Z]\w+)"/g,
  /\b(?:notice|notify)\(\s*(?:[\w.]+, )?"(?:Warning|Normal)",\s*"([A-Z]\w+)"/g,
  /\bnotice\(\s*[\w.]+,\s*"([A-Z]\w+)"/g,
  /#say\(pod, "(?:Warning|Normal)", "([A-Z]\w+)"/g,
  /(?:warning: \{|refusal: \{)\s*reason: "([A-Z]\w+)"/g,
  /\breported\(\s*[\w.#]+,\s*[\w.]+,\s*"([A-Z]\w+)"/g,
  /\bwarn\(\s*"([A-Z]\w+)"/g,
  /"Warning",\s*"([A-Z]\w+)",\s*message,/g,
  /\bcomplaint\(\s*"([A-Z]\w+)"/g,
];
/** Reasons that the code puts together, by a part of each that it has. */
const PUT_TOGETHER: Readonly<Record<string, RegExp>> = {
  "`Resize${reason}`": /^Resize(?:Deferred|Infeasible)$/,
  '`${optional ? "Optional" : "Mandatory"}${noun}NotFound`': /^(?:Optional|Mandatory)(?:ConfigMap|Secret)NotFound$/,
  '`${optional ? "Optional" : "Mandatory"}${noun}KeyNotFound`':
    /^(?:Optional|Mandatory)(?:ConfigMap|Secret)KeyNotFound$/,
};

test("every reason that the code writes is explained", () => {
  const written = new Set(
    WRITTEN.flatMap((pattern) => [...sources.matchAll(pattern)].map(([, reason = ""]) => reason)),
  );
  expect(written.size).toBeGreaterThan(40);
  expect([...written].filter((reason) => !(reason in EVENT_REASONS))).toEqual([]);
});

test("every reason that is explained is one that the code has", () => {
  const isThere = (reason: string) =>
    sources.includes(`"${reason}"`) ||
    sources.includes(`  ${reason}: (`) ||
    Object.entries(PUT_TOGETHER).some(([text, reasons]) => reasons.test(reason) && sources.includes(text));
  expect(Object.keys(EVENT_REASONS).filter((reason) => !isThere(reason))).toEqual([]);
});

test("the page has each reason once, with its meaning", () => {
  const page = made("events");
  for (const [reason, { meaning }] of Object.entries(EVENT_REASONS)) {
    expect(page.split(`| \`${reason}\` |`).length, reason).toBe(2);
    expect(page).toContain(meaning);
  }
});
