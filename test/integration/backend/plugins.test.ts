/** Plugins of the host by their sockets: gRPC on both sides, as plugins in Go speak it, at the front door of a backend. */
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { connect as connectHttp2 } from "node:http2";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { HealthStatus } from "../../../providers/local/plugins/api/dra-health/api.gen.js";
import { PodResourcesLister } from "../../../providers/local/plugins/api/pod-resources/api.gen.js";
import type { ClaimHolder, PreparedClaims } from "../../../providers/local/claims.ts";
import { HostPlugins } from "../../../providers/local/plugins/host-plugins.ts";
import { checkPlugins } from "../../../providers/local/backend.ts";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { ClaimManager } from "../../../providers/local/plugins/claim-manager.ts";
import { connectDraPlugin } from "../../../providers/local/plugins/dra-plugin.ts";
import { DeviceManager } from "../../../providers/local/plugins/device-manager.ts";
import { connectDevicePlugin } from "../../../providers/local/plugins/device-plugin.ts";
import { PluginDoor, pluginFolder } from "../../../providers/local/plugins/registration.ts";
import { TornFiles } from "../../../providers/local/host/torn-files.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { CsiManager } from "../../../providers/local/plugins/csi-manager.ts";
import { connectCsiPlugin } from "../../../providers/local/plugins/csi-plugin.ts";
import { TestCsiDriver } from "../../support/csi-driver.ts";
import { TestDriver } from "../../support/dra-driver.ts";
import { GPU, registerPlugin, TestPlugin } from "../../support/device-plugin.ts";

const dir = mkdtempSync(join(tmpdir(), "vmlet-plugins-"));
const folder = pluginFolder(dir);
const kubelet = join(folder.devicePlugins, "kubelet.sock");
let manager: DeviceManager;
let claims: ClaimManager;
let csi: CsiManager;
let door: PluginDoor;
let plugins: TestPlugin[] = [];

function newPlugin(grant?: ConstructorParameters<typeof TestPlugin>[0]): TestPlugin {
  const plugin = new TestPlugin(grant);
  plugins.push(plugin);
  return plugin;
}

const register = (request: Parameters<typeof registerPlugin>[1]) => registerPlugin(kubelet, request);

async function open(): Promise<void> {
  manager = new DeviceManager({
    stateDir: dir,
    clock: systemClock,
    logger: silentLogger,
    torn: new TornFiles(dir, silentLogger),
    held: () => [],
    connect: connectDevicePlugin,
    engine: { name: "cri", hasCdi: true },
  });
  claims = new ClaimManager({ clock: systemClock, logger: silentLogger, holders: () => [], connect: connectDraPlugin });
  csi = new CsiManager({ logger: silentLogger, connect: connectCsiPlugin });
  door = new PluginDoor({ folder, devices: manager, claims, csi, clock: systemClock, logger: silentLogger });
  await door.open();
}

async function close(): Promise<void> {
  manager.close();
  claims.close();
  csi.close();
  await door.close();
}

const counts = (healthy: number, total = healthy) => [{ name: GPU, healthy, total }];
const isCounted = (healthy: number, total = healthy) =>
  vi.waitFor(() => expect(manager.counts()).toEqual(counts(healthy, total)), { timeout: 10_000 });

beforeEach(async () => {
  plugins = [];
  await open();
});

afterEach(async () => {
  for (const plugin of plugins) plugin.die();
  await close();
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir);
});

