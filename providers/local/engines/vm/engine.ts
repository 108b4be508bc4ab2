/**
 * Engine `vm`: a QEMU microVM per machine, KVM where a guest really boots under it, emulation otherwise. Inside it the
 * same OCI bundles as the engine oci makes, run by crun. The supervisor stays on the host and reaches the guest over
 * virtio ports; the guest is not trusted.
 */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import PQueue from "p-queue";
import {
  type Capability,
  containersOf,
  type Clock,
  type Logger,
  type MachineSpec,
  type ProviderCapacity,
  ProviderError,
  Once,
  pause,
  type ResourceAmounts,
  volumeClaims,
} from "../../../../src/provider/kit/index.ts";
import { Cgroup } from "../../bundle/cgroup.ts";
import { checkResolvConf } from "../../bundle/host-resolv.ts";
import { hostCapacity, machinesShare } from "../../bundle/host-reserve.ts";
import { oomScoreAdj } from "../../bundle/machine-resources.ts";
import type { Engine, HostProblem, MachineHome, Sandbox } from "../../engine.ts";
import { findTool } from "../../host/command.ts";
import { setOomScore } from "../../host/oom-score.ts";
import { HostError } from "../../host/host-error.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { readdirAtomic, writeFileAtomic } from "../../host/files.ts";
import { TornFiles } from "../../host/torn-files.ts";
import { HostImages, type HostImagesOptions } from "../../images/host-images.ts";
import { networkCondition } from "../../network/condition.ts";
import { CniNetwork, type CniOptions } from "../../network/cni/network.ts";
import { DEFAULT_HOST_PORTS, requireHostPorts } from "../../network/host-ports.ts";
import { checkForwarding } from "../../network/forward-policy.ts";
import { NodeRange } from "../../network/node-range.ts";
import { checkIpv6, checkNetwork } from "../../network/check-network.ts";
import { HostNetwork, type NetworkOptions, refusedRanges } from "../../network/network.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";
import { DISK_VOLUME_CAPABILITIES, VM_CAPABILITIES } from "../capabilities.ts";
import { checkDiskVolumes, DiskVolumes, hasDiskVolumes } from "../../volumes/disk-files.ts";
import type { HostVolumes, VolumePlace } from "../../volume-contents.ts";
import { probeAccelerator } from "./accelerator.ts";
import { GuestDisks, releaseDisks, writesOutside } from "./disks.ts";
import { assertNfsOptions } from "./nfs.ts";
import { tscKhz } from "./frequency.ts";
import { checkGuest, defaultGuestDir, hasGuest, makeGuest, outdatedPackages } from "./guest.ts";
import { GuestImage, tornGuestFiles } from "./guest-image.ts";
import { VmPool } from "./pool.ts";
import { Qemu, QEMU } from "./qemu.ts";
import { openSandbox, VmSandbox } from "./sandbox.ts";
import { vmSize } from "./size.ts";
import { checkUsers, type UserRange, VmUsers } from "./users.ts";
import { destroyVm, Vm, type VmContext, vmKeys } from "./vm.ts";
import { vmGroups } from "./vm-groups.ts";
import { bridgeNetwork, type VmNetwork } from "./vm-network.ts";
import { warming } from "./warm.ts";

