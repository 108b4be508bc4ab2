/**
 * What a pod's spec says of the restart of its containers: policy of the pod, of a container, and rules by exit code.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { containersOf } from "../../kube/pod.ts";
import type { ContainerStatus, Pod } from "../../kube/wire.ts";
import type { SpecContainer } from "./input.ts";

interface RestartRule {
  readonly action: string;
  readonly exitCodes?: { readonly operator: string; readonly values?: readonly number[] };
}

/** kubelet: ContainerShouldRestart. Init containers under a pod policy of Always behave as OnFailure. */
export function shouldRestart(pod: Pod, c: SpecContainer, exitCode: number, kind: "init" | "main"): boolean {
  if (matchingRule(restartRules(c), exitCode)) return true;
  const policy = c.restartPolicy ?? pod.spec?.restartPolicy ?? "Always";
  if (policy === "Never") return false;
  if (policy === "OnFailure" || (kind === "init" && !isSidecar(c))) return exitCode !== 0;
  return true;
}

/** True when a container of the pod may restart all the others. */
export function hasRestartAllRules(pod: Pod): boolean {
  return containersOf(pod)
    .flatMap(restartRules)
    .some(({ action }) => action === "RestartAllContainers");
}

/** True when this container has ended in a way that restarts all of its pod. */
export function restartsAll(pod: Pod, { name, state }: ContainerStatus): boolean {
  const exitCode = state?.terminated?.exitCode;
  const container = containersOf(pod).find((each) => each.name === name);
  if (exitCode === undefined || container === undefined) return false;
  return matchingRule(restartRules(container), exitCode)?.action === "RestartAllContainers";
}

const restartRules = (c: SpecContainer): readonly RestartRule[] =>
  (c as { restartPolicyRules?: readonly RestartRule[] }).restartPolicyRules ?? [];

/** The first rule that fits decides. */
function matchingRule(rules: readonly RestartRule[], exitCode: number): RestartRule | undefined {
  return rules.find(
    ({ exitCodes }) => exitCodes && (exitCodes.values?.includes(exitCode) ?? false) === (exitCodes.operator === "In"),
  );
}
