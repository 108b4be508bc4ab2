import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { renderCadvisorMetrics } from "../../../src/kubelet/endpoints/metrics-cadvisor.ts";
import { agentMetrics, renderVolumeMetrics } from "../../../src/kubelet/endpoints/metrics.ts";
import { renderResourceMetrics } from "../../../src/kubelet/endpoints/metrics-resource.ts";
import { renderSummary } from "../../../src/kubelet/endpoints/stats-summary.ts";
import { StatsSource } from "../../../src/kubelet/metrics/stats.ts";
import type { ContainerStats, MachineStats } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const STARTED = "2026-01-01T00:00:00.000Z";

function pod(name: string, containers: string[], volumes: object[] = []): Pod {
  return {
    metadata: { name, namespace: "ns", uid: `uid-${name}` },
    spec: { volumes },
    status: {
      containerStatuses: containers.map((c) => ({
        name: c,
        image: "img",
        containerID: `vmlet://${c}`,
        state: { running: {} },
      })),
    },
  } as unknown as Pod;
}

function container(name: string, cpuSeconds: number, options: Partial<ContainerStats> = {}): ContainerStats {
  return {
    name,
    started_at: STARTED,
    cpu_usage_ns_total: cpuSeconds * 1e9,
    memory_working_set_bytes: 1000,
    ...options,
  };
}

function setUp(pods: Record<string, string[]>) {
  const clock = new VirtualClock();
  const list = Object.entries(pods).map(([name, containers]) => ({
    pod: pod(name, containers),
    machineId: `m-${name}`,
  }));
  let reply: MachineStats[] | Error = [];
  let calls = 0;
  const source = new StatsSource({
    provider: {
      getStats: () => {
        calls++;
        return reply instanceof Error ? Promise.reject(reply) : Promise.resolve(reply);
      },
    },
    pods: { get: () => undefined, list: () => list },
    labels: {},
    clock,
    logger: silentLogger,
    selfUsage: () => ({ cpuNanoseconds: 1e9, memoryBytes: 500 }),
  });
  return {
    clock,
    list,
    calls: () => calls,
    /** The next sample, with these machines. */
    async next(machines: Record<string, Partial<MachineStats>> | Error) {
      await clock.advance(10_000);
      const at = new Date(clock.now()).toISOString();
      reply =
        machines instanceof Error
          ? machines
          : Object.entries(machines).map(([name, stats]) => ({ id: `m-${name}`, at, containers: [], ...stats }));
      return await source.sample();
    },
    source,
  };
}

describe("usage of the machines", () => {
  test("comes with what the backend's probes came to, even of a container that has no usage yet", async () => {
    const { next } = setUp({ web: ["main"] });
    const tally = { probe: "readiness" as const, successful: 3, failed: 1, unknown: 0 };
    const { pods, probes } = await next({ web: { containers: [container("main", 0, { probes: [tally] })] } });
    expect({ pods, probes }).toEqual({ pods: [], probes: [{ podUid: "uid-web", container: "main", tally }] });
  });

  test("is asked for at once when a container has started since", async () => {
    const { source, list, calls } = setUp({ old: ["main"] });
    await source.sample();
    list.push({ pod: pod("young", ["main"]), machineId: "m-young" });
    await source.sample();
    expect(calls()).toBe(2);
  });

  test("is asked for once in three seconds", async () => {
    const it = setUp({});
    await Promise.all([it.source.sample(), it.source.sample()]);
    await it.clock.advance(2_900);
    await it.source.sample();
    const before = it.calls();
    await it.clock.advance(200);
    await it.source.sample();
    expect([before, it.calls()]).toEqual([1, 2]);
  });

  test("leaves out machines without a sample and containers with nothing to show", async () => {
    const it = setUp({ a: ["c", "idle", "silent"], b: ["c"] });
    const node = await it.next({
      a: { containers: [container("c", 1), container("idle", 0), container("stranger", 1)] },
    });
    expect(node.pods.map(({ pod, containers }) => [pod.metadata?.name, containers.map(({ name }) => name)])).toEqual([
      ["a", ["c"]],
    ]);
  });

  test("has a rate from the second sample on", async () => {
    const it = setUp({ a: ["c"] });
    const first = await it.next({ a: { containers: [container("c", 10)] } });
    const second = await it.next({ a: { containers: [container("c", 15)] } });
    const nanocores = [first, second].map((node) => node.pods[0]!.containers[0]!.cpuNanocores);
    expect(nanocores).toEqual([undefined, 5e8]);
  });

  test("starts its rate anew when the container was restarted", async () => {
    const it = setUp({ a: ["c"] });
    await it.next({ a: { containers: [container("c", 10)] } });
    const node = await it.next({ a: { containers: [container("c", 1, { started_at: "2026-01-01T00:00:05.000Z" })] } });
    expect(node.pods[0]!.containers[0]!.cpuNanocores).toBeUndefined();
  });

  test("of the node never falls: gone and restarted containers keep counting, missed samples count once", async () => {
    const it = setUp({ a: ["c"], b: ["c"] });
    const seconds: number[] = [];
    const step = async (machines: Parameters<typeof it.next>[0]) =>
      seconds.push((await it.next(machines)).cpuNanoseconds / 1e9);
    await step({ a: { containers: [container("c", 10)] }, b: { containers: [container("c", 5)] } });
    await step({ a: { containers: [container("c", 11)] } });
    await step({ a: { containers: [container("c", 11)] }, b: { containers: [container("c", 6)] } });
    await step({ a: { containers: [container("c", 2, { started_at: "2026-01-01T00:01:00.000Z" })] } });
    it.list.splice(0);
    await step({});
    // One second is the agent's own.
    expect(seconds).toEqual([16, 17, 18, 20, 20]);
  });

  test("is the agent's alone, and says so, when the provider cannot be asked", async () => {
    const it = setUp({ a: ["c"] });
    const node = await it.next(new Error("down"));
    expect(node).toMatchObject({ failed: true, pods: [], workingSetBytes: 500 });
  });
});

