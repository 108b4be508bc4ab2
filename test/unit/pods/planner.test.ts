import { describe, expect, test } from "vitest";
import { LOST_DEBOUNCE_MS, ORPHAN_GRACE_MS, plan } from "../../../src/pods/planner.ts";
import { newMemory, type PodMemory } from "../../../src/pods/pod-memory.ts";
import { PREEMPTED } from "../../../src/pods/verdicts.ts";
import type { Observed } from "../../../src/pods/decision.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { podStatus } from "../../../src/pods/status/pod-status.ts";
import { withUnwritable } from "../../../src/pods/status-write.ts";
import { containerState as container, pod } from "../../support/builders.ts";
import { exited, machine, NOW, running as runs } from "./fixtures.ts";

const context = { now: NOW, monotonic: NOW, hostIPs: ["10.1.0.1"], version: undefined };
const found = (m: Machine): Observed => ({ kind: "found", machine: m });
const absent: Observed = { kind: "absent" };
const unknown: Observed = { kind: "unknown" };
const memory = (change: Partial<PodMemory> = {}): PodMemory => ({ ...newMemory(), ...change });
const next = (p: Pod, observed: Observed, m: PodMemory = memory(), at = NOW) =>
  plan({ kind: "pod", pod: p }, observed, m, { ...context, now: at, monotonic: at });

/** The pod with all that is to be written of this machine already written. */
function settled(p: Pod, m: Machine): Pod {
  const over = ["stopped", "failed", "deleted"].includes(m.state);
  return {
    ...p,
    metadata: { ...p.metadata, annotations: { "vmlet.dev/machine": m.id } },
    status: { ...p.status, ...podStatus({ pod: p, machine: m, hostIPs: ["10.1.0.1"], now: NOW, ended: over }) },
  };
}

const deleted = (change: { seconds?: number; grace?: number } = {}) => ({
  deletionTimestamp: new Date(NOW + (change.seconds ?? 30) * 1000).toISOString(),
  deletionGracePeriodSeconds: change.grace ?? 30,
});

describe("a pod that should run", () => {
  test("gets a machine when the backend says that there is none", () => {
    expect(next(pod(), absent)).toEqual({ do: "create" });
  });

  test("gets nothing while the backend is silent", () => {
    expect(next(pod(), unknown)).toEqual({ do: "wait" });
  });

  test("has its status written when the machine changed", () => {
    expect(next(pod(), found(machine()))).toMatchObject({ do: "status", patch: { phase: "Running" } });
  });

  test("is left alone when nothing changed", () => {
    expect(next(settled(pod(), machine()), found(machine()))).toEqual({ do: "wait" });
  });

  test("has its machine updated when its spec or references changed", () => {
    const action = plan(
      { kind: "pod", pod: settled(pod(), machine()) },
      found(machine()),
      memory({ appliedVersion: "1" }),
      { ...context, version: "2" },
    );
    expect(action).toEqual({ do: "update" });
  });

  test("has its machine updated before its status claims the new generation", () => {
    const before = settled(pod(), machine());
    const action = plan(
      { kind: "pod", pod: { ...before, metadata: { ...before.metadata!, generation: 2 } } },
      found(machine()),
      memory({ appliedVersion: "1" }),
      { ...context, version: "2" },
    );
    expect(action).toEqual({ do: "update" });
  });

  test("asks the backend when the pod's status is ahead of what was seen", () => {
    const stale = machine({ containers: [container("app")] });
    expect(next(settled(pod(), machine()), found(stale))).toEqual({ do: "look" });
  });

  test("asks the backend when the status tells the end of what was last seen to run", () => {
    const ended = machine({ containers: [exited("app", 1)] });
    expect(next(settled(pod(), ended), found(machine({ containers: [runs("app")] })))).toEqual({ do: "look" });
  });

  test("asks once: what the backend says again is how it is", () => {
    const ended = machine({ containers: [exited("app", 1)] });
    const again = machine({ containers: [runs("app")] });
    const p = settled(pod(), ended);
    const m = memory({ confirmedVersion: again.version, confirmedFor: p.metadata!.resourceVersion });
    expect(next(p, found(again), m)).not.toEqual({ do: "look" });
    // Since then another agent has written what it saw.
    const written = { ...p, metadata: { ...p.metadata, resourceVersion: "11" } } as Pod;
    expect(next(written, found(again), m)).toEqual({ do: "look" });
  });
});

