/**
 * Engine `oci`: containers by the OCI runtime on the PATH, in namespaces and control groups of this host. A machine is
 * a network namespace on the bridge, an IPC and a UTS namespace, and its volumes; the containers join them.
 *
 * Isolation is that of containers: one kernel for all. The engine `vm` runs the same containers in a VM per machine.
 */
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Capability,
  type Clock,
  type Logger,
  type MachineSpec,
  Once,
  type ProviderCapacity,
  ProviderError,
  type ReservedCapabilities,
  type ResourceAmounts,
  SharedPlaces,
} from "../../../../src/provider/kit/index.ts";
import type { Engine, HostProblem, MachineHome, Sandbox } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { readdirAtomic, readdirIfExists, writeFileAtomic } from "../../host/files.ts";
import { unmountBelow } from "../../host/mounts.ts";
import { removeTree } from "../../host/remove-tree.ts";
import { TornFiles } from "../../host/torn-files.ts";
import { HostImages, type HostImagesOptions } from "../../images/host-images.ts";
import { networkCondition } from "../../network/condition.ts";
import { DEFAULT_HOST_PORTS, requireHostPorts } from "../../network/host-ports.ts";
import { checkForwarding } from "../../network/forward-policy.ts";
import { NodeRange } from "../../network/node-range.ts";
import { checkIpv6, checkNetwork } from "../../network/check-network.ts";
import type { FrontDoor } from "../../network/front-door.ts";
import { HostNetwork, type NetworkOptions, refusedRanges } from "../../network/network.ts";
import {
  capabilityName,
  CONTAINED_CAPABILITIES,
  type ContainerPolicy,
  requireContained,
} from "../../bundle/container-policy.ts";
import type { HostVolumes, VolumePlace } from "../../volume-contents.ts";
import { checkLoopVolumes, hasLoopVolumes, LoopVolumes } from "../../volumes/loop-files.ts";
import { DISK_VOLUME_CAPABILITIES, OCI_CAPABILITIES } from "../capabilities.ts";
import { canConfine, checkAppArmor, hasAppArmor, loadProfile } from "../../bundle/apparmor.ts";
import { allMachinesPids, Cgroup, checkCgroups } from "../../bundle/cgroup.ts";
import {
  HOST_CAPABILITIES,
  type HostAccess,
  ownsHost,
  requireHostAccess,
  reservedFor,
} from "../../bundle/host-access.ts";
import { checkResolvConf } from "../../bundle/host-resolv.ts";
import { checkMachineUsers, MachineUsers } from "../../bundle/machine-users.ts";
import { writeMapper } from "../../bundle/mapped-mounts.ts";
import { hostCapacity, machinesShare } from "../../bundle/host-reserve.ts";
import type { OciContext } from "./context.ts";
import { OciSandbox, openSandbox, recoverSandbox } from "./sandbox.ts";
import { pauseProgram } from "../../bundle/pause.ts";
import { OciRuntime } from "./runtime.ts";
import { runtimeProblems } from "./runtime-version.ts";
import { lackOfUsers, rootsOf, sweepTrials } from "./user-namespace.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";

interface OciEngineOptions {
  /** The backend's state directory. */
  stateDir: string;
  /** What machines may have together; never more than the host can spare. */
  capacity?: ResourceAmounts | undefined;
  /** What the host keeps for its own programs. */
  systemReserved?: ResourceAmounts | undefined;
  clock: Clock;
  logger: Logger;
  /** Name or path of the OCI runtime. */
  runtime?: string | undefined;
  /** Its owner knows that it is mended, although its version has known ways out of a container. */
  trustRuntime?: boolean | undefined;
  images?: Omit<HostImagesOptions, "dir" | "clock" | "logger"> | undefined;
  network?: Omit<NetworkOptions, "dir"> | undefined;
  /** Where this host has one machine, which has its address. */
  frontDoor?: FrontDoor | undefined;
  /** Ports of this host that the backend itself serves on. */
  reservedPorts?: readonly number[] | undefined;
  /** containers-common's profile for `runtime_default`. */
  seccompProfile?: string | undefined;
  /** Privileged containers own this host: off unless said otherwise. */
  allowPrivileged?: boolean | undefined;
  /** Who has this host's network, processes and files instead of their own. Absent: nobody. */
  host?: HostAccess | undefined;
  /** Capabilities that containers may add besides the default ones, while privileged containers are off. */
  allowedCapabilities?: readonly string[] | undefined;
  /** Processes and threads of a machine, and of each of its containers. */
  pidsLimit?: number | undefined;
}

