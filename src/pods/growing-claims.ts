/**
 * Claims that grow while a pod's machine has their volumes: the backend is asked to let them grow, as a kubelet does it
 * (operationexecutor: GenerateExpandInUseVolumeFunc, node_expander). Of CSI drivers of others and of the host's own
 * disks alone: who controls vmlet's own volumes has them grow whole. That a driver's has grown says `GrownClaims`, once
 * the machine tells of it; of a disk no machine tells, and it is said at once.
 *
 * A claim is read about once a minute, as often as a kubelet looks at a pod's volumes, for a node cannot watch claims.
 * Nothing is kept of it: what a driver has done already, it does again without harm.
 */
import type { Kube } from "../kube/kube.ts";
import { mergePatch } from "../kube/patch.ts";
import { resourcePath } from "../kube/paths.ts";
import { saysNotFound } from "../kube/errors.ts";
import { claimNameOf, uidOf } from "../kube/pod.ts";
import type { PersistentVolume, PersistentVolumeClaim, Pod, Secret } from "../kube/wire.ts";
import { isClaimVolume, type PodVolume, usedVolumes } from "../podspec/pod-volumes.ts";
import { secretTexts } from "../podspec/references/csi-driver.ts";
import { withoutSecrets } from "../podspec/references/pod-secrets.ts";
import { Redactor } from "../podspec/references/redaction.ts";
import { csiVolumeName } from "../provider/csi-names.ts";
import { isProviderError } from "../provider/errors.ts";
import type { Machine, MachinePatch } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import type { Capability } from "../provider/capabilities.ts";
import { KeyedQueue } from "../queue/keyed-queue.ts";
import { Quantity } from "../resources/quantity.ts";
import type { Logger } from "../telemetry/logger.ts";
import { type Clock, rfc3339 } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { grownStatus } from "./grown-claims.ts";

interface GrowingClaimsOptions {
  kube: Kube;
  provider: Pick<Provider, "updatePod">;
  nodeName: string;
  /** Whether the backend can let such volumes grow for this pod. */
  offers: (capability: Extract<Capability, "volumes.csi_growth" | "volumes.host_growth">, pod: Pod) => boolean;
  event: (pod: Pod, event: { type: "Normal" | "Warning"; reason: string; message: string }) => void;
  clock: Clock;
  random: Random;
  logger: Logger;
}

interface Growing {
  pod: Pod;
  machine: string;
  /** Bytes that the machine tells of, by the name that a volume has in the Node's status. */
  sizes: ReadonlyMap<string, number>;
  /** Volumes of which a driver has said that they cannot grow while they are in use, and to what size. */
  refused: Map<string, number>;
  /** Claims whose volumes are neither a driver's nor a disk of the host, which none becomes later. */
  foreign: Set<string>;
}

type Status = NonNullable<PersistentVolumeClaim["status"]>;
type CsiGrowth = NonNullable<MachinePatch["csi_volumes"]>[number];
/** Of a driver's volume, or of a disk of the host, as large as the claim's volume says. */
type Growth = { csi: CsiGrowth } | { host: NonNullable<MachinePatch["host_volumes"]>[number]; size: string };

/** A claim that waits for its node. */
interface Pending {
  claim: PersistentVolumeClaim;
  /** Of the claim. */
  path: string;
  pv: string;
  growth: Growth;
}

/** Pods whose claims are read at once: a driver may take minutes for each. */
const AT_ONCE = 4;
const LOOK_MS = 60_000;
const AGAIN_MS = { initialMs: 5_000, maxMs: 300_000 };
const ON_NODE: ReadonlySet<string | undefined> = new Set(["NodeResizePending", "NodeResizeInProgress"]);

export class GrowingClaims {
  readonly #options: GrowingClaimsOptions;
  readonly #queue: KeyedQueue;
  /** By pod. */
  readonly #growing = new Map<string, Growing>();

