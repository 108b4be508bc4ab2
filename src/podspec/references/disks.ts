/**
 * The persistent volumes of a pod: from its claims to what its machine is told, once a kubelet would mount them.
 * Claims, volumes and attachments are read by name alone, when a pod is to be made, and never listed or watched: the
 * Node authorizer allows no more, and a node's pods cost nothing once they run.
 *
 * In a kubelet's order, for it is what keeps a volume from being detached while a machine gets it: bound, then told of
 * in the Node's `volumesInUse`, then seen in its `volumesAttached` by a read that no cache answers, then attached by
 * the VolumeAttachment's own word. The controller that detaches takes it out of `volumesAttached` first, and then
 * leaves alone what is in use. What the API server says is not what keeps two machines from one volume: that is the
 * backend's reservation.
 */
import { createHash } from "node:crypto";
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { nodePath, resourcePath } from "../../kube/paths.ts";
import { allContainersOf, claimNameOf, uidOf } from "../../kube/pod.ts";
import type { Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment } from "../../kube/wire.ts";
import { CSI_DRIVER } from "../../provider/csi-names.ts";
import type { VolumeClaim } from "../../provider/volume.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import { isClaimVolume, type PodVolume, usedVolumes } from "../pod-volumes.ts";
import type { DiskLookup } from "../types.ts";
import { Looks } from "./looks.ts";

/** What the Node tells of volumes that its machines have, or are about to have. */
interface DiskUse {
  /**
   * A machine of this pod is to have these volumes.
   * @returns whether the Node says so
   */
  claim(podUid: string, handles: readonly string[]): boolean;
  /** Whether another pod's machine is to have it. */
  isOthers(podUid: string, handle: string): boolean;
  /** Whether another pod's machine has it that an earlier agent has asked for. */
  isHeldByOthers(podUid: string, handle: string, signal: AbortSignal): Promise<boolean>;
  /** No machine of this pod is to have any; one that has them is the backend's to tell of. */
  release(podUid: string): void;
}

interface PodDisksOptions {
  kube: Kube;
  nodeName: string;
  /** By which this node's machines have volumes. */
  reservation: string;
  use: DiskUse;
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

interface Bound {
  /** Name in the pod. */
  name: string;
  claimName: string;
  handle: string;
  /** By its access mode. */
  isOnePods: boolean;
  disk: Omit<VolumeClaim, "name">;
}

/** What a pod waits for: that its volumes are bound, or that the Node says something of them. */
type Stage = "claims" | "node";

/** In the Node's status it precedes a volume's handle. */
export const DISK_PREFIX = `kubernetes.io/csi/${CSI_DRIVER}^`;

export class PodDisks {
  readonly #options: PodDisksOptions;
  /** Changes of the Node are told of beside these. */
  readonly #looks: Looks;
  /** Of each pod, the newest reading that is under way. */
  readonly #reading = new Map<string, symbol>();
  #attached = "[]";

  constructor(options: PodDisksOptions) {
    this.#options = options;
    this.#looks = new Looks(options);
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
    if (bound.length === found.length && (await this.#isAttached(uid, bound, signal))) {
      this.#looks.forget(uid);
      return new Map(bound.map(({ name, disk }) => [name, { kind: "found", disk }]));
    }
    const stage: Stage = bound.length === found.length ? "node" : "claims";
    this.#looks.again(uid, stage);
    return new Map(
      free.map((each, index) => [
        volumes[index]!.name,
        { kind: "waiting", ...(!each.ok && each.message !== "" && { message: each.message }) },
      ]),
    );
  }

  /** The Node changed: a volume that is waited for may have been attached to it. */
  nodeChanged({ status }: Node): void {
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
    if (!bound.isOnePods || !this.#options.use.isOthers(uidOf(pod), bound.handle)) return success(bound);
    return claimProblem(pod, bound.claimName, TAKEN);
  }

  async #isAttached(uid: string, bound: readonly Bound[], signal: AbortSignal): Promise<boolean> {
    const { kube, nodeName, use } = this.#options;
    const isTold = use.claim(
      uid,
      bound.map(({ handle }) => handle),
    );
    if (!isTold) return false;
    try {
      const node = await kube.request<Node>({ method: "GET", path: nodePath(nodeName), signal });
      const attached = new Set((node.status?.volumesAttached ?? []).map(({ name }) => name));
      if (!bound.every(({ handle }) => attached.has(DISK_PREFIX + handle))) return false;
      const attachments = await inPortions(bound, ({ handle }) =>
        kube.request<VolumeAttachment>({ method: "GET", path: attachmentPath(handle, nodeName), signal }),
      );
      return attachments.every(
        ({ metadata, status }) => status?.attached === true && metadata?.deletionTimestamp === undefined,
      );
    } catch {
      // Not attached, or not known: nothing is made either way.
      signal.throwIfAborted();
      return false;
    }
  }

  /** The volume behind a claim. Not ok with an empty text: nothing is wrong yet. */
  async #bound(pod: Pod, volume: PodVolume, signal: AbortSignal): Promise<Result<Bound>> {
    const isOwn = volume.ephemeral !== undefined;
    const claimName = claimNameOf(pod, volume) ?? "";
    const claim = await this.#claim(pod, claimName, isOwn, signal);
    const bound = claim.ok ? await this.#disk(pod, volume, claim.value, signal) : claim;
    if (bound.ok) {
      const { isOnePods, handle } = bound.value;
      const isTaken = isOnePods && (await this.#options.use.isHeldByOthers(uidOf(pod), handle, signal));
      return isTaken ? claimProblem(pod, claimName, TAKEN) : bound;
    }
    return bound.message === "" ? bound : claimProblem(pod, claimName, bound.message);
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

  async #disk(pod: Pod, volume: PodVolume, claim: PersistentVolumeClaim, signal: AbortSignal): Promise<Result<Bound>> {
    const name = claim.spec?.volumeName ?? "";
    const read = await this.#get<PersistentVolume>(pod, { resource: "persistentvolumes", name }, `PV ${name}`, signal);
    if (!read.ok) return read;
    const { spec } = read.value;
    const unbound = bindingProblem(spec, name, claim);
    if (unbound !== undefined) return failure(unbound);
    const { csi, mountOptions = [] } = spec ?? {};
    if (csi?.driver !== CSI_DRIVER) return failure(`PV ${name} ${notOurs(csi)}`);
    const problem = modeProblem(pod, volume.name, spec?.volumeMode ?? "Filesystem");
    if (problem !== undefined) return failure(problem);
    const isReadOnly = volume.persistentVolumeClaim?.readOnly === true || isReadOnlyVolume(spec);
    const handle = csi.volumeHandle;
    return success({
      name: volume.name,
      claimName: claim.metadata?.name ?? "",
      handle,
      isOnePods: isOnePods(spec),
      disk: {
        type: "persistent",
        volume: handle,
        reservation: this.#options.reservation,
        ...(isReadOnly && { read_only: true }),
        ...(mountOptions.length > 0 && { mount_options: [...mountOptions] }),
      },
    });
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

/** The name that the attach-detach controller gives it (`getAttachmentName`). */
function attachmentPath(handle: string, nodeName: string): string {
  const hash = createHash("sha256").update(`${handle}${CSI_DRIVER}${nodeName}`).digest("hex");
  return resourcePath({ group: "storage.k8s.io", resource: "volumeattachments", name: `csi-${hash}` });
}

type VolumeSpec = PersistentVolume["spec"];

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