interface VmEngineOptions {
  /** The backend's state directory. */
  stateDir: string;
  /** What machines may have together; never more than the host can spare. */
  capacity?: ResourceAmounts | undefined;
  /** What the host keeps for its own programs. */
  systemReserved?: ResourceAmounts | undefined;
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
  /** Of the VMs. */
  users?: UserRange | undefined;
  images?: Omit<HostImagesOptions, "dir" | "clock" | "logger"> | undefined;
  network?: Omit<NetworkOptions, "dir"> | undefined;
  /** Machines are on the network of the host's cluster. Absent: on a bridge of the backend's own. */
  cni?: CniOptions | undefined;
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
const SWEEP_RETRY_MS = 30_000;

const TOOLS = [
  [QEMU, "qemu-system-x86"],
  ["mksquashfs", "squashfs-tools"],
  ["mke2fs", "e2fsprogs"],
  ["tar", "tar"],
  ["ldd", "libc-bin"],
  ["cp", "coreutils"],
] as const;

/** Which VM a machine lives in. */
interface MachineVm {
  id: string;
  key: string;
}

export class VmEngine implements Engine {
  readonly name = "vm";
  readonly #hasVolumes = hasDiskVolumes();
  readonly images: HostImages;
  /** QEMU beside the guest's memory, and the shim of each container. */
  readonly overhead = { machineBytes: 72 * 1024 ** 2, containerBytes: 32 * 1024 ** 2 };
  readonly nodeRange: NodeRange | undefined;
  readonly #options: VmEngineOptions;
  readonly #network: VmNetwork;
  readonly #records: string;
  readonly #torn: TornFiles;
  readonly #guestDir: string;
  readonly #context = new Once(() => this.#prepare());
  #pool: VmPool | undefined;
  #volumes: DiskVolumes | undefined;
  readonly #closing = new AbortController();
  #cancelCollect: (() => void) | undefined;
  /** Of all VMs. */
  readonly #group: Cgroup;
  readonly #groupPath: string;

