/** What is asked of a backend between two losses of power, what it has acknowledged and told, and what really ran. */
import { createServer, type Server } from "node:net";
import type { AddressInfo } from "node:net";
import { isOver, type Machine, type MachineSpec } from "../../src/provider/machine.ts";
import type { Provider } from "../../src/provider/provider.ts";
import type { Random } from "../../src/util/random.ts";

/** For ever: until it is stopped. To its end: it says that it runs, and exits with 7. Never again: it would run for ever. */
export type Kind = "for ever" | "to its end" | "never again";

/** Over HTTP, or what answers it. */
type Backend = Pick<Provider, "createPod" | "getPod" | "deletePod" | "volumes">;

const KINDS: readonly Kind[] = ["for ever", "to its end", "never again"];
const LASTING_S = 1_000_000;
const CALL_MS = 60_000;
const VOLUME_BYTES = 16 * 2 ** 20;

export interface Asked {
  kind: Kind;
  created: boolean;
  deleted: boolean;
  /** Somebody has asked for it, whether or not that was heard. */
  isUnwanted: boolean;
  /** The last that was told of it. */
  told?: Machine;
}

/** A volume that outlives machines. */
export interface AskedVolume {
  created: boolean;
  /** The last number that its machine has said to be flushed there. */
  written: number;
}

/** What a container says, a line each: that it has begun, what it has found on its volume, what it has written there. */
type Word = { ran: string } | { found: string; number: number } | { wrote: string; number: number };

function wordOf(line: string): Word | undefined {
  const [what = "", volume, number] = line.trim().split(" ");
  if (what === "") return undefined;
  if (volume === undefined) return { ran: what };
  return what === "found" ? { found: volume, number: Number(number) } : { wrote: volume, number: Number(number) };
}

/** Hears what containers say, at once: no loss of power can take that back. */
export class Roll {
  /** How often containers have begun, by machine. */
  readonly runs = new Map<string, number>();
  /** The last number that was written to each volume. */
  readonly written = new Map<string, number>();
  /** What cannot be, by that. */
  readonly faults: string[] = [];
  readonly #server: Server;

  /** @param onWord hears each too, when it is taken in */
  constructor(onWord: (word: Word) => void = () => {}) {
    this.#server = createServer((connection) => {
      let text = "";
      connection.on("error", () => {});
      connection.on("data", (chunk: Buffer) => (text += chunk.toString()));
      connection.on("close", () => {
        const word = wordOf(text);
        if (word === undefined) return;
        this.#take(word);
        onWord(word);
      });
    });
  }

  #take(word: Word): void {
    if ("ran" in word) this.runs.set(word.ran, (this.runs.get(word.ran) ?? 0) + 1);
    else if ("wrote" in word) this.written.set(word.wrote, word.number);
    else if (word.number < (this.written.get(word.found) ?? 0))
      this.faults.push(`${word.number} is on volume ${word.found}, where ${this.written.get(word.found)} was flushed`);
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.close();
  }
}

interface Listener {
  machine?: (id: string, asked: Asked) => void;
  volume?: (id: string) => void;
}

export class Workload {
  readonly machines = new Map<string, Asked>();
  readonly volumes = new Map<string, AskedVolume>();
  readonly #image: string;
  readonly #rollPort: number;
  readonly #hears: Listener;
  #serial = 0;

  /** @param hears of all that is asked and answered */
  constructor(image: string, rollPort: number, hears: Listener = {}) {
    this.#image = image;
    this.#rollPort = rollPort;
    this.#hears = hears;
  }

