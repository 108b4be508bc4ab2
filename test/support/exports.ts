/**
 * Which names the sources export, and who takes them: read from the text, which is uniform enough for that (one form of
 * `export` and of `import`, held by the formatter). A name that is taken by a namespace or a dynamic import counts as
 * used when the importing file writes it.
 */
import { globSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";

const ROOT = join(import.meta.dirname, "../..");

export interface ExportedName {
  file: string;
  name: string;
  /** Line of its declaration, from 1. */
  line: number;
  /** An interface or a type: nothing that could be called. */
  isType: boolean;
  /** Its comment says `@internal`: it is exported for its tests alone. */
  isInternal: boolean;
}

const DECLARATION =
  /^export (?:declare )?(?:abstract )?(?:async )?(function\*?|class|const|let|interface|type|enum) (\w+)/;
const LIST = /\b(import|export)(?: type)?\s+(?:\w+,\s*)?\{([^}]*)\}(?:\s*from\s*"([^"]+)")?/g;
const WHOLE = /(?:import \* as \w+ from|export \* from|\bimport\(|importActual\(|vi\.mock\()\s*"([^"]+)"/g;

/** Of `a`, `type b` and `c as d` the names on the other side: a, b, c. */
function namesIn(list: string): string[] {
  return list
    .replace(/\/\/[^\n]*/g, "")
    .split(",")
    .map((part) =>
      part
        .trim()
        .replace(/^type /, "")
        .split(" as ")[0]!
        .trim(),
    )
    .filter((name) => name !== "");
}

function exportsOf(file: string, text: string): ExportedName[] {
  const lines = text.split("\n");
  const declared = lines.flatMap((content, index) => {
    const [, kind, name] = DECLARATION.exec(content) ?? [];
    if (name === undefined) return [];
    const isType = kind === "interface" || kind === "type";
    return [{ file, name, line: index + 1, isType, isInternal: commentBefore(lines, index).includes("@internal") }];
  });
  const listed = [...text.matchAll(LIST)]
    .filter(([, word]) => word === "export")
    .flatMap(({ 0: whole, 2: list, index }) =>
      list!
        .split(",")
        .map((part) => part.trim())
        .filter((part) => part !== "")
        .map((part) => ({
          file,
          name: part
            .split(" as ")
            .at(-1)!
            .replace(/^type /, ""),
          line: text.slice(0, index).split("\n").length,
          isType: whole.startsWith("export type") || part.startsWith("type "),
          isInternal: false,
        })),
    );
  return [...declared, ...listed];
}

/** The doc comment that ends in the line before this one. */
function commentBefore(lines: readonly string[], index: number): string {
  if (lines[index - 1]?.endsWith("*/") !== true) return "";
  const start = lines.slice(0, index).findLastIndex((line) => line.startsWith("/**"));
  return lines.slice(start, index).join("\n");
}

/**
 * @param surface files whose exports are for others, outside of this repository
 * @returns each name that src/ and providers/ export, and who takes it: another of their files, or a test
 */
export function exportedNames(surface: readonly string[]): (ExportedName & { isTaken: boolean; isTested: boolean })[] {
  const all = globSync("{src,providers,test,helm,examples}/**/*.ts", {
    cwd: ROOT,
    // Declarations of what is JavaScript.
    exclude: ["**/*.d.ts"],
  }).map((file) => ({
    file,
    text: readFileSync(join(ROOT, file), "utf8"),
  }));
  const taken = { sources: new Set<string>(), tests: new Set<string>() };
  const byFile = new Map(all.map(({ file, text }) => [file, exportsOf(file, text)]));
  const take = (from: string, file: string, names: readonly string[]): void => {
    const by = /^(?:src|providers|helm)\//.test(from) ? taken.sources : taken.tests;
    for (const name of names) by.add(`${file} ${name}`);
  };
  for (const { file: from, text } of all) {
    const target = (path: string): string => normalize(join(dirname(from), path));
    for (const [, , list, path] of text.matchAll(LIST))
      if (path?.startsWith(".") === true) take(from, target(path), namesIn(list!));
    for (const [, path] of text.matchAll(WHOLE))
      if (path!.startsWith(".")) {
        const names = (byFile.get(target(path!)) ?? []).map(({ name }) => name);
        const isAll = text.includes(`export * from "${path}"`);
        take(from, target(path!), isAll ? names : names.filter((name) => new RegExp(`\\b${name}\\b`).test(text)));
      }
  }
  return [...byFile]
    .filter(([file]) => /^(?:src|providers)\//.test(file) && !file.endsWith(".gen.ts") && !surface.includes(file))
    .flatMap(([, exported]) => exported)
    .map((each) => ({
      ...each,
      isTaken: taken.sources.has(`${each.file} ${each.name}`),
      isTested: taken.tests.has(`${each.file} ${each.name}`),
    }));
}
