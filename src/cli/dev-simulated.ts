/**
 * `vmlet dev --engine memory`: nodes whose machines are only remembered, as many as one likes, on any operating system.
 * What is around them is real: a kubelet's API, status, events and leases of each node, and the time that things take.
 */
import { InvalidArgumentError, Option, type Command } from "commander";
import { MemoryProvider, randomCrashes, randomFaults } from "../../providers/memory/index.ts";
import { parseDuration } from "../resources/duration.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { type DevMachines, machinesOf } from "./dev-machines.ts";

/** Milliseconds, from and to. */
type Range = readonly [number, number];

export interface SimulationOptions {
  nodes?: number | undefined;
  podsPerNode?: number | undefined;
  startDelay?: Range | undefined;
  /** Shares from 0 to 1. */
  callFaults?: number | undefined;
  crashes?: number | undefined;
}

/** A kubelet's own limit, unless it is told another. */
const PODS_PER_NODE = 110;
const MAX_NODES = 1000;
const CRASH_WITHIN_MS = 60_000;
const LATE_MS = 5_000;

export function withSimulationOptions(command: Command): Command {
  const simulated = (flags: string, description: string) => new Option(flags, `engine memory: ${description}`);
  return command
    .addOption(simulated("--nodes <n>", "how many nodes; default 1").argParser(wholeNumber(MAX_NODES)))
    .addOption(simulated("--pods-per-node <n>", `default ${PODS_PER_NODE}`).argParser(wholeNumber(10_000)))
    .addOption(simulated("--start-delay <time>", "how long a machine takes to run: 2s, or 1s-5s").argParser(timeRange))
    .addOption(
      simulated(
        "--call-faults <share>",
        "calls to the backend that fail, lose their reply, or come late: 5%",
      ).argParser(share),
    )
    .addOption(simulated("--crashes <share>", "runs of a container that end within a minute: 1%").argParser(share));
}

/** The flags of `options` that only engine memory has, as they are typed. */
export function simulationFlags(options: SimulationOptions): string[] {
  return (
    [
      ["--nodes", options.nodes],
      ["--pods-per-node", options.podsPerNode],
      ["--start-delay", options.startDelay],
      ["--call-faults", options.callFaults],
      ["--crashes", options.crashes],
    ] as const
  )
    .filter(([, value]) => value !== undefined)
    .map(([flag]) => flag);
}

export function simulatedMachines(options: SimulationOptions): DevMachines {
  const { nodes = 1, podsPerNode = PODS_PER_NODE, startDelay = [0, 0], callFaults = 0, crashes = 0 } = options;
  const random = systemRandom;
  const [least, most] = startDelay;
  const provider = new MemoryProvider({
    clock: systemClock,
    stages: () => ({ creatingMs: least + random() * (most - least) }),
    behaviour: randomCrashes({ random, probability: crashes, withinMs: CRASH_WITHIN_MS }),
    faults: randomFaults({
      random,
      probability: callFaults,
      faults: [
        { kind: "fail", code: "unavailable" },
        { kind: "lost" },
        { kind: "late", afterMs: LATE_MS },
        { kind: "slow", afterMs: LATE_MS },
      ],
    }),
  });
  const machines = machinesOf(provider, {});
  return {
    ...machines,
    engine: "memory",
    provider: { type: "memory" },
    shared: provider,
    volumes: provider,
    nodeCount: nodes,
    capacity: { cpu: "32", memory: "128Gi", pods: String(podsPerNode) },
    kind: "simulated",
    // They end with this process, and its own faults are not in the way.
    remove: () => Promise.resolve(),
    list: () => Promise.resolve(provider.machines),
    close: () => provider.close(),
  };
}

const wholeNumber =
  (most: number) =>
  (text: string): number => {
    const count = Number(text);
    if (!/^\d+$/.test(text) || count < 1 || count > most)
      throw new InvalidArgumentError(`it must be a whole number from 1 to ${most}.`);
    return count;
  };

function share(text: string): number {
  const percent = Number(text.replace(/%$/, ""));
  if (!/^\d+(\.\d+)?%$/.test(text) || percent > 100)
    throw new InvalidArgumentError("it must be a share from 0% to 100%, such as 5%.");
  return percent / 100;
}

function timeRange(text: string): Range {
  try {
    const [least = 0, most = least] = text.split("-").map(parseDuration);
    if (most >= least && text.split("-").length <= 2) return [least, most];
  } catch {
    // Said below.
  }
  throw new InvalidArgumentError("it must be a time such as 500ms or 2s, or two, the shorter first: 1s-5s.");
}
