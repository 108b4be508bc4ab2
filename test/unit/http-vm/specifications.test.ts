/**
 * What a backend takes it can also tell of: for every specification that the document admits, the replies of the server are valid
 * for the client, whatever engine is behind it and whatever its guests say.
 */
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { openApiDocument, violation } from "../../../src/provider/contract/document.ts";
import { MachineApiServer, HttpVmProvider, type InvalidReason } from "../../../providers/http-vm/index.ts";
import type { Engine } from "../../../providers/local/engine.ts";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import { isProviderError } from "../../../src/provider/errors.ts";
import { MACHINE_BYTES, specExcess } from "../../../src/provider/limits.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../../../src/provider/machine.ts";
import type { MachineStats, Provider } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { arbitraryOf, type SchemaNode } from "../../support/arbitrary-schema.ts";
import { runs } from "../../support/runs.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { World } from "../backend/world.ts";

const signal = new AbortController().signal;
const host = { clock: systemClock, logger: silentLogger };
const schemas = openApiDocument().components.schemas as Record<string, SchemaNode>;
const specifications = arbitraryOf(schemas["MachineSpec"]!, (ref) => schemas[ref.split("/").at(-1)!]!).map((spec) => {
  // A backend has few of them, and refuses any other.
  const { runtime_handler: _handler, ...rest } = spec as MachineSpec;
  return { ...rest, labels: { run: "x" } };
});

let server: MachineApiServer | undefined;
let client: HttpVmProvider;
let invalid: InvalidReason[];
let machines = 0;

