/** What every check works with: ids and labels of its own, specifications, and ways to wait and to expect. */
import type { Clock } from "../../util/clock.ts";
import type { Capability } from "../capabilities.ts";
import { VmletError } from "../../util/errors.ts";
import { isProviderError, ProviderError, type ProviderErrorCode } from "../errors.ts";
import type { PersistentVolume, PersistentVolumeSpec } from "../volume.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../machine.ts";
import type { LogLine, LogOptions, MachineList, Provider, ProviderInfo } from "../provider.ts";
import type { HttpTarget } from "./http-target.ts";

/** A rule that does not hold. Both halves read on: "Expected <expected>, but <came>." */
export class Violation extends VmletError {
  readonly code = "CONFORMANCE";
  readonly expected: string;
  readonly came: string;
  constructor(expected: string, came: string) {
    super(`expected ${expected}, but ${came}`);
    this.expected = expected;
    this.came = came;
  }

  /** As a report says it. */
  get sentence(): string {
    return `Expected ${this.expected}, but ${this.came}.`;
  }
}

/** A script that runs for longer than any check does. */
export const FOREVER = "sleep 3600";
export const QUICK = { initial_ms: 100, max_ms: 200 };
/** After the first restart it waits for longer than any check does. */
export const SLOW = { initial_ms: 600_000, max_ms: 600_000 };

/** Between two looks at a machine. */
const POLL_MS = 50;
/** The label that all of a check's machines carry, and no others. */
export const CHECK_LABEL = "vmlet.dev/conformance";

export class CheckContext {
  readonly provider: Provider;
  readonly info: ProviderInfo;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly http: HttpTarget | undefined;
  readonly echo: { command: string[]; port: number } | undefined;
  readonly patienceMs: number;
  readonly labels: Record<string, string>;
  readonly #prefix: string;
  readonly #image: string;
  readonly #restarted: (() => Promise<void>) | undefined;
  readonly #disrupt: ((id: string) => Promise<void>) | undefined;
  /** Of the last container that was asked for. */
  #script: string | undefined;
  readonly #ids: string[] = [];
  readonly #volumeIds: string[] = [];
  readonly #imageIds: string[] = [];
  readonly #rangeLabels: Record<string, string>[] = [];

  constructor(options: {
    provider: Provider;
    info: ProviderInfo;
    clock: Clock;
    signal: AbortSignal;
    prefix: string;
    image: string;
    echo: { command: string[]; port: number } | undefined;
    http: HttpTarget | undefined;
    patienceMs: number;
    restarted?: (() => Promise<void>) | undefined;
    disrupt?: ((id: string) => Promise<void>) | undefined;
  }) {
    this.provider = options.provider;
    this.info = options.info;
    this.clock = options.clock;
    this.signal = options.signal;
    this.http = options.http;
    this.echo = options.echo;
    this.patienceMs = options.patienceMs;
    this.#prefix = options.prefix;
    this.#image = options.image;
    this.#restarted = options.restarted;
    this.#disrupt = options.disrupt;
    this.labels = { [CHECK_LABEL]: options.prefix };
  }

  has(capability: Capability): boolean {
    return this.info.capabilities.includes(capability);
  }

  /** An unused id, whose machine is deleted when the check is over. */
  id(): string {
    const id = `${this.#prefix}-${this.#ids.length}`;
    this.#ids.push(id);
    return id;
  }

  /** The same of a volume. */
  volumeId(): string {
    const id = `${this.#prefix}-disk-${this.#volumeIds.length}`;
    this.#volumeIds.push(id);
    return id;
  }

  /** And of an image that is kept ready. */
  imageId(): string {
    const id = `${this.#prefix}-image-${this.#imageIds.length}`;
    this.#imageIds.push(id);
    return id;
  }

  /** Labels of one who tells ranges of addresses, which are given back when the check is over. */
  rangeLabels(name: string): Record<string, string> {
    const labels = this.labelsOf(name);
    this.#rangeLabels.push(labels);
    return labels;
  }

  /** Labels by which the machines or volumes of one case are told from the check's others. */
  labelsOf(name: string): Record<string, string> {
    return { ...this.labels, case: name };
  }

  /** A new volume that can be used. */
  async volume(spec: PersistentVolumeSpec): Promise<PersistentVolume> {
    const id = this.volumeId();
    let volume = await this.provider.volumes!.create(id, spec, { signal: this.signal });
    await this.untilTrue(`volume ${id} to be available`, async () => {
      if (volume.state !== "available") volume = await this.provider.volumes!.get(id, { signal: this.signal });
      return volume.state === "available";
    });
    return volume;
  }

