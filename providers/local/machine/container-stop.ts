/** The end of one container: pre_stop hook, stop signal, grace period, kill (kubelet: kuberuntime killContainer). */
import {
  type Clock,
  linkAbort,
  type Logger,
  type Prober,
  type ProbeKind,
  type Pulse,
  untilAborted,
} from "../../../src/provider/kit/index.ts";
import type { ContainerRef, Sandbox } from "../engine.ts";

/** What is left for a container after its hook has used up the grace period (kubelet's minimumGracePeriod). */
export const MIN_KILL_WAIT_MS = 2_000;

/** How a container is to be stopped: nothing of it is kept in time, for all of it may change while it is under way. */
export interface StopOrder {
  /** Milliseconds on the monotonic clock. */
  deadline: number;
  /** The signal waits: another container must end before this one. */
  holdSignal: boolean;
  /** Kill at once. */
  force: boolean;
}

/** The stop of a container. It may be shortened while it is under way: change it, then fire `changed`. */
export interface StopTask extends StopOrder {
  readonly changed: Pulse;
}

/** What is stopped. */
export interface Stoppable {
  readonly ref: ContainerRef;
  readonly probers: Readonly<Partial<Record<ProbeKind, Prober>>>;
  /** Fulfilled with whether the command was begun. */
  readonly started: Promise<boolean>;
  /** Aborts when it has ended. */
  readonly ended: AbortSignal;
}

interface StopOptions {
  clock: Clock;
  logger: Logger;
  /** Undefined when it is lost: the containers in it are gone then. */
  sandbox: () => Sandbox | undefined;
  /** Number of the stop signal. */
  signal: number;
  /** Runs the pre_stop hook until the signal aborts; never rejects. */
  preStop?: ((signal: AbortSignal) => Promise<void>) | undefined;
  /** The hook has had its turn: the next backend must not run it again. */
  preStopDone: () => void;
}

/** Resolves when the container has ended. */
export async function stopContainer(instance: Stoppable, task: StopTask, options: StopOptions): Promise<void> {
  const { clock, logger, sandbox } = options;
  const { ended, probers } = instance;
  const container = instance.ref.name;
  probers.startup?.stop();
  probers.liveness?.stop();
  /** Resolves at the container's end, at a change of the task, or at `until`. */
  const wait: Wait = (until) => task.changed.waitAtMost(clock, Math.max(0, until - clock.monotonic()), ended);
  // A container whose command has not begun cannot take a signal. One that never begins is killed in the end.
  let begun = false;
  void instance.started.then(() => {
    begun = true;
    task.changed.fire();
  });
  while (!begun && hasTime(instance, task, clock)) await wait(task.deadline);
  if (!ended.aborted && !task.force && sandbox() !== undefined) await preStop(instance, task, options, wait);
  // As in a kubelet, no container waits longer for its turn: then all have their last seconds together.
  while (task.holdSignal && hasTime(instance, task, clock)) await wait(task.deadline);
  if (!ended.aborted && !task.force) {
    const signalled = clock.monotonic();
    // Not waited for: an engine that cannot deliver it takes nothing of the time, and holds up no kill.
    void sandbox()
      ?.signal(instance.ref, options.signal)
      .catch((thrown: unknown) => logger.warn({ container, err: thrown }, "Cannot deliver the stop signal"));
    const killAt = () => Math.max(task.deadline, signalled + MIN_KILL_WAIT_MS);
    while (!ended.aborted && !task.force && clock.monotonic() < killAt()) await wait(killAt());
  }
  // The shim reports the end; until then, kill again and again what does not go.
  while (!ended.aborted) {
    const killed = sandbox()
      ?.kill(instance.ref)
      .catch((thrown: unknown) => logger.warn({ container, err: thrown }, "Cannot kill the container yet"));
    if (killed !== undefined) await untilAborted(ended, killed);
    if (!ended.aborted) await wait(clock.monotonic() + MIN_KILL_WAIT_MS);
  }
}

type Wait = (until: number) => Promise<void>;

function hasTime({ ended }: Stoppable, task: StopTask, clock: Clock): boolean {
  return !ended.aborted && !task.force && clock.monotonic() < task.deadline;
}

/** Gives the hook its time: to the deadline, or until nothing is left to be stopped. */
async function preStop(instance: Stoppable, task: StopTask, options: StopOptions, wait: Wait): Promise<void> {
  const { clock } = options;
  // As in a kubelet, a hook that would have no time is not begun.
  if (options.preStop === undefined || clock.monotonic() >= task.deadline) return;
  const abort = new AbortController();
  using limited = linkAbort(abort.signal, instance.ended);
  let isOver = false;
  const hook = options.preStop(limited.signal).finally(() => {
    isOver = true;
    task.changed.fire();
  });
  while (!isOver && hasTime(instance, task, clock)) await wait(task.deadline);
  abort.abort(new Error("the grace period is used up"));
  await hook;
  options.preStopDone();
}
