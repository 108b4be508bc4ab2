/**
 * User namespaces of machines: the users of each are a range of this host's that nobody else has, 65536 of them, as a
 * kubelet has it (pkg/kubelet/userns). What a container leaves on a volume has its own numbers there, by mounts that
 * are mapped, so a range may go to another machine afterwards.
 */
import { create } from "@bufbuild/protobuf";
import type { HostProblem } from "../../engine.ts";
import { accountsWithin, NumberClaims } from "../../host/number-claims.ts";
import {
  type IDMapping,
  IDMappingSchema,
  NamespaceMode,
  type PodSandboxStatus,
  type UserNamespace,
  UserNamespaceSchema,
} from "./api.gen.js";

const LENGTH = 65_536;
/** systemd's table leaves them to nobody, up to 2^31; the first 65536 are the VMs' of engine vm. */
const FIRST = 1_879_048_192 + 65_536;
const COUNT = 4_095;
const DIR = "/run/vmlet/machine-users";

export class MachineUsers {
  readonly #claims: NumberClaims;
  readonly #backend: string;

  /** @param backend value of the backend's label: of the owners whose names begin with it, it knows all */
  constructor(backend: string, { dir = DIR, count = COUNT }: { dir?: string; count?: number } = {}) {
    const exhausted = `all ${count} ranges of users for machines are taken: remove files of backends that are no more from ${dir}`;
    this.#claims = new NumberClaims({ dir, first: FIRST, count, step: LENGTH, exhausted });
    this.#backend = backend;
  }

  /** The same for the same machine, until it is released. @throws ProviderError unavailable when there is none left */
  async take(machineId: string): Promise<UserNamespace> {
    return userNamespace(await this.#claims.take(this.#owner(machineId)));
  }

  /** A sandbox that is there has these: no other machine is to get them, whatever is written. */
  async hold(machineId: string, { uids }: UserNamespace): Promise<void> {
    const [range] = uids;
    if (range !== undefined) await this.#claims.hold(this.#owner(machineId), range.hostId);
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

function userNamespace(hostId: number): UserNamespace {
  const range = (): IDMapping => create(IDMappingSchema, { hostId, containerId: 0, length: LENGTH });
  return create(UserNamespaceSchema, { mode: NamespaceMode.POD, uids: [range()], gids: [range()] });
}

/** What a sandbox was made with; undefined when its users are the host's. */
export function usersOf(status: PodSandboxStatus | undefined): UserNamespace | undefined {
  const users = status?.linux?.namespaces?.options?.usernsOptions;
  return users?.mode === NamespaceMode.POD && users.uids.length > 0 ? users : undefined;
}

/** People, services and containers of this host that have numbers out of the ranges. */
export function checkMachineUsers(etc = "/etc"): HostProblem[] {
  const count = COUNT * LENGTH;
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
