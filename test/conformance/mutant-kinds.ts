/** Kinds of broken backends: what each does otherwise than the sound one. */
import type { MemoryProvider } from "../../providers/memory/index.ts";
import type { HttpTarget } from "../../src/provider/kit/http-target.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../../src/provider/machine.ts";
import type {
  LogLine,
  LogOptions,
  MachineEvent,
  ProcessStreams,
  Provider,
  StreamOptions,
} from "../../src/provider/provider.ts";

/** What has happened to the backend. */
export interface World {
  /** Its process was restarted. */
  isRestarted: boolean;
}

export interface Mutant {
  /** Methods in place of the sound ones. */
  provider?: (sound: MemoryProvider, world: World) => Partial<Provider>;
  http?: (sound: HttpTarget["request"]) => HttpTarget["request"];
  /** A backend that lacks the capability `stats`, for the check of what is missing. */
  withoutStats?: true;
}

/** True for machines and volumes of the check that labels its own so. */
export const isCase = ({ labels }: { labels: Record<string, string> }, name: string): boolean =>
  labels["case"] === name;

type CreateSpec = (spec: MachineSpec) => MachineSpec;

/** Creates something else than what was asked for. */
export const creating = (change: CreateSpec): Mutant => ({
  provider: (sound) => ({ createPod: (id, spec, options) => sound.createPod(id, change(spec), options) }),
});

export const creatingContainers = (change: (container: ContainerSpec) => ContainerSpec): Mutant =>
  creating((spec) => ({ ...spec, containers: spec.containers.map(change) }));

/** Shows machines otherwise than they are, when they are asked for one by one. */
export const showing = (change: (machine: Machine) => object): Mutant => ({
  provider: (sound) => ({
    getPod: async (id, options) => ({
      ...(await sound.getPod(id, options)),
      ...change(await sound.getPod(id, options)),
    }),
  }),
});

export const showingContainers = (change: (container: ContainerState) => ContainerState): Mutant =>
  showing(({ containers }) => ({ containers: containers.map(change) }));

export const logging = (change: (options: LogOptions) => LogOptions): Mutant => ({
  provider: (sound) => ({ getLogs: (id, container, options) => sound.getLogs(id, container, change(options)) }),
});

export const loggingLines = (change: (line: LogLine) => LogLine): Mutant => ({
  provider: (sound) => ({
    async *getLogs(id, container, options) {
      for await (const line of sound.getLogs(id, container, options)) yield change(line);
    },
  }),
});

export const watching = (
  change: (sound: MemoryProvider, ...call: Parameters<MemoryProvider["watchPods"]>) => AsyncIterable<MachineEvent>,
): Mutant => ({
  provider: (sound) => ({ watchPods: (since, options) => change(sound, since, options) }),
});

export const executing = (
  change: (streams: ProcessStreams, script: string) => ProcessStreams,
  options: (script: string) => Partial<StreamOptions> = () => ({}),
): Mutant => ({
  provider: (sound) => ({
    async exec(id, container, command, given) {
      const script = command.at(-1) ?? "";
      return change(await sound.exec(id, container, command, { ...given, ...options(script) }), script);
    },
  }),
});

/** Sends other requests than the kit's. */
export const requesting = (
  change: (
    method: string,
    path: string,
    options: NonNullable<Parameters<HttpTarget["request"]>[2]>,
  ) => [string, typeof options],
): Mutant => ({
  http:
    (sound) =>
    (method, path, options = {}) => {
      const [otherPath, otherOptions] = change(method, path, options);
      return sound(method, otherPath, otherOptions);
    },
});

type Reply = Awaited<ReturnType<HttpTarget["request"]>>;

/** Sends other replies than the server's. */
export const replying = (
  change: (reply: Reply, method: string, path: string, body: string | undefined) => Partial<Reply>,
): Mutant => ({
  http: (sound) => async (method, path, options) => {
    const reply = await sound(method, path, options);
    return { ...reply, ...change(reply, method, path, options?.body) };
  },
});

export const envelope = (code: string) => JSON.stringify({ error: { code, message: "mutant" } });
export const untilAborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
export const runs = (spec: MachineSpec, script: string) => JSON.stringify(spec).includes(script);
export const endedWith = (container: ContainerState, from: number, to: number): ContainerState =>
  container.terminated?.exit_code === from
    ? { ...container, terminated: { ...container.terminated, exit_code: to } }
    : container;