  constructor(options: GrowingClaimsOptions) {
    this.#options = options;
    this.#queue = new KeyedQueue({
      ...options,
      concurrency: AT_ONCE,
      backoff: AGAIN_MS,
      handle: (uid, signal) => this.#look(uid, signal),
    });
  }

  /** Called at each look at a pod. */
  look(pod: Pod, { id, state, csi_volumes = [] }: Pick<Machine, "id" | "state" | "csi_volumes">): void {
    const { offers } = this.#options;
    const uid = uidOf(pod);
    const own = offers("volumes.csi_growth", pod) ? csi_volumes : [];
    const mayHaveDisks = offers("volumes.host_growth", pod) && claimVolumes(pod).length > 0;
    if (state !== "running" || (own.length === 0 && !mayHaveDisks)) return this.release(uid);
    const sizes = new Map(own.map(({ driver, volume, size_bytes = 0 }) => [csiVolumeName(driver, volume), size_bytes]));
    const known = this.#growing.get(uid);
    const isNew = known === undefined || (known.sizes.size === 0 && sizes.size > 0);
    const { refused, foreign } = isNew ? { refused: new Map<string, number>(), foreign: new Set<string>() } : known;
    this.#growing.set(uid, { pod, machine: id, sizes, refused, foreign });
    if (isNew) this.#lookLater(uid);
  }

  /** Forgets a pod that is over or gone. */
  release(podUid: string): void {
    this.#growing.delete(podUid);
    this.#queue.forget(podUid);
  }

  /** Looks until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await this.#queue.run(signal);
  }

  #lookLater(uid: string): void {
    this.#queue.addAfter(uid, LOOK_MS * (0.5 + this.#options.random()));
  }

  /** @throws what is to be tried again */
  async #look(uid: string, signal: AbortSignal): Promise<void> {
    const growing = this.#growing.get(uid);
    if (growing === undefined) return;
    let failed: unknown;
    const volumes = claimVolumes(growing.pod);
    for (const volume of volumes) {
      try {
        const pending = await this.#pending(growing, volume, signal);
        if (pending !== undefined) await this.#grow(growing, pending, signal);
      } catch (thrown) {
        signal.throwIfAborted();
        // One volume keeps no other one.
        failed ??= thrown;
      }
    }
    if (failed !== undefined) throw failed;
    this.#queue.forget(uid);
    if (growing.sizes.size > 0 || volumes.some(({ name }) => !growing.foreign.has(name))) this.#lookLater(uid);
  }

  /** Undefined for one that does not wait for this machine's node to let it grow. */
  async #pending(growing: Growing, volume: PodVolume, signal: AbortSignal): Promise<Pending | undefined> {
    const name = claimNameOf(growing.pod, volume);
    if (name === undefined || growing.foreign.has(volume.name)) return undefined;
    const at = { resource: "persistentvolumeclaims", namespace: growing.pod.metadata?.namespace ?? "", name };
    const claim = await this.#get<PersistentVolumeClaim>(at, signal);
    const pv = claim?.spec?.volumeName;
    if (claim === undefined || !pv) return undefined;
    const mayGrow = isPending(claim.status) || hasGrownElsewhere(claim, growing);
    if (!mayGrow && growing.sizes.size > 0) return undefined;
    const volumeObject = await this.#get<PersistentVolume>({ resource: "persistentvolumes", name: pv }, signal);
    if (volumeObject === undefined) return undefined;
    const { csi, local } = volumeObject.spec ?? {};
    // A machine without a driver's volumes is looked at again for its disks alone.
    if (!local && !(csi && growing.sizes.size > 0)) growing.foreign.add(volume.name);
    const growth = mayGrow
      ? await this.#growth(claim, volumeObject, { growing, name: volume.name }, signal)
      : undefined;
    return growth && { claim, pv, path: resourcePath({ ...at, subresource: "status" }), growth };
  }

  async #growth(
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    { growing, name }: { growing: Growing; name: string },
    signal: AbortSignal,
  ): Promise<Growth | undefined> {
    const csi = growthOf(claim, volume, growing);
    if (csi === undefined)
      return this.#options.offers("volumes.host_growth", growing.pod) ? diskGrowth(claim, volume, name) : undefined;
    const expand_secrets = await this.#secrets(volume.spec?.csi?.nodeExpandSecretRef, signal);
    return { csi: expand_secrets === undefined ? csi : { ...csi, expand_secrets } };
  }

  async #secrets(
    ref: { readonly namespace?: string; readonly name?: string } | undefined,
    signal: AbortSignal,
  ): Promise<Record<string, string> | undefined> {
    if (ref === undefined) return undefined;
    const path = resourcePath({ resource: "secrets", namespace: ref.namespace ?? "", name: ref.name ?? "" });
    return secretTexts(await this.#options.kube.request<Secret>({ method: "GET", path, signal }));
  }

  async #grow(growing: Growing, { claim, path, pv, growth }: Pending, signal: AbortSignal): Promise<void> {
    const { kube, event, nodeName } = this.#options;
    const { pod, machine } = growing;
    const [patch, secrets] =
      "csi" in growth
        ? [{ csi_volumes: [growth.csi] }, growth.csi.expand_secrets ?? {}]
        : [{ host_volumes: [growth.host] }, {}];
    // The pod's own secrets, which are redacted already, do not have these among them.
    const redactor = new Redactor();
    redactor.add(Object.values(secrets), "");
    const provider = withoutSecrets(this.#options.provider, (_machine, text) => redactor.redact(text));
    const status = claim.status?.allocatedResourceStatuses?.["storage"];
    // The controller changes its size no more from here on (resize_util: MarkNodeExpansionInProgress).
    let latest = claim;
    if (status === "NodeResizePending")
      latest = await kube.request({ ...statusPatch(path, claim, { status: "NodeResizeInProgress" }), signal });
    try {
      await provider.updatePod?.(machine, patch, { signal });
    } catch (thrown) {
      signal.throwIfAborted();
      return await this.#tellFailure(thrown, growing, { claim: latest, path, pv, growth }, signal);
    }
    if ("size" in growth) await kube.request({ ...grownStatus(path, latest, growth.size), signal });
    const message = `MountVolume.NodeExpandVolume succeeded for volume "${pv}" ${nodeName}`;
    event(pod, { type: "Normal", reason: "FileSystemResizeSuccessful", message });
  }

  /** @throws what has failed, when it is to be tried again */
  async #tellFailure(
    thrown: unknown,
    { pod, refused }: Growing,
    { claim, path, growth }: Pending,
    signal: AbortSignal,
  ): Promise<void> {
    const { kube, event, clock } = this.#options;
    const { message } = toError(thrown);
    // The machine is at its end, or does not have it any more.
    if (isProviderError(thrown, "conflict") || isProviderError(thrown, "not_found")) return;
    // The driver is at it still: how that ends, it says when it is asked again.
    if (isProviderError(thrown, "unavailable") && thrown.retryAfterMs !== undefined) throw thrown;
    // kubelet: MarkForInUseExpansionError; the next machine that gets the volume has it grown before.
    const isInUse = isProviderError(thrown, "in_use");
    if (isInUse && "csi" in growth)
      refused.set(csiVolumeName(growth.csi.driver, growth.csi.volume), growth.csi.size_bytes);
    else event(pod, { type: "Warning", reason: "VolumeResizeFailed", message });
    const isMarked = claim.status?.allocatedResourceStatuses?.["storage"] !== undefined;
    const isInfeasible = isProviderError(thrown, "invalid") && isMarked;
    const failure = { ...(isInfeasible && { status: "NodeResizeInfeasible" }), error: message };
    await kube.request({ ...statusPatch(path, claim, failure, rfc3339(clock.now())), signal });
    if (!isInfeasible && !isInUse) throw thrown;
  }

  async #get<T>(
    at: { resource: string; namespace?: string; name: string },
    signal: AbortSignal,
  ): Promise<T | undefined> {
    try {
      return await this.#options.kube.request<T>({ method: "GET", path: resourcePath(at), signal });
    } catch (thrown) {
      if (saysNotFound(thrown, at)) return undefined;
      throw thrown;
    }
  }
}

