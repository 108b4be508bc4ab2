import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { globMatches } from "../../../src/util/glob.ts";
import { runs } from "../../support/runs.ts";

describe("a glob means what it means to Go's filepath.Match", () => {
  // From Go's path/filepath/match_test.go.
  test.each([
    ["abc", "abc", true],
    ["*", "abc", true],
    ["*c", "abc", true],
    ["a*", "a", true],
    ["a*", "abc", true],
    ["a*", "ab/c", false],
    ["a*/b", "abc/b", true],
    ["a*/b", "a/c/b", false],
    ["a*b*c*d*e*/f", "axbxcxdxe/f", true],
    ["a*b*c*d*e*/f", "axbxcxdxexxx/f", true],
    ["a*b*c*d*e*/f", "axbxcxdxe/xxx/f", false],
    ["a*b*c*d*e*/f", "axbxcxdxexxx/fff", false],
    ["a*b?c*x", "abxbbxdbxebxczzx", true],
    ["a*b?c*x", "abxbbxdbxebxczzy", false],
    ["ab[c]", "abc", true],
    ["ab[b-d]", "abc", true],
    ["ab[e-g]", "abc", false],
    ["ab[^c]", "abc", false],
    ["ab[^b-d]", "abc", false],
    ["ab[^e-g]", "abc", true],
    ["a\\*b", "a*b", true],
    ["a\\*b", "ab", false],
    ["a?b", "a☺b", true],
    ["a[^a]b", "a☺b", true],
    ["a???b", "a☺b", false],
    ["[a-ζ]*", "α", true],
    ["*[a-ζ]", "A", false],
    ["a?b", "a/b", false],
    ["a*b", "a/b", false],
    ["[\\]a]", "]", true],
    ["[\\-]", "-", true],
    ["[x\\-]", "x", true],
    ["[x\\-]", "z", false],
    ["[\\-x]", "a", false],
    ["*x", "xxx", true],
    ["", "", true],
    ["", "x", false],
    ["***", "", true],
  ])("%j and %j: %j", (pattern, text, expected) => {
    expect(globMatches(pattern, text)).toBe(expected);
  });

  test.each(["[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[", "[^", "[^bc", "a[", "a\\", "[a-"])(
    "%j is malformed and matches nothing",
    (pattern) => {
      for (const text of ["a", "ab", "-", "x", "]", pattern]) expect(globMatches(pattern, text)).toBe(false);
    },
  );

  test("for any pattern and text", () => {
    const letters = (alphabet: string) => fc.string({ unit: fc.constantFrom(...alphabet.split("")), maxLength: 12 });
    fc.assert(
      fc.property(letters("ab*?/"), letters("ab/"), (pattern, text) => {
        expect(globMatches(pattern, text)).toBe(slowly(pattern, text));
      }),
      { numRuns: runs(2000) },
    );
  });
});

test("as many stars as fit are matched without trying every way to share out the text", () => {
  const pattern = "*a".repeat(250) + "b";
  const text = "a".repeat(2000);
  expect(globMatches(pattern, text)).toBe(false);
});

function slowly(pattern: string, text: string): boolean {
  if (pattern === "") return text === "";
  const [first, rest] = [pattern[0]!, pattern.slice(1)];
  if (first === "*") return slowly(rest, text) || (text !== "" && text[0] !== "/" && slowly(pattern, text.slice(1)));
  if (text === "" || (first === "?" ? text[0] === "/" : first !== text[0])) return false;
  return slowly(rest, text.slice(1));
}