describe("a plugin that registers", () => {
  test("has its devices told, and told again when they change", async () => {
    const plugin = await newPlugin().listen(join(folder.devicePlugins, "gpu.sock"));
    await register({});
    await isCounted(2);
    plugin.change("g0", "g1", "g2");
    await isCounted(3);
  });

  test("gives what is asked of it", async () => {
    const node = { containerPath: "/dev/gpu", hostPath: "/dev/null", permissions: "rw" };
    const plugin = newPlugin((ids) => ({ envs: { GPUS: ids.join(",") }, devices: [node] }));
    await plugin.listen(join(folder.devicePlugins, "gpu.sock"));
    await register({});
    await isCounted(2);
    const held = vi.fn<(held: unknown) => void>();
    const limits = { extended: [{ name: GPU, count: 2 }] };
    await manager.allocate(
      {
        id: "m",
        spec: { labels: {}, restart_policy: "never", containers: [{ name: "a", image: "i", resources: { limits } }] },
      },
      held,
      new AbortController().signal,
    );
    expect(held).toHaveBeenCalledExactlyOnceWith({
      a: [
        {
          resource: GPU,
          devices: [{ id: "g0" }, { id: "g1" }],
          preStart: false,
          grant: {
            env: { GPUS: "g0,g1" },
            mounts: [],
            nodes: [{ path: "/dev/gpu", hostPath: "/dev/null", permissions: "rw" }],
            annotations: {},
            cdi: [],
          },
        },
      ],
    });
  });

  test("has none to give when it is killed, and has them again when it is back", async () => {
    const plugin = await newPlugin().listen(join(folder.devicePlugins, "gpu.sock"));
    await register({});
    await isCounted(2);
    plugin.die();
    await isCounted(0, 2);
    rmSync(join(folder.devicePlugins, "gpu.sock"), { force: true });
    await newPlugin().listen(join(folder.devicePlugins, "gpu.sock"));
    await register({});
    await isCounted(2);
  });

  test.each([
    [{ version: "v1" }, 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'],
    [{ resourceName: "cpu" }, 'the ResourceName "cpu" is invalid'],
    [{ endpoint: "../gpu.sock" }, 'the endpoint "../gpu.sock" is no name of a socket'],
    [{ endpoint: "" }, 'the endpoint "" is no name of a socket'],
    [{ endpoint: "nobody.sock" }, "failed to get device plugin options"],
  ])("is told why it is not taken: %o", async (request, told) => {
    const refused = await register(request).catch((thrown: unknown) => ConnectError.from(thrown));
    expect(refused).toMatchObject({ code: Code.Unknown, rawMessage: expect.stringContaining(told) });
    expect(manager.counts()).toEqual([]);
  });

  test("by a socket's path in place of a host, as Go's clients do, is answered", async () => {
    const session = connectHttp2("http://localhost", { createConnection: () => connect(kubelet) });
    const request = session.request({
      ":method": "POST",
      ":path": "/v1beta1.Registration/Register",
      ":authority": "%2Fvar%2Flib%2Fkubelet.sock",
      "content-type": "application/grpc",
      te: "trailers",
    });
    request.end(Buffer.alloc(5));
    const told: Record<string, unknown> = {};
    for (const event of ["response", "trailers"]) request.on(event, (headers: object) => Object.assign(told, headers));
    request.resume();
    await once(request, "close");
    session.destroy();
    expect(decodeURIComponent(String(told["grpc-message"]))).toContain("is not supported by kubelet");
  });

  test("and is silent then is not taken, and keeps no other from it", async () => {
    const silent = await newPlugin().listen(join(folder.devicePlugins, "silent.sock"));
    silent.isSilent = true;
    const waiting = register({ endpoint: "silent.sock", resourceName: "vendor.example/silent" });
    await newPlugin().listen(join(folder.devicePlugins, "gpu.sock"));
    await register({});
    await isCounted(2);
    await expect(waiting).rejects.toThrow("failed to get device plugin options");
  }, 30_000);
});

describe("a plugin in the registry", () => {
  test("is found, taken and told so", async () => {
    const plugin = await newPlugin().listen(join(folder.registry, "gpu-reg.sock"));
    await isCounted(2);
    await vi.waitFor(() => expect(plugin.told).toEqual([{ pluginRegistered: true, error: "" }]));
  });

  test("is not asked any more when its socket is gone", async () => {
    await newPlugin().listen(join(folder.registry, "gpu-reg.sock"));
    await isCounted(2);
    rmSync(join(folder.registry, "gpu-reg.sock"));
    await isCounted(0, 2);
  });

  test.each([
    [{ type: "NetPlugin" }, 'there are no plugins of type "NetPlugin" here'],
    [{ supportedVersions: ["v2"] }, "manager version, v1beta1, is not among plugin supported versions [v2]"],
    [{ name: "memory" }, 'invalid name of device plugin socket: the ResourceName "memory" is invalid'],
  ])("is told why it is not taken: %o", async (info, error) => {
    const plugin = newPlugin();
    plugin.info = { ...plugin.info, ...info };
    await plugin.listen(join(folder.registry, "x-reg.sock"));
    await vi.waitFor(() => expect(plugin.told).toEqual([{ pluginRegistered: false, error }]), { timeout: 10_000 });
  });

  test("and is silent keeps no other from being found", async () => {
    const silent = await newPlugin().listen(join(folder.registry, "a-silent.sock"));
    silent.isSilent = true;
    await newPlugin().listen(join(folder.registry, "b.sock"));
    await isCounted(2);
  });
});

describe("the node plugin of a CSI driver", () => {
  const drivers: TestCsiDriver[] = [];
  const newDriver = (more: Partial<TestCsiDriver["info"]> = {}): TestCsiDriver => {
    const driver = new TestCsiDriver();
    Object.assign(driver.info, more);
    drivers.push(driver);
    return driver;
  };
  const isTold = (expected: object[]) =>
    vi.waitFor(() => expect(csi.drivers()).toMatchObject(expected), { timeout: 10_000 });

  afterEach(() => {
    for (const driver of drivers.splice(0)) driver.die();
  });

  test("is found in the registry, asked how it knows this host, and told that it is taken", async () => {
    const driver = await newDriver().listen(join(folder.registry, "csi-reg.sock"));
    await isTold([
      { name: "csi.example.com", node_id: "host-1", topology: { "topology.example.com/rack": "r1" }, max_volumes: 8 },
    ]);
    await vi.waitFor(() => expect(driver.told).toEqual([{ pluginRegistered: true, error: "" }]));
  });

  test("is not told any more when its socket is gone, and again when it is back", async () => {
    const first = await newDriver().listen(join(folder.registry, "csi-reg.sock"));
    await isTold([{ node_id: "host-1" }]);
    first.die();
    rmSync(join(folder.registry, "csi-reg.sock"), { force: true });
    await vi.waitFor(() => expect(csi.drivers()).toEqual([]), { timeout: 10_000 });
    const next = newDriver();
    next.nodeInfo = { ...next.nodeInfo, nodeId: "host-2" };
    await next.listen(join(folder.registry, "csi-reg.sock"));
    await isTold([{ node_id: "host-2" }]);
  });

  test.each([
    [{ supportedVersions: ["0.3.0"] }, "None of the versions specified"],
    [{ name: "volumes.vmlet.dev" }, "is a name of vmlet's own"],
    [{ endpoint: "csi.sock" }, "the endpoint is no absolute path of a socket"],
  ])("is told why it is not taken: %o", async (more, told) => {
    const driver = await newDriver(more).listen(join(folder.registry, "csi-reg.sock"));
    const refusal = { pluginRegistered: false, error: expect.stringContaining(told) };
    await vi.waitFor(() => expect(driver.told).toEqual([refusal]), { timeout: 10_000 });
  });

  test("that says nothing of this host keeps no other from being taken", async () => {
    const silent = newDriver({ name: "silent.example.com" });
    silent.isSilent = true;
    await silent.listen(join(folder.registry, "a-silent.sock"));
    await newDriver().listen(join(folder.registry, "csi-reg.sock"));
    await isTold([{ name: "csi.example.com" }]);
  });

  test("is told that nobody takes it where the engine gives machines no mounts of it", async () => {
    await close();
    door = new PluginDoor({ folder, devices: manager, clock: systemClock, logger: silentLogger });
    await door.open();
    const driver = await newDriver().listen(join(folder.registry, "csi-reg.sock"));
    const error = 'there are no plugins of type "CSIPlugin" here';
    await vi.waitFor(() => expect(driver.told).toEqual([{ pluginRegistered: false, error }]), { timeout: 10_000 });
  });
});

describe("the folder of plugins", () => {
  test("has a socket of PodResources, where a backend serves them", async () => {
    const inner = join(dir, "host");
    const surroundings = { stateDir: dir, clock: systemClock, logger: silentLogger, engine: { name: "cri" } };
    const plugins = new HostPlugins({ directory: inner }, { ...surroundings, supervisors: new Map() });
    await plugins.open();
    const socket = join(inner, "pod-resources/kubelet.sock");
    const baseUrl = "http://localhost";
    const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(socket) });
    const client = createClient(PodResourcesLister, createGrpcTransport({ baseUrl, sessionManager }));
    expect((await client.list({})).podResources).toEqual([]);
    sessionManager.abort();
    await plugins.close();
    expect(existsSync(socket)).toBe(false);
  });

  test("is its owner's alone", () => {
    expect([folder.devicePlugins, kubelet].map((path) => statSync(path).mode & 0o777)).toEqual([0o750, 0o700]);
  });

  test("has a new kubelet.sock after each start, and no socket of a former plugin", async () => {
    const plugin = await newPlugin().listen(join(folder.devicePlugins, "gpu.sock"));
    const before = statSync(kubelet);
    await close();
    await open();
    expect([readdirSync(folder.devicePlugins), statSync(kubelet).ctimeMs > before.ctimeMs]).toEqual([
      ["kubelet.sock"],
      true,
    ]);
    plugin.die();
  });

  test("that somebody serves already is told by a check of the host", async () => {
    const engine = { type: "oci", plugins: { directory: dir } };
    const text = JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir: "/s",
      listen: { socket: "/s" },
      engine,
    });
    const config = parseBackendConfig(text, "backend.yaml");
    expect(await checkPlugins(config)).toMatchObject([{ fatal: false, problem: expect.stringContaining(kubelet) }]);
    await close();
    expect(await checkPlugins(config)).toEqual([]);
    await open();
  });

  test("of a kubelet that runs is left alone", async () => {
    await close();
    const other = createServer().listen(kubelet);
    await once(other, "listening");
    await expect(door.open()).rejects.toThrow(`a kubelet or another backend listens on ${kubelet}`);
    expect(existsSync(kubelet)).toBe(true);
    other.close();
    await open();
  });
});

