/**
 * One machine of the engine vm: a VM (vm.ts) and what the machine has beside it. Its folder for what has secrets in it:
 *
 *     files/NAME/    files volumes as they are in the guest
 *     run/ID.json    ContainerStart, while the container is there
 */
import { existsSync } from "node:fs";
import { mkdir, readFile, rm, statfs } from "node:fs/promises";
import { join } from "node:path";
import { Duplex } from "node:stream";
import {
  type ContainerResources,
  type ContainerSpec,
  pause,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  unlessAborted,
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
  type SandboxHealth,
  type SandboxLoss,
  type SandboxStats,
  type ShimExit,
} from "../../engine.ts";
import { dialTcp } from "../../host/dial.ts";
import { hostResolvConf } from "../../bundle/host-resolv.ts";
import { isMissing, readdirAtomic, writeFileAtomic } from "../../host/files.ts";
import { type Patience, patienceFor } from "../../host/patience.ts";
import { commandEnv, ociConfig, ociResources } from "../../bundle/bundle.ts";
import { kernelHostname } from "../../bundle/host-files.ts";
import { seccompProfile } from "../../bundle/seccomp.ts";
import { containerUser } from "../../bundle/users.ts";
import { attachDisk } from "./blocks.ts";
import { GuestError, type GuestCommand } from "./control.ts";
import { GuestHealth, type GuestProbe } from "./health.ts";
import { machineScript } from "./identity.ts";
import { imageDisk, linkDisk } from "./image-disk.ts";
import { CALL_PROCESSOR_MS } from "./patience.ts";
import type { GuestPort } from "./ports.ts";
import { filesScript, readGuestFile } from "./guest-volumes.ts";
import { nfsCommands } from "./nfs.ts";
import { CONTAINERS, containerMounts, imageName, imageSerial } from "./mounts.ts";
import { imagesDir } from "./qemu.ts";
import { Qmp } from "./qmp.ts";
import { vmSize } from "./size.ts";
import { sandboxStats } from "./stats.ts";
import { openStreams, type GuestStreams } from "./streams.ts";
import type { Vm, VmContext } from "./vm.ts";
import { configParts } from "./warm.ts";

const GROUPS = "/pod";
const LOSS_POLL_MS = 500;
const SESSION_RETRY_MS = 5_000;
const QUARANTINE_MS = 60_000;
/** On the host's disk, before a VM that had none goes on. */
const MIN_ROOM_BYTES = 64 << 20;
const START_ERROR_EXIT = 128;
/** One may come from a kill that crosses the end of its container. */
const MAX_FAILED_KILLS = 5;
/** From a kill to the news of the container's end. */
const KILL_PATIENCE_MS = 60_000;
const ENDED: SandboxLoss = {
  reason: "SandboxLost",
  message: "the machine's VM has ended by itself: the guest panicked or powered off, or its process was killed",
};
const OUT_OF_MEMORY: SandboxLoss = {
  reason: "OutOfMemory",
  message:
    "the kernel has killed the machine's VM because memory ran out: its QEMU took more than the VM was sized for, or the host had no more",
};

interface ContainerStart {
  /** As OCI describes it. */
  process: { env: string[] };
  /** Number of its port. */
  port: number;
}

/** Makes the VM this machine: its name, its clock, its volumes. */
export async function openSandbox(
  context: VmContext,
  home: MachineHome,
  vm: Vm,
  signal: AbortSignal,
): Promise<VmSandbox> {
  const { spec, secretDir } = home;
  for (const folder of ["files", "run"]) await mkdir(join(secretDir, folder), { recursive: true, mode: 0o700 });
  await context.network.hold(vm.key, spec);
  await context.network.openHostPorts(vm.key, spec);
  const disks = await context.disks.plug(vm, spec, signal);
  const shares = await nfsCommands(spec, vm.attachment.address, signal);
  const script = machineScript({
    machineId: home.id,
    spec,
    addresses: addressesOf(vm),
    nowMs: context.clock.now(),
    hostResolvConf: await hostResolvConf(),
    prepare: [...disks, ...prepareCommands(spec), ...shares],
  });
  await vm.control.script(script, signal);
  return new VmSandbox(context, home, vm);
}

function prepareCommands(spec: MachineHome["spec"]): GuestCommand[] {
  const group = spec.security?.fs_group;
  const emptyDirs = (spec.volumes ?? []).filter((volume) => volume.type === "empty_dir");
  return [
    ...emptyDirs.map(({ name, medium, size_bytes }) => [
      "volume",
      name,
      medium,
      String(size_bytes ?? 0),
      group === undefined ? "-" : String(group),
    ]),
    ...(spec.security?.share_process_namespace === true ? [["share_processes"]] : []),
  ];
}

