/** Labels and names of VMs. */
import type { Random } from "../../src/provider/kit/index.ts";

export const SCOPE_LABEL = "vmlet-scope";
/** The machine that it was ordered for. */
export const MACHINE_LABEL = "vmlet-machine";
/** In its place: the entry of one that was ordered for the pool. */
export const POOL_LABEL = "vmlet-pool";
/** Another for each order: what is meant for one VM reaches no other of its name. */
export const BIRTH_LABEL = "vmlet-birth";
/** Of which secret its guest's keys are. Absent: it has none. */
export const KEYS_LABEL = "vmlet-keys";

/** Never given twice. */
export function newVmName(random: Random): string {
  let digits = "";
  while (digits.length < 20) digits += Math.floor(random() * 36).toString(36);
  return `vmlet-${digits}`;
}
