/**
 * A control group for each VM: what its QEMU, which guests may have broken out of, takes of this host is what the VM
 * was sized for, and what emulating it costs.
 */
import type { Logger } from "../../../../src/provider/kit/index.ts";
import { Cgroup } from "../../bundle/cgroup.ts";
import type { VmGroups } from "./qemu.ts";

/** QEMU itself, with translated code, its devices' buffers, and the kernel's tables for the guest's memory. */
const OVERHEAD = { bytes: 192 * 2 ** 20, share: 1 / 16 };
/** For what is no virtual processor: disks, ports, the network. */
const OVERHEAD_CPU_MILLIS = 1000;
/** Its threads: beside those of its processors, those that wait for disks, of which QEMU begins up to 64. */
const OVERHEAD_THREADS = 128;

/** @param path group of all VMs. A host without control groups has to do without */
export function vmGroups(path: string, logger: Logger): VmGroups {
  const groupOf = (name: string) => new Cgroup(`${path}/${name}`);
  return {
    async make(name, { memoryMib, cpus }) {
      const memoryBytes = memoryMib * 2 ** 20;
      const group = groupOf(name);
      try {
        await group.limit({
          memory_bytes: Math.ceil(memoryBytes * (1 + OVERHEAD.share)) + OVERHEAD.bytes,
          cpu_millis: cpus * 1000 + OVERHEAD_CPU_MILLIS,
          pids: cpus + OVERHEAD_THREADS,
        });
        await group.weigh(cpus * 1000);
        await group.shareDisks();
        return group.entries();
      } catch (thrown) {
        logger.warn({ vm: name, err: thrown }, "A VM is in no control group of its own");
        return [];
      }
    },
    async wasOutOfMemory(name) {
      return (await groupOf(name).oomKills()) > 0;
    },
    async remove(name) {
      await groupOf(name)
        .remove()
        .catch((thrown: unknown) => logger.debug({ vm: name, err: thrown }, "A VM's control group stays"));
    },
  };
}
