/**
 * One deliberately broken backend per check of the conformance kit. Each breaks the rule of its check and nothing else, so the kit has
 * to find exactly that.
 */
import { Duplex, PassThrough, Transform, Writable } from "node:stream";
import { isProviderError, ProviderError } from "../../src/provider/errors.ts";
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
  type Mutant,
  replying,
  requesting,
  runs,
  showing,
  showingContainers,
  untilAborted,
  watching,
  isCase,
} from "./mutant-kinds.ts";
import { MORE_MUTANTS } from "./mutants-more.ts";
import { IMAGE_MUTANTS } from "./mutants-images.ts";
import { POD_RANGE_MUTANTS } from "./mutants-pod-ranges.ts";
import { SERVICE_MUTANTS } from "./mutants-services.ts";
import { RESTARTED_MUTANTS } from "./mutants-restarted.ts";
import { VOLUME_MUTANTS } from "./mutants-volumes.ts";

const prefixOf = (id: string) => id.slice(0, id.lastIndexOf("-"));

/** True for what the machine's state forbids; anything else is thrown again. */
function isConflict(thrown: unknown): true {
  if (isProviderError(thrown, "conflict")) return true;
  throw thrown;
}

export const MUTANTS: Record<string, Mutant> = {
  ...MORE_MUTANTS,
  ...RESTARTED_MUTANTS,
  ...VOLUME_MUTANTS,
  ...IMAGE_MUTANTS,
  ...POD_RANGE_MUTANTS,
  ...SERVICE_MUTANTS,
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
          if (isProviderError(thrown, "conflict") && runs(spec, "sleep 3601")) return sound.getPod(id, options);
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
  "create/what-is-unsupported-is-refused": creating(({ host: _host, ...spec }) => spec),
  "create/a-device-of-nobody-is-refused": creating((spec) => ({
    ...spec,
    containers: spec.containers.map(({ cdi_devices: _devices, ...container }) => container),
  })),
  "get/absent-is-not-found": {
    provider: (sound) => ({
      getPod: (id, options) =>
        sound.getPod(id, options).catch(() => {
          throw new ProviderError("unavailable", "perhaps");
        }),
    }),
  },
  "machine/version-grows": showing(({ containers }) =>
    containers[0]?.terminated?.exit_code === 137 ? { version: 1 } : {},
  ),
  "machine/times-are-utc": showing(({ created_at, containers }) =>
    containers[0]?.terminated?.exit_code === 0 ? { created_at: created_at.replace("Z", "+00:00") } : {},
  ),
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
        return { ...list, items: list.items.filter(({ containers }) => containers[0]?.terminated?.exit_code !== 3) };
      },
    }),
  },
  "delete/absent-succeeds": {
    provider: (sound) => ({
      async deletePod(id, options) {
        if (options.ifAbsent === true) return await sound.deletePod(id, options);
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
        if (options.ifAbsent === true) return await sound.deletePod(id, options);
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
  "delete/conditional-leaves-a-machine-alone": {
    provider: (sound) => ({
      deletePod: (id, { signal, force }) => sound.deletePod(id, { signal, force }),
    }),
  },
  "delete/conditional-leaves-a-tombstone": {
    provider: (sound) => ({
      async deletePod(id, options) {
        if (options.ifAbsent !== true) return await sound.deletePod(id, options);
        const isThere = await sound.getPod(id, options).then(
          () => true,
          () => false,
        );
        if (isThere) await sound.deletePod(id, options);
      },
    }),
  },
  "delete/a-create-afterwards-is-gone": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch(async (thrown: unknown) => {
          const machine = await sound.getPod(id, options).catch(() => undefined);
          const wasThere = machine !== undefined && machine.containers.length > 0;
          if (isProviderError(thrown, "gone") && wasThere && spec.labels["case"] === undefined) return machine;
          throw thrown;
        }),
    }),
  },
  "delete/the-tombstone-keeps-exit-codes": showingContainers((container) => endedWith(container, 4, 0)),
  "delete/without-force-stops-first": {
    provider: (sound) => ({
      async deletePod(id, options) {
        const machine = await sound.getPod(id, options).catch(() => undefined);
        return sound.deletePod(id, { ...options, force: options.force || machine?.labels["case"] === undefined });
      },
    }),
  },
  "delete/no-create-comes-in-between": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch(async (thrown: unknown) => {
          const machine = isCase(spec, "in-between") ? await sound.getPod(id, options) : undefined;
          if (machine === undefined || machine.state === "deleted") throw thrown;
          return machine;
        }),
    }),
  },
  "delete/with-force-kills": {
    provider: (sound) => ({ deletePod: (id, options) => sound.deletePod(id, { ...options, force: false }) }),
  },
  "delete/is-idempotent": {
    provider: (sound) => ({
      async deletePod(id, options) {
        if (options.ifAbsent === true) return await sound.deletePod(id, options);
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
        const isVisible = ({ state, created_at, labels }: Machine) =>
          state !== "running" || "case" in labels || Date.parse(created_at) < systemClock.now() - 200;
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
  "containers/all-run": creating((spec) =>
    spec.labels["case"] === undefined ? { ...spec, containers: spec.containers.slice(0, 1) } : spec,
  ),
  "restart/always-restarts-and-counts": showingContainers((container) => ({
    ...container,
    restart_count: container.last?.exit_code === 1 ? Math.min(1, container.restart_count) : container.restart_count,
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
  "sidecars/end-after-the-main-containers": creating((whole) => {
    if (!runs(whole, "exit 0")) return whole;
    const { init_containers: init = [], ...spec } = whole;
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
  "containers/working-dir": creatingContainers(({ working_dir, ...container }) => ({
    ...container,
    ...(working_dir !== "/tmp" && { working_dir }),
  })),
  "hostname/is-the-one-asked-for": creating(({ hostname: _hostname, ...spec }) => spec),
  "security/runs-as-the-user": creatingContainers(({ security: _security, ...container }) => container),
  "volumes/an-empty-dir-is-shared": creatingContainers((container) => ({
    ...container,
    mounts: (container.mounts ?? []).filter(({ volume }) => volume !== "scratch"),
  })),
  "volumes/a-path-is-the-machines-own": creating(({ volumes, ...spec }) => ({
    ...spec,
    volumes: (volumes ?? []).map((each) =>
      each.type === "host_path" ? { name: each.name, type: "empty_dir", medium: "disk" } : each,
    ),
  })),
  "termination-message/is-told": showingContainers((container) =>
    container.terminated?.exit_code !== 3
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
  "resize/a-machine-grows-and-shrinks-as-it-runs": {
    provider: (sound) => ({
      updatePod: (id, { machine_resources: _resources, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "images/a-patch-replaces-the-container": {
    provider: (sound) => ({
      updatePod: (id, { containers: _containers, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "ephemeral/joins-a-running-machine": {
    provider: (sound) => ({
      updatePod: (id, patch, options) =>
        sound.updatePod(id, JSON.stringify(patch).includes("exit 7") ? {} : patch, options),
    }),
  },
  "address/is-shown-while-running": showing(({ labels }) => (labels["case"] === undefined ? { addresses: [] } : {})),
  "files/patch-moves-the-version": {
    provider: (sound) => ({
      updatePod: (id, patch, options) =>
        sound.updatePod(id, patch.files?.[0]?.files[0]?.content_b64 === "dHdv" ? {} : patch, options),
    }),
  },
  "registry-auth/patch-moves-the-version": {
    provider: (sound) => ({
      updatePod: (id, { registry_auth_version: _version, ...patch }, options) => sound.updatePod(id, patch, options),
    }),
  },
  "stats/show-what-runs": {
    provider: (sound) => ({
      getStats: async (options) => {
        const samples = await sound.getStats(options);
        const cases = new Set(sound.machines.filter(({ labels }) => "case" in labels).map(({ id }) => id));
        return samples.filter(({ id }) => cases.has(id));
      },
    }),
  },
  "capacity/is-plausible": { provider: () => ({ getCapacity: async () => ({ allocatable: {} }) }) },
  "capacity/tells-each-csi-driver-once": {
    provider: (sound) => ({
      getCapacity: async (options) => {
        const csi_drivers = ["a", "b"].map((node_id) => ({ name: "csi.example.com", node_id }));
        return { ...(await sound.getCapacity(options)), csi_drivers };
      },
    }),
  },
  "logs/are-whole-and-in-order": loggingLines((line) => ({ ...line, stream: "stdout" })),
  "logs/times-have-nine-decimals": loggingLines((line) => ({ ...line, at: `${line.at.slice(0, 23)}Z` })),
  "logs/tail": logging(({ tail, ...options }) => ({ ...options, ...(options.follow === true && { tail }) })),
  "logs/since": logging(({ since: _since, ...options }) => options),
  "logs/one-stream": logging(({ stream: _stream, ...options }) => options),
  "logs/limit": logging((options) => (options.limitBytes === 5 ? { ...options, limitBytes: undefined } : options)),
  "logs/follow-ends-with-the-container": {
    provider: (sound) => {
      const impatient = new Set<string>();
      return {
        createPod: (id, spec, options) => {
          if (runs(spec, "sleep 0.5; echo last")) impatient.add(id);
          return sound.createPod(id, spec, options);
        },
        getLogs: (id, container, options) =>
          sound.getLogs(id, container, { ...options, follow: options.follow === true && !impatient.has(id) }),
      };
    },
  },
  "logs/previous": {
    provider: (sound) => ({
      async *getLogs(id, container, options) {
        const isFirst =
          options.previous !== true ||
          (await sound.getPod(id, options)).containers.every(({ restart_count }) => restart_count === 0);
        yield* sound.getLogs(id, container, isFirst ? options : { ...options, previous: false });
      },
    }),
  },
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
    const { items } = await sound.getPods({ ...options, includeDeleted: true });
    if (items.length > 0 || since > 500_000_000) yield* sound.watchPods(since, options);
    await untilAborted(options.signal);
  }),
  "events/revisions-grow": watching(async function* (sound, since, options) {
    const { items } = await sound.getPods(options);
    for await (const { machine, revision } of sound.watchPods(since, options))
      yield { revision: items.length >= 3 ? since + 1 : revision, machine };
  }),
  "events/select-by-label": watching(async function* (sound, since, options) {
    const mine = Object.entries(options.labels);
    for await (const event of sound.watchPods(since, { ...options, labels: {} })) {
      const { labels } = event.machine;
      if (labels["vmlet.dev/conformance"] === "other" || mine.every(([key, value]) => labels[key] === value))
        yield event;
    }
  }),
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
    (script) => ({ tty: script.startsWith("echo out;") }),
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
        sound.exec(id, container, command, options).catch(
          (thrown: unknown) =>
            isConflict(thrown) && {
              stdin: null,
              stdout: null,
              stderr: null,
              resize() {},
              close() {},
              exit: Promise.resolve({ exitCode: 0 }),
            },
        ),
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
      portForward: (id, port, options) =>
        sound.portForward(id, port, options).catch((thrown: unknown) => isConflict(thrown) && new PassThrough()),
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
  "http/request-ids-come-back": replying(({ headers }) =>
    headers["x-request-id"] === "conformance-17" ? { headers: { ...headers, "x-request-id": "mutant" } } : {},
  ),
  "http/every-reply-has-a-request-id": replying(({ headers }, _method, path) =>
    path === "/v1/no-such-route" ? { headers: { ...headers, "x-request-id": undefined } } : {},
  ),
  "http/trace-headers-change-nothing": {
    http: (sound) => async (method, path, options) => {
      const { traceparent = "00-0-0-01" } = options?.headers ?? {};
      const isOfToday = traceparent.startsWith("00-") && traceparent.endsWith("-01");
      return isOfToday ? await sound(method, path, options) : { status: 400, headers: {}, body: envelope("invalid") };
    },
  },
  "http/info-says-v1": replying(({ body }, _method, path) =>
    path === "/v1/info" ? { body: body.replace('"v1"', '"v2"') } : {},
  ),
  "http/replies-are-valid": replying(({ body }, _method, path) =>
    path.startsWith("/v1/stats") ? { body: body.replace(/"cpu_usage_ns_total":\d+/, '"cpu_usage_ns_total":-1') } : {},
  ),
  "http/absent-has-the-envelope": replying(({ status }, method, path) =>
    method === "GET" && path.startsWith("/v1/machines/") && !path.endsWith("/logs") && status === 404
      ? { body: "<html>" }
      : {},
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
  "http/unknown-fields-are-refused": requesting((method, path, { body, ...options }) => [
    path,
    body === undefined
      ? options
      : { ...options, body: method === "PUT" ? body.replace(/,"no_such_field":true\}$/, "}") : body },
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
  "http/delete-of-absent-is-2xx": replying((_reply, method, path) =>
    method === "DELETE" && !path.includes("force") ? { status: 404, body: envelope("not_found") } : {},
  ),
  "http/get-waits-for-a-change": requesting((_method, path, options) => [
    path.replace(/\?since_version=\d.*/, ""),
    options,
  ]),
  "http/get-returns-when-its-time-is-over": requesting((_method, path, options) => [
    path.replace(/\?wait=deleted.*/, ""),
    options,
  ]),
  "http/long-poll-of-events": replying((_reply, _method, path) =>
    path.startsWith("/v1/events?since=") && path.includes("timeout=10&label") && !path.includes("role")
      ? { body: '{"events":[],"revision":0}' }
      : {},
  ),
  "http/wants-credentials": requesting((_method, path, options) => [
    path,
    path === "/v1/machines" && options.headers === undefined ? { ...options, anonymous: false } : options,
  ]),
};
