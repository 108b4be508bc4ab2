/** An agent whose configuration file changes while it runs: what follows at once, what must not, and that no machine is lost by it. */
import { chmodSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { MEMORY_CAPABILITIES, MemoryProvider } from "../../../providers/memory/index.ts";
import { Agent } from "../../../src/agent/agent.ts";
import { ConfigFile } from "../../../src/agent/config-file.ts";
import { loadConfig } from "../../../src/config/load.ts";
import type { ProviderConfig } from "../../../src/config/schema.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { freePorts } from "../../e2e/harness/ports.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { create, pod, PODS, runDevCluster, type Running } from "../devcluster/support.ts";

/** The file is looked at every tenth of a second instead of every ten. */
const fast = { ...systemClock, after: (ms: number, tick: () => void) => systemClock.after(ms / 100, tick) };

let dev: Running;
let folder: string;
let path: string;
let stop: AbortController;
let agent: Agent;
let running: Promise<void>;
let ports: number[];
let base: Json;
let revision: number;
/** What was asked of createProvider, in order. */
let providers: ProviderConfig[];
let memory: MemoryProvider;
let log: ReturnType<typeof collectingLogger>;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-reload-"));
  dev = await runDevCluster();
  ports = await freePorts(4);
  revision = 0;
  providers = [];
  memory = new MemoryProvider();
  log = collectingLogger();
  const kubeconfig = join(folder, "kubeconfig");
  writeFileSync(kubeconfig, dev.cluster.kubeConfigYaml, { mode: 0o600 });
  base = {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    kubeconfig,
    clusterId: "c1",
    health: { address: "127.0.0.1", port: ports[0] },
    nodes: [nodeEntry("a", 1)],
  };
  path = join(folder, "vmlet.yaml");
  await begin();
});