/** Those that its pod may only read do not grow for it (kubelet: checkVolumeFSResize). */
const claimVolumes = (pod: Pod): PodVolume[] =>
  usedVolumes(pod).flatMap(({ volume }) =>
    isClaimVolume(volume) && volume.persistentVolumeClaim?.readOnly !== true ? [volume] : [],
  );

/** Undefined for what the machine does not have, or has as large already. */
function growthOf(
  { metadata }: PersistentVolumeClaim,
  { spec = {} }: PersistentVolume,
  { sizes, refused }: Growing,
): CsiGrowth | undefined {
  const { csi, capacity, claimRef } = spec;
  // A driver may make more than was asked for, and the claim is told of all of it (GrownClaims).
  const size = capacity?.["storage"];
  if (!csi || csi.readOnly === true || size === undefined || claimRef?.uid !== metadata?.uid) return undefined;
  const inNode = csiVolumeName(csi.driver, csi.volumeHandle);
  const size_bytes = Quantity.parse(size).toNumber();
  const largest = Math.max(sizes.get(inNode) ?? Infinity, refused.get(inNode) ?? 0);
  return largest < size_bytes ? { driver: csi.driver, volume: csi.volumeHandle, size_bytes } : undefined;
}

/** @param name of the pod's volume */
function diskGrowth(claim: PersistentVolumeClaim, { spec = {} }: PersistentVolume, name: string): Growth | undefined {
  const { local, capacity, claimRef } = spec;
  const size = capacity?.["storage"];
  if (!local || size === undefined || claimRef?.uid !== claim.metadata?.uid) return undefined;
  // Who has the device itself sees that it has grown (kubelet: local, NodeExpand).
  return claim.spec?.volumeMode === "Block" ? undefined : { host: { name }, size };
}

