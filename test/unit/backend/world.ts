/** A backend without processes: an engine and shims that do what the test says, on a clock that the test moves. */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { basename, join } from "node:path";
import { PassThrough } from "node:stream";
import { onTestFinished } from "vitest";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../../../src/provider/machine.ts";
import type { ProviderCapacity } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type {
  ContainerConclusion,
  ContainerLaunch,
  ContainerRef,
  Engine,
  ImageStore,
  Sandbox,
  SandboxLoss,
} from "../../../providers/local/engine.ts";
import type { EvictionOptions } from "../../../providers/local/host-care.ts";
import type { Observations } from "../../../providers/local/pressure/thresholds.ts";
import type { ClaimManager } from "../../../providers/local/plugins/claim-manager.ts";
import type { CsiManager } from "../../../providers/local/plugins/csi-manager.ts";
import type { DeviceManager } from "../../../providers/local/plugins/device-manager.ts";
import type { PluginOptions } from "../../../providers/local/plugins/host-plugins.ts";
import { LocalProvider } from "../../../providers/local/provider.ts";
import type { ShimEvents, Shims } from "../../../providers/local/engine.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

type EngineCall =
  | ("open" | "recover" | "signal" | "kill" | "conclude" | "launch" | "close")
  | ("applyFiles" | "readVolumeFile" | "resizeMachine");

export interface Instance {
  name: string;
  attempt: number;
  launch: ContainerLaunch;
  running: boolean;
  exit?: { exitCode: number; startedAt: number; finishedAt: number };
  startedAt: number;
  events?: ShimEvents;
  /** Signals that reached it, with the time in ms since the world began. */
  signals: { signal: string; at: number }[];
}

/** Exit code of an exec in the container; undefined leaves it running until it is closed. */
export type ExecScript = (container: string, command: string[]) => number | undefined;

/** Where there is one, for a disk takes milliseconds for what the backend flushes. */
const MEMORY = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
/** As whom all containers run. */
const USER = { uid: 7, gid: 7, supplemental_groups: [] };

