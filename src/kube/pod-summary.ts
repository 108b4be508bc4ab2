/** READY, STATUS and RESTARTS of `kubectl get pods` (pkg/printers/internalversion/printers.go, `printPod`). */
import { humanDuration } from "../util/human-duration.ts";
import type { ContainerStatus, Pod, PodStatus } from "./wire.ts";

type Terminated = NonNullable<NonNullable<ContainerStatus["state"]>["terminated"]>;

/** What the containers looked at so far add up to. */
interface Tally {
  restarts: number;
  /** Epoch milliseconds; 0 when nothing was restarted. */
  lastRestart: number;
  ready: number;
  /** What is printed as STATUS; undefined while none of the containers has one. */
  reason: string | undefined;
}

/** As the columns have it. @param now wall clock, in milliseconds */
export function podSummary(pod: Pod, now: number): { ready: string; status: string; restarts: string } {
  const { ready, status, restarts, lastRestart } = podCounts(pod);
  const ago = restarts !== 0 && lastRestart > 0 ? ` (${humanDuration(now - lastRestart)} ago)` : "";
  return { ready, status, restarts: `${restarts}${ago}` };
}

/** What does not depend on the time. `lastRestart` is in epoch milliseconds, 0 when nothing was restarted. */
export function podCounts(pod: Pod): { ready: string; status: string; restarts: number; lastRestart: number } {
  const { spec, status = {} } = pod;
  const sidecars = new Set(
    (spec?.initContainers ?? []).filter((c) => c.restartPolicy === "Always").map(({ name }) => name),
  );
  const total = (spec?.containers?.length ?? 0) + sidecars.size;
  const init = initTally(pod, sidecars);
  const isInitialized = init.reason === undefined || isTrue(status, "Initialized");
  const gated = status.conditions?.some((c) => c.type === "PodScheduled" && c.reason === "SchedulingGated");
  const reason = init.reason ?? (gated ? "SchedulingGated" : status.reason || status.phase || "");
  const tally = isInitialized ? mainTally(status, { ...init, reason }) : { ...init, ...init.all, reason };
  const { restarts, lastRestart } = tally;
  return { ready: `${tally.ready}/${total}`, status: deletionStatus(pod) ?? tally.reason ?? "", restarts, lastRestart };
}

/** Sidecars count for good, the other init containers (`all`) as long as the pod is not initialised. */
function initTally(
  { spec, status = {} }: Pod,
  sidecars: ReadonlySet<string>,
): Tally & { all: Pick<Tally, "restarts" | "lastRestart"> } {
  const tally: Tally = { restarts: 0, lastRestart: 0, ready: 0, reason: undefined };
  const all = { restarts: 0, lastRestart: 0 };
  for (const [i, c] of (status.initContainerStatuses ?? []).entries()) {
    const isSidecar = sidecars.has(c.name);
    for (const each of isSidecar ? [tally, all] : [all]) countRestarts(each, c);
    if (c.state?.terminated?.exitCode === 0) continue;
    if (isSidecar && c.started) {
      if (c.ready) tally.ready++;
      continue;
    }
    tally.reason = `Init:${initReason(c) ?? `${i}/${spec?.initContainers?.length ?? 0}`}`;
    break;
  }
  return { ...tally, all };
}

function initReason(c: ContainerStatus): string | undefined {
  if (c.state?.terminated) return c.state.terminated.reason || exitText(c.state.terminated);
  const waiting = c.state?.waiting?.reason;
  return waiting && waiting !== "PodInitializing" ? waiting : undefined;
}

/** Adds the main containers, the first of which has the last word. */
function mainTally(status: PodStatus, init: Tally): Tally {
  const tally = { ...init };
  let running = false;
  let errorReason = "";
  for (const c of (status.containerStatuses ?? []).toReversed()) {
    countRestarts(tally, c);
    if (c.state?.waiting?.reason) tally.reason = c.state.waiting.reason;
    else if (c.state?.terminated) {
      const { reason: why, exitCode } = c.state.terminated;
      tally.reason = why || exitText(c.state.terminated);
      if (exitCode !== 0) errorReason = tally.reason!;
    } else if (c.ready && c.state?.running) {
      running = true;
      tally.ready++;
    }
  }
  if (tally.reason === "Completed") {
    if (running && isTrue(status, "Ready")) tally.reason = "Running";
    else if (errorReason) tally.reason = errorReason;
    else if (running) tally.reason = "NotReady";
  }
  return tally;
}

function deletionStatus({ metadata, status = {} }: Pod): string | undefined {
  if (!metadata?.deletionTimestamp) return undefined;
  if (status.reason === "NodeLost") return "Unknown";
  return status.phase === "Succeeded" || status.phase === "Failed" ? undefined : "Terminating";
}

function countRestarts(tally: Pick<Tally, "restarts" | "lastRestart">, c: ContainerStatus): void {
  const finished = c.lastState?.terminated ? Date.parse(c.lastState.terminated.finishedAt ?? "") || 0 : 0;
  tally.restarts += c.restartCount;
  tally.lastRestart = Math.max(tally.lastRestart, finished);
}

const exitText = ({ signal, exitCode }: Terminated): string => (signal ? `Signal:${signal}` : `ExitCode:${exitCode}`);

const isTrue = (status: PodStatus, type: string): boolean =>
  status.conditions?.some((c) => c.type === type && c.status === "True") === true;
