/**
 * What a client of the Machine API reaches of volumes. They are a cluster's, and no node's: who is bound to nodes may
 * read of its clusters' volumes, and change them only if it was given the verb by name.
 */
import {
  LABEL_CLUSTER,
  type PersistentVolume,
  type ProviderError,
  type VolumeProvider,
} from "../../../src/provider/kit/index.ts";
import { ofClusters, ownOrAbsent } from "./scope-clusters.ts";

interface VolumeScope {
  /** Values of the cluster's label; undefined: all. */
  clusters: ReadonlySet<string> | undefined;
  /** By name; undefined: all. */
  nodes: ReadonlySet<string> | undefined;
  mayRead: boolean;
  mayWrite: boolean;
  /** The error for what the client may not. */
  refusal: (what: string) => ProviderError;
}

export function scopedVolumes(volumes: VolumeProvider, scope: VolumeScope): VolumeProvider {
  const { clusters, nodes, mayRead, mayWrite, refusal } = scope;
  const requireRead = () => {
    if (!mayRead) throw refusal("read");
  };
  const requireWrite = () => {
    if (!mayWrite) throw refusal("change volumes");
  };
  const isOwn = ofClusters(clusters);
  /** Whose machines have a volume by this reservation: what precedes the node's name (`nodeIdOf`) has no dot. */
  const isOwnNodes = (reservation: string) =>
    nodes === undefined || nodes.has(reservation.slice(reservation.indexOf(".") + 1));
  /** Of a volume that never was, a tombstone says no more than that. */
  const isNobodys = ({ state, labels }: PersistentVolume) => state === "deleted" && labels[LABEL_CLUSTER] === undefined;
  const own = async (id: string, signal: AbortSignal): Promise<PersistentVolume> => {
    const volume = await volumes.get(id, { signal });
    if (isOwn(volume.labels) || isNobodys(volume)) return volume;
    throw refusal("reach this volume: its labels name another's cluster");
  };
  return {
    async create(id, spec, options) {
      requireWrite();
      if (!isOwn(spec.labels)) throw refusal(`make a volume whose label ${LABEL_CLUSTER} is not its cluster's`);
      await ownOrAbsent(own(id, options.signal));
      if (spec.source !== undefined) await ownOrAbsent(own(spec.source.volume, options.signal));
      return await volumes.create(id, spec, options);
    },
    async get(id, { signal }) {
      requireRead();
      return await own(id, signal);
    },
    async list(options) {
      requireRead();
      const asked = options.labels[LABEL_CLUSTER];
      if (asked !== undefined && !isOwn(options.labels))
        throw refusal(`list volumes whose label ${LABEL_CLUSTER} is ${JSON.stringify(asked)}`);
      const [only, ...more] = clusters ?? [];
      const isOne = only !== undefined && more.length === 0;
      const labels = isOne ? { ...options.labels, [LABEL_CLUSTER]: only } : options.labels;
      const { items, unknown = [] } = await volumes.list({ ...options, labels });
      // Unknown ones have no labels, so only those count that were found by them.
      const isSelected = clusters === undefined || labels[LABEL_CLUSTER] !== undefined;
      return { items: items.filter((volume) => isOwn(volume.labels)), unknown: isSelected ? unknown : [] };
    },
    async resize(id, sizeBytes, options) {
      requireWrite();
      await own(id, options.signal);
      return await volumes.resize(id, sizeBytes, options);
    },
    async delete(id, options) {
      requireWrite();
      await ownOrAbsent(own(id, options.signal));
      await volumes.delete(id, options);
    },
    async reserve(id, name, options) {
      requireWrite();
      await own(id, options.signal);
      return await volumes.reserve(id, name, options);
    },
    async release(id, name, options) {
      requireWrite();
      if (options.force === true && !isOwnNodes(name)) throw refusal("stop another node's machines for a volume");
      await ownOrAbsent(own(id, options.signal));
      await volumes.release(id, name, options);
    },
    async getCapacity(options) {
      requireRead();
      return await volumes.getCapacity(options);
    },
  };
}
