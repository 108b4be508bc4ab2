/**
 * What a file exports, others use: a folder's surface is what is exported there. What is exported for its tests alone
 * says so.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { exportedNames } from "../support/exports.ts";

/** What package.json exports, and the room that tests and demos use as a whole. */
const SURFACE = [
  "src/index.ts",
  "src/provider/kit/index.ts",
  "providers/http-vm/index.ts",
  "providers/cloud/index.ts",
  "providers/memory/index.ts",
];

/** What engines/index.ts can choose. An engine that is being built is not judged before it is among them. */
const ENGINES = readFileSync(join(import.meta.dirname, "../../providers/local/engines/index.ts"), "utf8");

const exported = exportedNames(SURFACE).filter(({ file }) => {
  const engine = /^providers\/local\/engines\/([^/]+)\//.exec(file)?.[1];
  return engine === undefined || ENGINES.includes(`from "./${engine}/`);
});
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
