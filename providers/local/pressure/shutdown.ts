/**
 * The host goes down: its machines are ended in a kubelet's order (pkg/kubelet/nodeshutdown), those that the cluster
 * depends on last, so that they serve the others to their end.
 */
import { type Clock, type Logger, pause } from "../../../src/provider/kit/index.ts";
import { CRITICAL_PRIORITY } from "./eviction.ts";

/** A kubelet's words. */
const REASON = "Terminated";
const MESSAGE = "Pod was terminated in response to imminent node shutdown.";
const POLL_MS = 250;

/** A machine that is not over. */
interface Endable {
  readonly id: string;
  readonly priority: number;
  readonly graceMs: number;
  terminate(why: { reason: string; message: string }, graceMs: number): void;
  isOver(): boolean;
}

interface ShutdownOptions {
  clock: Clock;
  logger: Logger;
  /** For all machines together. */
  graceMs: number;
  /** Of it, for those that the cluster depends on. */
  criticalGraceMs: number;
}

/**
 * Ends them. Resolves when nothing runs, or the grace is over: the host does not wait longer.
 * @param machines all that are not over
 */
export async function endAll(
  machines: readonly Endable[],
  { clock, logger, graceMs, criticalGraceMs }: ShutdownOptions,
): Promise<void> {
  const isCritical = ({ priority }: Endable) => priority >= CRITICAL_PRIORITY;
  const usual = Math.max(0, graceMs - criticalGraceMs);
  const groups = [
    { members: machines.filter((each) => !isCritical(each)), periodMs: usual },
    { members: machines.filter(isCritical), periodMs: Math.min(graceMs, criticalGraceMs) },
  ];
  for (const { members, periodMs } of groups) {
    for (const machine of members) {
      try {
        machine.terminate({ reason: REASON, message: MESSAGE }, Math.min(machine.graceMs, periodMs));
      } catch (thrown) {
        // It cannot be written down yet; it is being ended all the same.
        logger.warn({ machine: machine.id, err: thrown }, "Cannot write down that the machine ends with its host");
      }
    }
    for (let waited = 0; waited < periodMs && members.some((each) => !each.isOver()); waited += POLL_MS)
      await pause(clock, POLL_MS, NEVER);
    const late = members.filter((each) => !each.isOver()).map(({ id }) => id);
    if (late.length > 0) logger.warn({ machines: late }, "These machines did not end in time");
  }
}

const NEVER = new AbortController().signal;
