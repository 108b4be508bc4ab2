/**
 * What must be true of each write of an agent to a pod, judged at the instant at which the API server takes it, by what really
 * happened. The names of the rules are explained in test/README.md.
 */
import { isOver, type Machine } from "../../../src/provider/machine.ts";
import { rfc3339 } from "../../../src/util/clock.ts";
import { Violation } from "../violation.ts";
import type { Json } from "../world/api-server.ts";
import type { PodHistory } from "../world/history.ts";
import { NODE } from "../world/names.ts";
import type { World } from "../world/world.ts";
import type { Sender } from "./sender.ts";

/** What a kubelet writes of a pod's status; the rest belongs to the scheduler, to controllers or to the API server. */
const OWNED_FIELDS = new Set([
  "phase",
  "reason",
  "message",
  "hostIP",
  "hostIPs",
  "podIP",
  "podIPs",
  "startTime",
  "observedGeneration",
  "conditions",
  "containerStatuses",
  "initContainerStatuses",
  "ephemeralContainerStatuses",
]);

export interface StatusWrite {
  pod: Json;
  patch: Json;
  /** The pod's status with the patch applied. */
  after: Json;
  sender: Sender;
}

export function judgeStatusWrite(world: World, write: StatusWrite): void {
  if (write.pod.spec.nodeName !== NODE) throw new Violation("S8", "wrote the status of another node's pod");
  judgeOwnership(write);
  judgeOrder(world, write);
  judgeRunning(world, write);
  judgeExits(world, write);
  const { pod, after } = write;
  if (isTerminal(after) && !isTerminal(pod.status)) judgeEnd(world, write);
}

const isTerminal = (status: Json): boolean => status.phase === "Failed" || status.phase === "Succeeded";
const statusesOf = (status: Json): Json[] => [
  ...(status.initContainerStatuses ?? []),
  ...(status.containerStatuses ?? []),
];
const isForeign = (condition: Json): boolean => condition.type.startsWith("test/");

/** S5: only what is a kubelet's, and foreign conditions as they were. */
function judgeOwnership({ pod, patch, after }: StatusWrite): void {
  for (const field of Object.keys(patch.status))
    if (!OWNED_FIELDS.has(field)) throw new Violation("S5", `wrote a field of somebody else: ${field}`);
  for (const field of Object.keys(patch.metadata ?? {}))
    if (!["uid", "resourceVersion", "annotations"].includes(field))
      throw new Violation("S5", `wrote metadata.${field}`);
  const foreign = (status: Json) => JSON.stringify((status.conditions ?? []).filter(isForeign));
  if (foreign(pod.status) !== foreign(after)) throw new Violation("S5", "foreign condition lost or changed");
}

/** S6: phases, starts, restarts and ends go one way only. */
function judgeOrder(world: World, { pod, after }: StatusWrite): void {
  const before = pod.status;
  if (isTerminal(before) && after.phase !== before.phase) throw new Violation("S6", "terminal phase changed");
  if (before.phase === "Running" && after.phase === "Pending")
    throw new Violation("S6", "Running went back to Pending");
  if (before.startTime !== undefined && after.startTime !== before.startTime)
    throw new Violation("S6", "startTime changed");
  const now = statusesOf(after);
  for (const old of statusesOf(before)) {
    const next = now.find(({ name }) => name === old.name);
    judgeContainerOrder(world, pod.metadata.uid, old, next);
  }
}

function judgeContainerOrder({ history, scenario }: World, podUid: string, old: Json, next: Json): void {
  if ((next?.restartCount ?? 0) < old.restartCount) throw new Violation("S6", "restart count fell");
  const isOther = old.containerID !== undefined && next?.containerID !== old.containerID;
  // Unless the backend lost the machine and a create that was under way made another.
  const isReborn = history.of(podUid).born > 1 || scenario.restore;
  if (isOther && next.restartCount === old.restartCount && !isReborn)
    throw new Violation("S6", "another instance of a container without a restart");
  const finishedBefore = finishedAt(old);
  const finished = next && finishedAt(next);
  if (!scenario.clocks && !scenario.restore && finishedBefore && finished && finished < finishedBefore)
    throw new Violation("S6", "a container's end moved back in time");
}

