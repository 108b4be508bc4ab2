/**
 * What a VM cloud has to do for its VMs to be machines: two small things. It keeps VMs (`createVm`, `getVm`, `listVms`,
 * `deleteVm`, `dial`), and it keeps entries: names with a few words behind each, written by compare-and-swap. All that
 * is known of a machine stands in its entry, so an agent keeps nothing: it may be killed at any instant, and two of
 * them do no harm. Where the cloud itself has no compare-and-swap, entries may lie in any store that has.
 *
 * What holds for every function:
 * - It fails with a `ProviderError`. `not_found` is said only when the cloud itself says so, of this very name: it is
 *   the only proof of absence. A host that cannot be seen, a time-out, a page that lags: `unavailable`.
 * - It answers within 20 s; after that its signal aborts, and the answer is taken for unknown, whatever was done.
 * - Any call may be repeated, and may arrive late: after its caller has given up, or died.
 * - What it reads by name (`getVm`, `entries.get`) is true at some time after it was asked. Lists may lag and lack
 *   some.
 */
import type { Duplex } from "node:stream";
import type { CallOptions, ResourceAmounts, VolumeClass } from "../../src/provider/kit/index.ts";

/** A size of VM that the cloud sells. */
export interface InstanceType {
  readonly name: string;
  /** What a pod may ask for on it: without what the guest itself takes. */
  readonly resources: ResourceAmounts;
  /** By the hour, in whichever currency, the same for all. From 0 to a thousand millions. Absent: 0. */
  readonly price?: number | undefined;
  /** Where it is to be had; in several zones it is several types of one name. */
  readonly zone?: string | undefined;
  /** The cloud may take it back. */
  readonly spot?: boolean | undefined;
  /** So many are kept running, by each node, that are no machine yet. */
  readonly warm?: number | undefined;
}

export interface VmRequest {
  /** Lower-case letters, digits and hyphens, at most 40. Made up by chance, and never used for another VM. */
  readonly name: string;
  /** One of the cloud's own, by name and zone. */
  readonly type: InstanceType;
  /** To be shown by `getVm` and `listVms` as they are, from the first moment to the last. Few and short. */
  readonly labels: Readonly<Record<string, string>>;
  /** What it has from its first moment on. Its guest finds them by their names. Absent: none. */
  readonly volumes?: readonly AttachedVolume[] | undefined;
  /**
   * Its guest's, by which `dial` may be a connection to its address, port 10443. The guest finds them before it starts,
   * readable for root alone: `guest.crt`, `guest.key` and `client-ca.crt` in `/etc/vmlet/keys`. Absent: it has none.
   */
  readonly keys?: { readonly certificate: string; readonly key: string; readonly clientCa: string } | undefined;
}

/**
 * `booting`: it is being made or starts; nothing is wrong yet. `running`: its guest can be dialled, or soon. `stopped`:
 * it is there, and nothing runs in it. `deleting`: something may still run in it.
 */
export type VmState = "booting" | "running" | "stopped" | "deleting";

/** What is about to befall a VM: its host is emptied, or the cloud takes it back. */
export interface VmNotice {
  /** One word in CamelCase: `HostEvacuated`, `SpotReclaimed`. */
  readonly reason: string;
  readonly message: string;
  /** When it goes, whatever still runs in it. Absent: not known. */
  readonly at?: string | undefined;
}

export interface Vm {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly state: VmState;
  /** False: the cloud does not see the VM's host just now. The rest is then what was last known of it. */
  readonly isSeen: boolean;
  readonly type?: string | undefined;
  readonly zone?: string | undefined;
  readonly host?: string | undefined;
  /** Its pod is evicted because of it. Gone when that is called off. */
  readonly notice?: VmNotice | undefined;
  /** On a network that the cluster's other nodes reach: the pod's. Empty: the guest's own word is taken. */
  readonly addresses: readonly string[];
  /** Names of the volumes that it has: those of its order but for what was detached since. Absent: none. */
  readonly volumes?: readonly string[] | undefined;
}

/** Which volume of a cloud. */
export interface VolumeRef {
  /** As a VM's name: made up by chance, and never used for another volume. */
  readonly name: string;
  /** One of the cloud's `classes`. */
  readonly class: string;
}

export interface AttachedVolume extends VolumeRef {
  readonly readOnly: boolean;
}

export interface CloudVolumeRequest extends VolumeRef {
  readonly sizeBytes: number;
  /** To be shown by `get` and `list` as they are. Few and short. */
  readonly labels: Readonly<Record<string, string>>;
  /** Of the same class: what it begins as a copy of. Absent: it is empty. */
  readonly source?: VolumeRef | undefined;
}

export interface CloudVolume extends VolumeRef {
  readonly labels: Readonly<Record<string, string>>;
  readonly sizeBytes: number;
  /**
   * `making`: somebody makes it just now. `ready`: all of it is there, its source's content too. `broken`: nobody makes
   * it any more, and whether all of it is there is not known.
   */
  readonly state: "making" | "ready" | "broken";
}

