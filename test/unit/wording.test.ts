/**
 * Comments are for newcomers: plain words, no wider than the code, and sources that everybody can open. What is checked
 * here is what a machine can see of that.
 */
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";

const ROOT = join(import.meta.dirname, "../..");
const WIDTH = 120;
/** A file of so many lines says at its beginning what lives in it. */
const LONG = 40;

/** Words and turns that have to be decoded, with a plain one in their place. */
const ODD: readonly [odd: RegExp, plain: string][] = [
  [/\blest\b/i, "so that ... not"],
  [/\b(?:whoever|whosoever)\b/i, "the caller, a client, a program that ..."],
  [/\banew\b/i, "again"],
  [/\bfor (?:the )?want of\b/i, "without, because ... is missing"],
  [/\bsuch a one\b/i, "one, it"],
  [/\ba trifle\b/i, "slightly"],
  [/\bdear(?:er|est)?\b/i, "expensive"],
  [/\b(?:is|are) no fault of\b/i, "is not an error of, does not affect"],
  [/\b(?:he|him|his)\b/i, "it, its, the client: programs are not persons"],
  [/\b(?:forthwith|hitherto|thence|whence|hence|albeit|nowise|naught|aught)\b/i, "a word of today"],
  [/kubelet\.md/, "the path in Kubernetes' sources: pkg/kubelet/..."],
];

interface Source {
  file: string;
  lines: readonly string[];
}

const sources: readonly Source[] = globSync("{src,providers,helm}/**/*.ts", { cwd: ROOT })
  .filter((file) => !file.endsWith(".gen.ts"))
  .map((file) => ({ file, lines: readFileSync(join(ROOT, file), "utf8").split("\n") }));

/** The lines that are a comment, or end in one, with what they say. */
function comments(lines: readonly string[]): { line: number; text: string }[] {
  return lines.flatMap((line, index) => {
    const text = /^\s*(?:\/\/|\/?\*)(.*)$/.exec(line)?.[1] ?? /\s\/\/ (.*)$/.exec(line)?.[1];
    return text === undefined ? [] : [{ line: index + 1, text }];
  });
}

function oddities(text: string): string[] {
  // Quoted code and texts of others are not ours to choose.
  const prose = text.replace(/`[^`]*`|"[^"]*"/g, "");
  return ODD.filter(([odd]) => odd.test(prose)).map(([odd, plain]) => `${odd.exec(prose)![0]}: ${plain}`);
}

describe("what is read of a source", () => {
  test("finds comments of each form, and no code", () => {
    const text = ["/** One. */", " * Two", "  // three", "call(); // four", 'const url = "http://five";', "a * b"];
    expect(comments(text).map(({ line }) => line)).toEqual([1, 2, 3, 4]);
  });

  test.each(["Waits, lest it be late", "for want of memory", "Walking is dear", "see kubelet.md §3.1"])(
    "finds what is odd: %s",
    (text) => expect(oddities(text)).toHaveLength(1),
  );

  test("leaves alone what is quoted, and words that only contain one", () => {
    expect(oddities('says "he" to `dear`; the header of this')).toEqual([]);
  });

  test("is all of it", () => {
    expect(sources.length).toBeGreaterThan(300);
  });
});

test("comments use plain words", () => {
  const found = sources.flatMap(({ file, lines }) =>
    comments(lines).flatMap(({ line, text }) => oddities(text).map((odd) => `${file}:${line}: ${odd}`)),
  );
  expect(found).toEqual([]);
});

test(`comments end by column ${WIDTH}`, () => {
  const wide = sources.flatMap(({ file, lines }) =>
    lines.flatMap((line, index) =>
      line.length > WIDTH && /^\s*(?:\/\/|\/?\*)/.test(line) ? [`${file}:${index + 1}`] : [],
    ),
  );
  expect(wide).toEqual([]);
});

test(`a file of more than ${LONG} lines begins by saying what lives in it`, () => {
  const silent = sources.filter(({ lines }) => lines.length > LONG && !/^(?:\/\*\*|\/\/|#!)/.test(lines[0]!));
  expect(silent.map(({ file }) => file)).toEqual([]);
});

test("each file that ARCHITECTURE.md names is there", () => {
  const text = readFileSync(join(ROOT, "ARCHITECTURE.md"), "utf8");
  const names = [...new Set(text.match(/[\w./-]+\.(?:ts|yaml)\b/g))];
  expect(names.length).toBeGreaterThan(30);
  const all = [...globSync("{src,providers,helm,test}/**/*.{ts,yaml}", { cwd: ROOT })];
  expect(names.filter((name) => !all.some((file) => `/${file}`.endsWith(`/${name}`)))).toEqual([]);
});
