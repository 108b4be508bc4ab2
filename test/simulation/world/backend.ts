/** Machines as the backend keeps them: by the Machine API's contract, tombstones included, and with its misfortunes. */
import { machineId } from "../../../src/podspec/machine-id.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import {
  isOver,
  withFileVersion,
  type ContainerState,
  type FileEntry,
  type Machine,
  type MachinePatch,
  type MachineSpec,
} from "../../../src/provider/machine.ts";
import { judgeBirth, judgeBurial, judgeStop } from "../invariants/machine-writes.ts";
import type { Sender } from "../invariants/sender.ts";
import { Violation } from "../violation.ts";
import { endedContainers, progressOf } from "./machine-life.ts";
import { CLUSTER, uidOf } from "./names.ts";
import type { World } from "./world.ts";

export interface BackendMachine {
  machine: Machine;
  spec: MachineSpec;
  /** True time, milliseconds since the epoch. */
  bornAt: number;
  bornRevision: number;
  /** It ignores being told to stop: only a kill ends it. */
  stubborn: boolean;
  /** What the file of its volume holds. */
  content?: string | undefined;
  /** A DELETE was accepted that is still to be done. */
  accepted?: boolean;
}

const TOMBSTONE_MS = 600_000;
/** What the reference backend waits before it keeps a deletion: nothing that a schedule should wait for. */
const STUBBORN_SHARE = 0.1;

export class Backend {
  readonly machines = new Map<string, BackendMachine>();
  /** Every change since the backend last lost its memory, in order. */
  log: Machine[] = [];
  /** Counts the times at which the backend lost its memory. */
  epoch = 0;
  /** How far its clock is ahead, milliseconds. */
  clockOffsetMs = 0;
  readonly #world: World;
  /** A machine that is over stays for some time after its DELETE was accepted. */
  readonly #deletesSlowly: boolean;
  #revision = 0;
  #serial = 0;
  #backup: { machines: Map<string, BackendMachine>; revision: number } | undefined;

  constructor(world: World, options: { deletesSlowly: boolean }) {
    this.#world = world;
    this.#deletesSlowly = options.deletesSlowly;
  }

  get revision(): number {
    return this.#revision;
  }