const DEFAULT_RUNTIME = "runc";
const DEFAULT_SECCOMP_PROFILE = "/usr/share/containers/seccomp.json";
const DEFAULT_PIDS_LIMIT = 4096;
/** Of one tenant at a time; of all, twice as many. */
const DISK_WALKS = 3;
/** A shim and the runtime that waits for the container. */
const CONTAINER_OVERHEAD_BYTES = 42 * 1024 ** 2;
const COLLECT_PERIOD_MS = 5 * 60_000;
const SWEEP_RETRY_MS = 30_000;

/** A machine that may have left something on this host, and its engine's folder. */
interface MachineFolder {
  id: string;
  dir: string;
}

export class OciEngine implements Engine {
  readonly name = "oci";
  readonly images: HostImages;
  readonly volumes = (place: VolumePlace): HostVolumes => new LoopVolumes(place);
  readonly overhead = { machineBytes: 0, containerBytes: CONTAINER_OVERHEAD_BYTES };
  readonly nodeRange: NodeRange | undefined;
  readonly #options: OciEngineOptions;
  readonly #policy: ContainerPolicy;
  readonly #context: OciContext;
  /** A folder per machine that may have left something on this host: it says where, until `destroy` is through. */
  readonly #records: string;
  readonly unswept = new Set<string>();
  readonly #cancelSweeps = new Set<() => void>();
  #cancelCollect: (() => void) | undefined;
  /** Why machines have no users of their own here; undefined when they can have. */
  #lackOfUsers: string | undefined = "the host has not been looked at";
  readonly #tryUsers = new Once(async () => {
    const runtime = this.#runtimePath();
    const { stateDir } = this.#options;
    const dir = existsSync(stateDir) ? stateDir : tmpdir();
    this.#lackOfUsers = runtime === undefined ? "there is no OCI runtime" : await lackOfUsers({ runtime, dir });
  });

  constructor(options: OciEngineOptions) {
    const { stateDir, clock, logger } = options;
    this.#options = options;
    this.#policy = {
      allowPrivileged: options.allowPrivileged === true,
      allowedCapabilities: (options.allowedCapabilities ?? CONTAINED_CAPABILITIES).map(capabilityName),
      hasAppArmor: hasAppArmor(),
    };
    this.images = new HostImages({
      dir: join(stateDir, "images"),
      clock,
      logger,
      refusedRanges: refusedRanges(options.network),
      ...options.images,
    });
    this.#records = join(stateDir, "oci/machines");
    const network = new HostNetwork({ dir: join(stateDir, "network"), ...options.network });
    this.nodeRange = NodeRange.of(options.network, { stateDir, logger, network });
    this.#context = {
      clock,
      logger,
      torn: new TornFiles(stateDir, logger),
      runtime: new OciRuntime(this.#runtimePath() ?? DEFAULT_RUNTIME, join(stateDir, "oci/runtime")),
      network,
      frontDoor: options.frontDoor,
      users: new MachineUsers(machineHash(stateDir)),
      mapper: join(stateDir, "oci/map-mounts"),
      cgroupRoot: `/vmlet-${machineHash(stateDir)}`,
      seccomp: () => JSON.parse(readFileSync(this.#seccompProfile(), "utf8")) as SeccompSource,
      apparmor: new Once(async () => await loadProfile({ dir: join(stateDir, "oci/apparmor"), logger })),
      pidsLimit: options.pidsLimit ?? DEFAULT_PIDS_LIMIT,
      diskWalks: new SharedPlaces(DISK_WALKS),
    };
  }

  get capabilities(): readonly Capability[] {
    return [
      ...OCI_CAPABILITIES,
      "supplemental_groups_policy",
      "resize_machine",
      ...(pauseProgram(process.arch) === undefined ? [] : (["share_process_namespace"] as const)),
      ...(this.#policy.allowPrivileged || this.reserved !== undefined ? (["privileged"] as const) : []),
      ...(this.reserved === undefined ? [] : HOST_CAPABILITIES),
      ...this.#context.network.limits.capabilities,
      ...(canConfine() ? (["apparmor"] as const) : []),
      ...(this.#lackOfUsers === undefined ? (["user_namespace"] as const) : []),
      ...(hasLoopVolumes() ? DISK_VOLUME_CAPABILITIES : []),
    ];
  }

  get reserved(): ReservedCapabilities | undefined {
    return reservedFor(this.#options.host, this.#policy);
  }

  async check(): Promise<HostProblem[]> {
    if (process.platform !== "linux")
      return [
        {
          fatal: true,
          problem: `engine oci needs Linux; this is ${process.platform}`,
          cure: "run the backend on Linux, or use the process engine",
        },
      ];
    const problems = [...HostImages.check(), ...checkNetwork("namespace")];
    await this.#context.network.limits.look();
    const runtime = this.#options.runtime ?? DEFAULT_RUNTIME;
    const path = this.#runtimePath();
    if (path === undefined)
      problems.push({
        fatal: true,
        problem: `the OCI runtime ${runtime} is not on the PATH`,
        cure: "install the package runc (or crun, and set engine.runtime)",
      });
    else if (
      !(await run(path, ["run", "--help"]).then(
        ({ stdout }) => stdout.includes("--keep"),
        () => false,
      ))
    )
      problems.push({ fatal: true, problem: `${path} run has no option --keep`, cure: "install runc 1.1 or newer" });
    else {
      const version = await run(path, ["--version"]).catch(() => undefined);
      const isTrusted = this.#options.trustRuntime === true;
      problems.push(...runtimeProblems(version?.stdout.toString() ?? "", { isTrusted }), ...(await this.#checkUsers()));
    }
    if (!existsSync(this.#seccompProfile()))
      problems.push({
        fatal: true,
        problem: `the default seccomp profile ${this.#seccompProfile()} is missing`,
        cure: "install the package containers-common (Debian: golang-github-containers-common), or set engine.seccompProfile",
      });
    if (!readFileSync("/proc/filesystems", "latin1").includes("\toverlay\n"))
      problems.push({
        fatal: true,
        problem: "this kernel has no overlay file system",
        cure: "load the module overlay",
      });
    problems.push(
      ...(await checkCgroups()),
      ...checkAppArmor(),
      ...(await checkForwarding(this.#options.network)),
      ...checkIpv6(this.#options.network),
      ...(await checkResolvConf()),
      ...checkLoopVolumes(),
    );
    return problems;
  }

  async #checkUsers(): Promise<HostProblem[]> {
    await this.#tryUsers.get();
    if (this.#lackOfUsers === undefined) return checkMachineUsers();
    return [
      {
        fatal: false,
        problem: `machines cannot have users of their own (hostUsers: false): ${this.#lackOfUsers}`,
        cure: "it takes runc 1.2 or newer, Linux 6.3 or newer, and a file system that can be mapped, as ext4, xfs and btrfs; or run such pods on engine vm",
      },
    ];
  }

  validate(spec: MachineSpec): void {
    if (spec.security?.host_users === false && this.#lackOfUsers !== undefined)
      throw new ProviderError(
        "unsupported",
        `engine oci has no user namespaces of machines: run this pod on the engine vm (here: ${this.#lackOfUsers})`,
        { field: "security.host_users" },
      );
    const { host } = this.#options;
    requireHostAccess(spec, host);
    if (spec.security?.host_users === false && Object.values(spec.host ?? {}).includes(true))
      throw new ProviderError("invalid", "users of its own cannot have namespaces of the host", {
        field: "security.host_users",
      });
    // By the field that only clients with the verb for it may set: the namespace is any client's word.
    requireContained(spec, { ...this.#policy, mayBePrivileged: ownsHost(spec, host) });
    for (const [index, volume] of (spec.volumes ?? []).entries()) {
      if (!/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/i.test(volume.name))
        throw new ProviderError(
          "invalid",
          `volume name ${JSON.stringify(volume.name)} must be made of letters, digits, dashes and dots`,
          { field: `volumes.${index}.name` },
        );
    }
    const { network, reservedPorts } = this.#options;
    const { hostPorts: allowed = DEFAULT_HOST_PORTS } = network ?? {};
    requireHostPorts(spec, { allowed, reserved: reservedPorts ?? [], hasIpv6: this.#context.network.range.hasIpv6 });
  }

  async sweep(known: ReadonlySet<string>): Promise<void> {
    await this.#context.network.claim();
    this.#context.network.lookAfter(this.#options.clock, this.#options.logger);
    this.#collectLater();
    await mkdir(this.#records, { recursive: true });
    await this.#context.runtime.forgetOtherBoots();
    await this.#tryUsers.get();
    await sweepTrials(this.#options.stateDir);
    if (this.#lackOfUsers === undefined) await writeMapper(this.#context.mapper);
    for (const hash of await readdirAtomic(this.#records)) {
      const machine = this.#machineOf(hash);
      if (machine !== undefined && !known.has(machine.id)) await this.#sweepOne(machine);
    }
    await this.#context.network.sweep(known);
    // Of those that cannot be removed yet, something may run.
    if (this.#lackOfUsers === undefined) await this.#context.users.sweep(new Set([...known, ...this.unswept]));
    const machines = new Cgroup(this.#context.cgroupRoot);
    const { cpu_millis, memory_bytes } = machinesShare(this.#options.capacity, undefined, this.#options.systemReserved);
    await machines.limit({ memory_bytes, pids: allMachinesPids() });
    await machines.weigh(cpu_millis);
  }

  /** Undefined for a torn record of a machine whose folder is gone: nothing says where anything of it could be. */
  #machineOf(hash: string): MachineFolder | undefined {
    const record = this.#context.torn.tryJson(join(this.#records, hash), isMachineFolder);
    if (record !== "torn") return record;
    const machines = join(this.#options.stateDir, "machines");
    const id = existsSync(machines) ? readdirSync(machines).find((each) => machineHash(each) === hash) : undefined;
    if (id !== undefined) return { id, dir: join(machines, id, "engine") };
    rmSync(join(this.#records, hash), { force: true });
    return undefined;
  }

  /** One machine that cannot be removed now keeps no backend from starting. */
  async #sweepOne({ id, dir }: MachineFolder): Promise<void> {
    const { clock, logger } = this.#context;
    try {
      await this.#remove(id, dir);
      this.unswept.delete(id);
    } catch (thrown) {
      logger.warn({ machine: id, err: thrown }, "What is left of a machine cannot be removed yet");
      this.unswept.add(id);
      const cancel = clock.after(SWEEP_RETRY_MS, () => {
        this.#cancelSweeps.delete(cancel);
        void this.#sweepOne({ id, dir });
      });
      this.#cancelSweeps.add(cancel);
    }
  }

  async open(home: MachineHome, signal: AbortSignal): Promise<Sandbox> {
    await mkdir(this.#records, { recursive: true });
    await writeFileAtomic(join(this.#records, machineHash(home.id)), JSON.stringify({ id: home.id, dir: home.dir }));
    return await openSandbox(this.#context, home, signal);
  }

  async recover(home: MachineHome): Promise<OciSandbox | undefined> {
    return await recoverSandbox(this.#context, home);
  }

  async destroy({ id, dir }: MachineHome, { keepVolumes = false } = {}): Promise<void> {
    if (!keepVolumes) return await this.#remove(id, dir);
    await this.#removeSandbox(id, dir);
    for (const name of await readdirIfExists(dir)) if (name !== "volumes") await removeTree(join(dir, name));
  }

  async capacity(): Promise<ProviderCapacity> {
    return hostCapacity(await this.images.diskSize(), this.#options);
  }

  async conditions() {
    return [networkCondition(undefined)];
  }

  async memory(): Promise<{ usedBytes: number; limitBytes: number } | undefined> {
    return await new Cgroup(this.#context.cgroupRoot).memory();
  }

  async close(): Promise<void> {
    this.#cancelCollect?.();
    for (const cancel of this.#cancelSweeps) cancel();
    // The runtime makes the group again when it needs it.
    if ((await readdir(this.#records).catch(() => [])).length === 0)
      await new Cgroup(this.#context.cgroupRoot).remove().catch(() => undefined);
    await this.#context.network.leave();
  }

  async #remove(id: string, dir: string): Promise<void> {
    await this.#removeSandbox(id, dir);
    await removeTree(dir);
    await rm(join(this.#records, machineHash(id)), { force: true });
  }

  /** Everything of a machine but its files: processes, runtime state, mounts, control groups, network. */
  async #removeSandbox(id: string, dir: string): Promise<void> {
    const { clock, runtime, network, users, cgroupRoot } = this.#context;
    const hash = machineHash(id);
    const cgroup = new Cgroup(join(cgroupRoot, hash));
    await cgroup.kill(clock);
    for (const container of await readdirIfExists(join(dir, "containers"))) await runtime.delete(container);
    await runtime.delete(`pause-${hash}`);
    await cgroup.remove();
    const roots = rootsOf(dir);
    if (existsSync(roots)) {
      await unmountBelow(roots);
      await removeTree(roots);
    }
    await unmountBelow(dir);
    await network.detach(id);
    await users.release(id);
  }

  #collectLater(): void {
    this.#cancelCollect = this.#options.clock.after(COLLECT_PERIOD_MS, () => {
      this.images
        .collect()
        .catch((thrown: unknown) => this.#options.logger.warn({ err: thrown }, "Image garbage collection failed"));
      this.#collectLater();
    });
  }

  #runtimePath(): string | undefined {
    return findTool(this.#options.runtime ?? DEFAULT_RUNTIME);
  }

  #seccompProfile(): string {
    return this.#options.seccompProfile ?? DEFAULT_SECCOMP_PROFILE;
  }
}

function isMachineFolder(value: unknown): value is MachineFolder {
  const { id, dir } = (value ?? {}) as Partial<MachineFolder>;
  return typeof id === "string" && typeof dir === "string";
}
