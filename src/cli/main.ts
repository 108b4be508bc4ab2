#!/usr/bin/env node
/**
 * The command line. Each command lives in a file of its own and is loaded only when it is called, because loading all
 * of them would cost every one of them a second.
 */
// Not by name: an older Node.js lacks some, and would not get as far as to say that it is too old.
import * as nodeModule from "node:module";
import { basename } from "node:path";
import { Command } from "commander";
import { commandsOf } from "./commands.ts";
import { endWithoutReader, failWith, USAGE_ERROR } from "./exit.ts";
import { refuseOldNode } from "./node-version.ts";
import { VERSION } from "./version.ts";

refuseOldNode();

/** kubectl finds its plugins by their files' names. */
const name = basename(process.argv[1] ?? "").startsWith("kubectl") ? "kubectl vmlet" : "vmlet";
const commands = commandsOf(name);

const program = new Command(name)
  .description("Turns any HTTP VM API into a Kubernetes node")
  .version(VERSION, "-V, --version", "print the version")
  .configureHelp({ showGlobalOptions: true })
  .showHelpAfterError(`(${name} --help lists the commands)`)
  .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : USAGE_ERROR));

const SERVICES: ReadonlySet<string> = new Set(["run", "backend", "webhook", "csi", "guest"]);
const words = process.argv.slice(2).filter((argument) => !argument.startsWith("-"));
const wanted = words[0] === "help" ? words[1] : words[0];
// Halves the time that a start takes after the first; where nothing can be written it does nothing. What runs for long
// would hold the code in memory twice.
if (wanted !== "run" && wanted !== "backend" && wanted !== "webhook") nodeModule.enableCompileCache();
// Services write logs, which are no reason to end.
if (!SERVICES.has(wanted ?? "")) endWithoutReader();
for (const [word, { summary, build, isHidden = false }] of Object.entries(commands)) {
  const command = (word === wanted ? await build(commands) : new Command(word)).description(summary);
  program.addCommand(command, { hidden: isHidden });
  inherit(program, command);
}

function inherit(parent: Command, command: Command, path: string = name): void {
  const own = `${path} ${command.name()}`;
  command.copyInheritedSettings(parent).showHelpAfterError(`(${own} --help says what it takes)`);
  for (const child of command.commands) inherit(command, child, own);
}

try {
  await program.parseAsync();
} catch (thrown) {
  failWith(thrown);
}