export class World {
  readonly clock = new VirtualClock();
  /** Where the test has moved the clock to, monotonic milliseconds. */
  #aim = 0;
  readonly stateDir = mkdtempSync(join(MEMORY, "vmlet-unit-"));
  readonly instances: Instance[] = [];
  /** What happened, in order: `start a`, `exec a: hook`, `SIGTERM a`, `kill a`, `exit a 143`, `open`, `destroy`. */
  readonly journal: string[] = [];
  /** Containers that take no notice of stop signals. */
  readonly deaf = new Set<string>();
  /** Containers whose shim never comes to its first step. */
  readonly stuck = new Set<string>();
  /** Containers whose shim runs and never says that the command has started. */
  readonly silent = new Set<string>();
  /** Containers that have ended before anybody can see them run. */
  readonly hasty = new Set<string>();
  /** Containers whose launch fails, with the error. */
  readonly launchErrors = new Map<string, Error>();
  /** Containers whose shim cannot be started, with the error. */
  readonly shimErrors = new Map<string, Error>();
  readonly conclusions = new Map<string, ContainerConclusion>();
  /** Set: the engine takes so long to conclude, and has no answer for a second question. */
  concluding: Promise<void> | undefined;
  /** What the engine says before it concludes again. */
  concludeErrors: Error[] = [];
  /** Containers of which the engine has something in place, by id. */
  readonly prepared = new Set<string>();
  /** A launch takes so long. */
  launching: Promise<void> = Promise.resolve();
  /** What is in files of volumes, by `VOLUME/PATH`. */
  readonly files = new Map<string, Buffer | string>();
  /** Files take so long to be put in place. */
  applying: Promise<void> = Promise.resolve();
  /** A sandbox takes so long to be made. */
  opening: Promise<void> = Promise.resolve();
  openErrors: Error[] = [];
  destroyErrors: Error[] = [];
  recoverErrors: Error[] = [];
  /** Containers of which a new backend cannot learn at its first try whether they were started, with the error. */
  readonly findErrors = new Map<string, Error>();
  /** Containers whose end was written down and cannot be read just now, with the error. */
  readonly unreadable = new Map<string, Error>();
  /** Files in containers' layers and in volumes, by name. */
  readonly inodes = { containers: new Map<string, number>(), volumes: new Map<string, number>() };
  /** A call of the engine to destroy a sandbox takes as long as this. */
  destroying: Promise<void> = Promise.resolve();
  exec: ExecScript = () => 0;
  images: ImageStore | undefined;
  /** The engine that says which specifications it takes. Default: all of them are. */
  judge: Engine | undefined;
  /** Whether volumes that outlive machines are offered. Default: they are. */
  persistentVolumes: boolean | undefined;
  /** Where machines' secrets are. Default: on the disk. */
  secrets: { dir: string; maxBytes: number } | undefined;
  patched: string[] = [];
  /** Calls of the engine that it never answers. */
  readonly hung = new Set<EngineCall>();
  /** Of those, how many have been called. */
  hanging = 0;
  readonly #unhang = Promise.withResolvers<never>();
  /** Changes that the engine refuses, with the error. */
  readonly refusals = new Map<"resize" | "resizeMachine" | "applyFiles", Error>();
  /** What the engine measures. */
  volumes: { name: string; used_bytes: number }[] = [];
  /** The plugins of the host, and who gives out their devices. Default: there are none. */
  plugins: PluginOptions | undefined;
  devices!: DeviceManager;
  claims!: ClaimManager;
  csi!: CsiManager;
  /** When machines are evicted, and what their host has left. Default: never. */
  eviction: EvictionOptions | undefined;
  observed: Observations = new Map();
  /** What the engine says of the host, where it says something. */
  capacity: ProviderCapacity | undefined;
  /** Working sets of containers in bytes; of others, one. */
  readonly memory = new Map<string, number>();
  /** Bytes in the writable layers of containers. */
  readonly layers = new Map<string, number>();
  /** Containers that cannot be measured: the engine does not answer. */
  readonly unmeasurable = new Set<string>();
  /** How often the engine was asked to measure. */
  measured = 0;
  #lose: ((loss: SandboxLoss) => void) | undefined;
  sandboxes = 0;
  /** How often a sandbox was found again. */
  recovered = 0;
  alive = false;
  provider!: LocalProvider;
  readonly signal = new AbortController().signal;

  static async create(setUp: (world: World) => void = () => {}): Promise<World> {
    const world = new World();
    world.#unhang.promise.catch(() => {});
    setUp(world);
    await world.boot();
    onTestFinished(async () => {
      world.#unhang.reject(new Error("the test is over"));
      await world.provider.close();
      rmSync(world.stateDir, { recursive: true, force: true });
    });
    return world;
  }

  async boot(): Promise<void> {
    this.provider = await LocalProvider.open({
      engine: this.#engine(),
      shims: shimsOf(this),
      stateDir: this.stateDir,
      secrets: this.secrets,
      persistentVolumes: this.persistentVolumes,
      plugins: this.plugins && {
        ...this.plugins,
        onReady: (devices, claims, csi) => Object.assign(this, { devices, claims, csi }),
      },
      eviction: this.eviction,
      observe: () => Promise.resolve(this.observed),
      clock: this.clock,
      logger: silentLogger,
      host: "test",
      version: "0",
    });
    await settle();
  }

  /** The backend ends without a word and a new one starts; containers go on meanwhile. */
  async restart(meanwhile: () => void = () => {}): Promise<void> {
    await this.provider.close();
    for (const instance of this.instances) delete instance.events;
    meanwhile();
    await this.boot();
    await settle();
  }

  async create(spec: Partial<MachineSpec>, id = "m1"): Promise<void> {
    await this.provider.createPod(id, machine(spec), { signal: this.signal });
    await settle(20);
  }

  async machine(id = "m1"): Promise<Machine> {
    return await this.provider.getPod(id, { signal: this.signal });
  }