describe("/metrics/resource", () => {
  test("is what metrics-server and virtual-kubelet's suite read: three series a container, pod as the second label", async () => {
    const it = setUp({ a: ["c"] });
    const node = await it.next({ a: { containers: [container("c", 4.710169)] } });
    const lines = renderResourceMetrics(node)
      .split("\n")
      .filter((line) => line !== "" && !line.startsWith("#"));
    const at = it.clock.now();
    expect(lines).toEqual([
      `container_cpu_usage_seconds_total{container="c",pod="a",namespace="ns"} 4.710169 ${at}`,
      `container_memory_working_set_bytes{container="c",pod="a",namespace="ns"} 1000 ${at}`,
      `container_start_time_seconds{container="c",pod="a",namespace="ns"} ${Date.parse(STARTED) / 1000}`,
      `node_cpu_usage_seconds_total 5.710169 ${at}`,
      `node_memory_working_set_bytes 1500 ${at}`,
      `pod_cpu_usage_seconds_total{namespace="ns",pod="a"} 4.710169 ${at}`,
      `pod_memory_working_set_bytes{namespace="ns",pod="a"} 1000 ${at}`,
      "resource_scrape_error 0",
    ]);
  });

  test("has no zero in it, not even on an empty node", async () => {
    const it = setUp({});
    const values = renderResourceMetrics(await it.next({})).matchAll(/^node_\w+ (\S+) \d+$/gm);
    expect([...values].map(([, value]) => Number(value))).toEqual([1, 500]);
  });
});

describe("/metrics/cadvisor", () => {
  test("shows a pod's network where dashboards look for it: without container, on eth0", async () => {
    const it = setUp({ a: ["c"] });
    const node = await it.next({ a: { containers: [container("c", 1)], network: { rx_bytes: 7, tx_bytes: 8 } } });
    expect(renderCadvisorMetrics(node, { cpuMillis: 4000, memoryBytes: 1 })).toMatch(
      /container_network_receive_bytes_total\{container="",[^}]*interface="eth0"[^}]*namespace="ns",pod="a"\} 7 /,
    );
  });

  test("escapes what label values may hold", async () => {
    const it = setUp({ 'q"\\\n': ["c"] });
    const node = await it.next({ 'q"\\\n': { containers: [container("c", 1)] } });
    expect(renderCadvisorMetrics(node, { cpuMillis: 1, memoryBytes: 1 })).toContain('pod="q\\"\\\\\\n"');
  });
});

