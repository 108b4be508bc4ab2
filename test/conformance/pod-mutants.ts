/** A backend that is broken for the pods of each pod check, in the way that the check is there to find, and for no others. */
import { POD_CHECKS } from "../../src/cli/pod-kit/checks.ts";
import { POLITE, STUBBORN } from "../../src/cli/pod-kit/context.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../../src/provider/machine.ts";
import { LABEL_POD, LABEL_UID } from "../../src/provider/owner.ts";
import type { LogLine, LogOptions, Provider } from "../../src/provider/provider.ts";

interface PodMutant {
  /** Makes another machine than was asked for. */
  asked?: (spec: MachineSpec) => MachineSpec;
  /** Shows a machine as it is not. @param lists how often an agent has asked for all of its machines */
  shown?: (machine: Machine, lists: number) => Machine;
  logged?: (options: LogOptions, container: string) => { options: LogOptions; container: string };
  line?: (line: LogLine) => LogLine;
  executed?: (command: string[]) => string[];
  /** Lists of its pod's machines have one more, also when there is none. */
  isListed?: true;
}

const asking = (change: (spec: MachineSpec) => Partial<MachineSpec>): PodMutant => ({
  asked: (spec) => ({ ...spec, ...change(spec) }),
});
const askingContainers = (change: (container: ContainerSpec) => ContainerSpec): PodMutant =>
  asking(({ containers }) => ({ containers: containers.map(change) }));
const scripted = (script: string) => (container: ContainerSpec) => ({ ...container, command: ["sh", "-c", script] });
const showing = (
  change: (container: ContainerState, machine: Machine, lists: number) => ContainerState,
): PodMutant => ({
  shown: (machine, lists) => ({
    ...machine,
    containers: machine.containers.map((container) => change(container, machine, lists)),
  }),
});
const endingWith = (exit_code: number): PodMutant =>
  showing((state) => (state.terminated ? { ...state, terminated: { ...state.terminated, exit_code } } : state));
const withoutProbes = askingContainers((container) => ({ ...container, probes: {} }));

/** What the check that finds it says. */
export const FOUND: Readonly<Record<string, RegExp>> = {
  "completion/exit-0-is-success": /to be Succeeded, but it is Failed, main ended with 1/,
  "completion/exit-code-is-kept": /ended with 37 \(Error\), but the pod is Failed, main ended with 1/,
  "completion/waits-for-every-container": /the log of pod .* to be "of main\\n", but it is "of brief\\n"/,
  "restart/on-failure-tries-again-and-waits": /wait in CrashLoopBackOff .*, but it is Failed, main ended with 7/,
  "restart/on-failure-leaves-success": /to be Succeeded .*, but it is Running, main .*, \d+ restarts/,
  "restart/always-restarts-success": /to be restarted .*, but it is Succeeded/,
  "restart/the-earlier-log-can-be-read": /the earlier log of pod .* to be "a reason/,
  "environment/variables-and-arguments": /the log of pod .*, but it is "hello pods\|from a map/,
  "volumes/a-config-map-is-files":
    /the log of pod .* to be "app.conf\\nother.*, but it is "app.conf\\nport|Failed, main ended/,
  "volumes/an-empty-dir-outlives-a-restart": /to be Succeeded .*, but it is Running, main .*, \d+ restarts/,
  "logs/follow-to-the-end": /the log that was followed to be/,
  "exec/output-and-exit-code": /the exit code to be "5", but it is "0"/,
  "probes/readiness-decides-who-is-ready": /readiness probe fails not to be Ready/,
  "probes/liveness-restarts": /to be restarted .*, but it is Running/,
  "init/one-after-another": /each init container to end before the next/,
  "init/a-failure-keeps-the-rest-from-starting": /to be Failed, but it is Succeeded/,
  "deletion/does-not-wait-for-the-grace": /to be gone within .*, but it is Running/,
  "deletion/gives-the-grace-and-no-more": /to have its 6 s of grace, but its pod was gone after/,
  "deletion/before-it-runs-leaves-nothing": /no machine to be left of pod|to be gone within/,
  "deletion/the-same-name-again-is-another-pod": /a container of its own/,
  "agent-restart/a-running-pod-stays-as-it-is": /the container's id to be/,
  "agent-restart/nothing-is-lost-or-doubled": /one machine for pod .*, but there are 2/,
  "agent-restart/an-end-meanwhile-is-seen": /to be Failed, but it is Succeeded/,
  "agent-restart/a-deletion-goes-on": /no machine to be left of pod|to be gone within/,
  "backend-restart/a-running-pod-stays-as-it-is": /one machine for pod .*, but there are 2/,
  "backend-restart/a-deletion-goes-on": /no machine to be left of pod|to be gone within/,
};