describe("a pod whose machine is gone", () => {
  const lost = settled(pod(), machine());

  test("is looked for before anything is concluded", () => {
    expect(next(lost, absent)).toEqual({ do: "look" });
  });

  test("is not failed by one absence", () => {
    expect(next(lost, absent, memory({ missedAt: [NOW] }))).toEqual({ do: "wait", afterMs: LOST_DEBOUNCE_MS });
  });

  test("is looked for a second time after the debounce", () => {
    expect(next(lost, absent, memory({ missedAt: [NOW] }), NOW + LOST_DEBOUNCE_MS)).toEqual({ do: "look" });
  });

  test("fails after two definite absences", () => {
    const m = memory({ missedAt: [NOW, NOW + LOST_DEBOUNCE_MS] });
    expect(next(lost, absent, m, NOW + LOST_DEBOUNCE_MS)).toMatchObject({
      do: "status",
      patch: { phase: "Failed", reason: "MachineLost" },
    });
  });

  test("is never failed while the backend does not answer", () => {
    expect(next(lost, unknown, memory({ missedAt: [NOW, NOW + LOST_DEBOUNCE_MS] }))).toEqual({ do: "wait" });
  });

  test("is looked for as carefully when it was to make room for another", () => {
    const preempted = memory({ verdict: PREEMPTED });
    expect(next(lost, absent, preempted)).toEqual({ do: "look" });
    const missed = memory({ verdict: PREEMPTED, missedAt: [NOW, NOW + LOST_DEBOUNCE_MS] });
    expect(next(lost, absent, missed, NOW + LOST_DEBOUNCE_MS)).toMatchObject({
      do: "status",
      patch: { phase: "Failed", reason: "Preempting" },
    });
  });
});

describe("a pod that was refused and that another agent has taken in", () => {
  const refused = memory({ verdict: { reason: "OutOfcpu", message: "no room", ofNoMachine: true } });

  test("keeps its machine", () => {
    expect(next(settled(pod(), machine()), found(machine()), refused)).toEqual({ do: "wait" });
  });

  test("ends as its machine does", () => {
    const over = machine({ state: "stopped", containers: [exited("app", 0)] });
    expect(next(pod(), found(over), refused)).toMatchObject({ do: "status", patch: { phase: "Succeeded" } });
  });
});

describe("a pod that is to fail and has reported no start", () => {
  const refused = memory({ verdict: { reason: "OutOfcpu", message: "no room" } });
  const late = pod({ spec: { activeDeadlineSeconds: 60 }, status: { startTime: "2026-06-01T11:58:00Z" } });
  const asked = { missedAt: [NOW] };

  test.each([
    ["was refused", pod(), refused, "OutOfcpu"],
    ["is past its deadline", late, memory(), "DeadlineExceeded"],
  ])("because it %s fails only after the backend was asked and can make no machine of it", (_why, p, m, reason) => {
    expect(next(p, absent, m)).toEqual({ do: "look" });
    expect(next(p, absent, { ...m, missedAt: [NOW - 5_000] })).toEqual({ do: "look" });
    const bury = next(p, absent, { ...m, ...asked });
    expect(bury).toMatchObject({ do: "bury", force: false, ifAbsent: true, verdict: { reason } });
    const verdict = "verdict" in bury ? bury.verdict : undefined;
    const buried = { ...m, ...asked, verdict, buried: true };
    const tombstone = found(machine({ state: "deleted", containers: [] }));
    for (const seen of [absent, tombstone])
      expect(next(p, seen, buried)).toMatchObject({ do: "status", patch: { phase: "Failed", reason } });
  });

  test("is left as it is while the backend does not answer", () => {
    expect(next(pod(), unknown, refused)).toEqual({ do: "wait" });
  });

  test("has a machine stopped that the lists lacked", () => {
    expect(next(pod(), found(machine()), refused)).toMatchObject({ do: "stop" });
  });

  test("is refused once more when an agent before this one did not live to say why", () => {
    expect(next(pod(), found(machine({ state: "deleted", containers: [] })))).toEqual({ do: "create" });
  });
});

