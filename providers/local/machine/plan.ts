/**
 * What a machine's supervisor has to do next: pure functions of the spec, the record and the time
 * (pkg/kubelet/kuberuntime/kuberuntime_manager.go: computePodActions).
 */
import {
  backoffLimits,
  type ContainerSpec,
  containersOf,
  isAhead,
  isSidecar,
  type MachineSpec,
  nextRestart,
  restartDecision,
  type RestartPolicy,
} from "../../../src/provider/kit/index.ts";
import type { ContainerRecord, MachineRecord } from "./record.ts";

export type Action =
  | { do: "open" }
  /** Start a new instance. `backoff` is what the container's record becomes. */
  | { do: "start"; container: string; backoff?: ContainerRecord["backoff"] }
  /** Show that the container waits for its restart; nothing to do before `until`. */
  | { do: "back_off"; container: string; ms: number; until: number }
  /** pre_stop, and unless `holdSignal`, the stop signal. */
  | { do: "stop"; container: string; holdSignal: boolean }
  /** Nothing runs, nothing will: the machine has come to its end. */
  | { do: "end" }
  /** Nothing runs: forget the init containers' success and begin again; `newSandbox` also makes a new sandbox. */
  | { do: "start_over"; newSandbox: boolean }
  | { do: "restart_all" }
  | { do: "finish" };

/** What is under way already, so that it is not begun twice. */
interface Busy {
  opening: boolean;
  /** Containers whose start is under way, up to the end of post_start. */
  starting: ReadonlySet<string>;
}

interface Plan {
  actions: Action[];
  /** When to plan again though nothing has changed, wall-clock milliseconds. */
  wakeAt?: number;
}

export function plan(spec: MachineSpec, record: MachineRecord, busy: Busy, now: number): Plan {
  if (["stopped", "failed", "deleted"].includes(record.machine.state)) return { actions: [] };
  if (record.ending !== undefined || record.restarting !== undefined) return planStop(spec, record, busy);
  if (record.sandbox !== "open") return { actions: busy.opening ? [] : [{ do: "open" }] };
  return planStarts(spec, record, busy, now);
}

function runs(record: ContainerRecord): boolean {
  return record.phase === "running" || record.phase === "starting";
}

/**
 * All at once, sidecars' signals after the main containers' end and in reverse order
 * (pkg/kubelet/kuberuntime/kuberuntime_termination_order.go).
 */
function planStop(spec: MachineSpec, record: MachineRecord, busy: Busy): Plan {
  const all = containersOf(spec);
  const running = all.filter(({ spec: container }) => runs(record.containers[container.name]!));
  if (running.length === 0) {
    if (busy.opening || busy.starting.size > 0) return { actions: [] };
    if (record.ending !== undefined) return { actions: [{ do: "end" }] };
    return { actions: [{ do: "start_over", newSandbox: record.restarting!.reason === "SandboxChanged" }] };
  }
  const sidecars = running.filter(({ spec: container, kind }) => isSidecar(container, kind));
  const next = running.some(({ kind }) => kind === "main") ? undefined : sidecars.at(-1);
  return {
    actions: running.map((container) => ({
      do: "stop" as const,
      container: container.spec.name,
      holdSignal: isSidecar(container.spec, container.kind) && container !== next,
    })),
  };
}

function planStarts(spec: MachineSpec, record: MachineRecord, busy: Busy, now: number): Plan {
  const steps = new Steps(spec, record, busy, now);
  for (const container of spec.ephemeral_containers ?? []) {
    if (record.containers[container.name]!.phase === "new") steps.start(container);
  }
  const initDone = steps.init();
  if (initDone) steps.mains();
  return steps.result();
}

class Steps {
  readonly #spec: MachineSpec;
  readonly #record: MachineRecord;
  readonly #busy: Busy;
  readonly #now: number;
  readonly #actions: Action[] = [];
  #wakeAt: number | undefined;

