/**
 * What becomes of a pod whose machine its backend is about to take away: while there is time it is evicted by the API
 * server, which keeps to the budgets of its owner; when no more is left than its grace it is ended, as by a node that
 * shuts down. Pure.
 */
import type { Pod } from "../kube/wire.ts";
import type { Disruption, Machine, UnknownMachine } from "../provider/machine.ts";
import type { Action, PlanContext } from "./decision.ts";
import type { PodMemory } from "./pod-memory.ts";
import { saysDisrupted } from "./status/conditions.ts";
import type { Verdict } from "./status/input.ts";

/** How soon an eviction that was refused, or that nobody has seen the effect of, is asked for again. */
export const EVICT_AGAIN_MS = 10_000;

/** Evicts the pod, or waits until that is due again; undefined where its machine is to stay. */
export function planEviction(
  machine: Pick<UnknownMachine, "disruption" | "state"> | undefined,
  { evictAgainAt = -Infinity }: PodMemory,
  { monotonic }: PlanContext,
): Extract<Action, { do: "evict" | "wait" }> | undefined {
  if (machine?.disruption === undefined || machine.state === "stopping") return undefined;
  const afterMs = evictAgainAt - monotonic;
  return afterMs > 0 ? { do: "wait", afterMs } : { do: "evict" };
}

/**
 * Milliseconds until the machine has to be stopped for its pod to have its grace; infinite where nobody knows when it
 * goes, or the backend names no time that there is (a leap second).
 */
export function timeLeft(pod: Pod, disruption: Disruption | undefined, now: number): number {
  const at = Date.parse(disruption?.at ?? "");
  return Number.isNaN(at) ? Infinity : at - (pod.spec?.terminationGracePeriodSeconds ?? 30) * 1000 - now;
}

/** The kubelet's reason for pods that it ends because their node goes down (nodeshutdown_manager.go). */
export const OUT_OF_TIME = "Terminated";

export const outOfTime = ({ reason, message }: Disruption): Verdict => ({
  reason: OUT_OF_TIME,
  message: `${reason}: ${message}`,
});

/**
 * Why a machine has ended that an agent, which may be gone since, had seen to be about to go: one that ended when it
 * was out of time was stopped for that, however politely its program went; one that ended before has finished.
 */
export function endedOutOfTime(pod: Pod, { disruption, stopped_at = "" }: Machine, now: number): Verdict | undefined {
  if (disruption === undefined || !saysDisrupted(pod)) return undefined;
  // The end is by the backend's clock, which may be ahead.
  const hadNone = [Date.parse(stopped_at), now].every((moment) => timeLeft(pod, disruption, moment) <= 0);
  return hadNone ? outOfTime(disruption) : undefined;
}