describe("what one pod writes", () => {
  const flapped = settled(pod(), machine());
  const unready = found(machine({ containers: [{ ...machine().containers[0]!, ready: false }] }));
  const spent = memory({ statusPaidUntil: NOW + 96_000 });

  test("has a limit, until which the rest goes on", () => {
    expect(next(flapped, unready, spent)).toEqual({ do: "wait", afterMs: 12_000 });
    const withNews = { ...context, version: "2" };
    expect(plan({ kind: "pod", pod: flapped }, unready, spent, withNews)).toEqual({ do: "update" });
    expect(next(flapped, unready, spent, NOW + 12_000)).toMatchObject({ do: "status" });
  });

  test.each([
    ["a new phase", pod(), found(machine())],
    ["the end", flapped, found(machine({ state: "stopped", containers: [exited("app", 0)] }))],
    ["what happens while it is deleted", { ...flapped, metadata: { ...flapped.metadata, ...deleted() } }, unready],
  ])("has no limit for %s", (_what, p, observed) => {
    const stopping = { ...spent, stopDeadline: NOW + 30_000 };
    expect(next(p, observed, stopping)).toMatchObject({ do: "status" });
  });
});

describe("the machine that a pod is on", () => {
  const on = (p: Pod, host?: string) => next(p, found(machine({ ...(host && { host }) })));

  test("is written along with the status, and its host where the backend tells", () => {
    expect(on(pod(), "h7")).toMatchObject({
      patch: { phase: "Running" },
      annotations: { "vmlet.dev/machine": "m-u1", "vmlet.dev/host": "h7" },
    });
  });

  test("is written with its size, where the backend tells", () => {
    expect(next(pod(), found(machine({ instance_type: "large" })))).toMatchObject({
      annotations: { "vmlet.dev/machine": "m-u1", "vmlet.dev/machine-type": "large" },
    });
  });

  test("is written with its place and its price, where the backend tells", () => {
    expect(next(pod(), found(machine({ zone: "east", price: 0.04 })))).toMatchObject({
      annotations: { "vmlet.dev/machine-zone": "east", "vmlet.dev/machine-price": "0.04" },
    });
  });

  test("is written again when it moved to another host", () => {
    const told = settled(pod(), machine());
    expect(on(told, "h8")).toEqual({ do: "status", patch: {}, annotations: { "vmlet.dev/host": "h8" } });
  });

  test("is not written where the API server does not keep it", () => {
    const annotations = { "vmlet.dev/host": "h8" };
    const m = memory({ unwritable: withUnwritable(new Map(), { annotations }, ["annotations"]) });
    expect(next(settled(pod(), machine()), found(machine({ host: "h8" })), m)).toEqual({ do: "wait" });
  });

  test("delays no deletion", () => {
    const over = machine({ state: "stopped", host: "h8", containers: [exited("app", 0)] });
    const told = settled({ ...pod(), metadata: { ...pod().metadata, ...deleted() } }, over);
    expect(next(told, found(over))).toEqual({ do: "bury", force: false });
  });
});

const finalized = { since: NOW, pauseMs: 30_000, retryAt: NOW + 30_000 };

