/**
 * How much of this host's memory what machines are told in confidence may take: their specifications, and what engines
 * make of them. In all, and so that what one tenant takes leaves another its own.
 */
import { type MachinePatch, type MachineSpec, ProviderError } from "../../../src/provider/kit/index.ts";

/** The specification itself, its files once more, its environment once more for what is running. */
const COPIES = 3;
/** What a file takes at least: a page. */
const FILE_BYTES = 4096;

/** An upper bound of what a machine's secrets take, in bytes. */
export function secretBytes(spec: MachineSpec): number {
  const containers =
    spec.containers.length + (spec.init_containers?.length ?? 0) + (spec.ephemeral_containers?.length ?? 0);
  const files = (spec.volumes ?? []).reduce((sum, each) => sum + (each.type === "files" ? each.files.length : 0), 0);
  return COPIES * Buffer.byteLength(JSON.stringify(spec)) + FILE_BYTES * (1 + files + 2 * containers);
}

/** What it will be when files and containers are changed as the patch says. */
export function patchedSpec(spec: MachineSpec, patch: MachinePatch): MachineSpec {
  const volumes = (spec.volumes ?? []).map((volume) => {
    const update = patch.files?.findLast((each) => each.volume === volume.name);
    return volume.type === "files" && update !== undefined ? { ...volume, files: update.files } : volume;
  });
  const added = patch.ephemeral_containers ?? [];
  return { ...spec, volumes, ephemeral_containers: [...(spec.ephemeral_containers ?? []), ...added] };
}

export class SecretBudget {
  readonly #maxBytes: number;
  readonly #machines = new Map<string, { tenant: string; bytes: number }>();

  /** @param maxBytes of all machines together */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Counts a machine that is here already, whatever it takes. */
  count(id: string, tenant: string, bytes: number): void {
    this.#machines.set(id, { tenant, bytes });
  }

  /**
   * Counts a machine with what it will take. A tenant has no more than is left when it has it: one that is alone has
   * half of all, and the next half of the rest.
   * @throws ProviderError quota when there is no room; then nothing has changed
   */
  reserve(id: string, tenant: string, bytes: number): void {
    const others = [...this.#machines].filter(([other]) => other !== id).map(([, machine]) => machine);
    const sum = (machines: { bytes: number }[]) => machines.reduce((total, machine) => total + machine.bytes, 0);
    const own = sum(others.filter((machine) => machine.tenant === tenant)) + bytes;
    const isLess = bytes <= (this.#machines.get(id)?.bytes ?? 0);
    if (!isLess && own > this.#maxBytes - sum(others) - bytes)
      throw new ProviderError(
        "quota",
        `the files and environment of this machine would take ${bytes} bytes of this host's memory, and there is no room for them: ${own - bytes} are its namespace's already, ${sum(others)} of ${this.#maxBytes} everybody's (secrets.maxBytes)`,
      );
    this.count(id, tenant, bytes);
  }

  release(id: string): void {
    this.#machines.delete(id);
  }
}