  constructor(spec: MachineSpec, record: MachineRecord, busy: Busy, now: number) {
    this.#spec = spec;
    this.#record = record;
    this.#busy = busy;
    this.#now = now;
  }

  result(): Plan {
    const restartAll = this.#actions.some((action) => action.do === "restart_all");
    return {
      actions: restartAll ? [{ do: "restart_all" }] : this.#actions,
      ...(this.#wakeAt === undefined ? {} : { wakeAt: this.#wakeAt }),
    };
  }

  /** True when main containers may start. Once they may, only sidecars are looked after here. */
  init(): boolean {
    for (const container of this.#spec.init_containers ?? []) {
      const own = this.#record.containers[container.name]!;
      const sidecar = isSidecar(container, "init");
      if (runs(own)) {
        if (this.#record.initialized || (sidecar && this.#state(container.name).started)) continue;
        return false;
      }
      if (!sidecar) {
        const passed = own.phase === "exited" && this.#exitCode(container.name) === 0;
        if (this.#record.initialized || passed) continue;
      }
      if (own.phase === "new") this.#first(container);
      else if (!this.#restart(container, container.restart_policy ?? this.#spec.restart_policy)) {
        this.#actions.push({ do: "finish" });
        return false;
      }
      if (!this.#record.initialized) return false;
    }
    return true;
  }

  mains(): void {
    let alive = false;
    for (const container of this.#spec.containers) {
      const own = this.#record.containers[container.name]!;
      if (runs(own)) {
        alive = true;
      } else if (own.phase === "new") {
        alive = true;
        this.#first(container);
      } else if (this.#restart(container, container.restart_policy ?? this.#spec.restart_policy)) alive = true;
      // Those after it wait until it runs and its post_start has returned.
      if (this.#startsNow(container.name) || this.#busy.starting.has(container.name)) return;
    }
    if (!alive) this.#actions.push({ do: "finish" });
  }

  start(container: ContainerSpec, backoff?: ContainerRecord["backoff"]): void {
    if (this.#busy.starting.has(container.name)) return;
    const { retry } = this.#record.containers[container.name]!;
    if (retry !== undefined && isAhead(retry.at, retry.ms, this.#now)) this.#wake(retry.at);
    else this.#actions.push({ do: "start", container: container.name, backoff });
  }

  /** The first start since the machine began, or began again; then the back-off of the former instances counts. */
  #first(container: ContainerSpec): void {
    if (this.#record.containers[container.name]!.attempt < 0) this.start(container);
    else this.#startAfterBackoff(container);
  }

  #startAfterBackoff(container: ContainerSpec): void {
    if (this.#busy.starting.has(container.name)) return;
    const next = nextRestart(this.#record.containers[container.name]!, backoffLimits(this.#spec), this.#now);
    if ("until" in next) {
      this.#actions.push({ do: "back_off", container: container.name, ms: next.ms, until: next.until });
      this.#wake(next.until);
    } else this.start(container, next.backoff);
  }

  /** False when the container has come to its end for good. */
  #restart(container: ContainerSpec, policy: RestartPolicy): boolean {
    const decision = restartDecision(container, policy, this.#exitCode(container.name));
    if (decision === "no") return false;
    if (decision === "restart_all") {
      this.#actions.push({ do: "restart_all" });
      return true;
    }
    this.#startAfterBackoff(container);
    return true;
  }

  #startsNow(name: string): boolean {
    return this.#actions.some((action) => action.do === "start" && action.container === name);
  }

  #wake(at: number): void {
    this.#wakeAt = Math.min(this.#wakeAt ?? Infinity, at);
  }

  #state(name: string) {
    return this.#record.machine.containers.find((container) => container.name === name)!;
  }

  #exitCode(name: string): number {
    const state = this.#state(name);
    return (state.terminated ?? state.last)?.exit_code ?? 0;
  }
}
