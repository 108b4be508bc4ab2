/**
 * Users of this host for its VMs, one for each: QEMUs that were broken out of have nothing in common, not even with
 * those of another backend.
 */
import type { HostProblem } from "../../engine.ts";
import { accountsWithin, NumberClaims } from "../../host/number-claims.ts";

/** Numbers of users, which are those of groups as well. */
export interface UserRange {
  first?: number | undefined;
  count?: number | undefined;
}

/**
 * systemd's table of users and groups leaves these to nobody; distributions give lower ones to people, services and
 * containers.
 */
const FIRST = 1_879_048_192;
const COUNT = 65_536;
const DIR = "/run/vmlet/vm-users";

export class VmUsers {
  readonly #claims: NumberClaims;

  constructor({ first = FIRST, count = COUNT, dir = DIR }: UserRange & { dir?: string | undefined } = {}) {
    const exhausted = `all ${count} users for VMs are taken: raise engine.users.count, or remove files of backends that are no more from ${dir}`;
    this.#claims = new NumberClaims({ first, count, dir, exhausted });
  }

  /**
   * A user that nobody else on this host has.
   * @param owner folder of the VM; always the same user until it is released
   * @throws ProviderError unavailable when all are taken
   */
  async take(owner: string): Promise<number> {
    return await this.#claims.take(owner);
  }

  /** Nothing may run as this user any more. */
  async release(owner: string): Promise<void> {
    await this.#claims.release(owner);
  }
}

/** People, services and containers of this host that have numbers out of the range. */
export function checkUsers({ first = FIRST, count = COUNT }: UserRange = {}, etc = "/etc"): HostProblem[] {
  const names = accountsWithin({ first, count }, etc);
  if (names.length === 0) return [];
  return [
    {
      fatal: false,
      problem: `VMs run as users ${first} to ${first + count - 1}, some of which are those of ${names.join(", ")}`,
      cure: "set engine.users to a range that nobody has (/etc/passwd, /etc/subuid, /etc/subgid)",
    },
  ];
}
