/** The changelog is kept by hand; what a release forgets most easily is checked. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");
const text = readFileSync(join(root, "CHANGELOG.md"), "utf8");
const { version, files } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
  version: string;
  files: string[];
};
const headings = [...text.matchAll(/^## (.*)$/gm)].map(([, heading = ""]) => heading);

test("the package's version is in it: released, or the one that what is unreleased becomes", () => {
  const isReleased = headings.some((heading) => heading.startsWith(`${version} (`));
  expect(isReleased || text.includes(`this becomes ${version}.`)).toBe(true);
});

test("what is unreleased comes first, and every release has its day", () => {
  expect(headings[0]).toBe("Unreleased");
  for (const heading of headings.slice(1)) expect(heading).toMatch(/^\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)$/);
});

test("changes are sorted by what they mean for users", () => {
  const kinds = [...text.matchAll(/^### (.*)$/gm)].map(([, kind]) => kind);
  expect(kinds).not.toEqual([]);
  expect(kinds.filter((kind) => !["Added", "Changed", "Removed", "Fixed", "Security"].includes(kind!))).toEqual([]);
});

test("it is in the package, and what it refers to is there", () => {
  expect(files).toContain("CHANGELOG.md");
  const links = [...text.matchAll(/\]\((?!https?:)([^)#]+)/g)].map(([, path]) => path!);
  expect(links.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});
