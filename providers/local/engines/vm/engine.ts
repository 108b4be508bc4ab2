/**
 * Engine `vm`: a QEMU microVM per machine, KVM where a guest really boots under it, emulation otherwise. Inside it the
 * same OCI bundles as the engine oci makes, run by crun. The supervisor stays on the host and reaches the guest over
 * virtio ports; the guest is not trusted.
 */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import PQueue from "p-queue";
import {
  type Clock,
  type Logger,
  type MachineSpec,
  type ProviderCapacity,
  ProviderError,
  Once,
  type ResourceAmounts,
} from "../../../../src/provider/kit/index.ts";
import { Cgroup } from "../../bundle/cgroup.ts";
import { machinesShare } from "../../bundle/host-reserve.ts";
import type { Engine, HostProblem, MachineHome, Sandbox } from "../../engine.ts";
import { findTool } from "../../host/command.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { readdirAtomic, readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { HostImages, type HostImagesOptions } from "../../images/host-images.ts";
import { containerPorts, DEFAULT_HOST_PORTS, requireHostPorts } from "../../network/host-ports.ts";
import { HostNetwork, type NetworkOptions, refusedRanges } from "../../network/network.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";
import { VM_CAPABILITIES } from "../capabilities.ts";
import { tscKhz } from "./frequency.ts";
import { checkGuest, defaultGuestDir, hasGuest, makeGuest } from "./guest.ts";
import { VmPool } from "./pool.ts";
import { probeAccelerator, Qemu, QEMU } from "./qemu.ts";
import { openSandbox, VmSandbox } from "./sandbox.ts";
import { vmSize } from "./size.ts";
import { destroyVm, Vm, type VmContext, vmKeys } from "./vm.ts";
import { warming } from "./warm.ts";

interface VmEngineOptions {
  /** The backend's state directory. */
  stateDir: string;
  /** What machines may have together; never more than the host can spare. */
  capacity?: ResourceAmounts | undefined;
  clock: Clock;
  logger: Logger;
  /** Folder of the guest image, made when it is not there. Default: in the user's cache. */
  guestDir?: string | undefined;
  /** `auto` boots a guest under KVM to see. */
  accelerator?: "auto" | "kvm" | "tcg" | undefined;
  /** Start machines as copies of a booted one. Default true. */
  clones?: boolean | undefined;
  /** VMs of the size of a machine without limits that are kept ready. Default 0. */
  warmPool?: number | undefined;
  /** Memory for containers without a limit, MiB. */
  defaultMemoryMib?: number | undefined;
  /** Size of a machine's own disk, bytes; sparse. */
  scratchBytes?: number | undefined;
  bootTimeoutMs?: number | undefined;
  images?: Omit<HostImagesOptions, "dir" | "clock" | "logger"> | undefined;
  network?: Omit<NetworkOptions, "dir"> | undefined;
  /** Ports of this host that the backend itself serves on. */
  reservedPorts?: readonly number[] | undefined;
  seccompProfile?: string | undefined;
  pidsLimit?: number | undefined;
}

const DEFAULT_SECCOMP_PROFILE = "/usr/share/containers/seccomp.json";
const DEFAULT_MEMORY_MIB = 128;
const DEFAULT_SCRATCH_BYTES = 10 * 1024 ** 3;
const DEFAULT_BOOT_TIMEOUT_MS = 90_000;
const DEFAULT_PIDS_LIMIT = 4096;
/** What the host asks of a guest is done in milliseconds, unless the guest hangs. */
const CALL_MS = 60_000;
const COLLECT_PERIOD_MS = 5 * 60_000;

const TOOLS = [
  [QEMU, "qemu-system-x86"],
  ["mksquashfs", "squashfs-tools"],
  ["mke2fs", "e2fsprogs"],
  ["tar", "tar"],
  ["cp", "coreutils"],
] as const;

export function createVmEngine(options: VmEngineOptions): Engine {
  return new VmEngine(options);
}

/** Which VM a machine lives in. */
interface MachineVm {
  id: string;
  key: string;
}

class VmEngine implements Engine {
  readonly name = "vm";
  readonly capabilities = VM_CAPABILITIES;
  readonly images: HostImages;
  readonly #options: VmEngineOptions;
  readonly #network: HostNetwork;
  readonly #records: string;
  readonly #guestDir: string;
  readonly #context = new Once(() => this.#prepare());
  #pool: VmPool | undefined;
  readonly #closing = new AbortController();
  #cancelCollect: (() => void) | undefined;
  /** Of all VMs. */
  readonly #group: Cgroup;

  constructor(options: VmEngineOptions) {
    const { stateDir, clock, logger } = options;
    this.#options = options;
    this.images = new HostImages({
      dir: join(stateDir, "images"),
      clock,
      logger,
      refusedRanges: refusedRanges(options.network),
      ...options.images,
    });
    this.#network = new HostNetwork({ dir: join(stateDir, "network"), ...options.network });
    this.#records = join(stateDir, "vm/machines");
    this.#group = new Cgroup(`/vmlet-${machineHash(stateDir)}`);
    this.#guestDir = options.guestDir ?? defaultGuestDir();
  }

