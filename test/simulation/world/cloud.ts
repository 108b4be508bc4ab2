/**
 * The cloud of a world whose machines are VMs: entries and VMs as `test/support/cloud-state.ts` keeps them, guests whose machines are the
 * backend's, and what befalls VMs. What is judged at the backend is judged at the guests; here, what is done to VMs and entries.
 */
import { isDeepStrictEqual } from "node:util";
import { BIRTH_LABEL, MACHINE_LABEL, POOL_LABEL, SCOPE_LABEL } from "../../../providers/cloud/labels.ts";
import { isLive } from "../../../providers/cloud/machine-work.ts";
import { poolRecordOf } from "../../../providers/cloud/pool-record.ts";
import { type MachineRecord, needsVm, recordOf, wordsOf } from "../../../providers/cloud/record.ts";
import type { Entry, InstanceType, Vm } from "../../../providers/cloud/cloud.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { isOver, type Machine, type MachineSpec } from "../../../src/provider/machine.ts";
import { specIdentity } from "../../../src/provider/fingerprint.ts";
import { CloudState, type CloudVm, LARGE, SMALL } from "../../support/cloud-state.ts";
import { judgeBurial } from "../invariants/machine-writes.ts";
import type { Sender } from "../invariants/sender.ts";
import { pick } from "../seeded.ts";
import { Violation } from "../violation.ts";
import type { World } from "./world.ts";

export const SCOPE = "sim";
const TYPES = [SMALL, LARGE];

export class CloudWorld {
  readonly state: CloudState;
  readonly types: readonly InstanceType[];
  readonly #world: World;
  /** In which VM, by its birth, a machine was put. */
  readonly #births = new Map<string, string>();
  /** What a list that lags says. */
  #photo: { entries: Entry[]; vms: Vm[] } = { entries: [], vms: [] };

