/** Every command of vmlet's that a document shows or names is one that there is, with the flags that it has. */
import { globSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import type { Command } from "commander";
import { expect, test } from "vitest";
import { commandsOf } from "../../src/cli/commands.ts";

const root = join(import.meta.dirname, "../..");
/** Of folders that are made, nothing; what the past was like is history. */
const LEFT_OUT = ["node_modules", "dist", ".pages", ".cache", ".vmlet", "coverage", "CHANGELOG.md"];
const commands = commandsOf("vmlet");

/** Lines of shell blocks, the continued ones whole, and code in sentences. */
function codeIn(text: string): string[] {
  const blocks = [...text.matchAll(/```(?:sh|console)\n(.*?)```/gs)].flatMap(([, block = ""]) =>
    block.replaceAll("\\\n", " ").split("\n"),
  );
  const prose = text.replaceAll(/```.*?```/gs, "");
  return [...blocks, ...[...prose.matchAll(/`([^`]+)`/g)].map(([, code = ""]) => code.replaceAll("\n", " "))];
}

/** What of it calls vmlet, as words: its command first. */
function callsIn(code: string): string[][] {
  return code
    .split(/\s#|&&|\|\|?|;|\s>/)
    .map((part) => /^\s*(?:npm run (?:-s )?vmlet --|npx vmlet|kubectl vmlet|vmlet) +(.*)$/.exec(part)?.[1] ?? "")
    .filter((call) => call !== "")
    .map((call) => call.trim().split(/\s+/));
}

const shown = globSync("**/*.md", { cwd: root, exclude: (path) => LEFT_OUT.includes(basename(path)) }).flatMap((file) =>
  codeIn(readFileSync(join(root, file), "utf8"))
    .flatMap(callsIn)
    .map((words) => ({ file, words })),
);

/** Undefined where all of it is there. */
async function wrongIn(words: readonly string[]): Promise<string | undefined> {
  const [name = "", ...rest] = words;
  if (name.startsWith("-")) return ["--version", "-V", "--help"].includes(name) ? undefined : `no flag ${name}`;
  const entry = commands[name === "help" ? (rest[0] ?? "") : name];
  if (entry === undefined) return `no command ${name}`;
  let command: Command = await entry.build(commands);
  let flags = command.options;
  // Flags of the command itself may stand before what is to be done.
  for (const word of rest) {
    const child = command.commands.find((each) => each.name() === word);
    if (child !== undefined) [command, flags] = [child, [...flags, ...child.options]];
  }
  const known = new Set(["--help", ...flags.flatMap(({ short, long }) => [short, long])]);
  const own = rest.includes("--") ? rest.slice(0, rest.indexOf("--")) : rest;
  const unknown = own.filter((word) => word.startsWith("-")).find((word) => !known.has(word.replace(/=.*/, "")));
  return unknown === undefined ? undefined : `no flag ${unknown}`;
}

// It starts a program for each.
test("every command and flag of vmlet's in the documents is there", { timeout: 120_000 }, async () => {
  expect(shown.length).toBeGreaterThan(60);
  const wrong: string[] = [];
  for (const { file, words } of shown) {
    const reason = await wrongIn(words);
    if (reason !== undefined) wrong.push(`${file}: vmlet ${words.join(" ")}: ${reason}`);
  }
  expect(wrong).toEqual([]);
});
