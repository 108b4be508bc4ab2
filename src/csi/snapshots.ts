/**
 * CSI's snapshots, for a backend that can copy a volume: each is a volume that begins as a copy, is never given to a
 * machine, and says by a label what it was made of. So there is nothing of a snapshot to be kept anywhere else.
 */
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { LABEL_CLUSTER } from "../provider/owner.ts";
import type { PersistentVolume } from "../provider/volume.ts";
import type { CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest } from "./api.gen.js";
import type { Backends, FoundVolume } from "./backends.ts";
import { invalid } from "./errors.ts";
import { pageOf } from "./pages.ts";
import { LABEL_SNAPSHOT } from "./requests.ts";
import { snapshotIdOf, zoneTagOf } from "./volume-ids.ts";

interface SnapshotsOptions {
  backends: Backends;
  clusterId: string;
  /** As volumes have it in their label. */
  cluster: string;
  /** One of this cluster's volumes. @throws ConnectError not found */
  findVolume: (id: string, signal: AbortSignal) => Promise<FoundVolume>;
}

type Call = { readonly signal: AbortSignal };

export class Snapshots {
  readonly #options: SnapshotsOptions;

  constructor(options: SnapshotsOptions) {
    this.#options = options;
  }

  async create({ name, sourceVolumeId, parameters }: CreateSnapshotRequest, { signal }: Call) {
    if (name === "" || sourceVolumeId === "") throw invalid("the name, or the id of the source, is missing");
    for (const key of Object.keys(parameters))
      if (!key.startsWith("csi.storage.k8s.io/")) throw invalid(`there is no parameter ${JSON.stringify(key)}`);
    const { clusterId, cluster, findVolume } = this.#options;
    // A snapshot is where its volume is.
    const id = snapshotIdOf(clusterId, name, zoneTagOf(sourceVolumeId));
    const before = (await this.find(id, signal))?.volume;
    if (before !== undefined) {
      const source = before.labels[LABEL_SNAPSHOT];
      if (source === sourceVolumeId && before.state !== "creating") return { snapshot: told(before) };
      if (source !== sourceVolumeId)
        throw new ConnectError(`there is a snapshot ${id} of volume ${source} already`, Code.AlreadyExists);
    }
    const { volume: source, backend } = await findVolume(sourceVolumeId, signal);
    const labels = { [LABEL_CLUSTER]: cluster, [LABEL_SNAPSHOT]: sourceVolumeId };
    const { mode, class: named, zone } = source;
    // As it was asked for at first: the source may have grown since.
    const { size_bytes } = before ?? source;
    const spec = {
      ...{ labels, mode, size_bytes, source: { volume: sourceVolumeId } },
      ...(named !== undefined && { class: named }),
      ...(zone !== undefined && { zone }),
    };
    return { snapshot: told(await backend.volumes.create(id, spec, { signal })) };
  }

  async delete({ snapshotId }: DeleteSnapshotRequest, { signal }: Call) {
    if (snapshotId === "") throw invalid("the snapshot's id is missing");
    // One of another cluster is none of this driver's, and what never was is gone.
    const found = await this.find(snapshotId, signal);
    if (found !== undefined) await found.backend.volumes.delete(snapshotId, { signal });
    return {};
  }

  async list({ maxEntries, startingToken, sourceVolumeId, snapshotId }: ListSnapshotsRequest, { signal }: Call) {
    const { backends, cluster } = this.#options;
    const source = sourceVolumeId === "" ? {} : { [LABEL_SNAPSHOT]: sourceVolumeId };
    const items = await backends.list({ [LABEL_CLUSTER]: cluster, ...source }, signal);
    const wanted = items.filter(
      ({ id, labels }) => labels[LABEL_SNAPSHOT] !== undefined && (snapshotId === "" || id === snapshotId),
    );
    const { page, nextToken } = pageOf(wanted, { maxEntries, startingToken });
    return { entries: page.map((snapshot) => ({ snapshot: told(snapshot) })), nextToken };
  }

  /** One of this cluster's; undefined when there is none. */
  async find(id: string, signal: AbortSignal): Promise<FoundVolume | undefined> {
    const { backends, cluster } = this.#options;
    const found = await backends.find(id, signal);
    if (found === undefined) return undefined;
    const { labels, state } = found.volume;
    const isOne = labels[LABEL_CLUSTER] === cluster && labels[LABEL_SNAPSHOT] !== undefined;
    return isOne && state !== "deleted" ? found : undefined;
  }
}

/** In CSI's words. */
const told = ({ id, size_bytes, state, labels, created_at }: PersistentVolume) => ({
  snapshotId: id,
  sourceVolumeId: labels[LABEL_SNAPSHOT]!,
  sizeBytes: BigInt(size_bytes),
  creationTime: timestampFromDate(new Date(created_at)),
  readyToUse: state === "available",
});
