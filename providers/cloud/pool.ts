/**
 * VMs that run before there is a machine for them, so many of each size as is said (`InstanceType.warm`). Their entries
 * (`pool-record.ts`) are all that is known of them, so that several agents of a node share a pool, and what one leaves
 * behind when it is killed another finds: an order that came late, a claim that was not used, a VM of an image that is
 * old. Agents of other nodes leave it alone, until nobody has kept it for long.
 */
import { createHash } from "node:crypto";
import {
  type CallOptions,
  type Clock,
  isProviderError,
  type Logger,
  type Random,
} from "../../src/provider/kit/index.ts";
import { type CloudCalls, sensible } from "./cloud-calls.ts";
import type { Entry, InstanceType, Vm, VmRequest } from "./cloud.ts";
import type { GuestServices } from "./guest-services.ts";
import type { Guests } from "./guests.ts";
import type { Quarantine } from "./instance-types.ts";
import { BIRTH_LABEL, newVmName, POOL_LABEL, SCOPE_LABEL } from "./labels.ts";
import { POOL, poolEntryOf, type PoolRecord, poolRecordOf, poolWordsOf } from "./pool-record.ts";
import { type MachineRecord, needsVm } from "./record.ts";
import { quietly } from "./rounds.ts";

interface PoolOptions {
  readonly cloud: CloudCalls;
  readonly guests: Guests;
  /** Absent: machines reach Services as the cloud's network does. */
  readonly services: GuestServices | undefined;
  readonly types: (options: CallOptions) => Promise<readonly InstanceType[]>;
  /** What VMs are made of today. */
  readonly version: (options: CallOptions) => Promise<string>;
  readonly quarantine: Quarantine;
  readonly scope: string;
  /** The node that this is the pool of, once that is known. */
  readonly owner: () => string;
  /** How long a VM may take until its guest answers, and a guest that has answered may be silent. */
  readonly bootMs: number;
  /** Unclaimed ones are replaced when they are older. */
  readonly maxAgeMs: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
}

/** Between two looks whether a claim is still used. */
const CLAIMS_MS = 60_000;
/** An owner writes an entry again when it has been the same for so long... */
const RENEW_MS = 5 * 60_000;
/** ...and after this has forsaken it. */
const FORSAKEN_MS = 30 * 60_000;
/** A claim may meet a renewal, which comes seldom. */
const CLAIM_TRIES = 2;

/** A VM that a machine may claim. */
type WarmVm = Pick<PoolRecord, "name" | "vm">;

export class Pool {
  readonly #options: PoolOptions;
  /** Those that were ready when they were last looked at, and that this process has given to no machine. */
  readonly #ready = new Map<string, PoolRecord>();
  /** Monotonic time since when something is as it is. */
  #sights = new Map<string, number>();
  /** Monotonic time of the last round that saw the entries. */
  #lookedAt = -Infinity;

  constructor(options: PoolOptions) {
    this.#options = options;
  }

  // ----------------------------------------------------------------------------------------------------------- claims

  /** One that is ready; nobody else in this process is given it. */
  take({ name, zone }: InstanceType): WarmVm | undefined {
    for (const record of this.#ready.values()) {
      if (record.type !== name || record.zone !== zone) continue;
      this.#ready.delete(record.name);
      return record;
    }
    return undefined;
  }

