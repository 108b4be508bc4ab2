/** One container of a pod as a machine's: its environment, command, probes, hooks and the like. */
import { formatPod } from "../../kube/pod.ts";
import type { Container, Pod } from "../../kube/wire.ts";
import type { ContainerPort, ContainerSpec, Probe, RestartPolicy } from "../../provider/machine.ts";
import { type Result, success, failure } from "../../util/result.ts";
import { type Budget, OverBudgetError, POD_LIMITS, shortened } from "../budget.ts";
import { effectiveSecurityContext, pickDefined } from "../security-context.ts";
import type { RenderContext } from "./context.ts";
import { containerEnvironment } from "./env.ts";
import { expandWords, lookUpIn } from "./expansion.ts";
import { renderHook, renderProbe } from "./handlers.ts";
import { containerResources } from "./machine-resources.ts";
import { renderDevices, renderMounts } from "./mounts.ts";
import { containerSecurity } from "./security.ts";
import { pullPolicy } from "./volumes.ts";

const DEFAULT_TERMINATION_MESSAGE_PATH = "/dev/termination-log";

export type AnyContainer = Omit<Container, "resizePolicy">;
type EphemeralContainer = NonNullable<NonNullable<Pod["spec"]>["ephemeralContainers"]>[number];

/** Undefined when the container has to wait; the reason is then in `context.waiting`. */
export function renderContainer(context: RenderContext, container: AnyContainer): ContainerSpec | undefined {
  const wait = (reason: string, message: string): undefined => {
    context.waiting.set(container.name, { reason, message: shortened(message) });
  };
  const image = container.image ?? "";
  if (image.length > POD_LIMITS.imageLength) {
    const text = `${image.slice(0, 64)}...`;
    return wait(
      "InvalidImageName",
      `Failed to apply default image tag "${text}": couldn't parse image name "${text}": it has ${image.length} characters`,
    );
  }
  try {
    const rendered = renderValidContainer(context, container, context.budget.process(container.name));
    return rendered.ok ? rendered.value : wait("CreateContainerConfigError", rendered.message);
  } catch (thrown) {
    if (thrown instanceof OverBudgetError) return wait("CreateContainerConfigError", thrown.message);
    throw thrown;
  }
}

/** @throws OverBudgetError */
function renderValidContainer(context: RenderContext, container: AnyContainer, budget: Budget): Result<ContainerSpec> {
  const { pod } = context;
  const environment = containerEnvironment(container, {
    ...context,
    volumes: context.volumeNames,
    services: context.serviceVariables(),
    budget,
  });
  if (!environment.ok) return environment;
  const { variables, entries, hasFiles } = environment.value;

  const securityContext = effectiveSecurityContext(pod, container);
  if (securityContext.runAsNonRoot === true && securityContext.runAsUser === 0) {
    return failure(
      `container's runAsUser breaks non-root policy (pod: "${formatPod(pod)}", container: ${container.name})`,
    );
  }

  const mounts = renderMounts(context, container, variables);
  if (!mounts.ok) return mounts;
  const devices = renderDevices(context, container);
  if (!devices.ok) return devices;
  const probes = renderProbes(context, container, budget);
  if (!probes.ok) return probes;
  const hooks = renderHooks(container);
  if (!hooks.ok) return hooks;

  const expanded = (words: readonly string[] | undefined) => {
    const given = nonEmpty(words);
    return given && expandWords(given, lookUpIn(variables), budget);
  };
  return success({
    name: container.name,
    image: container.image ?? "",
    ...pickDefined({
      pull_policy: pullPolicy(container.imagePullPolicy),
      command: expanded(container.command),
      args: expanded(container.args),
      working_dir: container.workingDir || undefined,
      env: nonEmpty(entries),
      env_tokens: hasFiles ? context.envTokens : undefined,
      tty: ifTrue(container.tty),
      stdin: ifTrue(container.stdin),
      stdin_once: ifTrue(container.stdinOnce),
      resources: containerResources(container.resources, context.node.othersResources),
      mounts: nonEmpty(mounts.value),
      devices: nonEmpty(devices.value),
      claims: nonEmpty(container.resources?.claims?.filter(({ name }) => isHad(context, name)).map(renderClaim)),
      ports: nonEmpty(container.ports?.map((port) => renderPort(port, context.pod))),
      stop: container.lifecycle?.stopSignal ? { signal: container.lifecycle.stopSignal } : undefined,
      hooks: hooks.value,
      probes: probes.value,
      restart_policy: restartPolicy(container.restartPolicy),
      restart_rules: nonEmpty(container.restartPolicyRules?.map(renderRestartRule)),
      target: (container as EphemeralContainer).targetContainerName || undefined,
      security: containerSecurity(pod, container),
      termination_message: context.backend.capabilities.has("termination_message")
        ? terminationMessage(container)
        : undefined,
    }),
  });
}

