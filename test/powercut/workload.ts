/** What is asked of a backend between two losses of power, what it has acknowledged and told, and what really ran. */
import { createServer, type Server } from "node:net";
import type { AddressInfo } from "node:net";
import { isOver, type Machine, type MachineSpec } from "../../src/provider/machine.ts";
import type { Provider } from "../../src/provider/provider.ts";
import type { Random } from "../../src/util/random.ts";

/** For ever: until it is stopped. To its end: it says that it runs, and exits with 7. Never again: it would run for ever. */
export type Kind = "for ever" | "to its end" | "never again";

/** Over HTTP, or what answers it. */
type Backend = Pick<Provider, "createPod" | "getPod" | "deletePod">;

const KINDS: readonly Kind[] = ["for ever", "to its end", "never again"];
const LASTING_S = 1_000_000;
const CALL_MS = 60_000;

export interface Asked {
  kind: Kind;
  created: boolean;
  deleted: boolean;
  /** Somebody has asked for it, whether or not that was heard. */
  isUnwanted: boolean;
  /** The last that was told of it. */
  told?: Machine;
}

/** Counts the containers that have begun, by a word that each sends at once: no loss of power can take that back. */
export class Roll {
  readonly runs = new Map<string, number>();
  readonly #server: Server;

  /** @param onRun hears of each, when it is counted */
  constructor(onRun: (id: string) => void = () => {}) {
    this.#server = createServer((connection) => {
      let text = "";
      connection.on("error", () => {});
      connection.on("data", (chunk: Buffer) => (text += chunk.toString()));
      connection.on("close", () => {
        const id = text.trim();
        if (id === "") return;
        this.runs.set(id, (this.runs.get(id) ?? 0) + 1);
        onRun(id);
      });
    });
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.close();
  }
}

export class Workload {
  readonly machines = new Map<string, Asked>();
  readonly #image: string;
  readonly #rollPort: number;
  readonly #onChange: (id: string, asked: Asked) => void;
  #serial = 0;

  /** @param onChange hears of all that is asked and answered */
  constructor(image: string, rollPort: number, onChange: (id: string, asked: Asked) => void = () => {}) {
    this.#image = image;
    this.#rollPort = rollPort;
    this.#onChange = onChange;
  }

  #changed(id: string, change: Partial<Asked>): void {
    const asked = Object.assign(this.machines.get(id)!, change);
    this.#onChange(id, { ...asked });
  }

  #spec(id: string, kind: Kind): MachineSpec {
    const then = kind === "to its end" ? "exit 7" : `sleep ${LASTING_S}`;
    const command = ["sh", "-c", `echo ${id} | timeout 20 nc -w 5 10.0.2.2 ${this.#rollPort}; ${then}`];
    return {
      labels: { kind },
      restart_policy: kind === "for ever" ? "always" : "never",
      termination_grace_s: 1,
      volumes: [
        { type: "empty_dir", name: "data", medium: "disk" },
        { type: "files", name: "files", version: "1", files: [{ path: "a", mode: 0o644, content_b64: "YQ==" }] },
      ],
      containers: [
        {
          name: "a",
          image: this.#image,
          command,
          mounts: [
            { volume: "data", path: "/data" },
            { volume: "files", path: "/files" },
          ],
        },
      ],
    };
  }

  /** Asks for machines and ends of machines, until all was asked or the host is off. */
  async run(provider: Backend, random: Random, isOn: () => boolean): Promise<void> {
    const asked: Promise<void>[] = [];
    for (const kind of KINDS) asked.push(this.#create(provider, `m${++this.#serial}`, kind));
    for (const [id, machine] of this.machines)
      if (machine.created && !machine.isUnwanted && random() < 0.4) asked.push(this.#delete(provider, id));
    await Promise.all(asked);
    if (isOn()) await this.look(provider);
  }

  async #create(provider: Backend, id: string, kind: Kind): Promise<void> {
    const asked: Asked = { kind, created: false, deleted: false, isUnwanted: false };
    this.machines.set(id, asked);
    this.#changed(id, {});
    const reply = await provider
      .createPod(id, this.#spec(id, kind), { signal: AbortSignal.timeout(CALL_MS) })
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