  /** RFC 3339 by the backend's own clock. */
  at(): string {
    return new Date(this.#world.now + this.clockOffsetMs).toISOString();
  }

  alive(uid: string): Machine[] {
    return [...this.machines.values()]
      .filter(({ machine }) => uidOf(machine) === uid && !isOver(machine))
      .map(({ machine }) => machine);
  }

  /** True time at which the pod's machine was made; undefined when there is none. */
  bornAt(uid: string): number | undefined {
    return this.machines.get(this.#world.idOf(uid))?.bornAt;
  }

  hasTombstone(uid: string): boolean {
    const id = this.#world.idOf(uid);
    return this.#world.cloud?.hasTombstone(id) ?? this.machines.get(id)?.machine.state === "deleted";
  }

  // ------------------------------------------------------------------------------------------------------------ agents

  put(wantedId: string, spec: MachineSpec, sender: Sender): Machine {
    const id = this.#world.flaws.createNotIdempotent ? `${wantedId}-${++this.#serial}` : wantedId;
    const known = this.machines.get(id);
    if (known?.machine.state === "deleted") throw new ProviderError("gone", "tombstone");
    const uid = spec.labels["vmlet.dev/uid"]!;
    if (known !== undefined) {
      if (uidOf(known.machine) !== uid) throw new Violation("S2", "one machine for two pods");
      // As the contract has it: files are not part of a specification's identity.
      const shape = ({ volumes: _files, ...rest }: MachineSpec) => JSON.stringify(rest);
      if (shape(known.spec) !== shape(spec)) throw new ProviderError("conflict", "exists with another specification");
      return known.machine;
    }
    this.#world.disks?.assertClaimable(spec);
    judgeBirth(this.#world, spec.labels, sender);
    const history = this.#world.history.of(uid);
    history.born++;
    // Nothing kept a late create from reviving it: the backend has lost the tombstone.
    if (history.lost && this.epoch > 0) history.revivedAt = Infinity;
    // No two machines are made in the same millisecond: their times of birth tell them apart.
    this.#world.now++;
    const container = (kind: ContainerState["kind"]) => (each: { name: string; image: string }) => ({
      name: each.name,
      kind,
      state: "waiting" as const,
      ready: false,
      started: false,
      restart_count: 0,
      image: each.image,
      image_id: "",
    });
    const machine: Machine = {
      id,
      version: 1,
      revision: ++this.#revision,
      labels: spec.labels,
      state: "creating",
      reachability: "ok",
      sandbox_ready: false,
      created_at: this.at(),
      addresses: [],
      containers: [...(spec.init_containers ?? []).map(container("init")), ...spec.containers.map(container("main"))],
      ...filesOf(spec),
    };
    const content = contentOf((spec.volumes ?? []).flatMap((v) => (v.type === "files" ? v.files : [])));
    this.machines.set(id, {
      machine,
      spec,
      content,
      bornAt: this.#world.now,
      bornRevision: this.#revision,
      stubborn: this.#world.random() < STUBBORN_SHARE,
    });
    this.log.push(machine);
    this.#world.disks?.judgeBirth(spec);
    return machine;
  }

  /** A machine that no agent of this history has made. */
  plant(uid: string, spec: MachineSpec): void {
    this.put(this.#world.idOf(uid), spec, {
      read: undefined,
      observed: { kind: "unknown" },
      pod: undefined,
      sentAt: this.#world.now,
    });
  }

  get(id: string): Machine {
    const known = this.machines.get(id);
    if (known === undefined) throw new ProviderError("not_found", "no such machine");
    return known.machine;
  }

  list(labels: Readonly<Record<string, string>>): Machine[] {
    return [...this.machines.values()]
      .map(({ machine }) => machine)
      .filter((m) => m.state !== "deleted" && Object.entries(labels).every(([k, v]) => m.labels[k] === v));
  }

  update(id: string, patch: MachinePatch): Machine {
    const machine = this.get(id);
    if (machine.state === "deleted") throw new ProviderError("gone", "tombstone");
    if (isOver(machine)) return machine;
    const files = (patch.files ?? []).flatMap((volume) => volume.files);
    if (files.length > 0) this.machines.get(id)!.content = contentOf(files);
    const versions = (patch.files ?? []).reduce((all, file) => withFileVersion(all, file), machine.file_versions);
    const images = new Map((patch.containers ?? []).map(({ name, image }) => [name, image]));
    return this.change(id, {
      ...(versions && { file_versions: versions }),
      containers: machine.containers.map((c) => ({ ...c, image: images.get(c.name) ?? c.image })),
    });
  }

  stop(id: string, graceSeconds: number, sender: Sender): Machine {
    const known = this.machines.get(id);
    if (known === undefined) throw new ProviderError("not_found", "no such machine");
    if (isOver(known.machine)) return known.machine;
    judgeStop(this.#world, known, graceSeconds, sender);
    const history = this.#world.history.of(uidOf(known.machine));
    history.stopBy = Math.min(history.stopBy, this.#world.now + graceSeconds * 1000);
    if (known.machine.state === "stopping" || known.machine.state === "deleting") return known.machine;
    return this.change(id, { state: "stopping" });
  }

  delete(id: string, { force, ifAbsent }: { force: boolean; ifAbsent?: boolean | undefined }, sender: Sender): void {
    const known = this.machines.get(id);
    if (known === undefined) {
      this.#leaveTombstone(id);
      return;
    }
    const { machine } = known;
    if (machine.state === "deleted") return;
    if (ifAbsent === true) throw new ProviderError("conflict", "there is a machine");
    judgeBurial(this.#world, known, force, sender);
    if (!isOver(machine) && !force) {
      this.change(id, { state: "deleting" });
      return;
    }
    if (this.#deletesSlowly && isOver(machine)) known.accepted = true;
    else this.bury(id);
  }

  #leaveTombstone(id: string): void {
    if (this.#world.flaws.noTombstones) return;
    const at = this.at();
    const tombstone: Machine = {
      id,
      version: 1,
      revision: ++this.#revision,
      labels: {},
      state: "deleted",
      reachability: "ok",
      sandbox_ready: false,
      created_at: at,
      deleted_at: at,
      addresses: [],
      containers: [],
    };
    this.machines.set(id, {
      machine: tombstone,
      spec: { labels: {}, containers: [], restart_policy: "never" },
      bornAt: this.#world.now,
      bornRevision: this.#revision,
      stubborn: false,
    });
    this.#expire(id, tombstone);
  }

  // -------------------------------------------------------------------------------------------------------- its own life

  change(id: string, change: Partial<Machine>): Machine {
    const known = this.machines.get(id)!;
    const machine = { ...known.machine, ...change, version: known.machine.version + 1, revision: ++this.#revision };
    known.machine = machine;
    this.log.push(machine);
    this.#world.trace?.(`  machine ${id} is ${brief(machine)}`);
    const { exits } = this.#world.history.of(uidOf(machine));
    for (const { terminated, last } of machine.containers)
      for (const end of [terminated, last])
        if (end?.id !== undefined) exits.set(end.id, { exitCode: end.exit_code, finishedAt: end.finished_at });
    return machine;
  }

  bury(id: string): void {
    const { machine } = this.machines.get(id)!;
    const buried = this.change(id, {
      state: "deleted",
      deleted_at: this.at(),
      containers: endedContainers(machine, this.at(), 137),
    });
    if (this.#world.flaws.noTombstones) this.machines.delete(id);
    else this.#expire(id, buried);
  }

  /** A step of a machine's own life. */
  progress(id: string): void {
    const known = this.machines.get(id)!;
    const { state } = known.machine;
    if (state === "deleted") return;
    if (state === "deleting" || (known.accepted && isOver(known.machine))) this.bury(id);
    else {
      const change = progressOf(
        known,
        this.at(),
        this.#world.random,
        this.#world.history.of(uidOf(known.machine)).born,
      );
      if (change !== undefined) this.change(id, change);
    }
  }

  #expire(id: string, { created_at }: Machine): void {
    if (!this.#world.scenario.tombstonesExpire) return;
    this.#tombstones.push({ id, created_at, at: this.#world.now + TOMBSTONE_MS });
  }

  readonly #tombstones: { id: string; created_at: string; at: number }[] = [];

  /** Removes the tombstones whose time has come. */
  sweepTombstones(): void {
    while (this.#tombstones.length > 0 && this.#tombstones[0]!.at <= this.#world.now) {
      const { id, created_at } = this.#tombstones.shift()!;
      const machine = this.machines.get(id)?.machine;
      if (machine?.state !== "deleted" || machine.created_at !== created_at) continue;
      this.#lose(id);
    }
  }

  /** The machine is gone without a trace. */
  vanish(id: string): void {
    this.#revision++;
    this.#lose(id);
  }

  #lose(id: string): void {
    const { machine } = this.machines.get(id)!;
    // The tombstone of a machine that never was carries no labels.
    const uid = uidOf(machine) || id.slice(machineId(CLUSTER, "").length);
    this.#world.trace?.(`  machine ${id} is lost`);
    this.#world.history.of(uid).lost = true;
    this.machines.delete(id);
  }

  /** Everything is gone, and revisions begin again. */
  loseEverything(): void {
    for (const id of [...this.machines.keys()]) this.#lose(id);
    this.#restart(0);
  }

  /** Remembers how everything is now. */
  backUp(): void {
    const machines = new Map([...this.machines].map(([id, known]) => [id, { ...known }]));
    this.#backup = { machines, revision: this.#revision };
  }

  /** Everything is as it was at the last backup: machines of then run again, later ones and tombstones are gone. */
  restore(): void {
    if (this.#backup === undefined) return;
    const { machines, revision } = this.#backup;
    this.#backup = undefined;
    const now = new Map(this.machines);
    for (const id of now.keys()) if (!machines.has(id)) this.#lose(id);
    for (const [id, known] of machines) {
      const current = now.get(id);
      const history = this.#world.history.of(uidOf(known.machine));
      if ((current === undefined || isOver(current.machine)) && !isOver(known.machine)) {
        history.revivedAt = Infinity;
        history.stopBy = Infinity;
      }
      if (current?.machine.state === "deleted") history.lost = true;
      this.machines.set(id, known);
    }
    this.#restart(revision);
  }

  #restart(revision: number): void {
    this.#revision = revision;
    this.log = [];
    this.epoch++;
  }

  /** A machine that was over runs again. */
  revive(id: string): void {
    const { machine } = this.machines.get(id)!;
    const history = this.#world.history.of(uidOf(machine));
    history.revivedAt = machine.version + 1;
    history.stopBy = Infinity;
    const containers = machine.containers.map(({ terminated, ...c }) =>
      c.kind === "main" && terminated !== undefined
        ? {
            ...c,
            state: "running" as const,
            restart_count: c.restart_count + 1,
            id: `${id}-${c.name}-${c.restart_count + 1}-again`,
            started_at: this.at(),
            last: terminated,
          }
        : { ...c, ...(terminated && { terminated }) },
    );
    const { stopped_at: _, ...rest } = machine;
    this.machines.get(id)!.machine = rest;
    this.change(id, { state: "running", containers });
  }
}

const contentOf = (files: readonly FileEntry[]): string | undefined =>
  files[0] === undefined ? undefined : Buffer.from(files[0].content_b64, "base64").toString();

function filesOf({ volumes }: MachineSpec): Pick<Machine, "file_versions"> {
  const files = (volumes ?? []).flatMap((v) => (v.type === "files" ? [{ volume: v.name, version: v.version }] : []));
  return files.length > 0 ? { file_versions: files } : {};
}

/** For the trace. */
function brief({ state, version, revision, containers }: Machine): string {
  const parts = containers.map(({ name, state, restart_count }) => `${name} ${state} ${restart_count}`);
  return [`${state} (version ${version}, revision ${revision})`, ...parts].join(", ");
}
