/**
 * QEMU processes, each in a jail of its own (jail.ts): a VM is booted from the guest image (seconds), or cloned from a
 * template of its size: memory and device state of a VM that has booted and waits for its identity (tenths of a second;
 * the memory is shared with the template until it is written).
 */
import { createHash } from "node:crypto";
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync } from "node:fs";
import { chmod, chown, mkdir, mkdtemp, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { basename, dirname, join } from "node:path";
import { buffer, text } from "node:stream/consumers";
import { type Clock, type Logger, Once, unlessAborted } from "../../../../src/provider/kit/index.ts";
import { findTool } from "../../host/command.ts";
import { HostError } from "../../host/host-error.ts";
import { patienceFor, processorMsOf } from "../../host/patience.ts";
import { isAlive, processStat } from "../../host/proc.ts";
import { fileBlock } from "./blocks.ts";
import { GuestControl, type GuestCommand } from "./control.ts";
import { copyDisk, makeBlankDisk } from "./disk.ts";
import { processorIdentity, qemuIdentity } from "./host-version.ts";
import { Jail, programFiles } from "./jail.ts";
import { MAX_PORTS, portSockets } from "./ports.ts";
import { BOOT, FIRST_ANSWER } from "./patience.ts";
import { Qmp } from "./qmp.ts";
import { nameTemplate, ProvenTemplates } from "./template-files.ts";
import { VmUsers } from "./users.ts";
import { findVms, isOf, type VmProcess } from "./vm-processes.ts";

export type Accelerator = "kvm" | "tcg";

export interface VmSize {
  memoryMib: number;
  cpus: number;
}

export interface VmPlace {
  /** Sockets of this VM, in its folder. */
  qmp: string;
  ctl: string;
  /** Tap on the machines' bridge; undefined for a template, whose card leads nowhere. */
  tap: string | undefined;
  /** Path of the network namespace that the tap is in; absent: this process's own. */
  netns?: string | undefined;
  /** The machine's own disk: a file that is made with the VM. */
  disk: string;
  /** What QEMU itself complains of. */
  log: string;
  /** No file gets longer by it. Absent: than the machine's own disk. */
  fileBytes?: number | undefined;
}

/** A VM that serves its control channel; `control` is connected. */
export interface StartedVm {
  vm: VmProcess;
  control: GuestControl;
}

/** What limits each VM, and all together. */
export interface VmGroups {
  /** @returns the files by which a process enters the VM's group. Never rejects */
  make(name: string, size: VmSize): Promise<readonly string[]>;
  /** Whether the kernel has killed one of its processes because memory ran out. @throws when nobody can say */
  wasOutOfMemory(name: string): Promise<boolean>;
  /** Once nothing is in it. Never rejects. */
  remove(name: string): Promise<void>;
}

export interface QemuOptions {
  /** Guest image: vmlinux, base.cpio, version. */
  guestDir: string;
  /** Sees to it that the image is whole before a VM is made of it. */
  guest?: { ready(): Promise<void> } | undefined;
  logger?: Logger | undefined;
  /** Templates are kept here. */
  templatesDir: string;
  accelerator: Accelerator;
  /** Size of the machines' own disks. */
  diskBytes: number;
  clock: Clock;
  /** Of the VMs; default: those that `VmUsers` has. */
  users?: VmUsers | undefined;
  /** Control groups of the VMs: default none. */
  groups?: VmGroups | undefined;
  /**
   * kHz of the host's time-stamp counter, which is an emulated guest's: measuring it fails on a busy host, and the boot
   * hangs.
   */
  tscKhz?: number | undefined;
  /** What a template has done before it waits. */
  prepare?: readonly GuestCommand[] | undefined;
}

/**
 * Measured: what shortens a boot and keeps it from hanging on a busy host. On ramfs, unlike on
 * tmpfs, crun believes that it cannot be overwritten where it is (guest/init), and does not run from a copy of itself.
 */
const KERNEL_ARGS =
  "console=ttyS0 quiet reboot=t panic=-1 cryptomgr.notests lsm= audit=0 rcupdate.rcu_expedited=1 8250.nr_uarts=1 rootfstype=ramfs tsc=reliable";
/**
 * Under KVM the guest's kernel has its protections, among them those against what its processor lets programs guess of
 * each other. Emulated they cost the most, and there is no such processor.
 */
const PROTECTIONS: Readonly<Record<Accelerator, string>> = {
  kvm: "mitigations=auto",
  tcg: "mitigations=off init_on_alloc=0 nokaslr",
};
/** Translated code; more costs memory and gains nothing measurable. */
const TRANSLATION_CACHE_MIB = 32;
/**
 * Devices are on PCI, although microvm's own place for them is simpler: there each queue of a device has 1024 places,
 * and the guest fills those of each port with 4 MiB of buffers, on PCI with half a megabyte.
 */
const MACHINE = "microvm,pcie=on";
/**
 * Under KVM a guest has the host's processor, but not its virtualisation nor its performance counters: serving a
 * guest's own guests is much of what KVM has had holes in, and counters tell of what else runs there.
 * @internal
 */
export const PROCESSOR: Readonly<Record<Accelerator, readonly string[]>> = {
  kvm: ["-accel", "kvm", "-cpu", "host,-vmx,-svm,pmu=off"],
  tcg: ["-accel", `tcg,thread=multi,tb-size=${TRANSLATION_CACHE_MIB}`, "-cpu", "qemu64,+arat"],
};
const CONSOLE_BYTES = 64 * 1024;
const MIGRATION_POLL_MS = 5;
/** On a host that is overrun: who gives up begins again, and others wait for it. */
const TEMPLATE_MS = 600_000;
/** One that is reading from a disk that hangs takes no signal before that answers. */
const KILL_MS = 30_000;
const DISK = "scratch";
/** Set of descriptors that is the machine's own disk. */
const DISK_SET = 1;
/** Below a VM's folder: the images that are plugged in, and the place of its root. */
const IMAGES = "images";
const ROOT = "root";
/** Part of a template's key: how its files are. */
const TEMPLATE_FORMAT = 2;

export const QEMU = `qemu-system-${{ x64: "x86_64", arm64: "aarch64" }[process.arch as string] ?? process.arch}`;

export class Qemu {
  readonly #options: QemuOptions;
  readonly #templates = new Map<string, Promise<string>>();
  readonly #closing = new AbortController();
  readonly #users: VmUsers;
  readonly #program = findTool(QEMU) ?? QEMU;
  /** What QEMU needs of this host. */
  readonly #files = new Once(() => programFiles(this.#program));
  readonly #proven: ProvenTemplates;
  /** An empty file system. */
  readonly #blank = new Once(() => makeBlankDisk(this.#options.templatesDir, this.#options.diskBytes));

  constructor(options: QemuOptions) {
    this.#options = options;
    this.#proven = new ProvenTemplates(options.clock);
    this.#users = options.users ?? new VmUsers();
  }

  /** Boots a VM. */
  async boot(size: VmSize, place: VmPlace, signal: AbortSignal): Promise<StartedVm> {
    await this.#options.guest?.ready();
    await copyDisk(await this.#blank.get(), place.disk, signal);
    return await this.#boot(size, place, [], await this.#jail(place, size), signal);
  }

  /**
   * Starts a copy of the template of this size. When that leads to no guest that answers, the VM is booted, and the
   * template removed, so that the next start makes another; but not when other copies of it answer.
   */
  async clone(size: VmSize, place: VmPlace, signal: AbortSignal): Promise<StartedVm> {
    const template = await this.template(size, signal);
    await copyDisk(join(template, "disk.img"), place.disk, signal);
    const isSuspect = this.#proven.begin(template);
    try {
      const started = await this.#copy(template, size, place, signal);
      this.#proven.answered(template);
      return started;
    } catch (thrown) {
      if (signal.aborted) throw thrown;
      this.#options.logger?.warn(
        { template, isSuspect: isSuspect(), err: thrown },
        "A copy of a template has led to no guest that answers: the VM is booted, and the template made again if no other copy answers",
      );
    }
    if (isSuspect()) await rm(template, { recursive: true, force: true });
    const started = await this.boot(size, place, signal);
    try {
      await started.control.run(this.#options.prepare ?? [], signal);
    } catch (thrown) {
      started.control.close();
      throw thrown;
    }
    return started;
  }

  async #copy(template: string, size: VmSize, place: VmPlace, signal: AbortSignal): Promise<StartedVm> {
    const { clock } = this.#options;
    const jail = await this.#jail(place, size);
    const ram = join(template, "ram.img");
    jail.see(ram);
    jail.readOnlyInstead();
    const state = jail.give("read", join(template, "state.bin"));
    const source = [...memory(ram, size, false), "-incoming", "defer"];
    const begun = AbortSignal.any([signal, AbortSignal.timeout(FIRST_ANSWER.ms)]);
    const vm = await this.#start(size, place, source, jail, begun);
    using patience = patienceFor(() => processorMsOf(vm.pid), FIRST_ANSWER, clock);
    const limited = AbortSignal.any([signal, patience.signal]);
    const control = new GuestControl(place.ctl, clock);
    try {
      using qmp = await Qmp.open(place.qmp, limited);
      await control.open();
      await qmp.execute("migrate-set-capabilities", {
        capabilities: [{ capability: "x-ignore-shared", state: true }],
      });
      await qmp.execute("migrate-incoming", { uri: `fd:${state}` });
      await this.#until(qmp, "running", limited);
      qmp.close();
      await control.ready(limited);
    } catch (thrown) {
      control.close();
      await killVm(vm, clock);
      throw thrown;
    }
    return { vm, control };
  }

  /** Folder of the template of this size, made when it is not there; concurrent callers share the work. */
  async template(size: VmSize, signal: AbortSignal): Promise<string> {
    await this.#options.guest?.ready();
    const dir = this.#templateDir(size);
    if (existsSync(join(dir, "state.bin"))) return dir;
    let making = this.#templates.get(dir);
    if (making === undefined) {
      // Not by the caller's signal: others may wait for it, or come after.
      const limited = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(TEMPLATE_MS)]);
      making = this.#makeTemplate(size, dir, limited).finally(() => this.#templates.delete(dir));
      this.#templates.set(dir, making);
    }
    return await unlessAborted(making, signal);
  }

  /**
   * Ends what a former backend was making when it was killed, and removes the templates that can never be used again.
   */
  async sweep(): Promise<void> {
    const { templatesDir, clock } = this.#options;
    for (const vm of await findVms((args) => args.includes(`\0unix:${templatesDir}/`))) await killVm(vm, clock);
    for (const name of await readdir(templatesDir).catch(() => [])) {
      const isScratch = /^(?:[tp]-|blank-\d+\.img\.)/.test(name);
      if (!isScratch && (!/^[0-9a-f]{16}/.test(name) || name.startsWith(`${this.#templateKey()}-`))) continue;
      const folder = join(templatesDir, name);
      await rm(folder, { recursive: true, force: true });
      if (isScratch) await this.forget(folder);
    }
  }

  /** Templates that are being made are given up. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the backend is stopping"));
    await Promise.allSettled(this.#templates.values());
  }

  /** Whether the kernel has killed this VM, or a part of it, because memory ran out. */
  async wasOutOfMemory(folder: string): Promise<boolean> {
    return (await this.#options.groups?.wasOutOfMemory(basename(folder)).catch(() => false)) ?? false;
  }

  /** Of a VM that is no more, and whose folder is gone: its user and control group are others' from now on. */
  async forget(folder: string): Promise<void> {
    await this.#options.groups?.remove(basename(folder));
    await this.#users.release(folder);
  }

  #templateDir({ memoryMib, cpus }: VmSize): string {
    return join(this.#options.templatesDir, `${this.#templateKey()}-${memoryMib}x${cpus}`);
  }

  /** A template is no longer usable when anything that shaped its memory or its devices has changed. */
  #templateKey(): string {
    const { guestDir, accelerator, diskBytes, tscKhz, prepare = [] } = this.#options;
    const version = readFileSync(join(guestDir, "version"), "utf8").trim();
    const host = accelerator === "kvm" ? processorIdentity() : "";
    const key = JSON.stringify([
      version,
      qemuIdentity(findTool(QEMU)),
      PROCESSOR[accelerator],
      host,
      diskBytes,
      kernelArguments(accelerator, tscKhz),
      prepare,
      MACHINE,
      MAX_PORTS,
      TEMPLATE_FORMAT,
    ]);
    return createHash("sha256").update(key).digest("hex").slice(0, 16);
  }

  async #makeTemplate(size: VmSize, dir: string, signal: AbortSignal): Promise<string> {
    const { templatesDir } = this.#options;
    await mkdir(templatesDir, { recursive: true, mode: 0o700 });
    const work = await mkdtemp(join(templatesDir, "t-"));
    const place = scratchPlace(work);
    const ram = join(work, "ram.img");
    const outgoing = join(work, "out");
    try {
      await copyDisk(await this.#blank.get(), place.disk, signal);
      const jail = await this.#jail(place, size);
      await writeFile(ram, "", { mode: 0o600 });
      await truncate(ram, size.memoryMib * 2 ** 20);
      const uid = await this.#users.take(work);
      await chown(ram, uid, uid);
      jail.change(ram);
      const state = receive(outgoing, signal);
      await state.listening;
      await chown(outgoing, uid, uid);
      jail.see(outgoing);
      const { vm, control } = await this.#boot(size, place, memory(ram, size, true), jail, signal);
      try {
        await control.run(this.#options.prepare ?? [], signal);
        using qmp = await Qmp.open(place.qmp, signal);
        await qmp.execute("stop");
        await qmp.execute("migrate-set-capabilities", {
          capabilities: [{ capability: "x-ignore-shared", state: true }],
        });
        await qmp.execute("migrate", { uri: `unix:${outgoing}` });
        await writeFile(join(work, "state.bin"), await state.content);
        await qmp.execute("quit").catch(() => undefined);
      } finally {
        control.close();
        await killVm(vm, this.#options.clock);
      }
      // Its copies read it, and none can change what the others begin with.
      await chown(ram, 0, 0);
      await chmod(ram, 0o444);
      await nameTemplate(work, dir);
      return dir;
    } catch (thrown) {
      await rm(work, { recursive: true, force: true });
      throw thrown;
    } finally {
      await this.forget(work);
    }
  }

  /** From the kernel to a guest that has its disk mounted. */
  async #boot(
    size: VmSize,
    place: VmPlace,
    memoryArgs: readonly string[],
    jail: Jail,
    signal: AbortSignal,
  ): Promise<StartedVm> {
    const { guestDir, clock, accelerator, tscKhz } = this.#options;
    const [kernel, initrd] = [join(guestDir, "vmlinux"), join(guestDir, "base.cpio")];
    jail.see(kernel, initrd);
    const args = ["-kernel", kernel, "-initrd", initrd, "-append", kernelArguments(accelerator, tscKhz)];
    const vm = await this.#start(size, place, [...memoryArgs, ...args], jail, signal);
    using patience = patienceFor(() => processorMsOf(vm.pid), BOOT, clock);
    const limited = AbortSignal.any([signal, patience.signal]);
    const control = new GuestControl(place.ctl, clock);
    try {
      await control.run([["scratch", DISK]], limited);
      await control.script("sync", limited);
    } catch (thrown) {
      control.close();
      await killVm(vm, clock);
      throw thrown;
    }
    return { vm, control };
  }

  /** A jail for a VM, with what each has. */
  async #jail(place: VmPlace, size: VmSize): Promise<Jail> {
    const { guestDir, accelerator, groups, diskBytes } = this.#options;
    const folder = dirname(place.qmp);
    const root = join(folder, ROOT);
    await mkdir(root, { recursive: true, mode: 0o700 });
    await mkdir(join(folder, IMAGES), { recursive: true, mode: 0o755 });
    const jail = new Jail({
      guestDir,
      uid: await this.#users.take(folder),
      root,
      groups: (await groups?.make(basename(folder), size)) ?? [],
      fileBytes: place.fileBytes ?? diskBytes,
      netns: place.netns,
    });
    jail.see(...(await this.#files.get()), join(folder, IMAGES));
    if (accelerator === "kvm") jail.device("/dev/kvm");
    return jail;
  }

  async #start(
    size: VmSize,
    place: VmPlace,
    source: readonly string[],
    jail: Jail,
    signal: AbortSignal,
  ): Promise<VmProcess> {
    const { accelerator, clock } = this.#options;
    const hasBackend = source.some((argument) => argument.includes("memory-backend-file"));
    const disk = `/dev/fdset/${DISK_SET}`;
    const socket = (id: string, path: string) => [
      "-chardev",
      `socket,id=${id},fd=${jail.give("listen", path)},server=on,wait=off`,
    ];
    const args = [
      // It is found again by where it is controlled from.
      ...["-name", `unix:${place.qmp}`],
      ...["-M", hasBackend ? `${MACHINE},memory-backend=mem` : MACHINE],
      ...PROCESSOR[accelerator],
      ...["-m", `${size.memoryMib}`, "-smp", `${size.cpus}`],
      ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
      ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
      // The guest may print without end: a ring keeps the newest.
      ...["-chardev", `ringbuf,id=console,size=${CONSOLE_BYTES}`, "-serial", "chardev:console"],
      ...socket("ctl", place.ctl),
      ...portSockets(dirname(place.qmp)).flatMap(({ label, path }) => socket(label, path)),
      ...[
        "-device",
        `virtio-serial-pci,vectors=2,max_ports=${MAX_PORTS}`,
        "-device",
        "virtserialport,chardev=ctl,name=ctl",
      ],
      ...["-device", "virtio-scsi-pci,id=scsi0"],
      ...["-add-fd", `fd=${jail.give("write", place.disk)},set=${DISK_SET}`],
      ...["-blockdev", JSON.stringify(fileBlock(DISK, disk, false))],
      ...["-device", `scsi-hd,bus=scsi0.0,drive=${DISK},serial=${DISK}`],
      // A hub with nothing else on it leads nowhere.
      ...[
        "-netdev",
        place.tap === undefined ? "hubport,id=net0,hubid=0" : `tap,id=net0,fd=${jail.give("tap", place.tap)}`,
      ],
      ...["-device", "virtio-net-pci,netdev=net0,romfile="],
      ...socket("qmp", place.qmp),
      ...["-mon", "chardev=qmp,mode=control"],
      ...source,
    ];
    try {
      const vm = await startJailed(jail, this.#program, args, place.log, signal);
      const controlled = Qmp.open(place.qmp, signal).then((qmp) => qmp.close());
      // Why it has ended says more than that it is not there.
      await Promise.race([vm.ended, controlled.catch(() => unlessAborted(vm.ended, signal))]);
      // Not before: while its end is waited for there may be nothing else that keeps this process running.
      vm.leave();
      return vm.process;
    } catch (thrown) {
      for (const vm of await findVms((arguments_) => isOf(arguments_, place))) await killVm(vm, clock);
      throw thrown;
    }
  }

  async #until(qmp: Qmp, status: string, signal: AbortSignal): Promise<void> {
    for (;;) {
      const answer = (await qmp.execute("query-status")) as { status: string };
      if (answer.status === status) return;
      if (answer.status === "paused" || answer.status === "postmigrate") await qmp.execute("cont");
      await this.#options.clock.sleep(MIGRATION_POLL_MS, signal);
    }
  }
}

