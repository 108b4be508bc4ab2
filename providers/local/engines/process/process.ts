/**
 * Engine `process`: containers are plain processes of this machine. There are no images and no isolation whatever: for
 * development and tests. A container's command is its own, or comes from the configured map of images, or from the
 * stand-ins (stand-ins.ts) where they are wanted. Its files are this machine's, and its volumes (view.ts).
 *
 * A machine gets an address of its own out of a pool in 127.0.0.0/8. All of that is local on Linux, so a process that
 * binds 0.0.0.0 or that address is reached by probes and port-forward; nothing outside this host reaches it, which is
 * why the engine does not declare `pod_ip`. A backend that serves other hosts gives every machine the host's address
 * instead.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import {
  type Clock,
  type ContainerSpec,
  LABEL_NAMESPACE,
  type MachineSpec,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  type Volume,
} from "../../../../src/provider/kit/index.ts";
import {
  ContainerError,
  type ContainerConclusion,
  type ContainerLaunch,
  type ContainerRef,
  type Engine,
  type HostProblem,
  type HostPlan,
  type LaunchPlan,
  type MachineHome,
  type Sandbox,
  type SandboxStats,
} from "../../engine.ts";
import { applyFiles, makeVolumes, readVolumeFile, volumeSource } from "../../bundle/host-volumes.ts";
import { dialTcp } from "../../host/dial.ts";
import { isAlive, TICKS_PER_SECOND, type ProcessStat } from "../../host/proc.ts";
import { cannotRun } from "../../shim/runnable.ts";
import { spawnStreams } from "../../shim/spawn.ts";
import { isMissing, writeJson } from "../../host/files.ts";
import { PROCESS_CAPABILITIES } from "../capabilities.ts";
import { OwnedProcesses } from "./owned.ts";
import { standInFor } from "./stand-ins.ts";
import {
  availableNamespaces,
  besideProcess,
  type BoundPath,
  folderInView,
  inNamespace,
  linkBelow,
  type Namespaces,
} from "./view.ts";
import { HostError } from "../../host/host-error.ts";

interface ProcessEngineOptions {
  /** The backend's state directory: processes that carry it in their environment are this backend's. */
  stateDir: string;
  /** What to run for an image when a container has no command. `*` stands for every other image. */
  images: Readonly<Record<string, readonly string[]>>;
  /** Run something in the place of every other image. */
  standIns?: boolean | undefined;
  /** IPv4 range in CIDR notation, within 127.0.0.0/8. */
  addressPool: string;
  /** A folder with a file for each namespace, which its machines have as /etc/hosts. Default: they have the host's. */
  hostsDir?: string | undefined;
  /** The address of every machine instead: to other hosts a loopback address means nothing. */
  hostAddress?: string | undefined;
  clock: Clock;
}

const PAGE_BYTES = 4096;
const NANOSECONDS_PER_TICK = 1_000_000_000 / TICKS_PER_SECOND;
const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** The host's programs, without those of the package that the backend was started from: npm puts them first. */
function hostPath(path: string = DEFAULT_PATH): string {
  const folders = path.split(":").filter((folder) => !/(?:^|\/)node_modules\/|\/node-gyp-bin$/.test(folder));
  return folders.join(":") || DEFAULT_PATH;
}
const LINKED =
  "This host gives no mount namespaces: volumes are links below the container's home, $HOME/etc/config for /etc/config";
const ON_DISK = "Engine process has no memory for volumes: emptyDirs of medium Memory are on this machine's disk";
const KILL_ROUND_MS = 20;
/** A process in uninterruptible sleep may take long; beyond this the caller is told, and tries again. */
const KILL_ROUNDS = 250;

export function createProcessEngine(options: ProcessEngineOptions): Engine {
  const owned = new OwnedProcesses(options.stateDir);
  const addresses = new AddressPool(options.addressPool);
  let asked: Promise<Namespaces> | undefined;
  const namespaces = () => (asked ??= availableNamespaces());
  return {
    name: "process",
    capabilities: PROCESS_CAPABILITIES,
    check: () => Promise.resolve(checkHost()),
    validate: (spec) => validate(spec, options),
    async sweep(known) {
      await killUntilGone(options.clock, async () =>
        (await owned.list()).filter(({ machine }) => !known.has(machine)).map(({ stat }) => stat),
      );
    },
    async open(home) {
      await makeVolumes({ ...home, spec: onDisk(home.spec) });
      const address = options.hostAddress ?? addresses.take(home.id);
      writeJson(join(home.dir, "sandbox.json"), { address }, { flush: true });
      return new ProcessSandbox(home, address, owned, { ...options, namespaces: await namespaces() });
    },
    async recover(home) {
      const address = readAddress(home);
      if (address === undefined) return undefined;
      addresses.claim(home.id, address);
      return new ProcessSandbox(home, address, owned, { ...options, namespaces: await namespaces() });
    },
    async destroy(home) {
      await killUntilGone(options.clock, async () =>
        (await owned.list()).filter(({ machine }) => machine === home.id).map(({ stat }) => stat),
      );
      addresses.release(home.id);
    },
    close: () => Promise.resolve(),
  };
}

