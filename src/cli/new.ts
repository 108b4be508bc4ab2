/** `vmlet new backend`: a small backend that keeps the contract, to begin one's own with. */
import { cp, mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Command, Option } from "commander";
import { packageFile } from "./version.ts";

const PORT = 8480;

/** How each sample is started. */
const LANGUAGES: Readonly<Record<string, string>> = {
  python: "python3 backend.py",
  go: "go run .",
  typescript: "node main.ts",
};

export function newCommand(): Command {
  const command = new Command("new");
  command
    .command("backend")
    .description("write a small backend to begin with, which keeps the core of the Machine API")
    .addOption(
      new Option("--lang <language>", "what it is written in").choices(Object.keys(LANGUAGES)).makeOptionMandatory(),
    )
    .option("--dir <dir>", "folder to write it to, which must be empty or not there", "backend")
    .action(async ({ lang, dir }: { lang: string; dir: string }, command: Command) => {
      if (!(await writeSample(lang, dir)))
        command.error(`error: ${dir} is not empty, and nothing was written: name another folder with --dir`);
      process.stdout.write(`${nextSteps(lang, dir).join("\n")}\n`);
    });
  return command;
}

/**
 * False when the folder holds anything: it may be somebody's work.
 * @internal
 */
export async function writeSample(lang: string, dir: string): Promise<boolean> {
  await mkdir(dir, { recursive: true });
  if ((await readdir(dir)).length > 0) return false;
  await cp(join(fileURLToPath(packageFile("examples/backends")), lang), dir, { recursive: true });
  return true;
}

/** @internal */
export function nextSteps(lang: string, dir: string): string[] {
  return [
    `${dir} has a backend whose machines are processes of this host. Start it, and see that it keeps the contract:`,
    "",
    `  (cd ${quoted(dir)} && ${LANGUAGES[lang]})`,
    `  vmlet conformance http://127.0.0.1:${PORT} --token-file ${quoted(join(dir, "state/token"))}`,
  ];
}

const quoted = (text: string): string => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