/**
 * @param tscKhz of an emulated guest's counter, where it is known
 * @internal
 */
export function kernelArguments(accelerator: Accelerator, tscKhz?: number): string {
  const known = accelerator === "kvm" || tscKhz === undefined ? "" : ` tsc_early_khz=${tscKhz}`;
  return `${KERNEL_ARGS} ${PROTECTIONS[accelerator]}${known}`;
}

/**
 * Starts a program in a jail.
 * @param log what it complains of goes there, of which the newest is kept
 * @returns its process, when it ends (never a value, an error that says why), and `leave`: it is waited for no longer,
 *   so nothing of it keeps this process running
 * @throws the signal's reason; Error with the complaints when it cannot be started
 * @internal
 */
export async function startJailed(
  jail: Jail,
  program: string,
  args: readonly string[],
  log: string,
  signal: AbortSignal,
): Promise<{ process: VmProcess; ended: Promise<never>; leave: () => void }> {
  signal.throwIfAborted();
  const launcher = jail.command(program, args);
  // It leads a session of its own and outlives this process. Appending, so that it can be cut short.
  const complaints = openSync(log, "a", 0o600);
  const child = spawn(launcher.command, launcher.args, {
    detached: true,
    env: {},
    stdio: ["ignore", "pipe", complaints],
  });
  closeSync(complaints);
  const ended = new Promise<never>((_, reject) => {
    child.once("error", reject);
    child.once("exit", (code, signal) => {
      const complaint = existsSync(log) ? readFileSync(log, "utf8").slice(-1000).trim() : "";
      reject(new Error(`${basename(program)} ended with ${code ?? signal}: ${complaint}`));
    });
  });
  ended.catch(() => undefined);
  try {
    const pid = Number(await unlessAborted(Promise.race([text(child.stdout!), ended]), signal));
    const stat = pid > 0 ? processStat(pid) : undefined;
    if (stat === undefined) return await unlessAborted(ended, signal);
    return { process: { pid, startTime: stat.startTime }, ended, leave: () => child.unref() };
  } catch (thrown) {
    if (child.exitCode === null && child.signalCode === null) endLaunch(child);
    throw thrown;
  }
}