/** Starts the agent by the configuration `base`. */
async function begin(): Promise<void> {
  stop = new AbortController();
  write(base);
  const config = loadConfig(path, {}, {});
  agent = await Agent.open({
    config,
    file: new ConfigFile({ path, flags: {}, config, clock: fast, logger: log }),
    createProvider: (provider) => {
      providers.push(provider);
      return Promise.resolve(wayTo(memory));
    },
    clock: systemClock,
    random: Math.random,
    logger: log,
    version: "1",
    signal: stop.signal,
  });
  running = agent.run(stop.signal);
  await agent.ready(AbortSignal.timeout(30_000));
}
afterEach(async () => {
  stop.abort(new Error("over"));
  await running.catch(() => undefined);
  await dev[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

const nodeEntry = (name: string, port: number, rest: Json = {}): Json => ({
  name,
  provider: { type: "http-vm", url: "http://127.0.0.1:1" },
  kubelet: { port: ports[port], certificate: "self-signed" },
  taints: [],
  ...rest,
});

/** Closing one way to the backend is not its end. */
function wayTo(backend: MemoryProvider): Provider {
  return new Proxy(backend, {
    get(target, key) {
      if (key === "close") return () => Promise.resolve();
      const value: unknown = Reflect.get(target, key);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}

/** As kubelet updates the file of a mounted ConfigMap: a new folder, and a link to it that is renamed over the old one. */
function write(content: object | string): void {
  const at = join(folder, `..${revision++}`);
  mkdirSync(at);
  writeFileSync(join(at, "vmlet.yaml"), typeof content === "string" ? content : JSON.stringify(content));
  chmodSync(join(at, "vmlet.yaml"), 0o600);
  symlinkSync(at, join(folder, "..next"));
  renameSync(join(folder, "..next"), join(folder, "..data"));
  if (revision === 1) symlinkSync("..data/vmlet.yaml", path);
}

const node = async (name: string): Promise<Json> => (await dev.api.request("GET", `/api/v1/nodes/${name}`)).body;
const becomes = (what: () => Promise<unknown>) => expect.poll(what, { timeout: 30_000, interval: 50 });
const isReady = async (name: string) =>
  (await node(name)).status?.conditions?.some(({ type, status }: Json) => type === "Ready" && status === "True");
async function metric(name: string): Promise<string | undefined> {
  const text = await (await fetch(`http://127.0.0.1:${ports[0]}/metrics`)).text();
  return text.split("\n").find((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
}
const phase = async (name: string) => (await dev.api.request("GET", `${PODS}/${name}`)).body.status?.phase;
const machines = () => Promise.resolve(memory.machines.length);
const change = (name: string, patch: Json) =>
  dev.api.request("PATCH", `/api/v1/nodes/${name}`, patch, { "content-type": "application/merge-patch+json" });

test("labels, annotations, taints and capacity follow, and what the configuration takes back goes", async () => {
  const first = { labels: { zone: "1", tier: "x" }, annotations: { "example.com/who": "us" }, capacity: { cpu: "8" } };
  const taints = [{ key: "a", value: "1", effect: "NoSchedule" }];
  write({ ...base, nodes: [nodeEntry("a", 1, { ...first, taints })] });
  await becomes(async () => (await node("a")).spec.taints).toEqual(taints);
  await change("a", { metadata: { labels: { other: "theirs" } } });
  write({ ...base, nodes: [nodeEntry("a", 1, { labels: { zone: "2" }, capacity: { cpu: "16" } })] });
  await becomes(async () => {
    const { metadata, spec, status } = await node("a");
    const { zone, tier, other } = metadata.labels;
    const who = metadata.annotations["example.com/who"];
    return { zone, tier, other, who, taints: spec.taints ?? [], cpu: status.capacity.cpu };
  }).toEqual({ zone: "2", tier: undefined, other: "theirs", who: undefined, taints: [], cpu: "16" });
  expect(providers).toHaveLength(1);
});

test("a node is added, and one that cannot be is tried again until it can, without touching the others", async () => {
  write({
    ...base,
    nodes: [nodeEntry("a", 1), nodeEntry("b", 0, { kubelet: { port: ports[0], address: "127.0.0.1" } })],
  });
  await becomes(() => metric("vmlet_config_last_reload_successful")).toBe("vmlet_config_last_reload_successful 0");
  expect(await isReady("a")).toBe(true);
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2)] });
  await becomes(() => isReady("b")).toBe(true);
  await becomes(() => metric("vmlet_config_last_reload_successful")).toBe("vmlet_config_last_reload_successful 1");
  await create(dev.api, PODS, pod("p", { nodeName: "b", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("p")).toBe("Running");
});

test("a node that was taken out is cordoned and served until its pods are gone, and then its Node goes", async () => {
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2)] });
  await becomes(() => isReady("b")).toBe(true);
  await create(dev.api, PODS, pod("p", { nodeName: "b", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("p")).toBe("Running");
  write(base);
  await becomes(async () => (await node("b")).spec.unschedulable).toBe(true);
  await becomes(() => metric("vmlet_node_leaving")).toBe('vmlet_node_leaving{node="b"} 1');
  expect(await machines()).toBe(1);
  expect(await phase("p")).toBe("Running");
  await dev.api.request("DELETE", `${PODS}/p`, { gracePeriodSeconds: 1 });
  await becomes(async () => (await dev.api.request("GET", "/api/v1/nodes/b")).status).toBe(404);
  await becomes(() => Promise.resolve(agent.nodes.map(({ name }) => name))).toEqual(["a"]);
  await becomes(() => metric("vmlet_node_leaving")).toBeUndefined();
  expect(await machines()).toBe(0);
  // A name that is free again can be taken again.
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2)] });
  await becomes(() => isReady("b")).toBe(true);
});

test("a node that is put back while it is drained is taken for pods again, unless somebody else cordoned it", async () => {
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2), nodeEntry("c", 3)] });
  await becomes(() => isReady("c")).toBe(true);
  for (const name of ["b", "c"])
    await create(
      dev.api,
      PODS,
      pod(name, { nodeName: name, containers: [{ name: "a", image: "i", command: ["sleep"] }] }),
    );
  await change("c", { spec: { unschedulable: true } });
  write(base);
  await becomes(async () => (await node("b")).spec.unschedulable).toBe(true);
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2), nodeEntry("c", 3)] });
  await becomes(async () => (await node("b")).spec.unschedulable ?? false).toBe(false);
  expect((await node("c")).spec.unschedulable).toBe(true);
  expect(await machines()).toBe(2);
});

