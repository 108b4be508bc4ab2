/**
 * Engine `cri`: containers by a runtime that speaks CRI v1 (containerd, CRI-O), as a kubelet has them. Either the
 * host's, on the network that CNI gives it, or a containerd of our own on a bridge of ours. The runtime keeps images,
 * logs and exit codes; the supervisor decides.
 *
 * A stop signal of a container's own is sent to its process: containerd 2.2 sends the image's, whatever it is told.
 */
import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import {
  type Capability,
  type Clock,
  type Logger,
  type MachineSpec,
  type ProviderCapacity,
  ProviderError,
  type ReservedCapabilities,
  type ResourceAmounts,
  type RuntimeHandler as MachineRuntime,
  SharedPlaces,
  type Tracing,
} from "../../../../src/provider/kit/index.ts";
import { checkAppArmor, hasAppArmor } from "../../bundle/apparmor.ts";
import { allMachinesPids, checkCgroups } from "../../bundle/cgroup.ts";
import {
  capabilityName,
  CONTAINED_CAPABILITIES,
  type ContainerPolicy,
  requireContained,
} from "../../bundle/container-policy.ts";
import {
  HOST_CAPABILITIES,
  type HostAccess,
  ownsHost,
  requireHostAccess,
  reservedFor,
} from "../../bundle/host-access.ts";
import { checkResolvConf } from "../../bundle/host-resolv.ts";
import { hostCapacity, machinesShare } from "../../bundle/host-reserve.ts";
import type { Engine, HostProblem, MachineHome, Sandbox } from "../../engine.ts";
import { findTool } from "../../host/command.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { unmountBelow } from "../../host/mounts.ts";
import { removeTree } from "../../host/remove-tree.ts";
import type { GcOptions } from "../../images/collector.ts";
import { networkCondition } from "../../network/condition.ts";
import { DEFAULT_HOST_PORTS, requireHostPorts } from "../../network/host-ports.ts";
import { checkIpv6, checkNetwork } from "../../network/check-network.ts";
import type { FrontDoor } from "../../network/front-door.ts";
import { DEFAULT_BRIDGE, HostNetwork, type NetworkOptions, refusedRanges } from "../../network/network.ts";
import { NodeRange } from "../../network/node-range.ts";
import { checkForwarding } from "../../network/forward-policy.ts";
import type { HostVolumes, VolumePlace } from "../../volume-contents.ts";
import { checkLoopVolumes, hasLoopVolumes, LoopVolumes } from "../../volumes/loop-files.ts";
import { CRI_CAPABILITIES, DISK_VOLUME_CAPABILITIES } from "../capabilities.ts";
import { CgroupDriver, type RuntimeHandler } from "./api.gen.js";
import { CriClient, isUnimplemented, runtimeMessage } from "./client.ts";
import { requireDevices } from "./devices.ts";
import { RuntimeContainers } from "./containers.ts";
import type { CriContext } from "./context.ts";
import { CriImages } from "./images.ts";
import type { PullLimits } from "../../images/pull-limits.ts";
import { LABEL_BACKEND, LABEL_MACHINE } from "./labels.ts";
import type { LogLimits } from "./logs.ts";
import { machineGroups } from "./machine-groups.ts";
import { checkMachineUsers, MachineUsers } from "../../bundle/machine-users.ts";
import { OwnContainerd } from "./own-containerd.ts";
import { pluginsLimitBandwidth } from "./network-plugins.ts";
import { PodLogs } from "./pod-logs.ts";
import { openSandbox, recoverSandbox, removeSandbox, removeSandboxes } from "./sandbox.ts";

