/**
 * What is written of a VM that runs before there is a machine for it:
 *
 *     warming -> warm -> claimed -> leaving -> (removed)
 *
 * A machine's entry names the VM first, and then the machine claims it: so a claim that nobody lived to use is seen by
 * the machine's own entry, which names the VM no more, or is not there. The VM is that of the machine whose claim
 * stands here, whatever other entries name it.
 *
 * Until it is claimed only its owner judges it, for nodes of one scope may want other sizes, and make VMs of something
 * else. An owner writes its entries again from time to time: one that stays as it is has no owner any more.
 */
import type { Entry } from "./cloud.ts";

type PoolPhase = "warming" | "warm" | "claimed" | "leaving";

export interface PoolRecord {
  /** Of the entry. */
  readonly name: string;
  readonly phase: PoolPhase;
  readonly vm: string;
  /** The node whose pool it is in; empty where nodes are not told apart. */
  readonly owner: string;
  readonly type: string;
  readonly zone?: string | undefined;
  /** What it is made of: image, size and all else that would be another today. */
  readonly content: string;
  /** Who has claimed it. */
  readonly machine?: string | undefined;
  /** Of the entry that it was read from. */
  readonly version: string;
}

/** Word of a pool's entries; its value is the scope. Entries of machines have another. */
export const POOL = "vmlet-pool";
const PHASES: readonly string[] = ["warming", "warm", "claimed", "leaving"] satisfies PoolPhase[];

/** No machine's id begins like this. */
export const poolEntryOf = (vm: string): string => `_pool.${vm}`;

/** @throws TypeError when it is no record of ours */
export function poolRecordOf({ name, words, version }: Entry): PoolRecord {
  const { phase, vm, owner = "", type, zone, content, machine } = words;
  if (phase === undefined || !PHASES.includes(phase) || vm === undefined || type === undefined || content === undefined)
    throw new TypeError(`the entry ${name} is not a pool's`);
  return { name, phase: phase as PoolPhase, vm, owner, type, zone, content, machine, version };
}

/** @param at now: so that an entry that is written again is another */
export function poolWordsOf(
  record: Omit<PoolRecord, "version" | "name">,
  { scope, at }: { scope: string; at: string },
): Entry["words"] {
  const { phase, vm, owner, type, zone, content, machine } = record;
  return {
    [POOL]: scope,
    at,
    phase,
    vm,
    owner,
    type,
    content,
    ...(zone !== undefined && { zone }),
    ...(machine !== undefined && { machine }),
  };
}