export const POD_MUTANTS: Readonly<Record<string, PodMutant>> = {
  "completion/exit-0-is-success": endingWith(1),
  "completion/exit-code-is-kept": endingWith(1),
  "completion/waits-for-every-container": { logged: (options) => ({ options, container: "brief" }) },
  "restart/on-failure-tries-again-and-waits": asking(() => ({ restart_policy: "never" })),
  "restart/on-failure-leaves-success": asking(() => ({ restart_policy: "always" })),
  "restart/always-restarts-success": asking(() => ({ restart_policy: "on_failure" })),
  "restart/the-earlier-log-can-be-read": {
    line: (line) => ({ ...line, content: Buffer.from("of another instance") }),
  },
  "environment/variables-and-arguments": askingContainers((container) => ({ ...container, args: [] })),
  "volumes/a-config-map-is-files": asking(({ volumes = [] }) => ({
    volumes: volumes.map((volume) =>
      volume.type === "files" ? { ...volume, files: volume.files.slice(0, 1) } : volume,
    ),
  })),
  "volumes/an-empty-dir-outlives-a-restart": askingContainers((container) =>
    scripted((container.command?.[2] ?? "").replace("touch", "true"))(container),
  ),
  "logs/follow-to-the-end": { line: (line) => ({ ...line, content: Buffer.from("always this") }) },
  "exec/output-and-exit-code": { executed: ([sh, c, script]) => [sh!, c!, `${script}`.replace("exit 5", "exit 0")] },
  "probes/readiness-decides-who-is-ready": withoutProbes,
  "probes/liveness-restarts": withoutProbes,
  "init/one-after-another": showing((state, { created_at }) =>
    state.terminated ? { ...state, terminated: { ...state.terminated, started_at: created_at } } : state,
  ),
  "init/a-failure-keeps-the-rest-from-starting": asking(({ init_containers = [] }) => ({
    init_containers: init_containers.map(scripted("exit 0")),
  })),
  "deletion/does-not-wait-for-the-grace": askingContainers(scripted(STUBBORN)),
  "deletion/gives-the-grace-and-no-more": askingContainers(scripted(POLITE)),
  "deletion/before-it-runs-leaves-nothing": { isListed: true },
  "deletion/the-same-name-again-is-another-pod": showing((state) =>
    state.id ? { ...state, id: "always-this" } : state,
  ),
  "agent-restart/a-running-pod-stays-as-it-is": showing((state, _machine, lists) =>
    state.id ? { ...state, id: `${state.id}-${lists}` } : state,
  ),
  "agent-restart/nothing-is-lost-or-doubled": { isListed: true },
  "agent-restart/an-end-meanwhile-is-seen": endingWith(0),
  "agent-restart/a-deletion-goes-on": { isListed: true },
  "backend-restart/a-running-pod-stays-as-it-is": { isListed: true },
  "backend-restart/a-deletion-goes-on": { isListed: true },
};

/** Which check's pod it is, its name says: `conf-RUN-NUMBER-...`. */
function checkOf(labels: Readonly<Record<string, string>>): string | undefined {
  const [, number] = /^conf-[0-9a-f]+-(\d+)-/.exec(labels[LABEL_POD] ?? "") ?? [];
  return number === undefined ? undefined : POD_CHECKS[Number(number)]?.name;
}

export function broken(sound: Provider): Provider {
  const made = new Map<string, Machine>();
  let lists = 0;
  const mutantOf = (labels: Readonly<Record<string, string>>): PodMutant => POD_MUTANTS[checkOf(labels) ?? ""] ?? {};
  const mutantOfId = (id: string) => mutantOf(made.get(id)?.labels ?? {});
  const shown = (machine: Machine): Machine => {
    return mutantOf(machine.labels).shown?.(machine, lists) ?? machine;
  };
  const changed: Partial<Provider> = {
    async createPod(id, spec, options) {
      const machine = await sound.createPod(id, mutantOf(spec.labels).asked?.(spec) ?? spec, options);
      made.set(id, machine);
      return shown(machine);
    },
    getPod: async (id, options) => shown(await sound.getPod(id, options)),
    async getPods(options) {
      const isAgents = !(LABEL_UID in options.labels);
      if (isAgents) lists++;
      const list = await sound.getPods(options);
      const items = list.items.map(shown);
      if (isAgents) return { ...list, items };
      const uid = options.labels[LABEL_UID]!;
      const known = [...made.values()].find(({ labels }) => labels[LABEL_UID] === uid);
      if (known !== undefined && mutantOf(known.labels).isListed !== true) return { ...list, items };
      // Of a pod that never had a machine nothing is known but this: it was deleted before.
      const any = known ?? made.values().next().value;
      if (any === undefined) return { ...list, items };
      return {
        ...list,
        items: [...items, { ...any, id: `${any.id}-more`, labels: { ...any.labels, ...options.labels } }],
      };
    },
    async stopPod(id, options) {
      const machine = await sound.stopPod(id, options);
      return machine && shown(machine);
    },
    getLogs(id, container, options) {
      const { logged, line } = mutantOfId(id);
      const asked = logged?.(options, container) ?? { options, container };
      const lines = sound.getLogs(id, asked.container, asked.options);
      return line === undefined ? lines : mapped(lines, line);
    },
    exec: (id, container, command, options) =>
      sound.exec!(id, container, mutantOfId(id).executed?.(command) ?? command, options),
    watchPods: (since, options) =>
      mapped(sound.watchPods!(since, options), (event) =>
        event.machine === undefined ? event : { ...event, machine: shown(event.machine) },
      ),
  };
  return new Proxy(sound, {
    get(target, key) {
      const value: unknown = Reflect.get(changed, key) ?? Reflect.get(target, key, target);
      return typeof value === "function" && !(key in changed) ? (value.bind(target) as unknown) : value;
    },
  });
}

async function* mapped<T>(source: AsyncIterable<T>, change: (each: T) => T): AsyncGenerator<T> {
  for await (const each of source) yield change(each);
}