  async container(name: string, id = "m1"): Promise<ContainerState> {
    return (await this.machine(id)).containers.find((container) => container.name === name)!;
  }

  /** The reasons for which a container has been seen waiting, in order, since a revision. */
  async waits(name: string, since: number): Promise<string[]> {
    const seen: string[] = [];
    const stop = new AbortController();
    const { revision: last } = await this.machine();
    for await (const { machine: changed, revision } of this.provider.watchPods(since, {
      labels: {},
      signal: stop.signal,
    })) {
      const reason = changed.containers.find((container) => container.name === name)?.reason;
      if (reason !== undefined && seen.at(-1) !== reason) seen.push(reason);
      if (revision >= last) stop.abort();
    }
    return seen;
  }

  async notices(): Promise<string[]> {
    return ((await this.machine()).notices ?? []).map(({ reason, message }) => `${reason}: ${message}`);
  }

  /** Whole milliseconds since the world began: what happens up to half a one beside a test's time happens at it. */
  sinceBegin(): number {
    return Math.max(0, Math.ceil(this.clock.monotonic() - 0.5));
  }

  async advance(ms: number): Promise<void> {
    this.#aim += ms;
    // Half a millisecond past it: a timer that fired early has been set again, for the rest.
    await this.clock.advance(this.#aim + 0.5 - this.clock.monotonic());
    await settle(20);
  }

  async stop(graceSeconds: number, id = "m1"): Promise<void> {
    await this.provider.stopPod(id, { graceSeconds, signal: this.signal });
    await settle(20);
  }

  /** Newest instance of a container. */
  instance(name: string): Instance {
    return this.instances.findLast((instance) => instance.name === name)!;
  }

  running(): string[] {
    return this.instances.filter(({ running }) => running).map(({ name }) => name);
  }

  starts(name: string): number[] {
    return this.instances.filter((instance) => instance.name === name).map(({ startedAt }) => startedAt);
  }

  async exit(name: string, exitCode: number): Promise<void> {
    this.end(this.instance(name), exitCode);
    await settle(20);
  }

  async lose(loss: SandboxLoss): Promise<void> {
    this.alive = false;
    for (const instance of this.instances) instance.running = false;
    this.#lose!(loss);
    await settle(20);
  }

  end(instance: Instance, exitCode: number): void {
    if (!instance.running) return;
    instance.running = false;
    instance.exit = { exitCode, startedAt: this.clock.now(), finishedAt: this.clock.now() };
    this.journal.push(`exit ${instance.name} ${exitCode}`);
    instance.events?.exited(instance.exit);
    instance.events?.gone();
  }

  #hang(): Promise<never> {
    this.hanging++;
    return this.#unhang.promise;
  }

