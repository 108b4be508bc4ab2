/**
 * The persistent volumes of a pod: from its claims to what its machine is told, once a kubelet would mount them. They
 * are vmlet's own (of the Machine API), of CSI drivers of others whose node plugins run on the backend's host, folders
 * of NFS servers, or paths of that host (local, hostPath), for pods that may have those.
 * Claims, volumes and attachments are read by name alone, when a pod is to be made, and never listed or watched: the
 * Node authorizer allows no more, and a node's pods cost nothing once they run.
 *
 * In a kubelet's order, for it is what keeps a volume from being detached while a machine gets it: bound, then told of
 * in the Node's `volumesInUse`, then seen in its `volumesAttached` by a read that no cache answers, then attached by
 * the VolumeAttachment's own word. The controller that detaches takes it out of `volumesAttached` first, and then
 * leaves alone what is in use. What the API server says is not what keeps two machines from one of vmlet's own volumes:
 * that is the backend's reservation.
 */
import { createHash } from "node:crypto";
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { nodePath, resourcePath } from "../../kube/paths.ts";
import { allContainersOf, claimNameOf, uidOf } from "../../kube/pod.ts";
import type { Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment } from "../../kube/wire.ts";
import type { Capability } from "../../provider/capabilities.ts";
import { CSI_DRIVER, csiVolumeName } from "../../provider/csi-names.ts";
import type { Volume } from "../../provider/machine.ts";
import { type Labels, matchesNodeSelectorTerms } from "../../resources/labels.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import { nfsVolume } from "../nfs-volume.ts";
import { isClaimVolume, type PodVolume, usedVolumes } from "../pod-volumes.ts";
import type { DiskLookup } from "../types.ts";
import { type BoundVolume, CsiDisks } from "./csi-disks.ts";
import { CsiDrivers } from "./csi-driver.ts";
import { Looks } from "./looks.ts";
import type { TokenManager } from "./tokens.ts";

/**
 * What the Node tells of volumes that its machines have, or are about to have. Each is named as there:
 * `kubernetes.io/csi/DRIVER^HANDLE`.
 */
interface DiskUse {
  /**
   * A machine of this pod is to have these volumes.
   * @returns whether the Node says so
   */
  claim(podUid: string, names: readonly string[]): boolean;
  /** Whether another pod's machine is to have it. */
  isOthers(podUid: string, name: string): boolean;
  /** Whether another pod's machine has it that an earlier agent has asked for. */
  isHeldByOthers(podUid: string, name: string, signal: AbortSignal): Promise<boolean>;
  /** No machine of this pod is to have any; one that has them is the backend's to tell of. */
  release(podUid: string): void;
}

interface PodDisksOptions {
  kube: Kube;
  nodeName: string;
  /** By which this node's machines have volumes. */
  reservation: string;
  use: DiskUse;
  /** Gives pods tokens that CSI drivers ask for. */
  tokens: Pick<TokenManager, "issueOne">;
  /** Whether the backend has volumes of this kind. Default: its own alone. */
  offers?: ((capability: DiskCapability, pod: Pod) => boolean) | undefined;
  clock: Clock;
  random: Random;
  /** Whether this pod is there, and not over: nobody releases what is claimed for another one. Default: it is. */
  isLive?: ((podUid: string) => boolean) | undefined;
  /** The pod with this UID may have its volumes now. */
  onChange: (podUid: string) => void;
}

/** kubelet: ErrReadWriteOncePod. */
const TAKEN = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
const CLAIM_PROTECTION = "kubernetes.io/pvc-protection";
/** This many of a pod's objects are asked for at once. */
const AT_ONCE = 8;

type DiskCapability = Extract<
  Capability,
  "volumes.persistent" | "volumes.csi_persistent" | "volumes.csi_block" | "volumes.host" | "volumes.nfs"
>;
type Found = Extract<DiskLookup, { kind: "found" }>;

interface Bound {
  /** Name in the pod. */
  name: string;
  claimName: string;
  /** As the Node's status has it. */
  inUse: string;
  /** Path of its VolumeAttachment; absent: nobody attaches it. */
  attachment?: string;
  /** By its access mode. */
  isOnePods: boolean;
  /** Once it is attached. Not ok with the whole of what is said. */
  found(attachment: VolumeAttachment | undefined, signal: AbortSignal): Promise<Result<Found>>;
}

/** What a pod waits for: that its volumes are bound, or that the Node says something of them. */
type Stage = "claims" | "node";

/** Not ok with why the claim cannot be had, or with the whole of what is said. */
type BoundResult = { ok: true; value: Bound } | { ok: false; message: string; isWhole?: boolean };

