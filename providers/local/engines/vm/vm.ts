/**
 * One VM: a QEMU process, its tap, its disk, and the two ways into it, control.ts and ports.ts. It has no machine yet,
 * or has been given one: its folder and its network are named by a key of its own. The folder:
 *
 *     qmp, ctl    sockets: QEMU, the control channel
 *     p2, p3...   sockets of commands' streams
 *     disk.img    the machine's own disk: containers' files and empty_dirs
 *     images/     links to the disks of images that are plugged in: all that QEMU sees of this folder
 *     root/       empty: over it QEMU has its root
 *     qemu.log    what QEMU complains of, the newest of it
 *     vm.json     written last: without it, it was never finished
 */
import { randomBytes } from "node:crypto";
import { statSync, truncateSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type PQueue from "p-queue";
import type { Clock, MachineSpec } from "../../../../src/provider/kit/index.ts";
import { readdirIfExists, readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { processorMsOf } from "../../host/patience.ts";
import { bootId, isAlive } from "../../host/proc.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";
import { GuestControl } from "./control.ts";
import type { GuestDisks } from "./disks.ts";
import { vmScript } from "./identity.ts";
import { GuestPorts } from "./ports.ts";
import { killVm, type Qemu, type VmPlace, type VmSize } from "./qemu.ts";
import { findVm, type VmProcess } from "./vm-processes.ts";
import type { VmAttachment, VmNetwork } from "./vm-network.ts";
import type { Warming } from "./warm.ts";

const MAX_LOG_BYTES = 1 << 20;

/** What everything of this engine works with. */
export interface VmContext {
  clock: Clock;
  network: VmNetwork;
  /** A folder per VM. */
  vmsDir: string;
  qemu: Qemu;
  disks: GuestDisks;
  /** VMs that are being put on the network. A plugin of a cluster's network may hang, and is to hold up no boot. */
  attaches: PQueue;
  /** Boots and clones at a time: more than there are processors only makes each slower. */
  boots: PQueue;
  clones: boolean;
  /** Of each template. Absent without clones. */
  warming?: Warming | undefined;
  sizing: { memoryMib: number; maxCpus: number };
  bootTimeoutMs: number;
  /** A guest that takes longer for what the host asks of it hangs. */
  callMs: number;
  seccomp: () => SeccompSource;
  pidsLimit: number;
}

interface VmRecord {
  size: VmSize;
  attachment: VmAttachment;
  process: VmProcess;
  /** In which boot of the host it was started. Absent: by an earlier version. */
  boot?: string;
}

/** Undefined when a loss of power has torn it: then the VM is gone as well. */
function recordIn(text: string): VmRecord | undefined {
  try {
    return JSON.parse(text) as VmRecord;
  } catch {
    return undefined;
  }
}

export class Vm {
  readonly key: string;
  readonly size: VmSize;
  readonly attachment: VmAttachment;
  readonly control: GuestControl;
  readonly ports: GuestPorts;
  readonly #dir: string;
  readonly #process: VmProcess;
  readonly #clock: Clock;
  readonly #qemu: Qemu;

  private constructor(context: VmContext, key: string, record: VmRecord, control: GuestControl) {
    this.key = key;
    this.size = record.size;
    this.attachment = record.attachment;
    this.control = control;
    this.#dir = vmDir(context, key);
    this.#process = record.process;
    this.#clock = context.clock;
    this.#qemu = context.qemu;
    this.ports = new GuestPorts(this.qmp, this.#dir);
  }

  static newKey(): string {
    return randomBytes(4).toString("hex");
  }

  /**
   * The network of a VM that is yet to be started. When it fails or the backend ends meanwhile, `destroyVm` removes
   * what there is.
   * @param spec of its machine, where it is made for one
   */
  static async attach(context: VmContext, key: string, signal: AbortSignal, spec?: MachineSpec): Promise<VmAttachment> {
    await mkdir(vmDir(context, key), { recursive: true, mode: 0o700 });
    return await context.network.attach(key, spec, signal);
  }

  /**
   * Makes a VM that has its own randomness and address, and is ready for a machine. When it fails or the backend ends
   * meanwhile, `destroyVm` removes what there is.
   * @param fileBytes the longest of the files that it is to write; absent: its own disk
   */
  static async start(
    context: VmContext,
    key: string,
    size: VmSize,
    signal: AbortSignal,
    { attachment, fileBytes }: { attachment: VmAttachment; fileBytes?: number | undefined },
  ): Promise<Vm> {
    const dir = vmDir(context, key);
    const place = { ...vmPlace(context, key, attachment), fileBytes };
    const { qemu, clones } = context;
    const started = clones ? await qemu.clone(size, place, signal) : await qemu.boot(size, place, signal);
    try {
      await started.control.script(vmScript(attachment), signal);
      const record: VmRecord = { size, attachment, process: started.vm, boot: bootId() };
      await writeFileAtomic(join(dir, "vm.json"), JSON.stringify(record), 0o600);
      return new Vm(context, key, record, started.control);
    } catch (thrown) {
      started.control.close();
      throw thrown;
    }
  }

  /** The VM of a former backend, when it still runs. */
  static async find(context: VmContext, key: string): Promise<Vm | undefined> {
    const text = await readFileIfExists(join(vmDir(context, key), "vm.json"));
    if (text === undefined) return undefined;
    const record = recordIn(text);
    // Of a VM of another boot of this host there is nothing, although another process may have its number now.
    if (record === undefined || (record.boot ?? bootId()) !== bootId()) return undefined;
    if (!isAlive(record.process.pid, record.process.startTime)) return undefined;
    return new Vm(context, key, record, new GuestControl(join(vmDir(context, key), "ctl"), context.clock));
  }

  /** Of its QEMU. */
  get pid(): number {
    return this.#process.pid;
  }

  /** That it has computed so far; undefined when it is gone. */
  get processorMs(): number | undefined {
    return processorMsOf(this.#process.pid);
  }

  get alive(): boolean {
    return isAlive(this.#process.pid, this.#process.startTime);
  }

  /** Kills the VM and all that runs in it. What it has on this host stays: see `destroyVm`. */
  async kill(): Promise<void> {
    await killVm(this.#process, this.#clock);
  }

  /** Whether it was the kernel that has killed it, because memory ran out. */
  async wasOutOfMemory(): Promise<boolean> {
    return await this.#qemu.wasOutOfMemory(this.#dir);
  }

  /** QEMU's complaints can be without end, as a guest likes. */
  trimLog(): void {
    const log = join(this.#dir, "qemu.log");
    if ((statSync(log, { throwIfNoEntry: false })?.size ?? 0) > MAX_LOG_BYTES) truncateSync(log);
  }

  get qmp(): string {
    return join(this.#dir, "qmp");
  }
}

/** The VM and all that belongs to it on this host, however far it got. */
export async function destroyVm(context: VmContext, key: string): Promise<void> {
  const process = await processOf(context, key);
  if (process !== undefined) await killVm(process, context.clock);
  await context.network.detach(key);
  const dir = vmDir(context, key);
  await rm(dir, { recursive: true, force: true });
  await context.qemu.forget(dir);
}

/**
 * Undefined when there is none. One that is written down is the only one: not each removal looks through all processes
 * of the host.
 */
async function processOf(context: VmContext, key: string): Promise<VmProcess | undefined> {
  const record = recordIn((await readFileIfExists(join(vmDir(context, key), "vm.json"))) ?? "");
  if (record === undefined || record.boot !== bootId()) return await findVm(vmPlace(context, key, undefined));
  return record.process;
}

/** Keys of all VMs that left something here. */
export async function vmKeys(context: Pick<VmContext, "vmsDir">): Promise<string[]> {
  return await readdirIfExists(context.vmsDir);
}

function vmDir(context: Pick<VmContext, "vmsDir">, key: string): string {
  return join(context.vmsDir, key);
}

function vmPlace(context: VmContext, key: string, attachment: VmAttachment | undefined): VmPlace {
  const at = (name: string) => join(vmDir(context, key), name);
  return {
    qmp: at("qmp"),
    ctl: at("ctl"),
    tap: attachment?.link,
    netns: attachment?.netns,
    disk: at("disk.img"),
    log: at("qemu.log"),
  };
}