describe("deletion", () => {
  const running = settled(pod(), machine());
  const dying = (change = {}) =>
    ({ ...running, metadata: { ...running.metadata, ...deleted(change) } }) as unknown as Pod;

  test.each([
    ["ahead of the API server's", -18],
    ["behind the API server's", 42],
  ])("gives the machine its whole grace period by a clock that is %s", (_which, seconds) => {
    expect(next(dying({ seconds, grace: 12 }), found(machine()))).toEqual({ do: "stop", graceSeconds: 12 });
  });

  test("gives a second where there is no grace", () => {
    expect(next(dying({ seconds: 0, grace: 0 }), found(machine()))).toEqual({ do: "stop", graceSeconds: 1 });
  });

  test("does not end a stop under way because the wall clock jumps", () => {
    const stopping = machine({ state: "stopping" });
    const jumped = plan(
      { kind: "pod", pod: settled(dying(), stopping) },
      found(stopping),
      memory({ stopDeadline: NOW + 30_000 }),
      { ...context, now: NOW + 3_600_000 },
    );
    expect(jumped).toEqual({ do: "wait", afterMs: 40_000 });
  });

  test("stops again when the grace period was shortened", () => {
    const m = memory({ stopDeadline: NOW + 30_000 });
    expect(next(dying({ seconds: 2, grace: 2 }), found(machine({ state: "stopping" })), m)).toEqual({
      do: "stop",
      graceSeconds: 2,
    });
  });

  test("writes the exit codes before the machine is buried", () => {
    const over = machine({ state: "stopped", containers: [exited("app", 143)] });
    expect(next(dying(), found(over))).toMatchObject({ do: "status", patch: { phase: "Failed" } });
  });

  test("does not overwrite exit codes that another agent has written by what was seen before the end", () => {
    const told = settled(dying(), machine({ state: "stopped", containers: [exited("app", 143)] }));
    const m = memory({ stopDeadline: NOW + 30_000 });
    const stopping = machine({ state: "stopping", containers: [runs("app")] });
    expect(next(told, found(stopping), m)).toEqual({ do: "look" });
    expect(next(told, found(stopping), { ...m, finalized })).toMatchObject({ do: "wait" });
  });

  test("buries a machine that is over, then removes the object", () => {
    const over = machine({ state: "stopped", containers: [exited("app", 0)] });
    const told = settled(dying(), over);
    expect(next(told, found(over))).toEqual({ do: "bury", force: false });
    expect(next(told, found({ ...over, state: "deleted" }), memory({ buried: true }))).toEqual({ do: "finalize" });
  });

  test("leaves a tombstone even for a machine that was never made", () => {
    expect(next({ ...pod(), metadata: { ...pod().metadata, ...deleted() } }, absent)).toEqual({
      do: "bury",
      force: false,
    });
  });

  test("does not remove the object while the backend does not answer", () => {
    expect(next(dying(), unknown)).toEqual({ do: "look" });
  });

  test("kills a machine that does not stop", () => {
    const m = memory({ stopDeadline: NOW - 60_000 });
    expect(next(dying({ seconds: -60 }), found(machine({ state: "stopping" })), m)).toEqual({
      do: "bury",
      force: true,
    });
  });

  test("is sent now and then while a finalizer holds the object, and not more often", () => {
    const m = memory({ finalized, buried: true });
    expect(next(dying(), absent, m)).toEqual({ do: "wait", afterMs: 30_000 });
    expect(next(dying(), absent, m, NOW + 30_000)).toEqual({ do: "finalize" });
  });
});

