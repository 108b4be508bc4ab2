/** What clients reach of a running machine: logs, commands, streams, ports, samples. */
import { once } from "node:events";
import type { Duplex } from "node:stream";
import {
  type LogLine,
  type LogOptions,
  type MachineStats,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  toError,
} from "../../../src/provider/kit/index.ts";
import type { Sandbox } from "../engine.ts";
import { LogWatches } from "../shim/log-watch.ts";
import { logBytes, readLog } from "../shim/log-reader.ts";
import type { ContainerInstance } from "./container-instance.ts";
import type { Instances } from "./instances.ts";
import type { MachineContext } from "./machine-context.ts";
import type { MachineUse } from "../pressure/eviction.ts";
import { Sessions } from "./sessions.ts";

export class MachineAccess {
  readonly #context: MachineContext;
  readonly #instances: Instances;
  readonly #sessions = new Sessions();
  readonly #watches = new LogWatches();

  constructor(context: MachineContext, instances: Instances) {
    this.#context = context;
    this.#instances = instances;
  }

  /** @throws ProviderError not_found, or conflict when the container has yet to start */
  logs(name: string, options: LogOptions): AsyncIterable<LogLine[]> {
    const { state, folders, clock } = this.#context;
    state.findSpec(name);
    const container = state.container(name);
    const { attempt } = container.own;
    const folder = folders.find(name, container.own, options.previous ? attempt - 1 : attempt);
    if (folder === undefined && options.previous)
      throw new ProviderError(
        "not_found",
        `previous terminated container "${name}" in machine "${state.id}" not found`,
      );
    // Its first instance has a folder before it is shown as running.
    const { state: shown, last } = container.shown;
    if (folder === undefined || (shown === "waiting" && last === undefined)) {
      const message = `container "${name}" in machine "${state.id}" is waiting to start: ${container.shown.reason}`;
      throw new ProviderError("conflict", message);
    }
    const complete = () => options.previous === true || container.own.attempt !== attempt || !container.isUp;
    return readLog(folder, {
      clock,
      signal: options.signal,
      follow: options.follow ?? false,
      tail: options.tail,
      since: options.since,
      stream: options.stream,
      limitBytes: options.limitBytes,
      complete,
      watches: this.#watches,
      changed: (signal) => (complete() || signal.aborted ? Promise.resolve() : state.changed.wait(signal)),
    });
  }

  /** @throws ProviderError not_found, conflict when the container does not run, unavailable */
  async exec(container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const { instance, sandbox } = this.#running(container);
    const start = () => sandbox.exec(instance.ref, command, options);
    return await this.#sessions.begin(this.#context.state.id, start, ({ exit }) => exit);
  }

  /** @throws ProviderError not_found, conflict when the container does not run, invalid, unavailable */
  async attach(container: string, options: StreamOptions): Promise<ProcessStreams> {
    const { shims, state, home } = this.#context;
    const { instance } = this.#running(container);
    const spec = state.findSpec(container);
    if (options.stdin && !spec.stdin)
      throw new ProviderError("invalid", `container "${container}" was not started with stdin`, { field: "stdin" });
    const socket = home.socketPath(instance.ref.id);
    const start = () => shims.attach(instance.ref, socket, { ...options, tty: spec.tty ?? false });
    return await this.#sessions.begin(state.id, start, ({ exit }) => exit);
  }

  /** @throws ProviderError conflict when the machine has no sandbox, unavailable when no program listens */
  async portForward(port: number, signal: AbortSignal): Promise<Duplex> {
    const { id, record } = this.#context.state;
    const sandbox = this.#context.sandbox();
    if (sandbox === undefined) throw new ProviderError("conflict", `machine ${id} is ${record.machine.state}`);
    try {
      const start = () => sandbox.dial(port, "loopback", signal);
      return await this.#sessions.begin(id, start, (socket) => once(socket, "close"));
    } catch (thrown) {
      if (thrown instanceof ProviderError) throw thrown;
      const message = `cannot connect to port ${port} of machine ${id}: ${toError(thrown).message}`;
      throw new ProviderError("unavailable", message, { cause: thrown });
    }
  }

  /** Undefined when nothing runs. */
  async stats(): Promise<MachineStats | undefined> {
    const { state, clock } = this.#context;
    const running = this.#instances.refs().filter(({ name }) => state.container(name).own.phase === "running");
    const sandbox = this.#context.sandbox();
    if (sandbox === undefined || running.length === 0) return undefined;
    const sample = await sandbox.stats(running);
    const containers = await Promise.all(
      sample.containers.map(async (container) => ({
        ...container,
        started_at: state.container(container.name).shown.started_at ?? state.record.machine.created_at,
        logs_used_bytes: await logBytes(this.#instances.get(container.name)?.ref.dir ?? ""),
        probes: Object.values(this.#instances.get(container.name)?.probers ?? {}).map(({ tally }) => ({ ...tally })),
      })),
    );
    return { id: state.id, at: new Date(clock.now()).toISOString(), ...sample, containers };
  }

  /** For the choice of who goes when the host runs out of something; undefined when nothing runs. */
  async use(): Promise<MachineUse | undefined> {
    const { state } = this.#context;
    const sandbox = this.#context.sandbox();
    const sample = await this.stats();
    if (sandbox === undefined || sample === undefined) return undefined;
    const inodes = await sandbox.inodes?.(this.#instances.refs());
    const sum = (amounts: Iterable<number>) => [...amounts].reduce((total, amount) => total + amount, 0);
    const containers = sample.containers.map(
      ({ name, memory_working_set_bytes, fs_used_bytes = 0, logs_used_bytes = 0 }) => ({
        name,
        memory: memory_working_set_bytes,
        disk: fs_used_bytes + logs_used_bytes,
      }),
    );
    // What outlives it stays when it goes.
    const isOwn = (name: string) => state.spec.volumes?.some((each) => each.type === "empty_dir" && each.name === name);
    const volumes = (sample.volumes ?? []).filter(({ name }) => isOwn(name));
    return {
      memory: sum(containers.map(({ memory }) => memory)),
      disk: sum([...containers.map(({ disk }) => disk), ...volumes.map(({ used_bytes }) => used_bytes)]),
      inodes: inodes === undefined ? 0 : sum(inodes.containers.values()) + sum(inodes.volumes.values()),
      processes: (await sandbox.processes?.()) ?? 0,
      containers,
    };
  }

  #running(name: string): { instance: ContainerInstance; sandbox: Sandbox } {
    const { state } = this.#context;
    state.findSpec(name);
    const instance = this.#instances.get(name);
    const sandbox = this.#context.sandbox();
    if (instance === undefined || sandbox === undefined || state.container(name).own.phase !== "running")
      throw new ProviderError("conflict", `container "${name}" in machine "${state.id}" is not running`);
    return { instance, sandbox };
  }
}
