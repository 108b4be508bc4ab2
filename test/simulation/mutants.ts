/**
 * Planted bugs: each breaks one rule of the protocol (or repeats a known bug of another virtual kubelet) in the real code's
 * surroundings. The simulation must catch every one of them, or it proves nothing about the code without them.
 */
import { KubeApiError } from "../../src/kube/errors.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import { isOver } from "../../src/provider/machine.ts";
import type { Action, plan as realPlan } from "../../src/pods/planner.ts";
import type { Mutant } from "./simulate.ts";

type Plan = typeof realPlan;
const replan =
  (change: (action: Action, ...args: Parameters<Plan>) => Action) =>
  (real: Plan): Plan =>
  (...args) =>
    change(real(...args), ...args);

const podPathOf = (path: string) => path.replace(/\/status$/, "");

/** What an API server says of a pod that is not there. */
function notFound(path: string): KubeApiError {
  const name = /\/pods\/([^/]+)/.exec(path)?.[1] ?? "";
  return new KubeApiError("mutant", { status: 404, reason: "NotFound", details: { kind: "pods", name } });
}

export const MUTANTS: readonly Mutant[] = [
  {
    name: "B1 an unanswered read counts as absent, and create is not idempotent",
    rule: "2: reads have three values",
    world: { createNotIdempotent: true },
    provider: (error, operation) =>
      operation === "be.get" && error.code === "unavailable" ? new ProviderError("not_found", "mutant") : error,
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "unknown" &&
      action.do === "wait" &&
      desired.pod.metadata?.deletionTimestamp === undefined
        ? { do: "create" }
        : action,
    ),
  },
  {
    name: "B2 a machine is known by namespace and name",
    rule: "1: identity is the UID",
    machineId: (_uid, pod) => `m-${pod?.metadata?.namespace}.${pod?.metadata?.name}`,
  },
  {
    name: "B3 machines without a pod are never looked at",
    rule: "7: orphans are swept",
    plan: replan((action, desired) => (desired.kind === "none" && action.do !== "forget" ? { do: "forget" } : action)),
  },
  {
    name: "B4 the pod object goes without confirmation that the machine is over",
    rule: "5: confirm before the final delete",
    plan: replan((action, desired) =>
      desired.kind === "pod" && (action.do === "bury" || action.do === "stop") ? { do: "finalize" } : action,
    ),
  },
  {
    name: "B5 a lost machine is silently replaced by a new one",
    rule: "4: terminal states are durable, restart counts never fall",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      desired.pod.metadata?.deletionTimestamp === undefined &&
      observed.kind === "absent" &&
      action.do === "look"
        ? { do: "create" }
        : action,
    ),
  },
  {
    name: "B6 the backend makes a machine for every create",
    rule: "1: creating is idempotent",
    world: { createNotIdempotent: true },
  },
  {
    name: "B7 status is written without UID and resourceVersion",
    rule: "4: preconditions on every status write",
    kube: (request) =>
      request.method === "PATCH" ? { ...request, body: { ...(request.body as object), metadata: {} } } : request,
  },
  {
    name: "B7b status is written with the UID only",
    rule: "4: resourceVersion precondition where two agents are possible",
    kube: (request) => {
      if (request.method !== "PATCH") return request;
      const body = request.body as { metadata: { uid: string } };
      return { ...request, body: { ...body, metadata: { uid: body.metadata.uid } } };
    },
  },
  {
    name: "B8 the sweep believes a cache that is not complete, and asks nobody",
    rule: "7: sweep only after the pod list is synced, with a quorum GET per candidate",
    pretendSynced: true,
    plan: replan((action, desired, observed) =>
      desired.kind === "none" && observed.kind === "found" && action.do === "wait" && !isOver(observed.machine)
        ? { do: "reap" }
        : action,
    ),
    kube: (request, cached) => {
      if (request.method !== "GET") return request;
      const pod = cached(podPathOf(request.path));
      return pod === undefined ? { error: notFound(request.path) } : { reply: pod };
    },
  },
  {
    name: "B9 namespace and name are joined ambiguously",
    rule: "1: identity is injective",
    machineId: (_uid, pod) => `m-${pod?.metadata?.namespace}-${pod?.metadata?.name}`,
  },
  {
    name: "B10 a backend without tombstones",
    rule: "6: a deleted machine leaves a tombstone",
    world: { noTombstones: true },
  },
  {
    name: "R3 no quorum GET before the first create",
    rule: "3: quorum GET before create",
    kube: (request, cached) => {
      if (request.method !== "GET") return request;
      const pod = cached(podPathOf(request.path));
      return pod === undefined ? request : { reply: pod };
    },
    // A tombstone would hide it: the late create of a stale agent is refused by the backend.
    world: { noTombstones: true },
  },
  {
    name: "R3b a read that the Node authorizer forbids counts as the pod's absence",
    rule: "7: a quorum read per candidate, which says that the pod is gone",
    kubeError: (error, { method, path }) => (method === "GET" && error.status === 403 ? notFound(path) : error),
  },
  {
    name: "R3c the list that stands in for a forbidden read is answered by a cache",
    rule: "3 and 7: no cache may answer",
    kube: (request, cached) => {
      const name = /metadata\.name=([^,]+)/.exec(String(request.query?.["fieldSelector"]))?.[1];
      if (request.method !== "GET" || name === undefined) return request;
      const pod = cached(`${request.path}/${name}`);
      return { reply: { items: pod === undefined ? [] : [pod] } };
    },
    // A tombstone would hide it, as with R3.
    world: { noTombstones: true },
  },
  {
    name: "R2 no answer of the backend fails the pod",
    rule: "2: unknown never leads to Failed",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "unknown" &&
      action.do === "wait" &&
      desired.pod.status?.phase === "Running"
        ? { do: "status", patch: { phase: "Failed", reason: "ProviderFailed" } }
        : action,
    ),
  },
  {
    name: "R4 foreign conditions are overwritten",
    rule: "4: foreign conditions survive",
    plan: replan((action) => {
      if (action.do !== "status" || action.patch["conditions"] === undefined) return action;
      const conditions = (action.patch["conditions"] as { type: string }[]).filter((c) => !c.type.startsWith("test/"));
      return { do: "status", patch: { ...action.patch, conditions } };
    }),
  },
  {
    name: "R4b startTime is written anew by every process",
    rule: "4: startTime never changes",
    plan: replan((action, _desired, _observed, _memory, context) =>
      action.do === "status"
        ? { do: "status", patch: { ...action.patch, startTime: new Date(context.now).toISOString() } }
        : action,
    ),
  },
  {
    name: "R4c a failed pod is revived when its machine runs",
    rule: "4: terminal phases are final",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      desired.pod.status?.phase === "Failed" &&
      observed.kind === "found" &&
      !isOver(observed.machine)
        ? { do: "status", patch: { phase: "Running" } }
        : action,
    ),
  },
  {
    name: "R4d phase Failed is written while the machine still stops",
    rule: "5: the final status comes after the machine is over",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      action.do === "stop" &&
      desired.pod.metadata?.deletionTimestamp !== undefined &&
      observed.kind === "found"
        ? { do: "status", patch: { phase: "Failed" } }
        : action,
    ),
  },
  {
    name: "R5 delete only what a read shows, else nothing is left to stop a late create",
    rule: "5: delete unconditionally",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" && action.do === "bury" && observed.kind === "absent" ? { do: "finalize" } : action,
    ),
  },
  {
    name: "R5b the pod object is left when its machine is over",
    rule: "5: a pod whose machine is confirmed over is removed",
    plan: replan((action) => (action.do === "finalize" ? { do: "wait" } : action)),
  },
  {
    name: "R7 the sweep takes other nodes' machines",
    rule: "7: only machines with this cluster's and node's labels",
    ignoreOwner: true,
  },
  {
    name: "R9 what is remembered decides: a restarted agent leaves running machines of dying pods",
    rule: "9: no private state",
    plan: replan((action, desired, _observed, memory) =>
      desired.kind === "pod" && (action.do === "stop" || action.do === "bury") && !memory.created
        ? { do: "wait" }
        : action,
    ),
  },
  {
    name: "S3 a pod that is not ready is restarted by deleting its machine",
    rule: "a live pod's machine is never deleted",
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
    name: "S7 Running is written because the create was accepted",
    rule: "a status is written from what was seen",
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "found" &&
      observed.machine.state === "creating" &&
      action.do === "status"
        ? {
            do: "status",
            patch: {
              ...action.patch,
              phase: "Running",
              containerStatuses: [{ name: "main", restartCount: 0, state: { running: {} } }],
            },
          }
        : action,
    ),
  },
];