interface CriEngineOptions {
  /** The backend's state directory. */
  stateDir: string;
  clock: Clock;
  logger: Logger;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  logLimits: LogLimits;
  /** What machines may have together, as the owner of the host says: never more than the host can spare. */
  capacity?: ResourceAmounts | undefined;
  /** What the host keeps for its own programs. */
  systemReserved?: ResourceAmounts | undefined;
  /** Of a runtime that is there already. Absent: a containerd of our own. */
  socket?: string | undefined;
  images?: (PullLimits & { gc?: { [key in keyof GcOptions]?: number | undefined } | undefined }) | undefined;
  /** Of a containerd of our own. */
  network?: Omit<NetworkOptions, "dir"> | undefined;
  /** Where this host has one machine, which has its address. */
  frontDoor?: FrontDoor | undefined;
  /** Ports of this host that the backend itself serves on. */
  reservedPorts?: readonly number[] | undefined;
  /** Privileged containers own this host: off unless said otherwise. */
  allowPrivileged?: boolean | undefined;
  /** Who has this host's network, processes and files instead of their own. Absent: nobody. */
  host?: HostAccess | undefined;
  /** Capabilities that containers may add besides the default ones, while privileged containers are off. */
  allowedCapabilities?: readonly string[] | undefined;
  /** Devices that containers may have, by name, or by the start of names with `*` behind it. */
  cdiDevices?: readonly string[] | undefined;
  /** Of a containerd of the backend's own: types of runtimes by handler, besides runc. */
  runtimes?: Readonly<Record<string, string>> | undefined;
  /** Processes and threads of a machine. */
  pidsLimit?: number | undefined;
}

const DEFAULT_PIDS_LIMIT = 4096;
const DISK_WALKS = 4;
const COLLECT_PERIOD_MS = 5 * 60_000;
const CHECK_MS = 5_000;
/** What the Node is told must not wait for a runtime that is away. */
const ASK_MS = 1_000;
const NETWORK_READY = "NetworkReady";

export class CriEngine implements Engine {
  readonly name = "cri";
  readonly hasCdi = true;
  readonly hasCsi = true;
  readonly images: CriImages;
  readonly volumes = (place: VolumePlace): HostVolumes => new LoopVolumes(place);
  readonly keeper: RuntimeContainers;
  /** containerd's shim. */
  readonly overhead = { machineBytes: 16 * 1024 ** 2, containerBytes: 0 };
  readonly nodeRange: NodeRange | undefined;
  readonly #options: CriEngineOptions;
  readonly #hasAppArmor = hasAppArmor();
  readonly #hasVolumes = hasLoopVolumes();
  readonly #policy: ContainerPolicy;
  readonly #own: OwnContainerd | undefined;
  readonly #client: CriClient;
  readonly #context: CriContext;
  readonly #closed = new AbortController();
  #cancelCollect: (() => void) | undefined;
  /** By the runtime's word: before that, machines are refused what may not be there. */
  #handlers: readonly RuntimeHandler[] = [];
  /** containerd 2.0 and newer, CRI-O 1.32 and newer. */
  #hasGroupsPolicy = false;
  /** Plugins of the host's runtime, where machines are on its network. */
  #pluginsLimit = false;
  /** This is the backend, not one who asks whether there could be one. */
  #isOpen = false;

