/**
 * One running instance of a container, from the start of its shim to its end: who watches it, its probes and hooks, how
 * it is stopped, and what is told of its end. A restart makes another instance; what comes late for this one is then
 * ignored.
 */
import { constants } from "node:os";
import {
  type ContainerSpec,
  type ContainerTermination,
  pause,
  Prober,
  type ProbeKind,
  Pulse,
  runHook,
  runProbe,
  type Target,
} from "../../../src/provider/kit/index.ts";
import type { ContainerConclusion, ContainerRef, RecordedExit, Sandbox } from "../engine.ts";
import { signalNumber } from "../host/stop-signal.ts";
import type { ShimWatch } from "../engine.ts";
import { logTail } from "../shim/log-reader.ts";
import type { ContainerStatus } from "./container-status.ts";
import { MIN_KILL_WAIT_MS, type Stoppable, stopContainer, type StopOrder, type StopTask } from "./container-stop.ts";
import { conclude, keptConclusion } from "./conclusion.ts";
import type { MachineContext } from "./machine-context.ts";

/** How long the end of a container waits for its shim to write the last of the log. */
const LOG_DRAIN_MS = 5_000;
const MAX_TERMINATION_MESSAGE_BYTES = 4096;
const FALLBACK_LOG = { lines: 80, bytes: 2048 };
/** Of a command that could not be begun, as container runtimes have it. */
export const START_ERROR_EXIT = 128;

/** What is known of the end; times are wall-clock milliseconds. */
type InstanceExit = RecordedExit;

export class ContainerInstance implements Stoppable {
  /** As it was when the instance was made. */
  readonly spec: ContainerSpec;
  readonly probers: Partial<Record<ProbeKind, Prober>> = {};
  readonly #context: MachineContext;
  readonly #container: ContainerStatus;
  #ref: ContainerRef;
  #watch: ShimWatch | undefined;
  /** Its end, when that is under way. */
  #stop: StopTask | undefined;
  /** Aborts hooks and probes when the instance has ended. */
  readonly #ended = new AbortController();
  readonly #started = Promise.withResolvers<boolean>();
  readonly #gone = Promise.withResolvers<void>();
  readonly #over = Promise.withResolvers<void>();
  readonly #onDrop: () => void;
  #isCurrent = true;

  /** @param onDrop called once, when it is not the container's instance any more */
  constructor(context: MachineContext, spec: ContainerSpec, ref: ContainerRef, onDrop: () => void) {
    this.spec = spec;
    this.#context = context;
    this.#container = context.state.container(spec.name);
    this.#ref = { ...ref };
    this.#onDrop = onDrop;
  }

  get ref(): ContainerRef {
    return this.#ref;
  }

  /** False when its end has been told: nothing may be shown or done for the container on its behalf any more. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }

  get isRunning(): boolean {
    return this.#isCurrent && !this.#ended.signal.aborted;
  }

  /** Aborts when it runs no more. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  /** Fulfilled with whether the command was begun. */
  get started(): Promise<boolean> {
    return this.#started.promise;
  }

  /** Fulfilled when the instance has been concluded and its status written. */
  get over(): Promise<void> {
    return this.#over.promise;
  }

