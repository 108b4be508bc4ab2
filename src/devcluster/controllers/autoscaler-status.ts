/** The status of an autoscaler while it is worked out. */
import type { Json, StoredObject } from "../objects/object.ts";

export class AutoscalerStatus {
  readonly #now: string;
  readonly #conditions: Json[];
  readonly #before: Json;
  /** As the API has it; undefined where it is left as it was. */
  currentReplicas: number | undefined;
  desiredReplicas: number | undefined;
  metrics: Json[] | undefined;
  isRescaled = false;

  /** @param now as the API writes times */
  constructor(autoscaler: StoredObject, now: string) {
    this.#before = autoscaler.status ?? {};
    this.#conditions = ((this.#before.conditions ?? []) as Json[]).map((condition) => ({ ...condition }));
    this.#now = now;
  }

  /** The time of its last transition is that of its status alone. */
  setCondition(
    type: "AbleToScale" | "ScalingActive" | "ScalingLimited",
    status: "True" | "False",
    { reason, message }: { reason: string; message: string },
  ): void {
    const known = this.#conditions.find((condition) => condition.type === type);
    const lastTransitionTime = known?.status === status ? known.lastTransitionTime : this.#now;
    const condition = { type, status, lastTransitionTime, reason, message };
    if (known) Object.assign(known, condition);
    else this.#conditions.push(condition);
  }

  toJson(): Json {
    const { lastScaleTime, currentReplicas = 0, desiredReplicas = 0, currentMetrics = null } = this.#before;
    const current = this.currentReplicas ?? currentReplicas;
    const scaledAt = this.isRescaled ? this.#now : lastScaleTime;
    return {
      ...(scaledAt && { lastScaleTime: scaledAt }),
      ...(current !== 0 && { currentReplicas: current }),
      desiredReplicas: this.desiredReplicas ?? desiredReplicas,
      // A target that is known has none when they were not looked at.
      currentMetrics: this.currentReplicas === undefined ? currentMetrics : (this.metrics ?? null),
      conditions: this.#conditions,
    };
  }
}