test("DaemonSet pods of a node that was taken out go with its Node, and their machines with them", async () => {
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2)] });
  await becomes(() => isReady("b")).toBe(true);
  const labels = { app: "d" };
  await create(dev.api, "/apis/apps/v1/namespaces/default/daemonsets", {
    metadata: { name: "d" },
    spec: {
      selector: { matchLabels: labels },
      template: {
        metadata: { labels },
        spec: {
          nodeSelector: { "kubernetes.io/hostname": "b" },
          containers: [{ name: "a", image: "i", command: ["sleep"] }],
        },
      },
    },
  });
  const all = async (): Promise<Json[]> => (await dev.api.request("GET", PODS)).body.items;
  await becomes(async () => (await all()).map(({ status }) => status.phase)).toEqual(["Running"]);
  write(base);
  await becomes(async () => (await dev.api.request("GET", "/api/v1/nodes/b")).status).toBe(404);
  expect(await machines()).toBe(1);
  // As the pod garbage collector does with pods of Nodes that are gone.
  for (const { metadata } of await all())
    await dev.api.request("DELETE", `${PODS}/${metadata.name}`, { gracePeriodSeconds: 0 });
  await becomes(machines).toBe(0);
  await becomes(() => Promise.resolve(agent.nodes.map(({ name }) => name))).toEqual(["a"]);
});

test("a host joins with its Node's podCIDR as the range of its machines, and gives it back when it is drained", async () => {
  memory = new MemoryProvider({ capabilities: [...MEMORY_CAPABILITIES, "pod_ranges"] });
  const { signal } = new AbortController();
  const range = async () => (await memory.podRanges.get({ signal })).ranges;
  const condition = async (name: string) =>
    (await node(name)).status?.conditions?.find(({ type }: Json) => type === "PodRangeReady")?.reason;
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2)] });
  await becomes(() => condition("b")).toBe("NoPodCIDR");
  // As kube-controller-manager does with --allocate-node-cidrs.
  await change("b", { spec: { podCIDR: "10.244.1.0/24", podCIDRs: ["10.244.1.0/24"] } });
  await becomes(() => condition("b")).toBe("PodCIDRInUse");
  expect(await range()).toEqual(["10.244.1.0/24"]);

  // Another node on the same backend has none of it, and says so.
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("b", 2), nodeEntry("c", 3)] });
  await becomes(() => condition("c")).toBe("NoPodCIDR");
  await change("c", { spec: { podCIDR: "10.244.2.0/24" } });
  await becomes(() => condition("c")).toBe("PodRangeRefused");
  expect(await range()).toEqual(["10.244.1.0/24"]);

  await create(dev.api, PODS, pod("p", { nodeName: "b", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("p")).toBe("Running");
  write({ ...base, nodes: [nodeEntry("a", 1), nodeEntry("c", 3)] });
  await becomes(async () => (await node("b")).spec.unschedulable).toBe(true);
  expect(await range()).toEqual(["10.244.1.0/24"]);
  await dev.api.request("DELETE", `${PODS}/p`, { gracePeriodSeconds: 1 });
  await becomes(async () => (await dev.api.request("GET", "/api/v1/nodes/b")).status).toBe(404);
  await becomes(() => condition("c")).toBe("PodCIDRInUse");
  expect(await range()).toEqual(["10.244.2.0/24"]);
});

test("a file that cannot be used changes nothing, says so, and is done with when it can be used again", async () => {
  write("nodes: [");
  await becomes(() => metric("vmlet_config_last_reload_successful")).toBe("vmlet_config_last_reload_successful 0");
  expect(await metric("kubelet_node_config_error")).toBe("kubelet_node_config_error 1");
  expect(await isReady("a")).toBe(true);
  expect(log.lines.filter(({ level }) => level === "error")).toHaveLength(1);
  write(base);
  await becomes(() => metric("vmlet_config_last_reload_successful")).toBe("vmlet_config_last_reload_successful 1");
});

test("what cannot change while the agent runs is named, and the rest of the file is taken", async () => {
  const elsewhere = { provider: { type: "http-vm", url: "http://127.0.0.1:2" }, labels: { zone: "3" } };
  write({ ...base, clusterId: "c2", nodes: [nodeEntry("a", 1, elsewhere)] });
  await becomes(async () => (await node("a")).metadata.labels.zone).toBe("3");
  expect(await metric("vmlet_config_fields_awaiting_restart")).toBe("vmlet_config_fields_awaiting_restart 2");
  expect(log.lines.find(({ fields }) => "fields" in fields)?.fields).toEqual({
    fields: ["clusterId", "nodes[a].provider.url"],
  });
  expect(providers).toHaveLength(1);
});

