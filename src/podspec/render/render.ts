/**
 * A pod as a machine's spec. `renderMachineSpec` is pure: the same pod, references, node and backend give the same
 * answer, and nothing is read, written or remembered here. It either yields a complete spec, or says what the pod waits
 * for, or why it can never run on this backend. A field is never dropped silently.
 */
import type { Container, Pod } from "../../kube/wire.ts";
import type {
  ContainerPort,
  ContainerSpec,
  MachineSpec,
  Mount,
  Probe,
  RestartPolicy,
  Volume,
} from "../../provider/machine.ts";
import { specExcess } from "../../provider/limits.ts";
import {
  capabilityWarnings,
  checkCapabilities,
  checkEphemeralContainer,
  type GateContext,
} from "../admission/capability-gate.ts";
import { ANNOTATION_INSTANCE_TYPE } from "../admission/instance-types.ts";
import { type Budget, OverBudgetError, PodBudget, POD_LIMITS, shapeProblem, shortened, tell } from "../budget.ts";
import { podDns } from "./dns.ts";
import { containerEnvironment, podServiceVariables } from "./env.ts";
import { expand, expandWords, lookUpIn } from "./expansion.ts";
import { addressTokens, type AddressTokens } from "./field-refs.ts";
import { renderHook, renderProbe } from "./handlers.ts";
import { podHostname } from "./hostname.ts";
import {
  formatPod,
  type Backend,
  type NodeFacts,
  type PodEvent,
  type References,
  type RenderResult,
  type WaitingContainer,
} from "../types.ts";
import { machineLabels } from "../machine-id.ts";
import { containerResources, machineResources } from "./machine-resources.ts";
import { cleanPath, MAX_PATH_LENGTH, subPathProblem } from "./paths.ts";
import { registryAuth } from "../references/pull-secrets.ts";
import { containerSecurity, machineSecurity } from "./security.ts";
import { effectiveSecurityContext, pickDefined } from "../security-context.ts";
import { podReferences } from "../references/references.ts";
import { pullPolicy, renderVolume } from "./volumes.ts";
import { isServiceAccountVolume, tokenWishes, usedVolumes, volumeKind } from "../pod-volumes.ts";

export interface RenderInput {
  pod: Pod;
  references: References;
  node: NodeFacts;
  backend: Backend;
}

const DEFAULT_GRACE_SECONDS = 30;
const DEFAULT_TERMINATION_MESSAGE_PATH = "/dev/termination-log";
const READ_ONLY_VOLUMES: readonly string[] = ["configMap", "secret", "downwardAPI", "projected", "image"];

type AnyContainer = Omit<Container, "resizePolicy">;
type EphemeralContainer = NonNullable<NonNullable<Pod["spec"]>["ephemeralContainers"]>[number];

/** Everything about one render that its parts share. */
interface Context extends RenderInput {
  tokens: AddressTokens;
  events: PodEvent[];
  waiting: Map<string, WaitingContainer>;
  /** Names of the volumes that the machine has; mounts of others are left out. */
  volumeNames: Set<string>;
  readOnlyVolumes: Set<string>;
  /** Names of the volumes that the pod has. */
  declaredVolumes: ReadonlySet<string>;
  budget: PodBudget;
  /** The same for all containers. @throws OverBudgetError */
  serviceVariables: () => ReadonlyMap<string, string> | undefined;
}

function newContext(input: RenderInput): Context {
  let services: ReadonlyMap<string, string> | undefined;
  const { pod, references } = input;
  return {
    ...input,
    tokens: addressTokens(pod.metadata?.uid ?? ""),
    events: [],
    waiting: new Map(),
    volumeNames: new Set(),
    readOnlyVolumes: new Set(),
    declaredVolumes: new Set((pod.spec?.volumes ?? []).map(({ name }) => name)),
    budget: new PodBudget(),
    serviceVariables: () => (services ??= references.services && podServiceVariables(pod, references.services)),
  };
}

