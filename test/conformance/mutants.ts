/**
 * One deliberately broken backend per check of the conformance kit. Each breaks the rule of its check and nothing else, so the kit has
 * to find exactly that.
 */
import { Duplex, PassThrough, Transform, Writable } from "node:stream";
import type { MemoryProvider } from "../../providers/memory/index.ts";
import { isProviderError, ProviderError } from "../../src/provider/errors.ts";
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
import { systemClock } from "../../src/util/clock.ts";
import { passTime } from "../e2e/harness/wait.ts";

export interface Mutant {
  /** Methods in place of the sound ones. */
  provider?: (sound: MemoryProvider) => Partial<Provider>;
  http?: (sound: HttpTarget["request"]) => HttpTarget["request"];
  /** A backend that lacks the capability `stats`, for the check of what is missing. */
  withoutStats?: true;
}

type CreateSpec = (spec: MachineSpec) => MachineSpec;

/** Creates something else than what was asked for. */
const creating = (change: CreateSpec): Mutant => ({
  provider: (sound) => ({ createPod: (id, spec, options) => sound.createPod(id, change(spec), options) }),
});

const creatingContainers = (change: (container: ContainerSpec) => ContainerSpec): Mutant =>
  creating((spec) => ({ ...spec, containers: spec.containers.map(change) }));

/** Shows machines otherwise than they are, when they are asked for one by one. */
const showing = (change: (machine: Machine) => object): Mutant => ({
  provider: (sound) => ({
    getPod: async (id, options) => ({
      ...(await sound.getPod(id, options)),
      ...change(await sound.getPod(id, options)),
    }),
  }),
});

const showingContainers = (change: (container: ContainerState) => ContainerState): Mutant =>
  showing(({ containers }) => ({ containers: containers.map(change) }));

const logging = (change: (options: LogOptions) => LogOptions): Mutant => ({
  provider: (sound) => ({ getLogs: (id, container, options) => sound.getLogs(id, container, change(options)) }),
});

const loggingLines = (change: (line: LogLine) => LogLine): Mutant => ({
  provider: (sound) => ({
    async *getLogs(id, container, options) {
      for await (const line of sound.getLogs(id, container, options)) yield change(line);
    },
  }),
});

const watching = (
  change: (sound: MemoryProvider, ...call: Parameters<MemoryProvider["watchPods"]>) => AsyncIterable<MachineEvent>,
): Mutant => ({
  provider: (sound) => ({ watchPods: (since, options) => change(sound, since, options) }),
});

