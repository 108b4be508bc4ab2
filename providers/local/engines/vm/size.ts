/** How large the VM of a machine is. */
import { type ContainerSpec, isSidecar } from "../../../../src/provider/kit/index.ts";
import type { MachineHome } from "../../engine.ts";
import type { VmSize } from "./qemu.ts";

const MEMORY_CLASSES_MIB = [
  192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 32_768, 65_536,
];
/** Kernel, initramfs and control inside the guest. */
const GUEST_OVERHEAD_MIB = 96;

/** Memory and processors of a machine's VM: what its containers may use, and the guest's own share. */
export function vmSize(spec: MachineHome["spec"], defaults: { memoryMib: number; maxCpus: number }): VmSize {
  const { containers, init_containers: init = [] } = spec;
  const whole = { ...spec.resources?.requests, ...spec.resources?.limits };
  // Main containers and sidecars run together, each of the other init containers before them.
  const together = [...containers, ...init.filter((container) => isSidecar(container, "init"))];
  const alone = init.filter((container) => !isSidecar(container, "init"));
  const asked = (key: "memory_bytes" | "cpu_millis") => {
    const of = ({ resources }: ContainerSpec) => resources?.limits?.[key] || resources?.requests?.[key] || 0;
    return Math.max(
      whole[key] ?? 0,
      together.map(of).reduce((total, amount) => total + amount, 0),
      ...alone.map(of),
    );
  };
  // A container without a limit may use what is there: it gets the default on top of what others asked for.
  const isUnlimited =
    !spec.resources?.limits?.memory_bytes &&
    [...containers, ...init].some(({ resources }) => !resources?.limits?.memory_bytes);
  const wanted =
    GUEST_OVERHEAD_MIB + Math.ceil(asked("memory_bytes") / (1 << 20)) + (isUnlimited ? defaults.memoryMib : 0);
  const memoryMib = MEMORY_CLASSES_MIB.find((size) => size >= wanted) ?? Math.ceil(wanted / 1024) * 1024;
  return { memoryMib, cpus: Math.max(1, Math.min(defaults.maxCpus, Math.ceil(asked("cpu_millis") / 1000))) };
}
