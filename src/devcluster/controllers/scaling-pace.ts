/**
 * How fast an autoscaler may follow what it is told: the normalization of `pkg/controller/podautoscaler/horizontal.go`
 * with its memory of recommendations and of changes.
 */
import { millisecondsInSecond } from "date-fns/constants";
import type { Json } from "../objects/object.ts";

/** kube-controller-manager's `--horizontal-pod-autoscaler-downscale-stabilization`. */
const DOWNSCALE_STABILIZATION_SECONDS = 300;
/** Without a behaviour: twice as many at once, or four. */
const SCALE_UP_FACTOR = 2;
const SCALE_UP_MINIMUM = 4;

interface PaceInput {
  /** `spec.behavior` with its defaults; undefined where there is none. */
  behavior: Json;
  min: number;
  max: number;
  current: number;
  desired: number;
  /** Monotonic milliseconds. */
  now: number;
}

interface Pace {
  replicas: number;
  /** What the condition AbleToScale says. */
  able: Words;
  /** What the condition ScalingLimited says. */
  limit: Words & { isLimited: boolean };
}

interface Words {
  reason: string;
  message: string;
}

interface Limited extends Words {
  replicas: number;
}

const READY = { reason: "ReadyForNewScale", message: "recommended size matches current size" };
const UP_STABILIZED = {
  reason: "ScaleUpStabilized",
  message: "recent recommendations were lower than current one, applying the lowest recent recommendation",
};
const DOWN_STABILIZED = {
  reason: "ScaleDownStabilized",
  message: "recent recommendations were higher than current one, applying the highest recent recommendation",
};
const WITHIN = { reason: "DesiredWithinRange", message: "the desired count is within the acceptable range" };
const TOO_MANY = {
  reason: "TooManyReplicas",
  message: "the desired replica count is more than the maximum replica count",
};
const TOO_FEW = {
  reason: "TooFewReplicas",
  message: "the desired replica count is less than the minimum replica count",
};
const UP_LIMIT = {
  reason: "ScaleUpLimit",
  message: "the desired replica count is increasing faster than the maximum scale rate",
};
const DOWN_LIMIT = {
  reason: "ScaleDownLimit",
  message: "the desired replica count is decreasing faster than the maximum scale rate",
};

/** What one autoscaler remembers. Times are monotonic milliseconds. */
export class ScalingPace {
  #recommendations: { at: number; replicas: number }[];
  #changes: { at: number; by: number }[] = [];

  /** @param current the replicas at its first look, which count as recommended: it does not begin by taking away */
  constructor(current: number, now: number) {
    this.#recommendations = [{ at: now, replicas: current }];
  }

  /** How many replicas there may be now of those that are desired. Remembers what was desired. */
  follow(input: PaceInput): Pace {
    const { behavior, current, desired, now } = input;
    const upWindow = windowMs(behavior?.scaleUp, 0);
    const downWindow = windowMs(behavior?.scaleDown, DOWNSCALE_STABILIZATION_SECONDS);
    const longest = Math.max(upWindow, downWindow);
    this.#recommendations = this.#recommendations.filter(({ at }) => now - at <= longest);
    const recent = (window: number) =>
      this.#recommendations.filter(({ at }) => now - at < window).map(({ replicas }) => replicas);
    const lowest = Math.min(desired, ...recent(upWindow));
    const highest = Math.max(desired, ...recent(downWindow));
    const stabilized = behavior ? Math.min(Math.max(current, lowest), highest) : highest;
    this.#recommendations.push({ at: now, replicas: desired });

    const stabilizedBy = behavior && desired >= current ? UP_STABILIZED : DOWN_STABILIZED;
    const limited = behavior ? this.#byPolicies(input, stabilized) : byDefault(input, stabilized);
    const { replicas, reason, message } = limited;
    return {
      replicas,
      able: stabilized === desired ? READY : stabilizedBy,
      limit: { reason, message, isLimited: replicas !== stabilized },
    };
  }

  /** Remembers a change that was made. @param behavior as of `PaceInput` */
  changed(by: number, behavior: Json, now: number): void {
    if (!behavior) return;
    const periods = [behavior.scaleUp, behavior.scaleDown].flatMap(({ policies }) =>
      (policies as Json[]).map(({ periodSeconds }) => periodSeconds as number),
    );
    const longestMs = Math.max(0, ...periods) * millisecondsInSecond;
    this.#changes = this.#changes.filter(({ at }) => now - at < longestMs);
    this.#changes.push({ at: now, by });
  }

  #byPolicies({ behavior, min, max, current, now }: PaceInput, desired: number): Limited {
    if (desired > current) {
      const limit = Math.max(current, this.#limit(behavior.scaleUp, 1, current, now));
      if (desired > Math.min(max, limit))
        return max > limit ? { replicas: limit, ...UP_LIMIT } : { replicas: max, ...TOO_MANY };
    }
    if (desired < current) {
      const limit = Math.min(current, this.#limit(behavior.scaleDown, -1, current, now));
      if (desired < Math.max(min, limit))
        return min < limit ? { replicas: limit, ...DOWN_LIMIT } : { replicas: min, ...TOO_FEW };
    }
    return { replicas: desired, ...WITHIN };
  }

  /** How far the policies let it go in this direction, given what has changed within their periods. */
  #limit({ selectPolicy, policies }: Json, direction: 1 | -1, current: number, now: number): number {
    if (selectPolicy === "Disabled") return current;
    const proposals = (policies as Json[]).map(({ type, value, periodSeconds }) => {
      const recent = this.#changes.filter(({ at }) => now - at < periodSeconds * millisecondsInSecond);
      const before = current - recent.reduce((total, { by }) => total + by, 0);
      if (type === "Pods") return before + direction * value;
      // Rounded up on the way up, since it would else never leave a small number.
      const share = before * (1 + (direction * value) / 100);
      return direction > 0 ? Math.ceil(share) : Math.trunc(share);
    });
    // "Max" is the largest change, which is the smallest number on the way down.
    return (selectPolicy === "Min") === direction > 0 ? Math.min(...proposals) : Math.max(...proposals);
  }
}

const windowMs = (rules: Json, byDefault: number): number =>
  ((rules?.stabilizationWindowSeconds as number | undefined) ?? byDefault) * millisecondsInSecond;

function byDefault({ min, max, current }: PaceInput, desired: number): Limited {
  const limit = Math.max(SCALE_UP_FACTOR * current, SCALE_UP_MINIMUM);
  if (desired < min) return { replicas: min, ...TOO_FEW };
  if (desired > Math.min(max, limit))
    return max > limit ? { replicas: limit, ...UP_LIMIT } : { replicas: max, ...TOO_MANY };
  return { replicas: desired, ...WITHIN };
}