async function serve(provider: Provider): Promise<void> {
  invalid = [];
  server = new MachineApiServer({ provider, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const pacing = { perSecond: 100_000, burst: 100_000 };
  client = new HttpVmProvider({ url, pacing, onInvalidReply: (reason) => void invalid.push(reason) });
}

afterEach(async () => {
  await client.close();
  await server?.close({ graceMs: 100 });
});

/** Creates the machine and reads it in every way. @returns undefined when the specification was refused as one that can never work */
async function roundTrip(spec: MachineSpec, advance: () => Promise<unknown>): Promise<Machine | undefined> {
  const id = `m${machines++}`;
  const { revision } = await client.getPods({ signal, labels: {} });
  try {
    await client.createPod(id, spec, { signal });
  } catch (thrown) {
    if (isProviderError(thrown, "invalid") || isProviderError(thrown, "unsupported")) return undefined;
    throw thrown;
  }
  await advance();
  const machine = await client.getPod(id, { signal });
  const list = await client.getPods({ signal, labels: { run: "x" } });
  expect(list.unknown).toBeUndefined();
  expect(list.items.map((each) => each.id)).toContain(id);
  const stop = new AbortController();
  for await (const event of client.watchPods(revision, { signal: stop.signal, labels: { run: "x" } })) {
    expect(event.machine).toBeDefined();
    if (event.machine?.id === id) stop.abort();
  }
  await client.deletePod(id, { signal, force: true });
  expect(invalid).toEqual([]);
  return machine;
}

describe("every specification that is admitted", () => {
  test("can be told of by the provider in memory", async () => {
    const clock = new VirtualClock();
    await serve(new MemoryProvider({ clock, capabilities: [...ALL_CAPABILITIES], stages: { startingMs: 0 } }));
    let admitted = 0;
    await fc.assert(
      fc.asyncProperty(specifications.map(distinct), async (spec) => {
        if ((await roundTrip(spec, () => settle(5))) !== undefined) admitted++;
      }),
      { numRuns: runs(25) },
    );
    expect(admitted, "most of them").toBeGreaterThan(runs(25) / 2);
  });

  test("can be told of by the reference backend, whatever its containers say at their end", async () => {
    const world = await World.create();
    await serve(world.provider);
    let admitted = 0;
    await fc.assert(
      fc.asyncProperty(specifications.map(coherent), fc.string({ unit: "binary" }), async (spec, words) => {
        for (const { name } of spec.containers) world.launchErrors.set(name, new Error(words.repeat(1000)));
        const machine = await roundTrip(spec, () => world.advance(10));
        if (machine !== undefined) admitted++;
      }),
      { numRuns: runs(25) },
    );
    expect(admitted).toBeGreaterThan(0);
  });

  test.each<[string, (stateDir: string) => Engine]>([
    [
      "process",
      (stateDir) => createProcessEngine({ stateDir, ...host, images: { "*": ["true"] }, addressPool: "127.64.0.0/10" }),
    ],
    ["oci", (stateDir) => new OciEngine({ stateDir, ...host, allowPrivileged: true })],
    ["vm", (stateDir) => new VmEngine({ stateDir, ...host })],
  ])("is refused by engine %s for what can be said, or can be told of", async (_name, make) => {
    const world = await World.create((each) => (each.judge = make(each.stateDir)));
    await serve(world.provider);
    let [admitted, refused] = [0, 0];
    await fc.assert(
      fc.asyncProperty(specifications, fc.boolean(), async (spec, isPlain) => {
        const machine = await roundTrip(isPlain ? plain(coherent(spec)) : spec, () => world.advance(10));
        if (machine === undefined) refused++;
        else admitted++;
      }),
      { numRuns: runs(25) },
    );
    expect(Math.min(admitted, refused)).toBeGreaterThan(0);
  });

  test("can be told of however large it is", async () => {
    await serve(new MemoryProvider({ clock: new VirtualClock(), capabilities: [...ALL_CAPABILITIES] }));
    const sizes = fc.record({
      containers: fc.constantFrom(1, 2, 100, 333, 400, 1000, 1001),
      nameChars: fc.constantFrom(10, 100, 253),
      imageChars: fc.constantFrom(1, 50, 1000, 4096, 4097),
      amounts: fc.constantFrom(0, 1, 3),
      volumes: fc.constantFrom(0, 10, 1000, 1001),
      versionChars: fc.constantFrom(1, 64, 4096),
      character: fc.constantFrom("x", "é", "\u{1f600}"),
    });
    // Among the others, whatever chance brings; with some more it would be refused.
    const LARGE = {
      containers: 200,
      nameChars: 253,
      imageChars: 1000,
      amounts: 1,
      volumes: 10,
      versionChars: 64,
      character: "x",
    };
    let largest = 0;
    await fc.assert(
      fc.asyncProperty(sizes, async (size) => {
        const machine = await roundTrip(specOfSize(size), () => settle(1));
        largest = Math.max(largest, machine === undefined ? 0 : JSON.stringify(machine).length);
      }),
      { numRuns: runs(20), examples: [[LARGE]] },
    );
    expect(largest).toBeGreaterThan(100_000);
  });
});

/** Names that are each other's own, and no volumes that are not there: what the reference backend asks for besides. */
function coherent(spec: MachineSpec): MachineSpec {
  let next = 0;
  const name = () => (next++ === 0 ? "constructor" : `c${next}`);
  const rename = <T extends { name: string; mounts?: unknown; devices?: unknown; claims?: unknown }>(
    list: T[] | undefined,
  ) => (list ?? []).map(({ mounts: _dropped, devices: _too, claims: _three, ...rest }) => ({ ...rest, name: name() }));
  const containers = <T extends { name: string; env?: ContainerSpec["env"] }>(list: T[] | undefined) =>
    rename(list).map((each) =>
      each.env === undefined ? each : { ...each, env: each.env.filter(({ from_file }) => from_file === undefined) },
    );
  return {
    ...spec,
    containers: containers(spec.containers),
    init_containers: [],
    ephemeral_containers: containers(spec.ephemeral_containers),
    volumes: rename(withoutClaims(spec.volumes)) as NonNullable<MachineSpec["volumes"]>,
  };
}

/** With names that are each one container's. */
function distinct(spec: MachineSpec): MachineSpec {
  let next = 0;
  const rename = <T extends { name: string }>(list: T[] | undefined) =>
    (list ?? []).map((each) => ({ ...each, name: next++ === 0 ? "constructor" : `c${next}` }));
  return {
    ...spec,
    containers: rename(spec.containers),
    init_containers: rename(spec.init_containers),
    ephemeral_containers: rename(spec.ephemeral_containers),
    volumes: withoutClaims(spec.volumes),
  };
}

/** Without volumes that would have to be there. */
const withoutClaims = (volumes: MachineSpec["volumes"] = []) => volumes.filter(({ type }) => type !== "persistent");

/** Without what some engine lacks. */
function plain({ labels, restart_policy, containers }: MachineSpec): MachineSpec {
  return {
    labels,
    restart_policy,
    containers: containers.map(({ name, image, command, args, env }) => ({
      ...{ name, image },
      ...(command !== undefined && { command }),
      ...(args !== undefined && { args }),
      ...(env !== undefined && { env }),
    })),
  };
}

function specOfSize(size: {
  containers: number;
  nameChars: number;
  imageChars: number;
  amounts: number;
  volumes: number;
  versionChars: number;
  character: string;
}): MachineSpec {
  const name = (i: number) => `${i}`.padEnd(size.nameChars, "x");
  return {
    labels: { run: "x" },
    restart_policy: "never",
    containers: Array.from({ length: size.containers }, (_, i) => ({
      name: name(i),
      image: size.character.repeat(size.imageChars / size.character.length),
      resources: {
        limits: { extended: Array.from({ length: size.amounts }, (_, n) => ({ name: `x/${n}`, count: 2 ** 53 - 1 })) },
      },
    })),
    volumes: Array.from({ length: size.volumes }, (_, i) => ({
      name: name(i),
      type: "files" as const,
      version: size.character.repeat(size.versionChars / size.character.length),
      files: [],
    })),
  };
}

describe("what is refused for its size", () => {
  const of = (change: Partial<MachineSpec>): MachineSpec => ({
    labels: {},
    restart_policy: "never",
    containers: containers(1),
    ...change,
  });
  const containers = (count: number, prefix = "c") =>
    Array.from({ length: count }, (_, i) => ({ name: `${prefix}${i}`, image: "i" }));

  beforeEach(async () => {
    await serve(new MemoryProvider({ clock: new VirtualClock(), capabilities: [...ALL_CAPABILITIES] }));
  });

  test.each<[string, MachineSpec, string]>([
    ["more than a thousand containers", of({ containers: containers(1001) }), "containers"],
    [
      "more than a thousand containers of several kinds",
      of({ containers: containers(600), init_containers: containers(600, "i") }),
      "containers",
    ],
    [
      "a longer image than 4096 characters",
      of({ containers: [{ name: "c", image: "i".repeat(4097) }] }),
      "containers.0.image",
    ],
    [
      "control characters in an image",
      of({ containers: [{ name: "c", image: "a\u001b[31mb" }] }),
      "containers.0.image",
    ],
    [
      "more than a thousand volumes",
      of({ volumes: Array.from({ length: 1001 }, (_, i) => ({ name: `v${i}`, type: "empty_dir", medium: "disk" })) }),
      "volumes",
    ],
    [
      "a longer version of credentials than 4096 characters",
      of({ registry_auth_version: "v".repeat(4097) }),
      "registry_auth_version",
    ],
    ["a longer instance type than 256 characters", of({ instance_type: "t".repeat(257) }), "instance_type"],
    [
      "more groups than Linux has room for",
      of({ security: { supplemental_groups: Array.from({ length: 65_537 }, (_, i) => i) } }),
      "security.supplemental_groups",
    ],
    [
      "more groups in all than statuses have room for",
      of({
        containers: containers(1000),
        security: { supplemental_groups: Array.from({ length: 1000 }, (_, i) => i) },
      }),
      "security.supplemental_groups",
    ],
    [
      "more in all than a status has room for",
      of({ containers: containers(1000).map((each) => ({ ...each, image: "i".repeat(1000) })) }),
      "containers",
    ],
  ])("%s names its field, before anything is sent and at the server", async (_what, spec, field) => {
    await expect(client.createPod("m", spec, { signal })).rejects.toMatchObject({ code: "invalid", field });
    const found = violation("request", "MachineSpec", spec) ?? specExcess(spec);
    expect(found?.field).toBe(field);
  });

  test("an ephemeral container too many is refused, and the machine stays", async () => {
    await client.createPod("m", of({ containers: containers(1000) }), { signal });
    const patch = { ephemeral_containers: [{ name: "debug", image: "i" }] };
    await expect(client.updatePod("m", patch, { signal })).rejects.toMatchObject({ code: "invalid" });
    expect((await client.getPod("m", { signal })).containers).toHaveLength(1000);
  });
});

/** A provider that says of its one machine what it likes. */
function saying(machine: Machine, stats: MachineStats[] = []): Provider {
  const self: Provider = {
    name: "lying",
    getInfo: () => Promise.resolve({ name: "lying", version: "1", capabilities: ["events", "stats"] }),
    createPod: () => Promise.resolve(machine),
    getPod: () => Promise.resolve(machine),
    getPods: () => Promise.resolve({ items: [machine], revision: 9 }),
    stopPod: () => Promise.resolve(machine),
    deletePod: () => Promise.resolve(),
    async *getLogs() {},
    async *watchPods() {
      yield { revision: 10, machine };
    },
    getStats: () => Promise.resolve(stats),
    close: () => Promise.resolve(),
  };
  return self;
}

describe("whatever guests and images have put into it,", () => {
  const words = fc.oneof(
    fc.string({ unit: "binary" }),
    fc.constantFrom("\ud800", "\u0000".repeat(5000), "é".repeat(5000), "\u{1f600}".repeat(5000), "x".repeat(2_000_000)),
  );
  const figure = fc.oneof(fc.double(), fc.constantFrom(NaN, Infinity, -1, 0.5, 2 ** 53, 1e300));
  const end = fc.record({
    exit_code: figure,
    signal: figure,
    reason: words,
    message: words,
    id: words,
    finished_at: fc.constant("2026-01-01T00:00:00.000Z"),
  });
  const state = fc.record(
    {
      name: fc.constant("c"),
      kind: fc.constant("main"),
      state: fc.constantFrom("waiting", "running", "terminated"),
      reason: words,
      message: words,
      ready: fc.boolean(),
      started: fc.boolean(),
      restart_count: figure,
      image: fc.constant("i"),
      image_id: words,
      id: words,
      terminated: end,
      last: end,
      user: fc.record({ uid: figure, gid: figure, supplemental_groups: fc.array(figure) }),
    },
    { requiredKeys: ["name", "kind", "state", "ready", "started", "restart_count", "image", "image_id"] },
  );
  const notice = fc.record({
    at: fc.constant("2026-01-01T00:00:00.000Z"),
    type: fc.constant("Warning"),
    reason: words,
    message: words,
    seq: fc.nat(),
  });
  const machine = fc.record({
    id: fc.constant("m"),
    version: figure,
    revision: figure,
    labels: fc.constant({}),
    state: fc.constant("running"),
    reason: words,
    message: words,
    host: words,
    reachability: fc.constant("ok"),
    sandbox_ready: fc.boolean(),
    created_at: fc.constant("2026-01-01T00:00:00.000Z"),
    addresses: fc.constant([{ ip: "10.0.0.1" }, { ip: "fd00::1" }, { ip: "10.0.0.2" }]),
    containers: fc.array(state),
    notices: fc.array(notice),
  }) as unknown as fc.Arbitrary<Machine>;

  test("a machine is told of so that it can be believed", async () => {
    await fc.assert(
      fc.asyncProperty(machine, async (said) => {
        await serve(saying(said));
        try {
          const read = await client.getPod("m", { signal });
          expect(read.addresses).toEqual([{ ip: "10.0.0.1" }, { ip: "fd00::1" }]);
          expect((await client.getPods({ signal, labels: {} })).unknown).toBeUndefined();
          expect((await client.stopPod("m", { signal, graceSeconds: 1 }))?.id).toBe("m");
          expect(invalid).toEqual([]);
        } finally {
          await client.close();
          await server!.close({ graceMs: 100 });
        }
      }),
      { numRuns: runs(25) },
    );
  });

  test("a machine of a thousand containers with a lot to say is told of without what is too much", async () => {
    const talkative: ContainerState = {
      name: "c",
      kind: "main",
      state: "terminated",
      ready: false,
      started: false,
      restart_count: 1,
      image: "i",
      image_id: "sha256:1",
      terminated: { exit_code: 1, reason: "Error", message: "é".repeat(5000), finished_at: "2026-01-01T00:00:00Z" },
      user: { uid: 0, gid: 0, supplemental_groups: Array.from({ length: 65_536 }, (_, i) => i) },
    };
    const said: Machine = {
      id: "m",
      version: 1,
      revision: 1,
      labels: {},
      state: "running",
      reachability: "ok",
      sandbox_ready: true,
      created_at: "2026-01-01T00:00:00Z",
      addresses: [],
      containers: Array.from({ length: 1000 }, () => talkative),
    };
    await serve(saying(said));
    const read = await client.getPod("m", { signal });
    expect(JSON.stringify(read).length).toBeLessThan(MACHINE_BYTES);
    expect(read.containers).toHaveLength(1000);
    expect(read.containers[0]!.terminated).toMatchObject({
      exit_code: 1,
      reason: "Error",
      message: expect.stringMatching(/^é+$/),
    });
    expect(invalid).toEqual([]);
  });

  test("samples are told of so that none of them keeps another from being read", async () => {
    const sample = fc.record({
      id: fc.stringMatching(/^m[0-9]{8}$/),
      at: fc.constant("2026-01-01T00:00:00Z"),
      containers: fc.array(
        fc.record(
          {
            name: fc.constant("c"),
            started_at: fc.constant("2026-01-01T00:00:00Z"),
            cpu_usage_ns_total: figure,
            memory_working_set_bytes: figure,
            memory_usage_bytes: figure,
            memory_rss_bytes: figure,
            fs_used_bytes: figure,
            logs_used_bytes: figure,
            probes: fc.array(
              fc.record({ probe: fc.constant("liveness"), successful: figure, failed: figure, unknown: figure }),
              { maxLength: 3 },
            ),
          },
          { requiredKeys: ["name", "started_at", "cpu_usage_ns_total", "memory_working_set_bytes"] },
        ),
      ),
      network: fc.record({ rx_bytes: figure, tx_bytes: figure }),
      volumes: fc.array(fc.record({ name: fc.constant("v"), used_bytes: figure, capacity_bytes: figure })),
    }) as unknown as fc.Arbitrary<MachineStats>;
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(sample, { selector: ({ id }) => id }), async (stats) => {
        await serve(saying({} as Machine, stats));
        try {
          const read = await client.getStats({ signal, labels: {} });
          expect(read.map(({ id }) => id)).toEqual(stats.map(({ id }) => id));
          expect(invalid).toEqual([]);
        } finally {
          await client.close();
          await server!.close({ graceMs: 100 });
        }
      }),
      { numRuns: runs(25) },
    );
  });
});
