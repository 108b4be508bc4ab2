/** Planted bugs of the planner: wrong conclusions, steps left out, steps in the wrong order. */
import type { Action, Observed } from "../../../src/pods/decision.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { hasRun } from "../../../src/pods/status/facts.ts";
import { isOver } from "../../../src/provider/machine.ts";
import { misremember, replan, type Mutant } from "./mutant.ts";

const isDying = (pod: Pod) => pod.metadata?.deletionTimestamp !== undefined;
const isOverPod = (pod: Pod) => pod.status?.phase === "Failed" || pod.status?.phase === "Succeeded";
const runs = (observed: Observed) => observed.kind === "found" && !isOver(observed.machine);
const write = (patch: Record<string, unknown>): Action => ({ do: "status", patch });
/** The status of a pod that has failed, as it would really be written. */
const failed = (pod: Pod, reason: string): Action =>
  write({
    phase: "Failed",
    reason,
    containerStatuses: (pod.status?.containerStatuses ?? []).map(({ state: _before, ...rest }) => ({
      ...rest,
      ready: false,
      state: { terminated: { exitCode: 137, reason: "ContainerStatusUnknown", startedAt: null, finishedAt: null } },
    })),
    ...(pod.status?.initContainerStatuses && {
      initContainerStatuses: pod.status.initContainerStatuses.map((status) =>
        status.state?.running
          ? { ...status, ready: false, state: { terminated: { exitCode: 137, reason: "Unknown" } } }
          : status,
      ),
    }),
  });

