/** `vmlet completion SHELL`: what a shell asks while somebody types, and the scripts by which it asks. */
import { Argument, Command } from "commander";
import { systemClock } from "../util/clock.ts";
import { pause } from "../util/abort.ts";
import { clusterOf } from "./cluster-options.ts";
import { machinesOf } from "./cluster-rows.ts";
import type { CommandTable } from "./commands.ts";

/** A cluster that takes longer has no names to offer: somebody waits with a finger on a key. */
const PATIENCE_MS = 2_000;
const NAMES_MACHINES = ["why", "logs"];

const SCRIPTS = {
  bash: `_vmlet() {
  local IFS=$'\\n'
  COMPREPLY=($(vmlet complete -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -F _vmlet vmlet
`,
  zsh: `#compdef vmlet
_vmlet() {
  local -a found
  found=("\${(@f)$(vmlet complete -- "\${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found
}
compdef _vmlet vmlet
`,
  fish: `function __vmlet_complete
  set -l words (commandline -opc) (commandline -ct)
  vmlet complete -- $words[2..-1] 2>/dev/null
end
complete -c vmlet -f -a '(__vmlet_complete)'
`,
} as const;

export function completionCommand(): Command {
  return new Command("completion")
    .addArgument(new Argument("<shell>", "whose script it is").choices(Object.keys(SCRIPTS)))
    .addHelpText("after", "\nFor bash: source <(vmlet completion bash)")
    .action((shell: keyof typeof SCRIPTS) => {
      process.stdout.write(SCRIPTS[shell]);
    });
}

/** Asked by the scripts, and by kubectl through `kubectl_complete-vmlet`. */
export function completeCommand(table: CommandTable): Command {
  return new Command("complete").argument("[words...]").action(async (words: string[]) => {
    const found = await candidates(table, words.length === 0 ? [""] : words, machineNames);
    process.stdout.write(found.map((each) => `${each}\n`).join(""));
  });
}

/**
 * What the last of `words` could become.
 *
 * @param words what stands behind the program's name; the last one may be empty
 * @param names of machines
 * @internal
 */
export async function candidates(
  table: CommandTable,
  words: readonly string[],
  names: () => Promise<string[]>,
): Promise<string[]> {
  const last = words.at(-1) ?? "";
  const before = words.at(-2) ?? "";
  const offered = async (): Promise<readonly string[]> => {
    if (words.length <= 1) return Object.keys(table).filter((name) => !table[name]!.isHidden);
    const entry = Object.hasOwn(table, words[0]!) ? table[words[0]!] : undefined;
    if (entry === undefined) return [];
    const command = await entry.build(table);
    const option = command.options.find(({ short, long }) => before !== "" && (short === before || long === before));
    if (option?.argChoices !== undefined) return option.argChoices;
    if (option?.required) return [];
    if (last.startsWith("-")) return command.options.flatMap(({ long }) => long ?? []);
    if (command.commands.length > 0) return words.length === 2 ? command.commands.map((each) => each.name()) : [];
    return NAMES_MACHINES.includes(words[0]!) ? await names() : [];
  };
  return (await offered()).filter((each) => each.startsWith(last));
}

async function machineNames(): Promise<string[]> {
  const [{ KubeTransport }, { silentLogger }] = await Promise.all([
    import("../kube/transport.ts"),
    import("../telemetry/logger.ts"),
  ]);
  const { kubeConfig, namespace } = clusterOf({});
  const kube = new KubeTransport({ kubeConfig, clock: systemClock, logger: silentLogger });
  const limit = new AbortController();
  const late = pause(systemClock, PATIENCE_MS, limit.signal).then(() => []);
  const found = machinesOf(kube, { namespace }, limit.signal).then(
    (machines) => machines.map(({ row }) => row.name),
    () => [],
  );
  const names = await Promise.race([found, late]);
  limit.abort(new Error("the names are there, or too late"));
  await kube.close();
  return names;
}
