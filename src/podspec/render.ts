/**
 * A pod as a machine's spec. `renderMachineSpec` is pure: the same pod, references, node and backend give the same answer,
 * and nothing is read, written or remembered here. It either yields a complete spec, or says what the pod waits for, or
 * why it can never run on this backend. A field is never dropped silently.
 */
import type { Container, Pod } from "../kube/wire.ts";
import type {
  ContainerPort,
  ContainerSpec,
  MachineSpec,
  Mount,
  Probe,
  RestartPolicy,
  Volume,
} from "../provider/machine.ts";
import {
  ANNOTATION_INSTANCE_TYPE,
  capabilityWarnings,
  checkCapabilities,
  checkEphemeralContainer,
  type GateContext,
} from "./capability-gate.ts";
import { podDns } from "./dns.ts";
import { containerEnvironment } from "./env.ts";
import { expand, lookUpIn } from "./expansion.ts";
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
} from "./inputs.ts";
import { machineLabels } from "./machine-id.ts";
import { containerResources, machineResources } from "./machine-resources.ts";
import { cleanPath, subPathProblem } from "./paths.ts";
import { registryAuth } from "./pull-secrets.ts";
import { containerSecurity, effectiveSecurityContext, machineSecurity, pickDefined } from "./security.ts";
import { isServiceAccountVolume, pullPolicy, renderVolume, usedVolumes, volumeKind } from "./volumes.ts";

export interface RenderInput {
  pod: Pod;
  references: References;
  node: NodeFacts;
  backend: Backend;
}

const DEFAULT_GRACE_SECONDS = 30;
const DEFAULT_TERMINATION_MESSAGE_PATH = "/dev/termination-log";
const READ_ONLY_VOLUMES: readonly string[] = ["configMap", "secret", "downwardAPI", "projected", "image"];

type ContainerKind = "initContainers" | "containers" | "ephemeralContainers";
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
}

/** Renders the pod. See RenderResult for what may come out; `events` are for the pod, in order. */
export function renderMachineSpec(input: RenderInput): RenderResult {
  const { pod, references, node, backend } = input;
  const has = (capability: Parameters<Backend["capabilities"]["has"]>[0]) => backend.capabilities.has(capability);

  const gate = checkCapabilities(pod, gateContext(input));
  if (!gate.ok) return { kind: "reject", reason: gate.reason, message: gate.message, missing: gate.missing };

  const context: Context = {
    ...input,
    tokens: addressTokens(pod.metadata?.uid ?? ""),
    events: [],
    waiting: new Map(),
    volumeNames: new Set(),
    readOnlyVolumes: new Set(),
  };
  const { events, waiting } = context;

  const hostname = podHostname(pod, node.dns.clusterDomain);
  if (!hostname.ok) {
    events.push({
      type: "Warning",
      reason: "FailedCreatePodSandBox",
      message: `Failed to create pod sandbox: ${hostname.message}`,
    });
    return { kind: "wait", waiting, unmountedVolumes: [], events };
  }

  const { volumes, unmounted } = renderVolumes(context);
  if (unmounted.length > 0) return { kind: "wait", waiting, unmountedVolumes: unmounted, events };

  const render = (kind: ContainerKind, containers: readonly AnyContainer[] | undefined) =>
    (containers ?? []).flatMap((container) => renderContainer(context, kind, container) ?? []);
  const initContainers = render("initContainers", pod.spec?.initContainers);
  const containers = render("containers", pod.spec?.containers);
  if (waiting.size > 0) {
    for (const [name, { message }] of waiting) {
      events.push({
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
  return { kind: "ready", spec, events, ...(ephemeral.waiting.size > 0 && { waiting: ephemeral.waiting }) };
}

function gateContext({ backend, node }: RenderInput): GateContext {
  return {
    backend: backend.name,
    capabilities: backend.capabilities,
    allowHostPath: node.allowHostPath,
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
    ...input,
    tokens: addressTokens(input.pod.metadata?.uid ?? ""),
    events: [],
    waiting: new Map(),
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
      waiting.set(container.name, { reason, message });
      events.push({ type: "Warning", reason, message, fieldPath });
      return [];
    }
    const rendered = renderContainer({ ...context, events, waiting }, "ephemeralContainers", container);
    if (rendered !== undefined) return [rendered];
    events.push({
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
      context.events.push({
        type: "Warning",
        reason: "ServiceAccountVolumeOmitted",
        message: `Volume "${volume.name}" was left out: backend "${context.backend.name}" lacks capability volumes.files, so the containers have no service-account token`,
      });
      continue;
    }
    const rendered = renderVolume(context.pod, volume, context.references, context.node);
    if (!rendered.ok) {
      unmounted.push(volume.name);
      context.events.push({
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
function renderContainer(context: Context, kind: ContainerKind, container: AnyContainer): ContainerSpec | undefined {
  const { pod, references, node, events, tokens } = context;
  const wait = (message: string): undefined => {
    context.waiting.set(container.name, { reason: "CreateContainerConfigError", message });
  };

  const environment = containerEnvironment(container, { pod, references, node, tokens, events });
  if (!environment.ok) return wait(environment.message);
  const variables = environment.variables;
  const expandAll = (words: readonly string[]) => words.map((word) => expand(word, lookUpIn(variables)));

  const securityContext = effectiveSecurityContext(pod, container);
  if (securityContext.runAsNonRoot === true && securityContext.runAsUser === 0) {
    return wait(
      `container's runAsUser breaks non-root policy (pod: "${formatPod(pod.metadata)}", container: ${container.name})`,
    );
  }

  const mounts = renderMounts(context, container, variables);
  if (!mounts.ok) return wait(mounts.message);
  const probes = renderProbes(context, container);
  if (!probes.ok) return wait(probes.message);
  const hooks = renderHooks(container);
  if (!hooks.ok) return wait(hooks.message);

  const env = [...variables].map(([name, value]) => ({ name, value }));
  const ports = (container.ports ?? []).map(renderPort);
  const rules = (container.restartPolicyRules ?? []).map(renderRestartRule);
  return {
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
}

type Part<T> = { ok: true; value: T } | { ok: false; message: string };

function renderMounts(
  context: Context,
  container: AnyContainer,
  variables: ReadonlyMap<string, string>,
): Part<Mount[]> {
  const mounts: Mount[] = [];
  const declared = new Set((context.pod.spec?.volumes ?? []).map((volume) => volume.name));
  for (const mount of container.volumeMounts ?? []) {
    if (!declared.has(mount.name))
      return { ok: false, message: `cannot find volume "${mount.name}" to mount into container "${container.name}"` };
    if (!context.volumeNames.has(mount.name)) continue;
    let subPath = mount.subPath ?? "";
    if (mount.subPathExpr) {
      const missing = new Set<string>();
      subPath = expand(mount.subPathExpr, (name) => {
        const value = variables.get(name);
        if (value === undefined || value === "") missing.add(name);
        return value ?? "";
      });
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

function renderProbes(context: Context, container: AnyContainer): Part<ContainerSpec["probes"] | undefined> {
  // Without the capability the agent itself runs the probes; the gate has seen to that.
  if (!context.backend.capabilities.has("probes")) return { ok: true, value: undefined };
  const probes: { startup?: Probe; readiness?: Probe; liveness?: Probe } = {};
  for (const [kind, probe] of [
    ["startup", container.startupProbe],
    ["readiness", container.readinessProbe],
    ["liveness", container.livenessProbe],
  ] as const) {
    if (probe === undefined || probe === null) continue;
    const rendered = renderProbe(container, probe);
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