describe("/stats/summary", () => {
  test("sums a pod's containers, and leaves out what is not known of all of them", async () => {
    const it = setUp({ a: ["c", "d"] });
    const node = await it.next({ a: { containers: [container("c", 1, { memory_rss_bytes: 3 }), container("d", 2)] } });
    const summary = renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: false }) as {
      pods: Record<string, object>[];
    };
    const time = "2026-01-01T00:00:10Z";
    expect(summary.pods[0]).toMatchObject({
      podRef: { name: "a", namespace: "ns", uid: "uid-a" },
      cpu: { time, usageCoreNanoSeconds: 3e9 },
      memory: { time, workingSetBytes: 2000 },
    });
    expect(summary.pods[0]!["memory"]).not.toHaveProperty("rssBytes");
  });

  test("has of the node what a kubelet always tells, whatever is known of its pods", async () => {
    const it = setUp({ a: ["c", "d"] });
    const node = await it.next({ a: { containers: [container("c", 1, { memory_rss_bytes: 3 }), container("d", 2)] } });
    const summary = renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: true }) as { node: object };
    const time = "2026-01-01T00:00:10Z";
    expect(summary.node).toMatchObject({
      cpu: { time, usageCoreNanoSeconds: 4e9 },
      memory: { time, usageBytes: 2500, workingSetBytes: 2500, rssBytes: 1503 },
    });
  });

  test("has only cpu and memory when that is asked for", async () => {
    const it = setUp({ a: ["c"] });
    const volumes = [{ name: "v", used_bytes: 1 }];
    const node = await it.next({
      a: { containers: [container("c", 1, { fs_used_bytes: 5 })], volumes, network: { rx_bytes: 1, tx_bytes: 1 } },
    });
    const summary = renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: true }) as { pods: object[] };
    expect(Object.keys(summary.pods[0]!).sort()).toEqual(["containers", "cpu", "memory", "podRef", "startTime"]);
  });

  test("names the claim of a volume that outlives its pod, and of no other", async () => {
    const { next, list } = setUp({});
    list.push({ pod: pod("db", ["c"], DISKS), machineId: "m-db" });
    const volumes = [{ name: "data", used_bytes: 1, inodes_used: 2 }, { name: "scratch", used_bytes: 3 }, OF_THE_POD];
    const node = await next({ db: { containers: [container("c", 1)], volumes } });
    const text = JSON.stringify(renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: false }));
    const { volume } = (JSON.parse(text) as { pods: { volume: object[] }[] }).pods[0]!;
    const time = "2026-01-01T00:00:10Z";
    expect(volume).toEqual([
      { time, name: "data", usedBytes: 1, inodesUsed: 2, pvcRef: { name: "data-db-0", namespace: "ns" } },
      { time, name: "scratch", usedBytes: 3 },
      {
        ...{ time, name: "own", pvcRef: { name: "db-own", namespace: "ns" } },
        ...{ usedBytes: 40, capacityBytes: 100, availableBytes: 55, inodes: 9, inodesUsed: 4, inodesFree: 5 },
      },
    ]);
  });
});

const DISKS = [
  { name: "data", persistentVolumeClaim: { claimName: "data-db-0" } },
  { name: "own", ephemeral: { volumeClaimTemplate: {} } },
  { name: "scratch", emptyDir: {} },
];
const OF_THE_POD = {
  ...{ name: "own", used_bytes: 40, capacity_bytes: 100, available_bytes: 55 },
  ...{ inodes: 9, inodes_used: 4, inodes_free: 5 },
};