describe("a machine that is deleted again because it stayed", () => {
  const dying = { ...pod(), metadata: { ...pod().metadata, ...deleted() } } as Pod;
  const waiting = { burial: { since: NOW, pauseMs: 200, retryAt: NOW + 200 } };
  const gone = found(machine({ state: "deleted", version: 7, containers: [] }));

  test("is looked at as soon as it is seen to be gone", () => {
    expect(next(settled(dying, machine({ state: "deleted", containers: [] })), gone, memory(waiting))).toMatchObject({
      do: "bury",
    });
  });

  test("is not asked for in a loop by one who has seen it go when the backend says that it is there", () => {
    const m = memory({ ...waiting, confirmedVersion: 7 });
    expect(next(settled(dying, machine({ state: "deleted", containers: [] })), gone, m)).toEqual({
      do: "wait",
      afterMs: 200,
    });
  });
});

describe("a deletion whose last status the API server does not take", () => {
  const over = machine({ state: "stopped", containers: [exited("app", 143)] });
  const dying = { ...pod({ status: { phase: "Running" } }), metadata: { ...pod().metadata, ...deleted() } } as Pod;
  const wish = next(dying, found(over)) as Extract<ReturnType<typeof next>, { do: "status" }>;
  const without = (...names: string[]) => memory({ unwritable: withUnwritable(new Map(), wish.patch, names) });

  test("goes on with what is left of it", () => {
    const { containerStatuses: _refused, ...rest } = wish.patch;
    expect(next(dying, found(over), without("containerStatuses"))).toMatchObject({ do: "status" });
    expect(next(dying, found(over), without("containerStatuses"))).toHaveProperty("patch", rest);
  });

  test("goes on without it when nothing is left", () => {
    const m = without(...Object.keys(wish.patch));
    expect(next(dying, found(over), m)).toEqual({ do: "bury", force: false });
    expect(next(dying, found({ ...over, state: "deleted" }), { ...m, buried: true })).toEqual({ do: "finalize" });
  });

  test("waits a minute for one that is forbidden", () => {
    const denied = memory({ statusDeniedSince: NOW });
    expect(next(dying, found(over), denied, NOW + 59_000)).toMatchObject({ do: "status" });
    expect(next(dying, found(over), denied, NOW + 60_000)).toEqual({ do: "bury", force: false });
    const buried = { ...denied, buried: true };
    expect(next(dying, found({ ...over, state: "deleted" }), buried, NOW + 60_000)).toEqual({ do: "finalize" });
  });
});

describe("a machine that runs again although it was buried", () => {
  const over = settled(pod({ status: { phase: "Failed" } }), machine({ state: "stopped" }));
  const held = { ...over, metadata: { ...over.metadata, ...deleted() } } as Pod;

  test("is stopped and buried again, though a finalizer holds its pod and all was done", () => {
    const m = memory({ finalized });
    expect(next(held, found(machine()), m)).toEqual({ do: "stop", graceSeconds: 30 });
    const stopping = { ...m, stopDeadline: NOW + 30_000 };
    expect(next(held, found(machine({ state: "stopping" })), stopping)).toEqual({ do: "wait", afterMs: 40_000 });
    expect(next(held, found(machine({ state: "stopped" })), stopping)).toEqual({ do: "bury", force: false });
  });
});

