/**
 * Volumes of a cloud under seeded schedules: agents of two nodes and a CSI driver, each the real provider, on one cloud and
 * guests that are remembered. Calls are late, lost or done though nobody hears of it, also long afterwards; processes are
 * killed at any of them; lists lag; VMs boot, stop, are out of sight and go. What must hold meanwhile, and in the end when
 * nothing fails any more, is said in `judge.ts`.
 */
import type {
  CloudVolumeRequest,
  CloudVolumes,
  Entry,
  EntryStore,
  Vm,
  VmCloud,
} from "../../../providers/cloud/cloud.ts";
import { BIRTH_LABEL } from "../../../providers/cloud/labels.ts";
import { CloudProvider } from "../../../providers/cloud/provider.ts";
import { volumeEntryOf, volumeRecordOf } from "../../../providers/cloud/volume-record.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { isProviderError, ProviderError } from "../../../src/provider/errors.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import type { VolumeProvider } from "../../../src/provider/volume.ts";
import type { Random } from "../../../src/util/random.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { givenIn, unavailable } from "../../support/cloud-agents.ts";
import { CloudState, SMALL } from "../../support/cloud-state.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { pick, seeded } from "../seeded.ts";
import { Violation } from "../violation.ts";
import { Judge } from "./judge.ts";

const MIB = 2 ** 20;
const STEPS = 100;
const NODES = ["a", "b"] as const;
/** By node: of one there are two, of which each takes itself for the only one. */
const AGENTS = { a: ["a1", "a2"], b: ["b1"] } as const;
const VOLUMES = ["v1", "v2"] as const;
const COPIES = ["copy1", "copy2"] as const;
const REST_MS = 40 * 60_000;
const SCOPE = "sim";
/** What is asked of a process that is killed meanwhile never ends. */
const FOREVER = new Promise<never>(() => {});

/** A planted bug: what the provider sees of its cloud or of guests, or does to them, is another. */
export interface CloudVolumeMutant {
  readonly name: string;
  readonly caughtAs: string;
  readonly cloud?: (real: VmCloud) => VmCloud;
  readonly machine?: (real: Machine) => Machine;
}

type Node = keyof typeof AGENTS;

interface Process {
  readonly name: string;
  readonly provider: CloudProvider;
  isAlive: boolean;
}

interface Options {
  readonly seed: number;
  readonly mutant?: CloudVolumeMutant | undefined;
  readonly trace?: ((line: string) => void) | undefined;
}

/** @returns what does not hold; undefined when all does */
export async function simulate(options: Options): Promise<Violation | undefined> {
  const world = new CloudVolumeWorld(options);
  try {
    await world.run();
  } catch (thrown) {
    if (!(thrown instanceof Violation)) throw thrown;
    return thrown;
  } finally {
    world.close();
  }
  return undefined;
}

class CloudVolumeWorld {
  readonly #options: Options;
  readonly #random: Random;
  readonly #clock = new VirtualClock();
  readonly #state: CloudState;
  readonly #judge: Judge;
  /** By the VM's birth: what a guest has dies with its VM. */
  readonly #guests = new Map<string, MemoryProvider>();
  readonly #processes = new Map<string, Process>();
  #photo: { entries: Entry[]; vms: Vm[] } = { entries: [], vms: [] };
  #isFair = false;
  #machines = 0;
  /** By machine, its node. */
  readonly #asked = new Map<string, Node>();
  /** One call about a volume's reservations at a time, as its attacher makes them. */
  readonly #reserving = new Set<string>();
  #violation: Violation | undefined;

  constructor(options: Options) {
    this.#options = options;
    this.#random = seeded(options.seed);
    this.#state = new CloudState({ bootsAtOnce: false, deletesSlowly: this.#random() < 0.5 });
    this.#state.copiesInUse = this.#random() < 0.5;
    this.#judge = new Judge(this.#state, this.#guests);
    for (const name of ["csi", ...AGENTS.a, ...AGENTS.b]) this.#start(name);
  }

