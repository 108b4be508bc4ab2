/** Volumes of the host: what is on each, whether it is attached, and how the backend comes by that. */
import type { VolumeRecord } from "../../../src/provider/volume-book.ts";
import { volumeClaims } from "../../../src/provider/volume.ts";
import type { HostVolumes } from "../../../providers/local/volume-contents.ts";
import type { IsAlive } from "./engine.ts";
import type { Host, Instance } from "./host.ts";

interface Disk {
  attached: boolean;
  /** Instances that have written to it. */
  marks: string[];
}

/** They outlive the host's power; that they are attached does not. */
export class Disks {
  readonly #host: Host;
  readonly all = new Map<string, Disk>();
  /** Volumes that clients know to be there, and of which nobody has asked for the end. */
  readonly promised = new Set<string>();

  constructor(host: Host) {
    this.#host = host;
  }

  make(id: string): void {
    if (!this.all.has(id)) this.all.set(id, { attached: false, marks: [] });
  }

  attach(id: string): void {
    const disk = this.all.get(id);
    if (disk === undefined) throw new Error(`there is no disk ${id}`);
    disk.attached = true;
  }

  detach(id: string): void {
    this.#judgeGone("V2", id, "detached");
    const disk = this.all.get(id);
    if (disk !== undefined) disk.attached = false;
  }

  remove(id: string): void {
    this.#judgeGone("V2", id, "removed");
    if (this.promised.has(id)) this.#host.fault("V4", `${id} was acknowledged, and is removed though nobody asked`);
    this.all.delete(id);
  }

  losePower(): void {
    for (const disk of this.all.values()) disk.attached = false;
  }

  #judgeGone(rule: string, id: string, what: string): void {
    const [writer] = this.writers(id);
    if (writer !== undefined) this.#host.fault(rule, `${id} is ${what} while ${writer.machine} ${writer.id} writes`);
  }

  /** Containers that run and have the volume. */
  writers(id: string): Instance[] {
    return this.#host.running().filter(({ machine }) => this.claimed(machine).includes(id));
  }

  claimed(machine: string): string[] {
    const spec = this.#host.specs.get(machine);
    return spec === undefined ? [] : volumeClaims(spec).map(({ claim }) => claim.volume);
  }

  /** It runs from now on. */
  begin(instance: Instance): void {
    const { machine, id } = instance;
    for (const volume of this.claimed(machine)) {
      const disk = this.all.get(volume);
      if (disk?.attached !== true) return this.#host.fault("V3", `${machine} ${id} begins without ${volume}`);
      const other = this.writers(volume).find((each) => each.machine !== machine);
      if (other !== undefined)
        return this.#host.fault("V1", `${machine} ${id} and ${other.machine} ${other.id} write to ${volume}`);
      disk.marks.push(id);
    }
  }
}

/** What one life of the backend has of them. */
export function contentsOf(host: Host, isAlive: IsAlive): HostVolumes {
  const { disks } = host;
  const ask = <T>(what: string, effect: () => T, amid?: () => unknown) =>
    host.ask(isAlive, what, effect, amid && { amid });
  const id = ({ volume }: VolumeRecord) => volume.id;
  return {
    fsTypes: [],
    make: async (record) => {
      await ask(
        `make ${id(record)}`,
        () => disks.make(id(record)),
        () => disks.make(id(record)),
      );
      return { size_bytes: record.volume.size_bytes };
    },
    grow: (_record, sizeBytes) => Promise.resolve(sizeBytes),
    remove: (record) => ask(`remove ${id(record)}`, () => disks.remove(id(record))),
    room: () => Promise.resolve(Number.MAX_SAFE_INTEGER),
    attach: (record) =>
      ask(
        `attach ${id(record)}`,
        () => disks.attach(id(record)),
        () => disks.all.has(id(record)) && disks.attach(id(record)),
      ),
    detach: (volume) => ask(`detach ${volume}`, () => disks.detach(volume)),
    attached: () =>
      ask("see what is attached", () => [...disks.all].flatMap(([id, disk]) => (disk.attached ? id : []))),
    path: (volume) => `/${volume}`,
    device: () => Promise.reject(new Error("there are no block devices in this world")),
    sample: () => Promise.resolve(undefined),
  };
}