  #byId(ref: ContainerRef): Instance | undefined {
    return this.instances.find(({ launch }) => launch.id === ref.id);
  }

  #engine(): Engine {
    const all = this.judge?.capabilities ?? ALL_CAPABILITIES;
    // What its runtime has is known after the sweep only; what this host has, at once.
    let known: readonly Capability[] = all.filter((each) => each.startsWith("volumes."));
    return {
      name: this.judge?.name ?? "process",
      hasCdi: this.judge?.hasCdi ?? false,
      hasCsi: true,
      get capabilities() {
        return known;
      },
      ...(this.judge?.validate && { validate: (spec: MachineSpec) => this.judge!.validate!(spec) }),
      ...(this.images === undefined ? {} : { images: this.images }),
      ...(this.capacity === undefined ? {} : { capacity: () => Promise.resolve(this.capacity!) }),
      check: () => Promise.resolve([]),
      sweep: () => {
        known = all;
        return Promise.resolve();
      },
      open: async () => {
        await this.opening;
        const error = this.openErrors.shift();
        if (error !== undefined) throw error;
        if (this.hung.has("open")) await this.#hang();
        this.journal.push("open");
        this.sandboxes++;
        this.alive = true;
        return this.#sandbox();
      },
      recover: () => {
        const error = this.recoverErrors.shift();
        if (error !== undefined) return Promise.reject(error);
        if (this.hung.has("recover")) return this.#hang();
        if (!this.alive) return Promise.resolve(undefined);
        this.recovered++;
        return Promise.resolve(this.#sandbox());
      },
      destroy: async (home, options) => {
        const error = this.destroyErrors.shift();
        if (error !== undefined) throw error;
        await this.destroying;
        this.journal.push(options?.keepVolumes ? "destroy all but volumes" : "destroy");
        for (const instance of this.instances) {
          if (!instance.launch.dir.includes(join("machines", home.id, "containers"))) continue;
          instance.running = false;
          this.prepared.delete(instance.launch.id);
        }
        this.alive = false;
      },
      close: () => Promise.resolve(),
    };
  }

  #sandbox(): Sandbox {
    return {
      addresses: ["10.9.0.7"],
      lost: new Promise((resolve) => (this.#lose = resolve)),
      launch: async (launch) => {
        const error = this.launchErrors.get(launch.name);
        if (error !== undefined) throw error;
        this.prepared.add(launch.id);
        this.instances.push({
          name: launch.name,
          attempt: launch.attempt,
          launch,
          running: false,
          startedAt: 0,
          signals: [],
        });
        await this.launching;
        if (this.hung.has("launch")) await this.#hang();
        return { argv: launch.spec.command ?? [], env: {}, cwd: "/", user: USER };
      },
      signal: (ref, signal) => {
        const instance = this.#byId(ref)!;
        const name = Object.entries(constants.signals).find(([, number]) => number === signal)?.[0] ?? String(signal);
        this.journal.push(`${name} ${ref.name}`);
        instance.signals.push({ signal: name, at: this.sinceBegin() });
        if (this.hung.has("signal")) return this.#hang();
        if (!this.deaf.has(ref.name)) this.end(instance, 143);
        return Promise.resolve();
      },
      kill: (ref) => {
        const instance = this.#byId(ref);
        if (this.hung.has("kill")) return this.#hang();
        if (instance?.running) {
          this.journal.push(`kill ${ref.name}`);
          instance.signals.push({ signal: "SIGKILL", at: this.sinceBegin() });
          this.end(instance, 137);
        }
        return Promise.resolve();
      },
      conclude: async (ref, _exit, keep) => {
        const error = this.concludeErrors.shift();
        if (error !== undefined) throw error;
        const conclusion = this.conclusions.get(ref.name) ?? {};
        keep(conclusion);
        if (this.concluding !== undefined) this.conclusions.delete(ref.name);
        await this.concluding;
        if (this.hung.has("conclude")) await this.#hang();
        this.prepared.delete(ref.id);
        return conclusion;
      },
      exec: (ref, command, options) => {
        this.journal.push(`exec ${ref.name}: ${command.join(" ")}`);
        const exitCode = this.exec(ref.name, command);
        const exit = exitCode === undefined ? new Promise<never>(() => {}) : Promise.resolve({ exitCode });
        const stdout = options.stdout ? new PassThrough() : null;
        stdout?.end();
        return Promise.resolve({ stdin: null, stdout, stderr: null, exit, resize() {}, close() {} });
      },
      resize: (ref) => {
        this.journal.push(`resize ${ref.name}`);
        const error = this.refusals.get("resize");
        return error === undefined ? Promise.resolve() : Promise.reject(error);
      },
      resizeMachine: async ({ to }, containers) => {
        this.journal.push(`resize to ${to.limits?.memory_bytes ?? "no limit"}`);
        const error = this.refusals.get("resizeMachine");
        if (error !== undefined) throw error;
        if (this.hung.has("resizeMachine")) await this.#hang();
        await containers();
      },
      dial: () => Promise.reject(new Error("no network in this world")),
      inodes: () => Promise.resolve(this.inodes),
      stats: (running) => {
        this.measured++;
        if (running.some(({ name }) => this.unmeasurable.has(name))) return new Promise(() => {});
        return Promise.resolve({
          containers: running.map(({ name }) => ({
            name,
            cpu_usage_ns_total: 1,
            memory_working_set_bytes: this.memory.get(name) ?? 1,
            fs_used_bytes: this.layers.get(name) ?? 0,
          })),
          volumes: this.volumes,
        });
      },
      readVolumeFile: (volume, path, maxBytes) =>
        this.hung.has("readVolumeFile") ? this.#hang() : readFrom(this.files, `${volume}/${path}`, maxBytes),
      applyFiles: (volume) => {
        const error = this.refusals.get("applyFiles");
        if (error !== undefined) return Promise.reject(error);
        if (this.hung.has("applyFiles")) return this.#hang();
        this.patched.push(`${volume.name}=${volume.version}`);
        return this.applying;
      },
      close: () => (this.hung.has("close") ? this.#hang() : Promise.resolve()),
    };
  }

  /** From now on the file cannot be written, as on a full disk; the returned function mends that. */
  breakFile(...path: string[]): () => void {
    const file = join(this.stateDir, ...path);
    const inTheWay = [file, file.replace(/\.json$/, ".next.json")].map((each) => `${each}.tmp`);
    for (const each of inTheWay) mkdirSync(each, { recursive: true });
    return () => inTheWay.forEach((each) => rmSync(each, { recursive: true, force: true }));
  }

  /** As when it was kept in the memory of a host that boots. */
  loseSpec(id = "m1"): void {
    rmSync(join(this.stateDir, "machines", id, "spec.json"));
  }

  writeLog(name: string, lines: string[]): void {
    const text = lines.map((line) => `2026-01-01T00:00:00.000000000Z stdout F ${line}\n`).join("");
    writeFileSync(join(this.instance(name).launch.dir, "log.0"), text);
  }
}

function shimsOf(world: World): Shims {
  const find = ({ dir }: ContainerRef) => world.instances.find(({ launch }) => basename(launch.dir) === basename(dir))!;
  return {
    start: (container) => {
      const instance = find(container);
      if (world.stuck.has(instance.name)) return new Promise(() => {});
      const error = world.shimErrors.get(instance.name);
      if (error !== undefined) return Promise.reject(error);
      instance.running = true;
      instance.startedAt = world.sinceBegin();
      world.journal.push(`start ${instance.name}`);
      if (world.hasty.has(instance.name)) world.end(instance, 0);
      return Promise.resolve();
    },
    watch: (container, _socket, events) => {
      const instance = find(container);
      instance.events = events;
      queueMicrotask(() => {
        if (instance.events !== events || world.silent.has(instance.name)) return;
        events.started({ pid: 1, startedAt: world.clock.now() });
        if (instance.exit === undefined) return;
        events.exited(instance.exit);
        events.gone();
      });
      return {
        close() {
          if (instance.events === events) delete instance.events;
        },
      };
    },
    everStarted: (container) => {
      const { name, startedAt, running, exit } = find(container);
      const error = world.findErrors.get(name);
      world.findErrors.delete(name);
      if (error !== undefined) throw error;
      return startedAt > 0 || running || exit !== undefined;
    },
    recorded: (container) => {
      const instance = find(container);
      const error = world.unreadable.get(instance.name);
      if (error !== undefined) throw error;
      return instance.exit;
    },
    attach: () => Promise.reject(new Error("nothing to attach to in this world")),
  };
}

export function machine(spec: Partial<MachineSpec>): MachineSpec {
  return { labels: {}, restart_policy: "always", containers: [main("a")], ...spec };
}

export function main(name: string, more: Partial<ContainerSpec> = {}): ContainerSpec {
  return { name, image: "i", command: ["run"], ...more };
}

export function sidecar(name: string, more: Partial<ContainerSpec> = {}): ContainerSpec {
  return main(name, { restart_policy: "always", ...more });
}

async function readFrom(files: World["files"], name: string, maxBytes: number): Promise<Buffer> {
  const content = files.get(name);
  if (content === undefined) throw new Error("it does not exist");
  if (content.length > maxBytes) throw new Error("it is too long");
  return Buffer.from(content);
}
