/** The table of commands. Each is loaded only when it is called. */
import { Command } from "commander";
import { USAGE_ERROR } from "./exit.ts";

interface Entry {
  summary: string;
  /** @param table the program's own commands */
  build: (table: CommandTable) => Promise<Command>;
  /** Also a command of `kubectl vmlet`: about a cluster, not about an agent or a backend. */
  isKubectls?: boolean | undefined;
  /** Asked by programs only. */
  isHidden?: boolean | undefined;
}

export type CommandTable = Readonly<Record<string, Entry>>;

const commands: CommandTable = {
  run: { summary: "run the node agent", build: async () => (await import("./run.ts")).runCommand() },
  check: {
    summary: "check configuration, permissions and backend",
    build: async () => (await import("./check.ts")).checkCommand(),
  },
  dev: {
    summary: "try it: a small cluster, a backend and the agent in one process",
    build: async () => (await import("./dev.ts").catch(notInImage("dev"))).devCommand(),
  },
  ui: {
    summary: "look at nodes and machines in the browser",
    isKubectls: true,
    build: async () => (await import("./ui.ts").catch(notInImage("ui"))).uiCommand(),
  },
  nodes: {
    summary: "list the virtual nodes, their backends' health and how full they are",
    isKubectls: true,
    build: async () => (await import("./nodes.ts")).nodesCommand(),
  },
  machines: {
    summary: "list pods as machines; with --config, what the backends have",
    isKubectls: true,
    build: async () => (await import("./machines.ts")).machinesCommand(),
  },
  why: {
    summary: "say why a pod does not run, and where it could",
    isKubectls: true,
    build: async () => (await import("./why.ts")).whyCommand(),
  },
  top: {
    summary: "show what machines use",
    isKubectls: true,
    build: async () => (await import("./top.ts")).topCommand(),
  },
  logs: {
    summary: "print the log of a machine",
    isKubectls: true,
    build: async () => (await import("./machine-logs.ts")).logsCommand(),
  },
  backend: { summary: "run the reference backend", build: async () => (await import("./backend.ts")).backendCommand() },
  guest: {
    summary: "serve the one machine of a cloud's VM, inside of it",
    build: async () => (await import("./guest.ts")).guestCommand(),
  },
  cloud: {
    summary: "make the image of which a cloud's VMs are",
    build: async () => (await import("./cloud.ts")).cloudCommand(),
  },
  config: {
    summary: "begin a configuration file, and explain its fields",
    build: async () => (await import("./config.ts")).configCommand(),
  },
  images: {
    summary: "pull images before machines ask for them, and keep them",
    build: async () => (await import("./images.ts")).imagesCommand(),
  },
  conformance: {
    summary: "hold a Machine API to its contract",
    build: async () => (await import("./conformance.ts")).conformanceCommand(),
  },
  new: {
    summary: "write a small backend to begin with",
    build: async () => (await import("./new.ts")).newCommand(),
  },
  webhook: {
    summary: "place the pods of namespaces that have a policy for bursts",
    build: async () => (await import("./webhook.ts")).webhookCommand(),
  },
  csi: {
    summary: "make PersistentVolumes of a backend's volumes",
    build: async () => (await import("./csi.ts")).csiCommand(),
  },
  smoke: {
    summary: "run a pod on a node and see it come and go",
    build: async () => (await import("./smoke.ts")).smokeCommand(),
  },
  node: {
    summary: "tell whether nodes are drained, or remove Node objects",
    build: async () => (await import("./node.ts")).nodeCommand(),
  },
  completion: {
    summary: "print the script that completes commands in a shell",
    build: async () => (await import("./completion.ts")).completionCommand(),
  },
  complete: {
    summary: "what the last word could become",
    isKubectls: true,
    isHidden: true,
    build: async (table) => (await import("./completion.ts")).completeCommand(table),
  },
  version: {
    summary: "print the version",
    isKubectls: true,
    build: async () => (await import("./version.ts")).versionCommand(),
  },
};

/** The commands of the program that goes by this name. */
export function commandsOf(program: "vmlet" | "kubectl vmlet"): CommandTable {
  if (program === "vmlet") return commands;
  return Object.fromEntries(Object.entries(commands).filter(([, { isKubectls }]) => isKubectls));
}

/** The container image is for clusters and carries none of its own (helm/assemble.ts). */
function notInImage(command: string) {
  return (thrown: unknown): never => {
    if ((thrown as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw thrown;
    console.error(`vmlet ${command} is not in the container image: install the package, or take a checkout of vmlet`);
    process.exit(USAGE_ERROR);
  };
}
