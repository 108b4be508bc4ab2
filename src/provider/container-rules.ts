/**
 * Rules that every provider keeps which runs containers by itself, as a kubelet does: in which order they come, whether
 * and when one runs again, and what is filled in before it starts. Pure functions of the specification.
 */
import { formatDuration } from "../resources/duration.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec, RestartPolicy } from "./machine.ts";
import { formatOwner } from "./owner.ts";

export interface NamedContainer {
  spec: ContainerSpec;
  kind: ContainerState["kind"];
}

/** All containers in start order: init, main, ephemeral. */
export function containersOf(spec: MachineSpec): NamedContainer[] {
  return [
    ...(spec.init_containers ?? []).map((container) => ({ spec: container, kind: "init" as const })),
    ...spec.containers.map((container) => ({ spec: container, kind: "main" as const })),
    ...(spec.ephemeral_containers ?? []).map((container) => ({ spec: container, kind: "ephemeral" as const })),
  ];
}

/** A sidecar is an init container that stays. */
export function isSidecar(spec: ContainerSpec, kind: ContainerState["kind"]): boolean {
  return kind === "init" && spec.restart_policy === "always";
}

/**
 * What a container that has yet to start waits for: kubelet says PodInitializing while init containers come first
 * (pkg/kubelet/kubelet_pods.go: convertToAPIContainerStatuses).
 */
export function firstWaitingReason(kind: ContainerState["kind"], spec: MachineSpec): string {
  const hasInit = (spec.init_containers?.length ?? 0) > 0;
  return hasInit && kind !== "ephemeral" ? "PodInitializing" : "ContainerCreating";
}

const DEFAULT_GRACE_S = 30;

/** Milliseconds between the stop signal and SIGKILL of a stop that names none. */
export function graceMs(spec: Pick<MachineSpec, "termination_grace_s">): number {
  return (spec.termination_grace_s ?? DEFAULT_GRACE_S) * 1000;
}

/** The container with the machine's addresses, first the main one, in place of the tokens that stand for them. */
export function withAddresses(
  container: ContainerSpec,
  tokens: MachineSpec["address_tokens"],
  addresses: readonly string[],
): ContainerSpec {
  if (tokens === undefined) return container;
  const fill = (text: string) =>
    text.replaceAll(tokens.pod_ips, addresses.join(",")).replaceAll(tokens.pod_ip, addresses[0] ?? "");
  const { env, command, args } = container;
  return {
    ...container,
    ...(env && { env: env.map((variable) => ({ ...variable, value: fill(variable.value) })) }),
    ...(command && { command: command.map(fill) }),
    ...(args && { args: args.map(fill) }),
  };
}

/** Rules first, in order; then the policy (pkg/kubelet/container/helpers.go: ShouldContainerBeRestarted). */
export function restartDecision(
  container: ContainerSpec,
  policy: RestartPolicy,
  exitCode: number,
): "no" | "restart" | "restart_all" {
  for (const rule of container.restart_rules ?? []) {
    const listed = rule.exit_codes.values.includes(exitCode);
    if (listed === (rule.exit_codes.operator === "in")) return rule.action;
  }
  if (policy === "never" || (policy === "on_failure" && exitCode === 0)) return "no";
  return "restart";
}

const BACKOFF_INITIAL_MS = 10_000;
const BACKOFF_MAX_MS = 300_000;

interface BackoffLimits {
  initialMs: number;
  maxMs: number;
}

/** The specification's, else a kubelet's. */
export function backoffLimits({ backoff }: Pick<MachineSpec, "backoff">): BackoffLimits {
  return { initialMs: backoff?.initial_ms ?? BACKOFF_INITIAL_MS, maxMs: backoff?.max_ms ?? BACKOFF_MAX_MS };
}

/** Restart back-off as client-go's Backoff keeps it. Times are wall-clock milliseconds. */
export interface RestartBackoff {
  ms: number;
  updatedAt: number;
}

/**
 * When a container that has ended runs again: not before `until`, `ms` after its end; or now, with `backoff` to be kept
 * for its next end. kubelet's doBackOff on client-go's Backoff: the first restart is immediate, then 10 s doubling to
 * 300 s after the end of the last instance; an instance that ended more than twice the maximum after the last update
 * resets it.
 *
 * @param now and `finishedAt` in wall-clock milliseconds
 */
export function nextRestart(
  ended: { backoff?: RestartBackoff | undefined; finishedAt?: number | undefined },
  limits: BackoffLimits,
  now: number,
): { ms: number; until: number } | { backoff: RestartBackoff } {
  const { backoff, finishedAt = now } = ended;
  if (backoff === undefined || finishedAt - backoff.updatedAt > 2 * limits.maxMs)
    return { backoff: { ms: limits.initialMs, updatedAt: now } };
  const until = finishedAt + backoff.ms;
  if (isAhead(until, backoff.ms, now)) return { ms: backoff.ms, until };
  return { backoff: { ms: Math.min(backoff.ms * 2, limits.maxMs), updatedAt: now } };
}

/**
 * Whether a wait of that length is not over yet. One that would take longer than it is was begun before the clock was
 * set back.
 */
export function isAhead(until: number, ms: number, now: number): boolean {
  return now < until && until - now <= ms;
}

/** What a kubelet says of a container that waits for its restart: in its status (CrashLoopBackOff), and as an event. */
export function backOffTexts(
  { id, labels }: Pick<Machine, "id" | "labels">,
  container: string,
  ms: number,
): { message: string; event: string } {
  const pod = formatOwner(id, labels);
  return {
    message: `back-off ${formatDuration(ms)} restarting failed container=${container} pod=${pod}`,
    event: `Back-off restarting failed container ${container} in pod ${pod}`,
  };
}