function checkHost(): HostProblem[] {
  if (process.platform === "linux") return [];
  return [
    {
      fatal: true,
      problem: `engine process needs Linux's /proc; this is ${process.platform}`,
      cure: "run the backend on Linux, or in a Linux container",
    },
  ];
}

function validate(spec: MachineSpec, { images, standIns }: ProcessEngineOptions): void {
  for (const list of ["init_containers", "containers", "ephemeral_containers"] as const) {
    for (const [index, container] of (spec[list] ?? []).entries()) {
      const field = `${list}[${index}]`;
      if (standIns !== true && commandOf(container, images).length === 0) {
        throw new ProviderError(
          "invalid",
          `engine process has no images: container "${container.name}" needs a command, or the backend's config an entry for image "${container.image}" under engine.images`,
          { field: `${field}.command` },
        );
      }
    }
  }
}

/** A tmpfs is for root alone to mount, and would be left behind by what is killed. */
function onDisk(spec: MachineSpec): MachineSpec {
  const volumes = spec.volumes?.map((volume) =>
    volume.type === "empty_dir" ? { ...volume, medium: "disk" as const } : volume,
  );
  return { ...spec, ...(volumes && { volumes }) };
}

function commandOf(container: ContainerSpec, images: ProcessEngineOptions["images"]): string[] {
  const ofImage = Object.hasOwn(images, container.image) ? images[container.image] : images["*"];
  const command = container.command ?? ofImage ?? [];
  return [...command, ...(command.length === 0 ? [] : (container.args ?? []))];
}

function readAddress(home: MachineHome): string | undefined {
  try {
    return (JSON.parse(readFileSync(join(home.dir, "sandbox.json"), "utf8")) as { address: string }).address;
  } catch (thrown) {
    // A loss of power has torn it: then nothing runs either.
    if (isMissing(thrown) || thrown instanceof SyntaxError) return undefined;
    throw thrown;
  }
}

function readPort(file: string): number | undefined {
  try {
    const text = readFileSync(file, "utf8");
    const port = Number(text);
    return Number.isInteger(port) && port > 0 && port <= 65535 ? port : undefined;
  } catch {
    return undefined;
  }
}

/** @throws ProviderError unavailable when some still run after five seconds of trying. */
async function killUntilGone(clock: Clock, list: () => Promise<ProcessStat[]>): Promise<void> {
  for (let round = 0; round < KILL_ROUNDS; round++) {
    const alive = await list();
    if (alive.length === 0) return;
    for (const { pid } of alive) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // It ended meanwhile.
      }
    }
    await clock.sleep(KILL_ROUND_MS);
  }
  throw new ProviderError(
    "unavailable",
    `processes ${(await list()).map(({ pid }) => pid).join(", ")} do not end after SIGKILL`,
  );
}

interface SandboxOptions extends ProcessEngineOptions {
  namespaces: Namespaces;
}

class ProcessSandbox implements Sandbox {
  readonly addresses: readonly string[];
  /** Plain processes have no sandbox that could die. */
  readonly lost = new Promise<never>(() => {});
  readonly #home: MachineHome;
  readonly #owned: OwnedProcesses;
  readonly #options: SandboxOptions;
  /** Processes of containers that have been told to stop. */
  readonly #remembered = new Map<string, ProcessStat[]>();

  constructor(home: MachineHome, address: string, owned: OwnedProcesses, options: SandboxOptions) {
    this.addresses = [address];
    this.#home = home;
    this.#owned = owned;
    this.#options = options;
  }

