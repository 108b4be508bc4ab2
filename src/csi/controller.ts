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
import type { PersistentVolume } from "../provider/volume.ts";
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
import type { Backend, Backends, FoundVolume } from "./backends.ts";
import { invalid, orAbsent } from "./errors.ts";
import { pageOf } from "./pages.ts";
import { bytesOf, canExclude, isForOneNode, LABEL_SNAPSHOT, specOf, unmetCapability } from "./requests.ts";
import { Snapshots } from "./snapshots.ts";
import { volumeIdOf } from "./volume-ids.ts";

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
  backends: Backends;
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
  readonly #backends: Backends;
  readonly #clusterId: string;
  readonly #cluster: string;
  readonly #snapshots: Snapshots;
  readonly #isOutOfService: NonNullable<ControllerOptions["isOutOfService"]>;

  constructor({ backends, clusterId, isOutOfService = () => Promise.resolve(false) }: ControllerOptions) {
    this.#backends = backends;
    this.#isOutOfService = isOutOfService;
    this.#clusterId = clusterId;
    this.#cluster = clusterPrefix(clusterId);
    this.#snapshots = new Snapshots({
      backends: this.#backends,
      clusterId,
      cluster: this.#cluster,
      findVolume: (id, signal) => this.#find(id, signal),
    });
  }

  async controllerGetCapabilities(_request: object, { signal }: Call) {
    const capabilities = await this.#backends.capabilities(signal);
    const rpcs = capabilities.has("volumes.clone") ? [...RPCS, ...COPYING_RPCS] : RPCS;
    return { capabilities: rpcs.map((type) => ({ type: { case: "rpc" as const, value: { type } } })) };
  }

  async createVolume(request: CreateVolumeRequest, { signal }: Call) {
    const source = await this.#sourceOf(request, signal);
    const backend = source?.backend ?? (await this.#backends.ofRequirement(request.accessibilityRequirements, signal));
    const info = await this.#backends.info(backend, signal);
    const id = volumeIdOf(this.#clusterId, request.name, this.#backends.tagOf(info));
    const isOrphan = request.volumeContentSource !== undefined && source === undefined;
    const volume = isOrphan
      ? await this.#copyMade(request, id, signal)
      : await backend.volumes.create(id, specOf(this.#clusterId, info, request, source?.volume), { signal });
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

  /** What it is to be a copy of, if that is there. */
  async #sourceOf({ volumeContentSource }: CreateVolumeRequest, signal: AbortSignal): Promise<FoundVolume | undefined> {
    const { type } = volumeContentSource ?? {};
    if (type?.case === "volume") return await orAbsent(this.#find(type.value.volumeId, signal));
    return type?.case === "snapshot" ? await this.#snapshots.find(type.value.snapshotId, signal) : undefined;
  }

  /** The answer was lost, and then the source went. @throws ConnectError not found, for a copy that was never made */
  async #copyMade({ volumeContentSource, capacityRange }: CreateVolumeRequest, id: string, signal: AbortSignal) {
    const { type } = volumeContentSource!;
    if (type.case === undefined) throw invalid("what the volume is to be a copy of is missing");
    const made = await orAbsent(this.#find(id, signal));
    if (made === undefined) {
      const sourceId = type.case === "volume" ? type.value.volumeId : type.value.snapshotId;
      throw new ConnectError(`there is no ${type.case} ${sourceId}`, Code.NotFound);
    }
    const bytes = Number(capacityRange?.requiredBytes ?? 0);
    if (made.volume.size_bytes < bytes)
      throw new ConnectError(
        `volume ${id} has ${made.volume.size_bytes} bytes, less than ${bytes}`,
        Code.AlreadyExists,
      );
    return made.volume;
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
    const found = await orAbsent(this.#find(volumeId, signal));
    if (found !== undefined) await found.backend.volumes.delete(volumeId, { signal });
    return {};
  }

  async controllerPublishVolume(
    { volumeId, nodeId, readonly, volumeCapability }: ControllerPublishVolumeRequest,
    { signal }: Call,
  ) {
    if (volumeId === "" || nodeId === "") throw invalid("the id of the volume or of the node is missing");
    if (volumeCapability === undefined) throw invalid("the volume's capability is missing");
    const { volume, backend } = await this.#find(volumeId, signal);
    if (nodeNameOf(this.#clusterId, nodeId) === undefined)
      throw new ConnectError(`there is no node ${nodeId}`, Code.NotFound);
    const info = await this.#backends.info(backend, signal);
    const unmet = unmetCapability([volumeCapability], info, volume);
    if (unmet !== undefined) throw invalid(unmet);
    // Its class might let others have it, but its owner has counted on one: two databases would write to one folder.
    const exclusive = isForOneNode(volumeCapability) && canExclude(info);
    await backend.volumes.reserve(volumeId, nodeId, { signal, readOnly: readonly, ...(exclusive && { exclusive }) });
    return {};
  }

  async controllerUnpublishVolume({ volumeId, nodeId }: ControllerUnpublishVolumeRequest, { signal }: Call) {
    if (volumeId === "") throw invalid("the volume's id is missing");
    const found = await orAbsent(this.#find(volumeId, signal));
    for (const { name } of found?.volume.reservations ?? [])
      if (nodeId === "" || name === nodeId) await this.#release(found!, name, signal);
    return {};
  }

  /** @throws ProviderError in_use until nothing of the node can write, by force or without */
  async #release({ volume: { id }, backend }: FoundVolume, reservation: string, signal: AbortSignal): Promise<void> {
    try {
      await backend.volumes.release(id, reservation, { signal });
    } catch (thrown) {
      if (!isProviderError(thrown, "in_use") || !(await this.#mayForce(backend, reservation, signal))) throw thrown;
      await backend.volumes.release(id, reservation, { signal, force: true });
    }
  }

  async #mayForce(backend: Backend, nodeId: string, signal: AbortSignal): Promise<boolean> {
    const name = nodeNameOf(this.#clusterId, nodeId);
    if (name === undefined || !(await this.#isOutOfService(name, signal))) return false;
    return (await this.#backends.info(backend, signal)).capabilities.includes("volumes.force_release");
  }

  async validateVolumeCapabilities(
    { volumeId, volumeCapabilities }: ValidateVolumeCapabilitiesRequest,
    { signal }: Call,
  ) {
    if (volumeId === "" || volumeCapabilities.length === 0)
      throw invalid("the volume's id or its capabilities are missing");
    const { volume, backend } = await this.#find(volumeId, signal);
    const message = unmetCapability(volumeCapabilities, await this.#backends.info(backend, signal), volume);
    return message === undefined ? { confirmed: { volumeCapabilities } } : { message };
  }

  async listVolumes({ maxEntries, startingToken }: ListVolumesRequest, { signal }: Call) {
    const items = await this.#backends.list({ [LABEL_CLUSTER]: this.#cluster }, signal);
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
    const zone = accessibleTopology?.segments[ZONE_KEY];
    const backend = zone === undefined ? this.#backends.only : await this.#backends.ofZone(zone, signal);
    // What all have together is in no one place.
    if (backend === undefined) return { availableCapacity: 0n };
    const options = { signal, class: parameters["class"], zone };
    const { available_bytes, minimum_bytes, maximum_bytes } = await backend.volumes.getCapacity(options);
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
    const { volume, backend } = await this.#find(volumeId, signal);
    const bytes = bytesOf(capacityRange);
    if (volumeCapability !== undefined) {
      const unmet = unmetCapability([volumeCapability], await this.#backends.info(backend, signal), volume);
      if (unmet !== undefined) throw invalid(unmet);
    }
    const { size_bytes } = await backend.volumes.resize(volumeId, bytes, { signal });
    // The backend has let its file system grow, too.
    return { capacityBytes: BigInt(size_bytes), nodeExpansionRequired: false };
  }

  /** One of this cluster's. @throws ConnectError */
  async #find(id: string, signal: AbortSignal): Promise<FoundVolume> {
    if (id === "") throw invalid("the volume's id is missing");
    const found = await this.#backends.find(id, signal);
    const { labels, state } = found?.volume ?? {};
    const isOurs = labels?.[LABEL_CLUSTER] === this.#cluster && labels[LABEL_SNAPSHOT] === undefined;
    if (found === undefined || state === "deleted" || !isOurs)
      throw new ConnectError(`there is no volume ${id}`, Code.NotFound);
    return found;
  }
}

/** A volume in CSI's words. */
const told = ({ id, size_bytes, zone }: PersistentVolume) => ({
  volumeId: id,
  capacityBytes: BigInt(size_bytes),
  accessibleTopology: zone === undefined ? [] : [{ segments: { [ZONE_KEY]: zone } }],
});
