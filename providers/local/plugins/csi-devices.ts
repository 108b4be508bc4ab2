/**
 * Block devices that CSI drivers publish on this host: what is one, and that it stays the same one while a machine may
 * use it.
 *
 * A program that may open a loop device may detach its file, and one whose driver detaches it goes, too; the kernel
 * would give its numbers to the next device, while a machine still has a node with them. But what is open stays: so a
 * loop device that nobody gets has it open, as a kubelet does it (volumepathhandler: AttachFileDevice, its descriptor
 * lock). No process is needed for that, so it outlives a backend that is killed.
 */
import { blockNumbers, isSameNode } from "../host/block-device.ts";
import { holdOpen, letGo } from "../volumes/loop-devices.ts";

export interface BlockDevices {
  /** @returns its numbers: `7:3`. @throws Error that says what is at the path in its place */
  numbers(path: string): string;
  /** Again for one that is held changes nothing. @throws Error of losetup(8) */
  hold(path: string): Promise<void>;
  /**
   * Of one that is not held nothing happens.
   * @param others paths at which other machines have the same volume; what they hold, too, stays held
   * @throws Error of losetup(8)
   */
  letGo(path: string, others: readonly string[]): Promise<void>;
}

export const hostBlockDevices: BlockDevices = {
  numbers: blockNumbers,
  async hold(path) {
    await holdOpen(path);
  },
  async letGo(path, others) {
    // What is open by another's name keeps that one's mount, and not this one's. What is open by nobody's any more (the
    // mounts of a backend's container have ended with it) would keep the device.
    await letGo(path, { all: !others.some((each) => isSameNode(path, each)) });
  },
};
