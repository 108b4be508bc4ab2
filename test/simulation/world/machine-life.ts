/** What a machine does next by itself: start, run its containers by the restart policy, end, or die with its host. */
import type { ContainerState, Machine } from "../../../src/provider/machine.ts";
import type { Random } from "../../../src/util/random.ts";
import { pick } from "../seeded.ts";
import type { BackendMachine } from "./backend.ts";

/** @returns undefined when it does nothing just now */
export function progressOf(
  { machine, spec, stubborn }: BackendMachine,
  at: string,
  random: Random,
  generation: number,
): Partial<Machine> | undefined {
  switch (machine.state) {
    case "pending":
    case "creating":
      return { state: "starting", sandbox_ready: true, addresses: [{ ip: "10.0.0.1" }] };
    case "starting":
      return nextStart(machine, spec, at, random, generation);
    case "running":
      return runningStep(machine, spec, at, random, generation);
    case "stopping":
      return stubborn ? undefined : over(machine, at, random() < 0.5 ? 0 : 143);
    case "stopped":
    case "failed":
    case "deleting":
    case "deleted":
      return undefined;
  }
}

function over(machine: Machine, at: string, exitCode: number, change: Partial<Machine> = {}): Partial<Machine> {
  return { state: "stopped", stopped_at: at, containers: endedContainers(machine, at, exitCode), ...change };
}

type Spec = BackendMachine["spec"];

const replace = (machine: Machine, name: string, change: Partial<ContainerState>): ContainerState[] =>
  machine.containers.map((c) => (c.name === name ? { ...c, ...change } : c));

function started(machine: Machine, c: ContainerState, at: string, generation: number): ContainerState {
  const { terminated, ...rest } = c;
  const count = terminated === undefined ? c.restart_count : c.restart_count + 1;
  return {
    ...rest,
    state: "running",
    ready: true,
    started: true,
    restart_count: count,
    id: `${machine.id}-${c.name}-${generation}-${count}`,
    started_at: at,
    ...(terminated && { last: terminated }),
  };
}

/** Init containers one after another, then all others at once. */
function nextStart(machine: Machine, spec: Spec, at: string, random: Random, generation: number): Partial<Machine> {
  for (const init of spec.init_containers ?? []) {
    const c = machine.containers.find(({ name }) => name === init.name)!;
    const start = () => ({
      containers: machine.containers.map((x) => (x === c ? started(machine, c, at, generation) : x)),
    });
    if (c.state === "waiting") return start();
    if (init.restart_policy === "always") continue;
    if (c.state === "running") return { containers: replace(machine, c.name, ended(c, at, random() < 0.8 ? 0 : 1)) };
    if (c.terminated!.exit_code === 0) continue;
    return spec.restart_policy === "never" ? over(machine, at, 143) : start();
  }
  return {
    state: "running",
    started_at: at,
    containers: machine.containers.map((c) => (c.kind === "main" ? started(machine, c, at, generation) : c)),
  };
}

function runningStep(
  machine: Machine,
  spec: Spec,
  at: string,
  random: Random,
  generation: number,
): Partial<Machine> | undefined {
  const x = random();
  if (x > 0.97)
    return over(machine, at, 137, { state: "failed", reason: "HostLost", message: "The host of this machine is gone" });
  const c = pick(
    random,
    machine.containers.filter(({ kind }) => kind === "main"),
  );
  if (c.state === "terminated") {
    const again =
      spec.restart_policy === "always" || (spec.restart_policy === "on_failure" && c.terminated!.exit_code !== 0);
    if (again)
      return { containers: machine.containers.map((y) => (y === c ? started(machine, c, at, generation) : y)) };
    return undefined;
  }
  if (x < 0.5) return undefined;
  if (x < 0.6) return { containers: replace(machine, c.name, { ready: !c.ready }) };
  const containers = replace(machine, c.name, ended(c, at, x > 0.8 ? 1 : 0));
  const mains = containers.filter(({ kind }) => kind === "main");
  const isDone = ({ terminated }: ContainerState) =>
    terminated !== undefined &&
    (spec.restart_policy === "never" || (spec.restart_policy === "on_failure" && terminated.exit_code === 0));
  return mains.every(isDone) ? over({ ...machine, containers }, at, 143) : { containers };
}

/** The containers with those that ran ended by this exit code. */
export function endedContainers(machine: Machine, at: string, exitCode: number): ContainerState[] {
  return machine.containers.map((c) => (c.state === "running" ? { ...c, ...ended(c, at, exitCode) } : c));
}

export function ended(c: ContainerState, at: string, exitCode: number): Partial<ContainerState> {
  return {
    state: "terminated",
    ready: false,
    started: false,
    terminated: {
      exit_code: exitCode,
      reason: exitCode === 0 ? "Completed" : "Error",
      finished_at: at,
      ...(c.id !== undefined && { id: c.id }),
    },
  };
}
