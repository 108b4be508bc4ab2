/**
 * One machine of a cloud, brought to where it should be and looked at on the way. Every function may be called at any
 * time, by several agents at once, and interrupted anywhere: it reads what stands in the machine's entry, does the next
 * step, and goes on from what it finds then. What a call that failed has done is never guessed but read.
 */
import {
  assertCapable,
  type CallOptions,
  type Capability,
  type DeleteOptions,
  type Clock,
  type ContainerState,
  isOver,
  isProviderError,
  type Logger,
  type Machine,
  type MachineSpec,
  machineIsThere,
  type Provider,
  ProviderError,
  requiredCapabilities,
  specIdentity,
} from "../../src/provider/kit/index.ts";
import type { Vm } from "./cloud.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { GuestServices } from "./guest-services.ts";
import type { Guests } from "./guests.ts";
import type { MachineVolumes } from "./machine-volumes.ts";
import type { Pool } from "./pool.ts";
import { endedMachine, type MachineEnd, type MachineRecord, newRecord, type Phase } from "./record.ts";
import type { Views } from "./views.ts";
import type { VmOrders } from "./vm-orders.ts";

/** What guests of an earlier release would leave out in silence: they do not know the field. */
const UNHEARD_OF: readonly Capability[] = ["supplemental_groups_policy"];

interface MachineWorkOptions {
  readonly cloud: CloudCalls;
  readonly guests: Guests;
  readonly orders: VmOrders;
  readonly pool: Pool;
  readonly volumes: MachineVolumes;
  /** Absent: machines reach Services as the cloud's network does. */
  readonly services: GuestServices | undefined;
  readonly views: Views;
  /** How long a VM may take until its guest answers. */
  readonly bootMs: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What is known of a machine now: itself, or that there is none, said by the cloud or its guest. */
export type Sight = { machine: Machine; record: MachineRecord; guest?: Provider | undefined } | "absent";

/** Of VMs that never come up, so many are tried. */
const MOST_VMS = 3;
/** More turns than a machine has phases: somebody else changes the entry all the time. */
const MOST_TURNS = 20;

export class MachineWork {
  readonly #options: MachineWorkOptions;
  /** Monotonic time at which a VM was first seen to be on its way. */
  readonly #bootingSince = new Map<string, number>();
  readonly #views: Views;

  constructor(options: MachineWorkOptions) {
    this.#options = options;
    this.#views = options.views;
  }

  // ------------------------------------------------------------------------------------------------------------ look

  /**
   * Looks at the machine, and takes the steps that need nobody's order. With `spec`, it is made and told as well.
   * @throws ProviderError unavailable when nothing is known
   */
  async look(id: string, spec: MachineSpec | undefined, options: CallOptions): Promise<Sight> {
    for (let turn = 0; turn < MOST_TURNS; turn++) {
      const record = await this.#options.cloud.record(id, options);
      if (record === undefined) return "absent";
      const sight = await this.#lookAt(record, spec, options);
      if (sight !== "again") return sight;
    }
    throw new ProviderError("unavailable", `the entry of machine ${id} changes all the time`);
  }

