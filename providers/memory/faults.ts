/**
 * Faults that the memory provider can be told to have, one per call. They are the ones that a network and a backend
 * have.
 */
import {
  type Clock,
  ProviderError,
  type ProviderErrorCode,
  type Random,
  untilAborted,
} from "../../src/provider/kit/index.ts";

export type Operation =
  | "getInfo"
  | "createPod"
  | "getPod"
  | "getPods"
  | "stopPod"
  | "deletePod"
  | "getLogs"
  | "updatePod"
  | "watchPods"
  | "getCapacity"
  | "getStats"
  | "exec"
  | "attach"
  | "portForward"
  | "createVolume"
  | "getVolume"
  | "listVolumes"
  | "resizeVolume"
  | "deleteVolume"
  | "reserveVolume"
  | "releaseVolume"
  | "getVolumeCapacity"
  | "createImage"
  | "getImage"
  | "listImages"
  | "deleteImage"
  | "putPodRanges"
  | "getPodRanges"
  | "deletePodRanges"
  | "putServices";

export type Fault =
  /** Nothing is done. */
  | { kind: "fail"; code: ProviderErrorCode; retryAfterMs?: number }
  /** Done, but the reply is lost. */
  | { kind: "lost" }
  /** The call fails now and is done later all the same, as a request that sat in a proxy. */
  | { kind: "late"; afterMs: number }
  /** No reply until the caller gives up; nothing is done. */
  | { kind: "hang" }
  /** Done after a while. */
  | { kind: "slow"; afterMs: number };

/** Asked before every call. */
export type FaultPlan = (operation: Operation, id: string | undefined) => Fault | undefined;

/** Each entry answers one call of its operation, in order; then all goes well. */
export function scriptedFaults(script: readonly { operation: Operation; fault: Fault; id?: string }[]): FaultPlan {
  const left = [...script];
  return (operation, id) => {
    const at = left.findIndex((entry) => entry.operation === operation && (entry.id === undefined || entry.id === id));
    return at < 0 ? undefined : left.splice(at, 1)[0]!.fault;
  };
}

/** Every call of the operations has `fault` with this probability. */
export function randomFaults(options: {
  random: Random;
  probability: number;
  faults: readonly Fault[];
  operations?: readonly Operation[] | undefined;
}): FaultPlan {
  return (operation) => {
    if (options.operations?.includes(operation) === false || options.random() >= options.probability) return undefined;
    return options.faults[Math.floor(options.random() * options.faults.length)];
  };
}

/** Runs `effect` as the plan wants it. */
export async function underFault<T>(
  fault: Fault | undefined,
  effect: () => T | Promise<T>,
  clock: Clock,
  signal: AbortSignal,
): Promise<T> {
  if (fault === undefined) return effect();
  switch (fault.kind) {
    case "fail":
      throw new ProviderError(fault.code, `injected fault: ${fault.code}`, { retryAfterMs: fault.retryAfterMs });
    case "lost":
      await effect();
      throw new ProviderError("unavailable", "injected fault: the reply was lost");
    case "late":
      clock.after(fault.afterMs, () => void settle(effect));
      throw new ProviderError("unavailable", "injected fault: the request is still under way");
    case "hang":
      await untilAborted(signal);
      throw new ProviderError("unavailable", "injected fault: no reply", { cause: signal.reason });
    case "slow":
      await clock.sleep(fault.afterMs, signal);
      return effect();
  }
}

/** The caller has already seen the call fail; how it really ended is ignored. */
async function settle(effect: () => unknown): Promise<void> {
  await Promise.resolve()
    .then(effect)
    .catch(() => {});
}
