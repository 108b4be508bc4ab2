/**
 * CSI's controller service in front of the Machine API. It keeps nothing: what it is asked to remember is the backend's
 * to remember, so any number of copies, and one that was killed, say the same.
 *
 * - A volume's id is made from its name: a create whose answer was lost finds what it made.
 * - Publishing to a node is reserving the volume for that node's machines. Nothing is attached then: the machine's own
 *   specification names the volume, and the backend attaches it with the machine. What publishing does is to keep other
 *   nodes' machines away, also those that are late.
 * - Unpublishing gives the reservation back. The backend refuses that for as long as a machine of the node may still
 *   write, so Kubernetes is told that a volume is detached only when it is.
 * - Of a node that its owner has tainted as out of service, the machines are stopped for it (`volumes.force_release`).
 *   CSI's call does not say so: every detachment looks the same, also one that only waited for too long.
 */
import { Code, ConnectError, type HandlerContext } from "@connectrpc/connect";
import { nodeNameOf, ZONE_KEY } from "../provider/csi-names.ts";
import { clusterPrefix, LABEL_CLUSTER } from "../provider/owner.ts";
import { isProviderError } from "../provider/errors.ts";
import type { Provider } from "../provider/provider.ts";
import type { PersistentVolume, VolumeProvider } from "../provider/volume.ts";
import {
  type ControllerExpandVolumeRequest,
  type ControllerPublishVolumeRequest,
  type ControllerUnpublishVolumeRequest,
  type CreateSnapshotRequest,
  type CreateVolumeRequest,
  type DeleteSnapshotRequest,
  type DeleteVolumeRequest,
  type GetCapacityRequest,
  type ListSnapshotsRequest,
  type ListVolumesRequest,
  type ValidateVolumeCapabilitiesRequest,
  ControllerServiceCapability_RPC_Type as Rpc,
} from "./api.gen.js";
import { invalid, orAbsent } from "./errors.ts";
import { pageOf } from "./pages.ts";
import {
  bytesOf,
  canExclude,
  isForOneNode,
  isVolumeId,
  LABEL_SNAPSHOT,
  specOf,
  unmetCapability,
  volumeIdOf,
} from "./requests.ts";
import { Snapshots } from "./snapshots.ts";

const RPCS: readonly Rpc[] = [
  Rpc.CREATE_DELETE_VOLUME,
  Rpc.PUBLISH_UNPUBLISH_VOLUME,
  Rpc.LIST_VOLUMES,
  Rpc.LIST_VOLUMES_PUBLISHED_NODES,
  Rpc.GET_CAPACITY,
  Rpc.EXPAND_VOLUME,
  Rpc.PUBLISH_READONLY,
  Rpc.SINGLE_NODE_MULTI_WRITER,
];
/** Of a backend that can copy a volume (capability `volumes.clone`). */
const COPYING_RPCS: readonly Rpc[] = [Rpc.CLONE_VOLUME, Rpc.CREATE_DELETE_SNAPSHOT, Rpc.LIST_SNAPSHOTS];

export interface ControllerOptions {
  provider: Provider;
  /** As the agents have it: whose volumes these are. */
  clusterId: string;
  /**
   * Whether the owner of the node has said that nothing of it runs (taint `node.kubernetes.io/out-of-service`). Never
   * rejects: what is not known is not said. Default: of no node.
   */
  isOutOfService?: ((nodeName: string, signal: AbortSignal) => Promise<boolean>) | undefined;
}

type Call = Pick<HandlerContext, "signal">;

export class ControllerService {
  readonly #provider: Provider;
  readonly #volumes: VolumeProvider;
  readonly #clusterId: string;
  readonly #cluster: string;
  readonly #snapshots: Snapshots;
  readonly #isOutOfService: NonNullable<ControllerOptions["isOutOfService"]>;

