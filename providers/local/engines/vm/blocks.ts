/** Disks of a VM as QEMU is told of them: which it begins with, and which are plugged in and out while it runs. */
import type { Clock } from "../../../../src/provider/kit/index.ts";
import { Qmp } from "./qmp.ts";

const UNPLUG_POLL_MS = 20;

/** What the guest deletes of what it may write, this host has room for again. */
export function fileBlock(id: string, filename: string, readOnly: boolean): object {
  const common = { "read-only": readOnly, ...(readOnly ? {} : { discard: "unmap" }) };
  return {
    driver: "raw",
    "node-name": id,
    ...common,
    file: { driver: "file", filename, ...common, ...(readOnly ? { locking: "off" } : {}) },
  };
}

/**
 * Plugs a read-only disk in; the guest finds it by its serial. Repeating it is safe, also when only the first step had
 * been taken.
 */
export async function attachDisk(
  qmpSocket: string,
  disk: { id: string; file: string },
  signal: AbortSignal,
): Promise<void> {
  using qmp = await Qmp.open(qmpSocket, signal);
  const device = { driver: "scsi-hd", bus: "scsi0.0", id: `dev-${disk.id}`, drive: disk.id, serial: disk.id };
  const steps = [["blockdev-add", fileBlock(disk.id, disk.file, true)] as const, ["device_add", device] as const];
  for (const [command, args] of steps) {
    await qmp.execute(command, args).catch((thrown: unknown) => {
      if (!/duplicate/i.test(String(thrown))) throw thrown;
    });
  }
}

/**
 * Plugs a disk in that outlives the machine; QEMU gets it as a descriptor, over `qmp`, which has brought it. The guest
 * finds it by its serial. A QEMU that has the same disk already, this one or another, refuses it.
 */
export async function attachLasting(
  qmp: Qmp,
  { serial, set, readOnly }: { serial: string; set: number; readOnly: boolean },
): Promise<void> {
  await qmp.execute("add-fd", { "fdset-id": set });
  await qmp.execute("blockdev-add", {
    driver: "raw",
    "node-name": serial,
    "read-only": readOnly,
    // What is given back would be another's, and missing when it is written again: all of a volume is reserved.
    discard: "ignore",
    file: { driver: "file", filename: `/dev/fdset/${set}`, "read-only": readOnly, locking: "on", discard: "ignore" },
  });
  await qmp.execute("device_add", { driver: "scsi-hd", bus: "scsi0.0", id: `dev-${serial}`, drive: serial, serial });
}

/** Unplugs one again. Repeating it is safe. @throws when QEMU does not let go of it before the signal aborts */
export async function detachLasting(qmp: Qmp, serial: string, clock: Clock, signal: AbortSignal): Promise<void> {
  await qmp.execute("device_del", { id: `dev-${serial}` });
  for (;;) {
    try {
      await qmp.execute("blockdev-del", { "node-name": serial });
      return;
    } catch (thrown) {
      if (!/in use/i.test(String(thrown))) throw thrown;
      await clock.sleep(UNPLUG_POLL_MS, signal);
    }
  }
}
