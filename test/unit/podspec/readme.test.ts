import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { readmePath, withFeatures } from "../../support/readme.ts";

test("the README's table says what the code does (npm run docs writes it)", () => {
  const readme = readFileSync(readmePath, "utf8");
  expect(readme).toBe(withFeatures(readme));
});

test("a README without the markers is an error that names them", () => {
  expect(() => withFeatures("# vmlet")).toThrow("features:begin");
});