  async check(): Promise<HostProblem[]> {
    if (process.platform !== "linux" || process.arch !== "x64")
      return [
        {
          fatal: true,
          problem: `engine vm needs Linux on x86-64; this is ${process.platform} on ${process.arch}`,
          cure: "run the backend there, or use the engine oci",
        },
      ];
    const problems = [...HostImages.check(), ...HostNetwork.check("tap")];
    for (const [tool, debian] of TOOLS) {
      if (findTool(tool) === undefined)
        problems.push({
          fatal: true,
          problem: `${tool} is not on the PATH`,
          cure: `install the package ${debian} (Debian: apt-get install ${debian})`,
        });
    }
    problems.push(...checkGuest(this.#guestDir));
    if (!existsSync(this.#seccompProfile()))
      problems.push({
        fatal: true,
        problem: `the default seccomp profile ${this.#seccompProfile()} is missing`,
        cure: "install the package containers-common (Debian: golang-github-containers-common)",
      });
    if (!existsSync("/dev/kvm"))
      problems.push({
        fatal: false,
        problem: "/dev/kvm is missing: machines are emulated, several times slower",
        cure: "run the backend on a host with hardware virtualisation, or pass the device in (--device /dev/kvm)",
      });
    return problems;
  }

  validate(spec: MachineSpec): void {
    for (const [index, volume] of (spec.volumes ?? []).entries()) {
      if (!/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/i.test(volume.name))
        throw new ProviderError(
          "invalid",
          `volume name ${JSON.stringify(volume.name)} must be made of letters, digits, dashes and dots`,
          { field: `volumes.${index}.name` },
        );
    }
    for (const { name } of spec.security?.sysctls ?? []) {
      if (!/^[a-z0-9_]+(?:[./][a-z0-9_-]+)+$/i.test(name) || name.includes(".."))
        throw new ProviderError("invalid", `${JSON.stringify(name)} is not a sysctl`, { field: "security.sysctls" });
    }
    const { network, reservedPorts } = this.#options;
    requireHostPorts(spec, { allowed: network?.hostPorts ?? DEFAULT_HOST_PORTS, reserved: reservedPorts ?? [] });
  }

  async sweep(known: ReadonlySet<string>): Promise<void> {
    await this.#network.claim();
    await this.#limitTogether();
    this.#collectLater();
    const context = await this.#context.get();
    const keys = new Set<string>();
    for (const hash of await readdirAtomic(this.#records)) {
      const { id, key } = JSON.parse(readFileSync(join(this.#records, hash), "utf8")) as MachineVm;
      if (known.has(id)) keys.add(key);
      else await rm(join(this.#records, hash), { force: true });
    }
    // Also those that a former backend kept ready: making new ones is faster than finding out what became of these.
    for (const key of await vmKeys(context)) if (!keys.has(key)) await destroyVm(context, key);
    await context.qemu.sweep();
    await this.#network.sweep(keys);
    const usual: MachineSpec = { labels: {}, restart_policy: "never", containers: [{ name: "", image: "" }] };
    const size = vmSize(usual, context.sizing);
    // The first machine need not wait for it.
    if (context.clones) context.qemu.template(size, this.#closing.signal).catch(() => undefined);
    this.#pool = new VmPool(context, { machines: this.#options.warmPool ?? 0, size }, this.#options.logger);
    this.#pool.fill();
  }

  async open(home: MachineHome, signal: AbortSignal): Promise<Sandbox> {
    const context = await this.#context.get();
    const size = vmSize(home.spec, context.sizing);
    const limited = AbortSignal.any([signal, AbortSignal.timeout(context.bootTimeoutMs)]);
    const waiting = this.#pool?.take(size);
    const key = waiting?.key ?? Vm.newKey();
    try {
      await writeFileAtomic(this.#recordFile(home), JSON.stringify({ id: home.id, key } satisfies MachineVm));
    } catch (thrown) {
      // Otherwise nothing would say whose it is.
      waiting?.control.close();
      if (waiting !== undefined) await destroyVm(context, key);
      throw thrown;
    }
    const vm =
      waiting ??
      (await context.boots.add(async () => {
        limited.throwIfAborted();
        return await Vm.start(context, key, size, limited);
      }));
    try {
      return await openSandbox(context, home, vm, limited);
    } catch (thrown) {
      vm.control.close();
      throw thrown;
    }
  }

  async recover(home: MachineHome): Promise<Sandbox | undefined> {
    const context = await this.#context.get();
    const key = await this.#keyOf(home);
    const vm = key === undefined ? undefined : await Vm.find(context, key);
    if (vm === undefined) return undefined;
    await context.network.ensure();
    // They are gone when another program has flushed this host's rules meanwhile.
    await context.network
      .openHostPorts(vm.key, containerPorts(home.spec))
      .catch((thrown: unknown) =>
        this.#options.logger.warn({ machine: home.id, err: thrown }, "Cannot open the machine's host ports again"),
      );
    const sandbox = new VmSandbox(context, home, vm);
    await sandbox.resume();
    return sandbox;
  }

  async destroy(home: MachineHome): Promise<void> {
    const key = await this.#keyOf(home);
    if (key !== undefined) await destroyVm(await this.#context.get(), key);
    await rm(home.dir, { recursive: true, force: true });
    await rm(this.#recordFile(home), { force: true });
  }

  async capacity(): Promise<ProviderCapacity> {
    return {
      allocatable: {
        ...machinesShare(this.#options.capacity),
        ephemeral_bytes: await this.images.diskSize(),
      },
    };
  }

  async close(): Promise<void> {
    this.#cancelCollect?.();
    this.#closing.abort(new Error("the backend is stopping"));
    await this.#pool?.close();
    await (await this.#context.peek())?.qemu.close();
    // It stays while a VM is in it.
    await this.#group.remove().catch(() => undefined);
    this.#network.close();
  }

  /** So that all VMs together leave the host what it needs. A host without control groups has to do without. */
  async #limitTogether(): Promise<void> {
    const { memory_bytes, cpu_millis } = machinesShare(this.#options.capacity);
    try {
      await this.#group.limit({ memory_bytes });
      await this.#group.weigh(cpu_millis);
    } catch (thrown) {
      this.#options.logger.warn({ err: thrown }, "VMs have no common limit of memory");
    }
  }

  async #enter(pid: number): Promise<void> {
    await this.#group.add(pid).catch((thrown: unknown) => {
      this.#options.logger.debug({ pid, err: thrown }, "A VM is in no control group");
    });
  }

  #recordFile(home: Pick<MachineHome, "id">): string {
    return join(this.#records, machineHash(home.id));
  }

  async #keyOf(home: Pick<MachineHome, "id">): Promise<string | undefined> {
    const text = await readFileIfExists(this.#recordFile(home));
    return text === undefined ? undefined : (JSON.parse(text) as MachineVm).key;
  }

  async #prepare(): Promise<VmContext> {
    const { stateDir, clock, logger, accelerator = "auto" } = this.#options;
    const dir = join(stateDir, "vm");
    await mkdir(this.#records, { recursive: true, mode: 0o700 });
    if (!hasGuest(this.#guestDir)) {
      logger.info({ guestDir: this.#guestDir }, "Making the guest image, once: a download and some seconds");
      await makeGuest(this.#guestDir);
    }
    const diskBytes = this.#options.scratchBytes ?? DEFAULT_SCRATCH_BYTES;
    const seccomp = () => JSON.parse(readFileSync(this.#seccompProfile(), "utf8")) as SeccompSource;
    const pidsLimit = this.#options.pidsLimit ?? DEFAULT_PIDS_LIMIT;
    const clones = this.#options.clones ?? true;
    const warm = clones ? warming(seccomp(), pidsLimit) : undefined;
    const qemu = { guestDir: this.#guestDir, templatesDir: join(dir, "templates"), diskBytes, clock };
    const chosen = accelerator === "auto" ? await probeAccelerator(qemu, join(dir, "accelerator")) : accelerator;
    logger.info({ accelerator: chosen }, "VMs' accelerator");
    const khz = chosen === "tcg" ? await tscKhz(this.#guestDir, join(dir, "frequency")) : undefined;
    if (chosen === "tcg" && khz === undefined)
      logger.warn(
        { guestDir: this.#guestDir },
        "The frequency of this host's time-stamp counter cannot be measured, and emulated VMs may hang when they boot: a program of the guest image must run (is its file system mounted noexec?)",
      );
    const processors = availableParallelism();
    return {
      clock,
      network: this.#network,
      vmsDir: join(dir, "v"),
      qemu: new Qemu({
        ...qemu,
        accelerator: chosen,
        enter: (pid) => this.#enter(pid),
        tscKhz: khz,
        prepare: warm && [warm.command],
      }),
      boots: new PQueue({ concurrency: Math.max(2, processors) }),
      clones,
      ...(warm === undefined ? {} : { warming: warm }),
      sizing: { memoryMib: this.#options.defaultMemoryMib ?? DEFAULT_MEMORY_MIB, maxCpus: processors },
      bootTimeoutMs: this.#options.bootTimeoutMs ?? DEFAULT_BOOT_TIMEOUT_MS,
      callMs: CALL_MS,
      seccomp,
      pidsLimit,
    };
  }

  #collectLater(): void {
    this.#cancelCollect = this.#options.clock.after(COLLECT_PERIOD_MS, () => {
      this.images
        .collect()
        .catch((thrown: unknown) => this.#options.logger.warn({ err: thrown }, "Image garbage collection failed"));
      this.#collectLater();
    });
  }

  #seccompProfile(): string {
    return this.#options.seccompProfile ?? DEFAULT_SECCOMP_PROFILE;
  }
}
