/**
 * What becomes of a node that was taken out of the configuration: it is cordoned and served until nobody has anything
 * on it, its Node is deleted, and what was bound to it nevertheless (DaemonSet pods) goes with the Node, machines and
 * all. Nothing is ever stopped for having been taken out of a file.
 */
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath } from "../kube/paths.ts";
import { isTerminal } from "../kube/pod.ts";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { NodeAgent } from "./node-agent.ts";
import { isMirrorPod } from "./static-pod-file.ts";

const LOOK_MS = 2_000;
/** A drain may take long: what it waits for is said again. */
const REMIND_MS = 300_000;

interface LeavingOptions {
  agent: NodeAgent;
  /** Tried in this order: a node may not delete its own Node, and the process may have the right. */
  kubes: readonly Kube[];
  clock: Clock;
  logger: Logger;
}

/** Resolves with true when nothing is left of the node, with false when the signal aborts. Needs the agent to run. */
export async function leave(options: LeavingOptions, signal: AbortSignal): Promise<boolean> {
  const { agent, clock, logger } = options;
  const { name } = agent;
  agent.controller.isLeaving = true;
  let saidAt = -Infinity;
  let said = "";
  const say = (what: string, fields: object, message: string) => {
    if (said === what && clock.monotonic() - saidAt < REMIND_MS) return;
    [said, saidAt] = [what, clock.monotonic()];
    logger.warn(fields, message);
  };
  while (!signal.aborted) {
    const { pods } = agent;
    const left = stillUsedBy(agent);
    if (isEmpty(agent) && (!agent.acts || (agent.controller.isGone && (await agent.releaseRange(signal))))) return true;
    if (!agent.acts || !pods.store.synced) {
      // A standby leaves the work to the leader.
    } else if (left.length > 0) {
      const cure = `kubectl drain ${name} --ignore-daemonsets --delete-emptydir-data`;
      const some = left.slice(0, 10);
      say(
        "pods",
        { pods: left.length, some, cure },
        "The node was taken out of the configuration: it is served until it is drained",
      );
    } else if (!agent.controller.isGone && !(await deleteNode(options, signal))) {
      const cure = `vmlet node remove ${name}`;
      say(
        "node",
        { cure },
        "The node that was taken out of the configuration is drained; this agent may not delete its Node",
      );
    } else if (agent.controller.isGone) {
      const machines = [...pods.machines.ids()].slice(0, 10);
      say("rest", { pods: pods.store.size, machines }, "The Node is deleted; what was bound to it is being taken away");
    }
    await pause(clock, LOOK_MS, signal);
  }
  return false;
}

/** Pods that a drain would take away. */
function stillUsedBy({ pods }: NodeAgent): string[] {
  return pods.store
    .list()
    .filter((pod) => !isTerminal(pod) && !isMirrorPod(pod))
    .filter(({ metadata }) => !metadata?.ownerReferences?.some(({ kind }) => kind === "DaemonSet"))
    .map(({ metadata }) => `${metadata?.namespace}/${metadata?.name}`);
}

/** Neither the API server nor the backend has anything of the node. */
function isEmpty({ pods: { store, machines, working } }: NodeAgent): boolean {
  return store.synced && machines.synced && store.size === 0 && working === 0 && machines.ids().next().done === true;
}

/** @returns false when nobody lets it; a failure is tried again */
async function deleteNode({ agent, kubes, logger }: LeavingOptions, signal: AbortSignal): Promise<boolean> {
  const { uid } = agent.controller;
  if (uid === undefined) return true;
  for (const kube of kubes) {
    try {
      await kube.request({ method: "DELETE", path: nodePath(agent.name), body: { preconditions: { uid } }, signal });
      logger.info({}, "The Node of a node that was taken out of the configuration was deleted");
      return true;
    } catch (thrown) {
      if (isForbidden(thrown)) continue;
      if (!isNotFound(thrown) && !signal.aborted)
        logger.warn({ err: thrown }, "The Node could not be deleted and will be tried again");
      return true;
    }
  }
  return false;
}
