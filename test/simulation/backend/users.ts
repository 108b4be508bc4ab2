/** Clients of the backend: they ask, lose replies, and ask again. */
import type { ContainerSpec, Machine, MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { volumeClaims, type VolumeProvider } from "../../../src/provider/volume.ts";
import type { LocalProvider } from "../../../providers/local/provider.ts";
import { pick } from "../seeded.ts";
import type { Host } from "./host.ts";

const IDS = ["m1", "m2", "m3"];
const VOLUMES = ["d1", "d2"];
const RESERVATION = "node";
const LOST_REPLIES = 0.2;
export const GRACE_S = 5;

/** What a client knows for sure of one machine, by a reply that it has received. */
interface Acknowledged {
  created: boolean;
  stopped: boolean;
  deleted: boolean;
}

export class Users {
  readonly #host: Host;
  readonly acknowledged = new Map<string, Acknowledged>();
  /** Machines of which anybody has asked for the end, whether or not that was heard. */
  readonly unwanted = new Set<string>();
  /** Patches under way in this life of the backend, by `MACHINE/CONTAINER`. */
  readonly #patches = new Set<string>();
  #filesVersion = 0;
  /** Volumes of which anybody has asked for the end. */
  readonly #doomed = new Set<string>();

  /** Volumes whose deletion was acknowledged. */
  readonly buried = new Set<string>();
  readonly #hasVolumes: boolean;

  constructor(host: Host, { volumes = false }: { volumes?: boolean | undefined } = {}) {
    this.#host = host;
    this.#hasVolumes = volumes;
  }

  of(id: string): Acknowledged {
    let found = this.acknowledged.get(id);
    if (found === undefined) this.acknowledged.set(id, (found = { created: false, stopped: false, deleted: false }));
    return found;
  }

  /** The backend is gone: who asked does not know what became of it. */
  backendGone(): void {
    for (const key of this.#patches) this.#define(key);
    this.#patches.clear();
  }

  #define(key: string): void {
    this.#host.definitions.set(key, (this.#host.definitions.get(key) ?? 0) + 1);
  }

  step(provider: LocalProvider, isAlive: () => boolean): void {
    const { random } = this.#host;
    const id = pick(random, IDS);
    const signal = new AbortController().signal;
    const x = random();
    const known = this.acknowledged.get(id);
    const ask = (what: string, call: Promise<unknown>, acknowledge: () => void, failed: () => void = () => {}) => {
      const isLost = random() < LOST_REPLIES;
      this.#host.trace(`${what}${isLost ? ", whose reply is lost" : ""}`);
      call.then(
        () => {
          if (!isAlive()) return;
          this.#host.trace(`  ${what}: acknowledged`);
          if (!isLost) acknowledge();
        },
        (thrown: unknown) => {
          if (!isAlive()) return;
          this.#host.trace(`  ${what}: ${String(thrown)}`);
          failed();
        },
      );
    };
    if (this.#hasVolumes && x < 0.4) this.#volumeStep(provider.volumes!, ask);
    else if (known?.created !== true || x < 0.1) {
      const spec = this.#host.specs.get(id) ?? this.#spec(id);
      const known = this.of(id);
      const buried = known.deleted;
      ask(`create ${id}`, provider.createPod(id, spec, { signal }), () => {
        if (buried) this.#host.fault("B6", `${id} was deleted, and is created again`);
        known.created = true;
      });
    } else if (x < 0.16) {
      this.unwanted.add(id);
      ask(`stop ${id}`, provider.stopPod(id, { graceSeconds: GRACE_S, signal }), () => (known.stopped = true));
    } else if (x < 0.26) {
      this.unwanted.add(id);
      const force = random() < 0.2;
      ask(`delete ${id}`, provider.deletePod(id, { force, signal }), () => (known.deleted = true));
    } else if (x < 0.45) this.#patch(id, provider, ask);
  }

  #volumeStep(
    volumes: VolumeProvider,
    ask: (what: string, call: Promise<unknown>, acknowledge: () => void) => void,
  ): void {
    const { random, disks } = this.#host;
    const signal = new AbortController().signal;
    const id = pick(random, VOLUMES);
    const y = random();
    const spec = { labels: {}, size_bytes: 1, mode: "filesystem" } as const;
    if (y < 0.6)
      ask(`create ${id}`, volumes.create(id, spec, { signal }), () => {
        if (this.buried.has(id)) this.#host.fault("V6", `${id} was deleted, and is created again`);
        if (!this.#doomed.has(id)) disks.promised.add(id);
      });
    else if (y < 0.65) {
      disks.promised.delete(id);
      this.#doomed.add(id);
      ask(`delete ${id}`, volumes.delete(id, { signal }), () => this.buried.add(id));
    } else if (y < 0.85) {
      const reserve = volumes.reserve(id, RESERVATION, { signal });
      ask(`reserve ${id}`, reserve, () => {});
    } else {
      const release = volumes.release(id, RESERVATION, { signal }).then(() => {
        const writer = disks.writers(id).find(({ machine }) => this.#reserved(machine).includes(id));
        if (writer !== undefined) this.#host.fault("V5", `${id} is told to be released while ${writer.machine} writes`);
      });
      ask(`release ${id}`, release, () => {});
    }
  }

  /** Volumes that it has by the reservation. */
  #reserved(machine: string): string[] {
    const spec = this.#host.specs.get(machine);
    return spec === undefined
      ? []
      : volumeClaims(spec).flatMap(({ claim }) => (claim.reservation === undefined ? [] : claim.volume));
  }

  #claims(): Volume[] {
    const { random } = this.#host;
    if (!this.#hasVolumes) return [];
    const wanted = VOLUMES.filter(() => random() < 0.7);
    const reservation = random() < 0.3 ? { reservation: RESERVATION } : {};
    return wanted.map((volume) => ({ type: "persistent", name: volume, volume, ...reservation }));
  }

  #patch(
    id: string,
    provider: LocalProvider,
    ask: (what: string, call: Promise<Machine>, acknowledge: () => void, failed: () => void) => void,
  ): void {
    const { random } = this.#host;
    const signal = new AbortController().signal;
    const patch = pick(random, [
      { containers: [{ name: "a", image: `i${Math.floor(random() * 3)}` }] },
      { files: [{ volume: "v", version: String(++this.#filesVersion), files: [] }] },
      { ephemeral_containers: [container("debug")] },
    ]);
    const key = `${id}/a`;
    const settled = () => {
      if (this.#patches.delete(key)) this.#define(key);
    };
    if ("containers" in patch) {
      this.#define(key);
      this.#patches.add(key);
    }
    ask(`patch ${id} ${Object.keys(patch).join()}`, provider.updatePod(id, patch, { signal }), settled, settled);
  }

  #spec(id: string): MachineSpec {
    const { random } = this.#host;
    const sleep = { hooks: { pre_stop: { sleep: { seconds: 2 } }, post_start: { sleep: { seconds: 1 } } } };
    const spec: MachineSpec = {
      labels: {},
      restart_policy: pick(random, ["always", "on_failure", "never"]),
      termination_grace_s: GRACE_S,
      volumes: [{ type: "files", name: "v", version: "0", files: [] }, ...this.#claims()],
      containers: [container("a", random() < 0.3 ? sleep : {}), ...(random() < 0.3 ? [container("b")] : [])],
      ...(random() < 0.4 && {
        init_containers: [container("i"), ...(random() < 0.4 ? [container("s", { restart_policy: "always" })] : [])],
      }),
    };
    this.#host.specs.set(id, spec);
    return spec;
  }
}

function container(name: string, more: Partial<ContainerSpec> = {}): ContainerSpec {
  return { name, image: "i", command: ["run"], ...more };
}
