/** Where everything must be when it has come to rest. */
import { type ContainerState, isOver, type Machine } from "../../../src/provider/machine.ts";
import type { Simulation } from "../simulate.ts";
import { Violation } from "../violation.ts";
import type { Json } from "../world/api-server.ts";
import { NODE, uidOf } from "../world/names.ts";
import type { World } from "../world/world.ts";

/** What is not at rest; undefined when everything is. */
export function judgeRest(sim: Simulation): Violation | undefined {
  const { world } = sim;
  for (const { machine } of world.backend.machines.values()) {
    const unrest = judgeMachine(world, machine);
    if (unrest !== undefined) return unrest;
  }
  for (const pod of world.api.pods.values()) {
    if (pod.spec.nodeName !== NODE) continue;
    const unrest = judgePod(world, pod);
    if (unrest !== undefined) return unrest;
  }
  return world.cloud?.litter() ?? world.disks?.litter() ?? judgeCreates(sim) ?? judgeMemory(sim);
}

function judgeMachine(world: World, machine: Machine): Violation | undefined {
  if (machine.state === "deleted" || machine.labels["vmlet.dev/node"] !== NODE) return undefined;
  const pod = world.api.byUid(uidOf(machine));
  if (pod !== undefined && isOver(machine)) return undefined;
  // What makes no sense is never swept.
  if (pod === undefined && world.history.of(uidOf(machine)).isNonsense) return undefined;
  if (pod === undefined) return new Violation("L2", "a machine without a pod is left");
  if (pod.status.phase === "Failed" || pod.status.phase === "Succeeded")
    return new Violation("L2", "a machine of a pod that is over still runs");
  return undefined;
}

function judgePod(world: World, pod: Json): Violation | undefined {
  const { uid, deletionTimestamp, finalizers } = pod.metadata;
  const { phase } = pod.status;
  const isOverPod = phase === "Failed" || phase === "Succeeded";
  if (deletionTimestamp !== undefined) {
    if ((finalizers?.length ?? 0) === 0) return new Violation("L3", "pod stuck in deletion");
    if (!isOverPod) return new Violation("L3", "held pod has no terminal phase");
    if (pod.metadata.deletionGracePeriodSeconds !== 0) return new Violation("L3", "held pod was never let go");
    return undefined;
  }
  if (isOverPod) return undefined;
  const history = world.history.of(uid);
  // Of its own machine nothing is known; the others' pods are as they should be.
  if (history.isNonsense) return undefined;
  const [machine] = world.backend.alive(uid);
  if (machine === undefined && world.disks?.isElsewhere(pod)) return undefined;
  if (machine === undefined) return new Violation("L1", "live pod has no machine");
  // Stopped by a clock that has been put back since, which an agent that was restarted does not know: the deadline will come again.
  if (world.scenario.clocks && machine.state === "stopping") return undefined;
  return judgeStatus(world, pod, machine) ?? judgeUpdates(world, pod, machine);
}

/** L4: the status says what the machine does. */
function judgeStatus(world: World, pod: Json, machine: Machine): Violation | undefined {
  if (machine.state === "running" && pod.status.phase !== "Running")
    return new Violation("L4", "running machine, pod does not say so");
  if (world.history.of(pod.metadata.uid).refuses === "all") return undefined;
  const wrong = machine.containers.map((container) => judgeContainer(world, pod, container)).find(Boolean);
  if (wrong !== undefined) return new Violation("L4", wrong);
  // A pod is as ready as its containers and its sidecars (kubelet: GeneratePodReadyCondition).
  const sidecars: string[] = (pod.spec.initContainers ?? [])
    .filter((each: Json) => each.restartPolicy === "Always")
    .map((each: Json) => each.name);
  const counts = ({ kind, name }: ContainerState) => kind === "main" || sidecars.includes(name);
  const isReady = machine.state === "running" && machine.containers.every((c) => !counts(c) || c.ready);
  const ready = pod.status.conditions.find(({ type }: Json) => type === "Ready")?.status;
  if ((ready === "True") !== isReady) return new Violation("L4", `readiness of the pod is not told: ${ready}`);
  return undefined;
}

/** What is not told of a container; undefined when all of it is. */
function judgeContainer(world: World, pod: Json, c: ContainerState): string | undefined {
  const statuses = [...(pod.status.initContainerStatuses ?? []), ...(pod.status.containerStatuses ?? [])];
  const said = statuses.find(({ name }) => name === c.name);
  // A backend that was restored, or made the machine again, counts from less; what was told never falls.
  const countsAgain = world.scenario.restore || world.history.of(pod.metadata.uid).born > 1;
  const isCounted = countsAgain ? said?.restartCount >= c.restart_count : said?.restartCount === c.restart_count;
  if (!isCounted) return `restarts of ${c.name} are not told`;
  if (said.state?.[c.state] === undefined) return `${c.name} is ${c.state}, pod does not say so`;
  if (c.kind === "main" && said.ready !== c.ready) return `readiness of ${c.name} is not told`;
  if (c.terminated !== undefined && said.state.terminated?.exitCode !== c.terminated.exit_code)
    return `the exit code of ${c.name} is not told`;
  return undefined;
}

/** L9: what was rendered from something that has changed is brought up to date. */
function judgeUpdates(world: World, pod: Json, machine: Machine): Violation | undefined {
  const config = world.configMaps.find(pod.metadata.namespace);
  const { content } = world.backend.machines.get(machine.id)!;
  if (
    pod.spec.volumes?.some((each: Json) => each.configMap) &&
    config !== undefined &&
    content !== config.data!["file"]
  )
    return new Violation("L9", "files of a machine are out of date");
  for (const { name, image } of pod.spec.containers)
    if (machine.containers.find((c) => c.name === name)?.image !== image)
      return new Violation("L9", "an image is out of date");
  if (world.history.of(pod.metadata.uid).refuses === "all") return undefined;
  if (pod.status.observedGeneration !== pod.metadata.generation)
    return new Violation("L9", "the newest generation is not said to be observed");
  return undefined;
}

/** L2: what this agent asked for, and may still arrive, cannot come to life any more when the pod is gone. */
function judgeCreates({ agents, world, network }: Simulation): Violation | undefined {
  for (const uid of network.createsOf(agents[0]!)) {
    if (world.api.byUid(uid) !== undefined || world.backend.hasTombstone(uid) || world.history.of(uid).lost) continue;
    if (!world.flaws.noTombstones) return new Violation("L2", "a create that may still arrive would revive a machine");
  }
  return undefined;
}

/** S12: nothing is remembered of what is gone. */
function judgeMemory({ agents, world }: Simulation): Violation | undefined {
  const uids = new Set(
    [...world.api.pods.values()].filter(({ spec }) => spec.nodeName === NODE).map(({ metadata }) => metadata.uid),
  );
  for (const { machine } of world.backend.machines.values())
    if (machine.state !== "deleted" && machine.labels["vmlet.dev/node"] === NODE) uids.add(uidOf(machine));
  const { working } = agents[0]!.controller;
  return working > uids.size
    ? new Violation("S12", `${working} pods are remembered, there are ${uids.size}`)
    : undefined;
}
