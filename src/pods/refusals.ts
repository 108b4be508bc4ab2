/**
 * What becomes of a pod that cannot run here, so that its controller makes no storm of it. A kubelet fails such a pod.
 * Controllers that replace a failed pod at once then make another, the scheduler, which knows nothing of the reason,
 * binds it to this node again, and so on, twenty times a second. Pure but for the memory of `OwnerBackoff`.
 */
import { controllerOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { isDaemonSetPod } from "../podspec/admission/admission.ts";
import type { Clock } from "../util/clock.ts";
import { doubledMs } from "../util/doubled.ts";

/**
 * - `fail`  as a kubelet does: no controller replaces it at once
 * - `hold`  it stays Pending: another pod of the same template could not run here either
 * - `pace`  the first fails, so that its controller sees that and the scheduler may choose better; its replacements
 *   fail, or are
 *           lost, later and later
 */
type RefusalPolicy = "fail" | "hold" | "pace";

type Owner = NonNullable<ReturnType<typeof controllerOf>>;

/** Its controller backs off by itself, and gives up at last (backoffLimit). */
const isJob = (owner: Owner) => owner.kind === "Job" && owner.apiVersion.startsWith("batch/");
/** Their pods are all alike and never meant to end, so one that stays Pending says best what is wrong. */
const REPLACES_AT_ONCE = ["apps/ReplicaSet", "apps/StatefulSet", "/ReplicationController"];

/** kubelet's reasons that are about this moment on this node rather than about the pod (lifecycle/predicate.go). */
const PASSING = new Set([
  "NodeAffinity",
  "NodeName",
  "NodePorts",
  "TaintToleration",
  "UnexpectedAdmissionError",
  "MachineLost",
]);
const isPassing = (reason: string) => reason.startsWith("OutOf") || PASSING.has(reason);

/** @param reason why the pod cannot run here, as its status would say */
export function refusalPolicy(pod: Pod, reason: string): RefusalPolicy {
  const owner = controllerOf(pod);
  if (owner === undefined || isJob(owner)) return "fail";
  // Its controller backs off by itself (failedPodsBackoff), but never gives up.
  if (isDaemonSetPod(pod)) return isPassing(reason) ? "fail" : "hold";
  const group = owner.apiVersion.includes("/") ? owner.apiVersion.slice(0, owner.apiVersion.indexOf("/")) : "";
  return !isPassing(reason) && REPLACES_AT_ONCE.includes(`${group}/${owner.kind}`) ? "hold" : "pace";
}

interface Rounds {
  count: number;
  /**
   * When the present round began: pods that were there by then belong to it, and need not wait. Monotonic, as is
   * `until`.
   */
  since: number;
  /** When the next round may begin. */
  until: number;
}

/**
 * How long pods of one owner wait before they may do what its earlier ones failed at. Failures come in rounds: all pods
 * of an owner that were there when a round began are of it; those that came later, their replacements, wait for the
 * next, twice as long each time.
 */
export class OwnerBackoff {
  readonly #options: { clock: Clock; firstMs: number; maxMs: number; forgetMs: number; freeRounds: number };
  readonly #rounds = new Map<string, Rounds>();

  /**
   * @param options `freeRounds`: rounds in which no pod waits; `forgetMs`: a quiet time after which an owner begins
   *   again
   */
  constructor(options: {
    clock: Clock;
    firstMs: number;
    maxMs: number;
    forgetMs: number;
    freeRounds?: number | undefined;
  }) {
    this.#options = { ...options, freeRounds: options.freeRounds ?? 0 };
  }

  /** Milliseconds that a pod of the owner has to wait; 0: none. `seenAt`: when it was first seen, monotonic. */
  delay(owner: string, seenAt: number): number {
    const rounds = this.#present(owner);
    if (rounds === undefined || seenAt <= rounds.since) return 0;
    return Math.max(0, rounds.until - this.#options.clock.monotonic());
  }

  /** A pod of the owner failed: begins the next round unless it is of the present one. */
  failed(owner: string, seenAt: number): void {
    const now = this.#options.clock.monotonic();
    const { firstMs, maxMs, freeRounds } = this.#options;
    const before = this.#present(owner);
    if (before !== undefined && seenAt <= before.since) return;
    const count = (before?.count ?? 0) + 1;
    const doublings = count - 1 - freeRounds;
    const pauseMs = doublings < 0 ? 0 : doubledMs({ first: firstMs, max: maxMs }, doublings);
    this.#rounds.set(owner, { count, since: now, until: now + pauseMs });
    if (this.#rounds.size > MANY_OWNERS) this.#forgetQuiet();
  }

  #present(owner: string): Rounds | undefined {
    const rounds = this.#rounds.get(owner);
    return rounds !== undefined && this.#isQuiet(rounds) ? undefined : rounds;
  }

  #isQuiet({ until }: Rounds): boolean {
    return this.#options.clock.monotonic() > until + this.#options.forgetMs;
  }

  /** Tenants can make any number of owners: what is remembered of them is bounded. */
  #forgetQuiet(): void {
    for (const [owner, rounds] of this.#rounds) if (this.#isQuiet(rounds)) this.#rounds.delete(owner);
    for (const owner of this.#rounds.keys()) {
      if (this.#rounds.size <= MANY_OWNERS) return;
      this.#rounds.delete(owner);
    }
  }
}

const MANY_OWNERS = 10_000;
