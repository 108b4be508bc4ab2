/** The end of one container: pre_stop hook, stop signal, grace period, kill (kubelet: kuberuntime killContainer). */
import { type Clock, type Logger, toError } from "../../../src/provider/kit/index.ts";
import type { ContainerRun, StopTask } from "./container-run.ts";
import type { Sandbox } from "../engine.ts";

/** What is left for a container after its hook has used up the grace period (kubelet's minimumGracePeriod). */
export const MIN_KILL_WAIT_MS = 2_000;

export interface StopOptions {
  clock: Clock;
  logger: Logger;
  /** Undefined when it is lost: the containers in it are gone then. */
  sandbox: () => Sandbox | undefined;
  /** Number of the stop signal. */
  signal: number;
  /** Runs the pre_stop hook until the signal aborts; never rejects. */
  preStop?: (signal: AbortSignal) => Promise<void>;
  /** The hook has had its turn: the next backend must not run it again. */
  preStopDone?: () => void;
}

/** Resolves when the container has ended. */
export async function stopContainer(run: ContainerRun, task: StopTask, options: StopOptions): Promise<void> {
  const { clock, logger, sandbox } = options;
  const container = run.ref.name;
  run.probers.startup?.stop();
  run.probers.liveness?.stop();
  const ended = new Promise<void>((resolve) => run.ended.signal.addEventListener("abort", () => resolve()));
  const isOpen = () => !run.ended.signal.aborted;
  /** Resolves at the container's end, at a change of the task, or at `until`. */
  const wait: Wait = async (until) => {
    const timer = Promise.withResolvers<void>();
    const cancel = clock.after(Math.max(0, until - clock.monotonic()), timer.resolve);
    await Promise.race([ended, task.changed.wait(), timer.promise]);
    cancel();
  };
  // A container whose command has not begun cannot take a signal. One that never begins is killed in the end.
  let begun = false;
  void run.started.then(() => {
    begun = true;
    task.changed.fire();
  });
  while (!begun && isOpen() && !task.force && clock.monotonic() < task.deadline) await wait(task.deadline);
  if (isOpen() && !task.force && sandbox() !== undefined) await preStop(run, task, options, wait);
  // As in a kubelet, nobody's turn is waited for longer: then all have their last seconds together.
  while (isOpen() && task.holdSignal && !task.force && clock.monotonic() < task.deadline) await wait(task.deadline);
  if (isOpen() && !task.force) {
    const signalled = clock.monotonic();
    await sandbox()
      ?.signal(run.ref, options.signal)
      .catch((error: unknown) => {
        logger.warn({ container, error: toError(error).message }, "cannot deliver the stop signal");
      });
    const killAt = () => Math.max(task.deadline, signalled + MIN_KILL_WAIT_MS);
    while (isOpen() && !task.force && clock.monotonic() < killAt()) await wait(killAt());
  }
  // The shim reports the end; until then, kill again and again what does not go.
  while (isOpen()) {
    await sandbox()
      ?.kill(run.ref)
      .catch((error: unknown) => {
        logger.warn({ container, error: toError(error).message }, "cannot kill the container yet");
      });
    if (isOpen()) await wait(clock.monotonic() + MIN_KILL_WAIT_MS);
  }
}

type Wait = (until: number) => Promise<void>;

/** Gives the hook its time: to the deadline, or until nothing is left to be stopped. */
async function preStop(run: ContainerRun, task: StopTask, options: StopOptions, wait: Wait): Promise<void> {
  const { clock } = options;
  // As in a kubelet, a hook that would have no time is not begun.
  if (options.preStop === undefined || clock.monotonic() >= task.deadline) return;
  const abort = new AbortController();
  let isOver = false;
  const hook = options.preStop(AbortSignal.any([abort.signal, run.ended.signal])).finally(() => {
    isOver = true;
    task.changed.fire();
  });
  while (!isOver && !task.force && clock.monotonic() < task.deadline && !run.ended.signal.aborted)
    await wait(task.deadline);
  abort.abort(new Error("the grace period is used up"));
  await hook;
  options.preStopDone?.();
}