  /** Follows its shim, which was started. */
  watch(): void {
    const { work, shims, home } = this.#context;
    if (work.isClosing) return;
    this.#watch = shims.watch(this.#ref, home.socketPath(this.#ref.id), {
      started: ({ pid, startedAt, user }) => {
        if (pid !== undefined) this.#ref = { ...this.#ref, pid };
        this.#container.commandStarted(startedAt!, user);
        this.#started.resolve(true);
      },
      exited: (exit) => work.background(this.conclude(exit)),
      gone: () => this.#gone.resolve(),
    });
  }

  /** Commits: it runs, and post_start is done. */
  showRunning(): void {
    this.#container.showRunning(this.spec, this.#ref.id);
    this.startProbes();
  }

  /** The backend ends; the instance lives on and is the next one's. */
  release(reason: unknown): void {
    this.#watch?.close();
    this.#end(reason);
  }

  /** Stops watching and releases everything: the instance has ended, or its sandbox is gone. */
  drop(): void {
    if (!this.#isCurrent) return;
    this.#isCurrent = false;
    this.#onDrop();
    this.#watch?.close();
    this.#end(new Error("the container has ended"));
    this.#gone.resolve();
    this.#over.resolve();
  }

  #end(reason: unknown): void {
    for (const prober of Object.values(this.probers)) prober.stop();
    this.#ended.abort(reason);
    this.#started.resolve(false);
  }

  // --- probes and hooks ---

  startProbes(): void {
    const { shown } = this.#container;
    if (shown.state !== "running") return;
    if (!shown.started) this.#startProbe("startup");
    else {
      this.#startProbe("readiness");
      if (this.#context.state.record.ending === undefined) this.#startProbe("liveness");
    }
  }

  #startProbe(kind: ProbeKind): void {
    const probe = this.spec.probes?.[kind];
    const sandbox = this.#context.sandbox();
    if (probe === undefined || sandbox === undefined) return;
    const { shown } = this.#container;
    const { clock, state } = this.#context;
    const prober = new Prober(
      kind,
      probe,
      clock,
      () => runProbe(probe, this.#target(sandbox), probe.timeout_s * 1000, clock),
      {
        complaint: (reason, message) => {
          this.#container.notice("Warning", reason, message);
          state.commit();
        },
        verdict: (which, isHealthy) => this.#verdict(which, isHealthy),
        initial: kind === "readiness" ? shown.ready : kind === "liveness" ? true : undefined,
      },
    );
    this.probers[kind] = prober;
    prober.start(Date.parse(shown.started_at!));
  }

  #verdict(kind: ProbeKind, isHealthy: boolean): void {
    if (!this.isRunning) return;
    if (kind === "readiness") this.#container.showReady(isHealthy);
    else if (!isHealthy) {
      const grace = this.spec.probes?.[kind]?.termination_grace_s;
      const message = `Container ${this.spec.name} failed ${kind} probe, will be restarted`;
      this.stopWithGrace(message, grace === undefined ? undefined : grace * 1000);
    } else if (kind === "startup") {
      this.#container.showStartedUp();
      this.startProbes();
      this.#context.replan();
    }
  }

  /** @throws when the hook fails, or the signal aborts; by default that of the instance's end */
  async hook(handler: Parameters<typeof runHook>[0], signal = this.ended): Promise<void> {
    await runHook(handler, this.#target(this.#context.sandbox()!), {
      clock: this.#context.clock,
      signal,
      onFallback: (message) => this.#container.notice("Warning", "LifecycleHTTPFallback", message),
    });
  }

  /** What hooks and probes are aimed at. */
  #target(sandbox: Sandbox): Target {
    return {
      // On the host's network it has none of its own.
      addresses: sandbox.addresses.length > 0 ? sandbox.addresses : ["127.0.0.1"],
      dial: (port, signal) => sandbox.dial(port, "address", signal),
      dialLoopback: (port, signal) => sandbox.dial(port, "loopback", signal),
      exec: (command, options) => (sandbox.execToEnd ?? sandbox.exec).call(sandbox, this.#ref, command, options),
    };
  }

  // --- stop ---

  /** Stops it with pre_stop and grace; the container's rules and policy say what comes then. */
  stopWithGrace(message: string, graceMs = this.#context.state.graceMs): void {
    const deadline = this.#context.clock.monotonic() + graceMs;
    this.stop({ deadline, holdSignal: false, force: false }, message);
  }

  /** Stops it for another instance, whatever the restart policy, and without back-off. */
  stopToStartAgain(message: string): void {
    this.#container.markChanged();
    this.stopWithGrace(message);
  }

  /** Begins its stop, or changes one that is under way: a deadline only comes nearer, and force stays. */
  stop(order: StopOrder, message: string): void {
    const task = this.#stop;
    if (task !== undefined) {
      const deadline = Math.min(task.deadline, order.deadline);
      const force = task.force || order.force;
      if (deadline === task.deadline && task.holdSignal === order.holdSignal && task.force === force) return;
      Object.assign(task, { deadline, holdSignal: order.holdSignal, force });
      task.changed.fire();
      return;
    }
    this.#stop = { ...order, changed: new Pulse() };
    this.#container.notice("Normal", "Killing", message);
    this.#context.state.commit();
    this.#context.work.background(this.#runStop(this.#stop));
  }

  async #runStop(task: StopTask): Promise<void> {
    const hook = this.spec.hooks?.pre_stop;
    const { clock, logger, sandbox } = this.#context;
    await stopContainer(this, task, {
      clock,
      logger,
      sandbox,
      signal: this.#stopSignal(),
      preStop:
        hook === undefined || this.#container.own.preStopDone ? undefined : (signal) => this.#preStop(hook, signal),
      preStopDone: () => this.#container.preStopRan(),
    });
  }

  async #preStop(hook: Parameters<typeof runHook>[0], signal: AbortSignal): Promise<void> {
    try {
      await this.hook(hook, signal);
    } catch (thrown) {
      if (this.ended.aborted) return;
      this.#container.notice("Warning", "FailedPreStopHook", "PreStopHook failed");
      this.#context.logger.info({ container: this.spec.name, err: thrown }, "The pre_stop hook failed");
    }
  }

  #stopSignal(): number {
    const signal = this.spec.stop?.signal ?? this.#container.own.image?.config.stopSignal ?? "SIGTERM";
    const number = signalNumber(signal);
    if (number === undefined)
      this.#context.logger.warn({ container: this.spec.name, signal }, "Unknown stop signal: SIGTERM is sent");
    return number ?? constants.signals.SIGTERM;
  }

  // --- end ---

  /**
   * Its command has ended, or could not be begun: kills what is left of it, learns all about its end and shows that.
   */
  async conclude(exit: InstanceExit): Promise<void> {
    const { state, work } = this.#context;
    this.#end(new Error("the container has ended"));
    const conclusion = await this.#learn(exit);
    // While this backend ends, the next one asks for this itself.
    if (!this.#isCurrent || work.isClosing) return;
    const termination = await this.#termination(exit, conclusion);
    // While the log was read, the sandbox may have been lost: the end is told, and another instance may run.
    if (!this.#isCurrent) return;
    const startError = conclusion.startError ?? exit.startError;
    if (startError !== undefined) this.#container.notice("Warning", "Failed", `Error: ${startError}`);
    this.drop();
    this.#container.exited(termination);
    if (startError !== undefined) this.#container.showFailedStart("RunContainerError", startError);
    state.commitForSure();
    state.changed.fire();
    this.#context.replan();
  }

  async #learn(exit: InstanceExit): Promise<ContainerConclusion> {
    const { work } = this.#context;
    const sandbox = this.#context.sandbox();
    if (sandbox === undefined) return {};
    await this.#killAll(sandbox);
    // The shim writes the last of the log when no process holds the container's output any more.
    if (!exit.lost && this.#watch !== undefined) await this.#drained();
    if (work.isClosing) return {};
    return await conclude(this.#context, sandbox, this.#ref, exit);
  }

  async #killAll(sandbox: Sandbox): Promise<void> {
    const { work, clock, logger } = this.#context;
    while (this.#context.sandbox() === sandbox && !work.isClosing) {
      try {
        await sandbox.kill(this.#ref);
        return;
      } catch (thrown) {
        logger.warn({ container: this.spec.name, err: thrown }, "Something of the container still runs");
        await pause(clock, MIN_KILL_WAIT_MS, work.closing);
      }
    }
  }

  /** Resolves when the last of the log is written, or that takes too long. */
  async #drained(): Promise<void> {
    const late = Promise.withResolvers<void>();
    const cancel = this.#context.clock.after(LOG_DRAIN_MS, late.resolve);
    await Promise.race([this.#gone.promise, late.promise]);
    cancel();
  }

  async #termination(exit: InstanceExit, conclusion: ContainerConclusion): Promise<ContainerTermination> {
    const exitCode = conclusion.startError !== undefined ? START_ERROR_EXIT : (conclusion.exitCode ?? exit.exitCode);
    const startError = conclusion.startError ?? exit.startError;
    const message =
      startError ??
      (exit.lost
        ? "The container could not be located"
        : await this.#terminationMessage(exitCode, conclusion.terminationMessage));
    return terminationOf(this.#ref, exit, conclusion, message);
  }

  async #terminationMessage(exitCode: number, file: string | undefined): Promise<string> {
    const text = Buffer.from(file ?? "")
      .subarray(-MAX_TERMINATION_MESSAGE_BYTES)
      .toString();
    if (text !== "" || exitCode === 0 || this.spec.termination_message?.policy !== "fallback_to_logs") return text;
    return await logTail(this.#ref.dir, FALLBACK_LOG.lines, FALLBACK_LOG.bytes).catch(() => "");
  }
}

/** The end of an instance whose sandbox is gone: what its keeper wrote down, and an earlier backend if it asked. */
export function recordedTermination(ref: ContainerRef, exit: RecordedExit): ContainerTermination {
  const conclusion = keptConclusion(ref);
  return terminationOf(
    ref,
    exit,
    conclusion,
    conclusion.startError ?? exit.startError ?? conclusion.terminationMessage,
  );
}

function terminationOf(
  { id }: ContainerRef,
  exit: RecordedExit,
  { exitCode, startError, oomKilled }: ContainerConclusion,
  message: string | undefined,
): ContainerTermination {
  const why = startError ?? exit.startError;
  const code = startError === undefined ? (exitCode ?? exit.exitCode) : START_ERROR_EXIT;
  return {
    exit_code: code,
    ...(exit.signal === undefined ? {} : { signal: exit.signal }),
    reason: endReason(code, { startError: why, lost: exit.lost, oomKilled }),
    ...(message ? { message } : {}),
    ...(oomKilled ? { oom_killed: true } : {}),
    ...(exit.startedAt === undefined ? {} : { started_at: new Date(exit.startedAt).toISOString() }),
    finished_at: new Date(exit.finishedAt).toISOString(),
    id,
  };
}

function endReason(
  exitCode: number,
  how: { startError: string | undefined; lost: boolean | undefined; oomKilled: boolean | undefined },
): string {
  if (how.startError !== undefined) return "StartError";
  if (how.lost) return "ContainerStatusUnknown";
  if (how.oomKilled) return "OOMKilled";
  return exitCode === 0 ? "Completed" : "Error";
}