const executing = (
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
const requesting = (
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
const replying = (
  change: (reply: Reply, method: string, path: string, body: string | undefined) => Partial<Reply>,
): Mutant => ({
  http: (sound) => async (method, path, options) => {
    const reply = await sound(method, path, options);
    return { ...reply, ...change(reply, method, path, options?.body) };
  },
});

const envelope = (code: string) => JSON.stringify({ error: { code, message: "mutant" } });
const untilAborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
const runs = (spec: MachineSpec, script: string) => JSON.stringify(spec).includes(script);
const prefixOf = (id: string) => id.slice(0, id.lastIndexOf("-"));
const endedWith = (container: ContainerState, from: number, to: number): ContainerState =>
  container.terminated?.exit_code === from
    ? { ...container, terminated: { ...container.terminated, exit_code: to } }
    : container;

export const MUTANTS: Record<string, Mutant> = {
  "info/says-what-it-is": {
    provider: (sound) => ({ getInfo: async (options) => ({ ...(await sound.getInfo(options)), version: "" }) }),
  },
  "create/returns-the-machine": {
    provider: (sound) => ({
      createPod: async (id, spec, options) => ({ ...(await sound.createPod(id, spec, options)), labels: {} }),
    }),
  },
  "create/replays-make-one-machine": {
    provider: (sound) => {
      const creates = new Map<string, number>();
      return {
        createPod: (id, spec, options) => {
          creates.set(id, (creates.get(id) ?? 0) + 1);
          return sound.createPod(id, spec, options);
        },
        getPods: async (options) => {
          const list = await sound.getPods(options);
          return {
            ...list,
            items: list.items.flatMap((machine) =>
              (creates.get(machine.id) ?? 0) >= 4 ? [machine, machine] : [machine],
            ),
          };
        },
      };
    },
  },
  "create/another-spec-is-a-conflict": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch((thrown: unknown) => {
          if (isProviderError(thrown, "conflict")) return sound.getPod(id, options);
          throw thrown;
        }),
    }),
  },
  "create/an-aborted-call-can-be-repeated": {
    provider: (sound) => {
      const abandoned = new Set<string>();
      return {
        async createPod(id, spec, options) {
          if (abandoned.has(id)) throw new ProviderError("conflict", "half made");
          options.signal.addEventListener("abort", () => abandoned.add(id), { once: true });
          return sound.createPod(id, spec, options);
        },
      };
    },
  },
  "create/what-is-unsupported-is-refused": creating(({ volumes, ...spec }) => ({
    ...spec,
    volumes: (volumes ?? []).filter(({ type }) => type !== "host_path"),
  })),
  "get/absent-is-not-found": {
    provider: (sound) => ({
      getPod: (id, options) =>
        sound.getPod(id, options).catch(() => {
          throw new ProviderError("unavailable", "perhaps");
        }),
    }),
  },
  "machine/version-grows": showing(() => ({ version: 1 })),
  "machine/times-are-utc": showing(({ created_at }) => ({ created_at: created_at.replace("Z", "+00:00") })),
  "machine/shows-no-secrets": {
    provider: (sound) => {
      const specs = new Map<string, MachineSpec>();
      return {
        createPod: (id, spec, options) => {
          specs.set(id, spec);
          return sound.createPod(id, spec, options);
        },
        getPod: async (id, options) => ({
          ...(await sound.getPod(id, options)),
          env: specs.get(id)?.containers[0]?.env,
        }),
      };
    },
  },
  "stop/sends-the-signal": {
    provider: (sound) => ({
      stopPod: (id, options) =>
        sound.stopPod(id, { ...options, graceSeconds: options.graceSeconds === 20 ? 0 : options.graceSeconds }),
    }),
  },
  "stop/kills-after-the-grace-and-not-before": {
    provider: (sound) => ({
      stopPod: (id, options) =>
        sound.stopPod(id, { ...options, graceSeconds: options.graceSeconds === 2 ? 0 : options.graceSeconds }),
    }),
  },
  "stop/returns-at-once": {
    provider: (sound) => ({
      async stopPod(id, options) {
        const machine = await sound.stopPod(id, options);
        if (options.graceSeconds === 60) await passTime(3500, "slowness is its fault");
        return machine;
      },
    }),
  },
  "stop/a-shorter-grace-shortens": {
    provider: (sound) => {
      const graces = new Map<string, number>();
      return {
        stopPod(id, options) {
          const first = graces.get(id);
          if (first !== undefined && options.graceSeconds < first) return sound.getPod(id, options);
          graces.set(id, options.graceSeconds);
          return sound.stopPod(id, options);
        },
      };
    },
  },
  "stop/a-longer-grace-does-not-lengthen": {
    provider: (sound) => {
      const pending = new Map<string, () => void>();
      return {
        stopPod(id, options) {
          if (options.graceSeconds === 601) pending.get(id)?.();
          if (options.graceSeconds !== 1) return sound.stopPod(id, options);
          if (sound.machines.find((machine) => machine.id === id)?.state === "stopping")
            return sound.stopPod(id, options);
          pending.set(
            id,
            systemClock.after(1000, () => void sound.stopPod(id, { ...options, graceSeconds: 0 })),
          );
          return sound.stopPod(id, { ...options, graceSeconds: 600 });
        },
      };
    },
  },
  "stop/is-idempotent": {
    provider: (sound) => ({
      async stopPod(id, options) {
        if ((await sound.getPod(id, options)).state === "stopped") throw new ProviderError("conflict", "it is stopped");
        return sound.stopPod(id, options);
      },
    }),
  },
  "stop/absent-is-not-found": {
    provider: (sound) => ({ stopPod: (id, options) => sound.stopPod(id, options).catch(() => ({}) as Machine) }),
  },
  "stop/stays-readable": {
    provider: (sound) => ({
      async getPods(options) {
        const list = await sound.getPods(options);
        return { ...list, items: list.items.filter(({ state }) => state !== "stopped") };
      },
    }),
  },
  "delete/absent-succeeds": {
    provider: (sound) => ({
      async deletePod(id, options) {
        const isThere = await sound.getPod(id, options).then(
          () => true,
          () => false,
        );
        await sound.deletePod(id, options);
        if (!isThere) throw new ProviderError("not_found", "never heard of it");
      },
    }),
  },
  "delete/absent-leaves-a-tombstone": {
    provider: (sound) => ({
      async deletePod(id, options) {
        if (
          await sound.getPod(id, options).then(
            () => true,
            () => false,
          )
        )
          await sound.deletePod(id, options);
      },
    }),
  },
  "delete/a-create-afterwards-is-gone": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch(async (thrown: unknown) => {
          const machine = await sound.getPod(id, options).catch(() => undefined);
          if (isProviderError(thrown, "gone") && machine !== undefined && machine.containers.length > 0) return machine;
          throw thrown;
        }),
    }),
  },
  "delete/the-tombstone-keeps-exit-codes": showingContainers((container) => endedWith(container, 4, 0)),
  "delete/without-force-stops-first": {
    provider: (sound) => ({ deletePod: (id, options) => sound.deletePod(id, { ...options, force: true }) }),
  },
  "delete/with-force-kills": {
    provider: (sound) => ({ deletePod: (id, options) => sound.deletePod(id, { ...options, force: false }) }),
  },
  "delete/is-idempotent": {
    provider: (sound) => ({
      async deletePod(id, options) {
        const machine = await sound.getPod(id, options).catch(() => undefined);
        if (machine?.state === "deleted") throw new ProviderError("conflict", "it is deleted");
        return sound.deletePod(id, options);
      },
    }),
  },
  "list/shows-what-was-just-created": {
    provider: (sound) => ({
      async getPods(options) {
        const list = await sound.getPods(options);
        const isVisible = ({ state, created_at }: Machine) =>
          state !== "running" || Date.parse(created_at) < systemClock.now() - 200;
        return { ...list, items: list.items.filter(isVisible) };
      },
    }),
  },
  "list/selects-by-every-label": {
    provider: (sound) => ({
      getPods: ({ labels, ...options }) =>
        sound.getPods({ ...options, labels: Object.fromEntries(Object.entries(labels).slice(0, 1)) }),
    }),
  },
  "list/has-tombstones-only-when-asked": {
    provider: (sound) => ({ getPods: (options) => sound.getPods({ ...options, includeDeleted: false }) }),
  },
  "list/is-whole-under-churn": {
    provider: (sound) => {
      const churning = new Set<string>();
      return {
        deletePod: (id, options) => {
          churning.add(prefixOf(id));
          return sound.deletePod(id, options);
        },
        getPods: async (options) => {
          const list = await sound.getPods(options);
          const first = list.items[0];
          return list.items.length >= 6 && first !== undefined && churning.has(prefixOf(first.id))
            ? { ...list, items: list.items.slice(1) }
            : list;
        },
      };
    },
  },
  "list/revision-covers-its-items": {
    provider: (sound) => ({ getPods: async (options) => ({ ...(await sound.getPods(options)), revision: 0 }) }),
  },
  "containers/exit-codes": showingContainers((container) => endedWith(container, 3, 2)),
  "containers/environment": creating((spec) => ({
    ...spec,
    containers: spec.containers.map((container) => ({
      ...container,
      env: (container.env ?? []).filter(({ name }) => name !== "GREETING"),
    })),
  })),
  "containers/all-run": creating((spec) => ({ ...spec, containers: spec.containers.slice(0, 1) })),
  "restart/always-restarts-and-counts": showingContainers((container) => ({
    ...container,
    restart_count: Math.min(1, container.restart_count),
  })),
  "restart/on-failure-leaves-success-alone": creating((spec) =>
    spec.restart_policy === "on_failure" ? { ...spec, restart_policy: "always" } : spec,
  ),
  "restart/never-means-never": creating((spec) =>
    runs(spec, "exit 9") ? { ...spec, restart_policy: "on_failure" } : spec,
  ),
  "init/runs-before-the-main-containers": creating((spec) =>
    runs(spec, "sleep 0.5; exit 0") ? { ...spec, init_containers: [] } : spec,
  ),
  "init/failure-ends-the-machine": creating(
    (spec) => JSON.parse(JSON.stringify(spec).replace("exit 6", "exit 0")) as MachineSpec,
  ),
  "sidecars/end-after-the-main-containers": creating(({ init_containers: init = [], ...spec }) => {
    const sidecars = init
      .filter(({ restart_policy }) => restart_policy === "always")
      .map(({ restart_policy: _policy, ...container }) => container);
    return {
      ...spec,
      init_containers: init.filter(({ restart_policy }) => restart_policy !== "always"),
      containers: [...spec.containers, ...sidecars],
    };
  }),
  "images/a-failed-pull-says-so": creating(
    (spec) =>
      JSON.parse(JSON.stringify(spec).replace("registry.invalid/vmlet", "registry.example/vmlet")) as MachineSpec,
  ),
  "limits/an-out-of-memory-kill-is-told": showingContainers((container) =>
    container.terminated?.reason === "OOMKilled"
      ? { ...container, terminated: { ...container.terminated, reason: "Error", oom_killed: false } }
      : container,
  ),
  "containers/working-dir": creatingContainers(({ working_dir: _folder, ...container }) => container),
  "hostname/is-the-one-asked-for": creating(({ hostname: _hostname, ...spec }) => spec),
  "security/runs-as-the-user": creatingContainers(({ security: _security, ...container }) => container),
  "volumes/an-empty-dir-is-shared": creatingContainers((container) => ({
    ...container,
    mounts: (container.mounts ?? []).filter(({ volume }) => volume !== "scratch"),
  })),
  "termination-message/is-told": showingContainers((container) =>
    container.terminated === undefined
      ? container
      : { ...container, terminated: { ...container.terminated, message: "Error" } },
  ),
  "probes/readiness-decides-ready": creatingContainers((container) =>
    container.probes?.readiness === undefined ? container : { ...container, probes: {} },
  ),
  "probes/liveness-restarts": creatingContainers((container) =>
    container.probes?.liveness === undefined ? container : { ...container, probes: {} },
  ),
  "hooks/a-failed-post-start-ends-the-container": creatingContainers(({ hooks: _hooks, ...container }) => container),
  "restart/a-rule-goes-before-the-policy": creatingContainers(({ restart_rules: _rules, ...container }) => container),
  "images/a-patch-replaces-the-container": {
    provider: (sound) => ({
      updatePod: (id, { containers: _containers, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "ephemeral/joins-a-running-machine": {
    provider: (sound) => ({
      updatePod: (id, { ephemeral_containers: _ephemeral, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "address/is-shown-while-running": showing(() => ({ addresses: [] })),
  "files/patch-moves-the-version": {
    provider: (sound) => ({
      updatePod: (id, { files: _files, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "registry-auth/patch-moves-the-version": {
    provider: (sound) => ({
      updatePod: (id, { registry_auth_version: _version, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "stats/show-what-runs": { provider: () => ({ getStats: async () => [] }) },
  "capacity/is-plausible": { provider: () => ({ getCapacity: async () => ({ allocatable: {} }) }) },
  "logs/are-whole-and-in-order": loggingLines((line) => ({ ...line, stream: "stdout" })),
  "logs/times-have-nine-decimals": loggingLines((line) => ({ ...line, at: `${line.at.slice(0, 23)}Z` })),
  "logs/tail": logging(({ tail: _tail, ...options }) => options),
  "logs/since": logging(({ since: _since, ...options }) => options),
  "logs/one-stream": logging(({ stream: _stream, ...options }) => options),
  "logs/limit": logging(({ limitBytes: _limit, ...options }) => options),
  "logs/follow-ends-with-the-container": logging((options) => ({ ...options, follow: false })),
  "logs/previous": logging((options) => ({ ...options, previous: false })),
  "logs/unknown-container-is-not-found": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        if (container !== "nobody") yield* sound.getLogs(id, container, options);
      },
    }),
  },
  "events/from-a-list-miss-nothing": watching(async function* (sound, since, options) {
    for await (const event of sound.watchPods(since, options)) if (event.machine.state !== "deleted") yield event;
  }),
  "events/come-while-watching": watching(async function* (sound, since, options) {
    const { revision } = await sound.getPods(options);
    if (since < revision) {
      for await (const event of sound.watchPods(since, options)) {
        if (event.revision <= revision) yield event;
        if (event.revision >= revision) break;
      }
    } else if (since > revision) yield* sound.watchPods(since, options);
    await untilAborted(options.signal);
  }),
  "events/revisions-grow": watching(async function* (sound, since, options) {
    for await (const { machine } of sound.watchPods(since, options)) yield { revision: since + 1, machine };
  }),
  "events/select-by-label": watching((sound, since, options) => sound.watchPods(since, { ...options, labels: {} })),
  "events/an-unknown-revision-is-gone": watching(async function* (sound, since, options) {
    if (since < 500_000_000) yield* sound.watchPods(since, options);
    else await untilAborted(options.signal);
  }),
  "exec/exit-codes": executing((streams) => ({
    ...streams,
    exit: streams.exit.then(({ exitCode }) => ({ exitCode: exitCode === 1 ? 0 : exitCode })),
  })),
  "exec/splits-stdout-and-stderr": executing(
    (streams) => streams,
    (script) => ({ tty: script.includes(">&2") }),
  ),
  "exec/half-closed-stdin": executing((streams, script) => {
    if (script !== "cat; echo done") return streams;
    const { stdin } = streams;
    return {
      ...streams,
      stdin: new Writable({ write: (chunk: Buffer, _encoding, done) => void stdin?.write(chunk, () => done()) }),
    };
  }),
  "exec/large-streams": executing((streams, script) => {
    if (script !== "cat" || streams.stdout === null) return streams;
    let passed = 0;
    const leak = new Transform({
      transform: (chunk: Buffer, _encoding, done) =>
        done(null, (passed += chunk.length) > 1024 * 1024 ? undefined : chunk),
    });
    return { ...streams, stdout: streams.stdout.pipe(leak) };
  }),
  "exec/resize": executing((streams) => ({ ...streams, resize() {} })),
  "exec/needs-a-running-container": {
    provider: (sound) => ({
      exec: (id, container, command, options) =>
        sound.exec(id, container, command, options).catch(() => ({
          stdin: null,
          stdout: null,
          stderr: null,
          resize() {},
          close() {},
          exit: Promise.resolve({ exitCode: 0 }),
        })),
    }),
  },
  "attach/carries-both-ways-and-ends": {
    provider: (sound) => ({
      async attach(id, container, options) {
        const streams = await sound.attach(id, container, options);
        return { ...streams, exit: streams.exit.then(() => ({ exitCode: 0 })) };
      },
    }),
  },
  "ports/a-closed-port-is-refused": {
    provider: (sound) => ({
      portForward: (id, port, options) => sound.portForward(id, port, options).catch(() => new PassThrough()),
    }),
  },
  "ports/carry-bytes-and-half-close": {
    provider: (sound) => ({
      async portForward(id, port, options) {
        (await sound.portForward(id, port, options)).destroy();
        return new Duplex({
          read() {
            this.push(null);
          },
          write: (_chunk, _encoding, done) => done(),
        });
      },
    }),
  },
  "http/request-ids-come-back": replying(({ headers }) => ({ headers: { ...headers, "x-request-id": "mutant" } })),
  "http/every-reply-has-a-request-id": replying(({ headers }, _method, path) =>
    path === "/v1/no-such-route" ? { headers: { ...headers, "x-request-id": undefined } } : {},
  ),
  "http/info-says-v1": replying(({ body }, _method, path) =>
    path === "/v1/info" ? { body: body.replace('"v1"', '"v2"') } : {},
  ),
  "http/replies-are-valid": replying(({ body }, _method, path) =>
    path.startsWith("/v1/stats") ? { body: body.replace(/"cpu_usage_ns_total":\d+/, '"cpu_usage_ns_total":-1') } : {},
  ),
  "http/absent-has-the-envelope": replying(({ status }, method, path) =>
    method === "GET" && path.startsWith("/v1/machines/") && status === 404 ? { body: "<html>" } : {},
  ),
  "http/unknown-routes-are-unsupported": replying((_reply, _method, path) =>
    path === "/v1/no-such-route" ? { status: 404, body: envelope("not_found") } : {},
  ),
  "http/missing-capabilities-are-501": {
    ...replying((_reply, _method, path) =>
      path === "/v1/stats" ? { status: 500, body: envelope("unavailable") } : {},
    ),
    withoutStats: true,
  },
  "http/unknown-fields-are-refused": requesting((_method, path, { body, ...options }) => [
    path,
    body === undefined ? options : { ...options, body: body.replaceAll(',"no_such_field":true', "") },
  ]),
  "http/x-fields-are-taken": replying((_reply, _method, _path, body) =>
    body?.includes("x-conformance") === true ? { status: 400, body: envelope("invalid") } : {},
  ),
  "http/invalid-values-are-refused": requesting((_method, path, { body, ...options }) => [
    path,
    body === undefined ? options : { ...options, body: body.replace("sometimes", "never") },
  ]),
  "http/malformed-json-is-refused": replying((_reply, _method, _path, body) =>
    body === '{"labels":' ? { status: 500, body: envelope("unavailable") } : {},
  ),
  "http/unknown-parameters-are-refused": requesting((_method, path, options) => [
    path.replace("?labels=a%3Db", ""),
    options,
  ]),
  "http/a-strange-cursor-is-refused": requesting((_method, path, options) => [
    path.replace("?cursor=%21%21", ""),
    options,
  ]),
  "http/pages-have-everything-once": replying(({ body }, _method, path) => {
    if (!path.includes("limit=2") || !path.includes("cursor=")) return {};
    const page = JSON.parse(body) as { items: unknown[] };
    return { body: JSON.stringify({ ...page, items: page.items.slice(1) }) };
  }),
  "http/delete-of-absent-is-2xx": replying((_reply, method) =>
    method === "DELETE" ? { status: 404, body: envelope("not_found") } : {},
  ),
  "http/get-waits-for-a-change": requesting((_method, path, options) => [
    path.replace(/\?since_version=.*/, ""),
    options,
  ]),
  "http/get-returns-when-its-time-is-over": requesting((_method, path, options) => [
    path.replace(/\?wait=.*/, ""),
    options,
  ]),
  "http/long-poll-of-events": replying((_reply, _method, path) =>
    path.startsWith("/v1/events?since=") && path.includes("label") ? { body: '{"events":[],"revision":0}' } : {},
  ),
  "http/wants-credentials": requesting((_method, path, options) => [path, { ...options, anonymous: false }]),
};
