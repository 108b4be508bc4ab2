/** What must be true of volumes that outlive machines: who has them, what the Node says of them, when they are detached. */
import { isOver, type MachineSpec } from "../../../src/provider/machine.ts";
import { type VolumeAttachment, volumeClaims } from "../../../src/provider/volume.ts";
import { Violation } from "../violation.ts";
import type { World } from "../world/world.ts";

/** The process that writes a Node, when it sent what it writes. */
export interface NodeWriter {
  name: string;
  /** By volume: the backend's revision when it last answered this process which machines have it. */
  asked: ReadonlyMap<string, number>;
}

/** V1, at the birth of a machine that has a volume; one that is shared is had by machines of one node. @throws Violation */
export function judgeSoleOwner(
  holders: readonly VolumeAttachment[],
  { isReserved, isShared }: { isReserved: boolean; isShared: boolean },
): void {
  if (!isShared && holders.length > 1) throw new Violation("V1", "two machines have one volume");
  if (new Set(holders.map(({ reservation }) => reservation)).size > 1)
    throw new Violation("V1", "machines of two nodes have a volume that is claimed for one");
  if (!isReserved) throw new Violation("V2", "a machine has a volume that was detached from its node");
}

/** V2, when a VolumeAttachment goes. @throws Violation */
export function judgeDetached(holders: readonly VolumeAttachment[], reservation: string): void {
  if (holders.some((each) => each.reservation === reservation))
    throw new Violation("V2", "a volume counts as detached while a machine of its node has it");
}

/** V3, when a volume is taken out of what the Node says is in use. @throws Violation */
export function judgeNodeWrite({ backend }: World, handle: string, { asked }: NodeWriter): void {
  const askedAt = asked.get(handle) ?? Infinity;
  for (const { machine, spec, bornRevision } of backend.machines.values()) {
    // What was under way when it was asked for is refused, or found by the next who asks.
    if (isOver(machine) || bornRevision > askedAt) continue;
    if (volumeClaims(spec).some(({ claim }) => claim.volume === handle))
      throw new Violation("V3", "the Node says no more that a volume is in use, and a machine has it");
  }
}

/**
 * V4: what an agent may count on when it asks for a machine, and when it gets that. Other processes of the same node may have
 * undone it, or it has given up what it asked for.
 *
 * @param asked who has asked, and how often our Node had changed by then
 */
export function judgeClaims(
  { disks }: World,
  spec: MachineSpec,
  asked: { agent: string; version: number },
): Violation | undefined {
  for (const { claim } of volumeClaims(spec)) {
    const remover = disks?.removedBy.get(claim.volume);
    const isUndone = remover !== undefined && (remover.name !== asked.agent || remover.version >= asked.version);
    if (disks === undefined || isUndone) continue;
    if (!disks.saysInUse(claim.volume))
      return new Violation("V4", "asked for a machine before the Node said that its volume is in use");
    const attachment = disks.attachmentOf(claim.volume);
    if (attachment?.forced === true) continue;
    if (attachment?.attached !== true || attachment.deleting)
      return new Violation("V4", "asked for a machine whose volume is not attached to its node");
  }
  return undefined;
}