  #changed(id: string, change: Partial<Asked>): void {
    const asked = Object.assign(this.machines.get(id)!, change);
    this.#hears.machine?.(id, { ...asked });
  }

  #spec(id: string, kind: Kind, volume?: string): MachineSpec {
    const then = kind === "to its end" ? "exit 7" : `sleep ${LASTING_S}`;
    const say = (word: string) => `echo ${word} | timeout 20 nc -w 5 10.0.2.2 ${this.#rollPort}`;
    // Told only when it is on the disk. Of four digits: a loss of power leaves the one or the other.
    const count = `n=$(cat /volume/n || echo 1000); ${say(`found ${volume} $n`)}
      for i in 1 2 3 4; do
        n=$((n + 1)); echo $n | dd of=/volume/n conv=fsync,notrunc && ${say(`wrote ${volume} $n`)}
      done`;
    const command = ["sh", "-c", [say(id), ...(volume === undefined ? [] : [count]), then].join("\n")];
    return {
      labels: { kind },
      restart_policy: kind === "for ever" ? "always" : "never",
      termination_grace_s: 1,
      volumes: [
        { type: "empty_dir", name: "data", medium: "disk" },
        { type: "files", name: "files", version: "1", files: [{ path: "a", mode: 0o644, content_b64: "YQ==" }] },
        ...(volume === undefined ? [] : [{ type: "persistent" as const, name: "volume", volume }]),
      ],
      containers: [
        {
          name: "a",
          image: this.#image,
          command,
          mounts: [
            { volume: "data", path: "/data" },
            { volume: "files", path: "/files" },
            ...(volume === undefined ? [] : [{ volume: "volume", path: "/volume" }]),
          ],
        },
      ],
    };
  }

  /** Asks for machines and ends of machines, until all was asked or the host is off. */
  async run(provider: Backend, random: Random, isOn: () => boolean): Promise<void> {
    const asked: Promise<void>[] = [];
    for (const kind of KINDS) asked.push(this.#create(provider, `m${++this.#serial}`, kind));
    asked.push(this.#createWithVolume(provider, `m${++this.#serial}`));
    for (const [id, machine] of this.machines)
      if (machine.created && !machine.isUnwanted && random() < 0.4) asked.push(this.#delete(provider, id));
    await Promise.all(asked);
    if (isOn()) await this.look(provider);
  }

  async #createWithVolume(provider: Backend, id: string): Promise<void> {
    const volume = `v${id}`;
    const asked: AskedVolume = { created: false, written: 0 };
    this.volumes.set(volume, asked);
    const spec = { labels: {}, size_bytes: VOLUME_BYTES, mode: "filesystem" as const };
    const signal = AbortSignal.timeout(CALL_MS);
    // One that the backend refuses is one of these, too.
    if ((await provider.volumes!.create(volume, spec, { signal }).catch(() => {})) === undefined) return;
    asked.created = true;
    this.#hears.volume?.(volume);
    await this.#create(provider, id, "for ever", volume);
  }

  async #create(provider: Backend, id: string, kind: Kind, volume?: string): Promise<void> {
    const asked: Asked = { kind, created: false, deleted: false, isUnwanted: false };
    this.machines.set(id, asked);
    this.#changed(id, {});
    const reply = await provider
      .createPod(id, this.#spec(id, kind, volume), { signal: AbortSignal.timeout(CALL_MS) })
      .catch(() => {});
    if (reply === undefined) return;
    this.#changed(id, { created: true, told: asked.told ?? reply });
  }

  async #delete(provider: Backend, id: string): Promise<void> {
    this.#changed(id, { isUnwanted: true });
    await provider.deletePod(id, { force: false, signal: AbortSignal.timeout(CALL_MS) }).then(
      () => this.#changed(id, { deleted: true }),
      () => {},
    );
  }

  async deleteAll(provider: Backend): Promise<void> {
    await Promise.all([...this.machines.keys()].map((id) => this.#delete(provider, id)));
  }

  /**
   * Takes in what the backend tells of each machine that it has acknowledged.
   * @returns what cannot be true of it, by what was told before
   */
  async look(provider: Backend): Promise<string[]> {
    const faults: string[] = [];
    const looks = [...this.machines].map(async ([id, asked]) => {
      const machine = await provider.getPod(id, { signal: AbortSignal.timeout(CALL_MS) }).catch((thrown: unknown) => {
        if ((thrown as { code?: string }).code !== "not_found") throw thrown;
        return undefined;
      });
      if (machine === undefined) {
        if (asked.created || asked.deleted) faults.push(`${id} was acknowledged and has vanished`);
        return;
      }
      if (asked.told !== undefined) faults.push(...contradictions(asked.told, machine));
      if (machine.reason === "MachineLost")
        faults.push(`${id} has lost its record or specification: ${machine.message}`);
      if (machine.revision !== asked.told?.revision) this.#changed(id, { told: machine });
    });
    await Promise.all(looks);
    return faults;
  }

  /** What has not come to rest as it was asked for. */
  unrest(): string[] {
    return [...this.machines].flatMap(([id, { kind, created, deleted, told }]) => {
      const state = told?.state ?? "unknown";
      if (deleted) return state === "deleted" ? [] : [`${id} is to be deleted and is ${state}`];
      if (!created || told === undefined || state === "deleted") return [];
      if (kind === "for ever" ? state === "running" : isOver(told) || (kind === "never again" && state === "running"))
        return [];
      return [`${id}, ${kind}, is ${state} ${told.reason ?? ""} ${told.message ?? ""}`];
    });
  }
}

/** Versions grow, what is over stays so, and ends stay what they were. */
function contradictions(before: Machine, now: Machine): string[] {
  const { id } = now;
  const faults: string[] = [];
  if (now.version < before.version)
    faults.push(`the version of ${id} has fallen from ${before.version} to ${now.version}`);
  if (now.revision < before.revision)
    faults.push(`the revision of ${id} has fallen from ${before.revision} to ${now.revision}`);
  if (before.state === "deleted" && now.state !== "deleted") faults.push(`${id} was deleted and is ${now.state}`);
  if (isOver(before) && now.state !== before.state && now.state !== "deleted")
    faults.push(`${id} was ${before.state} and is ${now.state}`);
  for (const { name, terminated } of before.containers) {
    const after = now.containers.find((each) => each.name === name);
    const ends = [after?.terminated, after?.last].map((end) => JSON.stringify(end));
    if (terminated !== undefined && before.labels["kind"] !== "for ever" && !ends.includes(JSON.stringify(terminated)))
      faults.push(`${id} ended with ${JSON.stringify(terminated)}, and now ${ends.join()} is told`);
  }
  return faults;
}