describe("usage of volumes in /metrics", () => {
  test("is a kubelet's, by claim, with what is known of each", async () => {
    const { next, list } = setUp({});
    list.push({ pod: pod("db", ["c"], DISKS), machineId: "m-db" });
    const volumes = [{ name: "data", used_bytes: 7 }, { name: "scratch", used_bytes: 3 }, OF_THE_POD];
    const text = renderVolumeMetrics(await next({ db: { containers: [container("c", 1)], volumes } }));
    const own = '{namespace="ns",persistentvolumeclaim="db-own"}';
    expect(text.split("\n").filter((line) => line !== "" && !line.startsWith("#"))).toEqual([
      `kubelet_volume_stats_capacity_bytes${own} 100`,
      `kubelet_volume_stats_available_bytes${own} 55`,
      'kubelet_volume_stats_used_bytes{namespace="ns",persistentvolumeclaim="data-db-0"} 7',
      `kubelet_volume_stats_used_bytes${own} 40`,
      `kubelet_volume_stats_inodes${own} 9`,
      `kubelet_volume_stats_inodes_free${own} 5`,
      `kubelet_volume_stats_inodes_used${own} 4`,
    ]);
  });

  test("has each claim once, though two pods of the node have it", async () => {
    const { next, list } = setUp({});
    for (const name of ["a", "b"]) list.push({ pod: pod(name, ["c"], DISKS.slice(0, 1)), machineId: `m-${name}` });
    const stats = { containers: [container("c", 1)], volumes: [{ name: "data", used_bytes: 7 }] };
    const text = renderVolumeMetrics(await next({ a: stats, b: stats }));
    expect(text.match(/^kubelet_volume_stats_used_bytes\{/gm)).toHaveLength(1);
  });

  /** What a scrape gets. */
  function scrape(pods: ReturnType<typeof pod>[], sample: StatsSource["sample"], clock: VirtualClock) {
    const metrics = createMetrics({ nodeNames: ["n"], version: "0", process: false });
    const lookup = { list: () => pods.map((each) => ({ pod: each, machineId: "m" })) };
    const handler = agentMetrics({ metrics, nodeName: "n", stats: { sample }, lookup, clock });
    if (handler.kind !== "plain") throw new Error("a plain reply");
    return handler.handle({} as never) as Promise<{ body: string }>;
  }
  const never = () => new Promise<never>(() => undefined);

  test("does not take the agent's own figures with it when the backend says nothing", async () => {
    const clock = new VirtualClock();
    const reply = scrape([pod("db", ["c"], DISKS)], never, clock);
    await clock.advance(3_000);
    expect((await reply).body).toMatch(/^kubelet_node_name\{node="n"\} 1$/m);
  });

  test("asks no backend for a node whose pods have none", async () => {
    const { body } = await scrape([pod("web", ["c"], [{ name: "scratch", emptyDir: {} }])], never, new VirtualClock());
    expect(body).toContain("kubelet_node_name");
  });
});

describe("pressure stall figures", () => {
  const time = (total_us: number) => ({ total_us, avg10: 1.5, avg60: 0.5, avg300: 0 });
  const stall = (total_us: number) => ({ some: time(2 * total_us), full: time(total_us) });
  const shown = (total: number) => ({ total, avg10: 1.5, avg60: 0.5, avg300: 0 });
  const psi = (total: number) => ({ psi: { some: shown(2 * total), full: shown(total) } });

  const measured = async () =>
    await setUp({ a: ["c"] }).next({
      a: {
        containers: [container("c", 1, { pressure: { cpu: stall(1_000_000), io: stall(3_000_000) } })],
        pressure: { memory: stall(5_000_000) },
      },
    });

  test("are in the summary, of containers and of pods, where the backend tells them", async () => {
    const node = await measured();
    const { pods } = renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: false }) as { pods: object[] };
    expect(pods).toMatchObject([{ memory: psi(5_000_000), containers: [{ cpu: psi(1_000_000), io: psi(3_000_000) }] }]);
    expect(JSON.stringify(pods).match(/"psi"/g)).toHaveLength(3);
  });

  test("of disks are left out of what is asked for processors and memory alone", async () => {
    const brief = renderSummary(await measured(), { nodeName: "n", startedAtMs: 0, brief: true });
    expect(JSON.stringify(brief)).not.toContain('"io"');
  });

  test("have cAdvisor's names, in seconds", async () => {
    const text = renderCadvisorMetrics(await measured(), { cpuMillis: 1, memoryBytes: 1 });
    expect(
      text
        .match(/^container_pressure_\S+\{container="\w*".* \S+ \d+$/gm)
        ?.map((line) => line.replace(/,.* (\S+) \d+$/, "} $1")),
    ).toEqual([
      'container_pressure_cpu_stalled_seconds_total{container="c"} 1',
      'container_pressure_cpu_waiting_seconds_total{container="c"} 2',
      'container_pressure_memory_stalled_seconds_total{container=""} 5',
      'container_pressure_memory_waiting_seconds_total{container=""} 10',
      'container_pressure_io_stalled_seconds_total{container="c"} 3',
      'container_pressure_io_waiting_seconds_total{container="c"} 6',
    ]);
  });

  test("are no series where nobody measures them", async () => {
    const node = await setUp({ a: ["c"] }).next({ a: { containers: [container("c", 1)] } });
    expect(renderCadvisorMetrics(node, { cpuMillis: 1, memoryBytes: 1 })).not.toContain("container_pressure");
    expect(JSON.stringify(renderSummary(node, { nodeName: "n", startedAtMs: 0, brief: false }))).not.toContain("psi");
  });
});
