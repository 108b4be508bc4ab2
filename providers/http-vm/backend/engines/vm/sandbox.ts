/**
 * One machine of the engine vm: a QEMU process, its tap, and its disks. Its folder:
 *
 *     vm.json       what was made, to find it again
 *     qemu.log      what QEMU complains of
 *     known_hosts   the guest's key
 *     scratch.img   the machine's own disk: containers' files and empty_dirs
 *     files/NAME/   files volumes as they are in the guest
 *     run/ID        pid files of containers that have started
 */
import { randomBytes } from "node:crypto";
import { readlinkSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { basename, dirname, join } from "node:path";
import { Duplex } from "node:stream";
import { spawn } from "node:child_process";
import {
  ProviderError,
  type Mount,
  type ProcessStreams,
  type StreamOptions,
  type Volume,
} from "../../../../../src/provider/kit/index.ts";
import {
  ContainerError,
  type ContainerConclusion,
  type ContainerLaunch,
  type ContainerRef,
  type LaunchPlan,
  type MachineHome,
  type Sandbox,
  type SandboxLoss,
  type SandboxStats,
  type ShimExit,
} from "../../engine.ts";
import { writeFilesVolume } from "../../files.ts";
import { formatOwner } from "../../record.ts";
import { findTool, run } from "../../host/command.ts";
import { readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import type { Attachment } from "../../network/network.ts";
import { isAlive } from "../../proc.ts";
import { spawnStreams } from "../../spawn.ts";
import { bind, ociConfig, type OciMount } from "../oci/bundle.ts";
import { kernelHostname } from "../oci/host-files.ts";
import { readTextInRoot } from "../oci/root-path.ts";
import { seccompProfile } from "../oci/seccomp.ts";
import { resolveUser } from "../oci/users.ts";
import type { VmContext } from "./engine.ts";
import { giveIdentity, identityScript, makeHostKey } from "./identity.ts";
import { imageDisk } from "./image-disk.ts";
import { attachDisk, killVm, type VmProcess, type VmSize } from "./qemu.ts";
import { GuestShell, quote, SSH_PORT } from "./ssh.ts";

interface VmRecord {
  attachment: Attachment;
  vm: VmProcess;
}

const CONTAINERS = "/scratch/containers";
const VOLUMES = "/scratch/volumes";
const GROUPS = "/pod";
const LOSS_POLL_MS = 500;
const START_ERROR_EXIT = 128;
const MEMORY_CLASSES_MIB = [
  192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 32_768, 65_536,
];
/** Kernel, initramfs and control inside the guest. */
const GUEST_OVERHEAD_MIB = 96;
const SCRATCH_SERIAL = "scratch";

/** Memory and processors of a machine's VM: what its containers may use, and the guest's own share. */
export function vmSize(spec: MachineHome["spec"], defaults: { memoryMib: number; maxCpus: number }): VmSize {
  const containers = spec.containers.map(({ resources }) => ({ ...resources?.requests, ...resources?.limits }));
  const whole = { ...spec.resources?.requests, ...spec.resources?.limits };
  const sum = (key: "memory_bytes" | "cpu_millis") =>
    Math.max(
      whole[key] ?? 0,
      containers.reduce((total, amounts) => total + (amounts[key] ?? 0), 0),
    );
  const asked = Math.ceil(sum("memory_bytes") / (1 << 20));
  // A container without a limit may use what is there: it gets the default on top of what others asked for.
  const unlimited = containers.some((amounts) => amounts.memory_bytes === undefined);
  const wanted = GUEST_OVERHEAD_MIB + asked + (unlimited ? defaults.memoryMib : 0);
  const memoryMib = MEMORY_CLASSES_MIB.find((size) => size >= wanted) ?? Math.ceil(wanted / 1024) * 1024;
  return { memoryMib, cpus: Math.max(1, Math.min(defaults.maxCpus, Math.ceil(sum("cpu_millis") / 1000))) };
}

export function vmPlace(home: MachineHome, tap: string | undefined) {
  return { qmp: home.socketPath("qmp"), ctl: home.socketPath("ctl"), tap, log: join(home.dir, "qemu.log") };
}

export async function openSandbox(context: VmContext, home: MachineHome, signal: AbortSignal): Promise<VmSandbox> {
  const { spec, dir } = home;
  for (const folder of ["files", "run"]) await mkdir(join(dir, folder), { recursive: true, mode: 0o700 });
  const size = vmSize(spec, context.sizing);
  const [attachment] = await Promise.all([
    context.network.attachTap(home.id),
    makeScratch(join(dir, "scratch.img"), context.scratchBytes),
  ]);
  const ports = [...spec.containers, ...(spec.init_containers ?? [])].flatMap((container) => container.ports ?? []);
  await context.network.openHostPorts(home.id, ports);
  const limited = AbortSignal.any([signal, AbortSignal.timeout(context.bootTimeoutMs)]);
  const place = vmPlace(home, attachment.link);
  const hostKey = makeHostKey();
  await writeFile(join(dir, "known_hosts"), `[${attachment.address}]:${SSH_PORT} ${hostKey.public}\n`, { mode: 0o600 });
  const vm = await context.boots.add(async () => {
    limited.throwIfAborted();
    const cloned = context.clones;
    const started = cloned ? await context.qemu.clone(size, place, limited) : await context.qemu.boot(size, place);
    const script = identityScript({
      machineId: home.id,
      spec,
      attachment,
      authorizedKey: context.publicKey,
      hostKey,
      nowMs: context.clock.now(),
      hostResolvConf: (await readFileIfExists("/etc/resolv.conf")) ?? "",
      prepare: prepareCommands(spec),
    });
    await attachDisk(place.qmp, { id: SCRATCH_SERIAL, file: join(dir, "scratch.img"), readOnly: false }, limited);
    await giveIdentity(place.ctl, script, limited, { booted: cloned });
    return started;
  });
  const sandbox = new VmSandbox(context, home, { attachment, vm });
  await writeFileAtomic(join(dir, "vm.json"), JSON.stringify({ attachment, vm } satisfies VmRecord));
  // Under way while images are pulled; whoever needs it first waits for it, and sees why when it fails.
  sandbox.shell.connect().catch(() => undefined);
  return sandbox;
}

function prepareCommands(spec: MachineHome["spec"]): string[][] {
  const group = spec.security?.fs_group;
  const emptyDirs = (spec.volumes ?? []).filter((volume) => volume.type === "empty_dir");
  return [
    ["scratch", SCRATCH_SERIAL],
    ...emptyDirs.map(({ name, medium, size_bytes }) => [
      "volume",
      name,
      medium,
      String(size_bytes ?? 0),
      group === undefined ? "-" : String(group),
    ]),
  ];
}

export async function recoverSandbox(context: VmContext, home: MachineHome): Promise<VmSandbox | undefined> {
  const text = await readFileIfExists(join(home.dir, "vm.json"));
  if (text === undefined) return undefined;
  const record = JSON.parse(text) as VmRecord;
  if (!isAlive(record.vm.pid, record.vm.startTime)) return undefined;
  await context.network.ensure();
  return new VmSandbox(context, home, record);
}

/** Sparse: it takes what is written to it. */
async function makeScratch(file: string, bytes: number): Promise<void> {
  rmSync(file, { force: true });
  writeFileSync(file, "", { mode: 0o600 });
  truncateSync(file, bytes);
  await run(findTool("mke2fs")!, [
    "-q",
    "-F",
    "-t",
    "ext4",
    "-O",
    "^has_journal,^resize_inode",
    "-m",
    "0",
    "-E",
    "lazy_itable_init=1,nodiscard",
    "-I",
    "256",
    file,
  ]);
}

export class VmSandbox implements Sandbox {
  readonly addresses: readonly string[];
  readonly lost: Promise<SandboxLoss>;
  readonly shell: GuestShell;
  readonly #context: VmContext;
  readonly #home: MachineHome;
  readonly #record: VmRecord;
  readonly #resolveLost: (loss: SandboxLoss) => void;
  /** Images that are plugged in: serial -> done. */
  readonly #images = new Map<string, Promise<void>>();
  #cancelWatch: (() => void) | undefined;

  constructor(context: VmContext, home: MachineHome, record: VmRecord) {
    this.#context = context;
    this.#home = home;
    this.#record = record;
    this.addresses = [record.attachment.address];
    this.shell = new GuestShell({
      address: record.attachment.address,
      identityFile: context.identityFile,
      knownHosts: join(home.dir, "known_hosts"),
      controlPath: home.socketPath("ssh"),
    });
    const { promise, resolve } = Promise.withResolvers<SandboxLoss>();
    this.lost = promise;
    this.#resolveLost = resolve;
    this.#watch();
  }

  async launch(launch: ContainerLaunch): Promise<LaunchPlan> {
    const { spec, image, id } = launch;
    if (image === undefined)
      throw new ContainerError("CreateContainerError", `container ${spec.name}: there is no image`);
    const { security } = this.#home.spec;
    const user = resolveUser({
      imageUser: image.config.user,
      user: spec.security?.user,
      group: spec.security?.group,
      runAsNonRoot: spec.security?.run_as_non_root === true,
      supplementalGroups: [
        ...(security?.supplemental_groups ?? []),
        ...(security?.fs_group === undefined ? [] : [security.fs_group]),
      ],
      passwdFile: readTextInRoot(image.location, "/etc/passwd"),
      groupFile: readTextInRoot(image.location, "/etc/group"),
      container: spec.name,
      pod: formatOwner(this.#home.id, this.#home.spec.labels),
    });
    const locations = [
      ...new Set([image.location, ...Object.values(launch.imageVolumes).map(({ location }) => location)]),
    ];
    await Promise.all(locations.map((location) => this.#attachImage(location)));
    const { mounts, folders } = this.#mounts(launch);
    const config = ociConfig({
      spec,
      image: image.config,
      user,
      hostname: kernelHostname(this.#home.spec, this.#home.id),
      rootfs: `${CONTAINERS}/${id}/rootfs`,
      // The VM is the machine: its network, hostname and IPC are the containers'.
      namespaces: [{ type: "pid" }],
      mounts,
      cgroupsPath: `${GROUPS}/${id}/ctr`,
      cgroupVersion: 2,
      sysctls: [],
      seccomp: (capabilities) => seccompProfile(this.#context.seccomp(), capabilities, process.arch),
      pidsLimit: this.#context.pidsLimit,
      poststart: ["/bin/vmlet", "started", id],
    });
    const mountImages = locations.map((location) => ["image", imageName(location), imageSerial(location)]);
    await this.shell.callAll([...mountImages, ["launch", id, imageName(image.location), folders.join("\n")]], {
      input: JSON.stringify(config),
    });
    await writeFileAtomic(this.#configFile(launch), JSON.stringify(config), 0o600);
    return {
      argv: ["/bin/sh", "-c", this.#runScript(launch, spec.tty === true)],
      env: { PATH: process.env["PATH"] ?? "", TERM: "xterm" },
      cwd: "/",
      pidFile: this.#startedFile(launch),
      user: { uid: user.uid, gid: user.gid, supplemental_groups: user.supplementalGroups },
    };
  }

  async signal(container: ContainerRef, signal: NodeJS.Signals): Promise<void> {
    await this.shell.call(["signal", container.id, signal.replace(/^SIG/, "")]);
  }

  async kill(container: ContainerRef): Promise<void> {
    if (!isAlive(this.#record.vm.pid, this.#record.vm.startTime)) return;
    await this.shell.call(["kill", container.id]);
  }

  async conclude(container: ContainerRef, exit: ShimExit): Promise<ContainerConclusion> {
    await rm(this.#startedFile(container), { force: true });
    await rm(this.#configFile(container), { force: true });
    if (exit.startError !== undefined) {
      await this.shell.call(["conclude", container.id]);
      return { exitCode: START_ERROR_EXIT, startError: exit.startError };
    }
    const text = (await this.shell.call(["conclude", container.id])).stdout.toString("utf8");
    const oomKilled = Number(/^oom (\d+)$/m.exec(text)?.[1] ?? 0) > 0;
    const message = Buffer.from(/^message ([A-Za-z0-9+/=]*)$/m.exec(text)?.[1] ?? "", "base64").toString("utf8");
    return { ...(oomKilled ? { oomKilled } : {}), ...(message === "" ? {} : { terminationMessage: message }) };
  }

  async exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    await this.shell.connect(options.signal);
    const { process: base } = JSON.parse(await readFile(this.#configFile(container), "utf8")) as {
      process: { env: string[] };
    };
    const env =
      options.tty && !base.env.some((entry) => entry.startsWith("TERM=")) ? [...base.env, "TERM=xterm"] : base.env;
    const token = `exec-${randomBytes(6).toString("hex")}`;
    const described = Buffer.from(JSON.stringify({ ...base, args: command, env, terminal: options.tty })).toString(
      "base64",
    );
    const argv = this.shell.command(["exec", container.id, token, described], { tty: options.tty });
    const streams = await spawnStreams(
      { argv, env: { PATH: process.env["PATH"] ?? "", TERM: "xterm" }, cwd: "/" },
      options,
    );
    const exit = (async () => {
      try {
        const result = await streams.exit;
        const complaint = (await this.shell.call(["exec-end", container.id, token])).stdout.toString("utf8").trim();
        if (/executable file|No such file|permission denied/i.test(complaint))
          throw new ProviderError("invalid", `cannot run ${JSON.stringify(command[0])}: ${complaint}`, {
            field: "command",
          });
        return result;
      } catch (cause) {
        await this.shell.call(["exec-end", container.id, token]).catch(() => undefined);
        throw cause;
      }
    })();
    exit.catch(() => undefined);
    return {
      stdin: streams.stdin,
      stdout: streams.stdout,
      stderr: streams.stderr,
      resize: (columns, rows) => streams.resize(columns, rows),
      exit,
      close: () => streams.close(),
    };
  }

  async dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
    try {
      return await dialAddress(this.addresses[0]!, port, signal);
    } catch (cause) {
      // What listens on the loopback alone is reached from inside.
      if (target === "address" || (cause as NodeJS.ErrnoException).code !== "ECONNREFUSED") throw cause;
      await this.shell.call(["listens", String(port)], { signal }).catch(() => {
        throw cause;
      });
    }
    const [command, ...args] = this.shell.forwardCommand(port);
    const child = spawn(command!, args, { stdio: ["pipe", "pipe", "ignore"] });
    const stream = Duplex.from({ writable: child.stdin, readable: child.stdout });
    stream.once("close", () => child.kill());
    return stream;
  }

  async stats(containers: readonly ContainerRef[]): Promise<SandboxStats> {
    const network = await this.#context.network.counters(this.#home.id);
    const { stdout } = await this.shell.call(["stats"]);
    const parsed = parseStats(stdout.toString("utf8"));
    const samples = containers.flatMap(({ id, name }) => {
      const values = parsed.containers.get(id);
      if (values === undefined) return [];
      const current = values.get("current") ?? 0;
      return [
        {
          name,
          cpu_usage_ns_total: (values.get("usage_usec") ?? 0) * 1000,
          memory_usage_bytes: current,
          memory_working_set_bytes: Math.max(0, current - (values.get("inactive_file") ?? 0)),
          memory_rss_bytes: values.get("anon") ?? 0,
          fs_used_bytes: (values.get("fs") ?? 0) * 1024,
        },
      ];
    });
    const known = new Set(
      (this.#home.spec.volumes ?? []).filter(({ type }) => type === "empty_dir").map(({ name }) => name),
    );
    const volumes = [...parsed.volumes]
      .filter(([name]) => known.has(name))
      .map(([name, kib]) => ({ name, used_bytes: kib * 1024 }));
    return { containers: samples, volumes, ...(network === undefined ? {} : { network }) };
  }

  async applyFiles(volume: Extract<Volume, { type: "files" }>): Promise<void> {
    const group = this.#home.spec.security?.fs_group;
    const dir = join(this.#home.dir, "files", volume.name);
    writeFilesVolume(dir, volume.files, group === undefined ? {} : { group });
    const { stdout } = await run(findTool("tar")!, ["-C", dir, "--numeric-owner", "-cf", "-", "."], {
      maxOutputBytes: 64 << 20,
    });
    await this.shell.call(["files", volume.name, readlinkSync(join(dir, "..data"))], { input: stdout });
  }

  async close(): Promise<void> {
    this.#cancelWatch?.();
  }

  #watch(): void {
    const { vm } = this.#record;
    this.#cancelWatch = this.#context.clock.after(LOSS_POLL_MS, () => {
      if (isAlive(vm.pid, vm.startTime)) this.#watch();
      else
        this.#resolveLost({
          reason: "SandboxLost",
          message: "the machine's VM has ended by itself: the guest panicked or powered off, or its process was killed",
        });
    });
  }

  /**
   * The container's streams are those of one SSH session; a second one waits until the container runs, so that a start
   * that fails is not mistaken for a container that ended.
   */
  #runScript(container: ContainerRef, tty: boolean): string {
    const line = (args: string[], options: { tty?: boolean } = {}) =>
      this.shell.command(args, options).map(quote).join(" ");
    const started = this.#startedFile(container);
    return [
      "exec 3<&0",
      `${line(["run", container.id, tty ? "tty" : "pipes"], { tty })} <&3 3<&- &`,
      "run=$!",
      "exec 3<&- </dev/null",
      `if ${line(["wait-start", container.id])} >/dev/null 2>&1; then echo $run > ${quote(`${started}.tmp`)}; mv ${quote(`${started}.tmp`)} ${quote(started)}; fi`,
      "wait $run",
    ].join("\n");
  }

  /** Plugs the image in, once per VM. */
  async #attachImage(location: string): Promise<void> {
    const serial = imageSerial(location);
    let attached = this.#images.get(serial);
    if (attached === undefined) {
      attached = this.#plug(location, serial);
      this.#images.set(serial, attached);
      attached.catch(() => this.#images.delete(serial));
    }
    await attached;
  }

  async #plug(location: string, serial: string): Promise<void> {
    const file = await imageDisk(location);
    try {
      await attachDisk(
        this.#home.socketPath("qmp"),
        { id: serial, file, readOnly: true },
        AbortSignal.timeout(this.#context.bootTimeoutMs),
      );
    } catch (cause) {
      // A former backend has done it.
      if (!/duplicate/i.test(String(cause))) throw cause;
    }
  }

  #mounts(launch: ContainerLaunch): { mounts: OciMount[]; folders: string[] } {
    const { spec } = launch;
    const readOnly = spec.security?.read_only_root === true;
    const folders: string[] = [];
    const mounts: OciMount[] = [
      { ...bind("/run/shm", "/dev/shm", false), options: ["rbind", "nosuid", "nodev", "noexec", "rw"] },
      ...["hosts", "hostname", "resolv.conf"].map((name) => bind(`/run/etc/${name}`, `/etc/${name}`, readOnly)),
      bind(
        `${CONTAINERS}/${launch.id}/termination-log`,
        spec.termination_message?.path || "/dev/termination-log",
        false,
      ),
      ...(spec.mounts ?? []).map((mount) => this.#volumeMount(launch, mount, folders)),
    ];
    const own = mounts.filter(
      (mount, index) =>
        !mounts.some(
          (later, at) => at > index && join("/", later.destination, "/") === join("/", mount.destination, "/"),
        ),
    );
    return { mounts: own, folders };
  }

  #volumeMount(launch: ContainerLaunch, mount: Mount, folders: string[]): OciMount {
    const volume = (this.#home.spec.volumes ?? []).find(({ name }) => name === mount.volume);
    if (volume === undefined)
      throw new ContainerError(
        "CreateContainerConfigError",
        `container ${launch.name}: there is no volume ${JSON.stringify(mount.volume)}`,
      );
    const location = launch.imageVolumes[volume.name]?.location;
    if (volume.type === "image" && location === undefined)
      throw new ContainerError("ImageVolumeMountFailed", `volume ${volume.name}: its image is not there`);
    const root = volume.type === "image" ? `/images/${imageName(location!)}` : `${VOLUMES}/${volume.name}`;
    const source = mount.sub_path === undefined || mount.sub_path === "" ? root : join(root, join("/", mount.sub_path));
    if (source !== root && volume.type === "empty_dir") folders.push(source);
    return bind(source, mount.path, volume.type !== "empty_dir" || mount.read_only === true);
  }

  #startedFile(container: Pick<ContainerRef, "id">): string {
    return join(this.#home.dir, "run", container.id);
  }

  #configFile(container: Pick<ContainerRef, "id">): string {
    return join(this.#home.dir, "run", `${container.id}.json`);
  }
}

/** The VM and all that belongs to it on this host, except the network. */
export async function destroyVm(
  context: VmContext,
  home: Pick<MachineHome, "dir">,
  vm: VmProcess | undefined,
): Promise<void> {
  if (vm !== undefined) await killVm(vm, context.clock);
  await rm(home.dir, { recursive: true, force: true });
}

/** The guest's name for an image: a part of its digest, which names its folder on the host. */
function imageName(location: string): string {
  return basename(dirname(location)).slice(0, 16);
}

function imageSerial(location: string): string {
  return `i${imageName(location)}`;
}

function dialAddress(host: string, port: number, signal: AbortSignal): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, noDelay: true, allowHalfOpen: true, signal });
    socket.once("error", reject);
    socket.once("connect", () => {
      socket.off("error", reject);
      resolve(socket);
    });
  });
}

/** Output of `vmlet stats`: the guest may print anything, only numbers count. */
export function parseStats(text: string): {
  containers: Map<string, Map<string, number>>;
  volumes: Map<string, number>;
} {
  const containers = new Map<string, Map<string, number>>();
  const volumes = new Map<string, number>();
  let current: Map<string, number> | undefined;
  for (const line of text.split("\n")) {
    const [key, first, second] = line.split(" ");
    if (key === "container" && first !== undefined) containers.set(first, (current = new Map()));
    else if (key === "volume" && first !== undefined) volumes.set(first, whole(second));
    else if (key !== undefined && key !== "" && first !== undefined) current?.set(key, whole(first));
  }
  return { containers, volumes };
}

function whole(text: string | undefined): number {
  const value = Number(text);
  return Number.isSafeInteger(value) && value >= 0 ? value : 0;
}