  async launch(container: ContainerLaunch): Promise<LaunchPlan> {
    const own = commandOf(container.spec, this.#options.images);
    const standIn =
      own.length === 0 && this.#options.standIns === true
        ? standInFor(container.spec, { address: this.addresses[0]!, portFile: (port) => this.#portFile(port) })
        : undefined;
    const argv = standIn?.argv ?? own;
    if (argv.length === 0)
      throw new ContainerError(
        "CreateContainerError",
        `engine process has no images and container "${container.name}" no command: give one, or map image "${container.spec.image}" under engine.images of the backend's config`,
      );
    const home = join(this.#home.dir, "home", container.name);
    mkdirSync(home, { recursive: true, mode: 0o700 });
    const env: Record<string, string> = { PATH: hostPath(process.env["PATH"]), HOME: home };
    for (const { name, value } of container.spec.env ?? []) env[name] = value;
    const paths = await this.#boundPaths(container);
    const notices = standIn === undefined ? [] : [{ reason: "StandIn", message: standIn.message }];
    if (this.#options.namespaces === undefined && paths.length > 0) {
      linkBelow(home, paths);
      notices.push({ reason: "VolumesLinked", message: LINKED });
    }
    if (this.#hasMemoryVolume(container)) notices.push({ reason: "EmptyDirOnDisk", message: ON_DISK });
    const plan = {
      argv,
      env: { ...env, ...this.#owned.marks(this.#home.id, container.id) },
      cwd: container.spec.working_dir ?? home,
    };
    const [notice] = notices;
    return {
      ...this.#inView(plan, container, { home, paths }),
      ...(notice && { notice: { ...notice, message: notices.map(({ message }) => message).join("; ") } }),
    };
  }

  #hasMemoryVolume({ spec }: ContainerLaunch): boolean {
    const inMemory = (this.#home.spec.volumes ?? []).filter(
      (each) => each.type === "empty_dir" && each.medium === "memory",
    );
    return inMemory.some(({ name }) => spec.mounts?.some(({ volume }) => volume === name));
  }

  /** What the container is to see where this host has something else. */
  async #boundPaths({ name, spec }: ContainerLaunch): Promise<BoundPath[]> {
    const { hostsDir, namespaces } = this.#options;
    const hosts = join(hostsDir ?? "", this.#home.spec.labels[LABEL_NAMESPACE] ?? "default");
    const paths: BoundPath[] = [];
    if (hostsDir !== undefined && namespaces !== undefined && existsSync(hosts))
      paths.push({ source: hosts, target: "/etc/hosts", writable: false });
    for (const mount of spec.mounts ?? [])
      paths.push({ ...(await volumeSource(this.#home, name, mount, {})), target: mount.path });
    return paths;
  }

  /** What cannot be run anyway is left to who says so best. */
  #inView(
    plan: HostPlan,
    { dir }: ContainerRef,
    { home, paths }: { home: string; paths: readonly BoundPath[] },
  ): HostPlan {
    const { namespaces } = this.#options;
    const { argv, cwd } = plan;
    if (namespaces === undefined || paths.length === 0) return plan;
    const isBound = (path: string) => paths.some(({ target }) => path === target || path.startsWith(`${target}/`));
    const needed = { ...plan, cwd: isBound(cwd) ? home : cwd };
    if (!isBound(argv[0]!) && cannotRun(needed) !== undefined) return plan;
    const pidFile = join(dir, "pid");
    const inView = inNamespace(namespaces, { root: join(dir, "root"), cwd, pidFile, paths, argv });
    return { ...plan, cwd: home, pidFile, argv: inView };
  }

  /** Where a stand-in writes by which port it is reached instead. */
  #portFile(port: number): string {
    return join(this.#home.dir, `port-${port}`);
  }

  /** To the main process's group: there is no init process that would pass it on. */
  async signal(container: ContainerRef, signal: number): Promise<void> {
    if (container.pid === undefined) return;
    // Its children are looked up while it is there to be recognised by.
    this.#remembered.set(container.id, await this.#ownedBy(container));
    try {
      process.kill(-container.pid, signal);
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== "ESRCH") throw thrown;
    }
  }

  async kill(container: ContainerRef): Promise<void> {
    await killUntilGone(this.#options.clock, async () => {
      const remembered = (this.#remembered.get(container.id) ?? []).filter(({ pid, startTime }) =>
        isAlive(pid, startTime),
      );
      return [...(await this.#ownedBy(container)), ...remembered];
    });
  }

  async #ownedBy(container: ContainerRef): Promise<ProcessStat[]> {
    return (await this.#owned.list()).filter((owned) => owned.container === container.id).map(({ stat }) => stat);
  }

  conclude(container: ContainerRef): Promise<ContainerConclusion> {
    this.#remembered.delete(container.id);
    return Promise.resolve({});
  }

  async exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const launch = JSON.parse(readFileSync(join(container.dir, "shim-launch.json"), "utf8")) as HostPlan;
    const env = options.tty ? { TERM: "xterm", ...launch.env } : launch.env;
    const { namespaces } = this.#options;
    const { pid } = container;
    const cwd = folderInView(launch.argv);
    const isInView = cwd !== undefined && namespaces !== undefined && pid !== undefined;
    const plan = { argv: command, env, cwd: launch.cwd };
    // One that cannot be run is refused before anything runs. It may be in a volume.
    const places = [command[0]!, `/proc/${pid}/root${command[0]}`].map((name) => ({ ...plan, argv: [name] }));
    if (!isInView || places.every((place) => cannotRun(place) !== undefined)) return await spawnStreams(plan, options);
    return await spawnStreams({ ...plan, argv: besideProcess(namespaces, { pid, cwd, argv: command }) }, options);
  }

  async dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
    const ledTo = this.#options.standIns === true ? readPort(this.#portFile(port)) : undefined;
    if (ledTo !== undefined) {
      try {
        return await dialTcp(this.addresses[0]!, ledTo, signal);
      } catch (thrown) {
        // The stand-in has ended.
        if ((thrown as NodeJS.ErrnoException).code !== "ECONNREFUSED") throw thrown;
      }
    }
    try {
      return await dialTcp(this.addresses[0]!, port, signal);
    } catch (thrown) {
      // A server that listens on localhost only: all machines share it, so the machine's own address goes first.
      if (target === "loopback" && (thrown as NodeJS.ErrnoException).code === "ECONNREFUSED")
        return await dialTcp("127.0.0.1", port, signal);
      throw thrown;
    }
  }

  async stats(containers: readonly ContainerRef[]): Promise<SandboxStats> {
    const all = await this.#owned.list();
    return {
      containers: containers.flatMap(({ name, id }) => {
        const own = all.filter(({ container }) => container === id);
        if (own.length === 0) return [];
        const rss = own.reduce((sum, { stat }) => sum + stat.rssPages, 0) * PAGE_BYTES;
        return [
          {
            name,
            cpu_usage_ns_total: own.reduce((sum, { stat }) => sum + cpuNanoseconds(stat), 0),
            memory_working_set_bytes: rss,
            memory_usage_bytes: rss,
            memory_rss_bytes: rss,
          },
        ];
      }),
    };
  }

  async readVolumeFile(volume: string, path: string, maxBytes: number): Promise<Buffer> {
    return readVolumeFile(this.#home, volume, path, maxBytes);
  }

  applyFiles(volume: Extract<Volume, { type: "files" }>): Promise<void> {
    applyFiles(this.#home, volume);
    return Promise.resolve();
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

/**
 * The whole process in ticks of 10 ms, or its first thread in nanoseconds, whichever is more: a program that has just
 * started has used something, and a container with no CPU time at all would be left out of the metrics.
 */
function cpuNanoseconds({ pid, cpuTicks }: ProcessStat): number {
  const ticks = cpuTicks * NANOSECONDS_PER_TICK;
  try {
    return Math.max(ticks, Number(readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[0]));
  } catch {
    // It has ended, or the kernel keeps no such figure.
    return ticks;
  }
}

/** One address per machine, chosen by its id so that it tends to stay the same, and not reused while taken. */
export class AddressPool {
  readonly #base: number;
  readonly #size: number;
  readonly #byMachine = new Map<string, string>();
  readonly #taken = new Set<string>();

  constructor(cidr: string) {
    const [address, bits] = cidr.split("/");
    const octets = address!.split(".").map(Number);
    const prefix = Number(bits);
    if (
      octets.length !== 4 ||
      octets.some((octet) => !Number.isInteger(octet) || octet < 0 || octet > 255) ||
      octets[0] !== 127 ||
      !(prefix >= 8 && prefix <= 30)
    ) {
      throw new HostError(
        `engine.addressPool "${cidr}" must be an IPv4 range within 127.0.0.0/8, such as 127.64.0.0/10`,
      );
    }
    this.#size = 2 ** (32 - prefix);
    const number = octets.reduce((sum, octet) => sum * 256 + octet, 0);
    this.#base = number - (number % this.#size);
  }

  take(machine: string): string {
    const known = this.#byMachine.get(machine);
    if (known !== undefined) return known;
    const start = createHash("sha256").update(machine).digest().readUInt32BE(0);
    for (let step = 0; step < this.#size; step++) {
      const offset = (start + step) % this.#size;
      // The range's ends are not host addresses, and 127.0.0.1 is shared by all programs.
      if (offset <= 1 || offset === this.#size - 1) continue;
      const number = this.#base + offset;
      const address = [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join(".");
      if (!this.#taken.has(address)) {
        this.claim(machine, address);
        return address;
      }
    }
    throw new ProviderError("quota", `all ${this.#size} addresses of engine.addressPool are in use`);
  }

  claim(machine: string, address: string): void {
    this.#byMachine.set(machine, address);
    this.#taken.add(address);
  }

  release(machine: string): void {
    const address = this.#byMachine.get(machine);
    if (address === undefined) return;
    this.#byMachine.delete(machine);
    this.#taken.delete(address);
  }
}
