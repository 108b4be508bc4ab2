/** What must be true of each request of an agent that makes, stops or removes a machine, at the instant at which the backend takes it. */
import { isOver } from "../../../src/provider/machine.ts";
import { hasRun } from "../../../src/pods/status/facts.ts";
import { Violation } from "../violation.ts";
import type { Json } from "../world/api-server.ts";
import type { BackendMachine } from "../world/backend.ts";
import { NODE, OWNER, uidOf } from "../world/names.ts";
import type { World } from "../world/world.ts";
import type { Sender } from "./sender.ts";

export function judgeBirth(world: World, labels: Readonly<Record<string, string>>, sender: Sender): void {
  const uid = labels["vmlet.dev/uid"]!;
  const history = world.history.of(uid);
  if (world.backend.alive(uid).length > 0) throw new Violation("S1", "two machines for one pod UID");
  const pod = world.api.byUid(uid);
  // What was sent before the pod ran, and arrives after its machine vanished, is nobody's fault.
  const hasRunAtSend = sender.pod !== undefined && hasRun(sender.pod);
  if (pod !== undefined && pod.spec.nodeName !== NODE)
    throw new Violation("S8", "made a machine for another node's pod");
  if (pod !== undefined && hasRun(pod) && hasRunAtSend)
    throw new Violation("S6", "a pod that has run is given a new machine");
  if (history.finalized && !history.lost) throw new Violation("S4", "machine born after its pod was finalised");
  for (const { machine } of world.backend.machines.values()) {
    if (isOver(machine) || uidOf(machine) === uid) continue;
    if (machine.labels["vmlet.dev/namespace"] !== labels["vmlet.dev/namespace"]) continue;
    if (machine.labels["vmlet.dev/pod"] !== labels["vmlet.dev/pod"]) continue;
    const other = world.history.of(uidOf(machine));
    if (
      !other.removedByForce &&
      !history.removedByForce &&
      other.revivedAt === undefined &&
      !other.lost &&
      !history.lost
    )
      throw new Violation("S2", "two machines under one name, though nobody removed a pod by force");
  }
}

/** S3, S8: only machines of this node, and never a live pod's. */
function judgeEnding(world: World, { machine, bornAt }: BackendMachine, sender: Sender): void {
  if (isOver(machine)) return;
  if (!Object.entries(OWNER).every(([k, v]) => machine.labels[k] === v))
    throw new Violation("S8", "touched another node's machine");
  const uid = uidOf(machine);
  const pod = world.api.byUid(uid);
  if (pod === undefined || pod.metadata.deletionTimestamp !== undefined) return;
  if (pod.status.phase === "Failed" || pod.status.phase === "Succeeded") return;
  if (world.history.of(uid).preempted) return;
  // A pod that one agent refuses is buried before it fails. When another has taken it in meanwhile, that may arrive too late.
  if (sender.observed.kind === "absent" && sender.sentAt < bornAt) return;
  const { activeDeadlineSeconds } = pod.spec;
  // By whichever clock an agent had when it decided.
  if (activeDeadlineSeconds && world.scenario.clocks) return;
  const start = pod.status.startTime;
  if (activeDeadlineSeconds && start && world.now >= Date.parse(start) + activeDeadlineSeconds * 1000 - 1000) return;
  throw new Violation("S3", "stopped or deleted the machine of a live pod");
}

export function judgeStop(world: World, known: BackendMachine, graceSeconds: number, sender: Sender): void {
  judgeEnding(world, known, sender);
  const uid = uidOf(known.machine);
  const pod = world.api.byUid(uid);
  if (pod === undefined) return;
  // A pod that only a finalizer still holds has no grace left, should the backend run its machine again.
  if (graceSeconds === 1 && pod.metadata.deletionGracePeriodSeconds === 0) return;
  if (!world.history.of(uid).graces.has(graceSeconds))
    throw new Violation("S13", `stopped a machine with ${graceSeconds} s of grace, which its pod never had`);
}

export function judgeBurial(world: World, known: BackendMachine, force: boolean, sender: Sender): void {
  const { machine } = known;
  // One that its backend has lost ends as lost. What was under way before to make it may arrive meanwhile.
  if (world.history.of(uidOf(machine)).lost && sender.sentAt < known.bornAt) return;
  judgeEnding(world, known, sender);
  const uid = uidOf(machine);
  const pod = world.api.byUid(uid);
  const { stopBy } = world.history.of(uid);
  if (pod === undefined) return;
  if (!isOver(machine)) {
    // What is described in a way that makes no sense is there, and may run.
    const isSeen = sender.observed.kind !== "unknown" || sender.observed.machine !== undefined;
    if (!isSeen && stopBy === Infinity) throw new Violation("S13", "ended a machine without knowing whether it runs");
    // What runs again within a stop that was asked for before has had its grace.
    if (force && world.now < stopBy && world.history.of(uid).revivedAt === undefined)
      throw new Violation("S13", "killed a machine within its grace period");
    return;
  }
  judgeLastWords(world, pod, sender);
}

/** S6: what the machine told of its end was written before, as far as the API server takes it. */
function judgeLastWords(world: World, pod: Json, { observed }: Sender): void {
  const { refuses, revivedAt } = world.history.of(pod.metadata.uid);
  if (observed.kind !== "found" || !isOver(observed.machine) || revivedAt !== undefined || refuses === "all") return;
  for (const { name, kind, terminated } of observed.machine.containers) {
    if (kind !== "main" || terminated === undefined) continue;
    const said = pod.status.containerStatuses?.find((c: { name: string }) => c.name === name)?.state?.terminated;
    if (said?.exitCode !== terminated.exit_code)
      throw new Violation("S6", "machine buried before the exit codes were written that it told");
  }
}