  constructor(world: World, options: { deletesSlowly: boolean }) {
    this.#world = world;
    this.types = world.scenario.pool === true ? [{ ...SMALL, warm: 1 }, LARGE] : TYPES;
    this.state = new CloudState({ bootsAtOnce: false, ...options, onGone: (vm) => this.#gone(vm) });
  }

  hasTombstone(id: string): boolean {
    return this.record(id)?.phase === "buried";
  }

  record(id: string): MachineRecord | undefined {
    return this.state.words.has(id) ? recordOf(this.state.entry(id)) : undefined;
  }

  // ------------------------------------------------------------------------------------------------------------ guests

  /** What only this very VM's guest is asked. @throws ProviderError unavailable */
  guest(vm: Vm): void {
    const known = this.state.vms.get(vm.name);
    if (known?.request.labels[BIRTH_LABEL] !== vm.labels[BIRTH_LABEL] || known?.state !== "running" || !known.isSeen)
      throw new ProviderError("unavailable", "the guest does not answer");
  }

  put(vm: Vm, id: string, spec: MachineSpec, sender: Sender): Machine {
    this.guest(vm);
    const birth = vm.labels[BIRTH_LABEL]!;
    const before = this.#births.get(id);
    if (before !== undefined && before !== birth)
      throw new Violation("S6", "a machine that was in one VM is made in another");
    if (before === undefined && this.#machineIn(birth) !== undefined)
      throw new Violation("S6", "two machines are put into one VM");
    this.#births.set(id, birth);
    return this.#world.backend.put(id, spec, sender);
  }

  /** A machine that no agent of this history has made, as it would be. */
  plant(uid: string, spec: MachineSpec): void {
    const id = this.#world.idOf(uid);
    const name = `vmlet-${uid}`;
    const labels = { [SCOPE_LABEL]: SCOPE, [MACHINE_LABEL]: id, [BIRTH_LABEL]: name };
    this.state.createVm({ name, type: SMALL, labels });
    this.state.vms.get(name)!.state = "running";
    const record = { phase: "told", labels: spec.labels, createdAt: this.#world.backend.at(), vm: name } as const;
    const rest = { identity: specIdentity(spec), type: SMALL.name, attempt: 1, misses: 0 };
    this.state.createEntry(id, wordsOf({ ...record, ...rest }, SCOPE));
    this.#births.set(id, name);
    this.#world.backend.plant(uid, spec);
  }

  // ----------------------------------------------------------------------------------------------------------- entries

  /** To go on to the end is to end whatever runs in the VM. */
  swap(name: string, words: Entry["words"], version: string, sender: Sender): Entry {
    if (isPools(name)) return this.state.swapEntry(name, words, version);
    const before = this.record(name);
    const entry = this.state.swapEntry(name, words, version);
    const after = recordOf(entry);
    const ends = after.phase === "ending" || after.phase === "burying";
    if (ends && before?.phase !== "ending") this.#judgeEnd(name, after, sender);
    return entry;
  }

  /** It says of a VM that waits what is known, and that its owner lives. */
  isRenewal(name: string, { at: _at, ...words }: Entry["words"]): boolean {
    if (!isPools(name)) return false;
    const { at: _before, ...known } = this.state.words.get(name)?.words ?? {};
    return isDeepStrictEqual(words, known);
  }

  #judgeEnd(id: string, record: MachineRecord, sender: Sender): void {
    const known = this.#world.backend.machines.get(id);
    if (known === undefined) return;
    const history = this.#world.history.of(known.machine.labels["vmlet.dev/uid"] ?? "");
    // It was told to stop before its guest knew of it: there is nothing whose grace could be kept.
    if (record.phase === "ending" && record.end?.state === "stopped") history.stopBy = this.#world.now;
    judgeBurial(this.#world, known, true, sender);
  }

  deleteVm(name: string, sender: Sender): void {
    const labels = this.state.vms.get(name)?.request.labels;
    const id = this.machineOf(name);
    const record = this.record(id);
    const isNamed = record?.vm === name && isLive(record);
    const known = this.#birthOf(id) === labels?.[BIRTH_LABEL] ? this.#world.backend.machines.get(id) : undefined;
    if (isNamed && known !== undefined && !isOver(known.machine)) judgeBurial(this.#world, known, true, sender);
    this.state.deleteVm(name);
  }

  /** Whose VM that is, or is to be; empty: nobody's yet. */
  machineOf(name: string): string {
    const { [MACHINE_LABEL]: machine, [BIRTH_LABEL]: birth = "" } = this.state.vms.get(name)?.request.labels ?? {};
    return machine ?? this.#machineIn(birth) ?? "";
  }

  #machineIn(birth: string): string | undefined {
    for (const [id, each] of this.#births) if (each === birth) return id;
    return undefined;
  }

  #birthOf(id: string): string | undefined {
    return this.#births.get(id);
  }

  // ------------------------------------------------------------------------------------------------------------- lists

  listEntries(isFair: boolean): Entry[] {
    return isFair || this.#world.random() < 0.7 ? this.state.entries() : this.#photo.entries;
  }

  listVms(isFair: boolean): Vm[] {
    return isFair || this.#world.random() < 0.7 ? this.state.allVms() : this.#photo.vms;
  }

  // --------------------------------------------------------------------------------------------------------- its own life

  /** Something befalls a VM, or the cloud. */
  step(): void {
    const { random } = this.#world;
    const vms = [...this.state.vms.values()];
    const x = random();
    if (x < 0.1) this.#photo = { entries: this.state.entries(), vms: this.state.allVms() };
    else if (x < 0.15) this.state.soldOut.add(pick(random, this.types).name);
    else if (x < 0.2) this.state.soldOut.clear();
    if (vms.length === 0) return;
    const vm = pick(random, vms);
    if (x < 0.8) this.progress(vm);
    else if (x < 0.9) vm.isSeen = !vm.isSeen;
    else if (x < 0.93) this.#stop(vm);
    else if (x < 0.95) this.state.lose(vm.request.name);
  }

  /** One of them goes on as it should. */
  liveOn(): void {
    const vms = [...this.state.vms.values()];
    if (vms.length > 0) this.progress(pick(this.#world.random, vms));
  }

  /** What it does by itself. */
  progress(vm: CloudVm): void {
    if (vm.state === "booting") vm.state = "running";
    else if (vm.state === "deleting") this.state.lose(vm.request.name);
  }

  #stop(vm: CloudVm): void {
    if (vm.state !== "running") return;
    vm.state = "stopped";
    this.#lose(vm);
  }

  #gone(vm: CloudVm): void {
    this.#world.trace?.(`  VM ${vm.request.name} is gone`);
    this.#lose(vm);
  }

  /** What ran in it runs no more. */
  #lose({ request }: CloudVm): void {
    const id = request.labels[MACHINE_LABEL] ?? this.#machineIn(request.labels[BIRTH_LABEL]!) ?? "";
    if (this.#births.get(id) !== request.labels[BIRTH_LABEL]) return;
    if (!this.#world.backend.machines.has(id)) return;
    const record = this.record(id);
    // Unless its end was wanted, its loss is a misfortune.
    if (record !== undefined && isLive(record)) this.#world.backend.vanish(id);
    else this.#world.backend.machines.delete(id);
  }

  /** Everybody is in sight, and there is room. */
  mend(): void {
    this.state.soldOut.clear();
    for (const vm of this.state.vms.values()) vm.isSeen = true;
  }

  /** What is left that nobody needs; undefined when nothing is. */
  litter(): Violation | undefined {
    // Looked at now and then, it would be told of when everything had come to rest.
    for (const { machine } of this.#world.backend.machines.values())
      if (machine.state === "creating" || machine.state === "starting")
        return new Violation("L1", "a machine is still being made");
    for (const { request } of this.state.vms.values()) {
      const pool = request.labels[POOL_LABEL];
      if (pool !== undefined && !this.state.words.has(pool))
        return new Violation("L2", "a VM of which the pool knows nothing is left");
      if (pool !== undefined) continue;
      const record = this.record(request.labels[MACHINE_LABEL]!);
      if (record?.vm !== request.name) return new Violation("L2", "a VM that no machine has is left");
      if (!needsVm(record)) return new Violation("L2", "a VM whose machine is over is left");
    }
    const waiting = [...this.state.words].filter(([name, { words }]) => isPools(name) && words["phase"] === "warm");
    const wanted = this.types.reduce((sum, { warm = 0 }) => sum + warm, 0);
    if (waiting.length !== wanted) return new Violation("L2", `${waiting.length} VMs wait for machines, not ${wanted}`);
    for (const name of this.state.words.keys()) {
      if (isPools(name)) {
        const unrest = this.#poolLitter(name);
        if (unrest !== undefined) return unrest;
        continue;
      }
      const { phase } = this.record(name)!;
      if (phase === "ending" || phase === "burying")
        return new Violation("L2", "the end of a machine was not finished");
      if (phase === "made") return new Violation("L2", "an entry that nobody goes on with is left");
    }
    return undefined;
  }

  #poolLitter(name: string): Violation | undefined {
    const { phase, vm, machine = "" } = poolRecordOf(this.state.entry(name));
    if (phase === "warming" || phase === "leaving") return new Violation("L2", `a VM of the pool is left ${phase}`);
    if (phase === "warm") return undefined;
    const record = this.record(machine);
    const isUsed = record?.vm === vm && needsVm(record);
    return isUsed ? undefined : new Violation("L2", "a VM is left that was claimed by who does not need it");
  }
}

/** An entry of a VM that waits for a machine, or has. */
const isPools = (name: string): boolean => name.startsWith("_pool.");
