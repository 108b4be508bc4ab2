/**
 * What a file exports, others use: a folder's surface is what is exported there. What is exported for its tests alone
 * says so.
 */
import { expect, test } from "vitest";
import { exportedNames } from "../support/exports.ts";

/** What package.json exports, and the room that tests and demos use as a whole. */
const SURFACE = [
  "src/index.ts",
  "src/provider/kit/index.ts",
  "providers/http-vm/index.ts",
  "providers/memory/index.ts",
];

const exported = exportedNames(SURFACE);
const where = ({ file, line, name }: { file: string; line: number; name: string }): string => `${file}:${line} ${name}`;

test("all exports are found", () => {
  expect(exported.length).toBeGreaterThan(1000);
  expect(exported).toContainEqual(
    expect.objectContaining({ file: "src/pods/planner.ts", name: "plan", isTaken: true }),
  );
});

test("nothing is exported that no other file takes", () => {
  expect(exported.filter(({ isTaken, isTested }) => !isTaken && !isTested).map(where)).toEqual([]);
});

test("what only tests take is marked @internal", () => {
  const silent = exported.filter((each) => !each.isTaken && each.isTested && !each.isType && !each.isInternal);
  expect(silent.map(where)).toEqual([]);
});

test("nothing that other files take is marked @internal", () => {
  expect(exported.filter(({ isTaken, isInternal }) => isTaken && isInternal).map(where)).toEqual([]);
});
