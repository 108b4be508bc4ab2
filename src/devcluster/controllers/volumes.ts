/**
 * Persistent volumes of one CSI driver, whose controller runs in this process: what a real cluster has csi-provisioner,
 * csi-attacher, csi-resizer and the controllers of claims, attachments and ephemeral volumes for, as far as one driver
 * needs them. Volumes are made at once, not for a pod that wants them.
 *
 * The order of a detachment is the attach-detach controller's, on which kubelets rely: first the volume goes from the
 * Node's `volumesAttached`, then the Node is asked whether it is in use, then it is detached.
 */
import { createHash } from "node:crypto";
import { isTerminal } from "../../kube/pod.ts";
import { Quantity } from "../../resources/quantity.ts";
import { toError } from "../../util/errors.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { claimNameOf, claimNamesOf, CLAIM_PROTECTION, storageKinds } from "../kinds/storage.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { controllerReference } from "./actor.ts";
import { type ControllerOptions, KeyedController } from "./controller.ts";

/** What is asked of a volume. */
interface VolumeWish {
  name: string;
  claim: { namespace: string; name: string };
  bytes: number;
  mode: "Filesystem" | "Block";
  accessModes: readonly string[];
  parameters: Readonly<Record<string, string>>;
}

/** How a volume is had by a node. */
export interface VolumeAccess {
  mode: "Filesystem" | "Block";
  accessModes: readonly string[];
  readOnly: boolean;
}

/** The controller of a CSI driver. Every call may be repeated. */
export interface VolumeDriver {
  readonly name: string;
  create(wish: VolumeWish): Promise<{ handle: string; bytes: number }>;
  delete(handle: string): Promise<void>;
  publish(handle: string, nodeId: string, access: VolumeAccess): Promise<void>;
  unpublish(handle: string, nodeId: string): Promise<void>;
  /** @returns the bytes that it has then */
  expand(handle: string, bytes: number): Promise<number>;
}

/** It has one key: all volumes. */
const ALL = "volumes";
const RETRY_MS = 1_000;

const claimKind = mustFindKind("", "v1", "persistentvolumeclaims");
const { persistentVolumes: volumeKind, volumeAttachments: attachmentKind } = storageKinds;

/** A volume on a node that pods want there. */
interface Wanted {
  volume: StoredObject;
  nodeName: string;
}

export class PersistentVolumes extends KeyedController {
  readonly #driver: VolumeDriver | undefined;
  /** What the driver was asked and has not answered. */
  readonly #asked = new Set<string>();

  /** @param options.driver absent: claims are only kept until no pod uses them */
  constructor(options: ControllerOptions & { driver: VolumeDriver | undefined }) {
    super(options, "persistentvolume-binder");
    this.#driver = options.driver;
  }

  start(): void {
    for (const resource of [
      "/persistentvolumeclaims",
      "/persistentvolumes",
      "/nodes",
      "storage.k8s.io/csinodes",
      "storage.k8s.io/storageclasses",
      "storage.k8s.io/volumeattachments",
    ])
      this.watch(resource, () => this.queue.add(ALL));
    this.watch("/pods", ({ object }) => {
      if (claimNamesOf(object).length > 0) this.queue.add(ALL);
    });
    this.queue.add(ALL);
  }

  protected sync(): void {
    const pods = this.storage.list("/pods").filter((pod) => claimNamesOf(pod).length > 0);
    for (const pod of pods) this.#makeOwnClaims(pod);
    const claims = this.storage.list("/persistentvolumeclaims");
    for (const claim of claims) if (claim.metadata.deletionTimestamp) this.#letGo(claim, pods);
    const driver = this.#driver;
    if (driver === undefined) return;
    for (const claim of claims) if (!claim.metadata.deletionTimestamp) this.#syncClaim(claim, driver);
    const wanted = this.#wanted(pods, driver);
    for (const each of wanted.values()) this.#attach(each, driver);
    for (const attachment of this.storage.list("storage.k8s.io/volumeattachments"))
      if (!wanted.has(attachment.metadata.name)) this.#detach(attachment, driver);
    for (const volume of this.storage.list("/persistentvolumes")) this.#reclaim(volume, driver);
  }

