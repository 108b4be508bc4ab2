/** One run of a container: its program, what it writes and who listens, its hook, its probes. */
import { PassThrough } from "node:stream";
import { type Clock, type ContainerSpec, OutputLog, Prober, type ProberEvents } from "../../src/provider/kit/index.ts";
import { RunningProgram, type Program, type Surroundings } from "./program.ts";
import { shellProgram } from "./shell.ts";

/** Takes output as it comes. */
type Tap = (stream: "stdout" | "stderr", bytes: Buffer) => Promise<void>;

/** How an instance ended, when that was not its program's own doing. */
export interface ForcedEnd {
  exitCode: number;
  reason?: string | undefined;
  oomKilled?: boolean | undefined;
}

interface InstanceOptions {
  id: string;
  /** With the machine's addresses. */
  spec: ContainerSpec;
  /** Undefined runs until it is stopped. */
  program: Program | undefined;
  clock: Clock;
  surroundings: Surroundings;
  /** Called once. */
  onExit: (exitCode: number) => void;
}

function environmentOf({ env = [] }: ContainerSpec): Record<string, string> {
  return { PATH: "/bin", HOME: "/", ...Object.fromEntries(env.map(({ name, value }) => [name, value])) };
}

export class Instance {
  readonly id: string;
  readonly startedAt: string;
  readonly log: OutputLog;
  /** Attached readers. */
  readonly taps = new Set<Tap>();
  readonly surroundings: Surroundings;
  /** Set before `exit` resolves. */
  forcedEnd: ForcedEnd | undefined;
  readonly #clock: Clock;
  readonly #spec: ContainerSpec;
  readonly #run: RunningProgram;
  readonly #probers: Prober[] = [];
  readonly #exit = Promise.withResolvers<number>();
  #stdin: PassThrough | undefined;

  constructor({ id, spec, program, clock, surroundings, onExit }: InstanceOptions) {
    this.id = id;
    this.startedAt = new Date(clock.now()).toISOString();
    this.log = new OutputLog(clock);
    this.surroundings = surroundings;
    this.#clock = clock;
    this.#spec = spec;
    const input = () => (spec.stdin === true ? this.stdin : PassThrough.from([]));
    this.#run = new RunningProgram(
      program,
      {
        argv: [...(spec.command ?? []), ...(spec.args ?? [])],
        env: environmentOf(spec),
        clock,
        surroundings,
        streams: {
          stdin: { [Symbol.asyncIterator]: () => input()[Symbol.asyncIterator]() as AsyncIterator<Buffer> },
          write: (stream, bytes) => this.#write(stream, bytes),
        },
      },
      (exitCode, isOutOfMemory) => {
        if (isOutOfMemory) this.forcedEnd = { exitCode, oomKilled: true };
        this.log.end();
        for (const prober of this.#probers) prober.stop();
        onExit(exitCode);
        this.#exit.resolve(exitCode);
      },
    );
  }

  /** Made when a client attaches or the program reads. */
  get stdin(): PassThrough {
    return (this.#stdin ??= new PassThrough());
  }

  /** Resolves with the exit code. */
  get exit(): Promise<number> {
    return this.#exit.promise;
  }

  stop(): void {
    this.#run.stop(this.#spec.stop?.signal);
  }

  /** For commands beside the container's own. */
  get env(): Record<string, string> {
    return environmentOf(this.#spec);
  }

  kill(): void {
    this.#run.kill();
  }

  resize(columns: number, rows: number): void {
    this.#run.resize(columns, rows);
  }

  /** Ends it from outside, as the kernel or a fault would. */
  force(end: ForcedEnd): void {
    this.forcedEnd = end;
    this.#run.exit(end.exitCode);
  }

  /** A hook that fails ends the container. */
  runPostStart({ hooks }: ContainerSpec): void {
    const run = this.#runner(hooks?.post_start?.exec?.command);
    void run?.().then((exitCode) => {
      if (exitCode !== 0) this.kill();
    });
  }

  /** Probes by command are run; those of other kinds, and of commands that are not known, succeed. */
  startProbes({ probes }: ContainerSpec, events: ProberEvents): void {
    for (const kind of ["readiness", "liveness"] as const) {
      const probe = probes?.[kind];
      const run = this.#runner(probe?.exec?.command);
      if (probe === undefined || run === undefined) continue;
      const attempt = async () => ({
        outcome: (await run()) === 0 ? ("success" as const) : ("failure" as const),
        output: "",
      });
      const prober = new Prober(kind, probe, this.#clock, attempt, events);
      this.#probers.push(prober);
      prober.start(Date.parse(this.startedAt));
    }
  }

  async #write(stream: "stdout" | "stderr", bytes: Buffer): Promise<void> {
    this.log.append(stream, bytes);
    if (this.taps.size > 0) await Promise.all([...this.taps].map((tap) => tap(stream, bytes)));
  }

  /** Runs a command beside the container's own and tells its exit code; undefined for one that is not known. */
  #runner(command: readonly string[] | undefined): (() => Promise<number>) | undefined {
    const program = command && shellProgram(command);
    if (program === undefined) return undefined;
    const streams = { stdin: PassThrough.from([]), write: () => Promise.resolve() };
    const context = {
      argv: command ?? [],
      env: this.env,
      clock: this.#clock,
      surroundings: this.surroundings,
      streams,
    };
    return () =>
      new Promise((resolve) => {
        new RunningProgram(program, context, resolve);
      });
  }
}