export class PodDisks {
  readonly #options: PodDisksOptions;
  readonly #others: CsiDisks;
  /** Changes of the Node are told of beside these. */
  readonly #looks: Looks;
  /** Of each pod, the newest reading that is under way. */
  readonly #reading = new Map<string, symbol>();
  #attached = "[]";
  /** The Node's, as it was last seen. */
  #labels: Labels | undefined;

  constructor(options: PodDisksOptions) {
    this.#options = options;
    this.#looks = new Looks(options);
    this.#others = new CsiDisks(new CsiDrivers({ ...options, looks: this.#looks }), (...asked) =>
      this.#offers(...asked),
    );
  }

  /**
   * The pod's persistent volumes by their names in it: all can be had, or none. Until then the pod is called for again.
   *
   * @throws OverBudgetError when it has too many
   */
  async read(pod: Pod, signal: AbortSignal): Promise<ReadonlyMap<string, DiskLookup>> {
    const volumes = usedVolumes(pod).flatMap(({ volume }) => (isClaimVolume(volume) ? [volume] : []));
    if (volumes.length === 0) return new Map();
    if (volumes.length > POD_LIMITS.disks)
      throw new OverBudgetError(`the pod has ${volumes.length} persistent volumes, more than ${POD_LIMITS.disks}`);
    const uid = uidOf(pod);
    const reading = Symbol();
    this.#reading.set(uid, reading);
    const found = await inPortions(volumes, (volume) => this.#bound(pod, volume, signal));
    const isNewest = this.#reading.get(uid) === reading;
    if (isNewest) this.#reading.delete(uid);
    // It was released meanwhile, and nobody would release what is claimed for it now.
    if (!isNewest || this.#options.isLive?.(uid) === false)
      return new Map(volumes.map(({ name }) => [name, { kind: "waiting" }]));
    const free = found.map((each) => (each.ok ? this.#unlessTaken(pod, each.value) : each));
    const bound = free.flatMap((each) => (each.ok ? [each.value] : []));
    if (bound.length < found.length) {
      this.#looks.again(uid, "claims" satisfies Stage);
      return new Map(free.map((each, index) => [volumes[index]!.name, waiting(each)]));
    }
    const attachments = await this.#attachments(uid, bound, signal);
    const disks = attachments && (await inPortions(bound, (each) => each.found(attachments.get(each), signal)));
    if (disks?.every(({ ok }) => ok) !== true) {
      this.#looks.again(uid, "node" satisfies Stage);
      return new Map(bound.map(({ name }, index) => [name, waiting(disks?.[index], true)]));
    }
    this.#looks.forget(uid);
    return new Map(
      bound.flatMap(({ name }, index) => {
        const disk = disks[index]!;
        return disk.ok ? [[name, disk.value] as const] : [];
      }),
    );
  }

  /** The Node changed: a volume that is waited for may have been attached to it. */
  nodeChanged({ metadata, status }: Node): void {
    this.#labels = metadata?.labels ?? {};
    const attached = JSON.stringify(status?.volumesAttached ?? []);
    if (attached === this.#attached) return;
    this.#attached = attached;
    this.#looks.wake("node" satisfies Stage);
  }

  /** Forgets a pod that is over or gone. */
  release(podUid: string): void {
    this.#reading.delete(podUid);
    this.#looks.forget(podUid);
    this.#options.use.release(podUid);
  }

  close(): void {
    this.#looks.close();
  }

  /** The scheduler keeps such pods apart; one that names its node itself passes it by. */
  #unlessTaken(pod: Pod, bound: Bound): Result<Bound> {
    if (!bound.isOnePods || !this.#options.use.isOthers(uidOf(pod), bound.inUse)) return success(bound);
    return claimProblem(pod, bound.claimName, TAKEN);
  }

  /** Undefined until all that have to be are attached. */
  async #attachments(
    uid: string,
    bound: readonly Bound[],
    signal: AbortSignal,
  ): Promise<ReadonlyMap<Bound, VolumeAttachment> | undefined> {
    const { kube, nodeName, use } = this.#options;
    const isTold = use.claim(
      uid,
      bound.map(({ inUse }) => inUse),
    );
    if (!isTold) return undefined;
    const attached = bound.filter(({ attachment }) => attachment !== undefined);
    if (attached.length === 0) return new Map();
    try {
      const node = await kube.request<Node>({ method: "GET", path: nodePath(nodeName), signal });
      const told = new Set((node.status?.volumesAttached ?? []).map(({ name }) => name));
      if (!attached.every(({ inUse }) => told.has(inUse))) return undefined;
      const attachments = await inPortions(
        attached,
        async (each) =>
          [each, await kube.request<VolumeAttachment>({ method: "GET", path: each.attachment!, signal })] as const,
      );
      const areAttached = attachments.every(
        ([, { metadata, status }]) => status?.attached === true && metadata?.deletionTimestamp === undefined,
      );
      return areAttached ? new Map(attachments) : undefined;
    } catch {
      // Not attached, or not known: nothing is made either way.
      signal.throwIfAborted();
      return undefined;
    }
  }

  /** The volume behind a claim. Not ok with an empty text: nothing is wrong yet. */
  async #bound(pod: Pod, volume: PodVolume, signal: AbortSignal): Promise<BoundResult> {
    const isOwn = volume.ephemeral !== undefined;
    const claimName = claimNameOf(pod, volume) ?? "";
    const claim = await this.#claim(pod, claimName, isOwn, signal);
    const bound: BoundResult = claim.ok ? await this.#disk(pod, volume, claim.value, signal) : claim;
    if (bound.ok) {
      const { isOnePods, inUse } = bound.value;
      const isTaken = isOnePods && (await this.#options.use.isHeldByOthers(uidOf(pod), inUse, signal));
      return isTaken ? claimProblem(pod, claimName, TAKEN) : bound;
    }
    return bound.message === "" || bound.isWhole === true ? bound : claimProblem(pod, claimName, bound.message);
  }

  /** @param isOwn the claim was made for this pod, and goes with it */
  async #claim(pod: Pod, name: string, isOwn: boolean, signal: AbortSignal): Promise<Result<PersistentVolumeClaim>> {
    const { namespace = "", name: podName } = pod.metadata ?? {};
    const path = { resource: "persistentvolumeclaims", namespace, name };
    const read = await this.#get<PersistentVolumeClaim>(pod, path, "PVC", signal);
    if (!read.ok) return read;
    const { metadata, spec, status } = read.value;
    const { deletionTimestamp, finalizers = [], ownerReferences = [] } = metadata ?? {};
    if (isOwn && !ownerReferences.some(({ uid, controller }) => controller && uid === uidOf(pod)))
      return failure(`PVC ${namespace}/${name} was not created for pod ${namespace}/${podName} (pod is not owner)`);
    if (deletionTimestamp !== undefined && !finalizers.includes(CLAIM_PROTECTION))
      return failure("PVC is being deleted");
    if (status?.phase !== "Bound") return failure("PVC is not bound");
    return spec?.volumeName ? read : failure("PVC has empty pvc.Spec.VolumeName");
  }

  async #disk(pod: Pod, volume: PodVolume, claim: PersistentVolumeClaim, signal: AbortSignal): Promise<BoundResult> {
    const name = claim.spec?.volumeName ?? "";
    const read = await this.#get<PersistentVolume>(pod, { resource: "persistentvolumes", name }, `PV ${name}`, signal);
    if (!read.ok) return read;
    const { spec } = read.value;
    const problem =
      bindingProblem(spec, name, claim) ??
      this.#notHere(pod, name, spec) ??
      modeProblem(pod, volume.name, spec?.volumeMode ?? "Filesystem");
    if (problem !== undefined) return failure(problem);
    if (spec?.csi) return await this.#attachable(pod, { name, spec, csi: spec.csi, claim, volume }, signal);
    if (spec?.nfs) return success(serversDisk(name, spec, claim, volume));
    return this.#pathOfHost(name, spec!, claim, volume);
  }

  /** Each node has a path of that name: nobody attaches it, who would see that this is the wrong one. */
  #pathOfHost(
    name: string,
    spec: NonNullable<VolumeSpec>,
    claim: PersistentVolumeClaim,
    volume: PodVolume,
  ): BoundResult {
    const path = pathOnHost(spec);
    if (path === undefined || !ON_HOST.test(path)) return failure(`PV ${name} has the path "${path}", which is none`);
    const terms = spec.nodeAffinity?.required?.nodeSelectorTerms;
    if (terms !== undefined) {
      if (this.#labels === undefined) return failure("");
      if (!matchesNodeSelectorTerms({ name: this.#options.nodeName, labels: this.#labels }, terms))
        return { ...failure(affinityProblem(name, spec)), isWhole: true };
    }
    return success(hostDisk(name, spec, claim, volume));
  }

  /** Why no pod of the kind of this one has such a volume on this node. */
  #notHere(pod: Pod, name: string, spec: VolumeSpec): string | undefined {
    const { csi } = spec ?? {};
    if (spec?.nfs) return this.#offers("volumes.nfs", pod) ? undefined : `PV ${name} ${NOT_OF_SERVERS}`;
    if (pathOnHost(spec) !== undefined)
      return this.#offers("volumes.host", pod) ? undefined : `PV ${name} ${NOT_OF_HOST}`;
    const capability = csi?.driver === CSI_DRIVER ? "volumes.persistent" : "volumes.csi_persistent";
    return csi && this.#offers(capability, pod) ? undefined : `PV ${name} ${notOurs(csi)}`;
  }

  async #attachable(pod: Pod, other: BoundVolume, signal: AbortSignal): Promise<BoundResult> {
    const { spec, csi, claim, volume } = other;
    const bound = {
      name: volume.name,
      claimName: claim.metadata?.name ?? "",
      inUse: csiVolumeName(csi.driver, csi.volumeHandle),
      attachment: attachmentPath(csi, this.#options.nodeName),
      isOnePods: isOnePods(spec),
    };
    if (csi.driver === CSI_DRIVER)
      return success({ ...bound, found: () => Promise.resolve(success(this.#own(volume, spec, csi))) });
    const driver = await this.#others.driver(pod, other, signal);
    if (!driver.ok) return { ...driver, isWhole: true };
    const { attachment, ...unattached } = bound;
    return success({
      ...unattached,
      ...(driver.value.attachRequired !== false && { attachment }),
      found: async (attached: VolumeAttachment | undefined, until: AbortSignal) =>
        await this.#others.disk(pod, other, { driver: driver.value, attachment: attached }, until),
    });
  }

  #offers(capability: DiskCapability, pod: Pod): boolean {
    return this.#options.offers?.(capability, pod) ?? capability === "volumes.persistent";
  }

  #own(volume: PodVolume, spec: VolumeSpec, { volumeHandle }: { readonly volumeHandle: string }): Found {
    const { mountOptions = [] } = spec ?? {};
    const isReadOnly = volume.persistentVolumeClaim?.readOnly === true || isReadOnlyVolume(spec);
    return {
      kind: "found",
      disk: {
        type: "persistent",
        volume: volumeHandle,
        reservation: this.#options.reservation,
        ...(isReadOnly && { read_only: true }),
        ...(mountOptions.length > 0 && { mount_options: [...mountOptions] }),
      },
    };
  }

  /** Not ok in a kubelet's words. */
  async #get<T>(
    pod: Pod,
    object: { resource: string; namespace?: string; name: string },
    what: string,
    signal: AbortSignal,
  ): Promise<Result<T>> {
    try {
      return success(await this.#options.kube.request<T>({ method: "GET", path: resourcePath(object), signal }));
    } catch (thrown) {
      signal.throwIfAborted();
      if (isForbidden(thrown) && this.#looks.isEarly(uidOf(pod))) return failure("");
      const { resource, name } = object;
      const why = saysNotFound(thrown, { resource, name })
        ? `${resource} "${name}" not found`
        : toError(thrown).message;
      return failure(`failed to fetch ${what} from API server: ${why}`);
    }
  }
}

const claimProblem = ({ metadata }: Pod, claimName: string, problem: string) =>
  failure(`error processing PVC ${metadata?.namespace}/${claimName}: ${problem}`);

function waiting(result: BoundResult | Result<Found> | undefined, isWhole = false): DiskLookup {
  if (result === undefined || result.ok || result.message === "") return { kind: "waiting" };
  const isAll = isWhole || "isWhole" in result;
  return { kind: "waiting", message: result.message, ...(isAll && { isWhole: true }) };
}

/** The name that the attach-detach controller gives it (`getAttachmentName`). */
function attachmentPath(
  { driver, volumeHandle }: { readonly driver: string; readonly volumeHandle: string },
  nodeName: string,
): string {
  const hash = createHash("sha256").update(`${volumeHandle}${driver}${nodeName}`).digest("hex");
  return resourcePath({ group: "storage.k8s.io", resource: "volumeattachments", name: `csi-${hash}` });
}

type VolumeSpec = PersistentVolume["spec"];
type HostVolume = Extract<Volume, { type: "host" }>;

function bindingProblem(spec: VolumeSpec, name: string, { metadata }: PersistentVolumeClaim): string | undefined {
  const bound = spec?.claimRef;
  if (!bound)
    return `found PV object ${name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim`;
  if (bound.uid === metadata?.uid) return undefined;
  return `found PV object ${name} but its pv.Spec.ClaimRef.UID ${bound.uid} does not point to claim.UID ${metadata?.uid}`;
}

function isReadOnlyVolume(spec: VolumeSpec): boolean {
  const modes = spec?.accessModes ?? [];
  return spec?.csi?.readOnly === true || (modes.length > 0 && modes.every((mode) => mode === "ReadOnlyMany"));
}

const isOnePods = (spec: VolumeSpec): boolean => spec?.accessModes?.includes("ReadWriteOncePod") ?? false;

const NOT_OF_HOST =
  "is a path of a node's own: this node's backend gives none to pods of this namespace (its engine.host names those that may have them)";

const NOT_OF_SERVERS = "is a folder of an NFS server: this node's backend mounts none (capability volumes.nfs)";

/** kubelet: operationexecutor, checkNodeAffinity. */
const affinityProblem = (name: string, { volumeMode }: NonNullable<VolumeSpec>) =>
  `${volumeMode === "Block" ? "Map" : "Mount"}Volume.NodeAffinity check failed for volume "${name}" : no matching NodeSelectorTerms`;

/** That block devices may have; Kubernetes' default is ext4. */
const FS_TYPES = ["ext2", "ext3", "ext4", "xfs"] as const;
/** As the Machine API has them. */
const ON_HOST = /^\/(?!(.*\/)?\.\.(\/|$)).{0,4095}$/;

const pathOnHost = (spec: VolumeSpec): string | undefined => (spec?.local ?? spec?.hostPath)?.path;

/** Nobody attaches it: kubelet, the plugins `local`, whose files become the pod's group's, and `hostPath`. */
function hostDisk(name: string, spec: NonNullable<VolumeSpec>, claim: PersistentVolumeClaim, volume: PodVolume): Bound {
  const { local, hostPath, volumeMode } = spec;
  // The API server admits no other type.
  const asked = hostPath?.type as HostVolume["path_type"];
  const type = volumeMode === "Block" ? "BlockDevice" : local ? "Directory" : asked;
  const isReadOnly = volume.persistentVolumeClaim?.readOnly === true;
  const fsType = FS_TYPES.find((each) => each === (local?.fsType || "ext4"));
  const disk: Omit<HostVolume, "name"> = {
    type: "host",
    path: pathOnHost(spec)!,
    ...(type && { path_type: type }),
    ...(isReadOnly && { read_only: true }),
    ...(local && volumeMode !== "Block" && !isReadOnly && { fs_group: true }),
    ...(local && fsType && volumeMode !== "Block" && { fs_type: fsType }),
  };
  return {
    name: volume.name,
    claimName: claim.metadata?.name ?? "",
    inUse: `kubernetes.io/${local ? "local-volume" : "host-path"}/${name}`,
    isOnePods: isOnePods(spec),
    found: () => Promise.resolve(success({ kind: "found", disk })),
  };
}

/** Nobody attaches it, and its files stay whose the server says that they are (kubelet: the plugin `nfs`). */
function serversDisk(
  name: string,
  spec: NonNullable<VolumeSpec>,
  claim: PersistentVolumeClaim,
  volume: PodVolume,
): Bound {
  const isReadOnly = volume.persistentVolumeClaim?.readOnly === true;
  const disk = nfsVolume(spec.nfs!, { isReadOnly, mountOptions: spec.mountOptions ?? [] });
  return {
    name: volume.name,
    claimName: claim.metadata?.name ?? "",
    inUse: `kubernetes.io/nfs/${name}`,
    isOnePods: isOnePods(spec),
    found: () => Promise.resolve(success({ kind: "found", disk })),
  };
}

function notOurs(csi: NonNullable<VolumeSpec>["csi"]): string {
  if (csi) return `is of the CSI driver ${csi.driver}, which this node does not have (it has ${CSI_DRIVER})`;
  return `is no volume of the CSI driver ${CSI_DRIVER}, and this node mounts no others`;
}

/** kubelet: the populator's `createVolumeSpec`. */
function modeProblem(pod: Pod, name: string, mode: string): string | undefined {
  for (const [field, fits] of [
    ["volumeMounts", "Filesystem"],
    ["volumeDevices", "Block"],
  ] as const)
    if (mode !== fits && allContainersOf(pod).some((container) => container[field]?.some((each) => each.name === name)))
      return `volume ${name} has volumeMode ${mode}, but is specified in ${field}`;
  return undefined;
}

async function inPortions<T, R>(all: readonly T[], work: (each: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (let at = 0; at < all.length; at += AT_ONCE)
    results.push(...(await Promise.all(all.slice(at, at + AT_ONCE).map((each) => work(each)))));
  return results;
}
