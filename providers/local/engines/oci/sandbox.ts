/**
 * One machine of the engine oci. Its folder:
 *
 *     sandbox.json        what was made, to find it again
 *     ns/ipc, ns/uts      the namespaces, held by bind mounts: no process need live for them
 *     ns/user             the machine's users, where they are not the host's, held in the same way
 *     ns/pid              the shared process namespace, where there is one, held in the same way
 *     shm/                /dev/shm of all containers, a tmpfs
 *     etc/                hosts, hostname, resolv.conf, and a termination message per container: a small tmpfs, because
 *                         containers write to them, and no limit of storage is measured there
 *     volumes/NAME/       empty_dirs
 *     pause/              bundle of the first process of a shared process namespace
 *     containers/ID/      bundle of a container instance: config.json, rootfs (overlay), upper, work; where the
 *                         machine has users of its own, lower (the image, mapped), and rootfs is where they can get
 *
 * Its folder for what has secrets in it:
 *
 *     files/NAME/         files volumes
 *     configs/ID.json     what config.json of a bundle leads to
 */
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { chown, mkdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { totalmem } from "node:os";
import { dirname, join } from "node:path";
import type { Duplex } from "node:stream";
import {
  type ContainerResources,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  tenantOf,
  type Volume,
} from "../../../../src/provider/kit/index.ts";
import {
  ContainerError,
  type ContainerConclusion,
  type ContainerLaunch,
  type ContainerRef,
  type LaunchPlan,
  type MachineHome,
  type Sandbox,
  type SandboxInodes,
  type SandboxLoss,
  type SandboxStats,
  type ShimExit,
} from "../../engine.ts";
import {
  applyFiles,
  growHostVolume,
  makeVolumes,
  readVolumeFile,
  volumeInodes,
  volumeStats,
} from "../../bundle/host-volumes.ts";
import { dialHost, dialTcp } from "../../host/dial.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { mountOverlay, mountTmpfs, unmountBelow } from "../../host/mounts.ts";
import { removeTree } from "../../host/remove-tree.ts";
import { TreeMeter } from "../../host/tree-use.ts";
import { containerPorts } from "../../network/host-ports.ts";
import { LoopbackRelay } from "../../network/loopback-relay.ts";
import type { Attachment } from "../../network/network.ts";
import { allProcesses, isAlive, processArguments } from "../../host/proc.ts";
import { spawnStreams } from "../../shim/spawn.ts";
import { profileOf } from "../../bundle/apparmor.ts";
import { bind, commandEnv, effectiveMounts, ociConfig, ociResources } from "../../bundle/bundle.ts";
import { deviceNodes } from "../../bundle/device-nodes.ts";
import { deviceEnv } from "../../devices.ts";
import { ownCapabilities } from "../../bundle/own-capabilities.ts";
import { volumeDevices } from "../../bundle/host-volumes.ts";
import { Cgroup, cgroupVersion } from "../../bundle/cgroup.ts";
import { kernelHostname } from "../../bundle/host-files.ts";
import { MACHINE_USERS } from "../../bundle/machine-users.ts";
import { mountMapped } from "../../bundle/mapped-mounts.ts";
import { ownLimits, resizeGroup } from "../../bundle/machine-resources.ts";
import type { OciContext } from "./context.ts";
import { makeEtc, readMessage, removeMessage, writeHosts } from "../../bundle/etc.ts";
import {
  heldNamespaces,
  holdPause,
  holdProcesses,
  isNamespace,
  makeNamespaces,
  type PauseProcess,
  startPause,
} from "./namespaces.ts";
import { readPid } from "./runtime.ts";
import { makeRoot, rootsOf } from "./user-namespace.ts";
import { seccompProfile } from "../../bundle/seccomp.ts";
import { containerUser } from "../../bundle/users.ts";
import { containerMounts } from "./mounts.ts";

interface SandboxRecord {
  /** Absent: it is on the host's network. */
  attachment?: Attachment | undefined;
  hostname: string;
  pause?: PauseProcess | undefined;
  /** What the machine's root is on this host, when it is not root: the first of its users. */
  users?: number | undefined;
}

/** containerd's size of a sandbox's /dev/shm. */
const SHM_BYTES = 64 * 1024 * 1024;
const LOSS_POLL_MS = 1_000;
/** containerd's code for a container that could not be started. */
const START_ERROR_EXIT = 128;
/** Containers may use low ports and ping without capabilities, as under containerd. */
const DEFAULT_SYSCTLS = [
  { name: "net.ipv4.ip_unprivileged_port_start", value: "0" },
  { name: "net.ipv4.ping_group_range", value: "0 2147483647" },
];
/** Where there are no more groups than these. */
const MACHINE_SYSCTLS = [DEFAULT_SYSCTLS[0]!, { name: "net.ipv4.ping_group_range", value: `0 ${MACHINE_USERS - 1}` }];

export async function openSandbox(context: OciContext, home: MachineHome, signal: AbortSignal): Promise<OciSandbox> {
  const { spec, dir } = home;
  for (const folder of ["ns", "shm", "etc", "volumes", "containers"])
    await mkdir(join(dir, folder), { recursive: true, mode: 0o755 });
  const limits = ownLimits(spec.resources);
  // Each container has a limit of its own as well, but there may be many.
  const group = new Cgroup(join(context.cgroupRoot, machineHash(home.id)));
  await group.limit({ ...limits, pids: context.pidsLimit });
  const hostname = kernelHostname(spec, home.id);
  const users = spec.security?.host_users === false ? await context.users.take(home.id) : undefined;
  const attachment = await makeNamespaces(context, home, { hostname, users, signal });
  if (attachment !== undefined) {
    await context.network.limits.hold(home.id, spec.bandwidth);
    await context.network.openHostPorts(home.id, containerPorts(spec));
  }
  await mountTmpfs(join(dir, "shm"), { sizeBytes: SHM_BYTES, mode: "1777" });
  const shown = await shownAs(context, attachment, signal);
  await makeEtc(join(dir, "etc"), spec, { hostname, addresses: shown.length > 0 ? shown : undefined });
  if (attachment === undefined) await writeHosts(join(dir, "etc"), spec, []);
  await makeVolumes(home);

  signal.throwIfAborted();
  const pause =
    spec.security?.share_process_namespace === true
      ? await startPause(context, home, { attachment, users })
      : undefined;
  const record: SandboxRecord = { attachment, hostname, pause, users };
  await writeFileAtomic(join(dir, "sandbox.json"), JSON.stringify(record));
  return new OciSandbox(context, home, record, shown);
}

/** What the machine is told, and others are, as its addresses. */
async function shownAs(
  { frontDoor }: OciContext,
  attachment: Attachment | undefined,
  signal?: AbortSignal,
): Promise<readonly string[]> {
  if (attachment === undefined) return [];
  if (frontDoor === undefined) return [attachment.address, attachment.ipv6?.address ?? []].flat();
  return [await frontDoor.lead({ address: attachment.address, netns: attachment.netns! }, signal)];
}

export async function recoverSandbox(context: OciContext, home: MachineHome): Promise<OciSandbox | undefined> {
  const record = context.torn.readJson(join(home.dir, "sandbox.json"), isSandboxRecord);
  if (record === undefined) return undefined;
  // After a boot of the host the files are there, but nothing that they describe.
  const isOnBridge = record.attachment !== undefined;
  if (isOnBridge && (await context.network.find(home.id)) === undefined) return undefined;
  if (!(await isNamespace(join(home.dir, "ns/uts")))) return undefined;
  if (record.pause !== undefined) {
    const { pid, startTime } = record.pause;
    if (!isAlive(pid, startTime)) return undefined;
    // Earlier versions did not hold it.
    if (!(await isNamespace(join(home.dir, "ns/pid"))) && !(await holdPause(home.dir, record.pause))) return undefined;
  }
  if (record.users !== undefined) await context.users.hold(home.id, record.users);
  if (isOnBridge) {
    await context.network.ensure();
    await context.network.limits.hold(home.id, home.spec.bandwidth);
    // They are gone when another program has flushed this host's rules meanwhile.
    await context.network
      .openHostPorts(home.id, containerPorts(home.spec))
      .catch((thrown: unknown) =>
        context.logger.warn({ machine: home.id, err: thrown }, "Cannot open the machine's host ports again"),
      );
  }
  return new OciSandbox(context, home, record, await shownAs(context, record.attachment));
}

function isSandboxRecord(value: unknown): value is SandboxRecord {
  const { attachment, hostname } = (value ?? {}) as Partial<SandboxRecord>;
  return (attachment === undefined || typeof attachment.address === "string") && typeof hostname === "string";
}

export class OciSandbox implements Sandbox {
  readonly addresses: readonly string[];
  readonly lost: Promise<SandboxLoss>;
  readonly #context: OciContext;
  readonly #home: MachineHome;
  readonly #record: SandboxRecord;
  /** Absent on the host's network. */
  readonly #relay: LoopbackRelay | undefined;
  readonly #resolveLost: (loss: SandboxLoss) => void;
  readonly #meter: TreeMeter;
  #cancelWatch: (() => void) | undefined;

  constructor(context: OciContext, home: MachineHome, record: SandboxRecord, shown: readonly string[]) {
    this.#context = context;
    this.#home = home;
    this.#record = record;
    const { attachment } = record;
    this.addresses = shown;
    this.#relay =
      attachment &&
      new LoopbackRelay({ netns: attachment.netns!, socketPath: home.socketPath("relay"), clock: context.clock });
    this.#meter = new TreeMeter(context.clock, context.diskWalks, tenantOf(home.spec.labels));
    const { promise, resolve } = Promise.withResolvers<SandboxLoss>();
    this.lost = promise;
    this.#resolveLost = resolve;
    this.#watchPause();
  }

  async launch(launch: ContainerLaunch): Promise<LaunchPlan> {
    const { spec, image } = launch;
    if (image === undefined)
      throw new ContainerError("CreateContainerError", `container ${spec.name}: there is no image`);
    const user = containerUser(this.#home, spec, { user: image.config.user, rootfs: image.location });
    const bundle = this.#bundle(launch);
    for (const folder of ["rootfs", "upper", "work"])
      await mkdir(join(bundle, folder), { recursive: true, mode: 0o755 });
    const hasUsers = this.#record.users !== undefined;
    const rootfs = hasUsers ? await makeRoot(this.#home.dir, launch.id) : join(bundle, "rootfs");
    const grantable = ownCapabilities();
    try {
      const volumes = deviceNodes(spec.name, await volumeDevices(this.#home, spec));
      const devices = [
        ...deviceNodes(spec.name, launch.devices?.nodes ?? []),
        // Of the user that the container runs as: they are theirs.
        ...volumes.map((node) => ({ ...node, fileMode: 0o660, uid: user.uid, gid: user.gid })),
      ];
      const config = ociConfig({
        // The container's own word is the last one.
        spec: { ...spec, env: [...deviceEnv(launch.devices), ...(spec.env ?? [])] },
        image: image.config,
        user,
        hostname: this.#record.hostname,
        rootfs,
        namespaces: [
          ...heldNamespaces(this.#home, this.#record.attachment, hasUsers),
          { type: "pid", ...(await this.#joinedProcesses(launch, bundle)) },
        ],
        mounts: effectiveMounts([
          ...(launch.devices?.mounts ?? []).map(({ path, hostPath, readOnly }) => bind(hostPath, path, readOnly)),
          // A runtime cannot make nodes in a user namespace.
          ...(hasUsers ? devices : []).map(({ path, hostPath }) => bind(hostPath, path, false)),
          ...(await containerMounts(this.#home, launch, { bundle, isMapped: hasUsers })),
        ]),
        devices: { nodes: devices, areBound: hasUsers },
        cgroupsPath: this.#cgroupPath(launch),
        cgroupVersion: cgroupVersion(),
        sysctls: [...this.#defaultSysctls, ...(this.#home.spec.security?.sysctls ?? [])],
        seccomp: (capabilities) => seccompProfile(this.#context.seccomp(), capabilities, process.arch),
        apparmorProfile: await profileOf(spec, await this.#context.apparmor.get()),
        pidsLimit: this.#context.pidsLimit,
        grantable,
        machine: {
          spec: this.#home.spec,
          memoryBytes: totalmem(),
          // Without this right a process can only make itself more likely to be killed.
          lowestOomScoreAdj: grantable.includes("CAP_SYS_RESOURCE") ? -1000 : ownOomScoreAdj(),
        },
      });
      await mountOverlay(rootfs, {
        lower: await this.#lower(image.location, bundle),
        upper: join(bundle, "upper"),
        work: join(bundle, "work"),
      });
      await mkdir(dirname(this.#config(launch)), { recursive: true, mode: 0o700 });
      await writeFileAtomic(this.#config(launch), JSON.stringify(config), 0o600);
      await symlink(this.#config(launch), join(bundle, "config.json"));
    } catch (thrown) {
      await this.#removeBundle(launch);
      throw thrown;
    }
    const pidFile = join(bundle, "pid");
    return {
      argv: this.#context.runtime.runCommand(launch.id, bundle, pidFile, join(bundle, "runtime.log")),
      env: { PATH: process.env["PATH"] ?? "" },
      cwd: "/",
      pidFile,
      user: { uid: user.uid, gid: user.gid, supplemental_groups: user.supplementalGroups },
    };
  }

  /** The image's files as they are the machine's own; its layer on top of them is made the machine's. */
  async #lower(image: string, bundle: string): Promise<string> {
    const { users } = this.#record;
    if (users === undefined) return image;
    const lower = join(bundle, "lower");
    await mkdir(lower);
    await mountMapped(this.#context.mapper, { source: image, target: lower, users: join(this.#home.dir, "ns/user") });
    await chown(join(bundle, "upper"), users, users);
    return lower;
  }

  get #defaultSysctls(): typeof DEFAULT_SYSCTLS {
    const { attachment, users } = this.#record;
    // They are of a network.
    if (attachment === undefined) return [];
    return users === undefined ? DEFAULT_SYSCTLS : MACHINE_SYSCTLS;
  }

  /** Whose process namespace it joins, held in its bundle; without one it gets its own. */
  async #joinedProcesses({ name, target }: ContainerLaunch, bundle: string): Promise<{ path?: string }> {
    // Joined, and not left out: only then does the runtime end all of a container with its first process.
    if (this.#home.spec.host?.pid === true) return { path: "/proc/self/ns/pid" };
    if (this.#record.pause !== undefined) return { path: join(this.#home.dir, "ns/pid") };
    if (target?.pid === undefined) return {};
    const { pid } = target;
    const path = join(bundle, "processes");
    const isTheirs = async () => (await this.#cgroup(target).processes()).includes(pid);
    if (!(await holdProcesses(pid, isTheirs, path)))
      throw new ContainerError(
        "CreateContainerError",
        `container ${name}: container ${target.name}, whose processes it is to see, has ended`,
      );
    return { path };
  }

  async signal(container: ContainerRef, signal: number): Promise<void> {
    const pid = await readPid(join(this.#bundle(container), "pid"));
    // The pid may have gone to another process since: the control group tells.
    if (pid === undefined || !(await this.#cgroup(container).processes()).includes(pid)) return;
    try {
      process.kill(pid, signal);
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== "ESRCH") throw thrown;
    }
  }

  async kill(container: ContainerRef): Promise<void> {
    const bundle = this.#bundle(container);
    // A runtime that has not made the container yet would make it after we found nothing to kill.
    if (existsSync(bundle) && (await readPid(join(bundle, "pid"))) === undefined) await killRuntime(bundle);
    await this.#cgroup(container).kill(this.#context.clock);
  }

  async conclude(
    container: ContainerRef,
    exit: ShimExit,
    keep: (conclusion: ContainerConclusion) => void,
  ): Promise<ContainerConclusion> {
    const conclusion = await this.#conclusion(container, exit);
    keep(conclusion);
    // Among the host's processes they do not end with their first one.
    if (this.#home.spec.host?.pid === true) await this.#cgroup(container).kill(this.#context.clock);
    await this.#context.runtime.delete(container.id);
    await this.#cgroup(container).remove();
    await this.#removeBundle(container);
    this.#meter.forget(this.#upper(container));
    return conclusion;
  }

  async #conclusion(container: ContainerRef, exit: ShimExit): Promise<ContainerConclusion> {
    // The code is the runtime's own then, not the container's.
    if (exit.startError !== undefined) return { exitCode: START_ERROR_EXIT, startError: exit.startError };
    const oomKilled = (await this.#cgroup(container).oomKills()) > 0;
    // Of a long message kubelet keeps the end.
    const terminationMessage = readMessage(this.#etc, container);
    return { ...(oomKilled ? { oomKilled } : {}), ...(terminationMessage === "" ? {} : { terminationMessage }) };
  }

  async exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const bundle = this.#bundle(container);
    const config = JSON.parse(await readFile(join(bundle, "config.json"), "utf8")) as { process: { env: string[] } };
    const name = `exec-${randomBytes(6).toString("hex")}`;
    const processFile = `${this.#config(container)}.${name}`;
    const [pidFile, log] = [join(bundle, `${name}.pid`), join(bundle, `${name}.log`)];
    const files = [processFile, pidFile, log];
    const env = commandEnv(config.process.env, options.tty);
    await writeFile(processFile, JSON.stringify({ ...config.process, args: command, env, terminal: options.tty }), {
      mode: 0o600,
    });
    const argv = this.#context.runtime.execCommand(container.id, processFile, pidFile, log);
    const streams = await spawnStreams(
      { argv, env: { PATH: process.env["PATH"] ?? "", TERM: "xterm" }, cwd: "/" },
      options,
    );
    const over = (async () => {
      try {
        const result = await streams.exit;
        const failure = await readFileIfExists(log);
        if (failure !== undefined && failure.includes("exec failed")) throw execError(failure, command);
        return result;
      } finally {
        await this.#killExec(container, pidFile);
        for (const file of files) await rm(file, { force: true });
      }
    })();
    over.catch(() => undefined);
    return {
      stdin: streams.stdin,
      stdout: streams.stdout,
      stderr: streams.stderr,
      resize: (columns, rows) => streams.resize(columns, rows),
      exit: over,
      close: () => streams.close(),
    };
  }

  async dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
    if (this.#relay === undefined) return await dialHost(port, target, signal);
    if (target === "loopback") return await this.#relay.dial(port, signal);
    return await dialTcp(this.#record.attachment!.address, port, signal);
  }

  async stats(containers: readonly ContainerRef[]): Promise<SandboxStats> {
    const network = await this.#context.network.counters(this.#home.id);
    const samples = await Promise.all(
      containers.map(async (container) => {
        const group = this.#cgroup(container);
        const usage = await group.usage();
        if (usage === undefined) return undefined;
        const pressure = await group.pressure();
        return {
          ...(pressure && { pressure }),
          name: container.name,
          cpu_usage_ns_total: usage.cpuNs,
          memory_working_set_bytes: usage.workingSet,
          memory_usage_bytes: usage.memoryUsage,
          memory_rss_bytes: usage.rss,
          fs_used_bytes: await this.#meter.bytes(this.#upper(container)),
        };
      }),
    );
    const pressure = await this.#group.pressure();
    return {
      containers: samples.filter((sample) => sample !== undefined),
      ...(pressure && { pressure }),
      volumes: await volumeStats(this.#home, this.#meter),
      ...(network === undefined ? {} : { network }),
    };
  }

  async inodes(containers: readonly ContainerRef[]): Promise<SandboxInodes> {
    const count = async (name: string, path: string) => [name, await this.#meter.inodes(path)] as const;
    const layers = containers.map((container) => count(container.name, this.#upper(container)));
    return { containers: new Map(await Promise.all(layers)), volumes: await volumeInodes(this.#home, this.#meter) };
  }

  async processes(): Promise<number> {
    return (await this.#group.processes()).length;
  }

  async readVolumeFile(volume: string, path: string, maxBytes: number): Promise<Buffer> {
    return readVolumeFile(this.#home, volume, path, maxBytes);
  }

  async applyFiles(volume: Extract<Volume, { type: "files" }>): Promise<void> {
    applyFiles(this.#home, volume);
  }

  async growHostVolume(name: string): Promise<void> {
    await growHostVolume(this.#home, name);
  }

  async resize(container: ContainerRef, resources: ContainerResources): Promise<void> {
    const wanted = ociResources(resources, this.#home.spec.resources, cgroupVersion());
    const limit = resources.limits?.memory_bytes;
    const usage = await this.#cgroup(container).usage();
    if (limit !== undefined && usage !== undefined && usage.workingSet > limit)
      throw new ProviderError(
        "conflict",
        `memory limit ${limit} is below what the container uses now (${usage.workingSet})`,
        { field: "resources.limits.memory_bytes" },
      );
    await this.#context.runtime.update(container.id, {
      ...wanted,
      cpu: { quota: -1, ...wanted.cpu },
      memory: wanted.memory ?? { limit: -1 },
    });
  }

  async resizeMachine(change: Parameters<typeof resizeGroup>[1], containers: () => Promise<void>): Promise<void> {
    await resizeGroup(this.#group, change, containers);
  }

  async close(): Promise<void> {
    this.#cancelWatch?.();
    this.#relay?.close();
  }

  /** The first process of the shared process namespace takes all containers with it when it dies. */
  #watchPause(): void {
    const { pause } = this.#record;
    if (pause === undefined) return;
    this.#cancelWatch = this.#context.clock.after(LOSS_POLL_MS, () => {
      if (isAlive(pause.pid, pause.startTime)) this.#watchPause();
      else
        this.#resolveLost({
          reason: "SandboxLost",
          message: "the first process of the shared process namespace has ended",
        });
    });
  }

  /** The runtime that was killed leaves the command running in the container. */
  async #killExec(container: ContainerRef, pidFile: string): Promise<void> {
    const pid = await readPid(pidFile);
    if (pid === undefined || !(await this.#cgroup(container).processes()).includes(pid)) return;
    for (const target of [-pid, pid]) {
      try {
        process.kill(target, "SIGKILL");
      } catch {
        // It ended by itself, or leads no process group.
      }
    }
  }

  get #etc(): string {
    return join(this.#home.dir, "etc");
  }

  #config({ id }: Pick<ContainerRef, "id">): string {
    return join(this.#home.secretDir, "configs", `${id}.json`);
  }

  #upper(container: Pick<ContainerRef, "id">): string {
    return join(this.#bundle(container), "upper");
  }

  #bundle(container: Pick<ContainerRef, "id">): string {
    return join(this.#home.dir, "containers", container.id);
  }

  #cgroupPath(container: Pick<ContainerRef, "id">): string {
    return join(this.#context.cgroupRoot, machineHash(this.#home.id), container.id);
  }

  /** The machine's. */
  get #group(): Cgroup {
    return new Cgroup(join(this.#context.cgroupRoot, machineHash(this.#home.id)));
  }

  #cgroup(container: Pick<ContainerRef, "id">): Cgroup {
    return new Cgroup(this.#cgroupPath(container));
  }

  async #removeBundle(container: Pick<ContainerRef, "id">): Promise<void> {
    const bundle = this.#bundle(container);
    if (this.#record.users !== undefined) {
      const root = join(rootsOf(this.#home.dir), container.id);
      await unmountBelow(root);
      await removeTree(root);
    }
    await unmountBelow(bundle);
    await removeTree(bundle);
    await rm(this.#config(container), { force: true });
    await removeMessage(this.#etc, container);
  }
}

function ownOomScoreAdj(): number {
  return Number(readFileSync("/proc/self/oom_score_adj", "latin1"));
}

/** What the runtime says when the command could not be started, as containerd passes it on. */
function execError(log: string, command: readonly string[]): ProviderError {
  const text =
    /exec failed: (.*?)"?$/m.exec(log.trim().split("\n").at(-1)!)?.[1]?.replaceAll('\\"', '"') ?? log.slice(-500);
  const known = /executable file not found|no such file|permission denied/i.test(text);
  return new ProviderError(known ? "invalid" : "unavailable", `cannot run ${JSON.stringify(command[0])}: ${text}`, {
    field: "command",
  });
}

/** Ends runtime processes that work on this bundle. */
async function killRuntime(bundle: string): Promise<void> {
  for (const { pid } of await allProcesses()) {
    const args = ((await processArguments(pid)) ?? "").split("\0");
    if (args.includes("--bundle") && args.includes(bundle)) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // gone
      }
    }
  }
}