  constructor(options: CriEngineOptions) {
    const { stateDir, clock, logger, logLimits, socket, network = {}, images } = options;
    this.#options = options;
    this.#policy = {
      allowPrivileged: options.allowPrivileged === true,
      allowedCapabilities: (options.allowedCapabilities ?? CONTAINED_CAPABILITIES).map(capabilityName),
      hasAppArmor: this.#hasAppArmor,
    };
    const { bridge = DEFAULT_BRIDGE } = network;
    const ownNetwork =
      socket === undefined
        ? new HostNetwork({
            dir: join(stateDir, "network"),
            ...network,
            onRange: () => this.#own!.followRange(this.#closed.signal),
          })
        : undefined;
    this.nodeRange = NodeRange.of(network, { stateDir, logger, network: ownNetwork });
    if (socket === undefined)
      this.#own = new OwnContainerd({
        dir: join(stateDir, "cri"),
        clock,
        bridge,
        range: () => ownNetwork?.range.subnet,
        runtimes: options.runtimes,
      });
    const client = new CriClient(this.#own?.socket ?? socket!, clock, options.tracing);
    const backend = machineHash(stateDir);
    this.#client = client;
    this.keeper = new RuntimeContainers({
      client,
      clock,
      logger,
      backend,
      logLimits,
      revive: this.#own && ((signal) => this.#own!.start(signal)),
      exits: this.#own,
    });
    this.images = new CriImages({
      dir: join(stateDir, "cri-images"),
      client,
      clock,
      logger,
      parallelPulls: images?.parallelPulls,
      gc: images?.gc,
      own: this.#own && {
        refusedRanges: refusedRanges(network),
        ...images,
        announce: (url) => this.#own!.pullFrom(url),
      },
      imageDir: () => this.#imageDir(),
    });
    this.#context = {
      clock,
      logger,
      client,
      own: this.#own,
      containers: this.keeper,
      users: new MachineUsers(backend),
      network: ownNetwork,
      frontDoor: options.frontDoor,
      backend,
      groups: machineGroups("cgroupfs", clock, backend),
      podLogs: options.host?.podLogs === undefined ? undefined : new PodLogs(options.host.podLogs, logger),
      pidsLimit: options.pidsLimit ?? DEFAULT_PIDS_LIMIT,
      diskWalks: new SharedPlaces(DISK_WALKS),
    };
  }

  get capabilities(): readonly Capability[] {
    const byDefault = this.#handlers.find(({ name }) => name === "");
    return [
      ...CRI_CAPABILITIES,
      ...(this.#policy.allowPrivileged || this.reserved !== undefined ? (["privileged"] as const) : []),
      ...(this.reserved === undefined ? [] : HOST_CAPABILITIES),
      ...(this.#hasAppArmor ? (["apparmor"] as const) : []),
      ...(this.#hasGroupsPolicy ? (["supplemental_groups_policy"] as const) : []),
      ...(this.#context.network?.limits.capabilities ?? (this.#pluginsLimit ? (["bandwidth"] as const) : [])),
      ...(this.#hasVolumes ? DISK_VOLUME_CAPABILITIES : []),
      ...(byDefault?.features?.userNamespaces === true ? (["user_namespace"] as const) : []),
      ...((this.#options.cdiDevices ?? []).length > 0 ? (["cdi_devices"] as const) : []),
    ];
  }

  get reserved(): ReservedCapabilities | undefined {
    return reservedFor(this.#options.host, this.#policy);
  }

  get runtimeHandlers(): readonly MachineRuntime[] {
    return this.#handlers.map(({ name, features }) => ({
      name,
      user_namespaces: features?.userNamespaces === true,
      recursive_read_only_mounts: features?.recursiveReadOnlyMounts === true,
    }));
  }

  async check(): Promise<HostProblem[]> {
    if (process.platform !== "linux")
      return [
        {
          fatal: true,
          problem: `engine cri needs Linux; this is ${process.platform}`,
          cure: "run the backend on Linux, or use the process engine",
        },
      ];
    const { host, stateDir } = this.#options;
    const surroundings = [
      ...(await checkCgroups()),
      ...(await checkResolvConf()),
      ...checkMachineUsers(),
      ...(host?.podLogs === undefined ? [] : PodLogs.check(host.podLogs, stateDir)),
      ...checkLoopVolumes(),
    ];
    if (this.#own === undefined) return [...(await this.#checkRuntime()), ...surroundings];
    await this.#context.network?.limits.look();
    const forwarding = await checkForwarding(this.#options.network);
    return [
      ...OwnContainerd.check(this.#options.runtimes),
      ...checkNetwork("namespace"),
      ...checkIpv6(this.#options.network),
      ...checkAppArmor(),
      ...surroundings,
      ...forwarding,
    ];
  }

  /** What the host's runtime lacks. */
  async #checkRuntime(): Promise<HostProblem[]> {
    const socket = this.#options.socket!;
    if (!existsSync(socket))
      return [
        {
          fatal: true,
          problem: `there is no container runtime at ${socket}`,
          cure: "start containerd or CRI-O, set engine.socket to its socket, or leave that out for a containerd of the backend's own",
        },
      ];
    const problems: HostProblem[] = [
      {
        fatal: false,
        problem: `the runtime at ${socket} pulls images by itself: neither the addresses that registries lead to nor images' sizes are bounded`,
        cure: "let the host reach only registries that you trust, or leave engine.socket out for a containerd of the backend's own",
      },
    ];
    const within = () => this.#client.within(CHECK_MS, this.#closed.signal);
    try {
      const { runtimeName, runtimeVersion } = await this.#client.runtime.version({}, within());
      const [, major = ""] = /^v?(\d+)\./.exec(runtimeVersion) ?? [];
      if (runtimeName === "containerd" && Number(major) < 2)
        problems.push({
          fatal: true,
          problem: `the runtime at ${socket} is containerd ${runtimeVersion}`,
          cure: "install containerd 2.0 or newer: earlier ones have no events and do not tell a container's user",
        });
      const { status } = await this.#askRuntime(within());
      for (const { type, status: holds, message } of status?.conditions ?? [])
        if (!holds && ["RuntimeReady", NETWORK_READY].includes(type))
          problems.push({
            // A network may be installed by a pod that has the host's.
            fatal: type !== NETWORK_READY,
            problem: `the runtime at ${socket} says that ${type} is false: ${message}`,
            cure:
              type === NETWORK_READY
                ? "install the cluster's network, which may be a DaemonSet; or write a CNI configuration to /etc/cni/net.d and install its plugins (Debian: containernetworking-plugins)"
                : "look at the runtime's own log",
          });
      problems.push(...(await this.#checkCgroupDriver(socket)));
    } catch (thrown) {
      problems.push({
        fatal: true,
        problem: `the runtime at ${socket} does not answer by CRI v1: ${runtimeMessage(thrown)}`,
        cure: "enable its CRI plugin (containerd: take io.containerd.grpc.v1.cri out of disabled_plugins), and restart it",
      });
    }
    return problems;
  }

  /** What it is able to do is kept. */
  async #askRuntime(within: ReturnType<CriClient["within"]>) {
    const told = await this.#client.runtime.status({ verbose: true }, within);
    this.#pluginsLimit = pluginsLimitBandwidth(told.info["cniconfig"]);
    this.#handlers = told.runtimeHandlers;
    this.#hasGroupsPolicy = told.features?.supplementalGroupsPolicy === true;
    return told;
  }

  async #checkCgroupDriver(socket: string): Promise<HostProblem[]> {
    if ((await this.#cgroupDriver()) === "cgroupfs" || findTool("busctl") !== undefined) return [];
    return [
      {
        fatal: true,
        problem: `the runtime at ${socket} has systemd make its control groups, and busctl is not on the PATH`,
        cure: "install the package systemd, or set the runtime's cgroup driver to cgroupfs (containerd: SystemdCgroup = false)",
      },
    ];
  }

  async #cgroupDriver(): Promise<"cgroupfs" | "systemd"> {
    try {
      const within = this.#client.within(CHECK_MS, this.#closed.signal);
      const { linux } = await this.#client.runtime.runtimeConfig({}, within);
      return linux?.cgroupDriver === CgroupDriver.SYSTEMD ? "systemd" : "cgroupfs";
    } catch (thrown) {
      if (isUnimplemented(thrown)) return "cgroupfs";
      throw thrown;
    }
  }

  validate(spec: MachineSpec): void {
    const handler = this.#handlers.find(({ name }) => name === (spec.runtime_handler ?? ""));
    if (spec.security?.host_users === false && handler?.features?.userNamespaces !== true)
      throw new ProviderError("unsupported", `the runtime ${spec.runtime_handler} has no user namespaces`, {
        field: "security.host_users",
      });
    const { network, reservedPorts, host } = this.#options;
    requireHostAccess(spec, host);
    // By the field that only clients with the verb for it may set: the namespace is any client's word.
    requireContained(spec, { ...this.#policy, mayBePrivileged: ownsHost(spec, host) });
    requireDevices(spec, this.#options.cdiDevices ?? []);
    const { hostPorts: allowed = DEFAULT_HOST_PORTS } = network ?? {};
    // What another plugin's network has, it says itself.
    const hasIpv6 = this.#context.network?.range.hasIpv6 ?? true;
    requireHostPorts(spec, { allowed, reserved: reservedPorts ?? [], hasIpv6 });
  }

  async sweep(known: ReadonlySet<string>): Promise<void> {
    const { network, users, clock, backend } = this.#context;
    await network?.claim();
    network?.lookAfter(this.#options.clock, this.#options.logger);
    this.#isOpen = true;
    await network?.ensure();
    await this.#own?.start(this.#closed.signal);
    // A former backend may have been killed before it could tell containerd.
    await this.#own?.followRange(this.#closed.signal);
    await this.#askRuntime(this.#client.within());
    const groups = machineGroups(await this.#cgroupDriver(), clock, backend);
    this.#context.groups = groups;
    this.keeper.open();
    this.#collectLater();
    const filter = { labelSelector: { [LABEL_BACKEND]: this.#context.backend } };
    const { items } = await this.#client.runtime.listPodSandbox({ filter }, this.#client.within());
    for (const { id, labels } of items) {
      const machine = labels[LABEL_MACHINE] ?? "";
      if (known.has(machine)) continue;
      await removeSandbox(this.#context, id);
      await groups.remove(machine);
    }
    await network?.sweep(known);
    await users.sweep(known);
    const { cpu_millis, memory_bytes } = machinesShare(this.#options.capacity, undefined, this.#options.systemReserved);
    await groups.limitAll({ memory_bytes, pids: allMachinesPids(), cpuShareMillis: cpu_millis });
  }

  async open(home: MachineHome, signal: AbortSignal): Promise<Sandbox> {
    return await openSandbox(this.#context, home, signal);
  }

  async recover(home: MachineHome): Promise<Sandbox | undefined> {
    return await recoverSandbox(this.#context, home);
  }

  async destroy({ id, dir, spec }: MachineHome, { keepVolumes = false } = {}): Promise<void> {
    const { network, groups, users } = this.#context;
    await removeSandboxes(this.#context, id, async () => await network?.detach(id));
    await groups.remove(id);
    await users.release(id);
    this.keeper.forgetEnds(id);
    await unmountBelow(dir);
    if (!keepVolumes) await this.#context.podLogs?.remove(spec);
    if (!keepVolumes) return await removeTree(dir);
    for (const name of await readdir(dir).catch(() => [])) if (name !== "volumes") await removeTree(join(dir, name));
  }

  async capacity(): Promise<ProviderCapacity> {
    return hostCapacity(await this.images.diskSize(), this.#options);
  }

  /**
   * Whether there is a network for machines: for a host's own runtime a DaemonSet may install it, after the node is
   * there. Until then the control plane keeps pods away that want an address of their own.
   */
  async conditions() {
    if (this.#own !== undefined) return [networkCondition(undefined)];
    try {
      const { status } = await this.#askRuntime(this.#client.within(ASK_MS, this.#closed.signal));
      const network = status?.conditions.find(({ type }) => type === NETWORK_READY);
      return [networkCondition(network?.status === false ? network : undefined)];
    } catch {
      // A runtime that does not answer says nothing of its network: the Node keeps what it has.
      return [];
    }
  }

  async memory(): Promise<{ usedBytes: number; limitBytes: number } | undefined> {
    return await this.#context.groups.all.memory();
  }

  async close(): Promise<void> {
    const { network, groups } = this.#context;
    this.#cancelCollect?.();
    this.keeper.close();
    await this.images.close();
    const isUnused = this.#isOpen && (await this.#isUnused());
    this.#client.close();
    this.#closed.abort(new Error("the backend is stopping"));
    if (!isUnused) {
      network?.close();
      return;
    }
    await groups.removeAll().catch(() => undefined);
    await this.#own?.retire();
    await network?.remove();
  }

  /** True when the runtime certainly has nothing of this backend any more. */
  async #isUnused(): Promise<boolean> {
    const filter = { labelSelector: { [LABEL_BACKEND]: this.#context.backend } };
    try {
      const { items } = await this.#client.runtime.listPodSandbox({ filter }, this.#client.within(CHECK_MS));
      return items.length === 0;
    } catch {
      return false;
    }
  }

  /** Where the runtime has its images. */
  async #imageDir(): Promise<string> {
    const { imageFilesystems } = await this.#client.images.imageFsInfo({}, this.#client.within(CHECK_MS));
    return imageFilesystems[0]?.fsId?.mountpoint ?? this.#options.stateDir;
  }

  #collectLater(): void {
    const { clock, logger } = this.#options;
    this.#cancelCollect = clock.after(COLLECT_PERIOD_MS, () => {
      this.images.collect().catch((thrown: unknown) => logger.warn({ err: thrown }, "Image garbage collection failed"));
      this.#own?.trimLog().catch((thrown: unknown) => logger.warn({ err: thrown }, "Cannot cut containerd's log"));
      this.#collectLater();
    });
  }
}