describe("the active deadline", () => {
  const late = settled(
    pod({ spec: { activeDeadlineSeconds: 60 }, status: { startTime: "2026-06-01T11:58:00Z" } }),
    machine(),
  );

  test("stops the machine", () => {
    expect(next(late, found(machine()))).toMatchObject({ do: "stop", graceSeconds: 30 });
  });

  test("kills a machine that does not stop, also when the wall clock has jumped back meanwhile", () => {
    const early = settled(
      pod({ spec: { activeDeadlineSeconds: 600 }, status: { startTime: "2026-06-01T11:58:00Z" } }),
      machine(),
    );
    const stopping = found(machine({ state: "stopping" }));
    const m = memory({ stopDeadline: NOW + 30_000 });
    expect(next(settled(early, machine({ state: "stopping" })), stopping, m)).toEqual({ do: "wait", afterMs: 40_000 });
    expect(next(early, stopping, m, NOW + 40_000)).toEqual({ do: "bury", force: true });
  });

  test("fails the pod when the machine has stopped", () => {
    const over = machine({
      state: "stopped",
      stopped_at: "2026-06-01T12:00:01.000Z",
      containers: [exited("app", 143)],
    });
    expect(next(late, found(over))).toMatchObject({
      do: "status",
      patch: {
        phase: "Failed",
        reason: "DeadlineExceeded",
        message: "Pod was active on the node longer than the specified deadline",
      },
    });
  });

  test("wakes the planner when it is due", () => {
    const early = settled(
      pod({ spec: { activeDeadlineSeconds: 600 }, status: { startTime: "2026-06-01T11:58:00Z" } }),
      machine(),
    );
    expect(next(early, found(machine()))).toEqual({ do: "wait", afterMs: 480_000 });
  });

  test("does not fail a pod that finished in time", () => {
    const over = machine({ state: "stopped", stopped_at: "2026-06-01T11:58:30.000Z", containers: [exited("app", 0)] });
    const p = pod({
      spec: { activeDeadlineSeconds: 60, restartPolicy: "Never" },
      status: { startTime: "2026-06-01T11:58:00Z", phase: "Running" },
    });
    expect(next(p, found(over))).toMatchObject({ patch: { phase: "Succeeded" } });
  });

  test("does not fail a pod that finished in time by a backend whose clock is ahead", () => {
    const over = machine({ state: "stopped", stopped_at: "2026-06-01T12:00:03.000Z", containers: [exited("app", 0)] });
    const p = pod({
      spec: { activeDeadlineSeconds: 121, restartPolicy: "Never" },
      status: { startTime: "2026-06-01T11:58:00Z", phase: "Running" },
    });
    expect(next(p, found(over))).toMatchObject({ patch: { phase: "Succeeded" } });
  });
});

describe("a pod that is over", () => {
  const over = pod({ status: { phase: "Failed", reason: "Evicted" } });

  test("keeps its stopped machine for the logs", () => {
    expect(next(over, found(machine({ state: "stopped" })))).toEqual({ do: "wait" });
  });

  test("has a machine that still runs stopped", () => {
    expect(next(over, found(machine()))).toEqual({ do: "stop", graceSeconds: 30 });
  });
});

describe("a machine without a pod", () => {
  const orphan = (observed: Observed, m: PodMemory, at = NOW) =>
    plan({ kind: "none" }, observed, m, { ...context, now: at, monotonic: at });

  test("is not touched before the list of pods is complete", () => {
    expect(plan({ kind: "unknown" }, found(machine()), memory(), context)).toEqual({ do: "wait" });
  });

  test("is not touched at first sight", () => {
    expect(orphan(found(machine()), memory({ orphanSince: NOW }))).toEqual({ do: "wait", afterMs: ORPHAN_GRACE_MS });
  });

  test("is removed at the second sight, a grace period later", () => {
    expect(orphan(found(machine()), memory({ orphanSince: NOW }), NOW + ORPHAN_GRACE_MS)).toEqual({ do: "reap" });
  });

  test("is removed at once when its pod was seen to go", () => {
    expect(orphan(found(machine()), memory({ podSeenGone: true }))).toEqual({ do: "reap" });
  });

  test("is forgotten when it left a tombstone", () => {
    expect(orphan(found(machine({ state: "deleted" })), memory({ podSeenGone: true }))).toEqual({ do: "forget" });
  });

  test("is asked about when its pod was seen to go, or was to have a machine, and no list can be had", () => {
    expect(orphan(unknown, memory({ podSeenGone: true }))).toEqual({ do: "look" });
    expect(orphan(unknown, memory({ created: true }))).toEqual({ do: "look" });
  });

  test("is not asked about again and again when this process never had to do with it", () => {
    expect(orphan(unknown, memory())).toEqual({ do: "wait" });
  });

  test("gets a tombstone when a create of ours may still arrive", () => {
    expect(orphan(absent, memory({ created: true }))).toEqual({ do: "reap" });
  });
});