const finishedAt = (status: Json): string | undefined =>
  (status.state?.terminated ?? status.lastState?.terminated)?.finishedAt ?? undefined;

/** S7: what is said to run was seen to run, in the newest state that this agent was told of. */
function judgeRunning(world: World, { pod, patch, sender }: StatusWrite): void {
  const said = [...(patch.status.initContainerStatuses ?? []), ...(patch.status.containerStatuses ?? [])];
  const { read, observed } = sender;
  const seen = observed.kind === "found" ? observed.machine : undefined;
  const isTheirs = seen?.labels["vmlet.dev/uid"] === pod.metadata.uid;
  const wasSeen = (status: Json): boolean => {
    const container = seen?.containers.find(({ name }) => name === status.name);
    return container?.state === "running" && status.containerID === `vmlet://${container.id}`;
  };
  if (said.some((status) => status.state?.running && !(isTheirs && wasSeen(status))))
    throw new Violation("S7", "says running what was not seen to run");
  // A list that lies, or a backend that begins again, may make an agent forget what it has read.
  // Of a tombstone, the next list takes the memory: an answer that was long under way is then news.
  if (read?.state === "deleted" || world.history.of(pod.metadata.uid).lost) return;
  const mayForget = world.scenario.shortLists || world.scenario.dataLoss || world.scenario.restore;
  if (read !== undefined && seen !== undefined && seen.revision < read.revision && !mayForget)
    throw new Violation(
      "S7",
      `writes by an older state of the machine (${seen.revision}) than it has read (${read.revision})`,
    );
}

/** S6: an exit code is that of the container's end. */
function judgeExits(world: World, { pod, patch }: StatusWrite): void {
  const { exits } = world.history.of(pod.metadata.uid);
  for (const status of [...(patch.status.initContainerStatuses ?? []), ...(patch.status.containerStatuses ?? [])]) {
    for (const terminated of [status.state?.terminated, status.lastState?.terminated]) {
      if (!terminated?.containerID) continue;
      const exit = exits.get(terminated.containerID.replace("vmlet://", ""));
      // Of what died with its VM, nobody saw the end.
      if (terminated.reason === "ContainerStatusUnknown" && world.backend.alive(pod.metadata.uid).length === 0)
        continue;
      // After a restore, an instance of the same name may end once more.
      if (world.scenario.restore) continue;
      if (exit === undefined) throw new Violation("S6", "tells the end of a container that has not ended");
      if (exit.exitCode !== terminated.exitCode)
        throw new Violation("S6", "tells another exit code than the container's");
      if (rfc3339(Date.parse(exit.finishedAt)) !== terminated.finishedAt)
        throw new Violation("S6", "tells another time than that of the container's end");
    }
  }
}

/** S6: a terminal phase, the right one, and only when nothing runs. */
function judgeEnd(world: World, { pod, after, sender }: StatusWrite): void {
  const history = world.history.of(pod.metadata.uid);
  if (statusesOf(after).some(({ state }) => state?.running))
    throw new Violation("S6", "terminal phase with a container that runs");
  // What the backend lost without a tombstone, a create that was under way may make again while the status is.
  const isBornSince = history.lost && (world.backend.bornAt(pod.metadata.uid) ?? 0) >= sender.sentAt;
  if (world.backend.alive(pod.metadata.uid).length > 0 && !isBornSince && !wasRevivedSince(history, sender))
    throw new Violation("S6", "terminal phase while the machine runs");

  const over =
    sender.observed.kind === "found" && isOver(sender.observed.machine) ? sender.observed.machine : undefined;
  // All but phase and conditions was refused.
  if (history.refuses === "all") return;
  if (!isReasonTrue(world, pod, after, sender, over)) throw new Violation("S6", `ended for no reason: ${after.reason}`);
  if (over === undefined) {
    if (after.phase !== "Failed") throw new Violation("S6", "Succeeded without having seen the end of the machine");
    return;
  }
  judgeOutcome(world, pod, after, over);
}

