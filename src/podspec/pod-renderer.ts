/**
 * Everything between a pod and its machine's spec, put together: admission, capabilities, references, tokens,
 * rendering, and later changes. The reconciler asks it; it decides nothing about when.
 */
import { containersOf, isTerminal, uidOf } from "../kube/pod.ts";
import { saysNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath, resourcePath } from "../kube/paths.ts";
import type { Container, Node, Pod } from "../kube/wire.ts";
import {
  fileVersion,
  type Machine,
  type MachinePatch,
  type MachineSpec,
  type RegistryAuth,
  type Volume,
} from "../provider/machine.ts";
import { toError } from "../util/errors.ts";
import { withExtendedClaims } from "./extended-claims.ts";
import { admitPod, daemonSetHeld, isDaemonSetPod, lacksExtended } from "./admission/admission.ts";
import { OverBudgetError, PodBudget, tell } from "./budget.ts";
import type { NodeAllocation, OtherPods } from "./admission/allocation.ts";
import { checkCapabilities } from "./admission/capability-gate.ts";
import { type DesiredMachine, diffMachine } from "./render/diff.ts";
import { isSameImage } from "./image-name.ts";
import { containerResources, machineResources } from "./render/machine-resources.ts";
import type { Backend, NodeFacts, PodEvent, References, MachineChange, Rendered } from "./types.ts";
import { PodSecrets, saysSomething } from "./references/pod-secrets.ts";
import { credentialsVersion, registryAuth, wouldLoseCredentials } from "./references/pull-secrets.ts";
import type { PodCsiVolumes } from "./references/csi-volumes.ts";
import type { PodClaims } from "./references/claims.ts";
import type { PodDisks } from "./references/disks.ts";
import { podReferences, type ReferenceCache } from "./references/references.ts";
import { podShapeProblem, renderEphemeralContainers, renderMachineSpec, sandboxFailed } from "./render/render.ts";
import { judgeResize } from "./admission/resize.ts";
import { checkRuntimeClass, type HandlerLookup } from "./admission/runtime-class.ts";
import type { TokenManager } from "./references/tokens.ts";
import type { TrustBundles } from "./references/trust-bundles.ts";
import type { PodCertificates } from "./references/pod-certificates.ts";
import { renderVolume } from "./render/volumes.ts";
import {
  certificateWishes,
  isServiceAccountVolume,
  tokenWishes,
  trustWishes,
  usedVolumes,
  volumeKind,
} from "./pod-volumes.ts";
import type { ImageCredentials } from "./references/credential-provider.ts";

export interface PodRendererOptions {
  kube: Kube;
  references: ReferenceCache;
  tokens: TokenManager;
  trustBundles: TrustBundles;
  certificates: PodCertificates;
  disks: PodDisks;
  claims: PodClaims;
  csi: PodCsiVolumes;
  /** This node as the API server has it; undefined until it is registered. */
  node: () => Node | undefined;
  /** Called with what the API server has just said of the node, and what `node` told before it was asked. */
  onNode?: ((node: Node, before: Node | undefined) => void) | undefined;
  facts: () => NodeFacts;
  backend: () => Backend;
  /** The resources that this node's pods have been given; it is called for each pod that comes, changes or goes. */
  allocation: NodeAllocation;
  daemonSets: "run" | "ignore";
  allowedUnsafeSysctls?: readonly string[] | undefined;
  /** Extended resources that others count for the whole cluster. */
  clusterResources?: readonly string[] | undefined;
  /** RuntimeClass handlers that this node has besides the backend's: those change nothing in a machine. */
  runtimeHandlers?: readonly string[] | undefined;
  imageCredentials?: ImageCredentials | undefined;
}

/** After this many readings that each found something newer, the version may be older than what was read. */
const READ_ROUNDS = 3;

type Read = { ok: true; references: References; sources: string } | { ok: false; problem: string };
type DesiredContainer = DesiredMachine["containers"][number];
type NotReady = Exclude<Rendered, { kind: "ready" }>;

/**
 * The fields that decide whether a machine has to change, read from a machine or from the specification that it begins
 * with.
 */
type MachineFacts = Pick<Machine, "file_versions" | "registry_auth_version" | "resources"> & {
  readonly containers: readonly (Machine["containers"][number] | MachineSpec["containers"][number])[];
};

