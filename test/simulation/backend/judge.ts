/** What must hold of all that the backend tells, by what really happened on its host. */
import { type ContainerTermination, isOver, type Machine } from "../../../src/provider/machine.ts";
import type { PersistentVolume } from "../../../src/provider/volume.ts";
import { SECRETS_DIR, STATE_DIR, type Host, type Instance } from "./host.ts";
import type { Users } from "./users.ts";

interface Told {
  machine: Machine;
  text: string;
}

export class Judge {
  readonly #host: Host;
  readonly #users: Users;
  readonly #told = new Map<string, Told>();
  readonly #volumeStates = new Map<string, PersistentVolume["state"]>();
  #revision = 0;

  constructor(host: Host, users: Users) {
    this.#host = host;
    this.#users = users;
  }

  /** A complete list of what there is, as a client gets it. */
  list({ items, revision }: { items: readonly Machine[]; revision: number }): void {
    if (revision < this.#revision) this.#host.fault("B7", `the revision falls from ${this.#revision} to ${revision}`);
    this.#revision = revision;
    const present = new Set(items.map(({ id }) => id));
    for (const [id, { created, deleted }] of this.#users.acknowledged)
      if ((created || deleted) && !present.has(id)) this.#host.fault("B5", `${id} was acknowledged and has vanished`);
    for (const { id } of this.#told.values().map(({ machine }) => machine))
      if (!present.has(id)) this.#host.fault("B5", `${id} was told of and has vanished`);
    for (const machine of items) this.#machine(machine);
  }

  /** The same of volumes. */
  volumes(items: readonly PersistentVolume[]): void {
    const host = this.#host;
    const told = new Map(items.map((volume) => [volume.id, volume]));
    for (const id of host.disks.promised)
      if (told.get(id)?.state !== "available")
        host.fault("V4", `${id} was acknowledged, and is told to be ${told.get(id)?.state ?? "absent"}`);
    for (const { id, state, attachments } of items) {
      const writer = host.disks
        .writers(id)
        .find(({ machine }) => !attachments.some((each) => each.machine === machine));
      if (writer !== undefined) host.fault("V5", `${id} is told to be free of ${writer.machine}, which writes to it`);
      const before = this.#volumeStates.get(id);
      if (before === "deleted" && state !== "deleted") host.fault("V6", `${id} comes back from its tombstone`);
      this.#volumeStates.set(id, state);
    }
  }

  #machine(machine: Machine): void {
    const { id } = machine;
    const before = this.#told.get(id);
    if (before?.machine === machine) return;
    const text = JSON.stringify(machine);
    this.#told.set(id, { machine, text });
    for (const { terminated } of machine.containers)
      if (terminated?.id !== undefined && terminated.reason !== "ContainerStatusUnknown")
        this.#host.toldEnds.add(terminated.id);
    if (before?.text === text) return;
    this.#host.trace(`  told ${id} v${machine.version}: ${machine.state} ${machine.containers.map(brief).join(" ")}`);
    if (before !== undefined) this.#oneWay(before, machine, text);
    if (isOver(machine) || machine.state === "deleted") {
      const [running] = this.#host.running(id);
      if (running !== undefined)
        this.#host.fault("B8", `${id} is told to be ${machine.state} while ${running.id} runs`);
    }
    for (const { name, state, id: instance, terminated, last } of machine.containers) {
      if (state === "running" && !(this.#host.find(instance!)?.startedAt !== 0))
        this.#host.fault("B8", `${id} ${name} is told to run, and ${instance} never began`);
      for (const end of [terminated, last]) if (end !== undefined) this.#end(id, name, end);
    }
  }

  /** Versions, restarts and ends go one way. */
  #oneWay(before: Told, machine: Machine, text: string): void {
    const was = before.machine;
    const { id, version } = machine;
    if (version < was.version) this.#host.fault("B7", `the version of ${id} falls from ${was.version} to ${version}`);
    else if (machine.revision < was.revision) this.#host.fault("B7", `the revision of ${id} falls`);
    else if (version === was.version)
      this.#host.fault("B7", `${id} is told in two ways in version ${version}: ${before.text} ${text}`);
    for (const { name, restart_count } of machine.containers) {
      const count = was.containers.find((each) => each.name === name)?.restart_count ?? 0;
      if (restart_count < count)
        this.#host.fault("B7", `the restarts of ${id} ${name} fall from ${count} to ${restart_count}`);
    }
    if (was.state === "deleted" && machine.state !== "deleted")
      this.#host.fault("B6", `${id} comes back from its tombstone`);
    if (!isOver(was)) return;
    if (machine.state !== was.state && machine.state !== "deleted")
      this.#host.fault("B9", `${id} was ${was.state} and is ${machine.state}`);
    for (const container of was.containers) {
      const now = machine.containers.find(({ name }) => name === container.name);
      if (JSON.stringify(now?.terminated) !== JSON.stringify(container.terminated))
        this.#host.fault("B9", `${id} was over, and the end of ${container.name} is another now`);
    }
  }

  #end(machine: string, name: string, told: ContainerTermination): void {
    if (told.id === undefined) return;
    const host = this.#host;
    const instance = host.find(told.id);
    const what = `${machine} ${told.id}`;
    if (instance === undefined) return host.fault("B3", `${what} is told to have ended and never was`);
    const isUnknown = told.reason === "ContainerStatusUnknown";
    // One that is given up with its sandbox may run until that is destroyed, and the machine is not over before.
    const isGivenUp = isUnknown && this.#users.unwanted.has(machine);
    if (instance.phase === "running") {
      if (!isGivenUp) host.fault("B8", `${what} is told to have ended while it runs`);
      return;
    }
    const { exit, end, isForgotten } = instance;
    if (told.reason === "StartError" && instance.startedAt > 0 && end?.by !== "kill")
      host.fault("B3", `${what} ran, and is told not to have begun`);
    if (isUnknown) {
      if (exit !== undefined && !isForgotten && end?.by !== "loss" && !isGivenUp)
        host.fault("B3", `the end of ${what} was written down and is lost`);
      return;
    }
    if (told.reason !== "StartError") this.#knownEnd(instance, told, what);
  }

  #knownEnd(instance: Instance, told: ContainerTermination, what: string): void {
    const host = this.#host;
    const { exit } = instance;
    if (exit === undefined) return host.fault("B3", `${what}: nobody knows how it ended, and that is told`);
    if (told.exit_code !== exit.exitCode)
      return host.fault("B3", `${what} ended with ${exit.exitCode}, not ${told.exit_code}`);
    if (Date.parse(told.finished_at) !== exit.finishedAt)
      return host.fault("B3", `${what} is told to have ended at another time`);
    // A machine that is to end does not wait for all that an engine may say.
    if (instance.isUnlearned === true || this.#users.unwanted.has(instance.machine)) return;
    if (told.message !== `bye ${told.id}`) host.fault("B3", `what only the engine knew of the end of ${what} is lost`);
    else if (instance.oomKilled && !told.oom_killed)
      host.fault("B3", `${what} was killed for its memory, which is not told`);
  }

  // --- when everything has come to rest ---

  /** @param items all machines */
  atRest(items: readonly Machine[]): void {
    const host = this.#host;
    for (const machine of items) this.#restOf(machine);
    const live = new Set(
      items.filter((machine) => !isOver(machine) && machine.state !== "deleted").map(({ id }) => id),
    );
    const left = [...host.sandboxes.keys(), ...host.volumes, ...host.prepared.values()].filter((id) => !live.has(id));
    if (left.length > 0) host.fault("B4", `something of ${left.join()} is left on the host`);
    const running = new Set(host.running().map(({ id }) => id));
    const bundles = [...host.prepared.keys()].filter((id) => !running.has(id));
    if (bundles.length > 0) host.fault("B4", `what was prepared for ${bundles.join()} is left`);
    const known = items.filter(({ state }) => state !== "deleted").map(({ id }) => id);
    for (const folder of [`${STATE_DIR}/machines`, SECRETS_DIR]) {
      const names = host.files.existsSync(folder) ? (host.files.readdirSync(folder) as string[]) : [];
      const strange = names.filter((name) => !known.includes(name));
      if (strange.length > 0) host.fault("B4", `${folder} still has ${strange.join()}`);
    }
  }

  disksAtRest(): void {
    const { disks } = this.#host;
    for (const [id, { attached }] of disks.all) {
      if (this.#users.buried.has(id)) this.#host.fault("V7", `${id} was deleted, and is still there`);
      const users = [...this.#host.sandboxes.keys()].filter((machine) => disks.claimed(machine).includes(id));
      if (attached && users.length === 0) this.#host.fault("V7", `${id} is left attached for nobody`);
    }
    for (const [id, state] of this.#volumeStates)
      if (state === "deleting") this.#host.fault("V7", `the deletion of ${id} was begun, and is not finished`);
    for (const id of disks.promised) if (!disks.all.has(id)) this.#host.fault("V4", `${id} is lost`);
  }

  #restOf(machine: Machine): void {
    const host = this.#host;
    const { id, state } = machine;
    const { deleted, stopped } = this.#users.of(id);
    const spec = host.specs.get(id);
    if (deleted && state !== "deleted") return host.fault("B10", `${id} was deleted and is ${state}`);
    if (stopped && !isOver(machine) && state !== "deleted")
      return host.fault("B10", `${id} was stopped and is ${state}`);
    if (this.#users.unwanted.has(id) || spec === undefined || isOver(machine)) {
      if (
        spec?.restart_policy === "always" &&
        state === "failed" &&
        machine.reason !== "MachineLost" &&
        !this.#users.unwanted.has(id)
      )
        host.fault("B10", `${id} is to run always and has failed: ${machine.reason}`);
      return;
    }
    const running = new Set(host.running(id).map(({ name }) => name));
    for (const { name } of spec.containers)
      if (spec.restart_policy === "always" && !running.has(name))
        host.fault("B10", `${id} ${name} does not run: ${JSON.stringify(machine)}`);
    for (const { name, state: shown } of machine.containers)
      if ((shown === "running") !== running.has(name)) host.fault("B10", `${id} ${name} is told to be ${shown}`);
  }
}

const brief = ({ name, state, terminated }: Machine["containers"][number]) =>
  `${name}=${state}${terminated === undefined ? "" : `(${terminated.exit_code} ${terminated.reason})`}`;
