/** Broken backends for the checks of processes, restarts, logs, sessions, events and plain HTTP. */
import { PassThrough } from "node:stream";
import { ProviderError, isProviderError } from "../../src/provider/errors.ts";
import type { Machine, MachineSpec } from "../../src/provider/machine.ts";
import { systemClock } from "../../src/util/clock.ts";
import { passTime } from "../e2e/harness/wait.ts";
import {
  creating,
  creatingContainers,
  endedWith,
  envelope,
  executing,
  logging,
  loggingLines,
  replying,
  requesting,
  runs,
  showing,
  showingContainers,
  untilAborted,
  watching,
  type Mutant,
  isCase,
} from "./mutant-kinds.ts";

const showingCase = (name: string, change: (machine: Machine) => object): Mutant =>
  showing((machine) => (isCase(machine, name) ? change(machine) : {}));

/** As `creating`, where the specification has this text. */
const creatingWhere = (text: string, change: (spec: MachineSpec) => MachineSpec): Mutant =>
  creating((spec) => (runs(spec, text) ? change(spec) : spec));

const replacing = (from: string, to: string): Mutant =>
  creatingWhere(from, (spec) => JSON.parse(JSON.stringify(spec).replaceAll(from, to)) as MachineSpec);

/** Whose variables may be missing from their files. */
const readingOptionally = (spec: MachineSpec): MachineSpec => ({
  ...spec,
  containers: spec.containers.map((container) => ({
    ...container,
    env: (container.env ?? []).map((each) =>
      each.from_file === undefined ? each : { ...each, from_file: { ...each.from_file, optional: true } },
    ),
  })),
});

/** Runs another script than the one of this name. */
const executingInstead = (from: string, to: string): Mutant => ({
  provider: (sound) => ({
    exec: (id, container, command, options) =>
      sound.exec(
        id,
        container,
        command.map((word) => (word === from ? to : word)),
        options,
      ),
  }),
});

/** The path without what is found in it. */
const without = (pattern: RegExp, replacement = ""): Mutant =>
  requesting((_method, path, options) => [path.replace(pattern, replacement), options]);

/** A backend that takes what it should refuse. */
const accepting = (isIt: (body: string, path: string, method: string) => boolean): Mutant =>
  replying((_reply, method, path, body) =>
    isIt(body ?? "", path, method) ? { status: 200, body: '{"id":"mutant"}' } : {},
  );

const listing = (change: (items: Machine[], includeDeleted: boolean) => Machine[]): Mutant => ({
  provider: (sound) => ({
    getPods: async (options) => {
      const list = await sound.getPods(options);
      return { ...list, items: change(list.items, options.includeDeleted === true) };
    },
  }),
});

/** Where a stop of this case's machines does something else. */
const stoppingCase = (name: string): Mutant => ({
  provider: (sound) => ({
    stopPod: async (id, options) =>
      isCase(await sound.getPod(id, options), name) ? sound.getPod(id, options) : sound.stopPod(id, options),
  }),
});

const onLabel = (text: string) => (path: string) => decodeURIComponent(path).includes(text);

/** Takes a WebSocket that it should refuse. */
const upgrading = (route: string): Mutant =>
  replying(({ status }, _method, path) => (path.includes(route) && status === 400 ? { status: 101, body: "" } : {}));

/** Logs of containers that have not started, of machines whose specification has this text. */
const loggingEarly = (text: string, instead: () => Promise<void>): Mutant => ({
  provider: (sound) => {
    const ids = new Set<string>();
    return {
      createPod: (id, spec, options) => {
        if (runs(spec, text)) ids.add(id);
        return sound.createPod(id, spec, options);
      },
      async *getLogs(id, container, options) {
        const isEarly = ids.delete(id);
        if (isEarly) await instead();
        else yield* sound.getLogs(id, container, options);
      },
    };
  },
});

/** As if the first device of a resource were everybody's. */
const withOneDevice = (machine: Machine): Machine => ({
  ...machine,
  containers: machine.containers.map((container) => ({
    ...container,
    ...(container.devices && { devices: container.devices.map((device) => ({ ...device, id: "0" })) }),
  })),
});