/** The phase and the exit codes are those of the machine's containers. */
function judgeOutcome(world: World, pod: Json, after: Json, over: Machine): void {
  const mains: Json[] = pod.spec.containers;
  const ends = mains.map(({ name }) => over.containers.find((c) => c.name === name)?.terminated);
  // What a tombstone does not tell any more may stand in the status.
  const told = mains.map(
    ({ name }) => pod.status.containerStatuses?.find((c: Json) => c.name === name)?.state?.terminated,
  );
  const wasEnded = ["DeadlineExceeded", "Preempting"].includes(after.reason);
  const expected =
    !wasEnded && !hasFailedInit(pod, over) && ends.every((end, i) => (end?.exit_code ?? told[i]?.exitCode) === 0)
      ? "Succeeded"
      : "Failed";
  // A backend that was put back may tell another end than it told before.
  if (after.phase !== expected && !world.scenario.restore)
    throw new Violation("S6", `the phase is ${after.phase}, not ${expected}`);
  for (const [i, { name }] of mains.entries()) {
    const said = after.containerStatuses?.find((c: Json) => c.name === name)?.state?.terminated?.exitCode;
    if (ends[i] !== undefined && said !== ends[i].exit_code)
      throw new Violation("S6", "the exit code of a container that ended is not told");
  }
}

/** kubelet: getPhase. Whatever became of the others: a machine that runs again after that may end well. */
function hasFailedInit(pod: Json, machine: Machine): boolean {
  if (pod.spec.restartPolicy !== "Never") return false;
  return (pod.spec.initContainers ?? []).some(({ name, restartPolicy }: Json) => {
    const exitCode = machine.containers.find((c) => c.name === name)?.terminated?.exit_code;
    return restartPolicy !== "Always" && exitCode !== undefined && exitCode !== 0;
  });
}

function isReasonTrue(world: World, pod: Json, after: Json, sender: Sender, over: Machine | undefined): boolean {
  const history = world.history.of(pod.metadata.uid);
  const { reason } = after;
  if (reason?.startsWith("OutOf") || reason === "UnexpectedAdmissionError")
    return world.capacity.wasShort && (history.born === 0 || history.lost || over?.state === "deleted");
  switch (reason) {
    case "DeadlineExceeded": {
      const { activeDeadlineSeconds } = pod.spec;
      if (activeDeadlineSeconds === undefined) return false;
      const deadline = Date.parse(after.startTime) + activeDeadlineSeconds * 1000 - 1000;
      // By whichever clock an agent had when it decided.
      if (world.scenario.clocks) return true;
      return world.now >= deadline && !(over?.stopped_at !== undefined && Date.parse(over.stopped_at) < deadline);
    }
    case "Preempting":
      return history.preempted;
    case "MachineLost":
      // Or another agent, which decided about it, has left a tombstone.
      return history.lost || world.backend.hasTombstone(pod.metadata.uid);
    case undefined:
      // Ended by itself, or deleted: before it had a machine as well.
      return over !== undefined || pod.metadata.deletionTimestamp !== undefined;
    default:
      return over?.reason === reason;
  }
}

/** The backend brought the machine back to life after this agent had been told that it was over: nobody can know. */
export function wasRevivedSince({ revivedAt }: PodHistory, { read }: Sender): boolean {
  return revivedAt !== undefined && (read === undefined || read.version < revivedAt);
}

/** S4: the object goes last, and only when somebody deleted it. */
export function judgePodRemoval(world: World, pod: Json, sender: Sender): void {
  const { uid, deletionTimestamp } = pod.metadata;
  const history = world.history.of(uid);
  if (pod.spec.nodeName !== NODE) throw new Violation("S8", "removed another node's pod");
  if (deletionTimestamp === undefined) throw new Violation("S4", "removed a pod that nobody deleted");
  if (wasRevivedSince(history, sender)) return;
  if (world.backend.alive(uid).length > 0) throw new Violation("S4", "pod object removed while its machine runs");
  if (!world.backend.hasTombstone(uid) && !history.lost && !world.flaws.noTombstones)
    throw new Violation("S4", "pod object removed before its machine has a tombstone");
  if (!isTerminal(pod.status)) throw new Violation("S6", "pod object removed before its final status");
}