  /** True when the VM that the machine's entry names is its own, from now on at the latest. */
  async claim(machine: MachineRecord, options: CallOptions): Promise<boolean> {
    for (let tries = 0; tries < CLAIM_TRIES; tries++) {
      const record = await this.#read(machine.pool!, options);
      if (record?.phase !== "warm") return isOf(record, machine);
      if ((await this.#advance(record, { phase: "claimed", machine: machine.id }, options)) !== undefined) return true;
    }
    return isOf(await this.#read(machine.pool!, options), machine);
  }

  /** Gives up what a machine has claimed. @returns false when that VM was never its own */
  async release(machine: MachineRecord, options: CallOptions): Promise<boolean> {
    const record = await this.#read(machine.pool!, options);
    if (record?.machine !== machine.id) return false;
    if (record.phase === "claimed") await this.#advance(record, { phase: "leaving" }, options);
    return true;
  }

  // ------------------------------------------------------------------------------------------------------------ rounds

  /** Looks after what is there, and fills up. What fails is tried again in the next round. */
  async round(options: CallOptions): Promise<void> {
    const { cloud, scope, types } = this.#options;
    const records = sensible(await cloud.entries([POOL, scope], options), poolRecordOf);
    const wanted = (await types(options)).filter(({ warm = 0 }) => warm > 0);
    if (records.length === 0 && wanted.length === 0) return;
    const contents = await this.#contentsOf(wanted, options);
    const before = this.#before();
    // The list may lag: what is not in it may be claimed.
    const listed = new Set(records.map(({ name }) => name));
    for (const name of this.#ready.keys()) if (!listed.has(name)) this.#ready.delete(name);
    const kept = new Map<string, number>();
    for (const record of records.toSorted((a, b) => a.name.localeCompare(b.name))) {
      const isUnclaimed = record.phase === "warming" || record.phase === "warm";
      const isOwn = record.owner === this.#options.owner();
      const sameMs = this.#sameMs(record, before);
      if (isUnclaimed && !isOwn && sameMs < FORSAKEN_MS) continue;
      const type = isOwn ? wanted.find(({ name, zone }) => name === record.type && zone === record.zone) : undefined;
      const isCurrent = type !== undefined && contents.get(keyOf(type)) === record.content;
      const has = (type && kept.get(keyOf(type))) ?? 0;
      const isNeeded = isCurrent && has < (type.warm ?? 0);
      await this.#quietly(async () => {
        const stays = await this.#lookAfter(record, isNeeded ? type : undefined, before, options);
        if (stays && isUnclaimed && type !== undefined) kept.set(keyOf(type), has + 1);
      }, options);
    }
    for (const type of wanted) {
      const lacking = (type.warm ?? 0) - (kept.get(keyOf(type)) ?? 0);
      for (let i = 0; i < lacking; i++)
        await this.#quietly(() => this.#add(type, contents.get(keyOf(type))!, options), options);
    }
  }

  /** What was seen in the round before. */
  #before(): ReadonlyMap<string, number> {
    const now = this.#options.clock.monotonic();
    const before = this.#sights;
    this.#sights = new Map();
    // While nothing could be seen, owners could not write either.
    if (now - this.#lookedAt > RENEW_MS) for (const key of [...before.keys()].filter(isOfEntry)) before.delete(key);
    this.#lookedAt = now;
    return before;
  }

  /** For how long the entry was seen as it is. */
  #sameMs({ name, version }: PoolRecord, before: ReadonlyMap<string, number>): number {
    const key = `${ENTRY}${name} ${version}`;
    const now = this.#options.clock.monotonic();
    const since = before.get(key) ?? now;
    this.#sights.set(key, since);
    return now - since;
  }

  /** @param type undefined: it is not needed. @returns whether it stays, claimed or not */
  async #lookAfter(
    record: PoolRecord,
    type: InstanceType | undefined,
    before: ReadonlyMap<string, number>,
    options: CallOptions,
  ): Promise<boolean> {
    switch (record.phase) {
      case "warming":
      case "warm": {
        const stays = type !== undefined && (await this.#keep(record, type, before, options));
        if (stays) return true;
        this.#ready.delete(record.name);
        await this.#advance(record, { phase: "leaving" }, options);
        return false;
      }
      case "claimed": {
        this.#ready.delete(record.name);
        const key = `${record.name} is used`;
        const now = this.#options.clock.monotonic();
        const seenAt = before.get(key) ?? -Infinity;
        const isDue = now - seenAt >= CLAIMS_MS;
        this.#sights.set(key, isDue ? now : seenAt);
        // Its machine's entry named the VM before the claim was made; when it does so no more, it never will again.
        if (isDue && !(await this.#isUsed(record, options))) await this.#advance(record, { phase: "leaving" }, options);
        return false;
      }
      case "leaving":
        this.#ready.delete(record.name);
        await this.#remove(record, options);
        return false;
    }
  }

  /** @returns false when it should go */
  async #keep(
    record: PoolRecord,
    type: InstanceType,
    before: ReadonlyMap<string, number>,
    options: CallOptions,
  ): Promise<boolean> {
    const { cloud, bootMs, maxAgeMs, clock } = this.#options;
    const vm = await cloud.vm(record.vm, options);
    if (vm === undefined && record.phase === "warming") await this.#order(record, type, options);
    const isReady =
      vm !== undefined && vm.isSeen && vm.state === "running" && (await this.#options.guests.answers(vm, options));
    if (vm?.state === "stopped" || vm?.state === "deleting" || (vm === undefined && record.phase === "warm"))
      return false;
    const now = clock.monotonic();
    const since = before.get(record.name) ?? now;
    const answered = isReady ? now : (before.get(`${record.name} answers`) ?? since);
    this.#sights.set(record.name, since);
    this.#sights.set(`${record.name} answers`, answered);
    if (now - since > maxAgeMs || now - answered > bootMs) return false;
    if (isReady) await this.#tellServices(vm, record, options);
    await this.#note(record, isReady, before, options);
    return true;
  }

  /** Its first machine finds them there; later ones that have come since keep no other VM of the pool waiting. */
  async #tellServices(vm: Vm, { phase }: PoolRecord, options: CallOptions): Promise<void> {
    const told = this.#options.services?.warm(this.#options.guests.of(vm), options);
    if (phase === "warming") await told;
  }

  /** Offers it to machines or not, and writes what has changed, or that its owner lives. */
  async #note(
    record: PoolRecord,
    isReady: boolean,
    before: ReadonlyMap<string, number>,
    options: CallOptions,
  ): Promise<void> {
    if (!isReady) this.#ready.delete(record.name);
    const phase = isReady ? "warm" : record.phase;
    const isNews = phase !== record.phase || this.#sameMs(record, before) >= RENEW_MS;
    const written = isNews ? await this.#advance(record, { phase }, options) : record;
    if (isReady && written !== undefined) this.#ready.set(record.name, written);
  }

  /** True while the entry of the machine that has claimed this VM needs it. */
  async #isUsed({ vm, machine }: PoolRecord, options: CallOptions): Promise<boolean> {
    if (machine === undefined) return false;
    const record = await this.#options.cloud.record(machine, options);
    return record?.vm === vm && needsVm(record);
  }

