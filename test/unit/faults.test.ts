/**
 * test/FAULTS.md says which tests hold vmlet to what is expected in each case of a fault, test/FIRST-DAY.md the same of what
 * its users meet: they name what there is, and leave out no case.
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";

const folder = join(import.meta.dirname, "..");
function rowsOf(table: string) {
  return readFileSync(join(folder, table), "utf8")
    .split("\n")
    .filter((line) => /^\| [A-Z]{3}-\d\d \|/.test(line))
    .map((line) => {
      const [id = "", expected = "", tests = ""] = line.split(" | ").map((cell) => cell.replace(/^\| /, "").trim());
      return { id, expected, tests };
    });
}

const range = (room: string, first: number, last: number) =>
  Array.from({ length: last - first + 1 }, (_, index) => `${room}-${String(first + index).padStart(2, "0")}`);

const FAULTS = [
  ...range("API", 1, 25),
  ...range("AGT", 1, 20),
  ...range("BCK", 1, 27),
  ...range("HST", 1, 35),
  ...range("LIF", 1, 10),
  ...range("NOD", 1, 5),
  ...range("CLK", 1, 2),
  ...range("CRT", 1, 4),
  ...range("STR", 1, 7),
  ...range("SEC", 1, 14),
  ...range("SEC", 20, 34),
  ...range("OPS", 1, 12),
];
const FIRST_DAY = [...range("RUN", 1, 6), ...range("DEV", 1, 17), ...range("CLI", 1, 17), ...range("HLM", 1, 7)];

/** Each test that a cell names: a file, and behind it names of what is in it. */
function namedTests(cell: string): { file: string; name: string }[] {
  let inFile = "";
  return [...cell.matchAll(/`([^`]+\.ts)`|"([^"]+)"/g)].flatMap(([, file, name]) => {
    if (file !== undefined) inFile = file;
    return name === undefined ? [] : [{ file: inFile, name }];
  });
}

/** A title stands first in a call or in a row of a table, or is the `name` of a case. */
function isTitleIn(source: string, name: string): boolean {
  const title = name.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
  return new RegExp(String.raw`(?<!\.(?:skip|todo))(?:[([]\s*|\bname: )(?:"${title}"|` + "`" + title + "`)").test(
    source,
  );
}

test("as many faults are there as the table says", () => {
  expect(FAULTS).toHaveLength(176);
});

describe.each([
  ["FAULTS.md", FAULTS],
  ["FIRST-DAY.md", FIRST_DAY],
])("%s", (table, cases) => {
  const rows = rowsOf(table);

  test("has every case, once and in order", () => {
    expect(rows.map(({ id }) => id)).toEqual(cases);
  });

  test("says of every case what is expected, and names a test or why there is none", () => {
    const silent = rows.filter(
      ({ expected, tests }) =>
        expected === "" || (namedTests(tests).length === 0 && !/^(?:no test yet|not applicable: )/.test(tests)),
    );
    expect(silent).toEqual([]);
  });

  test("names tests that are there", () => {
    const missing = rows.flatMap(({ id, tests }) =>
      namedTests(tests)
        .filter(({ file, name }) => {
          const path = join(folder, file);
          return !existsSync(path) || !isTitleIn(readFileSync(path, "utf8"), name);
        })
        .map(({ file, name }) => `${id}: ${file}: ${name}`),
    );
    expect(missing).toEqual([]);
  });
});