/**
 * Volumes that outlive VMs: file systems, each for one VM at a time. That none has two is not asked of the cloud; that
 * what it says of one is so, is.
 */
export interface CloudVolumes {
  /** Where they are: only VMs of types of this zone, or of none, get them, and are made there. Absent: everywhere. */
  readonly zone?: string | undefined;
  /** At least one. The first is that of volumes which name none. */
  readonly classes: readonly VolumeClass[];
  /**
   * Resolves when the cloud has taken the order; `get` tells the rest.
   * @throws ProviderError conflict when the name is taken; quota when there is no room; invalid when it can never be
   */
  create(request: CloudVolumeRequest, options: CallOptions): Promise<void>;
  /** @throws ProviderError not_found when there certainly is none */
  get(volume: VolumeRef, options: CallOptions): Promise<CloudVolume>;
  /** Those that carry this label. May lag. */
  list(label: readonly [key: string, value: string], options: CallOptions): Promise<CloudVolume[]>;
  /** It has at least so many bytes then. @throws ProviderError in_use where that cannot be while a VM has it; quota */
  grow(volume: VolumeRef, sizeBytes: number, options: CallOptions): Promise<void>;
  /**
   * With all that is on it. Resolves when that is under way; `get` tells when it is gone. Succeeds for one that is not
   * there.
   * @throws ProviderError in_use while a VM has it
   */
  delete(volume: VolumeRef, options: CallOptions): Promise<void>;
  /**
   * Takes it from this VM, in which nothing uses it any more. Resolves when that is under way; `getVm` shows it no more
   * when nothing in the VM can reach it.
   */
  detach(vm: string, volume: string, options: CallOptions): Promise<void>;
  /**
   * Whether a copy of a volume of this class is what was on it at one instant of the order, whatever a VM writes to it
   * meanwhile. Absent: never, and VMs that write are kept from what is copied until the copy is made.
   */
  copiesInUse?(named: string, options: CallOptions): Promise<boolean>;
  /** Bytes that new volumes of the class may have. Undefined: not known. */
  room(named: string, options: CallOptions): Promise<number | undefined>;
}

/** A name with words behind it. */
export interface Entry {
  /** Letters, digits and `._-`, at most 128. */
  readonly name: string;
  /** At most 32, together at most 16 KiB. */
  readonly words: Readonly<Record<string, string>>;
  /** Another with every change. Opaque. */
  readonly version: string;
}

/** Where it is written down which VM is which machine. */
export interface EntryStore {
  /** @throws ProviderError not_found when there certainly is none */
  get(name: string, options: CallOptions): Promise<Entry>;
  /** Those that have this word with this value. May lag. */
  list(word: readonly [key: string, value: string], options: CallOptions): Promise<Entry[]>;
  /**
   * Of several that create one name at the same time, one succeeds.
   * @throws ProviderError conflict when the name is taken. What any other failure has done is not known.
   */
  create(name: string, words: Entry["words"], options: CallOptions): Promise<Entry>;
  /**
   * Replaces all words, if the entry is still that of `version`.
   * @throws ProviderError conflict when it is another by now; not_found when there is none
   */
  swap(name: string, words: Entry["words"], version: string, options: CallOptions): Promise<Entry>;
  /** Frees the name, on the condition of `swap`. @throws ProviderError conflict, not_found */
  remove(name: string, version: string, options: CallOptions): Promise<void>;
}

export interface VmCloud {
  readonly name: string;
  readonly entries: EntryStore;
  /** Absent: it has none that outlive VMs. */
  readonly volumes?: CloudVolumes | undefined;
  /**
   * Resolves when the cloud has taken the order; the VM need not run yet. Its guest runs nothing until it is told to.
   * @throws ProviderError conflict when the name is taken; quota when there is no room for this type now; invalid when
   *   it can never be had
   */
  createVm(request: VmRequest, options: CallOptions): Promise<void>;
  /** @throws ProviderError not_found when there certainly is none */
  getVm(name: string, options: CallOptions): Promise<Vm>;
  /** Those that carry this label. May lag. */
  listVms(label: readonly [key: string, value: string], options: CallOptions): Promise<Vm[]>;
  /**
   * Ends and removes it, at once. Resolves when that is under way; a caller that must know asks `getVm` until it is
   * gone. Succeeds for one that is not there.
   */
  deleteVm(name: string, options: CallOptions): Promise<void>;
  /** A byte stream to what this VM's guest serves, and to no other VM of the same name: its labels tell. */
  dial(vm: Vm, options: CallOptions): Promise<Duplex>;
  /** The sizes that can be had now. Absent: those of the configuration. */
  types?(options: CallOptions): Promise<InstanceType[]>;
  /** What a VM that is ordered now is made of: those that wait for machines are replaced when this is another. */
  version?(options: CallOptions): Promise<string>;
  close(): Promise<void>;
}