export class PodRenderer {
  readonly #options: PodRendererOptions;
  /** Pods that were taken in by this process and need not wait until others have made room. */
  readonly #takenIn = new Set<string>();
  /** By pod: of each volume whose files can be changed, the version that was rendered last. */
  readonly #files = new Map<string, ReadonlyMap<string, string>>();
  readonly #secrets = new PodSecrets();

  constructor(options: PodRendererOptions) {
    this.#options = options;
  }

  /** Renders a pod that has no machine yet. @throws the signal's reason on abort */
  async render(asWritten: Pod, signal: AbortSignal): Promise<Rendered> {
    const pod = withExtendedClaims(asWritten);
    const uid = uidOf(pod);
    const judgedBy = this.#options.backend();
    const tooMany = podShapeProblem(pod, { files: this.#hasFiles() });
    if (tooMany !== undefined) return wait(sandboxFailed(tooMany));
    // A pod that was admitted once is not judged again, as in a kubelet: it may have a machine, even if the node has
    // changed since.
    let verdict = this.#takenIn.has(uid) ? this.#gate(pod) : this.#admit(pod, this.#options.node());
    if (verdict?.kind === "reject" && this.#mayBeStale(pod, verdict.reason)) {
      // The scheduler may have seen labels or resources that the cached node lacks; as in a kubelet, the API server has
      // the last word.
      verdict = this.#admit(pod, (await this.#liveNode(signal)) ?? this.#options.node());
    }
    if (verdict !== undefined) return verdict;
    // From here on, at once, the pod counts towards what the node has given away, though something may still be
    // missing.
    this.#options.allocation.admit(uid);
    this.#takenIn.add(uid);

    const runtimeClass = checkRuntimeClass(
      pod,
      await handlerOf(this.#options.kube, pod, signal),
      this.#options.backend().runtimeHandlers ?? [],
      this.#options.runtimeHandlers ?? [],
    );
    if (!runtimeClass.ok) return wait(sandboxFailed(runtimeClass.message));
    const read = await this.#readAll(pod, signal);
    if (!read.ok) return wait(sandboxFailed(read.problem));
    const { references, sources } = read;
    this.#secrets.learn(pod, references, sources);
    const backend = this.#options.backend();
    const result = renderMachineSpec({
      pod,
      references,
      node: this.#options.facts(),
      backend,
      isJudged: backend === judgedBy,
      runtimeHandler: runtimeClass.handler,
    });
    // A refusal only because the pod is new makes no event: the pod is looked at again within a second.
    if (result.kind === "wait" && this.#options.references.isEarly(uid)) return wait();
    if (result.kind !== "ready") return result;
    this.#rendered(uid, result.spec.volumes ?? []);
    const asTold = (spec: MachineSpec) => `${sources}|${this.#machineState(pod, spec)}`;
    if (!this.#options.backend().capabilities.has("registry_auth")) return { ...result, version: asTold(result.spec) };
    const auth = [...(result.spec.registry_auth ?? []), ...(await this.#pluginCredentials(pod, signal))];
    const version = this.#credentialsVersion(pod, references);
    const spec = {
      ...result.spec,
      ...(auth.length > 0 && { registry_auth: auth }),
      ...(version !== undefined && { registry_auth_version: version }),
    };
    return { ...result, spec, version: asTold(spec) };
  }

  /**
   * Changes whenever a machine of this pod might have to change. What `render` and `diff` return carries the version
   * that it was made from: changes since then are not in it, however long the backend takes.
   */
  version(pod: Pod, machine: Machine): string {
    return `${this.#sources(pod)}|${this.#machineState(pod, machine)}`;
  }

  /** The version of everything that a machine is rendered from. */
  #sources(pod: Pod): string {
    const uid = uidOf(pod);
    const files = this.#hasFiles();
    // After a restart of the agent nothing has been read yet; the first diff does that, and this changes.
    const known = this.#options.references.version(uid);
    const tokens = files ? (this.#options.tokens.version(uid, tokenWishes(pod)) ?? "none") : "";
    const anchors = files ? this.#options.trustBundles.version(trustWishes(pod)) : "";
    const certificates = files ? (this.#options.certificates.version(uid, certificateWishes(pod)) ?? "none") : "";
    const generation = pod.metadata?.generation ?? 0;
    // The downward API shows labels and annotations, which change without a new generation.
    const metadata = usesMetadata(pod) ? JSON.stringify([pod.metadata?.labels, pod.metadata?.annotations]) : "";
    return [generation, known ?? "unread", tokens, anchors, certificates, metadata].join("|");
  }

  /**
   * The part of a machine that shows whether it differs from its specification, or may soon; of a specification, how it
   * begins.
   */
  #machineState(pod: Pod, machine: MachineFacts): string {
    const stale = [...this.#staleFiles(uidOf(pod), machine), ...this.#staleImages(pod, machine)];
    const canGrow = this.#options.backend().capabilities.has("resize_machine");
    return [this.#credentialsState(pod, machine), ...stale, ...(canGrow ? ownSize(machine) : [])].join("|");
  }

  /**
   * Images that are not the pod's: a change that was given up on may arrive after a later one, and put an older image
   * back.
   */
  #staleImages(pod: Pod, { containers }: MachineFacts): string[] {
    if (!this.#options.backend().capabilities.has("patch_image")) return [];
    const wanted = containersOf(pod);
    return containers.flatMap(({ name, image }) => {
      const container = wanted.find((each) => each.name === name);
      return container === undefined || isSameImage(container.image ?? "", image) ? [] : [`${name}@${image}`];
    });
  }

  /**
   * Files that the machine says it has and that are not those of the last rendering: it was made by an earlier create
   * whose reply was lost, for a repeated create changes no files, or its backend lost what it was told since.
   */
  #staleFiles(uid: string, machine: MachineFacts): string[] {
    return [...(this.#files.get(uid) ?? [])].flatMap(([name, version]) => {
      const present = fileVersion(machine, name);
      return present === undefined || present === version ? [] : [`${name}@${present}`];
    });
  }

  #rendered(uid: string, volumes: readonly Volume[]): void {
    const canChange = this.#options.backend().capabilities.has("patch_files");
    const files = volumes.flatMap((volume) =>
      canChange && volume.type === "files" ? [[volume.name, volume.version] as const] : [],
    );
    this.#files.set(uid, new Map(files));
  }

  /** What must change on a running machine. @throws the signal's reason on abort */
  async diff(pod: Pod, machine: Machine, signal: AbortSignal): Promise<MachineChange> {
    this.#options.allocation.admit(uidOf(pod));
    const tooMany = podShapeProblem(pod, { files: this.#hasFiles() });
    const read = tooMany === undefined ? await this.#read(pod, signal) : { ok: false as const, problem: tooMany };
    if (!read.ok) {
      // The objects that a running pod refers to can grow, and ephemeral containers can make it refer to more and more.
      const message = `The machine is left as it is: ${read.problem}`;
      const events: PodEvent[] = [{ type: "Warning", reason: "FailedUpdate", message }];
      return { patch: undefined, events, resize: { kind: "none" }, version: this.version(pod, machine) };
    }
    const { references, sources } = read;
    this.#secrets.learn(pod, references, sources);
    const facts = this.#options.facts();
    const backend = this.#options.backend();
    const input = { pod, references, node: facts, backend };
    const events: PodEvent[] = [];
    const volumes: Volume[] = [];
    const budget = new PodBudget();
    for (const { volume } of usedVolumes(pod)) {
      if (!this.#hasFiles() || !["configMap", "secret", "downwardAPI", "projected"].includes(volumeKind(volume)))
        continue;
      const rendered = renderVolume(pod, volume, references, facts, budget.files);
      if (rendered.ok) volumes.push(rendered.volume);
      else {
        tell(events, {
          type: "Warning",
          reason: "FailedMount",
          message: `MountVolume.SetUp failed for volume "${volume.name}" : ${rendered.message ?? ""}`,
        });
      }
    }
    this.#rendered(uidOf(pod), volumes);
    const version = `${sources}|${this.#machineState(pod, machine)}`;
    const ephemeral = renderEphemeralContainers(input, new Set(machine.containers.map(({ name }) => name)));
    const diff = diffMachine(
      {
        resources: ownResources(pod),
        containers: containersOf(pod).map(desiredContainer),
        ephemeralContainers: ephemeral.containers,
        volumes,
      },
      machine,
      backend.capabilities,
    );
    const containers = diff.resized.map(({ container }) => container);
    const resize = judgeResize({
      pod,
      containers,
      machine: diff.machineResized !== undefined,
      node: this.#options.node(),
      otherPods: this.#options.allocation.others(uidOf(pod)),
      backend,
    });
    const patch: MachinePatch = {
      ...diff.patch,
      ...(resize.kind === "go" && diff.resized.length > 0 && { resources: diff.resized }),
      ...(resize.kind === "go" && diff.machineResized && { machine_resources: diff.machineResized }),
      ...(await this.#renewedCredentials(pod, machine, references, signal)),
    };
    return {
      patch: Object.keys(patch).length > 0 ? patch : undefined,
      resize,
      events: [...events, ...ephemeral.events, ...diff.events],
      ...(ephemeral.waiting.size > 0 && { waiting: ephemeral.waiting }),
      version,
    };
  }

  /** `text`, which is about a pod, without what the pod keeps secret. */
  redact(podUid: string, text: string): string {
    return this.#secrets.redact(podUid, text);
  }

  /**
   * True when `withoutSecrets` would have to know first what the pod keeps secret: this process has not rendered it.
   */
  mustLearn(pod: Pod, machine: Machine): boolean {
    return !this.#secrets.knows(uidOf(pod)) && saysSomething(machine);
  }

  /** Reads the pod's secrets. Those that cannot be read now are left out. @throws the signal's reason on abort */
  async learn(pod: Pod, signal: AbortSignal): Promise<void> {
    const uid = uidOf(pod);
    const secrets = podReferences(pod).filter(({ kind }) => kind === "secret");
    if (secrets.length > 0 && podShapeProblem(pod, { files: false }) === undefined) {
      this.#options.references.track(pod, secrets);
      await this.#options.references.read(uid, signal).catch(overBudget);
    }
    const sources = `learned ${this.#options.references.version(uid) ?? ""}`;
    this.#secrets.learn(pod, { ...this.#options.references.references(pod), tokens: new Map() }, sources);
    if (isTerminal(pod)) this.#options.references.release(uid);
  }

  /** The machine, whose texts quote nothing that the pod keeps secret. */
  withoutSecrets(pod: Pod, machine: Machine): Machine {
    return this.#secrets.clean(uidOf(pod), machine);
  }

  /** Forgets a pod that is gone. */
  release(podUid: string): void {
    this.rest(podUid);
    this.#secrets.release(podUid);
  }

  /** A pod that is over changes no more: nothing is kept of it but what its backend might still quote. */
  rest(podUid: string): void {
    this.#options.allocation.release(podUid);
    this.#takenIn.delete(podUid);
    this.#files.delete(podUid);
    const { references, tokens, trustBundles, certificates, disks, claims, csi } = this.#options;
    for (const source of [references, tokens, trustBundles, certificates, disks, claims, csi]) source.release(podUid);
  }

  /** Undefined when the pod may run. */
  #admit(pod: Pod, node: Node | undefined): NotReady | undefined {
    const { daemonSets, allowedUnsafeSysctls, clusterResources, allocation } = this.#options;
    // The node is registered before pods are taken in; until it is known, no pod is refused because of it.
    if (node === undefined)
      return wait({ type: "Warning", reason: "InvalidNodeInfo", message: "The node is not registered yet" });
    // Nor for lack of room while the Node in the API server still shows a backend that has not reported its capacity.
    const amounts = Object.values(node.status?.allocatable ?? {});
    if (amounts.length > 0 && amounts.every((amount) => amount === "0"))
      return wait({ type: "Warning", reason: "InvalidNodeInfo", message: "The node's capacity is not known yet" });
    const judge = (otherPods: OtherPods) =>
      admitPod({ pod, node, otherPods, daemonSets, allowedUnsafeSysctls, clusterResources });
    const admission = judge(allocation.others(uidOf(pod)));
    if (admission.kind === "reject") return admission;
    if (admission.kind === "hold")
      return wait({ type: "Warning", reason: admission.reason, message: admission.message });

    const gate = this.#gate(pod);
    if (gate !== undefined) return gate;
    if (admission.kind === "admit") return undefined;
    // Those that leave already may be enough.
    const next = judge(allocation.others(uidOf(pod), { staying: true }));
    if (next.kind === "reject") return next;
    const victims = next.kind === "preempt" ? next.victims : [];
    for (const victim of victims) allocation.leave(uidOf(victim));
    // Resources that become free go to this pod.
    allocation.admit(uidOf(pod));
    return { kind: "preempt", victims };
  }

  /** Undefined when the backend can do all that the pod needs. */
  #gate(pod: Pod): NotReady | undefined {
    const { backend, facts } = this.#options;
    const { name, agentProbes = false, ...has } = backend();
    const { allowHostPath, instanceTypes } = facts();
    const gate = checkCapabilities(pod, { ...has, backend: name, allowHostPath, agentProbes, instanceTypes });
    if (!gate.ok && isDaemonSetPod(pod)) return wait(daemonSetHeld(gate.message));
    if (!gate.ok) return { kind: "reject", reason: gate.reason, message: gate.message, missing: gate.missing };
    return undefined;
  }

  #pluginCredentials(pod: Pod, signal: AbortSignal): Promise<RegistryAuth[]> | [] {
    return this.#options.imageCredentials?.forPod(pod, signal) ?? [];
  }

  /** Undefined when there are no credentials, or the backend cannot be given others than those of the create. */
  #credentialsVersion(pod: Pod, references: Pick<References, "secrets">): string | undefined {
    const { capabilities } = this.#options.backend();
    if (!capabilities.has("registry_auth") || !capabilities.has("patch_registry_auth")) return undefined;
    return credentialsVersion(pod, references, { plugins: this.#options.imageCredentials?.concerns(pod) ?? false });
  }

  /** The part of a machine that shows whether its credentials must be looked at again. */
  #credentialsState(pod: Pod, machine: MachineFacts): string {
    const hasSecrets = (pod.spec?.imagePullSecrets ?? []).length > 0;
    const hasPlugins = this.#options.imageCredentials?.concerns(pod) ?? false;
    if (!hasSecrets && !hasPlugins) return "";
    return `${machine.registry_auth_version ?? "none"}${hasPlugins && failsToPull(machine) ? " fails" : ""}`;
  }

  /**
   * A backend that has restarted has no credentials; secrets change; and those of plugins expire, which a failed pull
   * tells.
   */
  async #renewedCredentials(
    pod: Pod,
    machine: Machine,
    references: References,
    signal: AbortSignal,
  ): Promise<Pick<MachinePatch, "registry_auth" | "registry_auth_version">> {
    const version = this.#credentialsVersion(pod, references);
    if (version === undefined) return {};
    const known = machine.registry_auth_version;
    // A change replaces all of them.
    if (known !== undefined && wouldLoseCredentials(pod, references, known)) return {};
    const hasExpired = (this.#options.imageCredentials?.concerns(pod) ?? false) && failsToPull(machine);
    if (version === known && !hasExpired) return {};
    const auth = [...registryAuth(pod, references, []), ...(await this.#pluginCredentials(pod, signal))];
    return { registry_auth: auth, registry_auth_version: version };
  }

  #mayBeStale(pod: Pod, reason: string): boolean {
    const node = this.#options.node();
    return reason === "NodeAffinity" || (reason.startsWith("OutOf") && node !== undefined && lacksExtended(pod, node));
  }

  async #liveNode(signal: AbortSignal): Promise<Node | undefined> {
    const before = this.#options.node();
    try {
      const { kube, facts, onNode } = this.#options;
      const node = await kube.request<Node>({ method: "GET", path: nodePath(facts().nodeName), signal });
      onNode?.(node, before);
      return node;
    } catch {
      signal.throwIfAborted();
      return undefined;
    }
  }

  #hasFiles(): boolean {
    return this.#options.backend().capabilities.has("volumes.files");
  }

  /** As `#read`, with the pod's persistent volumes, claims and inline volumes: a machine that is there has its own. */
  async #readAll(pod: Pod, signal: AbortSignal): Promise<Read> {
    const disks = await this.#options.disks.read(pod, signal).catch(overBudget);
    if (typeof disks === "string") return { ok: false, problem: disks };
    const claims = await this.#options.claims.read(pod, signal).catch(overBudget);
    if (typeof claims === "string") return { ok: false, problem: claims };
    const read = await this.#read(pod, signal);
    if (!read.ok) return read;
    const csi = await this.#options.csi.read(pod, read.references, signal).catch(overBudget);
    if (typeof csi === "string") return { ok: false, problem: csi };
    const tokens = [...csi.values()].flatMap((each) => (each.kind === "found" ? each.tokens : []));
    const secrets = [...disks.values()].flatMap((each) => (each.kind === "found" ? (each.secrets ?? []) : []));
    this.#secrets.learnTokens(pod, [...tokens, ...secrets]);
    return { ...read, references: { ...read.references, disks, claims, csi } };
  }

  /**
   * Reads what the pod refers to and gets its tokens. `sources` is the version of exactly what is returned. Not `ok`
   * when that is more than one pod may have.
   */
  async #read(pod: Pod, signal: AbortSignal): Promise<Read> {
    const uid = uidOf(pod);
    const files = this.#hasFiles();
    this.#options.references.track(pod, podReferences(pod, { files }));
    const wishes = files ? tokenWishes(pod) : [];
    const anchors = files ? trustWishes(pod) : [];
    const ownCertificates = files ? certificateWishes(pod) : [];
    // While it waits for one object, another that was read already may change. Objects in the cache are read again
    // without waiting, and a version from before the read is never too new.
    for (let round = 1; ; round++) {
      const sources = this.#sources(pod);
      const [problem, tokens, trustBundles] = await Promise.all([
        this.#options.references.read(uid, signal).then(() => undefined, overBudget),
        this.#options.tokens.get(pod, wishes, signal),
        this.#options.trustBundles.get(pod, anchors, signal),
      ]);
      if (problem !== undefined) return { ok: false, problem };
      const certificates = this.#options.certificates.get(pod, ownCertificates);
      if (this.#sources(pod) === sources || round === READ_ROUNDS)
        return {
          ok: true,
          references: { ...this.#options.references.references(pod), tokens, trustBundles, certificates },
          sources,
        };
    }
  }
}

async function handlerOf(kube: Kube, pod: Pod, signal: AbortSignal): Promise<HandlerLookup | undefined> {
  const name = pod.spec?.runtimeClassName;
  if (name === undefined || name === "") return undefined;
  try {
    const path = resourcePath({ group: "node.k8s.io", resource: "runtimeclasses", name });
    const runtimeClass = await kube.request<{ handler: string }>({ method: "GET", path, signal });
    return { kind: "found", handler: runtimeClass.handler };
  } catch (thrown) {
    signal.throwIfAborted();
    return saysNotFound(thrown, { resource: "runtimeclasses", name })
      ? { kind: "absent" }
      : { kind: "unknown", message: toError(thrown).message };
  }
}

/** Once per failed pull; the waits that follow are its back-off. */
function failsToPull({ containers }: MachineFacts): boolean {
  return containers.some((each) => "state" in each && each.state === "waiting" && each.reason === "ErrImagePull");
}

/** What shows a change that was given up on and is made all the same, by a backend that has been started again. */
function ownSize({ resources: { requests, limits } = {} }: MachineFacts): string[] {
  return [requests, limits].map((each) => `${each?.cpu_millis ?? ""}/${each?.memory_bytes ?? ""}`);
}

function desiredContainer({ name, image = "", resources, resizePolicy = [] }: Container): DesiredContainer {
  const restarting = resizePolicy.filter(({ restartPolicy }) => restartPolicy === "RestartContainer");
  const restartFor = restarting.map(({ resourceName }) => resourceName);
  return { name, image, resources: containerResources(resources), restartFor };
}

function ownResources({ spec }: Pod): DesiredMachine["resources"] & object {
  return { amounts: machineResources(spec ?? { containers: [] }), areAsked: spec?.resources !== undefined };
}

function wait(...events: PodEvent[]): NotReady {
  return { kind: "wait", waiting: new Map(), unmountedVolumes: [], events };
}

/** The message of the one error that is the pod's own. */
function overBudget(thrown: unknown): string {
  if (thrown instanceof OverBudgetError) return thrown.message;
  throw thrown;
}

/** True when a file of the pod shows labels or annotations. */
function usesMetadata(pod: Pod): boolean {
  return usedVolumes(pod).some(({ volume }) => {
    if (isServiceAccountVolume(volume)) return false;
    const items = [
      ...(volume.downwardAPI?.items ?? []),
      ...(volume.projected?.sources ?? []).flatMap((source) => source.downwardAPI?.items ?? []),
    ];
    return items.some(
      (item) =>
        item.fieldRef?.fieldPath.startsWith("metadata.labels") ||
        item.fieldRef?.fieldPath.startsWith("metadata.annotations"),
    );
  });
}