  /** Generic ephemeral volumes: a claim that goes with its pod. */
  #makeOwnClaims(pod: StoredObject): void {
    if (isTerminal(pod) || pod.metadata.deletionTimestamp) return;
    for (const { name, ephemeral } of (pod.spec.volumes ?? []) as Json[]) {
      const claimName = `${pod.metadata.name}-${name}`;
      if (!ephemeral || this.actor.get(claimKind, pod.metadata.namespace, claimName)) continue;
      const { metadata = {}, spec } = ephemeral.volumeClaimTemplate;
      this.actor.create(claimKind, pod.metadata.namespace, {
        metadata: { ...metadata, name: claimName, ownerReferences: [controllerReference(pod)] },
        spec,
      });
    }
  }

  /** A claim that is being deleted goes when no pod uses it. */
  #letGo(claim: StoredObject, pods: readonly StoredObject[]): void {
    const { namespace, name, finalizers = [] } = claim.metadata;
    const isUsed = pods.some(
      (pod) => pod.metadata.namespace === namespace && !isTerminal(pod) && claimNamesOf(pod).includes(name),
    );
    const others = finalizers.filter((each) => each !== CLAIM_PROTECTION);
    if (!isUsed && others.length < finalizers.length)
      this.actor.update({ ...claim, metadata: { ...claim.metadata, finalizers: others } });
  }

  #syncClaim(claim: StoredObject, driver: VolumeDriver): void {
    const { namespace, name, uid } = claim.metadata;
    if (claim.status?.phase === "Bound") return this.#expand(claim, driver);
    const wanted = claim.spec.storageClassName as string | undefined;
    const storageClass = wanted ? this.storage.get("storage.k8s.io/storageclasses", wanted) : undefined;
    if (storageClass === undefined || storageClass["provisioner"] !== driver.name) return;
    const volumeName = `pvc-${uid}`;
    const made = this.actor.get(volumeKind, undefined, volumeName);
    if (made) return this.#bind(claim, made);
    const { accessModes, volumeMode: mode } = claim.spec;
    const wish: VolumeWish = {
      name: volumeName,
      claim: { namespace: namespace!, name },
      bytes: bytesOf(claim.spec.resources.requests.storage),
      mode,
      accessModes,
      parameters: storageClass["parameters"] ?? {},
    };
    this.#ask(`make ${volumeName}`, { about: claim, failing: "ProvisioningFailed" }, async () => {
      const { handle, bytes } = await driver.create(wish);
      const created = this.actor.create(volumeKind, undefined, {
        metadata: {
          name: volumeName,
          annotations: { "pv.kubernetes.io/provisioned-by": driver.name },
        },
        spec: {
          accessModes,
          capacity: { storage: Quantity.of(bytes, "BinarySI").toString() },
          claimRef: { apiVersion: "v1", kind: "PersistentVolumeClaim", namespace, name, uid },
          csi: { driver: driver.name, volumeHandle: handle },
          persistentVolumeReclaimPolicy: storageClass["reclaimPolicy"],
          storageClassName: wanted,
          volumeMode: mode,
          ...(storageClass["mountOptions"] && { mountOptions: storageClass["mountOptions"] }),
        },
      });
      this.actor.updateStatus(created, { phase: "Bound" });
      this.actor.event(claim, "Normal", "ProvisioningSucceeded", `Successfully provisioned volume ${volumeName}`);
    });
  }

  #bind(claim: StoredObject, volume: StoredObject): void {
    const bound =
      claim.spec.volumeName === volume.metadata.name
        ? claim
        : this.actor.update({ ...claim, spec: { ...claim.spec, volumeName: volume.metadata.name } });
    const { accessModes, capacity } = volume.spec;
    this.actor.updateStatus(bound, { phase: "Bound", accessModes, capacity });
  }

  #expand(claim: StoredObject, driver: VolumeDriver): void {
    const volume = this.actor.get(volumeKind, undefined, claim.spec.volumeName as string);
    const asked = claim.spec.resources.requests.storage as string;
    if (volume?.spec.csi?.driver !== driver.name) return;
    if (bytesOf(asked) <= bytesOf(claim.status?.capacity?.storage ?? "0")) return;
    this.#ask(`expand ${volume.metadata.name}`, { about: claim, failing: "VolumeResizeFailed" }, async () => {
      const bytes = await driver.expand(volume.spec.csi.volumeHandle as string, bytesOf(asked));
      const capacity = { storage: Quantity.of(bytes, "BinarySI").toString() };
      const now = this.actor.fresh(volume);
      if (now) this.actor.update({ ...now, spec: { ...now.spec, capacity } });
      const grown = this.actor.fresh(claim);
      if (grown) this.actor.updateStatus(grown, { ...grown.status, capacity });
    });
  }

  /** By the name of their VolumeAttachment: what pods of nodes want there. */
  #wanted(pods: readonly StoredObject[], driver: VolumeDriver): Map<string, Wanted> {
    const wanted = new Map<string, Wanted>();
    for (const pod of pods) {
      const nodeName = pod.spec.nodeName as string | undefined;
      if (!nodeName || isTerminal(pod)) continue;
      for (const each of (pod.spec.volumes ?? []) as Json[]) {
        const name = claimNameOf(pod, each);
        const claim = name && this.actor.get(claimKind, pod.metadata.namespace, name);
        if (!claim || claim.status?.phase !== "Bound") continue;
        const volume = this.actor.get(volumeKind, undefined, claim.spec.volumeName as string);
        if (volume?.spec.csi?.driver === driver.name)
          wanted.set(attachmentName(volume, nodeName), { volume, nodeName });
      }
    }
    return wanted;
  }

  #attach({ volume, nodeName }: Wanted, driver: VolumeDriver): void {
    const name = attachmentName(volume, nodeName);
    const attachment =
      this.actor.get(attachmentKind, undefined, name) ??
      this.actor.create(attachmentKind, undefined, {
        metadata: { name },
        spec: { attacher: driver.name, nodeName, source: { persistentVolumeName: volume.metadata.name } },
      });
    const nodeId = this.#nodeId(nodeName, driver);
    // Its agent has not said yet by which id the driver knows it.
    if (nodeId === undefined) return;
    if (attachment.status?.attached) return this.#tell(nodeName, volume, true);
    const { csi, volumeMode: mode, accessModes } = volume.spec;
    this.#ask(name, { about: volume, failing: "FailedAttachVolume" }, async () => {
      await driver.publish(csi.volumeHandle as string, nodeId, {
        mode,
        accessModes,
        readOnly: csi.readOnly === true,
      });
      const now = this.actor.fresh(attachment);
      if (now) this.actor.updateStatus(now, { attached: true });
    });
  }

  #detach(attachment: StoredObject, driver: VolumeDriver): void {
    const { nodeName, source } = attachment.spec;
    const volume = this.actor.get(volumeKind, undefined, source.persistentVolumeName as string);
    if (volume === undefined) return this.actor.delete(attachment);
    this.#tell(nodeName as string, volume, false);
    const node = this.storage.get("/nodes", nodeName as string);
    const handle = volume.spec.csi.volumeHandle as string;
    if (((node?.status?.volumesInUse ?? []) as string[]).includes(inUseName(volume))) return;
    const nodeId = this.#nodeId(nodeName as string, driver);
    this.#ask(attachment.metadata.name, { about: volume, failing: "DetachVolumeFailed" }, async () => {
      if (nodeId !== undefined) await driver.unpublish(handle, nodeId);
      this.actor.delete(attachment);
    });
  }

  /** Writes whether the Node has it attached. */
  #tell(nodeName: string, volume: StoredObject, isAttached: boolean): void {
    const node = this.storage.get("/nodes", nodeName);
    if (node === undefined) return;
    const name = inUseName(volume);
    const before = (node.status?.volumesAttached ?? []) as Json[];
    if (before.some((each) => each.name === name) === isAttached) return;
    const others = before.filter((each) => each.name !== name);
    const volumesAttached = isAttached ? [...others, { name, devicePath: "" }] : others;
    this.actor.updateStatus(node, { ...node.status, volumesAttached });
  }

  /** A volume whose claim is gone is deleted with it, or kept for people. */
  #reclaim(volume: StoredObject, driver: VolumeDriver): void {
    const { claimRef, csi, persistentVolumeReclaimPolicy: policy } = volume.spec;
    if (csi?.driver !== driver.name || !claimRef) return;
    const claim = this.actor.get(claimKind, claimRef.namespace as string, claimRef.name as string);
    if (claim?.metadata.uid === claimRef.uid) return;
    if (volume.status?.phase !== "Released") this.actor.updateStatus(volume, { phase: "Released" });
    if (policy !== "Delete") return;
    const isAttached = this.storage
      .list("storage.k8s.io/volumeattachments")
      .some(({ spec }) => spec.source.persistentVolumeName === volume.metadata.name);
    if (isAttached) return;
    this.#ask(`delete ${volume.metadata.name}`, { about: volume, failing: "VolumeFailedDelete" }, async () => {
      await driver.delete(csi.volumeHandle as string);
      this.actor.delete(volume);
    });
  }

  /** One thing at a time of each name; what fails is told of and tried again. */
  #ask(name: string, failure: { about: StoredObject; failing: string }, work: () => Promise<void>): void {
    if (this.#asked.has(name)) return;
    this.#asked.add(name);
    void (async () => {
      try {
        await work();
        this.queue.add(ALL);
      } catch (thrown) {
        this.actor.event(failure.about, "Warning", failure.failing, toError(thrown).message);
        this.queue.addAfter(ALL, RETRY_MS);
      } finally {
        this.#asked.delete(name);
      }
    })();
  }

  #nodeId(nodeName: string, driver: VolumeDriver): string | undefined {
    const drivers = (this.storage.get("storage.k8s.io/csinodes", nodeName)?.spec.drivers ?? []) as Json[];
    return drivers.find((each) => each.name === driver.name)?.nodeID as string | undefined;
  }
}

/** In the Node's status. */
function inUseName({ spec }: StoredObject): string {
  return `kubernetes.io/csi/${spec.csi.driver}^${spec.csi.volumeHandle}`;
}

/** As the attach-detach controller has it (`getAttachmentName`). */
function attachmentName({ spec }: StoredObject, nodeName: string): string {
  const { volumeHandle, driver } = spec.csi;
  return `csi-${createHash("sha256").update(`${volumeHandle}${driver}${nodeName}`).digest("hex")}`;
}

const bytesOf = (quantity: string): number => Math.ceil(Quantity.parse(quantity).toNumber());
