/** Machines as they are shown: from their entries, what the cloud knows of their VMs, and what their guests say. */
import type { Clock, Disruption, Machine, MachineNotice, MachineSpec } from "../../src/provider/kit/index.ts";
import type { Vm, VmNotice } from "./cloud.ts";
import { type MachineRecord, NO_REVISION, placeOf, versionIn, waitingContainers } from "./record.ts";

const MOST_NOTICES = 10;

export class Views {
  readonly #clock: Clock;
  /** What befell VMs while they were made, by the machine. */
  readonly #notices = new Map<string, readonly MachineNotice[]>();
  /** When the cloud first and last said of hosts that they are out of sight, monotonic, by the machine. */
  readonly #unseen = new Map<string, { readonly first: number; readonly last: number }>();
  readonly #graceMs: number;

  /** @param options.hostGraceMs how long a pod waits for a host that is out of sight */
  constructor({ clock, hostGraceMs }: { clock: Clock; hostGraceMs: number }) {
    this.#clock = clock;
    this.#graceMs = hostGraceMs;
  }

  /** Ordered or booting; its guest was not told of it. */
  making(record: MachineRecord, spec: MachineSpec, vm?: Vm): Machine {
    const { id, labels, attempt, createdAt } = record;
    const notices = this.#notices.get(id);
    return {
      id,
      version: versionIn("made", attempt),
      revision: NO_REVISION,
      labels: { ...labels },
      state: "creating",
      reachability: "ok",
      sandbox_ready: false,
      created_at: createdAt,
      addresses: [],
      containers: waitingContainers(spec),
      ...(notices !== undefined && { notices: [...notices] }),
      ...placeOf(record, true),
      ...(vm?.host !== undefined && { host: vm.host }),
    };
  }

  /** Becomes an event of the machine's pod. */
  notice(id: string, reason: string, message: string): void {
    const before = this.#notices.get(id) ?? [];
    const seq = (before.at(-1)?.seq ?? 0) + 1;
    const notice: MachineNotice = {
      at: new Date(this.#clock.now()).toISOString(),
      type: "Warning",
      reason,
      message,
      seq,
    };
    this.#notices.set(id, [...before, notice].slice(-MOST_NOTICES));
  }

  /** Nothing is remembered of it any more. */
  forget(id: string): void {
    this.#notices.delete(id);
    this.#unseen.delete(id);
  }

  /** What its guest says, with what the cloud knows better. */
  told(record: MachineRecord, vm: Vm, machine: Machine): Machine {
    const { id, labels, createdAt } = record;
    const { type = record.type, zone = record.zone } = vm;
    const own = this.#notices.get(id) ?? [];
    const last = own.at(-1)?.seq ?? 0;
    const theirs = (machine.notices ?? []).map((notice) => ({ ...notice, seq: notice.seq + last }));
    return {
      ...machine,
      version: versionIn("told", machine.version),
      revision: NO_REVISION,
      labels: { ...labels },
      created_at: createdAt,
      addresses: vm.addresses.length > 0 ? vm.addresses.map((ip) => ({ ip })) : machine.addresses,
      ...(own.length + theirs.length > 0 && { notices: [...own, ...theirs] }),
      ...placeOf({ ...record, type, zone }, true),
      ...(vm.host !== undefined && { host: vm.host }),
      ...(vm.notice && { disruption: disruptionBy(vm.notice) }),
    };
  }

  /** The machine's host is out of sight, or is seen again. */
  sawHost(id: string, isSeen: boolean): void {
    const last = this.#clock.monotonic();
    if (isSeen) this.#unseen.delete(id);
    else this.#unseen.set(id, { first: this.#unseen.get(id)?.first ?? last, last });
  }

  /**
   * Of a machine that is unknown: its host is out of sight for too long for its pod to wait. As long as the cloud says
   * so: of the time that itself is silent, nothing is known.
   */
  disruptionOf(id: string): Disruption | undefined {
    const times = this.#unseen.get(id);
    if (times === undefined || times.last - times.first < this.#graceMs) return undefined;
    const seconds = Math.round(this.#graceMs / 1000);
    return { reason: "HostOutOfSight", message: `the host of its VM has been out of sight for ${seconds} s` };
  }
}

const disruptionBy = ({ reason, message, at }: VmNotice): Disruption => ({
  reason,
  message,
  ...(at !== undefined && { at }),
});
