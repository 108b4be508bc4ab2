/**
 * The step that writes a pod's status: what became of it, what of it the API server does not take, and what follows
 * from it.
 */
import type { Pod } from "../kube/wire.ts";
import { ANNOTATIONS } from "./api-reactions.ts";
import type { Action } from "./decision.ts";
import { deferralEnd } from "./deferred-resizes.ts";
import type { Outcome } from "./reconciler-options.ts";
import { payStatus, withUnwritable } from "./status-write.ts";
import type { Verdict } from "./status/input.ts";
import { reported, type StepContext } from "./step-context.ts";
import { newTerminations } from "./terminations.ts";

/** Reason of the events that say what the API server does not take. */
const STATUS_REFUSED = "FailedStatusUpdate";

export class StatusStep {
  readonly #context: StepContext;
  readonly #announce: (pod: Pod, verdict: Verdict) => void;

  /** @param announce called when the end that a verdict means has been written */
  constructor(context: StepContext, announce: (pod: Pod, verdict: Verdict) => void) {
    this.#context = context;
    this.#announce = announce;
  }

  /** Undefined means: observe and plan again. @throws what is to be tried again */
  async write(
    uid: string,
    pod: Pod,
    { patch, annotations, verdict }: Extract<Action, { do: "status" }>,
    signal: AbortSignal,
  ): Promise<Outcome | undefined> {
    this.#context.guard?.();
    const cachedBefore = this.#context.copies.cachedVersion(uid);
    const begun = this.#context.clock.monotonic();
    const fields = { ...patch, ...(annotations && { [ANNOTATIONS]: annotations }) };
    const result = await this.#context.api.writeStatus(pod, patch, annotations, signal);
    const { unwritable, statusPaidUntil, statusDeniedSince } = this.#context.records.memory(uid);
    switch (result.kind) {
      case "written": {
        this.#context.copies.learn(uid, result.pod, cachedBefore);
        const now = this.#context.clock.monotonic();
        // A server that drops a field that it does not know takes a write that changes nothing.
        const isFutile = result.pod.metadata!.resourceVersion === pod.metadata!.resourceVersion;
        this.#context.records.update(uid, {
          statusPaidUntil: payStatus(statusPaidUntil, now),
          statusDeniedSince: undefined,
          ...(isFutile && { unwritable: withUnwritable(unwritable, fields, Object.keys(fields)) }),
        });
        if (verdict !== undefined) this.#announce(pod, verdict);
        this.#context.hooks?.onStatusWritten?.((now - begun) / 1000);
        for (const each of newTerminations(pod.status, result.pod.status))
          this.#context.hooks?.onTerminated?.(each, pod);
        const deferral = deferralEnd(pod, result.pod, this.#context.clock.now());
        if (deferral !== undefined) this.#context.hooks?.onDeferralEnded?.(deferral);
        if (patch["phase"] === "Running") this.#measureStart(uid, pod);
        return undefined;
      }
      case "stale":
        this.#context.copies.learn(uid, result.pod, cachedBefore);
        return undefined;
      case "gone":
        // The watch will say so.
        return { kind: "after", ms: 1_000 };
      case "refused": {
        const without = `The API server refuses the status of this pod, which is written without ${result.fields.join(", ")}`;
        this.#context.event(pod, { type: "Warning", reason: STATUS_REFUSED, message: `${without}: ${result.message}` });
        this.#context.records.update(uid, { unwritable: withUnwritable(unwritable, fields, result.fields) });
        return undefined;
      }
      case "denied":
        this.#context.records.update(uid, { statusDeniedSince: statusDeniedSince ?? this.#context.clock.monotonic() });
        throw reported(
          this.#context,
          pod,
          STATUS_REFUSED,
          "The API server does not take the status of this pod",
          result.error,
        );
    }
  }

  #measureStart(uid: string, pod: Pod): void {
    const seenAt = this.#context.records.of(uid).firstLook;
    const created = pod.metadata?.creationTimestamp;
    if (seenAt === undefined || this.#context.hooks?.onRunning === undefined) return;
    this.#context.records.of(uid).firstLook = undefined;
    const sinceSeen = (this.#context.clock.monotonic() - seenAt) / 1000;
    const sinceCreated = created === undefined ? sinceSeen : (this.#context.clock.now() - Date.parse(created)) / 1000;
    const observed = this.#context.machines.observe(this.#context.machineId(uid));
    // The backend's own times, so that its clock need not agree with this one.
    const started = observed.kind === "found" ? Date.parse(observed.machine.started_at ?? "") : Number.NaN;
    const boot = observed.kind === "found" ? (started - Date.parse(observed.machine.created_at)) / 1000 : 0;
    this.#context.hooks.onRunning({
      sinceSeen,
      sinceCreated: Math.max(0, sinceCreated),
      withoutBoot: Math.max(0, sinceSeen - (Number.isNaN(boot) ? 0 : boot)),
    });
  }
}