  readonly volumes = (place: VolumePlace): HostVolumes => {
    this.#volumes = new DiskVolumes(place, async (id, sizeBytes) => {
      await (await this.#context.get()).disks.grow(id, sizeBytes, AbortSignal.timeout(CALL_MS));
    });
    return this.#volumes;
  };

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
    this.#torn = new TornFiles(stateDir, logger);
    if (options.cni === undefined) {
      const network = new HostNetwork({ dir: join(stateDir, "network"), ...options.network });
      this.nodeRange = NodeRange.of(options.network, { stateDir, logger, network });
      this.#network = bridgeNetwork(network);
    } else this.#network = new CniNetwork(join(stateDir, "vm/cni"), options.cni, { torn: this.#torn, clock, logger });
    this.#records = join(stateDir, "vm/machines");
    this.#groupPath = `/vmlet-${machineHash(stateDir)}`;
    this.#group = new Cgroup(this.#groupPath);
    this.#guestDir = options.guestDir ?? defaultGuestDir();
  }

  get capabilities(): readonly Capability[] {
    return [...VM_CAPABILITIES, ...this.#network.capabilities, ...(this.#hasVolumes ? DISK_VOLUME_CAPABILITIES : [])];
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
    const problems = [...HostImages.check(), ...checkNetwork("tap")];
    for (const [tool, debian] of TOOLS) {
      if (findTool(tool) === undefined)
        problems.push({
          fatal: true,
          problem: `${tool} is not on the PATH`,
          cure: `install the package ${debian} (Debian: apt-get install ${debian})`,
        });
    }
    const torn = hasGuest(this.#guestDir) ? await tornGuestFiles(this.#guestDir) : [];
    problems.push(...(await checkGuest(this.#guestDir, torn, this.#options.clock.now())));
    if (!existsSync(this.#seccompProfile()))
      problems.push({
        fatal: true,
        problem: `the default seccomp profile ${this.#seccompProfile()} is missing`,
        cure: "install the package containers-common (Debian: golang-github-containers-common)",
      });
    problems.push(...checkUsers(this.#options.users), ...checkDiskVolumes());
    if (!existsSync("/dev/kvm"))
      problems.push({
        fatal: false,
        problem: "/dev/kvm is missing: machines are emulated, several times slower",
        cure: "run the backend on a host with hardware virtualisation, or pass the device in (--device /dev/kvm)",
      });
    problems.push(...(await this.#checkNetwork()), ...(await checkResolvConf()));
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
    assertNfsOptions(spec);
    for (const { name } of spec.security?.sysctls ?? []) {
      if (!/^[a-z0-9_]+(?:[./][a-z0-9_-]+)+$/i.test(name) || name.includes(".."))
        throw new ProviderError("invalid", `${JSON.stringify(name)} is not a sysctl`, { field: "security.sysctls" });
    }
    const { network, reservedPorts } = this.#options;
    const { hostPorts: allowed = DEFAULT_HOST_PORTS } = network ?? {};
    requireHostPorts(spec, { allowed, reserved: reservedPorts ?? [], hasIpv6: this.#network.hasIpv6 });
  }

  async sweep(known: ReadonlySet<string>): Promise<void> {
    await this.#network.begin(this.#options.clock, this.#options.logger);
    await this.#limitTogether();
    this.#collectLater();
    const context = await this.#context.get();
    const keys = new Set<string>();
    for (const hash of await readdirAtomic(this.#records)) {
      const machine = this.#torn.readJson(join(this.#records, hash), isMachineVm);
      if (machine === undefined) continue;
      if (known.has(machine.id)) keys.add(machine.key);
      else await rm(join(this.#records, hash), { force: true });
    }
    // Also those that a former backend kept ready: making new ones is faster than finding out what became of these.
    for (const key of await vmKeys(context)) if (!keys.has(key)) await this.#sweepVm(context, key);
    await context.qemu.sweep();
    await this.#network.sweep(keys);
    const usual: MachineSpec = { labels: {}, restart_policy: "never", containers: [{ name: "", image: "" }] };
    const size = vmSize(usual, context.sizing);
    // The first machine need not wait for it.
    if (context.clones) context.qemu.template(size, this.#closing.signal).catch(() => undefined);
    this.#pool = new VmPool(context, { machines: this.#options.warmPool ?? 0, size }, this.#options.logger);
    this.#pool.fill();
    // The machines of today need not wait for it.
    if (this.#options.guestDir === undefined) void this.#renewGuest();
  }

  /** One VM that does not go keeps no backend from starting. */
  async #sweepVm(context: VmContext, key: string): Promise<void> {
    const { logger, clock } = this.#options;
    try {
      await destroyVm(context, key);
    } catch (thrown) {
      logger.warn({ vm: key, err: thrown }, "What is left of a VM cannot be removed yet");
      void pause(clock, SWEEP_RETRY_MS, this.#closing.signal).then(async () => {
        if (!this.#closing.signal.aborted) await this.#sweepVm(context, key);
      });
    }
  }

  async open(home: MachineHome, signal: AbortSignal): Promise<Sandbox> {
    const context = await this.#context.get();
    const size = vmSize(home.spec, context.sizing);
    // From its turn on: behind many others, on a host that is overrun, a start would be late before it has begun.
    const inTime = () => AbortSignal.any([signal, AbortSignal.timeout(context.bootTimeoutMs)]);
    const hasDisks = volumeClaims(home.spec).length > 0;
    // Those that wait may not write to files that are longer than their own disks.
    const waiting = hasDisks ? undefined : this.#pool?.take(size);
    const fileBytes = hasDisks ? await this.#volumes?.largestFile() : undefined;
    const key = waiting?.key ?? Vm.newKey();
    try {
      await writeFileAtomic(this.#recordFile(home), JSON.stringify({ id: home.id, key } satisfies MachineVm));
    } catch (thrown) {
      // Otherwise nothing would say whose it is.
      waiting?.control.close();
      if (waiting !== undefined) await destroyVm(context, key);
      throw thrown;
    }
    const started = async () => {
      const attachment = await context.attaches.add(async () => {
        signal.throwIfAborted();
        return await Vm.attach(context, key, inTime(), home.spec);
      });
      return await context.boots.add(async () => {
        signal.throwIfAborted();
        return await Vm.start(context, key, size, inTime(), { attachment, fileBytes });
      });
    };
    const vm = waiting ?? (await started());
    try {
      await this.#rankVm(vm.pid, home);
      return await openSandbox(context, home, vm, inTime());
    } catch (thrown) {
      vm.control.close();
      throw thrown;
    }
  }

  async recover(home: MachineHome): Promise<Sandbox | undefined> {
    const context = await this.#context.get();
    const key = this.#keyOf(home);
    const vm = key === undefined ? undefined : await Vm.find(context, key);
    if (vm === undefined) return undefined;
    await context.network.hold(vm.key, home.spec);
    // They are gone when another program has flushed this host's rules meanwhile.
    await context.network
      .openHostPorts(vm.key, home.spec)
      .catch((thrown: unknown) =>
        this.#options.logger.warn({ machine: home.id, err: thrown }, "Cannot open the machine's host ports again"),
      );
    const sandbox = new VmSandbox(context, home, vm);
    await sandbox.resume();
    return sandbox;
  }

  async destroy(home: MachineHome): Promise<void> {
    const key = this.#keyOf(home);
    if (key !== undefined) await this.#destroyVm(home, key);
    await rm(home.dir, { recursive: true, force: true });
    await rm(this.#recordFile(home), { force: true });
  }

  async #destroyVm({ id, spec }: MachineHome, key: string): Promise<void> {
    const context = await this.#context.get();
    const { clock, logger } = this.#options;
    const vm = writesOutside(spec) ? await Vm.find(context, key) : undefined;
    if (vm !== undefined) {
      await releaseDisks(vm, { id, spec, clock, logger });
      vm.control.close();
    }
    await destroyVm(context, key);
    context.disks.forget(spec);
  }

  async #checkNetwork(): Promise<HostProblem[]> {
    const { cni, network } = this.#options;
    const lack = await this.#network.lack();
    if (cni === undefined) return [...(await checkForwarding(network)), ...checkIpv6(network)];
    if (lack === undefined) return [];
    return [
      {
        // A network may be installed by a pod that has the host's, of another node.
        fatal: false,
        problem: `machines have no network: ${lack}`,
        cure: "install the cluster's network, which may be a DaemonSet; or write a CNI configuration and install its plugins (Debian: containernetworking-plugins)",
      },
    ];
  }

  /** For the cluster's network a DaemonSet may be installing it, after the node is there. */
  async conditions() {
    const message = await this.#network.lack();
    return [
      networkCondition(message === undefined ? undefined : { message: `cni plugin not initialized: ${message}` }),
    ];
  }

  async capacity(): Promise<ProviderCapacity> {
    return hostCapacity(await this.images.diskSize(), this.#options);
  }

  async memory(): Promise<{ usedBytes: number; limitBytes: number } | undefined> {
    return await this.#group.memory();
  }

  async close(): Promise<void> {
    this.#cancelCollect?.();
    this.#closing.abort(new Error("the backend is stopping"));
    await this.#pool?.close();
    await (await this.#context.peek())?.qemu.close();
    // It stays while a VM is in it.
    await this.#group.remove().catch(() => undefined);
    await this.#network.leave();
  }

  /** So that all VMs together leave the host what it needs. A host without control groups has to do without. */
  async #limitTogether(): Promise<void> {
    const { memory_bytes, cpu_millis } = machinesShare(this.#options.capacity, undefined, this.#options.systemReserved);
    try {
      await this.#group.limit({ memory_bytes });
      await this.#group.weigh(cpu_millis);
    } catch (thrown) {
      this.#options.logger.warn({ err: thrown }, "VMs have no common limit of memory");
    }
  }

  /** Else the VM would be as safe as the backend, which has started it. */
  async #rankVm(pid: number, { spec }: MachineHome): Promise<void> {
    const scores = containersOf(spec).map((container) => oomScoreAdj(container.spec.name, spec, totalmem()));
    await setOomScore(pid, Math.max(...scores)).catch((thrown: unknown) => {
      this.#options.logger.debug({ pid, err: thrown }, "A VM's rank for the kernel's out-of-memory killer stays");
    });
  }

  #recordFile(home: Pick<MachineHome, "id">): string {
    return join(this.#records, machineHash(home.id));
  }

  #keyOf(home: Pick<MachineHome, "id">): string | undefined {
    return this.#torn.readJson(this.#recordFile(home), isMachineVm)?.key;
  }

  async #prepare(): Promise<VmContext> {
    const { stateDir, clock, logger, accelerator = "auto" } = this.#options;
    const dir = join(stateDir, "vm");
    await mkdir(this.#records, { recursive: true, mode: 0o700 });
    const guest = new GuestImage({ dir: this.#guestDir, clock, logger });
    await guest.ready();
    const diskBytes = this.#options.scratchBytes ?? DEFAULT_SCRATCH_BYTES;
    const seccomp = () => JSON.parse(readFileSync(this.#seccompProfile(), "utf8")) as SeccompSource;
    const pidsLimit = this.#options.pidsLimit ?? DEFAULT_PIDS_LIMIT;
    const clones = this.#options.clones ?? true;
    const warm = clones ? warming(seccomp(), pidsLimit) : undefined;
    const users = new VmUsers(this.#options.users);
    const qemu = { guestDir: this.#guestDir, templatesDir: join(dir, "templates"), diskBytes, users, clock };
    const chosen = accelerator === "auto" ? await probeAccelerator(qemu, join(dir, "accelerator")) : accelerator;
    logger.info({ accelerator: chosen }, "VMs' accelerator");
    const khz = chosen === "tcg" ? await tscKhz(this.#guestDir, join(dir, "frequency")) : undefined;
    if (chosen === "tcg" && khz === undefined)
      logger.warn(
        { guestDir: this.#guestDir },
        "The frequency of this host's time-stamp counter cannot be measured, and emulated VMs may hang when they boot: a program of the guest image must run (is its file system mounted noexec?)",
      );
    const processors = availableParallelism();
    const boots = Math.max(2, processors);
    return {
      clock,
      network: this.#network,
      vmsDir: join(dir, "v"),
      qemu: new Qemu({
        ...qemu,
        guest,
        logger,
        accelerator: chosen,
        groups: vmGroups(this.#groupPath, logger),
        tscKhz: khz,
        prepare: warm && [warm.command],
      }),
      disks: new GuestDisks({
        guestDir: this.#guestDir,
        clock,
        diskOf: (id) => {
          if (this.#volumes === undefined) throw new HostError("there are no volumes that outlive machines");
          return this.#volumes.disk(id);
        },
      }),
      attaches: new PQueue({ concurrency: 4 * boots }),
      boots: new PQueue({ concurrency: boots }),
      clones,
      ...(warm === undefined ? {} : { warming: warm }),
      sizing: { memoryMib: this.#options.defaultMemoryMib ?? DEFAULT_MEMORY_MIB, maxCpus: processors },
      bootTimeoutMs: this.#options.bootTimeoutMs ?? DEFAULT_BOOT_TIMEOUT_MS,
      callMs: CALL_MS,
      seccomp,
      pidsLimit,
    };
  }

  /** Never rejects. A folder that its owner has chosen is its owner's to renew. Guests that run keep what they have. */
  async #renewGuest(): Promise<void> {
    const { logger } = this.#options;
    const packages = await outdatedPackages(this.#guestDir);
    if (packages.length === 0 || this.#closing.signal.aborted) return;
    logger.info({ guestDir: this.#guestDir, packages }, "Making the guest image anew: its packages have changed");
    await makeGuest(this.#guestDir).catch((thrown: unknown) =>
      logger.warn({ err: thrown }, "The guest image stays as it was"),
    );
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

function isMachineVm(value: unknown): value is MachineVm {
  const { id, key } = (value ?? {}) as Partial<MachineVm>;
  return typeof id === "string" && typeof key === "string";
}