/** Renders the pod. See RenderResult for what may come out; `events` are for the pod, in order. */
export function renderMachineSpec(input: RenderInput): RenderResult {
  const { pod, references, node, backend } = input;
  const has = (capability: Parameters<Backend["capabilities"]["has"]>[0]) => backend.capabilities.has(capability);

  const gate = checkCapabilities(pod, gateContext(input));
  if (!gate.ok) return { kind: "reject", reason: gate.reason, message: gate.message, missing: gate.missing };

  const context = newContext(input);
  const { events, waiting } = context;
  const holdSandbox = (problem: string): RenderResult => {
    tell(events, sandboxFailed(problem));
    return { kind: "wait", waiting, unmountedVolumes: [], events };
  };
  const tooMany = podShapeProblem(pod, { files: has("volumes.files") });
  if (tooMany !== undefined) return holdSandbox(tooMany);

  const hostname = podHostname(pod, node.dns.clusterDomain);
  if (!hostname.ok) return holdSandbox(hostname.message);

  const { volumes, unmounted } = renderVolumes(context);
  if (unmounted.length > 0) return { kind: "wait", waiting, unmountedVolumes: unmounted, events };

  const render = (containers: readonly AnyContainer[] | undefined) =>
    (containers ?? []).flatMap((container) => renderContainer(context, container) ?? []);
  const initContainers = render(pod.spec?.initContainers);
  const containers = render(pod.spec?.containers);
  if (waiting.size > 0) {
    for (const [name, { message }] of waiting) {
      tell(events, {
        type: "Warning",
        reason: "Failed",
        message: `Error: ${message}`,
        fieldPath: fieldPathOf(pod, name),
      });
    }
    return { kind: "wait", waiting, unmountedVolumes: [], events };
  }

  events.push(...capabilityWarnings(pod, { backend: backend.name, capabilities: backend.capabilities }));
  const ephemeral = renderEphemeral(context, new Set());
  events.push(...ephemeral.events);
  const all = [...initContainers, ...containers, ...ephemeral.containers];
  const resources = pod.spec && machineResources(pod.spec);
  const aliases = pod.spec?.hostAliases ?? [];
  const auth = has("registry_auth") ? registryAuth(pod, references, events) : [];
  const security = machineSecurity(pod);
  const spec: MachineSpec = {
    labels: machineLabels(node.clusterId, node.nodeName, pod),
    containers,
    restart_policy: restartPolicy(pod.spec?.restartPolicy) ?? "always",
    termination_grace_s: pod.spec?.terminationGracePeriodSeconds ?? DEFAULT_GRACE_SECONDS,
    ...pickDefined({
      init_containers: initContainers.length > 0 ? initContainers : undefined,
      ephemeral_containers: ephemeral.containers.length > 0 ? ephemeral.containers : undefined,
      volumes: volumes.length > 0 ? volumes : undefined,
      resources,
      instance_type: has("instance_types") ? pod.metadata?.annotations?.[ANNOTATION_INSTANCE_TYPE] : undefined,
      hostname: has("hostname") ? hostname.hostname : undefined,
      domain: has("hostname") ? hostname.domain : undefined,
      hostname_is_fqdn: has("hostname") && hostname.asFqdn ? true : undefined,
      dns: has("dns") ? podDns(pod, node.dns, events) : undefined,
      hosts:
        aliases.length > 0 ? aliases.map(({ ip, hostnames }) => ({ ip, names: [...(hostnames ?? [])] })) : undefined,
      registry_auth: auth.length > 0 ? auth : undefined,
      security,
      address_tokens: all.some((container) => usesTokens(container, context.tokens)) ? context.tokens : undefined,
      backoff: node.backoff,
    }),
  };
  const bytes = Buffer.byteLength(JSON.stringify(spec));
  if (bytes > POD_LIMITS.specBytes) {
    return holdSandbox(`the machine's specification has ${bytes} bytes, a backend takes ${POD_LIMITS.specBytes}`);
  }
  const excess = specExcess(spec);
  if (excess !== undefined) return holdSandbox(`the machine's ${excess.field} ${excess.message}`);
  return { kind: "ready", spec, events, ...(ephemeral.waiting.size > 0 && { waiting: ephemeral.waiting }) };
}