/** Of a claim that was left out on purpose, there is nothing to have. */
function isHad({ references: { claims } }: RenderContext, name: string): boolean {
  return claims?.kind === "found" && claims.claims.some((claim) => claim.name === name);
}

function renderClaim({ name, request }: { readonly name: string; readonly request?: string | undefined }) {
  return { name, ...(request ? { request } : {}) };
}

/** What is empty is left out of a specification. */
export const nonEmpty = <T>(list: readonly T[] | undefined): T[] | undefined =>
  list === undefined || list.length === 0 ? undefined : [...list];

/** And what is not so. */
export const ifTrue = (value: boolean | undefined): true | undefined => (value === true ? true : undefined);

function renderProbes(
  context: RenderContext,
  container: AnyContainer,
  budget: Budget,
): Result<ContainerSpec["probes"] | undefined> {
  // Without the capability the agent itself runs the probes; the gate has seen to that.
  if (!context.backend.capabilities.has("probes")) return success(undefined);
  const probes: { startup?: Probe; readiness?: Probe; liveness?: Probe } = {};
  for (const [kind, probe] of [
    ["startup", container.startupProbe],
    ["readiness", container.readinessProbe],
    ["liveness", container.livenessProbe],
  ] as const) {
    if (probe === undefined || probe === null) continue;
    const rendered = renderProbe(container, probe, budget);
    if (!rendered.ok) return failure(`${kind} probe of container ${container.name}: ${rendered.message}`);
    probes[kind] = rendered.value;
  }
  return success(Object.keys(probes).length > 0 ? probes : undefined);
}

function renderHooks(container: AnyContainer): Result<ContainerSpec["hooks"] | undefined> {
  const hooks: NonNullable<ContainerSpec["hooks"]> = {};
  for (const [name, hook] of [
    ["post_start", container.lifecycle?.postStart],
    ["pre_stop", container.lifecycle?.preStop],
  ] as const) {
    if (hook === undefined || hook === null) continue;
    const rendered = renderHook(container, hook);
    if (!rendered.ok) return failure(`lifecycle hook of container ${container.name}: ${rendered.message}`);
    if (rendered.value !== undefined) hooks[name] = rendered.value;
  }
  return success(Object.keys(hooks).length > 0 ? hooks : undefined);
}

function renderPort(port: NonNullable<Container["ports"]>[number], pod: Pod): ContainerPort {
  const protocol = (port.protocol ?? "TCP").toLowerCase();
  // On the host's network the container's port is the host's: nothing has to be forwarded.
  const isForwarded = port.hostPort && pod.spec?.hostNetwork !== true;
  return {
    port: port.containerPort,
    protocol: protocol === "udp" || protocol === "sctp" ? protocol : "tcp",
    ...(port.name && { name: port.name }),
    ...(isForwarded && { host_port: port.hostPort }),
    ...(isForwarded && port.hostIP && { host_ip: port.hostIP }),
  };
}

function renderRestartRule(
  rule: NonNullable<Container["restartPolicyRules"]>[number],
): NonNullable<ContainerSpec["restart_rules"]>[number] {
  return {
    action: rule.action === "RestartAllContainers" ? "restart_all" : "restart",
    exit_codes: {
      operator: rule.exitCodes?.operator === "NotIn" ? "not_in" : "in",
      values: [...(rule.exitCodes?.values ?? [])],
    },
  };
}

function terminationMessage(container: AnyContainer): NonNullable<ContainerSpec["termination_message"]> {
  return {
    path: container.terminationMessagePath || DEFAULT_TERMINATION_MESSAGE_PATH,
    policy: container.terminationMessagePolicy === "FallbackToLogsOnError" ? "fallback_to_logs" : "file",
  };
}

const RESTART_POLICIES: ReadonlyMap<string, RestartPolicy> = new Map([
  ["Always", "always"],
  ["OnFailure", "on_failure"],
  ["Never", "never"],
]);

/** Undefined when the API server has none, or one that this version does not know. */
export function restartPolicy(policy: string | undefined): RestartPolicy | undefined {
  return policy === undefined ? undefined : RESTART_POLICIES.get(policy);
}
