/** The conditions of a Deployment: when they change, and what they keep of before. */
import type { Json } from "../objects/object.ts";

export interface DeploymentStatus {
  replicas: number;
  updatedReplicas: number;
  readyReplicas: number;
  availableReplicas: number;
  conditions: Json[];
  [field: string]: Json;
}

export const withoutCondition = (status: DeploymentStatus, type: string): DeploymentStatus => ({
  ...status,
  conditions: status.conditions.filter((c) => c.type !== type),
});

/**
 * A condition that says the same as before stays as it was; one of the same status keeps the time since when it has it.
 */
function setCondition(status: DeploymentStatus, next: Json, now: string): DeploymentStatus {
  const before = status.conditions.find(({ type }) => type === next.type);
  if (before?.status === next.status && before.reason === next.reason) return status;
  const lastTransitionTime = before?.status === next.status ? before.lastTransitionTime : now;
  const others = status.conditions.filter(({ type }) => type !== next.type);
  return { ...status, conditions: [...others, { ...next, lastUpdateTime: now, lastTransitionTime }] };
}

export function withAvailability(status: DeploymentStatus, isAvailable: boolean, now: string): DeploymentStatus {
  const condition = isAvailable
    ? { status: "True", reason: "MinimumReplicasAvailable", message: "Deployment has minimum availability." }
    : {
        status: "False",
        reason: "MinimumReplicasUnavailable",
        message: "Deployment does not have minimum availability.",
      };
  return setCondition(status, { type: "Available", ...condition }, now);
}

/** @param renew write it also when it says the same: the time of its last update counts towards the deadline */
export function setProgress(
  status: Json,
  condition: { status: string; reason: string; message: string },
  now: string,
  renew: boolean,
): DeploymentStatus {
  const next = { type: "Progressing", ...condition };
  const whole: DeploymentStatus = { ...status, conditions: status.conditions ?? [] };
  if (!renew) return setCondition(whole, next, now);
  const before = whole.conditions.find(({ type }) => type === "Progressing");
  const lastTransitionTime = before?.status === "True" ? before.lastTransitionTime : now;
  const others = withoutCondition(whole, "Progressing");
  return { ...others, conditions: [...others.conditions, { ...next, lastUpdateTime: now, lastTransitionTime }] };
}