/**
 * What is wrong with how many things the pod has; undefined when nothing is. Without `files`, as `podReferences` has
 * it.
 */
export function podShapeProblem(pod: Pod, options: { files: boolean }): string | undefined {
  const tokens = options.files ? tokenWishes(pod).length : 0;
  return shapeProblem(pod, { references: podReferences(pod, options).length, tokens });
}

/** kubelet: what keeps a pod as a whole from being started. */
export function sandboxFailed(problem: string): PodEvent {
  return {
    type: "Warning",
    reason: "FailedCreatePodSandBox",
    message: shortened(`Failed to create pod sandbox: ${problem}`),
  };
}

function gateContext({ backend, node }: RenderInput): GateContext {
  return {
    backend: backend.name,
    capabilities: backend.capabilities,
    allowHostPath: node.allowHostPath,
    instanceTypes: node.instanceTypes,
    agentProbes: backend.agentProbes ?? false,
  };
}

interface EphemeralContainers {
  containers: ContainerSpec[];
  /** Those that cannot be started. */
  waiting: ReadonlyMap<string, WaitingContainer>;
  events: PodEvent[];
}

/** Renders the ephemeral containers but those that are `known`, for adding them to a machine that runs. */
export function renderEphemeralContainers(input: RenderInput, known: ReadonlySet<string>): EphemeralContainers {
  const context: Context = {
    ...newContext(input),
    volumeNames: new Set(
      usedVolumes(input.pod)
        .filter(({ volume }) => !isOmitted(input, volume))
        .map(({ volume }) => volume.name),
    ),
    readOnlyVolumes: new Set(
      usedVolumes(input.pod)
        .filter(({ volume }) => READ_ONLY_VOLUMES.includes(volumeKind(volume)))
        .map(({ volume }) => volume.name),
    ),
  };
  return renderEphemeral(context, known);
}

/** One that cannot be started keeps nothing else from running. */
function renderEphemeral(context: Context, known: ReadonlySet<string>): EphemeralContainers {
  const events: PodEvent[] = [];
  const waiting = new Map<string, WaitingContainer>();
  const containers = (context.pod.spec?.ephemeralContainers ?? []).flatMap((container, index) => {
    if (known.has(container.name)) return [];
    const fieldPath = `spec.ephemeralContainers{${container.name}}`;
    const gate = checkEphemeralContainer(context.pod, index, gateContext(context));
    if (!gate.ok) {
      const { reason, message } = gate;
      waiting.set(container.name, { reason, message: shortened(message) });
      tell(events, { type: "Warning", reason, message, fieldPath });
      return [];
    }
    const rendered = renderContainer({ ...context, events, waiting }, container);
    if (rendered !== undefined) return [rendered];
    tell(events, {
      type: "Warning",
      reason: "Failed",
      message: `Error: ${waiting.get(container.name)!.message}`,
      fieldPath,
    });
    return [];
  });
  return { containers, waiting, events };
}

function isOmitted(input: RenderInput, volume: ReturnType<typeof usedVolumes>[number]["volume"]): boolean {
  return !input.backend.capabilities.has("volumes.files") && isServiceAccountVolume(volume);
}

function renderVolumes(context: Context): { volumes: Volume[]; unmounted: string[] } {
  const volumes: Volume[] = [];
  const unmounted: string[] = [];
  for (const { volume } of usedVolumes(context.pod)) {
    if (isOmitted(context, volume)) {
      tell(context.events, {
        type: "Warning",
        reason: "ServiceAccountVolumeOmitted",
        message: `Volume "${volume.name}" was left out: backend "${context.backend.name}" lacks capability volumes.files, so the containers have no service-account token`,
      });
      continue;
    }
    const rendered = renderVolume(context.pod, volume, context.references, context.node, context.budget.files);
    if (!rendered.ok) {
      unmounted.push(volume.name);
      tell(context.events, {
        type: "Warning",
        reason: "FailedMount",
        message: `MountVolume.SetUp failed for volume "${volume.name}" : ${rendered.message}`,
      });
      continue;
    }
    volumes.push(rendered.volume);
    context.volumeNames.add(volume.name);
    if (READ_ONLY_VOLUMES.includes(volumeKind(volume))) context.readOnlyVolumes.add(volume.name);
  }
  return { volumes, unmounted };
}