export const DECISIONS: readonly Mutant[] = [
  {
    name: "an unanswered read fails the pod",
    rule: 2,
    caughtAs: "S6 terminal phase while the machine runs",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && observed.kind === "unknown" && !isDying(desired.pod) && !isOverPod(desired.pod)
        ? failed(desired.pod, "MachineLost")
        : action,
    ),
    scenario: "outages",
  },
  {
    name: "a list that lacks a machine fails its pod when the deadline has passed",
    rule: 2,
    caughtAs: "S6 terminal phase while the machine runs",
    scenario: "short-lists",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "absent" &&
      !isDying(desired.pod) &&
      !hasRun(desired.pod) &&
      ["look", "bury"].includes(action.do)
        ? failed(desired.pod, "DeadlineExceeded")
        : action,
    ),
  },
  {
    name: "a deletion buries a machine of which nothing is known",
    rule: 2,
    caughtAs: "S13 ended a machine without knowing whether it runs",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && observed.kind === "unknown" && action.do === "look"
        ? { do: "bury", force: false }
        : action,
    ),
  },
  {
    name: "a lost machine is silently replaced by a new one",
    rule: 4,
    caughtAs: "S6 a pod that has run is given a new machine",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && !isDying(desired.pod) && observed.kind === "absent" && action.do === "look"
        ? { do: "create" }
        : action,
    ),
  },
  {
    name: "foreign conditions are overwritten",
    rule: 4,
    caughtAs: "S5 foreign condition",
    plan: replan((action) => {
      if (action.do !== "status" || action.patch["conditions"] === undefined) return action;
      const conditions = (action.patch["conditions"] as { type: string }[]).filter((c) => !c.type.startsWith("test/"));
      return { ...action, patch: { ...action.patch, conditions } };
    }),
  },
  ...["qosClass", "nominatedNodeName"].map((field) => ({
    name: `the status carries ${field}, which is not a kubelet's`,
    rule: 4,
    caughtAs: `S5 wrote a field of somebody else: ${field}`,
    plan: replan((action) =>
      action.do === "status" ? { ...action, patch: { ...action.patch, [field]: "Burstable" } } : action,
    ),
  })),
  {
    name: "startTime is written anew by every process",
    rule: 4,
    caughtAs: "S6 startTime changed",
    plan: replan((action, _desired, _observed, _memory, { now }) =>
      action.do === "status"
        ? { ...action, patch: { ...action.patch, startTime: new Date(now).toISOString() } }
        : action,
    ),
  },
  {
    name: "a failed pod is revived when its machine runs",
    rule: 4,
    caughtAs: "S6 terminal phase changed",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && desired.pod.status?.phase === "Failed" && runs(observed)
        ? write({ phase: "Running" })
        : action,
    ),
  },
  {
    name: "every failure is told as a success",
    rule: 4,
    caughtAs: "S6 the phase is Succeeded, not Failed",
    plan: replan((action) =>
      action.do === "status" && action.patch["phase"] === "Failed"
        ? { ...action, patch: { ...action.patch, phase: "Succeeded" } }
        : action,
    ),
  },
  {
    name: "a success is told as a failure",
    rule: 4,
    caughtAs: "S6 the phase is Failed, not Succeeded",
    plan: replan((action) =>
      action.do === "status" && action.patch["phase"] === "Succeeded"
        ? { ...action, patch: { ...action.patch, phase: "Failed" } }
        : action,
    ),
  },
  {
    name: "every exit code is told as 0",
    rule: 4,
    caughtAs: "S6 tells another exit code than the container's",
    plan: replan((action) => (action.do === "status" ? { ...action, patch: zeroExits(action.patch) } : action)),
  },
  {
    name: "a container is said to have ended when that is written",
    rule: 4,
    caughtAs: "S6 tells another time than that of the container's end",
    plan: replan((action, _desired, _observed, _memory, { now }) =>
      action.do === "status" ? { ...action, patch: endedAt(action.patch, new Date(now).toISOString()) } : action,
    ),
  },
  {
    name: "a status that is ahead of what was seen of the machine is not heeded",
    rule: 4,
    caughtAs: "S6 another instance of a container without a restart",
    plan: misremember((desired, observed) =>
      observed.kind === "found" && desired.kind === "pod"
        ? { confirmedVersion: observed.machine.version, confirmedFor: desired.pod.metadata!.resourceVersion }
        : {},
    ),
  },
  {
    name: "Running is written because the create was accepted",
    rule: 4,
    caughtAs: "S7 says running what was not seen to run",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "found" &&
      observed.machine.state === "creating" &&
      action.do === "status"
        ? write({ phase: "Running", containerStatuses: [{ name: "main", restartCount: 0, state: { running: {} } }] })
        : action,
    ),
  },
  {
    name: "the pod object goes without confirmation that the machine is over",
    rule: 5,
    caughtAs: "S4 pod object removed while its machine runs",
    plan: replan((action, desired) =>
      desired.kind === "pod" && isDying(desired.pod) && (action.do === "bury" || action.do === "stop")
        ? { do: "finalize" }
        : action,
    ),
  },
  {
    name: "the pod object goes when its grace is over, whatever the machine does",
    rule: 5,
    caughtAs: "S4 pod object removed while its machine runs",
    plan: replan((action, desired, observed, memory, { monotonic }) =>
      desired.kind === "pod" && isDying(desired.pod) && runs(observed) && monotonic > (memory.stopDeadline ?? Infinity)
        ? { do: "finalize" }
        : action,
    ),
  },
  {
    name: "phase Failed is written while the machine still stops",
    rule: 5,
    caughtAs: "S6 terminal phase while the machine runs",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && isDying(desired.pod) && action.do === "stop" && runs(observed)
        ? failed(desired.pod, "Deleted")
        : action,
    ),
  },
  {
    name: "only a machine that is seen is deleted, so nothing is left to stop a late create",
    rule: 5,
    caughtAs: "S4 pod object removed before its machine has a tombstone",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && isDying(desired.pod) && action.do === "bury" && observed.kind === "absent"
        ? { do: "finalize" }
        : action,
    ),
  },
  {
    name: "the pod object goes before its final status",
    rule: 5,
    caughtAs: "S6 pod object removed before its final status",
    plan: replan((action, desired, _observed, memory) =>
      desired.kind === "pod" && isDying(desired.pod) && action.do === "status" && memory.buried
        ? { do: "finalize" }
        : action,
    ),
  },
  {
    name: "a machine is buried before the exit codes are written that it told",
    rule: 5,
    caughtAs: "S6 machine buried before the exit codes were written",
    plan: replan((action, desired, observed, memory) =>
      desired.kind === "pod" &&
      isDying(desired.pod) &&
      action.do === "status" &&
      !memory.buried &&
      observed.kind === "found" &&
      isOver(observed.machine)
        ? { do: "bury", force: false }
        : action,
    ),
  },
  {
    name: "the pod object is left when its machine is over",
    rule: 5,
    caughtAs: "L3 pod stuck in deletion",
    plan: replan((action) => (action.do === "finalize" ? { do: "wait" } : action)),
  },
  {
    name: "a machine is killed instead of stopped",
    rule: 5,
    caughtAs: "S13 killed a machine within its grace period",
    plan: replan((action) => (action.do === "stop" ? { do: "bury", force: true } : action)),
  },
  {
    name: "every machine gets one second to stop",
    rule: 5,
    caughtAs: "S13 stopped a machine with 1 s of grace",
    plan: replan((action) => (action.do === "stop" ? { ...action, graceSeconds: 1 } : action)),
  },
  {
    name: "a machine that does not stop is never killed",
    rule: 5,
    caughtAs: "L3 pod stuck in deletion",
    plan: replan((action, desired) =>
      desired.kind === "pod" && action.do === "bury" && action.force ? { do: "wait" } : action,
    ),
  },
  {
    name: "finished pods that nobody deleted are removed",
    rule: 5,
    caughtAs: "S4 removed a pod that nobody deleted",
    plan: replan((action, desired) =>
      desired.kind === "pod" && !isDying(desired.pod) && isOverPod(desired.pod) && action.do === "wait"
        ? { do: "finalize" }
        : action,
    ),
  },
  {
    name: "a pod that is not ready is restarted by deleting its machine",
    rule: 5,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "found" &&
      observed.machine.state === "running" &&
      action.do === "wait" &&
      desired.pod.status?.phase === "Running"
        ? { do: "bury", force: true }
        : action,
    ),
  },
  {
    name: "a pod is forgotten though a create of its machine may still arrive",
    rule: 6,
    caughtAs: "L2 a create that may still arrive",
    plan: replan((action, desired, observed) =>
      desired.kind === "none" && observed.kind === "absent" && action.do === "reap" ? { do: "forget" } : action,
    ),
  },
  {
    name: "machines without a pod are never looked at",
    rule: 7,
    caughtAs: "L2 a machine without a pod is left",
    plan: replan((action, desired) => (desired.kind === "none" && action.do !== "forget" ? { do: "forget" } : action)),
  },
  {
    name: "a list of pods that is not complete is acted on",
    rule: 7,
    caughtAs: "S15 ended a stranger's machine at first sight",
    plan: (real) => (desired, observed, memory, context) =>
      desired.kind === "unknown"
        ? real({ kind: "none" }, observed, { ...memory, orphanSince: -Infinity }, context)
        : real(desired, observed, memory, context),
  },
  {
    name: "a stranger's machine is removed at first sight",
    rule: 7,
    caughtAs: "S15 ended a stranger's machine at first sight",
    plan: misremember(() => ({ orphanSince: -Infinity })),
  },
  {
    name: "strangers' machines are removed all at once",
    rule: 7,
    caughtAs: "S15 ended",
    reapsPerMinute: Infinity,
  },
  {
    name: "what is remembered decides: a restarted agent leaves running machines of dying pods",
    rule: 9,
    caughtAs: "L3 pod stuck in deletion",
    plan: replan((action, desired, _observed, memory) =>
      desired.kind === "pod" && (action.do === "stop" || action.do === "bury") && !memory.created
        ? { do: "wait" }
        : action,
    ),
  },
  {
    name: "what does not help is done again at once",
    rule: 12,
    caughtAs: "L7",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && observed.kind === "found" && action.do === "wait" ? { do: "look" } : action,
    ),
  },
  {
    name: "the pod's conditions are written with its first status only",
    rule: 4,
    caughtAs: "L4 readiness of the pod is not told",
    scenario: "flapping",
    plan: replan((action, desired) => {
      if (action.do !== "status" || desired.kind !== "pod" || desired.pod.status?.startTime === undefined)
        return action;
      const { conditions: _dropped, ...patch } = action.patch;
      return Object.keys(patch).length > 0 ? { ...action, patch } : { do: "wait" };
    }),
  },
  {
    name: "a machine that makes no sense keeps its pod from being deleted",
    rule: 11,
    caughtAs: "L3 pod stuck in deletion",
    scenario: "nonsense",
    plan: replan((action, _desired, observed) =>
      observed.kind === "unknown" && observed.machine !== undefined ? { do: "wait" } : action,
    ),
  },
  {
    name: "a machine that makes no sense runs on when its pod is over",
    rule: 11,
    caughtAs: "L2 a machine of a pod that is over still runs",
    scenario: "nonsense",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && isOverPod(desired.pod) && observed.kind === "unknown" ? { do: "wait" } : action,
    ),
  },
  {
    name: "what the API server has refused is sent again at once",
    rule: 12,
    caughtAs: "L7",
    scenario: "refusals",
    plan: misremember(() => ({ unwritable: new Map() })),
  },
];

type Statuses = { state?: { terminated?: object }; lastState?: { terminated?: object } }[];

const eachEnd = (patch: Readonly<Record<string, unknown>>, change: object): Record<string, unknown> => {
  const statuses = patch["containerStatuses"] as Statuses | undefined;
  if (statuses === undefined) return { ...patch };
  const containerStatuses = statuses.map((status) =>
    status.state?.terminated === undefined
      ? status
      : { ...status, state: { terminated: { ...status.state.terminated, ...change } } },
  );
  return { ...patch, containerStatuses };
};
const zeroExits = (patch: Readonly<Record<string, unknown>>) => eachEnd(patch, { exitCode: 0 });
const endedAt = (patch: Readonly<Record<string, unknown>>, at: string) => eachEnd(patch, { finishedAt: at });
