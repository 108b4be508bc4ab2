/**
 * A pod as a machine's spec. `renderMachineSpec` is pure: the same pod, references, node and backend give the same
 * answer, and nothing is read, written or remembered here. It either yields a complete spec, or says what the pod waits
 * for, or why it can never run on this backend. A field is never dropped silently.
 */
import type { Pod } from "../../kube/wire.ts";
import type { ContainerSpec, MachineSpec, Volume } from "../../provider/machine.ts";
import type { Capability } from "../../provider/capabilities.ts";
import { specExcess } from "../../provider/limits.ts";
import {
  capabilityWarnings,
  checkCapabilities,
  checkEphemeralContainer,
  type GateContext,
} from "../admission/capability-gate.ts";
import { ANNOTATION_INSTANCE_TYPE } from "../admission/instance-types.ts";
import { podBandwidth } from "../bandwidth.ts";
import { POD_LIMITS, shapeProblem, shortened, tell } from "../budget.ts";
import { machineLabels } from "../machine-id.ts";
import {
  isClaimVolume,
  isServiceAccountVolume,
  type PodVolume,
  tokenWishes,
  trustWishes,
  usedVolumes,
  volumeKind,
  certificateWishes,
} from "../pod-volumes.ts";
import { registryAuth } from "../references/pull-secrets.ts";
import { podReferences } from "../references/references.ts";
import { pickDefined } from "../security-context.ts";
import type { PodClaim, PodEvent, RenderResult, WaitingContainer } from "../types.ts";
import { type AnyContainer, ifTrue, nonEmpty, renderContainer, restartPolicy } from "./container.ts";
import { mayUse, newContext, type RenderContext, type RenderInput } from "./context.ts";

import { podDns } from "./dns.ts";
import type { AddressTokens } from "./field-refs.ts";
import { podHostname } from "./hostname.ts";
import { machineResources } from "./machine-resources.ts";
import { hostAccess, machineSecurity } from "./security.ts";
import { asHosts, renderVolume } from "./volumes.ts";

const DEFAULT_GRACE_SECONDS = 30;
const READ_ONLY_VOLUMES: readonly string[] = ["configMap", "secret", "downwardAPI", "projected", "image"];

/** Renders the pod. See RenderResult for what may come out; `events` are for the pod, in order. */
export function renderMachineSpec(input: RenderInput): RenderResult {
  const { pod, node, backend, isJudged = false } = input;
  const gate = isJudged ? { ok: true as const } : checkCapabilities(pod, gateContext(input));
  if (!gate.ok) return { kind: "reject", reason: gate.reason, message: gate.message, missing: gate.missing };

  const context = newContext(input);
  const { events, waiting } = context;
  const holdSandbox = (problem: string): RenderResult => {
    tell(events, sandboxFailed(problem));
    return { kind: "wait", waiting, unmountedVolumes: [], events };
  };
  const tooMany = isJudged ? undefined : podShapeProblem(pod, { files: backend.capabilities.has("volumes.files") });
  if (tooMany !== undefined) return holdSandbox(tooMany);

  const hostname = podHostname(pod, node.dns.clusterDomain);
  if (!hostname.ok) return holdSandbox(hostname.message);

  const limits = backend.capabilities.has("bandwidth") ? podBandwidth(pod) : undefined;
  if (limits?.ok === false) return holdSandbox(limits.message);

  const { volumes, unmounted } = renderVolumes(context);
  if (unmounted.length > 0) return { kind: "wait", waiting, unmountedVolumes: unmounted, events };

  const claims = renderClaims(context);
  if (claims === undefined) return { kind: "wait", waiting, unmountedVolumes: [], events };

  const render = (containers: readonly AnyContainer[] | undefined) =>
    (containers ?? []).flatMap((container) => renderContainer(context, container) ?? []);
  const initContainers = render(pod.spec?.initContainers);
  const containers = render(pod.spec?.containers);
  if (waiting.size > 0) {
    for (const [name, { message }] of waiting) tell(events, containerFailed(message, fieldPathOf(pod, name)));
    return { kind: "wait", waiting, unmountedVolumes: [], events };
  }

  events.push(...capabilityWarnings(pod, { backend: backend.name, capabilities: backend.capabilities }));
  const ephemeral = renderEphemeral(context, new Set());
  events.push(...ephemeral.events);
  const spec = machineSpec(context, {
    initContainers,
    containers,
    ephemeral: ephemeral.containers,
    volumes,
    claims,
    hostname,
    bandwidth: limits?.bandwidth,
  });
  const problem = specProblem(spec);
  if (problem !== undefined) return holdSandbox(problem);
  return { kind: "ready", spec, events, ...(ephemeral.waiting.size > 0 && { waiting: ephemeral.waiting }) };
}