  async run(): Promise<void> {
    await this.#begin();
    for (let step = 0; step < STEPS; step++) {
      this.#act(step > STEPS / 2);
      await this.#pass(this.#random() * 4_000);
      this.#judge.areThere();
    }
    await this.#rest();
  }

  /** There are volumes, each of a node's. */
  async #begin(): Promise<void> {
    this.#isFair = true;
    for (const id of VOLUMES) {
      await this.#liveWhile(this.#create(id));
      await this.#liveWhile(this.#csi.reserve(id, pick(this.#random, NODES), inTime()));
    }
    this.#isFair = false;
  }

  close(): void {
    for (const { provider } of this.#processes.values()) void provider.close();
  }

  /** @throws Violation */
  async #pass(ms: number): Promise<void> {
    await this.#clock.advance(ms);
    if (this.#violation !== undefined) throw this.#violation;
  }

  #trace(line: string): void {
    this.#options.trace?.(`${(this.#clock.monotonic() / 1000).toFixed(1)} ${line}`);
  }

  // --------------------------------------------------------------------------------------------------------- processes

  #start(name: string): void {
    this.#trace(`${name} starts`);
    const process: { isAlive: boolean } = { isAlive: true };
    const real = this.#cloudOf(name, process);
    const provider = new CloudProvider({
      cloud: this.#options.mutant?.cloud?.(real) ?? real,
      openGuest: (vm) => this.#guestOf(vm, name, process),
      scope: SCOPE,
      types: [SMALL],
      makeEveryMs: 5_000,
      lookEveryMs: 15_000,
      collectEveryMs: 30_000,
      bootMs: 60_000,
      clock: this.#clock,
      random: this.#random,
    });
    this.#processes.set(name, Object.assign(process, { name, provider }));
    if (name !== "csi") this.#quietly(provider.getPods({ labels: { node: name[0]! }, ...inTime() }));
  }

  #kill(name: string): void {
    this.#trace(`${name} is killed`);
    const process = this.#processes.get(name)!;
    process.isAlive = false;
    void process.provider.close();
    this.#start(name);
  }

  /** A request on its way: what becomes of it, and when. */
  async #send<T>(
    what: string,
    process: { isAlive: boolean },
    name: string,
    exec: () => T | Promise<T>,
    changes = true,
  ): Promise<T> {
    const random = this.#random;
    if (!this.#isFair) await this.#clock.sleep(random() * 300);
    if (!process.isAlive) return await FOREVER;
    const fate = this.#isFair ? 1 : random();
    if (fate < 0.05) throw unavailable();
    if (fate < 0.08 && changes) {
      this.#clock.after(random() * 90_000, () => {
        this.#trace(`${name}: ${what}, late`);
        void (async () => await exec())().catch((thrown: unknown) => this.#note(thrown));
      });
      throw unavailable();
    }
    try {
      const done = await exec();
      this.#trace(`${name}: ${what}${fate < 0.12 ? ", and nobody hears of it" : ""}`);
      if (fate < 0.12) throw unavailable();
      if (changes && fate < 0.135) this.#kill(name);
      return process.isAlive ? done : await FOREVER;
    } catch (thrown) {
      this.#note(thrown);
      throw thrown;
    }
  }

  #note(thrown: unknown): void {
    if (thrown instanceof Violation) this.#violation ??= thrown;
    else if (!isProviderError(thrown)) throw thrown;
  }

  #cloudOf(name: string, process: { isAlive: boolean }): VmCloud {
    const state = this.#state;
    const send = <T>(what: string, exec: () => T | Promise<T>) => this.#send(what, process, name, exec);
    const read = <T>(what: string, exec: () => T) => this.#send(what, process, name, exec, false);
    const lags = () => !this.#isFair && this.#random() < 0.3;
    const entries: EntryStore = {
      get: (entry) => read(`get ${entry}`, () => state.entry(entry)),
      list: ([key, value]) =>
        read("list entries", () =>
          (lags() ? this.#photo.entries : state.entries()).filter(({ words }) => words[key] === value),
        ),
      create: (entry, words) => send(`create ${entry} ${JSON.stringify(words)}`, () => state.createEntry(entry, words)),
      swap: (entry, words, version) =>
        send(`swap ${entry} ${JSON.stringify(words)}`, () => state.swapEntry(entry, words, version)),
      remove: (entry, version) => send(`remove ${entry}`, () => state.removeEntry(entry, version)),
    };
    const volumes: CloudVolumes = {
      classes: [{ name: "disks", sharing: "one" }],
      create: (request) => send(`make ${request.name} of ${request.source?.name}`, () => this.#makeVolume(request)),
      get: (volume) => read(`look at ${volume.name}`, () => state.volume(volume.name)),
      list: ([key, value]) =>
        read("list volumes", () =>
          [...state.volumes.keys()].map((each) => state.volume(each)).filter(({ labels }) => labels[key] === value),
        ),
      grow: () => Promise.resolve(),
      delete: (volume) => send(`delete ${volume.name}`, () => state.deleteVolume(volume.name)),
      detach: (vm, volume) =>
        send(`detach ${volume} of ${vm}`, async () => {
          await this.#judge.detach(vm, volume);
          state.detach(vm, volume);
        }),
      copiesInUse: () => read("ask of copies", () => state.copiesInUse),
      room: () => read("ask for room", () => state.roomBytes),
    };
    return {
      name: "toy",
      entries,
      volumes,
      createVm: (request) => send(`order ${request.name}`, () => state.createVm(request)),
      getVm: (vm) => read(`look at ${vm}`, () => state.vm(vm)),
      listVms: ([key, value]) =>
        read("list VMs", () =>
          (lags() ? this.#photo.vms : state.allVms()).filter(({ labels }) => labels[key] === value),
        ),
      deleteVm: (vm) => send(`delete ${vm}`, () => state.deleteVm(vm)),
      dial: () => Promise.reject(new Error("not simulated")),
      close: () => Promise.resolve(),
    };
  }

  /** A copy may take its time, and come to nothing. */
  async #makeVolume(request: CloudVolumeRequest): Promise<void> {
    if (request.source !== undefined) await this.#judge.copied(request.source.name);
    this.#state.createVolume(request);
    const random = this.#random;
    if (request.source === undefined || this.#isFair || random() < 0.4) return;
    const volume = this.#state.volumeOf(request.name);
    volume.state = "making";
    const end = random() < 0.7 ? "ready" : "broken";
    this.#clock.after(random() * 20_000, () => {
      volume.state = end;
    });
  }

  #guestOf(vm: Vm, name: string, process: { isAlive: boolean }): Provider {
    const birth = vm.labels[BIRTH_LABEL]!;
    const given = givenIn(this.#state, vm);
    const guest = this.#guests.get(birth) ?? new MemoryProvider({ clock: this.#clock, given });
    this.#guests.set(birth, guest);
    return new Proxy(guest, {
      get: (target, key) => {
        if (key === "close") return () => Promise.resolve();
        if (key === "watchPods") return undefined;
        const value: unknown = Reflect.get(target, key, target);
        if (typeof value !== "function") return value;
        return (...args: unknown[]) =>
          this.#send(`${String(key)} in ${vm.name}`, process, name, async () => {
            const known = this.#state.vms.get(vm.name);
            if (known?.request.labels[BIRTH_LABEL] !== birth || known.state !== "running" || !known.isSeen)
              throw unavailable();
            const ask = () => value.apply(target, args) as Promise<unknown>;
            const answer = key === "createPod" ? await this.#judge.told(vm.name, ask) : await ask();
            return this.#asSeen(answer);
          });
      },
    });
  }

  /** What a guest says of its machines, as the provider takes it. */
  #asSeen(answer: unknown): unknown {
    const seen = this.#options.mutant?.machine;
    if (seen === undefined || typeof answer !== "object" || answer === null) return answer;
    if ("items" in answer) return { ...answer, items: (answer.items as Machine[]).map(seen) };
    return "state" in answer ? seen(answer as Machine) : answer;
  }

  // ------------------------------------------------------------------------------------------------------------ actions

  /** @param isLate ends of volumes are asked for */
  #act(isLate: boolean): void {
    const x = this.#random();
    if (x < 0.4) this.#moveVm();
    else if (x < 0.42) this.#photo = { entries: this.#state.entries(), vms: this.#state.allVms() };
    else if (x < 0.44) this.#kill(pick(this.#random, [...this.#processes.keys()]));
    else if (x < 0.7) this.#askForMachines();
    else this.#askForVolumes(isLate);
  }

  #moveVm(): void {
    const vms = [...this.#state.vms.values()];
    if (vms.length === 0) return;
    const vm = pick(this.#random, vms);
    const x = this.#random();
    if (x < 0.8 && vm.state === "booting") vm.state = "running";
    else if (x < 0.5 && vm.state === "deleting") this.#state.lose(vm.request.name);
    else if (x < 0.9) vm.isSeen = !vm.isSeen;
    else if (x < 0.93 && vm.state === "running") vm.state = "stopped";
    else if (x > 0.98) this.#state.lose(vm.request.name);
    this.#trace(`  ${vm.request.name}: ${vm.state}${vm.isSeen ? "" : ", out of sight"}`);
  }

  #askForMachines(): void {
    const known = [...this.#asked];
    if (known.length > 0 && this.#random() < 0.45) {
      const [id, node] = pick(this.#random, known);
      const force = this.#random() < 0.3;
      this.#trace(`${node}: delete machine ${id}`);
      return this.#quietly(this.#agentOf(node).deletePod(id, { ...inTime(), force }));
    }
    const node = pick(this.#random, NODES);
    const again = this.#random() < 0.4 ? known.filter(([, its]) => its === node).map(([id]) => id) : [];
    const id = again.length > 0 ? pick(this.#random, again) : `m${++this.#machines}`;
    this.#asked.set(id, node);
    const volume = VOLUMES[Number(id.slice(1)) % VOLUMES.length]!;
    this.#trace(`${node}: machine ${id} with ${volume}`);
    this.#quietly(
      this.#agentOf(node).createPod(id, using(volume, node, Number(id.slice(1)) % 3 === 0 ? SLOW : QUICK), inTime()),
    );
  }

  #askForVolumes(isLate: boolean): void {
    const x = this.#random();
    if (x < 0.2) this.#quietly(this.#lookAt(pick(this.#random, VOLUMES)));
    else if (x < 0.7) this.#quietly(this.#attachOrDetach(pick(this.#random, VOLUMES), pick(this.#random, NODES)));
    else if (x < 0.9 || !isLate) this.#quietly(this.#create(pick(this.#random, [...COPIES, ...COPIES, ...VOLUMES])));
    else this.#quietly(this.#delete(pick(this.#random, [...VOLUMES, ...COPIES])));
  }

  async #create(id: string): Promise<void> {
    const source = VOLUMES[COPIES.findIndex((each) => each === id)];
    const spec = {
      labels: {},
      size_bytes: MIB,
      mode: "filesystem" as const,
      ...(source && { source: { volume: source } }),
    };
    this.#trace(`csi: create ${id}`);
    await this.#csi.create(id, spec, inTime());
    this.#judge.made(id, volumeRecordOf(this.#state.entry(volumeEntryOf(id))).content?.name ?? "");
  }

  async #lookAt(id: string): Promise<void> {
    const before = await this.#judge.writers(id);
    const { attachments } = await this.#csi.get(id, inTime());
    await this.#judge.toldOf(id, before, attachments);
  }

  async #delete(id: string): Promise<void> {
    this.#trace(`csi: delete ${id}`);
    this.#judge.unwanted(id);
    await this.#csi.delete(id, inTime());
    this.#judge.deleted(id);
  }

  /** What fails is asked for again at another time, or never. */
  #quietly(work: Promise<unknown>): void {
    void work.catch((thrown: unknown) => this.#note(thrown));
  }

  async #attachOrDetach(id: string, node: string): Promise<void> {
    if (this.#reserving.has(id)) return;
    const volumes = this.#csi;
    this.#reserving.add(id);
    // That of a process that is killed meanwhile never ends; the next one begins again.
    const cancel = this.#clock.after(60_000, () => this.#reserving.delete(id));
    try {
      if (this.#random() < 0.6) await volumes.reserve(id, node, inTime());
      else {
        await volumes.release(id, node, { ...inTime(), force: this.#random() < 0.3 });
        await this.#judge.released(id, node);
      }
    } finally {
      cancel();
      this.#reserving.delete(id);
    }
  }

  get #csi(): VolumeProvider {
    return this.#processes.get("csi")!.provider.volumes!;
  }

  /** One of its agents. */
  #agentOf(node: Node): CloudProvider {
    return this.#processes.get(pick(this.#random, AGENTS[node]))!.provider;
  }

  // --------------------------------------------------------------------------------------------------------------- rest

  /** Nothing fails any more: all that was asked for is taken back, and nothing is left. */
  async #rest(): Promise<void> {
    this.#isFair = true;
    this.#trace("nothing fails any more");
    for (const vm of this.#state.vms.values()) vm.isSeen = true;
    for (const name of [...this.#processes.keys()]) this.#kill(name);
    const attempt = async (what: string, work: () => Promise<unknown>): Promise<void> => {
      let failure: unknown = "it does not end";
      const until = this.#clock.monotonic() + REST_MS;
      while (this.#clock.monotonic() < until) {
        let isDone = false;
        const ended = work().then(
          () => (isDone = true),
          (thrown: unknown) => {
            this.#note(thrown);
            failure = thrown;
          },
        );
        void ended;
        await this.#liveOn(10_000);
        if (isDone) return;
      }
      throw new Violation("V7", `${what}: ${String(failure)}`);
    };
    for (const [id, node] of this.#asked) {
      await attempt(`machine ${id} does not go`, async () => {
        await this.#agentOf(node).deletePod(id, { ...inTime(), force: false });
        const { state } = await this.#agentOf(node).getPod(id, inTime());
        if (state !== "deleted") throw new ProviderError("unavailable", `it is ${state}`);
      });
    }
    this.#judge.areThere();
    for (const id of [...COPIES, ...VOLUMES]) {
      for (const node of NODES)
        await attempt(`volume ${id} is not released`, () => this.#csi.release(id, node, inTime()));
      await attempt(`volume ${id} does not go`, () => this.#delete(id));
    }
    await this.#liveOn(10 * 60_000);
    this.#judge.nothingLeft();
  }

  async #liveWhile(work: Promise<unknown>): Promise<void> {
    let isDone = false;
    const end = () => (isDone = true);
    work.then(end, end);
    while (!isDone) await this.#pass(100);
    await work;
  }

  /** VMs do by themselves what they should. */
  async #liveOn(ms: number): Promise<void> {
    for (let left = ms; left > 0; left -= 1_000) {
      for (const vm of [...this.#state.vms.values()]) {
        if (vm.state === "booting") vm.state = "running";
        else if (vm.state === "deleting") this.#state.lose(vm.request.name);
      }
      await this.#pass(1_000);
    }
  }
}

const inTime = () => ({ signal: new AbortController().signal });

/** What a machine does: it ends when it is told to, or when its grace is over. */
const QUICK = "sleep 36000";
const SLOW = "trap : TERM; while true; do sleep 36000; done";

const using = (volume: string, node: string, does: string): MachineSpec =>
  machineSpec({
    labels: { node },
    volumes: [{ name: "data", type: "persistent", volume, reservation: node }],
    containers: [{ ...script(does), mounts: [{ volume: "data", path: "/data" }] }],
  });
