#!/usr/bin/env node
/**
 * The command line. Each command lives in a file of its own and is loaded only when it is called, because loading all
 * of them would cost every one of them a second.
 */
// Not by name: an older Node.js lacks some, and would not get as far as to say that it is too old.
import * as nodeModule from "node:module";
import { Command } from "commander";
import { failWith, USAGE_ERROR } from "./exit.ts";
import { refuseOldNode } from "./node-version.ts";
import { VERSION } from "./version.ts";

refuseOldNode();

// Halves the time that a start takes after the first; where nothing can be written it does nothing.
nodeModule.enableCompileCache();

const program = new Command("vmlet")
  .description("Turns any HTTP VM API into a Kubernetes node")
  .version(VERSION, "-V, --version", "print the version")
  .configureHelp({ showGlobalOptions: true })
  .showHelpAfterError("(vmlet --help lists the commands)")
  .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : USAGE_ERROR));

type Build = () => Promise<Command>;
const commands: Record<string, { summary: string; build: Build }> = {
  run: { summary: "run the node agent", build: async () => (await import("./run.ts")).runCommand() },
  check: {
    summary: "check configuration, permissions and backend",
    build: async () => (await import("./check.ts")).checkCommand(),
  },
  dev: {
    summary: "try it: a small cluster, a backend and the agent in one process",
    build: async () => (await import("./dev.ts").catch(notInImage)).devCommand(),
  },
  backend: { summary: "run the reference backend", build: async () => (await import("./backend.ts")).backendCommand() },
  config: {
    summary: "begin a configuration file, and explain its fields",
    build: async () => (await import("./config.ts")).configCommand(),
  },
  conformance: {
    summary: "hold a Machine API to its contract",
    build: async () => (await import("./conformance.ts")).conformanceCommand(),
  },
  smoke: {
    summary: "run a pod on a node and see it come and go",
    build: async () => (await import("./smoke.ts")).smokeCommand(),
  },
  node: {
    summary: "tell whether nodes are drained, or remove Node objects",
    build: async () => (await import("./node.ts")).nodeCommand(),
  },
  version: { summary: "print the version", build: async () => (await import("./version.ts")).versionCommand() },
};

const words = process.argv.slice(2).filter((argument) => !argument.startsWith("-"));
const wanted = words[0] === "help" ? words[1] : words[0];
for (const [name, { summary, build }] of Object.entries(commands)) {
  const command = name === wanted ? (await build()).description(summary) : new Command(name).description(summary);
  program.addCommand(command);
  inherit(program, command);
}

/** The container image is for clusters and carries none of its own (helm/assemble.ts). */
function notInImage(thrown: unknown): never {
  if ((thrown as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw thrown;
  console.error("vmlet dev is not in the container image: run `npm start` in a checkout of vmlet");
  process.exit(USAGE_ERROR);
}

function inherit(parent: Command, command: Command, path = "vmlet"): void {
  const name = `${path} ${command.name()}`;
  command.copyInheritedSettings(parent).showHelpAfterError(`(${name} --help says what it takes)`);
  for (const child of command.commands) inherit(command, child, name);
}

try {
  await program.parseAsync();
} catch (thrown) {
  failWith(thrown);
}