describe("a machine of which the backend says what makes no sense", () => {
  const odd = (state?: Machine["state"]): Observed => ({
    kind: "unknown",
    machine: { id: "m-u1", reason: "no sense", ...(state !== undefined && { state }) },
  });
  const running = settled(pod(), machine());
  const dying = { ...running, metadata: { ...running.metadata, ...deleted({ grace: 12 }) } } as unknown as Pod;
  const alone = (observed: Observed, m: PodMemory, at = NOW) =>
    plan({ kind: "none" }, observed, m, { ...context, monotonic: at });

  test.each([
    ["that should run", pod(), memory()],
    ["that runs", running, memory()],
    ["that was missed before", running, memory({ missedAt: [NOW, NOW + LOST_DEBOUNCE_MS] })],
    [
      "whose deadline has passed",
      pod({ spec: { activeDeadlineSeconds: 1 }, status: { startTime: "2026-01-01T00:00:00Z" } }),
      memory(),
    ],
    ["that is to make room", running, memory({ verdict: PREEMPTED })],
  ])("leaves a pod %s as it is", (_what, p, m) => {
    for (const state of [undefined, "running", "stopped", "failed", "deleted"] as const)
      expect(next(p, odd(state), m)).toEqual({ do: "wait" });
  });

  test("is stopped when its pod is over and it is said to run", () => {
    const ended = machine({ state: "stopped", containers: [exited("app", 0)] });
    const over = settled(pod({ spec: { restartPolicy: "Never" } }), ended);
    for (const state of [undefined, "stopped", "failed", "deleted"] as const)
      expect(next(over, odd(state))).toEqual({ do: "wait" });
    expect(next(over, odd("running"))).toEqual({ do: "stop", graceSeconds: 30 });
  });

  test("is stopped when its pod is deleted", () => {
    expect(next(dying, odd())).toEqual({ do: "stop", graceSeconds: 12 });
    expect(next(dying, odd("running"))).toEqual({ do: "stop", graceSeconds: 12 });
  });

  test("is waited for until its grace is over, and then deleted", () => {
    const stopped = memory({ stopDeadline: NOW + 12_000 });
    expect(next(dying, odd(), stopped)).toEqual({ do: "wait", afterMs: 22_000 });
    expect(next(dying, odd(), stopped, NOW + 22_000)).toEqual({ do: "bury", force: true });
  });

  test("is deleted as soon as it is said to be over", () => {
    expect(next(dying, odd("stopped"), memory({ stopDeadline: NOW + 12_000 }))).toEqual({ do: "bury", force: false });
  });

  test("is deleted no more often than any other that does not go", () => {
    const burial = { since: NOW, pauseMs: 1000, retryAt: NOW + 1000 };
    const m = memory({ stopDeadline: NOW - 60_000, burial });
    expect(next(dying, odd(), m)).toEqual({ do: "wait", afterMs: 1000 });
  });

  test("leaves its pod a last status that claims no exit code when it is buried", () => {
    expect(next(dying, odd(), memory({ buried: true }))).toMatchObject({
      do: "status",
      patch: { containerStatuses: [{ state: { terminated: { reason: "ContainerStatusUnknown" } } }] },
    });
  });

  test("is never swept", () => {
    for (const state of [undefined, "running", "stopped", "failed"] as const)
      expect(alone(odd(state), memory({ orphanSince: NOW - 10 * ORPHAN_GRACE_MS }))).toEqual({ do: "wait" });
  });

  test("is ended when this process has seen its pod go", () => {
    expect(alone(odd(), memory({ podSeenGone: true }))).toEqual({ do: "reap" });
    const stopped = memory({ podSeenGone: true, stopDeadline: NOW + 2000 });
    expect(alone(odd(), stopped)).toEqual({ do: "wait", afterMs: 12_000 });
    expect(alone(odd("stopped"), stopped)).toEqual({ do: "reap" });
  });
});