export const MORE_MUTANTS: Record<string, Mutant> = {
  "claims/wait-for-their-driver": creating(({ resource_claims: _claims, ...spec }) => spec),
  "volumes/wait-for-their-csi-driver": creating((spec) => ({
    ...spec,
    volumes: (spec.volumes ?? []).map((each) =>
      each.type === "csi" && each.persistent === undefined
        ? { name: each.name, type: "empty_dir" as const, medium: "disk" as const }
        : each,
    ),
  })),
  "volumes/those-of-csi-drivers-are-told-of-until-the-end": showing(({ csi_volumes }) =>
    csi_volumes ? { csi_volumes: [] } : {},
  ),
  "disruption/is-told-while-the-machine-runs": {
    provider: (sound) => ({
      getPods: async (options) => {
        const list = await sound.getPods(options);
        return { ...list, items: list.items.map(({ disruption: _announced, ...machine }) => machine) };
      },
    }),
  },
  "devices/each-has-one-machine": showing(withOneDevice),
  "devices/too-many-are-not-run-without": creatingContainers(
    ({ resources: { limits, ...resources } = {}, ...spec }) => {
      const { extended = [], ...others } = limits ?? {};
      const some = extended.filter(({ count }) => count < 5);
      return {
        ...spec,
        resources: { ...resources, limits: { ...others, ...(some.length > 0 && { extended: some }) } },
      };
    },
  ),
  "create/labels-are-part-of-it": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch((thrown: unknown) => {
          if (isProviderError(thrown, "conflict") && isCase(spec, "other")) return sound.getPod(id, options);
          throw thrown;
        }),
    }),
  },
  "create/of-what-is-over-returns-it": {
    provider: (sound) => ({
      async createPod(id, spec, options) {
        const before = await sound.getPod(id, options).catch(() => undefined);
        if (before?.state === "stopped") throw new ProviderError("conflict", "it is over");
        return sound.createPod(id, spec, options);
      },
    }),
  },
  "stop/sends-the-signal-that-is-named": creatingContainers(({ stop: _stop, ...container }) => container),
  "stop/nothing-runs-any-more": {
    provider: (sound) => {
      const beats = new Set<string>();
      return {
        createPod: (id, spec, options) => {
          if (runs(spec, "echo beat")) beats.add(id);
          return sound.createPod(id, spec, options);
        },
        async *getLogs(id, container, options) {
          yield* sound.getLogs(id, container, options);
          if (!beats.has(id)) return;
          const { stopped_at } = await sound.getPod(id, options);
          const count = stopped_at === undefined ? 0 : (systemClock.now() - Date.parse(stopped_at)) / 200;
          for (let beat = 0; beat < count; beat++)
            yield {
              at: "2026-01-01T00:00:00.000000000Z",
              stream: "stdout",
              partial: false,
              content: Buffer.from("beat"),
            };
        },
      };
    },
  },
  "stop/is-seen-while-it-lasts": showingCase("lasting", ({ state }) =>
    state === "stopping" ? { state: "stopped" } : {},
  ),
  "stop/ends-every-container": showingCase("every", ({ state, containers }) =>
    state === "stopped"
      ? { containers: containers.map(({ terminated: _end, ...rest }) => ({ ...rest, state: "running" })) }
      : {},
  ),
  "stop/right-after-the-create": stoppingCase("early"),
  "stop/of-a-tombstone-returns-it": {
    provider: (sound) => ({
      async stopPod(id, options) {
        const machine = await sound.stopPod(id, options);
        if (machine.state === "deleted") throw new ProviderError("not_found", "it is deleted");
        return machine;
      },
    }),
  },
  "delete/returns-at-once": {
    provider: (sound) => ({
      async deletePod(id, options) {
        const machine = await sound.getPod(id, options).catch(() => undefined);
        await sound.deletePod(id, options);
        if (machine !== undefined && isCase(machine, "patient") && !options.force)
          await passTime(3500, "slowness is its fault");
      },
    }),
  },
  "delete/has-time-when-no-grace-is-named": creating((spec) => ({ termination_grace_s: 1, ...spec })),
  "delete/is-seen-while-it-lasts": showingCase("deleting", ({ state }) =>
    state === "deleting" || state === "stopping" ? { state: "stopped" } : {},
  ),
  "delete/while-it-lasts-a-create-is-gone": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch((thrown: unknown) => {
          if (isCase(spec, "too-late") && isProviderError(thrown, "gone")) return sound.getPod(id, options);
          throw thrown;
        }),
    }),
  },
  "delete/the-tombstone-stays": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch((thrown: unknown) => {
          if (isCase(spec, "late") && isProviderError(thrown, "gone")) return sound.getPod(id, options);
          throw thrown;
        }),
    }),
  },
  "delete/the-tombstone-says-when": showing(({ state }) => (state === "deleted" ? { deleted_at: undefined } : {})),
  "delete/of-one-leaves-the-others": {
    provider: (sound) => ({
      async deletePod(id, options) {
        const prefix = id.slice(0, id.lastIndexOf("-"));
        await sound.deletePod(id, options);
        for (const other of sound.machines)
          if (isCase(other, "stays") && other.id.startsWith(prefix))
            sound.endContainer(other.id, "main", { exitCode: 1 });
      },
    }),
  },
  "list/items-are-whole-machines": listing((items) =>
    items.map((item) => (isCase(item, "whole") ? { ...item, version: item.version - 1 } : item)),
  ),
  "list/revisions-never-fall": {
    provider: (sound) => ({
      getPods: async (options) => {
        const list = await sound.getPods(options);
        return list.items.some((item) => isCase(item, "fall")) ? { ...list, revision: 1 } : list;
      },
    }),
  },
  "list/a-stopping-machine-is-listed": listing((items) => items.filter(({ state }) => state !== "stopping")),
  "containers/args-follow-the-command": creatingContainers(({ args: _args, ...container }) => container),
  "containers/environment-is-exact": creatingContainers((container) => ({
    ...container,
    env: (container.env ?? []).map((each) =>
      each.from_file === undefined ? { ...each, value: each.value.split("\n")[0]! } : each,
    ),
  })),
  "containers/environment-has-empty-values": creatingContainers((container) => ({
    ...container,
    env: (container.env ?? []).filter(({ value, from_file }) => value !== "" || from_file !== undefined),
  })),
  "containers/environment-has-PATH-and-HOME": creatingContainers((container) =>
    container.command?.at(-1) === "env" && container.env === undefined
      ? { ...container, env: [{ name: "PATH", value: "" }] }
      : container,
  ),
  "containers/environment-may-have-its-own-PATH-and-HOME": creatingContainers((container) => ({
    ...container,
    ...(container.env && { env: container.env.filter(({ name }) => name !== "HOME") }),
  })),
  "containers/input-is-empty": creatingContainers((container) =>
    container.command?.at(-1) === "cat; echo ended" ? { ...container, stdin: true } : container,
  ),
  "containers/what-cannot-start-has-failed": showingContainers((container) => endedWith(container, 127, 0)),
  "containers/what-ended-is-not-ready": showingContainers((container) =>
    container.kind === "main" && container.terminated?.exit_code === 0 ? { ...container, ready: true } : container,
  ),
  "containers/end-after-they-started": showingContainers((container) =>
    container.terminated?.exit_code !== 0
      ? container
      : { ...container, terminated: { ...container.terminated, started_at: container.terminated.finished_at } },
  ),
  "containers/say-since-when-they-run": showingContainers((container) => {
    const { started_at: _at, ...rest } = container;
    return rest.state === "running" && rest.restart_count === 0 ? rest : container;
  }),
  "containers/kinds-are-told": showingCase("kinds", ({ containers }) => ({
    containers: containers.map((container) => ({ ...container, kind: "main" })),
  })),
  "containers/one-that-fails-leaves-the-others": {
    provider: (sound) => ({
      getPod: async (id, options) => {
        const machine = await sound.getPod(id, options);
        const second = machine.containers.find(({ name }) => name === "second");
        if (!isCase(machine, "others") || second?.state !== "terminated") return machine;
        sound.endContainer(id, "main", { exitCode: 1 });
        return sound.getPod(id, options);
      },
    }),
  },
  "machine/runs-when-its-containers-do": showing(({ state, labels }) =>
    state === "running" && labels["case"] === undefined && labels["role"] === undefined ? { state: "starting" } : {},
  ),
  "machine/is-reachable": showing(({ state }) => (state === "running" ? { reachability: "unknown" } : {})),
  "machine/its-sandbox-is-ready": showing(({ state }) => (state === "running" ? { sandbox_ready: false } : {})),
  "machine/keeps-its-labels": showing(({ labels }) => ({
    labels: Object.fromEntries(Object.entries(labels).filter(([, value]) => value !== "")),
  })),
  "machine/keeps-its-time-of-birth": showing(({ stopped_at, containers }) =>
    containers[0]?.terminated?.exit_code === 137 ? { created_at: stopped_at } : {},
  ),
  "machine/revision-grows": showing(({ containers }) =>
    containers[0]?.terminated?.exit_code === 137 ? { revision: 1 } : {},
  ),
  "machine/a-look-changes-nothing": {
    provider: (sound) => {
      let looks = 0;
      return {
        getPod: async (id, options) => {
          const machine = await sound.getPod(id, options);
          return machine.containers[0]?.terminated?.exit_code === 0 && Object.keys(machine.labels).length === 1
            ? { ...machine, version: machine.version + ++looks }
            : machine;
        },
      };
    },
  },
  "restart/every-instance-has-an-id": showingContainers((container) =>
    container.id === undefined ? container : { ...container, id: container.id.replace(/\/\d+$/, "/0") },
  ),
  "restart/waits-as-told": creating((spec) =>
    spec.backoff?.initial_ms === 1500 ? { ...spec, backoff: { initial_ms: 1, max_ms: 1 } } : spec,
  ),
  "restart/a-long-run-begins-the-waits-anew": creating((spec) =>
    spec.backoff?.initial_ms === 2000 ? { ...spec, backoff: { initial_ms: 2000, max_ms: 600_000 } } : spec,
  ),
  "restart/waiting-says-so": showingContainers((container) =>
    container.reason === "CrashLoopBackOff" ? { ...container, reason: "ContainerCreating" } : container,
  ),
  "restart/on-failure-restarts-failure": creatingWhere("exit 8", (spec) => ({ ...spec, restart_policy: "never" })),
  "restart/always-restarts-success": creatingWhere("sleep 0.1; exit 0", (spec) => ({
    ...spec,
    restart_policy: "on_failure",
  })),
  "restart/a-stop-ends-the-loop": {
    provider: (sound) => ({
      async stopPod(id, options) {
        const machine = await sound.getPod(id, options);
        const isLooping = machine.containers.some(({ reason }) => reason === "CrashLoopBackOff");
        return isLooping ? machine : sound.stopPod(id, options);
      },
    }),
  },
  "restart/what-is-stopped-stays-stopped": showingCase("stays-stopped", ({ state, stopped_at = "" }) =>
    state === "stopped" && systemClock.now() - Date.parse(stopped_at) > 700 ? { state: "running" } : {},
  ),
  "init/one-after-the-other": showingCase("order", ({ containers }) => ({
    containers: containers.map((container) =>
      container.name === "second" && container.terminated !== undefined
        ? { ...container, terminated: { ...container.terminated, started_at: "2026-01-01T00:00:00.000Z" } }
        : container,
    ),
  })),
  "init/what-failed-is-tried-again": replacing("exit 11", "sleep 3600"),
  "sidecars/run-beside-the-main-containers": showingCase("beside", ({ containers }) => ({
    containers: containers.map((container) =>
      container.name === "side" ? { ...container, state: "waiting" } : container,
    ),
  })),
  "sidecars/run-again": replacing("exit 12", "sleep 3600"),
  "ephemeral/never-restarts": showingContainers((container) =>
    container.kind === "ephemeral" && container.terminated?.exit_code === 13
      ? { ...container, restart_count: 1 }
      : container,
  ),
  "ephemeral/the-end-does-not-wait": showingCase("end", ({ state }) =>
    state === "stopped" ? { state: "stopping" } : {},
  ),
  "probes/readiness-does-not-restart": showingCase("unready", ({ containers }) => ({
    containers: containers.map((container) => ({ ...container, restart_count: 1 })),
  })),
  "volumes/files-are-there": replacing(Buffer.from("two é\n").toString("base64"), ""),
  "volumes/their-version-is-told": showingCase("version", () => ({ file_versions: [] })),
  "files/patch-changes-the-content": {
    provider: (sound) => ({
      updatePod: (id, patch, options) =>
        sound.updatePod(
          id,
          JSON.parse(
            JSON.stringify(patch).replace(
              Buffer.from("changed\n").toString("base64"),
              Buffer.from("one\n").toString("base64"),
            ),
          ) as typeof patch,
          options,
        ),
    }),
  },
  "files/patch-of-an-absent-machine-is-not-found": {
    provider: (sound) => ({
      updatePod: (id, patch, options) =>
        sound.updatePod(id, patch, options).catch((thrown: unknown) => {
          throw isProviderError(thrown, "not_found") ? new ProviderError("unavailable", "perhaps") : thrown;
        }),
    }),
  },
  "env-files/a-file-has-a-variable": creatingContainers(({ env_tokens: _tokens, ...container }) => container),
  "env-files/without-its-key-a-container-waits": creating((spec) =>
    isCase(spec, "no-key") ? readingOptionally(spec) : spec,
  ),
  "env-files/what-is-optional-is-left-out": creating((spec) =>
    isCase(spec, "optional") ? { ...spec, containers: spec.containers.map(({ env: _env, ...rest }) => rest) } : spec,
  ),
  "address/stands-where-its-token-did": creating(({ address_tokens: _tokens, ...spec }) => spec),
  "stats/are-of-now": {
    provider: (sound) => ({
      getStats: async (options) =>
        (await sound.getStats(options)).map((sample) => ({ ...sample, at: "2026-01-01T00:00:00.000Z" })),
    }),
  },
  "logs/any-bytes": loggingLines((line) => ({ ...line, content: Buffer.from(line.content.toString()) })),
  "logs/blanks-are-kept": loggingLines((line) =>
    line.content.includes(0) ? line : { ...line, content: Buffer.from(line.content.toString().trimEnd()) },
  ),
  "logs/long-lines-are-one": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options)) {
          const isLong = line.content.length > 20_000;
          if (isLong) yield { ...line, content: line.content.subarray(0, 16_384), partial: false };
          yield isLong ? { ...line, content: line.content.subarray(16_384) } : line;
        }
      },
    }),
  },
  "logs/without-a-newline-at-the-end": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options))
          if (line.content.toString() !== "last words") yield line;
      },
    }),
  },
  "logs/many-lines": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        let count = 0;
        for await (const line of sound.getLogs(id, container, options)) if (++count !== 250) yield line;
      },
    }),
  },
  "logs/limit-cuts-in-the-middle": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options))
          if (options.limitBytes !== 6 || !line.partial) yield line;
      },
    }),
  },
  "logs/follow-comes-as-it-is-written": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options)) {
          if (options.follow === true && line.content.toString() === "early") await untilAborted(options.signal);
          if (!options.signal.aborted) yield line;
        }
      },
    }),
  },
  "logs/follow-outlasts-silence": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options)) {
          yield line;
          if (options.follow === true && line.content.toString() === "before") return;
        }
      },
    }),
  },
  "logs/follow-ends-with-the-instance": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        let last = "";
        for await (const line of sound.getLogs(id, container, options)) {
          last = line.content.toString();
          yield line;
        }
        if (options.follow === true && last === "crashing") await untilAborted(options.signal);
      },
    }),
  },
  "logs/follow-from-the-end": logging((options) =>
    options.follow === true && options.tail === 0 ? { ...options, tail: undefined } : options,
  ),
  "logs/of-what-waits-to-start-are-a-conflict": loggingEarly("echo main", async () => {}),
  "logs/begin-with-the-start": loggingEarly("echo begun", () =>
    Promise.reject(new ProviderError("not_found", "no log yet")),
  ),
  "logs/only-of-the-current-instance": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        for await (const line of sound.getLogs(id, container, options)) {
          yield line;
          if (line.content.toString() === "once") yield line;
        }
      },
    }),
  },
  "logs/previous-of-none-is-not-found": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        const machine = await sound.getPod(id, options);
        if (options.previous === true && machine.containers.every(({ restart_count }) => restart_count === 0)) return;
        yield* sound.getLogs(id, container, options);
      },
    }),
  },
  "logs/of-an-absent-machine-are-not-found": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        const machine = await sound.getPod(id, options).catch(() => undefined);
        if (machine !== undefined) yield* sound.getLogs(id, container, options);
      },
    }),
  },
  "events/tell-of-containers-too": watching(async function* (sound, since, options) {
    const states = new Map<string, string>();
    for await (const event of sound.watchPods(since, options)) {
      const { id, state } = event.machine;
      if (states.get(id) !== state || state !== "running") yield event;
      states.set(id, state);
    }
  }),
  "events/have-the-whole-machine": watching(async function* (sound, since, options) {
    for await (const event of sound.watchPods(since, options))
      yield event.machine.state === "stopped" ? { ...event, machine: { ...event.machine, notices: [] } } : event;
  }),
  "events/go-on-where-they-broke-off": watching(async function* (sound, since, options) {
    for await (const event of sound.watchPods(Math.max(0, since - 1), options)) {
      if (event.revision >= since) yield event;
    }
  }),
  "events/have-the-machine's-revision": watching(async function* (sound, since, options) {
    for await (const event of sound.watchPods(since, options))
      yield isCase(event.machine, "revision") ? { ...event, machine: { ...event.machine, revision: 1 } } : event;
  }),
  "events/come-soon": watching(async function* (sound, since, options) {
    for await (const event of sound.watchPods(since, options)) {
      if (isCase(event.machine, "soon")) await passTime(4500, "slowness is its fault");
      yield event;
    }
  }),
  "exec/has-the-container's-environment": executingInstead('echo "$SALUTE"', "echo"),
  "exec/has-PATH-and-HOME": executingInstead("env", "echo PATH=/bin"),
  "exec/starts-in-the-working-dir": executingInstead("pwd", "echo /"),
  "exec/arguments-are-exact": {
    provider: (sound) => ({
      exec: (id, container, command, options) =>
        sound.exec(
          id,
          container,
          command.filter((word) => word !== ""),
          options,
        ),
    }),
  },
  "exec/input-that-nobody-asked-for-is-empty": executing(
    (streams) => streams,
    (script) => (script === "cat; echo no-input" ? { stdin: true } : {}),
  ),
  "exec/output-comes-as-it-is-written": executing((streams, script) =>
    script.startsWith("echo prompt") ? { ...streams, stdout: new PassThrough() } : streams,
  ),
  "exec/closing-kills": executing((streams, script) =>
    script.includes("date +%s") ? { ...streams, close() {} } : streams,
  ),
  "exec/two-at-once": {
    provider: (sound) => ({
      exec: (id, container, command, options) =>
        command.at(-1) === "echo second"
          ? Promise.reject(new ProviderError("conflict", "another one is open"))
          : sound.exec(id, container, command, options),
    }),
  },
  "exec/only-the-streams-asked-for": executing(
    (streams) => streams,
    (script) => (script.startsWith("echo quiet") ? { stderr: true } : {}),
  ),
  "exec/a-command-that-is-not-there": executing((streams, script) =>
    script.startsWith("/nonexistent") ? { ...streams, exit: Promise.resolve({ exitCode: 0 }) } : streams,
  ),
  "exec/an-unknown-container-is-not-found": {
    provider: (sound) => ({
      exec: (id, container, command, options) =>
        sound.exec(id, container === "nobody" ? "main" : container, command, options),
    }),
  },
  "exec/an-absent-machine-is-not-found": {
    provider: (sound) => ({
      exec: (id, container, command, options) =>
        sound.exec(id, container, command, options).catch((thrown: unknown) => {
          throw isProviderError(thrown, "not_found") && container === "main"
            ? new ProviderError("unavailable", "perhaps")
            : thrown;
        }),
    }),
  },
  "exec/ends-with-the-machine": executing((streams, script) =>
    script === "sleep 3599" ? { ...streams, exit: new Promise(() => {}) } : streams,
  ),
  "attach/shows-only-what-comes": {
    provider: (sound) => ({
      async attach(id, container, options) {
        const streams = await sound.attach(id, container, options);
        const past = await Array.fromAsync(sound.getLogs(id, container, { signal: options.signal }));
        const stdout = new PassThrough();
        for (const { content } of past) stdout.write(Buffer.concat([content, Buffer.from("\n")]));
        streams.stdout?.pipe(stdout);
        return { ...streams, stdout };
      },
    }),
  },
  "attach/closing-leaves-the-process-alone": {
    provider: (sound) => ({
      async attach(id, container, options) {
        const streams = await sound.attach(id, container, options);
        return {
          ...streams,
          close() {
            streams.close();
            sound.endContainer(id, container, { exitCode: 137 });
          },
        };
      },
    }),
  },
  "attach/needs-a-running-container": {
    provider: (sound) => ({
      attach: (id, container, options) =>
        sound.attach(id, container, options).catch((thrown: unknown) => {
          throw isProviderError(thrown, "conflict") ? new ProviderError("not_found", "it is over") : thrown;
        }),
    }),
  },
  "attach/an-unknown-container-is-not-found": {
    provider: (sound) => ({
      attach: (id, container, options) => sound.attach(id, container === "nobody" ? "main" : container, options),
    }),
  },
  "ports/an-absent-machine-is-not-found": {
    provider: (sound) => ({
      portForward: (id, port, options) =>
        sound.portForward(id, port, options).catch((thrown: unknown) => {
          throw isProviderError(thrown, "not_found") ? new ProviderError("unavailable", "perhaps") : thrown;
        }),
    }),
  },
  "http/unknown-fields-anywhere-are-refused": accepting((body) => body.includes('"value":"b","no_such_field"')),
  "http/unknown-fields-of-the-machine's-parts-are-refused": accepting((body) =>
    body.includes('"max_ms":2,"no_such_field"'),
  ),
  "http/unknown-fields-of-a-stop-are-refused": accepting(
    (body, path) => path.endsWith("/stop") && body.includes("no_such_field"),
  ),
  "http/unknown-fields-of-a-patch-are-refused": accepting((_body, _path, method) => method === "PATCH"),
  "http/a-stop-without-its-grace-is-refused": accepting((body, path) => path.endsWith("/stop") && body === "{}"),
  "http/a-negative-grace-is-refused": accepting((body) => body === '{"grace_seconds":-1}'),
  "http/missing-fields-are-refused": accepting((body) => body.includes("sleep 3600") && !body.includes('"labels"')),
  "http/a-machine-without-containers-is-refused": accepting((body) => body.includes('"containers":[]')),
  "http/wrong-types-are-refused": accepting((body) => body.includes('"command":"sleep 3600"')),
  "http/two-containers-of-one-name-are-refused": accepting(
    (body, _path, method) => method === "PUT" && body.split('"name":"main"').length > 2,
  ),
  "http/a-body-that-is-no-object-is-refused": accepting((body) => body === "[]"),
  "http/an-id-of-another-form-is-refused": accepting((_body, path) => path.endsWith("/Not_An_Id")),
  "http/exec-without-the-subprotocol-is-refused": upgrading("/exec?command=true"),
  "http/attach-without-the-subprotocol-is-refused": upgrading("/attach?stdout=true"),
  "http/key-order-does-not-matter": {
    http: (sound) => {
      const bodies = new Map<string, string>();
      return async (method, path, options) => {
        const reply = await sound(method, path, options);
        const { body = "" } = options ?? {};
        const before = method === "PUT" ? bodies.get(path) : undefined;
        if (method === "PUT") bodies.set(path, body);
        return before === undefined || before === body ? reply : { ...reply, status: 409, body: envelope("conflict") };
      };
    },
  },
  "http/a-large-specification-is-taken": replying((_reply, method, _path, body = "") =>
    method === "PUT" && body.length > 65_536 ? { status: 413, body: envelope("invalid") } : {},
  ),
  "http/x-fields-anywhere-are-taken": replying((_reply, _method, _path, body = "") =>
    body.includes('"x-more"') ? { status: 400, body: envelope("invalid") } : {},
  ),
  "http/text-is-utf-8": replying(({ body }) =>
    body.includes("漢字") ? { body: body.replace("größe 漢字", "grÃ¶Ãe") } : {},
  ),
  "http/a-limit-of-0-is-refused": without(/\?limit=0$/),
  "http/a-parameter-that-is-no-number-is-refused": without(/since_version=soon&/),
  "http/unknown-methods-are-not-absence": replying((_reply, method, path) =>
    method === "POST" && path === "/v1/machines" ? { status: 404, body: envelope("not_found") } : {},
  ),
  "http/a-wrong-token-is-refused": requesting((_method, path, { headers, ...options }) => [
    path,
    headers?.["authorization"]?.includes("wrong") === true ? { ...options, anonymous: false } : { headers, ...options },
  ]),
  "http/strangers-learn-nothing": requesting((_method, path, options) => [
    path,
    path.startsWith("/v1/machines/") ? { ...options, anonymous: false } : options,
  ]),
  "http/a-list-has-only-what-carries-the-labels": without(/^(\/v1\/machines\?.*)&label=role%3Dmine/, "$1"),
  "http/a-list-with-tombstones-has-only-what-carries-the-labels": without(/&label=role%3Dburied/),
  "http/label-values-may-hold-equals-signs": replying(({ body }, _method, path) =>
    onLabel("sum=a=b=c")(path) ? { body: body.replace(/"items":\[.*\]/s, '"items":[]') } : {},
  ),
  "http/an-empty-label-is-a-label": without(/&label=blank%3D/),
  "http/pages-are-in-the-order-of-ids": replying(({ body }, _method, path) => {
    if (!path.endsWith("&limit=3")) return {};
    const page = JSON.parse(body) as { items: unknown[] };
    return { body: JSON.stringify({ ...page, items: page.items.toReversed() }) };
  }),
  "http/an-empty-list-is-one": replying((_reply, _method, path) =>
    path.includes("label=no-such%3D") ? { status: 404, body: envelope("not_found") } : {},
  ),
  "http/samples-have-only-what-carries-the-labels": without(/&label=role%3Dsampled/),
  "http/events-have-only-what-carries-the-labels": without(/&label=role%3Dwatched/),
  "http/a-long-poll-waits-for-an-event": without(/(\/v1\/events\?.*)timeout=40/, "$1timeout=0"),
  "http/a-long-poll-ends-in-time": {
    http: (sound) => async (method, path, options) => {
      if (path.startsWith("/v1/events") && path.includes("timeout=1&")) await passTime(10_500, "slowness is its fault");
      return sound(method, path, options);
    },
  },
  "http/events-in-the-future-are-gone": replying((_reply, _method, path) =>
    /^\/v1\/events\?since=1\d{9}&/.test(path) ? { status: 200, body: '{"events":[],"revision":1}' } : {},
  ),
  "http/get-waits-for-a-state": without(/\?wait=stopped,failed.*/),
  "http/get-does-not-wait-for-what-is-so": without(/wait=stopped&/, "wait=pending&"),
  "http/replies-to-changes-are-valid": replying(({ body }, method, path) =>
    method === "POST" && path.endsWith("/stop") ? { body: body.replace(/"revision":\d+,?/, "") } : {},
  ),
  "http/json-says-that-it-is-json": replying(({ headers }, method) =>
    method === "GET" && (headers["content-type"] ?? "").startsWith("application/json")
      ? { headers: { ...headers, "content-type": "text/html" } }
      : {},
  ),
  "http/every-request-gets-an-id-of-its-own": {
    http: (sound) => async (method, path, options) => {
      const reply = await sound(method, path, options);
      return options?.headers?.["x-request-id"] === undefined
        ? { ...reply, headers: { ...reply.headers, "x-request-id": "one-for-all" } }
        : reply;
    },
  },
  "http/delete-has-no-body": replying((_reply, method) => (method === "DELETE" ? { body: "{}" } : {})),
  "http/logs-are-lines-of-CRI": replying(({ body }, _method, path) =>
    path.endsWith("/logs") ? { body: body.replaceAll(" F ", " ") } : {},
  ),
  "http/an-absent-machine's-log-has-the-envelope": replying(({ status }, _method, path) =>
    path.endsWith("/logs") && status === 404 ? { body: "<html>" } : {},
  ),
  "http/tombstones-stay-ten-minutes": replying(({ body }, _method, path) =>
    path === "/v1/info"
      ? { body: body.replace(/^\{/, '{"limits":{"tombstone_seconds":60},').replace(/,"limits":\{[^}]*\}/, "") }
      : {},
  ),
  "http/a-gone-id-has-the-envelope": replying(({ status }, method) =>
    status === 410 && method === "PUT" ? { body: "<html>" } : {},
  ),
  "http/a-tombstone-has-its-containers": replying(({ body }) => ({
    body: body.replace('"exit_code":14', '"exit_code":0'),
  })),
};