  async #remove(record: PoolRecord, options: CallOptions): Promise<void> {
    const { cloud, guests } = this.#options;
    if (await this.#isUsed(record, options)) return;
    if ((await cloud.vm(record.vm, options)) !== undefined) {
      await cloud.deleteVm(record.vm, options);
      guests.forget(record.vm);
      if ((await cloud.vm(record.vm, options)) !== undefined) return;
    }
    await cloud.removeEntry(record.name, record.version, options);
  }

  // -------------------------------------------------------------------------------------------------------------- more

  /** The entry names the VM before it is ordered. */
  async #add(type: InstanceType, content: string, options: CallOptions): Promise<void> {
    const { cloud, quarantine, random, owner } = this.#options;
    if (quarantine.has(type)) return;
    const vm = newVmName(random);
    const name = poolEntryOf(vm);
    const record = { phase: "warming", vm, owner: owner(), type: type.name, zone: type.zone, content } as const;
    const entry = await cloud.createEntry(name, this.#wordsOf(record), options);
    if (entry !== undefined) await this.#order(poolRecordOf(entry), type, options);
  }

  async #order(record: PoolRecord, type: InstanceType, options: CallOptions): Promise<void> {
    const { cloud, quarantine, random, scope, logger } = this.#options;
    const labels = { [SCOPE_LABEL]: scope, [POOL_LABEL]: record.name, [BIRTH_LABEL]: newVmName(random) };
    const request: VmRequest = { name: record.vm, type, labels };
    try {
      await cloud.createVm(request, options);
    } catch (thrown) {
      // By another agent's order, or by one of ours whose answer was lost.
      if (isProviderError(thrown, "conflict")) return;
      if (!isProviderError(thrown, "quota")) throw thrown;
      logger.warn({ type: type.name, err: thrown }, "The cloud has no room for a VM that would wait for a machine");
      quarantine.add(type);
      await this.#advance(record, { phase: "leaving" }, options);
    }
  }

  async #contentsOf(types: readonly InstanceType[], options: CallOptions): Promise<Map<string, string>> {
    if (types.length === 0) return new Map();
    const version = await this.#options.version(options);
    const digest = ({ name, zone, resources }: InstanceType) =>
      createHash("sha256")
        .update(JSON.stringify([version, name, zone, resources]))
        .digest("hex")
        .slice(0, 16);
    return new Map(types.map((type) => [keyOf(type), digest(type)]));
  }

  async #read(name: string, options: CallOptions): Promise<PoolRecord | undefined> {
    const entry = await this.#options.cloud.entry(name, options);
    return entry && poolRecordOf(entry);
  }

  /** Undefined when it is another by now. */
  async #advance(
    record: PoolRecord,
    change: Partial<PoolRecord>,
    options: CallOptions,
  ): Promise<PoolRecord | undefined> {
    const words = this.#wordsOf({ ...record, ...change });
    const entry = await this.#options.cloud.swapEntry(record.name, words, record.version, options);
    return entry && poolRecordOf(entry);
  }

  #wordsOf(record: Omit<PoolRecord, "version" | "name">): Entry["words"] {
    const { clock, scope } = this.#options;
    return poolWordsOf(record, { scope, at: new Date(clock.now()).toISOString() });
  }

  async #quietly(work: () => Promise<unknown>, { signal }: CallOptions): Promise<void> {
    await quietly(work, { signal, logger: this.#options.logger, fault: "A VM of the pool could not be looked after" });
  }
}

/** Begins the sights of entries. */
const ENTRY = "entry ";
const isOfEntry = (key: string): boolean => key.startsWith(ENTRY);
const isOf = (record: PoolRecord | undefined, { id }: MachineRecord): boolean =>
  record?.phase === "claimed" && record.machine === id;
const keyOf = ({ name, zone = "" }: InstanceType): string => `${name} ${zone}`;