/** kubelet: node_expander, runPreCheck; without a word of the newer kind it is of an older resizer. */
function isPending({ allocatedResourceStatuses, allocatedResources, conditions = [] }: Status = {}): boolean {
  const status = allocatedResourceStatuses?.["storage"];
  if (status !== undefined || allocatedResources !== undefined) return ON_NODE.has(status);
  return conditions.some(({ type, status: value }) => type === "FileSystemResizePending" && value === "True");
}

/**
 * Another node's machine may have had the volume grow, and the claim has its size: here it is as it was when it was
 * mounted (kubelet: node_expander, runPreCheck, "last recorded size in ASOW is older").
 */
function hasGrownElsewhere({ status }: PersistentVolumeClaim, { sizes }: Growing): boolean {
  const { capacity, accessModes = [] } = status ?? {};
  const text = capacity?.["storage"];
  if (text === undefined || !accessModes.some((mode) => mode.endsWith("Many"))) return false;
  const told = Quantity.parse(text).toNumber();
  return [...sizes.values()].some((size) => size > 0 && size < told);
}

/** Of this version of the claim alone: another may be that of a claim that grows again. */
function statusPatch(
  path: string,
  { metadata, status }: PersistentVolumeClaim,
  change: { status?: string; error?: string },
  now = "",
) {
  const { uid, resourceVersion } = metadata ?? {};
  // kubelet: MarkNodeExpansionFailedCondition.
  const conditions = change.error !== undefined && [
    ...(status?.conditions ?? []).filter(({ type }) => type !== "NodeResizeError"),
    {
      ...{ type: "NodeResizeError", status: "True", lastTransitionTime: now },
      message: `failed to expand pvc with ${change.error}`,
    },
  ];
  return mergePatch(path, {
    metadata: { uid, resourceVersion },
    status: {
      ...(change.status !== undefined && { allocatedResourceStatuses: { storage: change.status } }),
      ...(conditions !== false && { conditions }),
    },
  });
}
