import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { REDACTED, Redactor } from "../../../src/podspec/references/redaction.ts";
import { runs } from "../../support/runs.ts";

const PASSWORD = 'p4ss"w0rd/+ü\\x';

function redact(text: string, values: string[] = [PASSWORD], publicText = ""): string {
  const redactor = new Redactor();
  redactor.add(values, publicText);
  return redactor.redact(text);
}

describe("a text that quotes a secret", () => {
  test.each([
    ["as it is", PASSWORD],
    ["escaped in JSON", JSON.stringify(PASSWORD).slice(1, -1)],
    ["percent-encoded", encodeURIComponent(PASSWORD)],
    ["in base64", Buffer.from(PASSWORD).toString("base64")],
    ["in base64url", Buffer.from(PASSWORD).toString("base64url")],
  ])("%s quotes it no longer", (_, quoted) => {
    const redacted = redact(`invalid value "${quoted}" of env.DB, and again ${quoted}.`);
    expect(redacted).not.toContain(quoted.slice(0, -2));
    expect(redacted.split(REDACTED)).toHaveLength(3);
    expect(redacted).toMatch(/^invalid value ".* of env\.DB, and again .*\.$/);
  });

  test("within something in base64, wherever it begins there, quotes it no longer", () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 6 }), fc.string({ maxLength: 6 }), (before, after) => {
        const encoded = Buffer.from(`${before}correct horse battery${after}`).toString("base64");
        const left = Buffer.from(redact(`x ${encoded} y`, ["correct horse battery"]).split(" ")[1]!, "base64");
        expect(left.toString()).not.toContain("horse");
      }),
    );
  });

  test("of many lines is not quoted line by line", () => {
    const key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nshort\n-----END KEY-----\n";
    expect(redact("bad line MIIEvQIBADANBgkqhkiG9w0 in key, short", [key])).toBe(`bad line ${REDACTED} in key, short`);
  });

  test("that begins like another is told apart", () => {
    expect(redact("secret-one-and-more secret-one", ["secret-one", "secret-one-and-more"])).toBe(
      `${REDACTED} ${REDACTED}`,
    );
  });
});

describe("a text stays as it is", () => {
  test("where a value is a common word", () => {
    expect(redact("the value true is not eu-west", ["true", "eu-west", "", "  "])).toBe(
      "the value true is not eu-west",
    );
  });

  test("where a value stands in the pod for everybody to read", () => {
    const text = 'Back-off pulling image "postgres"';
    expect(redact(text, ["postgres"], JSON.stringify({ image: "postgres:17" }))).toBe(text);
  });

  test("where it quotes nothing", () => {
    fc.assert(
      fc.property(fc.string(), (text) => {
        expect(redact(text, ["no such thing as this"])).toBe(text);
      }),
    );
  });
});

test("remembers the latest of many values", () => {
  const redactor = new Redactor();
  const values = Array.from({ length: 1000 }, (_, i) => `value-number-${i}-end`);
  redactor.add(values, "");
  redactor.add([values[999]!], "");
  expect(redactor.redact(values[999]!)).toBe(REDACTED);
  expect(redactor.redact(values[0]!)).toBe(values[0]);
});

test("finds the longest of what begins at a place, as trying them all would", () => {
  const word = fc.string({ unit: fc.constantFrom("a", "b"), minLength: 8, maxLength: 12 });
  fc.assert(
    fc.property(
      fc.array(word, { maxLength: 20 }),
      fc.string({ unit: fc.constantFrom("a", "b"), maxLength: 60 }),
      (words, text) => {
        let expected = "";
        for (let at = 0; at < text.length;) {
          const found = words.filter((each) => text.startsWith(each, at)).sort((a, b) => b.length - a.length)[0];
          expected += found === undefined ? text[at] : REDACTED;
          at += found?.length ?? 1;
        }
        expect(redact(text, words)).toBe(expected);
      },
    ),
    { numRuns: runs(1000) },
  );
});

test("takes linear time for values and texts that are made to be alike", () => {
  const values = Array.from({ length: 512 }, (_, i) => "a".repeat(110) + "b".repeat(i % 17) + String(i));
  const text = "a".repeat(256 * 1024);
  expect(redact(text, values)).toBe(text);
});

test("of a long value is found in part, too", () => {
  const value = Array.from({ length: 400 }, (_, i) => i.toString(36).padStart(2, "0")).join("");
  expect(redact(`token ${value.slice(0, 300)}...`, [value])).toBe(
    `token ${REDACTED}${REDACTED}${value.slice(256, 300)}...`,
  );
});