  /** @throws Error for a backend that has no volumes */
  constructor({ provider, clusterId, isOutOfService = () => Promise.resolve(false) }: ControllerOptions) {
    this.#provider = provider;
    this.#isOutOfService = isOutOfService;
    this.#volumes = volumesOf(provider);
    this.#clusterId = clusterId;
    this.#cluster = clusterPrefix(clusterId);
    this.#snapshots = new Snapshots({
      volumes: this.#volumes,
      clusterId,
      cluster: this.#cluster,
      findVolume: (id, signal) => this.#find(id, signal),
    });
  }

  async controllerGetCapabilities(_request: object, { signal }: Call) {
    const { capabilities } = await this.#provider.getInfo({ signal });
    const rpcs = capabilities.includes("volumes.clone") ? [...RPCS, ...COPYING_RPCS] : RPCS;
    return { capabilities: rpcs.map((type) => ({ type: { case: "rpc" as const, value: { type } } })) };
  }

  async createVolume(request: CreateVolumeRequest, { signal }: Call) {
    const info = await this.#provider.getInfo({ signal });
    const id = volumeIdOf(this.#clusterId, request.name);
    const source = await this.#sourceOf(request, id, signal);
    const spec = specOf(this.#clusterId, info, request, source);
    const volume = await this.#volumes.create(id, spec, { signal });
    if (volume.state !== "available")
      throw new ConnectError(`volume ${volume.id} is ${volume.state} yet`, Code.Unavailable);
    const limit = Number(request.capacityRange?.limitBytes ?? 0);
    if (limit > 0 && volume.size_bytes > limit)
      throw new ConnectError(
        `volume ${volume.id} has ${volume.size_bytes} bytes, more than ${limit}`,
        Code.AlreadyExists,
      );
    return { volume: { ...told(volume), contentSource: request.volumeContentSource } };
  }

  /** What it is to be a copy of; of a volume that was made already, that may be gone. @throws ConnectError not found */
  async #sourceOf(
    { volumeContentSource: from }: CreateVolumeRequest,
    id: string,
    signal: AbortSignal,
  ): Promise<Pick<PersistentVolume, "id" | "size_bytes"> | undefined> {
    const { type } = from ?? {};
    if (type?.case === undefined) return undefined;
    const sourceId = type.case === "volume" ? type.value.volumeId : type.value.snapshotId;
    const found =
      type.case === "volume"
        ? await orAbsent(this.#find(sourceId, signal))
        : await this.#snapshots.find(sourceId, signal);
    if (found !== undefined) return found;
    const made = await orAbsent(this.#find(id, signal));
    if (made !== undefined) return { id: sourceId, size_bytes: 0 };
    throw new ConnectError(`there is no ${type.case} ${sourceId}`, Code.NotFound);
  }

  createSnapshot(request: CreateSnapshotRequest, call: Call) {
    return this.#snapshots.create(request, call);
  }

  deleteSnapshot(request: DeleteSnapshotRequest, call: Call) {
    return this.#snapshots.delete(request, call);
  }

  listSnapshots(request: ListSnapshotsRequest, call: Call) {
    return this.#snapshots.list(request, call);
  }

  async deleteVolume({ volumeId }: DeleteVolumeRequest, { signal }: Call) {
    if (volumeId === "") throw invalid("the volume's id is missing");
    // One of another cluster is none of this driver's, and what never was is gone.
    const volume = await orAbsent(this.#find(volumeId, signal));
    if (volume !== undefined) await this.#volumes.delete(volumeId, { signal });
    return {};
  }

  async controllerPublishVolume(
    { volumeId, nodeId, readonly, volumeCapability }: ControllerPublishVolumeRequest,
    { signal }: Call,
  ) {
    if (volumeId === "" || nodeId === "") throw invalid("the id of the volume or of the node is missing");
    if (volumeCapability === undefined) throw invalid("the volume's capability is missing");
    const volume = await this.#find(volumeId, signal);
    if (nodeNameOf(this.#clusterId, nodeId) === undefined)
      throw new ConnectError(`there is no node ${nodeId}`, Code.NotFound);
    const info = await this.#provider.getInfo({ signal });
    const unmet = unmetCapability([volumeCapability], info, volume);
    if (unmet !== undefined) throw invalid(unmet);
    // Its class might let others have it, but its owner has counted on one: two databases would write to one folder.
    const exclusive = isForOneNode(volumeCapability) && canExclude(info);
    await this.#volumes.reserve(volumeId, nodeId, { signal, readOnly: readonly, ...(exclusive && { exclusive }) });
    return {};
  }

  async controllerUnpublishVolume({ volumeId, nodeId }: ControllerUnpublishVolumeRequest, { signal }: Call) {
    if (volumeId === "") throw invalid("the volume's id is missing");
    const volume = await orAbsent(this.#find(volumeId, signal));
    for (const { name } of volume?.reservations ?? [])
      if (nodeId === "" || name === nodeId) await this.#release(volumeId, name, signal);
    return {};
  }

  /** @throws ProviderError in_use until nothing of the node can write, by force or without */
  async #release(id: string, reservation: string, signal: AbortSignal): Promise<void> {
    try {
      await this.#volumes.release(id, reservation, { signal });
    } catch (thrown) {
      if (!isProviderError(thrown, "in_use") || !(await this.#mayForce(reservation, signal))) throw thrown;
      await this.#volumes.release(id, reservation, { signal, force: true });
    }
  }

  async #mayForce(nodeId: string, signal: AbortSignal): Promise<boolean> {
    const name = nodeNameOf(this.#clusterId, nodeId);
    if (name === undefined || !(await this.#isOutOfService(name, signal))) return false;
    return (await this.#provider.getInfo({ signal })).capabilities.includes("volumes.force_release");
  }

  async validateVolumeCapabilities(
    { volumeId, volumeCapabilities }: ValidateVolumeCapabilitiesRequest,
    { signal }: Call,
  ) {
    if (volumeId === "" || volumeCapabilities.length === 0)
      throw invalid("the volume's id or its capabilities are missing");
    const volume = await this.#find(volumeId, signal);
    const message = unmetCapability(volumeCapabilities, await this.#provider.getInfo({ signal }), volume);
    return message === undefined ? { confirmed: { volumeCapabilities } } : { message };
  }

  async listVolumes({ maxEntries, startingToken }: ListVolumesRequest, { signal }: Call) {
    const { items } = await this.#volumes.list({ signal, labels: { [LABEL_CLUSTER]: this.#cluster } });
    const volumes = items.filter(({ labels }) => labels[LABEL_SNAPSHOT] === undefined);
    const { page, nextToken } = pageOf(volumes, { maxEntries, startingToken });
    return {
      entries: page.map((volume) => ({
        volume: told(volume),
        status: { publishedNodeIds: volume.reservations.map(({ name }) => name) },
      })),
      nextToken,
    };
  }

  async getCapacity({ parameters, accessibleTopology }: GetCapacityRequest, { signal }: Call) {
    const { available_bytes, minimum_bytes, maximum_bytes } = await this.#volumes.getCapacity({
      signal,
      class: parameters["class"],
      zone: accessibleTopology?.segments[ZONE_KEY],
    });
    return {
      availableCapacity: BigInt(available_bytes),
      ...(minimum_bytes !== undefined && { minimumVolumeSize: BigInt(minimum_bytes) }),
      ...(maximum_bytes !== undefined && { maximumVolumeSize: BigInt(maximum_bytes) }),
    };
  }

  async controllerExpandVolume(
    { volumeId, capacityRange, volumeCapability }: ControllerExpandVolumeRequest,
    { signal }: Call,
  ) {
    if (capacityRange === undefined) throw invalid("the size is missing");
    const volume = await this.#find(volumeId, signal);
    const bytes = bytesOf(capacityRange);
    if (volumeCapability !== undefined) {
      const unmet = unmetCapability([volumeCapability], await this.#provider.getInfo({ signal }), volume);
      if (unmet !== undefined) throw invalid(unmet);
    }
    const { size_bytes } = await this.#volumes.resize(volumeId, bytes, { signal });
    // The backend has let its file system grow, too.
    return { capacityBytes: BigInt(size_bytes), nodeExpansionRequired: false };
  }

  /** One of this cluster's. @throws ConnectError */
  async #find(id: string, signal: AbortSignal): Promise<PersistentVolume> {
    if (id === "") throw invalid("the volume's id is missing");
    const volume = isVolumeId(id) ? await orAbsent(this.#volumes.get(id, { signal })) : undefined;
    const isOurs = volume?.labels[LABEL_CLUSTER] === this.#cluster && volume.labels[LABEL_SNAPSHOT] === undefined;
    if (volume === undefined || volume.state === "deleted" || !isOurs)
      throw new ConnectError(`there is no volume ${id}`, Code.NotFound);
    return volume;
  }
}

/** @throws Error for a backend that has none */
function volumesOf({ volumes }: Provider): VolumeProvider {
  if (volumes === undefined) throw new Error("the backend has no volumes that outlive machines");
  return volumes;
}

/** A volume in CSI's words. */
const told = ({ id, size_bytes, zone }: PersistentVolume) => ({
  volumeId: id,
  capacityBytes: BigInt(size_bytes),
  accessibleTopology: zone === undefined ? [] : [{ segments: { [ZONE_KEY]: zone } }],
});
