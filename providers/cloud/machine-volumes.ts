/**
 * The volumes of one machine, from the cloud's side. Its VM is ordered with them, after all are granted to the machine
 * (`volume-record.ts`); so they are attached before anything runs, and an order that comes late attaches them to a VM
 * in which nothing ever does. They are let go when the VM is seen to be gone; or when the machine is over, which its
 * guest says, and they are seen to be taken from its VM.
 *
 * The guest's own Machine API has them as volumes of class `given`, by the cloud's names: a guest that does not know of
 * that class refuses, so that none makes an empty disk in its VM in their place.
 */
import {
  assertFree,
  assertMode,
  type CallOptions,
  isGoneVolume,
  isOver,
  isProviderError,
  type Logger,
  type Machine,
  type MachineSpec,
  type Provider,
  ProviderError,
  type Random,
  type VolumeClaim,
  volumeClaims,
  type VolumeOffer,
} from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { AttachedVolume, Vm, VolumeRef } from "./cloud.ts";
import { newVmName } from "./labels.ts";
import type { MachineRecord } from "./record.ts";
import { attachmentOf, type Holder, type VolumeEntries } from "./volume-entries.ts";
import type { CloudVolumeRecord } from "./volume-record.ts";

interface MachineVolumesOptions {
  readonly cloud: CloudCalls;
  readonly offer: VolumeOffer;
  readonly entries: VolumeEntries;
  readonly random: Random;
  readonly logger: Logger;
}

/** What a guest's volumes that its VM was ordered with are of. */
const GIVEN_CLASS = "given";

interface Users {
  readonly holders: readonly Holder[];
  readonly isCopied: boolean;
}

/** The rules say no: nothing of this machine may stay. */
class Refusal {
  readonly why: unknown;

  constructor(why: unknown) {
    this.why = why;
  }
}

export class MachineVolumes {
  readonly #options: MachineVolumesOptions;

  constructor(options: MachineVolumesOptions) {
    this.#options = options;
  }

  /**
   * What a new machine's entry says of its volumes; nothing where it has none. That they may be had is certain only
   * when they are granted, but who is refused now need not be written down first.
   * @throws ProviderError invalid, not_found (of a volume), in_use, out_of_zone, unavailable
   */
  async claimsOf(spec: MachineSpec, options: CallOptions): Promise<Pick<MachineRecord, "volumes" | "token">> {
    const claims = volumeClaims(spec);
    if (claims.length === 0) return {};
    const seen = new Set<string>();
    const volumes: VolumeRef[] = [];
    for (const { claim, field } of claims) {
      const { volume: id } = claim;
      if (seen.has(id)) throw new ProviderError("invalid", `volume ${id} is named twice`, { field });
      seen.add(id);
      if ((claim.mount_options ?? []).length > 0)
        throw new ProviderError(
          "invalid",
          `volume ${id} is mounted by the cloud, which is told no options: leave mount options out`,
          { field: field.replace(/volume$/, "mount_options") },
        );
      const record = await this.#options.entries.read(id, options);
      const users = await this.#usersOf(record, options);
      volumes.push(this.#assertFree(spec, { claim, field }, record, users));
    }
    return { volumes, token: newVmName(this.#options.random) };
  }

  /** Whether what the machine's entry names is to be claimed yet. */
  isUngranted({ volumes = [], claims }: MachineRecord): boolean {
    return volumes.length > 0 && claims === undefined;
  }

  /**
   * Makes all of them the machine's, or has the machine's entry removed.
   * @throws ProviderError as `claimsOf`, when they are refused: then the machine is not there; unavailable
   */
  async grant(machine: MachineRecord, spec: MachineSpec, options: CallOptions): Promise<void> {
    const { cloud } = this.#options;
    try {
      for (const [index, { claim, field }] of volumeClaims(spec).entries())
        await this.#claim(machine, spec, { claim, field, content: machine.volumes?.[index] }, options);
    } catch (thrown) {
      if (!(thrown instanceof Refusal)) throw thrown;
      await cloud.withdraw(machine, options);
      // Another process may have been faster, by what it saw before.
      if ((await cloud.record(machine.id, options))?.token === machine.token) return;
      throw thrown.why;
    }
    await cloud.advance(machine, { claims: "granted" }, options);
  }

  async #claim(
    machine: MachineRecord,
    spec: MachineSpec,
    { claim, field, content }: { claim: VolumeClaim; field: string; content: VolumeRef | undefined },
    options: CallOptions,
  ): Promise<void> {
    const { entries } = this.#options;
    const { reservation, read_only = false } = claim;
    const own = { machine: machine.id, token: machine.token!, reservation, read_only };
    await entries.untilDone(claim.volume, options, async (record) => {
      if (record?.claims.some((each) => each.machine === own.machine && each.token === own.token) === true) return true;
      const users = await this.#usersOf(record, options);
      try {
        const found = this.#assertFree(spec, { claim, field }, record, users);
        if (found.name !== content?.name)
          throw new ProviderError("unavailable", `volume ${claim.volume} is another one by now`);
      } catch (thrown) {
        throw new Refusal(thrown);
      }
      const others = users.holders.map((each) => each.claim);
      return (await entries.swap(record!, { claims: [...others, own] }, options)) && true;
    });
  }

  /** Who uses it now. What is not known refuses nobody. @throws ProviderError unavailable */
  async #usersOf(record: CloudVolumeRecord | undefined, options: CallOptions): Promise<Users> {
    if (record === undefined) return { holders: [], isCopied: false };
    const { entries } = this.#options;
    const copies = record.copies.filter((copy) => copy.in_use !== true);
    return { holders: await entries.holders(record, options), isCopied: await entries.isCopied({ copies }, options) };
  }

  /** @returns where its bytes are @throws ProviderError as `claimsOf` */
  #assertFree(
    spec: MachineSpec,
    { claim, field }: { claim: VolumeClaim; field: string },
    record: CloudVolumeRecord | undefined,
    { holders, isCopied }: Users,
  ): VolumeRef {
    const { offer } = this.#options;
    const { volume: id } = claim;
    if (record?.content === undefined || isGoneVolume(record.volume))
      throw new ProviderError("not_found", `there is no volume ${id}`, { field });
    assertMode(spec, claim, record.volume, field);
    assertFree(claim, { volume: record.volume, attachments: holders.map(attachmentOf), offer, field });
    if (claim.read_only !== true && isCopied)
      throw new ProviderError("in_use", `volume ${id} is being copied`, { field, retryAfterMs: 1000 });
    return record.content;
  }

