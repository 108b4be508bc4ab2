/** What volumes and snapshots are called at the backend, made of the names that CSI's sidecars give them. */
import { createHash } from "node:crypto";
import { clusterPrefix } from "../provider/owner.ts";

const PLAIN_NAME = /^[a-z0-9]([-a-z0-9.]{0,108}[a-z0-9])?$/;
/** After the cluster's prefix: the zone, of those of which a driver has several backends. */
const ZONE = /^[0-9a-f]{8}\.zone-([0-9a-f]{8})--/;
/** What follows the zone. */
const MAX_ZONED_CHARS = 100;
const MAX_SNAPSHOT_CHARS = 80;

/**
 * The volume's id: the same for the same name each time, so that a create whose answer was lost makes no second one. It
 * shows the name where that can be an id; clusters that share a backend have different ones.
 *
 * @param tag of its zone, where the driver has several backends
 */
export function volumeIdOf(clusterId: string, name: string, tag?: string): string {
  const isShown = PLAIN_NAME.test(name) && (tag === undefined || name.length <= MAX_ZONED_CHARS);
  const id = `${clusterPrefix(clusterId)}.${zoned(tag)}${isShown ? name : shortened(name)}`;
  return zoneTagOf(id) === tag ? id : `${clusterPrefix(clusterId)}.${shortened(name)}`;
}

/** The same of a snapshot, which is a volume too, and its name another's. */
export function snapshotIdOf(clusterId: string, name: string, tag?: string): string {
  const shown = PLAIN_NAME.test(name) && name.length <= MAX_SNAPSHOT_CHARS ? name : shortened(name);
  return `${clusterPrefix(clusterId)}.${zoned(tag)}snapshot--${shown}`;
}

/** True for what can be the id of a volume at all. */
export const isVolumeId = (id: string): boolean => /^[a-z0-9]([-a-z0-9.]{0,126}[a-z0-9])?$/.test(id);

export const zoneTag = (zone: string): string => createHash("sha256").update(zone).digest("hex").slice(0, 8);

/** Undefined for a volume that was made where there was one backend. */
export const zoneTagOf = (id: string): string | undefined => ZONE.exec(id)?.[1];

const zoned = (tag: string | undefined): string => (tag === undefined ? "" : `zone-${tag}--`);
const shortened = (name: string): string => createHash("sha256").update(name).digest("hex").slice(0, 40);