  /** @returns "again" when the record is another by now */
  async #lookAt(record: MachineRecord, spec: MachineSpec | undefined, options: CallOptions): Promise<Sight | "again"> {
    switch (record.phase) {
      case "made":
      case "told":
      case "held":
        return await this.#lookAtLive(record, spec, options);
      case "ending":
      case "burying": {
        const next = record.phase === "ending" ? "over" : "buried";
        if (!(await this.#isVmGone(record, options))) return seen(record);
        const at = this.#at();
        const end = record.end && { ...record.end, containers: record.end.containers.map((c) => ended(c, at)) };
        const buriedAt = next === "buried" ? at : undefined;
        await this.#options.cloud.advance(record, { phase: next, end, buriedAt }, options);
        return "again";
      }
      case "over":
      case "buried":
        return seen(record);
    }
  }

  async #lookAtLive(
    record: MachineRecord,
    spec: MachineSpec | undefined,
    options: CallOptions,
  ): Promise<Sight | "again"> {
    const { volumes } = this.#options;
    // Before its VM is ordered, which has them from the start.
    if (record.phase === "made" && spec !== undefined && volumes.isUngranted(record)) {
      await volumes.grant(record, spec, options);
      return "again";
    }
    const vm = await this.#options.cloud.vm(record.vm!, options);
    if (vm === undefined) {
      // Something may have run in it, and runs no more: never made again, for what has run once must not run twice.
      if (record.phase !== "made")
        return await this.#give(record, failed("VmLost", "the VM of this machine is gone", this.#at()), options);
      if (spec === undefined) return "absent";
      return record.pool === undefined
        ? await this.#makeVm(record, spec, options)
        : await this.#goElsewhere(record, options);
    }
    if (record.phase === "made") return await this.#lookAtMade(record, vm, spec, options);
    this.#views.sawHost(record.id, vm.isSeen);
    // What this process has last seen of it may be older than what another has told of it since.
    if (!vm.isSeen) throw unknown(record, new Error("the host of its VM is out of sight"));
    if (vm.state === "stopped" || vm.state === "deleting") return await this.#fallen(record, vm, options);
    const guest = this.#options.guests.of(vm);
    if (record.phase === "told") await this.#tellServices(guest, spec, options);
    let machine: Machine;
    try {
      machine = await guest.getPod(record.id, options);
    } catch (thrown) {
      if (!isProviderError(thrown, "not_found")) throw unknown(record, thrown);
      if (record.phase === "held")
        return await this.#give(record, failed("MachineLost", "its guest has lost this machine", this.#at()), options);
      // Told, and it never arrived: it may still.
      if (spec === undefined) return "absent";
      const put = await this.#putOrGive(record, spec, vm, options);
      if (put === "again") return put;
      machine = put;
    }
    if (record.phase === "told") await this.#hold(record, options);
    // Somebody wanted it gone, and let it have its grace.
    if (machine.state === "deleted") return await this.#bury(record, machine.containers, options);
    await volumes.letGo(record, machine, vm, options);
    return { machine: this.#views.told(record, vm, machine), record, guest };
  }

  /** One connection has this and what is asked then: for that alone another would be dialled. */
  async #tellServices(guest: Provider, spec: MachineSpec | undefined, options: CallOptions): Promise<void> {
    if (spec !== undefined) await this.#options.services?.before(guest, spec.labels, options);
  }

  /** What one guest has had, none is told of again. That fails at worst: the next look writes it. */
  async #hold(record: MachineRecord, options: CallOptions): Promise<void> {
    try {
      await this.#options.cloud.advance(record, { phase: "held" }, options);
    } catch (thrown) {
      if (options.signal.aborted) throw thrown;
      this.#options.logger.debug({ machine: record.id, err: thrown }, "That a guest has its machine is written later");
    }
  }