describe("a driver's plugin in the registry", () => {
  const socket = join(folder.registry, "gpu.example.com-reg.sock");
  const { signal } = new AbortController();
  const claim = { name: "mine", namespace: "ns", claim: "gpu", uid: "u1", drivers: ["gpu.example.com"] };

  /** A machine that writes down what it is told. */
  const holder = () => {
    const kept: (PreparedClaims | undefined)[] = [];
    const machine: ClaimHolder = {
      id: "m",
      spec: { resource_claims: [claim] },
      get prepared() {
        return kept.at(-1);
      },
      keep: (prepared) => void kept.push(prepared),
    };
    return { kept, machine };
  };
  const isTaken = (driver: TestDriver, pluginRegistered = true) =>
    vi.waitFor(() => expect(driver.told.at(-1)).toMatchObject({ pluginRegistered }), { timeout: 10_000 });
  let driver: TestDriver;

  beforeEach(() => (driver = new TestDriver()));
  afterEach(() => driver.die());

  test("makes claims ready, and takes them back", async () => {
    await driver.listen(socket);
    await isTaken(driver);
    const { kept, machine } = holder();
    await claims.prepare(machine, signal);
    const device = { pool: "p", device: "d0", requests: ["gpu"], cdi: ["example.com/gpu=u1"] };
    const names = { names: ["mine"], namespace: "ns", claim: "gpu" };
    expect(kept).toEqual([
      { u1: { ...names, drivers: { "gpu.example.com": null } } },
      { u1: { ...names, drivers: { "gpu.example.com": [device] } } },
    ]);
    await claims.unprepare(machine, signal);
    expect([driver.asked, kept.at(-1)]).toEqual([["prepare ns/gpu u1", "unprepare ns/gpu u1"], undefined]);
  });

  test("has the health of its devices heard, where it says that it tells it", async () => {
    driver.info.supportedVersions.push("v1.DRAResourceHealth");
    driver.health.push(HealthStatus.HEALTHY, HealthStatus.UNHEALTHY);
    await driver.listen(socket);
    await isTaken(driver);
    const health = () => claims.health("gpu.example.com", "p", "d0");
    await vi.waitFor(() => expect(health()).toEqual({ health: "unhealthy", message: "by v1" }), { timeout: 10_000 });
    expect(claims.health("gpu.example.com", "p", "d1")).toEqual({ health: "unknown" });
  });

  test.each([
    [["v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"], "v1beta1", "by v1alpha1"],
    [["v1beta1.DRAPlugin", "v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"], "v1", "by v1"],
  ])("with %j is spoken with by the newest version", async (supportedVersions, version, message) => {
    Object.assign(driver.info, { supportedVersions });
    driver.health.push(HealthStatus.HEALTHY);
    await driver.listen(socket);
    await isTaken(driver);
    const { kept, machine } = holder();
    await claims.prepare(machine, signal);
    await claims.unprepare(machine, signal);
    expect([driver.versions, kept.at(-1)]).toEqual([[version], undefined]);
    const health = () => claims.health("gpu.example.com", "p", "d0");
    await vi.waitFor(() => expect(health()).toEqual({ health: "healthy", message }), { timeout: 10_000 });
  });

  test("is asked again when it is back after it was killed", async () => {
    await driver.listen(socket);
    await isTaken(driver);
    driver.die();
    const { machine } = holder();
    await expect(claims.prepare(machine, signal)).rejects.toThrow("prepare dynamic resources: NodePrepareResources: ");
    rmSync(socket, { force: true });
    driver = await new TestDriver().listen(socket);
    await isTaken(driver);
    await claims.prepare(machine, signal);
    expect(driver.asked).toEqual(["prepare ns/gpu u1"]);
  });

  test("that was killed is told of no more, though its socket is there", async () => {
    await driver.listen(socket);
    await isTaken(driver);
    expect(claims.drivers()).toEqual(["gpu.example.com"]);
    driver.die();
    await vi.waitFor(() => expect(claims.drivers()).toEqual([]), { timeout: 10_000 });
  });

  test("that has gone is not registered any more", async () => {
    await driver.listen(socket);
    await isTaken(driver);
    rmSync(socket);
    await vi.waitFor(
      () => expect(claims.prepare(holder().machine, signal)).rejects.toThrow("gpu.example.com is not registered"),
      { timeout: 10_000 },
    );
  });

  test.each([
    [{ supportedVersions: ["v2.DRAPlugin"] }, "none of v1.DRAPlugin, v1beta1.DRAPlugin is among [v2.DRAPlugin]"],
    [{ name: "Not a driver" }, '"Not a driver" is no name of a DRA driver'],
  ])("is told why it is not taken: %o", async (info, told) => {
    Object.assign(driver.info, info);
    await driver.listen(socket);
    await isTaken(driver, false);
    expect(driver.told.at(-1)!.error).toContain(told);
  });
});
