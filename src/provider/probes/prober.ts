/**
 * When a probe's actions run and what their results mean: delay, period and thresholds, as pkg/kubelet/prober/worker.go
 * counts them. The actions themselves are in `actions.ts`.
 */
import type { Probe } from "../machine.ts";
import type { Clock } from "../../util/clock.ts";
import type { ProbeTally } from "../provider.ts";
import type { ProbeResult } from "./actions.ts";

export type ProbeKind = ProbeTally["probe"];

export interface ProberEvents {
  /** The verdict changed, or for startup and liveness was reached. */
  verdict(kind: ProbeKind, healthy: boolean): void;
  /** One attempt that did not succeed: kubelet's event reason and text. */
  complaint(reason: "Unhealthy" | "ProbeWarning", message: string): void;
}

const TITLES: Record<ProbeKind, string> = { startup: "Startup", readiness: "Readiness", liveness: "Liveness" };
/** kubelet tries an action that errored this often within one turn. */
const MAX_ERRORS = 3;

/** One probe of one container instance, from `start` until `stop`. */
export class Prober {
  readonly #kind: ProbeKind;
  readonly #probe: Probe;
  readonly #clock: Clock;
  readonly #attempt: () => Promise<ProbeResult>;
  readonly #events: ProberEvents;
  readonly #tally: ProbeTally;
  #verdict: boolean | undefined;
  #last: boolean | undefined;
  #run = 0;
  #stopped = false;
  #cancel: (() => void) | undefined;

  constructor(
    kind: ProbeKind,
    probe: Probe,
    clock: Clock,
    attempt: () => Promise<ProbeResult>,
    events: ProberEvents & {
      /** What is known before the first attempt. */
      initial?: boolean | undefined;
    },
  ) {
    this.#kind = kind;
    this.#tally = { probe: kind, successful: 0, failed: 0, unknown: 0 };
    this.#probe = probe;
    this.#clock = clock;
    this.#attempt = attempt;
    this.#events = events;
    this.#verdict = events.initial;
  }

  /**
   * The initial delay counts from the container's start.
   *
   * @param runningSince wall-clock milliseconds, by a clock that may be another one's: a start that lies ahead is now
   */
  start(runningSince: number): void {
    const now = this.#clock.now();
    const first = Math.min(runningSince, now) + this.#probe.initial_delay_s * 1000 - now;
    this.#cancel = this.#clock.after(Math.max(0, first), () => void this.#turn());
  }

  /** What came out until now. */
  get tally(): Readonly<ProbeTally> {
    return this.#tally;
  }

  stop(): void {
    this.#stopped = true;
    this.#cancel?.();
  }

  async #turn(): Promise<void> {
    const begun = this.#clock.monotonic();
    let result = await this.#attempt();
    for (let tries = 1; result.outcome === "unknown" && tries < MAX_ERRORS && !this.#stopped; tries++)
      result = await this.#attempt();
    if (this.#stopped) return;
    this.#judge(result);
    if (this.#stopped) return;
    const spent = this.#clock.monotonic() - begun;
    this.#cancel = this.#clock.after(Math.max(0, this.#probe.period_s * 1000 - spent), () => void this.#turn());
  }

  #judge(result: ProbeResult): void {
    const title = TITLES[this.#kind];
    if (result.outcome === "unknown") {
      this.#tally.unknown++;
      // Neither good nor bad: the verdict stands.
      this.#events.complaint("Unhealthy", `${title} probe errored and resulted in unknown state: ${result.output}`);
      return;
    }
    if (result.outcome === "warning")
      this.#events.complaint("ProbeWarning", `${title} probe warning: ${result.output}`);
    if (result.outcome === "failure") this.#events.complaint("Unhealthy", `${title} probe failed: ${result.output}`);
    const good = result.outcome !== "failure";
    this.#tally[good ? "successful" : "failed"]++;
    this.#run = good === this.#last ? this.#run + 1 : 1;
    this.#last = good;
    if (this.#run < (good ? this.#probe.success : this.#probe.failure)) return;
    if (this.#verdict === good) return;
    this.#verdict = good;
    // After a failed startup or liveness probe the container is killed: nothing to ask until the next instance.
    if (this.#kind !== "readiness" && (!good || this.#kind === "startup")) this.stop();
    this.#events.verdict(this.#kind, good);
  }
}
