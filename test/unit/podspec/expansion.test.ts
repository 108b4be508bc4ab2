import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { expand, lookUpIn } from "../../../src/podspec/render/expansion.ts";

const VARIABLES = new Map([
  ["A", "a"],
  ["B", "$(A)"],
  ["EMPTY", ""],
  ["a.b-c", "dots"],
]);

/** What Go's third_party/forked/golang/expansion (Kubernetes 1.36.3) answers with the same variables. */
const FROM_GO: readonly (readonly [string, string])[] = [
  ["$(A)", "a"],
  ["x$(A)y", "xay"],
  ["$$(A)", "$(A)"],
  ["$$$(A)", "$a"],
  ["$$$$(A)", "$$(A)"],
  ["$(B)", "$(A)"],
  ["$(NO)", "$(NO)"],
  ["$(NO", "$(NO"],
  ["$", "$"],
  ["$$", "$"],
  ["$$$", "$$"],
  ["$A", "$A"],
  ["$(A)$(B)", "a$(A)"],
  ["$(EMPTY)", ""],
  ["$()", "$()"],
  ["$($(A))", "$($(A))"],
  ["a$", "a$"],
  ["$((A))", "$((A))"],
  ["$(A)(B)", "a(B)"],
  ["$(a.b-c)", "dots"],
  ["$)", "$)"],
  ["f$o$(A)", "f$oa"],
  ["$(A))", "a)"],
  ["é$(A)ü", "éaü"],
  ["$é", "$é"],
];

const anyText = fc.array(fc.constantFrom("$", "(", ")", "A", "B", "x", "é")).map((parts) => parts.join(""));

describe("expand", () => {
  test.each(FROM_GO)("turns %j into %j, as Go does", (input, output) => {
    expect(expand(input, lookUpIn(VARIABLES))).toBe(output);
  });

  test("leaves text without a dollar alone", () => {
    fc.assert(
      fc.property(
        fc.string().filter((text) => !text.includes("$")),
        (text) => {
          expect(expand(text, () => "never")).toBe(text);
        },
      ),
    );
  });

  test("gives back what was escaped by doubling every dollar", () => {
    fc.assert(
      fc.property(anyText, (text) => {
        expect(expand(text.replaceAll("$", "$$$$"), lookUpIn(VARIABLES))).toBe(text);
      }),
    );
  });

  test("never looks inside what it put in", () => {
    fc.assert(
      fc.property(anyText, (text) => {
        const seen: string[] = [];
        expand(text, (name) => {
          seen.push(name);
          return "$(X)";
        });
        expect(seen).not.toContain("X");
      }),
    );
  });
});

describe("lookUpIn", () => {
  test("prefers the first map", () => {
    expect(lookUpIn(new Map([["A", "1"]]), new Map([["A", "2"]]))("A")).toBe("1");
  });
});
