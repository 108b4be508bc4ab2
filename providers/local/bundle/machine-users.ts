/**
 * User namespaces of machines: the users of each are a range of this host's that nobody else has, 65536 of them, as a
 * kubelet has it (pkg/kubelet/userns). What a container leaves on a volume has its own numbers there, by mounts that
 * are mapped, so a range may go to another machine afterwards.
 */
import type { HostProblem } from "../engine.ts";
import { accountsWithin, NumberClaims } from "../host/number-claims.ts";

/** Users of a machine, and as many groups. */
export const MACHINE_USERS = 65_536;
/** systemd's table leaves them to nobody, up to 2^31; the first 65536 are the VMs' of engine vm. */
const FIRST = 1_879_048_192 + 65_536;
const COUNT = 4_095;
const DIR = "/run/vmlet/machine-users";

export class MachineUsers {
  readonly #claims: NumberClaims;
  readonly #backend: string;

  /** @param backend hash of a backend: of the owners whose names begin with it, it knows all */
  constructor(backend: string, { dir = DIR, count = COUNT }: { dir?: string; count?: number } = {}) {
    const exhausted = `all ${count} ranges of users for machines are taken: remove files of backends that are no more from ${dir}`;
    this.#claims = new NumberClaims({ dir, first: FIRST, count, step: MACHINE_USERS, exhausted });
    this.#backend = backend;
  }

  /**
   * The same for the same machine, until it is released.
   * @returns what the machine's root is on this host: the first user, and group, of its range
   * @throws ProviderError unavailable when there is none left
   */
  async take(machineId: string): Promise<number> {
    return await this.#claims.take(this.#owner(machineId));
  }

  /** A sandbox that is there has these: no other machine is to get them, whatever is written. */
  async hold(machineId: string, root: number): Promise<void> {
    await this.#claims.hold(this.#owner(machineId), root);
  }

  /** Nothing of the machine runs any more. */
  async release(machineId: string): Promise<void> {
    await this.#claims.release(this.#owner(machineId));
  }

  /** Releases those of machines that are no more: the backend was killed between the end of one and its release. */
  async sweep(known: ReadonlySet<string>): Promise<void> {
    const prefix = this.#owner("");
    for (const owner of await this.#claims.owners()) {
      const machineId = owner.slice(prefix.length);
      if (owner.startsWith(prefix) && !known.has(machineId)) await this.release(machineId);
    }
  }

  #owner(machineId: string): string {
    return `${this.#backend}/${machineId}`;
  }
}

/** People, services and containers of this host that have numbers out of the ranges. */
export function checkMachineUsers(etc = "/etc"): HostProblem[] {
  const count = COUNT * MACHINE_USERS;
  const names = accountsWithin({ first: FIRST, count }, etc);
  if (names.length === 0) return [];
  return [
    {
      fatal: false,
      problem: `machines with user namespaces have users from ${FIRST} to ${FIRST + count - 1}, some of which are those of ${names.join(", ")}`,
      cure: "give them numbers below (/etc/passwd, /etc/subuid, /etc/subgid), or run no pods with hostUsers: false here",
    },
  ];
}