/** Undefined when the container has to wait; the reason is then in `context.waiting`. */
function renderContainer(context: Context, container: AnyContainer): ContainerSpec | undefined {
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
function renderValidContainer(context: Context, container: AnyContainer, budget: Budget): Part<ContainerSpec> {
  const { pod, references, node, events, tokens } = context;
  const services = context.serviceVariables();
  const environment = containerEnvironment(container, { pod, references, node, tokens, events, services, budget });
  if (!environment.ok) return environment;
  const variables = environment.variables;
  const expandAll = (words: readonly string[]) => expandWords(words, lookUpIn(variables), budget);

  const securityContext = effectiveSecurityContext(pod, container);
  if (securityContext.runAsNonRoot === true && securityContext.runAsUser === 0) {
    const message = `container's runAsUser breaks non-root policy (pod: "${formatPod(pod.metadata)}", container: ${container.name})`;
    return { ok: false, message };
  }

  const mounts = renderMounts(context, container, variables);
  if (!mounts.ok) return mounts;
  const probes = renderProbes(context, container, budget);
  if (!probes.ok) return probes;
  const hooks = renderHooks(container);
  if (!hooks.ok) return hooks;

  const env = [...variables].map(([name, value]) => ({ name, value }));
  const ports = (container.ports ?? []).map(renderPort);
  const rules = (container.restartPolicyRules ?? []).map(renderRestartRule);
  const value: ContainerSpec = {
    name: container.name,
    image: container.image ?? "",
    ...pickDefined({
      pull_policy: pullPolicy(container.imagePullPolicy),
      command: (container.command ?? []).length > 0 ? expandAll(container.command ?? []) : undefined,
      args: (container.args ?? []).length > 0 ? expandAll(container.args ?? []) : undefined,
      working_dir: container.workingDir ? container.workingDir : undefined,
      env: env.length > 0 ? env : undefined,
      tty: container.tty ? true : undefined,
      stdin: container.stdin ? true : undefined,
      stdin_once: container.stdinOnce ? true : undefined,
      resources: containerResources(container.resources),
      mounts: mounts.value.length > 0 ? mounts.value : undefined,
      ports: ports.length > 0 ? ports : undefined,
      stop: container.lifecycle?.stopSignal ? { signal: container.lifecycle.stopSignal } : undefined,
      hooks: hooks.value,
      probes: probes.value,
      restart_policy: restartPolicy(container.restartPolicy),
      restart_rules: rules.length > 0 ? rules : undefined,
      target: (container as EphemeralContainer).targetContainerName || undefined,
      security: containerSecurity(pod, container),
      termination_message: context.backend.capabilities.has("termination_message")
        ? terminationMessage(container)
        : undefined,
    }),
  };
  return { ok: true, value };
}

type Part<T> = { ok: true; value: T } | { ok: false; message: string };

function renderMounts(
  context: Context,
  container: AnyContainer,
  variables: ReadonlyMap<string, string>,
): Part<Mount[]> {
  const mounts: Mount[] = [];
  for (const mount of container.volumeMounts ?? []) {
    if (!context.declaredVolumes.has(mount.name))
      return { ok: false, message: `cannot find volume "${mount.name}" to mount into container "${container.name}"` };
    if (!context.volumeNames.has(mount.name)) continue;
    let subPath = mount.subPath ?? "";
    if (mount.subPathExpr) {
      const missing = new Set<string>();
      const lookUp = (name: string) => {
        const value = variables.get(name);
        if (value === undefined || value === "") missing.add(name);
        return value ?? "";
      };
      subPath = expand(mount.subPathExpr, lookUp, MAX_PATH_LENGTH);
      if (missing.size > 0) return { ok: false, message: `missing value for ${[...missing].sort().join(", ")}` };
      if (subPath.includes(context.tokens.pod_ip) || subPath.includes(context.tokens.pod_ips)) {
        return {
          ok: false,
          message: `subPathExpr "${mount.subPathExpr}" needs the pod's address, which is known only inside the machine`,
        };
      }
    }
    if (subPath !== "") {
      const problem = subPathProblem(subPath);
      if (problem !== undefined) return { ok: false, message: problem };
      subPath = cleanPath(subPath);
    }
    mounts.push({
      volume: mount.name,
      path: mount.mountPath.startsWith("/") ? mount.mountPath : `/${mount.mountPath}`,
      ...((mount.readOnly || context.readOnlyVolumes.has(mount.name)) && { read_only: true }),
      ...(subPath !== "" && subPath !== "." && { sub_path: subPath }),
    });
  }
  return { ok: true, value: mounts };
}

function renderProbes(
  context: Context,
  container: AnyContainer,
  budget: Budget,
): Part<ContainerSpec["probes"] | undefined> {
  // Without the capability the agent itself runs the probes; the gate has seen to that.
  if (!context.backend.capabilities.has("probes")) return { ok: true, value: undefined };
  const probes: { startup?: Probe; readiness?: Probe; liveness?: Probe } = {};
  for (const [kind, probe] of [
    ["startup", container.startupProbe],
    ["readiness", container.readinessProbe],
    ["liveness", container.livenessProbe],
  ] as const) {
    if (probe === undefined || probe === null) continue;
    const rendered = renderProbe(container, probe, budget);
    if (!rendered.ok)
      return { ok: false, message: `${kind} probe of container ${container.name}: ${rendered.message}` };
    probes[kind] = rendered.value;
  }
  return { ok: true, value: Object.keys(probes).length > 0 ? probes : undefined };
}

function renderHooks(container: AnyContainer): Part<ContainerSpec["hooks"] | undefined> {
  const hooks: NonNullable<ContainerSpec["hooks"]> = {};
  for (const [name, hook] of [
    ["post_start", container.lifecycle?.postStart],
    ["pre_stop", container.lifecycle?.preStop],
  ] as const) {
    if (hook === undefined || hook === null) continue;
    const rendered = renderHook(container, hook);
    if (!rendered.ok)
      return { ok: false, message: `lifecycle hook of container ${container.name}: ${rendered.message}` };
    if (rendered.value !== undefined) hooks[name] = rendered.value;
  }
  return { ok: true, value: Object.keys(hooks).length > 0 ? hooks : undefined };
}

function renderPort(port: NonNullable<Container["ports"]>[number]): ContainerPort {
  const protocol = (port.protocol ?? "TCP").toLowerCase();
  return {
    port: port.containerPort,
    protocol: protocol === "udp" || protocol === "sctp" ? protocol : "tcp",
    ...(port.name && { name: port.name }),
    ...(port.hostPort && { host_port: port.hostPort }),
    ...(port.hostPort && port.hostIP && { host_ip: port.hostIP }),
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

function restartPolicy(policy: string | undefined): RestartPolicy | undefined {
  return policy === undefined ? undefined : RESTART_POLICIES.get(policy);
}

function usesTokens(container: ContainerSpec, tokens: AddressTokens): boolean {
  const texts = [
    ...(container.env ?? []).map(({ value }) => value),
    ...(container.command ?? []),
    ...(container.args ?? []),
  ];
  return texts.some((text) => text.includes(tokens.pod_ip) || text.includes(tokens.pod_ips));
}

/** `spec.containers{name}` for the container of this name, whatever its kind. */
export function fieldPathOf(pod: Pod, containerName: string): string {
  const isIn = (containers: readonly { readonly name: string }[] | undefined) =>
    containers?.some(({ name }) => name === containerName) ?? false;
  const list = isIn(pod.spec?.initContainers)
    ? "initContainers"
    : isIn(pod.spec?.ephemeralContainers)
      ? "ephemeralContainers"
      : "containers";
  return `spec.${list}{${containerName}}`;
}