const addressesOf = ({ attachment: { address, ipv6 } }: Vm): string[] => [address, ipv6?.address ?? []].flat();

export class VmSandbox implements Sandbox {
  readonly addresses: readonly string[];
  readonly lost: Promise<SandboxLoss>;
  readonly #context: VmContext;
  readonly #home: MachineHome;
  readonly #vm: Vm;
  readonly #resolveLost: (loss: SandboxLoss) => void;
  /** Images that are plugged in: serial -> done. */
  readonly #images = new Map<string, Promise<void>>();
  /** Of the containers that run, by their id. */
  readonly #ports = new Map<string, Pick<GuestPort, "number">>();
  /** When the first of a container's kills was done, which all the same does not end. */
  readonly #killedAt = new Map<string, number>();
  readonly #health: GuestHealth;
  readonly #closing = new AbortController();
  #healthListener: (health: SandboxHealth) => void = () => {};
  #cancelWatch: (() => void) | undefined;
  /** In a row. */
  #failedKills = 0;

  constructor(context: VmContext, home: MachineHome, vm: Vm) {
    this.#context = context;
    this.#home = home;
    this.#vm = vm;
    this.addresses = addressesOf(vm);
    const { promise, resolve } = Promise.withResolvers<SandboxLoss>();
    this.lost = promise;
    this.#resolveLost = resolve;
    this.#watch();
    this.#health = new GuestHealth({
      probe: this.#probe(),
      clock: context.clock,
      onChange: (health) => this.#healthListener(health),
      onLost: (loss) => {
        this.#resolveLost(loss);
        // It is of no use any more, and takes the host's memory.
        this.#vm.kill().catch(() => {});
      },
    });
  }

  /** After a restart of the backend: no other command gets a running container's port; its disks are its own. */
  async resume(): Promise<void> {
    this.#context.disks.resume(this.#vm, this.#home.spec);
    for (const dir of new Set(this.#startDirs))
      for (const name of await readdirAtomic(dir).catch(noneWhenMissing)) {
        const { port } = JSON.parse(await readFile(join(dir, name), "utf8")) as ContainerStart;
        this.#ports.set(name.replace(/\.json$/, ""), { number: port });
        this.#vm.ports.reserve(port);
      }
  }

  async launch(launch: ContainerLaunch): Promise<LaunchPlan> {
    const { spec, image, id } = launch;
    if (image === undefined)
      throw new ContainerError("CreateContainerError", `container ${spec.name}: there is no image`);
    const user = containerUser(this.#home, spec, { user: image.config.user, rootfs: image.location });
    const locations = [
      ...new Set([image.location, ...Object.values(launch.imageVolumes).map(({ location }) => location)]),
    ];
    await Promise.all(locations.map((location) => this.#attachImage(location)));
    const { mounts, prepare } = containerMounts(this.#home, launch);
    const nodes = await this.#context.disks.devices(this.#home.spec, spec, (command) => this.#call([command]));
    // Whose processes the container sees: the guest knows where they are.
    const isShared = this.#home.spec.security?.share_process_namespace === true;
    const processes = isShared ? "shared" : launch.target?.id;
    const config = ociConfig({
      spec,
      image: image.config,
      user,
      hostname: kernelHostname(this.#home.spec, this.#home.id),
      rootfs: `${CONTAINERS}/${id}/rootfs`,
      // The VM is the machine: its network, hostname and IPC are the containers'.
      namespaces: [{ type: "pid", ...(processes === undefined ? {} : { path: `${CONTAINERS}/${id}/processes` }) }],
      mounts,
      devices: { nodes, areBound: false },
      cgroupsPath: `${GROUPS}/${id}/ctr`,
      cgroupVersion: 2,
      sysctls: [],
      seccomp: (capabilities) => seccompProfile(this.#context.seccomp(), capabilities, process.arch),
      pidsLimit: this.#context.pidsLimit,
      // The guest's own programs, with 0, outlive its containers.
      machine: { spec: this.#home.spec, memoryBytes: this.#vm.size.memoryMib * 2 ** 20, lowestOomScoreAdj: 0 },
      poststart: ["/bin/started", `${CONTAINERS}/${id}/start`],
    }) as { process: ContainerStart["process"]; linux: { seccomp?: object } };
    // Random addresses, which the guest's own programs do without (guest/fixed.c).
    const whole = { ...config, linux: { ...config.linux, personality: { domain: "LINUX" } } };
    const port = await this.#vm.ports.take(this.#limited(undefined));
    this.#ports.set(id, port);
    const flags = spec.stdin === true ? "i" : "-";
    using patience = this.#patience();
    const late = patience.signal;
    try {
      const start: ContainerStart = { process: whole.process, port: port.number };
      await writeFileAtomic(this.#startFile(launch), JSON.stringify(start), 0o600);
      const commands = [
        ...locations.map((location) => ["image", imageName(location), imageSerial(location)]),
        ["launch", id, imageName(image.location), processes ?? "-", ...configParts(whole, this.#context.warming)],
        ...prepare,
        ["run", id, String(port.number), port.token, flags, spec.tty === true ? "tty" : "pipes"],
      ];
      await this.#vm.control.run(commands, late);
    } catch (thrown) {
      if (late.aborted) {
        // A guest that hangs would hold up the starts of all machines, again and again: it is told as lost.
        await this.#vm.kill();
        throw thrown;
      }
      // A guest that did not answer may begin it yet: see `GuestPorts.release`.
      if (!(thrown instanceof GuestError)) this.#ports.delete(id);
      await this.conclude(launch, { exitCode: START_ERROR_EXIT }, () => {}).catch(() => undefined);
      throw mountRefused(spec.name, thrown) ?? thrown;
    }
    return {
      guest: { socket: port.socket, token: port.token },
      user: { uid: user.uid, gid: user.gid, supplemental_groups: user.supplementalGroups },
    };
  }

  async signal(container: ContainerRef, signal: number): Promise<void> {
    await this.#call([["signal", container.id, String(signal)]]);
  }

  async kill(container: ContainerRef): Promise<void> {
    if (!this.#vm.alive) {
      // Before the end of its containers is taken for one of their own.
      await this.#lose();
      return;
    }
    using patience = this.#patience();
    const late = patience.signal;
    try {
      await this.#vm.control.run([["kill", container.id]], late);
      this.#failedKills = 0;
      const { clock } = this.#context;
      const since = this.#killedAt.get(container.id) ?? clock.monotonic();
      this.#killedAt.set(container.id, since);
      if (clock.monotonic() - since < KILL_PATIENCE_MS) return;
    } catch (thrown) {
      this.#failedKills++;
      if (!late.aborted && this.#failedKills < MAX_FAILED_KILLS) throw thrown;
    }
    // A guest that hangs, refuses, answers nonsense, or agrees and then reports no end would keep its machine for ever:
    // it takes all containers with it, and is told as lost.
    await this.#vm.kill();
  }

  async conclude(
    container: ContainerRef,
    exit: ShimExit,
    keep: (conclusion: ContainerConclusion) => void,
  ): Promise<ContainerConclusion> {
    // The guest tells and removes in one: only here, between its answer and the host's file, can a kill lose it.
    const conclusion = conclusionIn(await this.#call([["conclude", container.id]]), exit);
    keep(conclusion);
    const port = this.#ports.get(container.id);
    this.#ports.delete(container.id);
    this.#killedAt.delete(container.id);
    await rm(this.#startFile(container), { force: true });
    if (port !== undefined) this.#vm.ports.release(port);
    return conclusion;
  }

  async exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const { process: base } = JSON.parse(await readFile(this.#startFile(container), "utf8")) as ContainerStart;
    const env = commandEnv(base.env, options.tty);
    const described = JSON.stringify({ ...base, args: command, env, terminal: options.tty });
    const { streams, ended } = await this.#open(options, {
      begin: ({ number, token }) => [
        "exec",
        container.id,
        String(number),
        token,
        options.stdin ? "i" : "-",
        options.tty ? "tty" : "pipes",
        described,
      ],
      end: ({ token }) => [["exec_end", container.id, token]],
    });
    const exit = streams.exit.then(async (result) => {
      // Only a command that failed may be one that could not be run.
      if (result.exitCode === 0) return result;
      const complaint = (await ended.catch(() => "")).trim();
      if (/executable file|No such file|permission denied/i.test(complaint))
        throw new ProviderError("invalid", `cannot run ${JSON.stringify(command[0])}: ${complaint}`, {
          field: "command",
        });
      return result;
    });
    exit.catch(() => undefined);
    return { ...streams, exit };
  }

  async dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
    try {
      return await dialTcp(this.addresses[0]!, port, signal);
    } catch (thrown) {
      // A program that listens on the loopback alone is reached from inside.
      if (target === "address" || (thrown as NodeJS.ErrnoException).code !== "ECONNREFUSED") throw thrown;
      const options = { stdin: true, stdout: true, stderr: false, tty: false, signal };
      const { streams } = await this.#open(options, {
        begin: ({ number, token }) => ["dial", String(number), token, String(port)],
      });
      if (!(await streams.started)) throw thrown;
      const stream = Duplex.from({ writable: streams.stdin!, readable: streams.stdout! });
      stream.once("close", () => streams.close());
      return stream;
    }
  }

  /**
   * Begins a command of this backend's own in the guest, on a port of its own.
   * @returns its streams, and what the guest says when it is over
   */
  async #open(
    options: StreamOptions,
    command: { begin(port: GuestPort): GuestCommand; end?(port: GuestPort): GuestCommand[] },
  ): Promise<{ streams: GuestStreams; ended: Promise<string> }> {
    const port = await this.#vm.ports.take(this.#limited(options.signal));
    const streams = openStreams(port, options);
    // Not by the caller's signal: what may have begun is ended before another command gets the port.
    const begun = this.#call([command.begin(port)]);
    const ended = (async () => {
      await streams.exit.catch(() => undefined);
      const isKnown = await begun.then(
        () => true,
        (thrown: unknown) => thrown instanceof GuestError,
      );
      const said = await this.#endSession(["end_session", port.token], command.end?.(port) ?? []);
      // One that was never answered for may yet come, and would take the word that is meant for the next.
      if (!isKnown) await pause(this.#context.clock, QUARANTINE_MS, this.#closing.signal);
      this.#vm.ports.release(port);
      return said;
    })();
    ended.catch(() => undefined);
    try {
      await unlessAborted(begun, options.signal);
    } catch (thrown) {
      streams.close();
      throw thrown;
    }
    return { streams, ended };
  }

  /** As often as it takes: a guest that stood still for a while must not have lost the port for good. */
  async #endSession(end: GuestCommand, more: readonly GuestCommand[]): Promise<string> {
    for (;;) {
      try {
        return await this.#call([end, ...more]);
      } catch (thrown) {
        if (thrown instanceof GuestError || !this.#vm.alive || this.#closing.signal.aborted) throw thrown;
        await pause(this.#context.clock, SESSION_RETRY_MS, this.#closing.signal);
      }
    }
  }

  async stats(containers: readonly ContainerRef[]): Promise<SandboxStats> {
    const network = await this.#context.network.counters(this.#vm.key);
    const told = sandboxStats(await this.#call([["stats"]]), this.#home.spec, containers);
    return { ...told, ...(network === undefined ? {} : { network }) };
  }

  async applyFiles(volume: Extract<Volume, { type: "files" }>): Promise<void> {
    await this.#script(await filesScript(this.#home, volume));
  }

  async readVolumeFile(volume: string, path: string, maxBytes: number): Promise<Buffer> {
    return await readGuestFile((command) => this.#call([command]), { volume, path, maxBytes });
  }

  async resize(container: ContainerRef, resources: ContainerResources): Promise<void> {
    const limit = resources.limits?.memory_bytes;
    this.#requireRoom(container.name, resources);
    const wanted = ociResources(resources, this.#home.spec.resources, 2);
    const text = JSON.stringify({
      ...wanted,
      cpu: { quota: -1, ...wanted.cpu },
      memory: wanted.memory ?? { limit: -1, swap: -1 },
    });
    try {
      await this.#call([["resize", container.id, String(limit ?? 0), text]]);
    } catch (thrown) {
      if (!(thrown instanceof GuestError) || !thrown.message.includes("below what the container uses")) throw thrown;
      throw new ProviderError("conflict", `memory limit ${limit}: ${thrown.message}`, {
        field: "resources.limits.memory_bytes",
        cause: thrown,
      });
    }
  }

  /** A VM keeps the size that it was made with. */
  #requireRoom(name: string, resources: ContainerResources): void {
    const { spec } = this.#home;
    const change = (all: ContainerSpec[] = []) => all.map((one) => (one.name === name ? { ...one, resources } : one));
    const containers = change(spec.containers);
    const changed = { ...spec, containers, init_containers: change(spec.init_containers) };
    const needed = vmSize(changed, this.#context.sizing);
    const { memoryMib, cpus } = this.#vm.size;
    const refuse = (key: string, what: string) =>
      new ProviderError("invalid", `the machine's containers would need a VM with ${what}`, {
        field: `resources.limits.${key}`,
      });
    if (needed.memoryMib > memoryMib)
      throw refuse("memory_bytes", `${needed.memoryMib} MiB of memory, it has ${memoryMib}`);
    if (needed.cpus > cpus) throw refuse("cpu_millis", `${needed.cpus} processors, it has ${cpus}`);
  }

  async close(): Promise<void> {
    this.#cancelWatch?.();
    this.#health.close();
    this.#closing.abort(new Error("the sandbox is closed"));
    this.#vm.control.close();
  }

  async #call(commands: readonly GuestCommand[], signal?: AbortSignal): Promise<string> {
    // A guest has one channel: opened again by who comes late, it would be shut to who has the VM from now on.
    this.#closing.signal.throwIfAborted();
    return await this.#vm.control.run(commands, this.#limited(signal));
  }

  async #script(text: string): Promise<string> {
    this.#closing.signal.throwIfAborted();
    return await this.#vm.control.script(text, this.#limited(undefined));
  }

  /** For an answer without which its VM is killed: one whose host is overrun is late, and does not hang. */
  #patience(): Patience {
    const { callMs, clock } = this.#context;
    return patienceFor(() => this.#vm.processorMs, { ms: callMs, processorMs: CALL_PROCESSOR_MS }, clock);
  }

  #limited(signal: AbortSignal | undefined): AbortSignal {
    const timeout = AbortSignal.timeout(this.#context.callMs);
    return signal === undefined ? timeout : AbortSignal.any([signal, timeout]);
  }

  onHealth(listener: (health: SandboxHealth) => void): void {
    this.#healthListener = listener;
  }

  #probe(): GuestProbe {
    const { control, qmp } = this.#vm;
    const ask = async (command: string, signal: AbortSignal) => {
      using connection = await Qmp.open(qmp, signal);
      return await connection.execute(command);
    };
    return {
      status: async (signal) => String(((await ask("query-status", signal)) as { status?: unknown }).status),
      resume: async (signal) => void (await ask("cont", signal)),
      time: async (signal) => Number((await control.script("date +%s", signal)).trim()),
      setTime: async (ms, signal) => void (await control.script(`clock ${Math.floor(ms)}`, signal)),
      hasRoom: async () => {
        const { bavail, bsize } = await statfs(this.#context.vmsDir);
        return bavail * bsize >= MIN_ROOM_BYTES;
      },
    };
  }

  #watch(): void {
    this.#cancelWatch = this.#context.clock.after(LOSS_POLL_MS, () => {
      if (!this.#vm.alive) return void this.#lose();
      this.#vm.trimLog();
      this.#watch();
    });
  }

  async #lose(): Promise<void> {
    this.#resolveLost((await this.#vm.wasOutOfMemory()) ? OUT_OF_MEMORY : ENDED);
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
    const file = await linkDisk(await imageDisk(location), imagesDir(this.#vm.qmp), serial);
    await attachDisk(this.#vm.qmp, { id: serial, file }, AbortSignal.timeout(this.#context.bootTimeoutMs));
  }

  /** Earlier versions had them on the disk. */
  get #startDirs(): [string, string] {
    return [join(this.#home.secretDir, "run"), join(this.#home.dir, "run")];
  }

  #startFile(container: Pick<ContainerRef, "id">): string {
    const [own, old] = this.#startDirs.map((dir) => join(dir, `${container.id}.json`)) as [string, string];
    return existsSync(old) ? old : own;
  }
}

/** As a kubelet says it; undefined when that was not it. */
function mountRefused(container: string, thrown: unknown): ContainerError | undefined {
  if (!(thrown instanceof GuestError)) return undefined;
  const [, subPath] = /(?:^|\n)subPath ([^\n]*)$/.exec(thrown.message) ?? [];
  const [hostPath] = /hostPath type check failed: [^\n]*$/.exec(thrown.message) ?? [];
  const message =
    subPath === undefined ? hostPath : `failed to prepare subPath for container "${container}": ${subPath}`;
  if (message === undefined) return undefined;
  return new ContainerError("CreateContainerConfigError", message, { cause: thrown });
}

function noneWhenMissing(thrown: unknown): string[] {
  if (isMissing(thrown)) return [];
  throw thrown;
}

/** What a guest says of a container's end. */
function conclusionIn(text: string, exit: ShimExit): ContainerConclusion {
  if (exit.startError !== undefined) return { exitCode: START_ERROR_EXIT, startError: exit.startError };
  const oomKilled = Number(/^oom (\d+)$/m.exec(text)?.[1] ?? 0) > 0;
  const message = Buffer.from(/^message ([A-Za-z0-9+/=]*)$/m.exec(text)?.[1] ?? "", "base64").toString("utf8");
  return { ...(oomKilled ? { oomKilled } : {}), ...(message === "" ? {} : { terminationMessage: message }) };
}