test("another rate or another kubelet port has the node's agent made anew, and its pods run on", async () => {
  await create(dev.api, PODS, pod("p", { nodeName: "a", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("p")).toBe("Running");
  const [before] = agent.nodes;
  const provider = { type: "http-vm", url: "http://127.0.0.1:1", requestsPerSecond: 7 };
  write({ ...base, nodes: [nodeEntry("a", 2, { provider })] });
  await becomes(async () => (await node("a")).status.daemonEndpoints.kubeletEndpoint.Port).toBe(ports[2]);
  expect(agent.nodes[0]).not.toBe(before);
  expect(providers.at(-1)).toMatchObject({ requestsPerSecond: 7 });
  expect(await phase("p")).toBe("Running");
  expect(await machines()).toBe(1);
  await dev.api.request("DELETE", `${PODS}/p`, { gracePeriodSeconds: 1 });
  await becomes(machines).toBe(0);
});

test("an agent that leads acts for the nodes that come, change and go, and leads on", async () => {
  stop.abort(new Error("started again"));
  await running;
  base["leaderElection"] = { enabled: true };
  await begin();
  write({ ...base, nodes: [nodeEntry("a", 1, { podConcurrency: 2 }), nodeEntry("b", 2)] });
  await becomes(() => isReady("b")).toBe(true);
  for (const name of ["a", "b"]) {
    await create(
      dev.api,
      PODS,
      pod(name, { nodeName: name, containers: [{ name: "a", image: "i", command: ["sleep"] }] }),
    );
    await becomes(() => phase(name)).toBe("Running");
  }
  write({ ...base, nodes: [nodeEntry("b", 2)] });
  await becomes(async () => (await node("a")).spec.unschedulable).toBe(true);
  await dev.api.request("DELETE", `${PODS}/a`, { gracePeriodSeconds: 1 });
  await becomes(async () => (await dev.api.request("GET", "/api/v1/nodes/a")).status).toBe(404);
  // The first node's connections were those by which Services are followed.
  await becomes(() => Promise.resolve(agent.nodes.map(({ name }) => name))).toEqual(["b"]);
  await create(dev.api, PODS, pod("c", { nodeName: "b", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("c")).toBe("Running");
  expect(await metric("leader_election_master_status")).toBe('leader_election_master_status{name="vmlet"} 1');
});

test("a node that cannot be made anew goes on as it was", async () => {
  const taken = { kubelet: { port: ports[0], address: "127.0.0.1", certificate: "self-signed" } };
  write({ ...base, health: { ...base["health"], port: ports[3] }, nodes: [nodeEntry("a", 1, taken)] });
  await becomes(() => metric("vmlet_config_last_reload_successful")).toBe("vmlet_config_last_reload_successful 0");
  expect(agent.nodes[0]!.server.port).toBe(ports[1]);
  await create(dev.api, PODS, pod("p", { nodeName: "a", containers: [{ name: "a", image: "i", command: ["sleep"] }] }));
  await becomes(() => phase("p")).toBe("Running");
});

test("static pods come with the folder's name, and go with it or with their node", async () => {
  const staticPodPath = join(folder, "static");
  mkdirSync(staticPodPath);
  const { spec } = pod("web", { terminationGracePeriodSeconds: 0 });
  const text = JSON.stringify({ apiVersion: "v1", kind: "Pod", metadata: { name: "web" }, spec });
  writeFileSync(join(staticPodPath, "web.json"), text);
  const others = [nodeEntry("a", 1), nodeEntry("b", 2)];
  const withFolder = others.map((entry) => ({ ...entry, staticPodPath }));
  write({ ...base, nodes: withFolder });
  for (const name of ["web-a", "web-b"]) await becomes(() => phase(name)).toBe("Running");
  expect(await machines()).toBe(2);
  // A drain would leave it, so nobody waits for one.
  write({ ...base, nodes: [withFolder[0]!] });
  await becomes(async () => (await node("b")).code).toBe(404);
  await becomes(() => phase("web-b")).toBe(undefined);
  write({ ...base, nodes: [others[0]!] });
  await becomes(() => phase("web-a")).toBe(undefined);
  await becomes(machines).toBe(0);
}, 90_000);
