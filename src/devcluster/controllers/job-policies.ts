/** What a Job's policies say of its pods (`pkg/controller/job/{pod_failure_policy,success_policy}.go`). */
import type { Json, StoredObject } from "../objects/object.ts";
import { parseIndexes } from "./indexes.ts";

interface Verdict {
  /** Why the whole Job fails, if it does. */
  failsJob?: string;
  /** Whether the failure counts towards `backoffLimit`. */
  counts: boolean;
  failsIndex: boolean;
}

/** What the policy makes of a failed pod: the first rule that matches decides. */
export function judgeFailure(policy: Json, pod: StoredObject): Verdict {
  for (const [index, rule] of ((policy?.rules ?? []) as Json[]).entries()) {
    const where = `${pod.metadata.namespace}/${pod.metadata.name}`;
    let cause: string;
    if (rule.onExitCodes) {
      const container = matchingContainer(pod.status, rule.onExitCodes);
      if (!container) continue;
      cause = `Container ${container.name} for pod ${where} failed with exit code ${container.state.terminated.exitCode}`;
    } else {
      const condition = pod.status?.conditions?.find((c: Json) =>
        rule.onPodConditions?.some((pattern: Json) => pattern.type === c.type && pattern.status === c.status),
      );
      if (!condition) continue;
      cause = `Pod ${where} has condition ${condition.type}`;
    }
    return {
      counts: rule.action !== "Ignore",
      failsIndex: rule.action === "FailIndex",
      ...(rule.action === "FailJob" && { failsJob: `${cause} matching ${rule.action} rule at index ${index}` }),
    };
  }
  return { counts: true, failsIndex: false };
}

function matchingContainer(status: Json, requirement: Json): Json {
  const all: Json[] = [...(status?.containerStatuses ?? []), ...(status?.initContainerStatuses ?? [])];
  return all.find(({ name, state }) => {
    const exitCode = state?.terminated?.exitCode as number | undefined;
    if (!exitCode || (requirement.containerName !== undefined && requirement.containerName !== name)) return false;
    return requirement.values.includes(exitCode) === (requirement.operator === "In");
  });
}

/** The rule by which enough has succeeded, in the words of the condition; undefined when none applies. */
export function succeedsBy(policy: Json, completions: number, succeeded: ReadonlySet<number>): string | undefined {
  if (succeeded.size === 0) return undefined;
  const matched = ((policy?.rules ?? []) as Json[]).findIndex((rule) => {
    if (rule.succeededIndexes === undefined) return succeeded.size >= (rule.succeededCount ?? Infinity);
    const wanted = parseIndexes(rule.succeededIndexes, completions);
    const reached = [...wanted].filter((index) => succeeded.has(index)).length;
    return wanted.size > 0 && reached >= (rule.succeededCount ?? wanted.size);
  });
  return matched < 0 ? undefined : `Matched rules at index ${matched}`;
}