  container(script: string, rest: Partial<ContainerSpec> = {}): ContainerSpec {
    if (script !== "") this.#script = script;
    return { name: "main", image: this.#image, command: ["sh", "-c", script], ...rest };
  }

  spec(script: string, rest: Partial<MachineSpec> = {}): MachineSpec {
    return {
      labels: this.labels,
      restart_policy: "never",
      termination_grace_s: 1,
      containers: [this.container(script)],
      ...rest,
    };
  }

  get script(): string | undefined {
    return this.#script;
  }

  get ids(): readonly string[] {
    return this.#ids;
  }

  /** Resolves when the backend was restarted and answers again. For checks with `needsRestart`, once each. */
  restarted(): Promise<void> {
    return this.#restarted?.() ?? Promise.reject(new Violation("a way to restart the backend", "there is none"));
  }

  get canRestart(): boolean {
    return this.#restarted !== undefined;
  }

  /** Resolves when something is under way that takes this machine from its host. For checks that `skip` without it. */
  disrupt(id: string): Promise<void> {
    return this.#disrupt?.(id) ?? Promise.reject(new Violation("a way to announce a machine's end", "there is none"));
  }

  get canDisrupt(): boolean {
    return this.#disrupt !== undefined;
  }

  /** A new machine; resolves with what createPod returned. */
  async create(script: string, rest: Partial<MachineSpec> = {}): Promise<Machine> {
    return this.provider.createPod(this.id(), this.spec(script, rest), { signal: this.signal });
  }

  /** A new machine whose main container runs. */
  async running(script: string, rest: Partial<MachineSpec> = {}): Promise<Machine> {
    const { id } = await this.create(script, rest);
    return this.until(id, "its main container to run", (machine) => mainOf(machine).state === "running");
  }

  /** A new machine that has said `word`, so that what its script did before is done. */
  async saying(word: string, script: string, rest: Partial<MachineSpec> = {}): Promise<Machine> {
    const machine = await this.running(script, rest);
    await this.untilLogged(machine.id, word);
    return machine;
  }

  untilLogged(id: string, word: string): Promise<void> {
    return this.untilTrue(`the container to print ${word}`, async () => {
      const lines = await this.logs(id);
      return lines.some((line) => line.content.toString().trim() === word);
    });
  }

  /** A new machine that is over. */
  async over(script: string, rest: Partial<MachineSpec> = {}): Promise<Machine> {
    const { id } = await this.create(script, rest);
    return this.untilOver(id);
  }

  get(id: string): Promise<Machine> {
    return this.provider.getPod(id, { signal: this.signal });
  }

  /** An agent can live with a machine in the list that makes no sense; a backend must not have any. */
  async list({
    labels = this.labels,
    includeDeleted,
  }: { labels?: Record<string, string> | undefined; includeDeleted?: boolean | undefined } = {}): Promise<MachineList> {
    const list = await this.provider.getPods({ signal: this.signal, labels, includeDeleted });
    const [unknown] = list.unknown ?? [];
    if (unknown !== undefined)
      throw new Violation(`a list of valid machines`, `machine ${unknown.id} is not valid: ${unknown.reason}`);
    return list;
  }

  async stop(id: string, graceSeconds: number): Promise<Machine> {
    const machine = await this.provider.stopPod(id, { signal: this.signal, graceSeconds });
    if (machine === undefined) throw new Violation("a stop to answer the machine", "the reply is not a valid machine");
    return machine;
  }

  delete(id: string, force = true): Promise<void> {
    return this.provider.deletePod(id, { signal: this.signal, force });
  }

  async logs(id: string, options: Partial<LogOptions> = {}, container = "main"): Promise<LogLine[]> {
    const lines: LogLine[] = [];
    const signal = this.within(this.patienceMs);
    for await (const line of this.provider.getLogs(id, container, { signal, ...options })) lines.push(line);
    // A provider may end its log rather than throw when it is told to give up; that is no end of the log.
    signal.throwIfAborted();
    return lines;
  }

  /** Aborts with the run, or after `ms`. */
  within(ms: number): AbortSignal {
    return AbortSignal.any([this.signal, this.#late(ms)]);
  }

  #late(ms: number): AbortSignal {
    const late = new AbortController();
    this.clock.after(ms, () => late.abort(new Violation(`an answer within ${ms / 1000} s`, "none came")));
    return late.signal;
  }

  untilOver(id: string): Promise<Machine> {
    return this.until(id, "its end (stopped or failed)", ({ state }) => state === "stopped" || state === "failed");
  }

  untilDeleted(id: string): Promise<Machine> {
    return this.until(id, "its tombstone", ({ state }) => state === "deleted");
  }

  async until(id: string, what: string, holds: (machine: Machine) => boolean): Promise<Machine> {
    let last: Machine | undefined;
    const deadline = this.clock.monotonic() + this.patienceMs;
    while (this.clock.monotonic() < deadline) {
      last = await this.get(id);
      if (holds(last)) return last;
      await this.clock.sleep(POLL_MS, this.signal);
    }
    throw new Violation(`machine ${id}: ${what} within ${this.patienceMs / 1000} s`, `it was ${summary(last)}`);
  }

  /** As it is when nothing has changed any more between two looks. */
  async settled(id: string): Promise<Machine> {
    let last = await this.get(id);
    for (let look = 0; look < 20; look++) {
      await this.clock.sleep(200, this.signal);
      const next = await this.get(id);
      if (next.version === last.version) return next;
      last = next;
    }
    return last;
  }

  async untilTrue(what: string, holds: () => Promise<boolean>): Promise<void> {
    const deadline = this.clock.monotonic() + this.patienceMs;
    while (!(await holds())) {
      if (this.clock.monotonic() >= deadline)
        throw new Violation(`${what} within ${this.patienceMs / 1000} s`, "it did not happen");
      await this.clock.sleep(POLL_MS, this.signal);
    }
  }

  /** @throws Violation */
  expect(condition: boolean, expected: string, came: string): asserts condition {
    if (!condition) throw new Violation(expected, came);
  }

  async expectCode(
    call: Promise<unknown>,
    codes: ProviderErrorCode | readonly ProviderErrorCode[],
    doing: string,
  ): Promise<ProviderError> {
    const code = [codes].flat().join(" or ");
    try {
      await call;
    } catch (thrown) {
      if (isProviderError(thrown) && [codes].flat().includes(thrown.code)) return thrown;
      const came = thrown instanceof ProviderError ? `${thrown.code} (${thrown.message})` : String(thrown);
      throw new Violation(`${doing} to fail with ${code}`, `it failed with ${came}`);
    }
    throw new Violation(`${doing} to fail with ${code}`, "it succeeded");
  }

  /** Deletes what the check has made: a run leaves nothing but tombstones, also one that was stopped. */
  async cleanUp(): Promise<void> {
    await Promise.allSettled(
      this.#ids.map((id) => this.provider.deletePod(id, { signal: this.#late(10_000), force: true })),
    );
    await Promise.allSettled(
      this.#imageIds.map((id) => this.provider.images!.delete(id, { signal: this.#late(10_000) })),
    );
    await Promise.allSettled(this.#volumeIds.map((id) => this.#removeVolume(id, this.#late(10_000))));
    await Promise.allSettled(
      this.#rangeLabels.map((labels) => this.provider.podRanges!.delete({ labels, signal: this.#late(10_000) })),
    );
  }

  /** As soon as nothing of its machine runs. */
  async #removeVolume(id: string, signal: AbortSignal): Promise<void> {
    const { volumes } = this.provider;
    for (;;) {
      try {
        const { reservations } = await volumes!.get(id, { signal });
        for (const { name } of reservations) await volumes!.release(id, name, { signal });
        return await volumes!.delete(id, { signal });
      } catch (thrown) {
        if (!isProviderError(thrown, "in_use")) throw thrown;
      }
      await this.clock.sleep(POLL_MS, signal);
    }
  }
}

/** The container that checks look at: the one called `main`. */
export function mainOf(machine: Machine): ContainerState {
  return containerOf(machine, "main");
}

export function containerOf(machine: Machine, name: string): ContainerState {
  const found = machine.containers.find((container) => container.name === name);
  if (found !== undefined) return found;
  throw new Violation(
    `machine ${machine.id} to show its container ${name}`,
    `it shows ${machine.containers.map((c) => c.name).join(", ") || "none"}`,
  );
}

/** What the main container has printed, without the end of the last line. */
export async function outputOf(context: CheckContext, id: string, options: Partial<LogOptions> = {}): Promise<string> {
  return textOf(await context.logs(id, options));
}

export function textOf(lines: readonly LogLine[]): string {
  const whole = lines.map(({ content, partial }) => (partial ? content : Buffer.concat([content, NEWLINE])));
  const text = Buffer.concat(whole).toString();
  return text.endsWith("\n") ? text.slice(0, -1) : text;
}

const NEWLINE = Buffer.from("\n");

export function summary(machine: Machine | undefined): string {
  if (machine === undefined) return "not there";
  const containers = machine.containers.map(
    ({ name, state, reason, terminated }) =>
      `${name} ${state}${reason ? ` ${reason}` : ""}${terminated ? ` with ${terminated.exit_code}` : ""}`,
  );
  return `${machine.state}${machine.reason ? ` ${machine.reason}` : ""} (${containers.join(", ")})`;
}
