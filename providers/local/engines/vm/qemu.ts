/**
 * QEMU processes: a VM is booted from the guest image (seconds), or cloned from a template of its size: memory and
 * device state of a VM that has booted and waits for its identity (tenths of a second; the memory is shared with the
 * template until it is written).
 */
import { createHash } from "node:crypto";
import { spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { release } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { type Clock, Once, unlessAborted } from "../../../../src/provider/kit/index.ts";
import { findTool, run } from "../../host/command.ts";
import { flushFile, readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { allProcesses, processStat } from "../../host/proc.ts";
import { GuestControl, type GuestCommand } from "./control.ts";
import { bootId } from "./frequency.ts";
import { MAX_PORTS } from "./ports.ts";
import { Qmp } from "./qmp.ts";

type Accelerator = "kvm" | "tcg";

export interface VmSize {
  memoryMib: number;
  cpus: number;
}

export interface VmPlace {
  /** Sockets of this VM. */
  qmp: string;
  ctl: string;
  /** Tap on the machines' bridge; undefined for a template, whose card leads nowhere. */
  tap: string | undefined;
  /** The machine's own disk: a file that is made with the VM. */
  disk: string;
  /** What QEMU itself complains of. */
  log: string;
}

/** A VM that serves its control channel; `control` is connected. */
export interface StartedVm {
  vm: VmProcess;
  control: GuestControl;
}

export interface VmProcess {
  pid: number;
  startTime: string;
}

interface QemuOptions {
  /** Guest image: vmlinux, base.cpio, version. */
  guestDir: string;
  /** Templates are kept here. */
  templatesDir: string;
  accelerator: Accelerator;
  /** Size of the machines' own disks. */
  diskBytes: number;
  clock: Clock;
  /** Takes a process that has begun among those that are limited together. Never rejects. */
  enter?: ((pid: number) => Promise<void>) | undefined;
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
  "console=ttyS0 quiet reboot=t panic=-1 mitigations=off init_on_alloc=0 nokaslr cryptomgr.notests lsm= audit=0 rcupdate.rcu_expedited=1 8250.nr_uarts=1 rootfstype=ramfs tsc=reliable";
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
const START_POLL_MS = 5;
/** A boot under emulation on a busy host. */
const TEMPLATE_MS = 120_000;
/** A copy that runs answers in tenths of a second. */
const FIRST_ANSWER_MS = 30_000;
const DISK = "scratch";

export const QEMU = `qemu-system-${{ x64: "x86_64", arm64: "aarch64" }[process.arch as string] ?? process.arch}`;

export class Qemu {
  readonly #options: QemuOptions;
  readonly #templates = new Map<string, Promise<string>>();
  readonly #closing = new AbortController();
  /** An empty file system. */
  readonly #blank = new Once(() => makeBlankDisk(this.#options.templatesDir, this.#options.diskBytes));

  constructor(options: QemuOptions) {
    this.#options = options;
  }

  /** Boots a VM. */
  async boot(size: VmSize, place: VmPlace, signal: AbortSignal): Promise<StartedVm> {
    await copyDisk(await this.#blank.get(), place.disk, signal);
    return await this.#boot(size, place, [], signal);
  }

  /**
   * Starts a copy of the template of this size. When that leads to no guest that answers, the template is removed, so
   * that the next start makes another, and the VM is booted.
   */
  async clone(size: VmSize, place: VmPlace, signal: AbortSignal): Promise<StartedVm> {
    const template = await this.template(size, signal);
    await copyDisk(join(template, "disk.img"), place.disk, signal);
    try {
      return await this.#copy(template, size, place, signal);
    } catch (thrown) {
      if (signal.aborted) throw thrown;
    }
    await rm(template, { recursive: true, force: true });
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
    const source = [...memory(join(template, "ram.img"), size, false), "-incoming", "defer"];
    const vm = await this.#start(size, place, source);
    const control = new GuestControl(place.ctl, clock);
    const incoming = `${place.qmp}.in`;
    const limited = AbortSignal.any([signal, AbortSignal.timeout(FIRST_ANSWER_MS)]);
    try {
      const qmp = await Qmp.open(place.qmp, limited);
      try {
        await control.open();
        await qmp.execute("migrate-set-capabilities", {
          capabilities: [{ capability: "x-ignore-shared", state: true }],
        });
        await qmp.execute("migrate-incoming", { uri: `unix:${incoming}` });
        await send(incoming, await readFile(join(template, "state.bin")), limited);
        await this.#until(qmp, "running", limited);
      } finally {
        qmp.close();
        await rm(incoming, { force: true });
      }
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
    for (const name of await readdir(templatesDir).catch(() => []))
      if (/^[tp]-/.test(name) || (/^[0-9a-f]{16}/.test(name) && !name.startsWith(`${this.#templateKey()}-`)))
        await rm(join(templatesDir, name), { recursive: true, force: true });
  }

  /** Templates that are being made are given up. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the backend is stopping"));
    await Promise.allSettled(this.#templates.values());
  }

  #templateDir({ memoryMib, cpus }: VmSize): string {
    return join(this.#options.templatesDir, `${this.#templateKey()}-${memoryMib}x${cpus}`);
  }

  /** A template is no longer usable when anything that shaped its memory or its devices has changed. */
  #templateKey(): string {
    const { guestDir, accelerator, diskBytes, prepare = [] } = this.#options;
    const version = readFileSync(join(guestDir, "version"), "utf8").trim();
    const host = accelerator === "kvm" ? processorIdentity() : "";
    const key = JSON.stringify([
      version,
      qemuIdentity(),
      PROCESSOR[accelerator],
      host,
      diskBytes,
      this.#kernelArgs(),
      prepare,
      MACHINE,
      MAX_PORTS,
    ]);
    return createHash("sha256").update(key).digest("hex").slice(0, 16);
  }

  #kernelArgs(): string {
    const { accelerator, tscKhz } = this.#options;
    return accelerator === "kvm" || tscKhz === undefined ? KERNEL_ARGS : `${KERNEL_ARGS} tsc_early_khz=${tscKhz}`;
  }

  async #makeTemplate(size: VmSize, dir: string, signal: AbortSignal): Promise<string> {
    const { templatesDir } = this.#options;
    await mkdir(templatesDir, { recursive: true, mode: 0o700 });
    const work = await mkdtemp(join(templatesDir, "t-"));
    const place = scratchPlace(work);
    try {
      await copyDisk(await this.#blank.get(), place.disk, signal);
      const { vm, control } = await this.#boot(size, place, memory(join(work, "ram.img"), size, true), signal);
      try {
        await control.run(this.#options.prepare ?? [], signal);
        using qmp = await Qmp.open(place.qmp, signal);
        await qmp.execute("stop");
        await qmp.execute("migrate-set-capabilities", {
          capabilities: [{ capability: "x-ignore-shared", state: true }],
        });
        const outgoing = join(work, "out");
        const state = receive(outgoing, signal);
        await state.listening;
        await qmp.execute("migrate", { uri: `unix:${outgoing}` });
        await writeFile(join(work, "state.bin"), await state.content, { flush: true });
        await qmp.execute("quit").catch(() => undefined);
      } finally {
        control.close();
        await killVm(vm, this.#options.clock);
      }
      for (const name of ["ram.img", "disk.img"]) await flushFile(join(work, name));
      await rm(dir, { recursive: true, force: true });
      await rename(work, dir);
      return dir;
    } catch (thrown) {
      await rm(work, { recursive: true, force: true });
      throw thrown;
    }
  }

  /** From the kernel to a guest that has its disk mounted. */
  async #boot(size: VmSize, place: VmPlace, memoryArgs: readonly string[], signal: AbortSignal): Promise<StartedVm> {
    const { guestDir, clock } = this.#options;
    const [kernel, initrd] = [join(guestDir, "vmlinux"), join(guestDir, "base.cpio")];
    const args = ["-kernel", kernel, "-initrd", initrd, "-append", this.#kernelArgs()];
    const vm = await this.#start(size, place, [...memoryArgs, ...args]);
    const control = new GuestControl(place.ctl, clock);
    try {
      await control.run([["scratch", DISK]], signal);
      await control.script("sync", signal);
    } catch (thrown) {
      control.close();
      await killVm(vm, clock);
      throw thrown;
    }
    return { vm, control };
  }

  async #start(size: VmSize, place: VmPlace, source: readonly string[]): Promise<VmProcess> {
    const { accelerator } = this.#options;
    for (const socket of [place.qmp, place.ctl]) await rm(socket, { force: true });
    const hasBackend = source.some((argument) => argument.includes("memory-backend-file"));
    const args = [
      ...["-M", hasBackend ? `${MACHINE},memory-backend=mem` : MACHINE],
      ...PROCESSOR[accelerator],
      ...["-m", `${size.memoryMib}`, "-smp", `${size.cpus}`],
      ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
      ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
      // The guest may print without end: a ring keeps the newest.
      ...["-chardev", `ringbuf,id=console,size=${CONSOLE_BYTES}`, "-serial", "chardev:console"],
      ...["-chardev", `socket,id=ctl,path=${place.ctl},server=on,wait=off`],
      ...[
        "-device",
        `virtio-serial-pci,vectors=2,max_ports=${MAX_PORTS}`,
        "-device",
        "virtserialport,chardev=ctl,name=ctl",
      ],
      ...["-device", "virtio-scsi-pci,id=scsi0"],
      ...["-blockdev", JSON.stringify(fileBlock(DISK, place.disk, false))],
      ...["-device", `scsi-hd,bus=scsi0.0,drive=${DISK},serial=${DISK}`],
      ...[
        "-netdev",
        place.tap === undefined
          ? "socket,id=net0,udp=127.0.0.1:9,localaddr=127.0.0.1:0"
          : `tap,id=net0,ifname=${place.tap},script=no,downscript=no`,
      ],
      ...["-device", "virtio-net-pci,netdev=net0,romfile="],
      ...["-qmp", `unix:${place.qmp},server=on,wait=off`],
      ...source,
    ];
    // Not by -daemonize: the sandbox forbids it to fork. It leads a session of its own and outlives this process.
    // Appending, so that it can be cut short (vm.ts).
    const log = openSync(place.log, "a", 0o600);
    const child = spawn(findTool(QEMU) ?? QEMU, args, { detached: true, stdio: ["ignore", "ignore", log] });
    closeSync(log);
    child.unref();
    let failure: Error | undefined;
    child.once("error", (error) => (failure = error));
    child.once("exit", (code, signal) => {
      const complaint = existsSync(place.log) ? readFileSync(place.log, "utf8").slice(-1000).trim() : "";
      failure = new Error(`QEMU ended with ${code ?? signal}: ${complaint}`);
    });
    if (child.pid !== undefined) await this.#options.enter?.(child.pid);
    // It makes its sockets in the order of its arguments: when the last one answers, all are there.
    while (!(await accepts(place.qmp))) {
      if (failure !== undefined) throw failure;
      await this.#options.clock.sleep(START_POLL_MS);
    }
    const stat = processStat(child.pid!);
    if (stat === undefined) throw failure ?? new Error("the VM ended as soon as it was started");
    return { pid: stat.pid, startTime: stat.startTime };
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

function fileBlock(id: string, filename: string, readOnly: boolean): object {
  return {
    driver: "raw",
    "node-name": id,
    "read-only": readOnly,
    file: { driver: "file", filename, "read-only": readOnly, ...(readOnly ? { locking: "off" } : {}) },
  };
}

/**
 * Plugs a read-only disk in; the guest finds it by its serial. Repeating it is safe, also when only the first step had
 * been taken.
 */
export async function attachDisk(
  qmpSocket: string,
  disk: { id: string; file: string },
  signal: AbortSignal,
): Promise<void> {
  using qmp = await Qmp.open(qmpSocket, signal);
  const device = { driver: "scsi-hd", bus: "scsi0.0", id: `dev-${disk.id}`, drive: disk.id, serial: disk.id };
  const steps = [["blockdev-add", fileBlock(disk.id, disk.file, true)] as const, ["device_add", device] as const];
  for (const [command, args] of steps) {
    await qmp.execute(command, args).catch((thrown: unknown) => {
      if (!/duplicate/i.test(String(thrown))) throw thrown;
    });
  }
}

/** Kills the process and waits until it is gone. */
export async function killVm(vm: VmProcess, clock: Clock): Promise<void> {
  while (processStat(vm.pid)?.startTime === vm.startTime) {
    try {
      process.kill(vm.pid, "SIGKILL");
    } catch {
      // It ended by itself.
    }
    await clock.sleep(MIGRATION_POLL_MS);
  }
}

/** The QEMU process of this place, when there is one: found by its arguments, so none is ever without an owner. */
export async function findVm(place: Pick<VmPlace, "qmp">): Promise<VmProcess | undefined> {
  const [vm] = await findVms((args) => args.includes(`\0unix:${place.qmp},server=on`));
  return vm;
}

/** @param matches is given the arguments, each followed by a zero byte */
async function findVms(matches: (args: string) => boolean): Promise<VmProcess[]> {
  const found: VmProcess[] = [];
  for (const { pid, startTime } of await allProcesses()) {
    const args = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (matches(args)) found.push({ pid, startTime });
  }
  return found;
}

/**
 * Whether a guest really boots under KVM: a device node that opens proves nothing. The verdict is kept in a file, for
 * this boot of the host and this device.
 */
export async function probeAccelerator(
  options: Omit<QemuOptions, "accelerator">,
  verdictFile: string,
  device = "/dev/kvm",
): Promise<Accelerator> {
  const node = statSync(device, { throwIfNoEntry: false });
  if (node === undefined) return "tcg";
  const version = readFileSync(join(options.guestDir, "version"), "utf8").trim();
  const key = `${version} ${qemuIdentity()} ${bootId()} ${node.rdev}`;
  const verdict = await readFileIfExists(verdictFile);
  if (verdict?.startsWith(`${key}\n`) === true) return verdict.trim().endsWith("kvm") ? "kvm" : "tcg";
  const accelerator = (await bootsUnderKvm(options)) ? "kvm" : "tcg";
  await writeFileAtomic(verdictFile, `${key}\n${accelerator}\n`);
  return accelerator;
}

const KVM_PROBE_MS = 10_000;

async function bootsUnderKvm(options: Omit<QemuOptions, "accelerator">): Promise<boolean> {
  await mkdir(options.templatesDir, { recursive: true, mode: 0o700 });
  const work = await mkdtemp(join(options.templatesDir, "p-"));
  const place = scratchPlace(work);
  try {
    const qemu = new Qemu({ ...options, accelerator: "kvm" });
    const { control } = await qemu.boot({ memoryMib: 192, cpus: 1 }, place, AbortSignal.timeout(KVM_PROBE_MS));
    control.close();
    return true;
  } catch {
    return false; // whatever went wrong, this host's KVM is not for us
  } finally {
    const vm = await findVm(place);
    if (vm !== undefined) await killVm(vm, options.clock);
    await rm(work, { recursive: true, force: true });
  }
}

/** For a VM without a machine: it ends before its folder is removed. */
function scratchPlace(dir: string): VmPlace {
  const at = (name: string) => join(dir, name);
  return { qmp: at("qmp"), ctl: at("ctl"), tap: undefined, disk: at("disk.img"), log: at("log") };
}

/** @returns its path; the name says the size, so another size is another file */
async function makeBlankDisk(dir: string, bytes: number): Promise<string> {
  const file = join(dir, `blank-${bytes}.img`);
  if (existsSync(file)) return file;
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, "", { mode: 0o600 });
  truncateSync(temporary, bytes);
  // No journal: without the machine, its disk is useless anyway.
  const features = "^has_journal,^resize_inode,^metadata_csum";
  const extended = "lazy_itable_init=1,nodiscard";
  await run(findTool("mke2fs")!, ["-q", "-F", "-t", "ext4", "-O", features, "-m", "0", "-E", extended, temporary]);
  await rename(temporary, file);
  return file;
}

/** Only what is written in it: such a disk is mostly holes. */
async function copyDisk(from: string, to: string, signal: AbortSignal): Promise<void> {
  await rm(to, { force: true });
  await run(findTool("cp")!, ["--sparse=always", "--reflink=auto", from, to], { signal });
}

function memory(file: string, size: VmSize, share: boolean): string[] {
  return [
    "-object",
    `memory-backend-file,id=mem,size=${size.memoryMib}M,mem-path=${file},share=${share ? "on" : "off"}`,
  ];
}

/** A new QEMU has other devices inside: its binary's size and time stand for its version. */
function qemuIdentity(): string {
  const path = findTool(QEMU);
  return path === undefined
    ? ""
    : createHash("sha256")
        .update(readFileSync(path).subarray(0, 1 << 20))
        .digest("hex")
        .slice(0, 16);
}

/** Under KVM a guest has this host's processor, and its memory holds what it found out about it. */
function processorIdentity(): string {
  const lines = readFileSync("/proc/cpuinfo", "utf8").match(/^(?:model name|flags)\s*:.*$/gm) ?? [];
  return [release(), ...new Set(lines)].join("\n");
}

function accepts(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once("error", () => resolve(false));
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
  });
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

function send(path: string, content: Buffer, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect({ path, signal });
    socket.once("error", reject);
    socket.once("connect", () => socket.end(content, () => resolve()));
  });
}