  /** No guest was told of it: without its specification there is none. */
  async #lookAtMade(
    record: MachineRecord,
    vm: Vm,
    spec: MachineSpec | undefined,
    options: CallOptions,
  ): Promise<Sight | "again"> {
    if (spec === undefined) return "absent";
    // Read after the entry names the VM, and before its guest is told: see pool-record.ts.
    if (record.pool !== undefined && !(await this.#options.pool.claim(record, options)))
      return await this.#goElsewhere(record, options);
    if (vm.isSeen && (vm.state === "stopped" || vm.state === "deleting"))
      return await this.#fallen(record, vm, options);
    if (vm.isSeen && vm.state === "running" && (await this.#options.guests.answers(vm, options))) {
      void this.#options.services?.before(this.#options.guests.of(vm), spec.labels, options);
      return await this.#tell(record, options);
    }
    return await this.#awaitBoot(record, vm, spec, options);
  }

  async #putOrGive(record: MachineRecord, spec: MachineSpec, vm: Vm, options: CallOptions): Promise<Machine | "again"> {
    try {
      return await this.#put(record, spec, vm, options);
    } catch (thrown) {
      const isFinal = isProviderError(thrown, "unsupported") || isProviderError(thrown, "invalid");
      if (!isFinal) throw thrown;
      // It never had this machine, and would say so again.
      const end = failed("MachineRefused", `its guest refuses it: ${thrown.message}`, this.#at());
      return await this.#give(record, end, options);
    }
  }

  /** Once more the same, if somebody else was faster. */
  async #put(record: MachineRecord, spec: MachineSpec, vm: Vm, options: CallOptions): Promise<Machine> {
    // Sizes are the cloud's, not the guest's.
    const { instance_type: _size, ...unsized } = spec;
    const guest = this.#options.guests.of(vm);
    const { volumes, services } = this.#options;
    const [told] = await Promise.all([
      volumes.give(record, unsized, guest, options),
      services?.before(guest, spec.labels, options),
    ]);
    const unheardOf = requiredCapabilities(told).filter(({ capability }) => UNHEARD_OF.includes(capability));
    if (unheardOf.length > 0) assertCapable(unheardOf, (await guest.getInfo(options)).capabilities);
    try {
      return await guest.createPod(record.id, told, options);
    } catch (thrown) {
      if (!isProviderError(thrown, "conflict")) throw thrown;
      return await guest.getPod(record.id, options);
    }
  }

  // ------------------------------------------------------------------------------------------------------------ make

  /**
   * Has the machine made, as far as that goes at once.
   * @throws ProviderError conflict, gone, quota, invalid, unavailable
   */
  async create(id: string, spec: MachineSpec, options: CallOptions): Promise<Sight> {
    const record = (await this.#options.cloud.record(id, options)) ?? (await this.#write(id, spec, options));
    if (record.phase === "burying" || record.phase === "buried" || record.isDoomed === true)
      throw new ProviderError("gone", `machine ${id} was deleted`);
    if (record.identity !== specIdentity(spec))
      throw new ProviderError("conflict", `machine ${id} exists with another specification`);
    const sight = await this.look(id, spec, options);
    // Another process has taken it back: as if it had not been asked for, and no word on what it names.
    if (sight === "absent") throw new ProviderError("unavailable", `machine ${id} came and went`);
    return sight;
  }

  async #write(id: string, spec: MachineSpec, options: CallOptions): Promise<MachineRecord> {
    const claims = await this.#options.volumes.claimsOf(spec, options);
    const place = await this.#options.orders.place(spec, options);
    const about = { identity: specIdentity(spec), place, claims, at: this.#at() };
    return await this.#options.cloud.write(id, newRecord(spec, about), options);
  }

  async #makeVm(record: MachineRecord, spec: MachineSpec, options: CallOptions): Promise<Sight | "again"> {
    const { cloud, orders } = this.#options;
    const place = await orders.order(record, spec, options);
    if (place !== undefined) {
      await cloud.advance(record, { ...place, attempt: record.attempt + 1 }, options);
      return "again";
    }
    const vm = await cloud.vm(record.vm!, options);
    if (vm === undefined) return { machine: this.#views.making(record, spec), record };
    return await this.#lookAtMade(record, vm, spec, options);
  }

  /** The VM of the pool is another's, or gone: nothing of this machine was ever told to it. */
  async #goElsewhere(record: MachineRecord, options: CallOptions): Promise<"again"> {
    const change = { vm: this.#options.orders.newName(), pool: undefined, attempt: record.attempt + 1 };
    await this.#options.cloud.advance(record, change, options);
    return "again";
  }

  /** The guest was not told yet: it may come up. */
  async #awaitBoot(record: MachineRecord, vm: Vm, spec: MachineSpec, options: CallOptions): Promise<Sight | "again"> {
    const { clock, bootMs } = this.#options;
    const since = this.#bootingSince.get(vm.name);
    if (since === undefined) this.#bootingSince.set(vm.name, clock.monotonic());
    else if (clock.monotonic() - since > bootMs) return await this.#fallen(record, vm, options);
    return { machine: this.#views.making(record, spec, vm), record };
  }

  /** From here on something may run. */
  async #tell(record: MachineRecord, options: CallOptions): Promise<"again"> {
    this.#bootingSince.delete(record.vm!);
    await this.#options.cloud.advance(record, { phase: "told" }, options);
    return "again";
  }

  // ------------------------------------------------------------------------------------------------------------- end

  /** The VM does not run, or never came up. */
  async #fallen(record: MachineRecord, vm: Vm, options: CallOptions): Promise<Sight | "again"> {
    if (record.phase !== "made")
      return await this.#give(record, failed("VmStopped", "the VM of this machine stopped", this.#at()), options);
    this.#bootingSince.delete(vm.name);
    if (record.misses + 1 >= MOST_VMS)
      return await this.#give(
        record,
        failed("VmNeverReady", `of ${MOST_VMS} VMs none had a guest that answers`, this.#at()),
        options,
      );
    // The collector takes the old one: no entry names it any more.
    const { attempt, misses } = record;
    const vmName = this.#options.orders.newName();
    const change = { vm: vmName, pool: undefined, attempt: attempt + 1, misses: misses + 1 };
    await this.#options.cloud.advance(record, change, options);
    this.#views.notice(record.id, "VmNeverReady", `VM ${vm.name} did not come up; another takes its place`);
    return "again";
  }

  #give(record: MachineRecord, end: MachineEnd, options: CallOptions): Promise<"again"> {
    return this.#advance(record, "ending", end, options);
  }

  async #bury(
    record: MachineRecord,
    containers: readonly ContainerState[] | undefined,
    options: CallOptions,
  ): Promise<"again"> {
    const end = record.end ?? { state: "stopped", at: this.#at(), containers: containers ?? [] };
    return await this.#advance(record, "burying", end, options);
  }

  async #advance(record: MachineRecord, phase: Phase, end: MachineEnd, options: CallOptions): Promise<"again"> {
    await this.#options.cloud.advance(record, { phase, end }, options);
    return "again";
  }

  /** Nothing that was said of a VM before counts: it goes, and is seen to be gone. */
  async #isVmGone(record: MachineRecord, options: CallOptions): Promise<boolean> {
    const { vm } = record;
    if (vm === undefined) return true;
    const { cloud, guests, pool } = this.#options;
    // One that it never claimed may be another's.
    if (record.pool !== undefined && !(await pool.release(record, options))) return true;
    if ((await cloud.vm(vm, options)) === undefined) return true;
    await cloud.deleteVm(vm, options);
    guests.forget(vm);
    return (await cloud.vm(vm, options)) === undefined;
  }

  /** @throws ProviderError not_found, unavailable */
  async stop(id: string, graceSeconds: number, options: CallOptions): Promise<Sight> {
    for (let turn = 0; turn < MOST_TURNS; turn++) {
      const record = await this.#options.cloud.record(id, options);
      if (record === undefined) return "absent";
      if (!isLive(record)) return await this.look(id, undefined, options);
      if (record.phase !== "made") {
        const vm = await this.#options.cloud.vm(record.vm!, options);
        if (vm !== undefined && !vm.isSeen) throw unknown(record);
        if (vm === undefined || vm.state === "stopped") return await this.look(id, undefined, options);
        try {
          await this.#options.guests.of(vm).stopPod(id, { ...options, graceSeconds });
          return await this.look(id, undefined, options);
        } catch (thrown) {
          if (!isProviderError(thrown, "not_found")) throw unknown(record, thrown);
        }
        if (record.phase === "held") return await this.look(id, undefined, options);
      }
      // Its guest knows of nothing; what is under way to it finds no VM.
      await this.#give(record, { state: "stopped", at: this.#at(), containers: [] }, options);
    }
    throw new ProviderError("unavailable", `the entry of machine ${id} changes all the time`);
  }

  /** @throws ProviderError unavailable; conflict, as `Provider.deletePod` */
  async delete(id: string, { force, ifAbsent, ...options }: DeleteOptions): Promise<void> {
    for (let turn = 0; turn < MOST_TURNS; turn++) {
      const record = await this.#options.cloud.record(id, options);
      if (ifAbsent === true && record !== undefined && record.phase !== "buried") throw machineIsThere(id);
      switch (record?.phase) {
        case undefined: {
          const at = this.#at();
          const tombstone = {
            phase: "buried",
            labels: {},
            createdAt: at,
            buriedAt: at,
            attempt: 0,
            misses: 0,
          } as const;
          await this.#options.cloud.write(id, tombstone, options);
          break;
        }
        case "buried":
          return;
        case "burying":
          await this.#begin(record, options);
          return;
        case "made":
        case "ending":
        case "over":
          await this.#bury(record, record.end?.containers, options);
          break;
        case "told":
        case "held":
          if ((await this.#buryTold(record, force, options)) === "stopping") return;
      }
    }
    throw new ProviderError("unavailable", `the entry of machine ${id} changes all the time`);
  }

  /** What is under way is certain to happen, whatever the cloud says just now. */
  async #begin({ id }: MachineRecord, options: CallOptions): Promise<void> {
    try {
      await this.look(id, undefined, options);
    } catch (thrown) {
      if (options.signal.aborted) throw thrown;
      this.#options.logger.debug({ machine: id, err: thrown }, "A deletion goes on later");
    }
  }

  /** @returns "stopping" when its guest gives it its grace first */
  async #buryTold(record: MachineRecord, force: boolean, options: CallOptions): Promise<"again" | "stopping"> {
    const { cloud, guests } = this.#options;
    const { id } = record;
    const vm = await cloud.vm(record.vm!, options);
    if (vm === undefined) return await this.#bury(record, [], options);
    let machine: Machine | undefined;
    try {
      if (!vm.isSeen) throw unknown(record);
      machine = await guests.of(vm).getPod(id, options);
    } catch (thrown) {
      if (options.signal.aborted) throw thrown;
      if (!force && !isProviderError(thrown, "not_found")) throw unknown(record, thrown);
    }
    // One of which its guest knows nothing may be on its way there: the guest's own tombstone keeps it out.
    if (force || (machine !== undefined && isOver(machine)))
      return await this.#bury(record, machine?.containers ?? [], options);
    if (record.isDoomed !== true) {
      await cloud.advance(record, { isDoomed: true }, options);
      return "again";
    }
    await guests.of(vm).deletePod(id, { ...options, force: false });
    return "stopping";
  }

  // ----------------------------------------------------------------------------------------------------------- others

  #at(): string {
    return new Date(this.#options.clock.now()).toISOString();
  }
}

/** A guest may have it, or may come to have it. */
export const isLive = ({ phase }: MachineRecord): boolean => phase === "made" || phase === "told" || phase === "held";

const seen = (record: MachineRecord): Sight => ({ machine: endedMachine(record), record });

function unknown({ id, phase }: MachineRecord, cause?: unknown): ProviderError {
  const what = cause instanceof Error ? `: ${cause.message}` : "";
  return new ProviderError("unavailable", `the guest of machine ${id} (${phase}) cannot be asked${what}`, { cause });
}

/** Nobody saw how its containers ended; what was told of them before stands. */
const failed = (reason: string, message: string, at: string): MachineEnd => ({
  state: "failed",
  at,
  reason,
  message,
  containers: [],
});

/** Nothing of it runs any more, and nobody saw how it ended. */
function ended(container: ContainerState, at: string): ContainerState {
  if (container.state !== "running") return container;
  const { id, started_at } = container;
  return {
    ...container,
    state: "terminated",
    ready: false,
    started: false,
    terminated: {
      exit_code: 137,
      reason: "ContainerStatusUnknown",
      message: "The container could not be located when its VM went",
      finished_at: at,
      ...(started_at !== undefined && { started_at }),
      ...(id !== undefined && { id }),
    },
  };
}