/** What has been rendered of a pod, put together with what concerns it as a whole. */
function machineSpec(
  context: RenderContext,
  parts: {
    initContainers: ContainerSpec[];
    containers: ContainerSpec[];
    ephemeral: ContainerSpec[];
    volumes: Volume[];
    claims: PodClaim[];
    hostname: Extract<ReturnType<typeof podHostname>, { ok: true }>;
    bandwidth: MachineSpec["bandwidth"];
  },
): MachineSpec {
  const { pod, node, backend, events, references, tokens, runtimeHandler } = context;
  const podSpec = pod.spec;
  const { initContainers, containers, ephemeral, volumes, claims, hostname, bandwidth } = parts;
  const ifCapable = <T>(capability: Capability, value: () => T): T | undefined =>
    backend.capabilities.has(capability) ? value() : undefined;
  const auth = ifCapable("registry_auth", () => registryAuth(pod, references, events));
  return {
    labels: machineLabels(node.clusterId, node.nodeName, pod),
    containers,
    restart_policy: restartPolicy(podSpec?.restartPolicy) ?? "always",
    termination_grace_s: podSpec?.terminationGracePeriodSeconds ?? DEFAULT_GRACE_SECONDS,
    ...pickDefined({
      init_containers: nonEmpty(initContainers),
      ephemeral_containers: nonEmpty(ephemeral),
      volumes: nonEmpty(volumes),
      resource_claims: nonEmpty(claims),
      resources: podSpec && machineResources(podSpec, node.othersResources),
      priority: podSpec?.priority || undefined,
      runtime_handler: runtimeHandler,
      instance_type: ifCapable("instance_types", () => pod.metadata?.annotations?.[ANNOTATION_INSTANCE_TYPE]),
      ...(podSpec?.hostNetwork !== true && {
        hostname: ifCapable("hostname", () => hostname.hostname),
        domain: ifCapable("hostname", () => hostname.domain),
        hostname_is_fqdn: ifCapable("hostname", () => ifTrue(hostname.asFqdn)),
      }),
      dns: ifCapable("dns", () => podDns(pod, node.dns, events)),
      hosts: nonEmpty(podSpec?.hostAliases?.map(({ ip, hostnames }) => ({ ip, names: [...(hostnames ?? [])] }))),
      registry_auth: nonEmpty(auth),
      security: machineSecurity(pod),
      host: hostAccess(pod),
      bandwidth: podSpec?.hostNetwork === true ? undefined : bandwidth,
      address_tokens: [...initContainers, ...containers, ...ephemeral].some((each) => usesTokens(each, tokens))
        ? tokens
        : undefined,
      backoff: node.backoff,
    }),
  };
}

/** Why no backend takes it. */
function specProblem(spec: MachineSpec): string | undefined {
  const bytes = Buffer.byteLength(JSON.stringify(spec));
  if (bytes > POD_LIMITS.specBytes)
    return `the machine's specification has ${bytes} bytes, a backend takes ${POD_LIMITS.specBytes}`;
  const excess = specExcess(spec);
  return excess && `the machine's ${excess.field} ${excess.message}`;
}

/** kubelet: `events.FailedToCreateContainer` and its like. */
function containerFailed(message: string, fieldPath: string): PodEvent {
  return { type: "Warning", reason: "Failed", message: `Error: ${message}`, fieldPath };
}

/**
 * What is wrong with how many things the pod has; undefined when nothing is. Without `files`, as `podReferences` has
 * it.
 */
export function podShapeProblem(pod: Pod, options: { files: boolean }): string | undefined {
  const anchors = options.files ? trustWishes(pod) : [];
  const namedTrustBundles = anchors.filter((wish) => "name" in wish).length;
  return shapeProblem(pod, {
    references: podReferences(pod, options).length,
    tokens: options.files ? tokenWishes(pod).length : 0,
    trustBundles: anchors.length - namedTrustBundles,
    namedTrustBundles,
    certificates: options.files ? certificateWishes(pod).length : 0,
  });
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
    reserved: backend.reserved,
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
  const context: RenderContext = {
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
function renderEphemeral(context: RenderContext, known: ReadonlySet<string>): EphemeralContainers {
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
    tell(events, containerFailed(waiting.get(container.name)!.message, fieldPath));
    return [];
  });
  return { containers, waiting, events };
}

function isOmitted(input: RenderInput, volume: ReturnType<typeof usedVolumes>[number]["volume"]): boolean {
  return !input.backend.capabilities.has("volumes.files") && isServiceAccountVolume(volume);
}

function renderVolumes(context: RenderContext): { volumes: Volume[]; unmounted: string[] } {
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
      if (rendered.message !== undefined) tell(context.events, mountFailed(volume, rendered.message, rendered.isWhole));
      continue;
    }
    const csi = context.references.csi?.get(volume.name) ?? context.references.disks?.get(volume.name);
    if (csi?.kind === "found" && csi.isStale === true)
      tell(context.events, {
        type: "Warning",
        reason: "VolumeNotRepublished",
        message: `Volume "${volume.name}" stays as it is mounted at first: its driver asks to be called again (CSIDriver.requiresRepublish), and this node does not do so`,
      });
    volumes.push(mayUse(context, "volumes.host") ? asHosts(rendered.volume) : rendered.volume);
    context.volumeNames.add(volume.name);
    if (READ_ONLY_VOLUMES.includes(volumeKind(volume))) context.readOnlyVolumes.add(volume.name);
  }
  return { volumes, unmounted };
}

/** Undefined while they cannot be had: the pod waits, as a kubelet's does. */
function renderClaims({ pod, references, events }: RenderContext): PodClaim[] | undefined {
  if ((pod.spec?.resourceClaims ?? []).length === 0) return [];
  const { claims } = references;
  if (claims?.kind === "found") return claims.claims;
  const why = claims?.message;
  if (why !== undefined)
    tell(events, {
      type: "Warning",
      reason: "FailedPrepareDynamicResources",
      message: shortened(`Failed to prepare dynamic resources: prepare dynamic resources: ${why}`),
    });
  return undefined;
}

/** kubelet: of a claim it says what it says of all volumes when it has waited long enough. */
function mountFailed(volume: PodVolume, why: string, isWhole = false): PodEvent {
  const { name } = volume;
  if (isWhole) return { type: "Warning", reason: "FailedMount", message: why };
  const message = isClaimVolume(volume)
    ? `Unable to attach or mount volumes: unmounted volumes=[${name}], unattached volumes=[], failed to process volumes=[${name}]: ${why}`
    : `MountVolume.SetUp failed for volume "${name}" : ${why}`;
  return { type: "Warning", reason: "FailedMount", message };
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