  /** As the machine's VM is ordered with them. */
  attachedTo({ volumes = [] }: MachineRecord, spec: MachineSpec): AttachedVolume[] {
    const claims = volumeClaims(spec);
    return volumes.map((volume, index) => ({ ...volume, readOnly: claims[index]?.claim.read_only === true }));
  }

  /**
   * Tells the guest of the volumes that its VM has, and what its machine is then to be told of them.
   * @throws ProviderError unsupported for a guest that cannot be given any
   */
  async give(
    { id: machine, volumes = [] }: MachineRecord,
    spec: MachineSpec,
    guest: Provider,
    options: CallOptions,
  ): Promise<MachineSpec> {
    if (volumes.length === 0) return spec;
    const names = new Map<string, string>();
    for (const [index, { claim }] of volumeClaims(spec).entries()) {
      const { name } = volumes[index]!;
      const { volume } = (await this.#options.entries.read(claim.volume, options)) ?? {};
      await makeGiven(guest, name, volume?.size_bytes ?? 0, options).catch((thrown: unknown) => {
        if (!isProviderError(thrown, "invalid")) throw thrown;
        throw new ProviderError(
          "unsupported",
          `the guest of machine ${machine} cannot be given volumes: its image is of an earlier release, make it again (vmlet cloud image)`,
          { cause: thrown },
        );
      });
      names.set(claim.volume, name);
    }
    // Who may have them was decided here: the guest has one machine.
    const told = (spec.volumes ?? []).map((each) => {
      if (each.type !== "persistent") return each;
      const { reservation: _reservation, ...claim } = each;
      return { ...claim, volume: names.get(claim.volume)! };
    });
    return { ...spec, volumes: told };
  }

  /**
   * Of a machine that is over, as its guest says: takes its volumes from its VM, and says so when they are seen to be
   * taken. What fails is done by the next look.
   */
  async letGo(record: MachineRecord, machine: Machine, vm: Vm, options: CallOptions): Promise<void> {
    const { volumes = [], claims } = record;
    if (volumes.length === 0 || claims === "freed" || !isOver(machine)) return;
    const { cloud, logger } = this.#options;
    try {
      for (const { name } of volumes)
        if (hasVolume(vm, name)) await cloud.onVolumes(options, (its, inner) => its.detach(vm.name, name, inner));
      const now = await cloud.vm(vm.name, options);
      // Of a host that is out of sight, what is told was so before.
      if (now === undefined || !now.isSeen || volumes.some(({ name }) => hasVolume(now, name))) return;
      await cloud.advance(record, { claims: "freed" }, options);
    } catch (thrown) {
      options.signal.throwIfAborted();
      logger.debug({ machine: record.id, err: thrown }, "The volumes of a machine that is over are taken later");
    }
  }
}

const hasVolume = ({ volumes = [] }: Vm, name: string): boolean => volumes.includes(name);

/** Again, where it was told so before: it may have grown since. */
async function makeGiven(guest: Provider, name: string, sizeBytes: number, options: CallOptions): Promise<void> {
  if (guest.volumes === undefined) throw new ProviderError("invalid", "the guest has no volumes");
  const spec = { labels: {}, size_bytes: sizeBytes, mode: "filesystem", class: GIVEN_CLASS } as const;
  try {
    await guest.volumes.create(name, spec, options);
  } catch (thrown) {
    if (!isProviderError(thrown, "conflict")) throw thrown;
    await guest.volumes.resize(name, sizeBytes, options);
  }
}