/** On a host that is overrun it may begin the program long after it was given up: nobody would look for that again. */
function endLaunch({ pid }: ChildProcess): void {
  if (pid === undefined) return;
  try {
    // It begins nothing any more; its only child is the program.
    process.kill(pid, "SIGSTOP");
    for (const child of readFileSync(`/proc/${pid}/task/${pid}/children`, "latin1").split(" "))
      if (child !== "") process.kill(Number(child), "SIGKILL");
    process.kill(pid, "SIGKILL");
  } catch {
    // It has ended by itself.
  }
}

/** Kills the process and waits until it is gone. @throws HostError when it does not end */
export async function killVm(vm: VmProcess, clock: Clock): Promise<void> {
  const since = clock.monotonic();
  while (isAlive(vm.pid, vm.startTime)) {
    if (clock.monotonic() - since > KILL_MS) throw new HostError(`QEMU, process ${vm.pid}, does not end after SIGKILL`);
    try {
      process.kill(vm.pid, "SIGKILL");
    } catch {
      // It ended by itself.
    }
    await clock.sleep(MIGRATION_POLL_MS);
  }
}

/** Where a VM sees an image's disk, as the host does. */
export function imagesDir(qmp: string): string {
  return join(dirname(qmp), IMAGES);
}

/** For a VM without a machine: it ends before its folder is removed. */
export function scratchPlace(dir: string): VmPlace {
  const at = (name: string) => join(dir, name);
  return { qmp: at("qmp"), ctl: at("ctl"), tap: undefined, disk: at("disk.img"), log: at("log") };
}

function memory(file: string, size: VmSize, share: boolean): string[] {
  return [
    "-object",
    `memory-backend-file,id=mem,size=${size.memoryMib}M,mem-path=${file},share=${share ? "on" : "off"}`,
  ];
}

function receive(path: string, signal: AbortSignal): { listening: Promise<void>; content: Promise<Buffer> } {
  const server = createServer();
  const received = new Promise<Buffer>((resolve, reject) => {
    server.once("connection", (socket) => {
      buffer(socket).then(resolve, reject);
    });
    server.once("error", reject);
  });
  const content = unlessAborted(received, signal).finally(() => server.close());
  return { listening: new Promise((resolve) => server.listen(path, () => resolve())), content };
}
