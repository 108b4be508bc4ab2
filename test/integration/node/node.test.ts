import { KubeConfig } from "@kubernetes/client-node";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { EventRecorder } from "../../../src/kube/events.ts";
import { nodePath, podPath, podsPath } from "../../../src/kube/paths.ts";
import { Reflector } from "../../../src/kube/reflector.ts";
import { Store } from "../../../src/kube/store.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { fixedCapacity } from "../../../src/node/capacity.ts";
import { NodeController } from "../../../src/node/node-controller.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

let cluster: DevCluster;
let kube: KubeTransport;
let abort: AbortController;
let loops: Promise<unknown>[];
const collaborators = { clock: systemClock, random: Math.random, logger: silentLogger };

beforeEach(async () => {
  cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, binder: false });
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(cluster.kubeConfigYaml);
  kube = new KubeTransport({ kubeConfig, ...collaborators });
  abort = new AbortController();
  loops = [];
});
afterEach(async () => {
  abort.abort();
  await Promise.all(loops);
  await kube.close();
  await cluster.close();
});

const get = <T>(path: string) => kube.request<T>({ method: "GET", path, signal: abort.signal });

describe("the Node controller, against an API server over HTTPS", () => {
  function start() {
    const events = new EventRecorder({ kube, ...collaborators, component: "kubelet", host: "burst-1" });
    const controller = new NodeController({
      kube,
      ...collaborators,
      events,
      settings: {
        name: "burst-1",
        clusterId: "c1",
        version: "0.1.0",
        addresses: ["10.0.0.5", "fd00::5"],
        kubeletPort: 10250,
        taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }],
      },
      report: () => ({ runtime: { name: "memory", version: "1" } }),
      capacity: fixedCapacity({ "nvidia.com/gpu": "2" }),
      backend: { failingSince: undefined, lastError: undefined },
    });
    loops.push(controller.run(abort.signal), events.run(abort.signal));
    return controller;
  }

  test("brings up a ready Node with a lease, and an event", async () => {
    const controller = start();
    await expect.poll(() => controller.ready).toBe(true);
    const node = await get<Node>(nodePath("burst-1"));
    expect(node.status?.conditions?.find((c) => c.type === "Ready")?.status).toBe("True");
    expect(node.status?.addresses).toHaveLength(2);
    expect(node.status?.allocatable?.["nvidia.com/gpu"]).toBe("2");
    const lease = () =>
      get<{ metadata: { ownerReferences?: { uid: string }[] } }>(
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/burst-1",
      );
    // The first lease may be older than the Node; then the next renewal, in ten seconds, gives it its owner.
    const owner = (await lease()).metadata.ownerReferences?.[0]?.uid;
    expect([undefined, node.metadata?.uid]).toContain(owner);
    const events = () =>
      get<{ items: { reason: string }[] }>("/api/v1/namespaces/default/events").then((l) =>
        l.items.map((e) => e.reason),
      );
    await expect.poll(events).toContain("Starting");
  });

  test("comes back when it is deleted", async () => {
    const controller = start();
    await expect.poll(() => controller.ready).toBe(true);
    await expect.poll(() => controller.store.size).toBe(1);
    const before = controller.uid;
    await kube.request({ method: "DELETE", path: nodePath("burst-1"), signal: abort.signal });
    await expect
      .poll(() =>
        get<Node>(nodePath("burst-1")).then(
          (n) => n.metadata?.uid,
          () => before,
        ),
      )
      .not.toBe(before);
  });

  test("keeps what others write into its status", async () => {
    const controller = start();
    await expect.poll(() => controller.ready).toBe(true);
    await kube.request({
      method: "PATCH",
      path: nodePath("burst-1", "status"),
      contentType: "application/strategic-merge-patch+json",
      body: {
        status: {
          capacity: { "scheduling.k8s.io/foo": "5" },
          conditions: [{ type: "NetworkUnavailable", status: "False", reason: "RouteCreated", message: "x" }],
        },
      },
      signal: abort.signal,
    });
    await expect.poll(() => controller.store.list()[0]?.status?.capacity?.["scheduling.k8s.io/foo"]).toBe("5");
    controller.refresh();
    await expect
      .poll(() => get<Node>(nodePath("burst-1")).then((n) => n.status?.allocatable?.["scheduling.k8s.io/foo"]))
      .toBe("5");
    const node = await get<Node>(nodePath("burst-1"));
    expect(node.status?.conditions?.map((c) => c.type)).toContain("NetworkUnavailable");
  });
});

describe("the reflector, against an API server over HTTPS", () => {
  test("follows creations and deletions of the pods that its selector names", async () => {
    const store = new Store<Pod>({ logger: silentLogger });
    const query = { fieldSelector: "spec.nodeName=burst-1" };
    const reflector = new Reflector<Pod>({ kube, ...collaborators, path: podsPath(), query, store, pageSize: 2 });
    const create = (name: string, nodeName: string) =>
      kube.request<Pod>({
        method: "POST",
        path: "/api/v1/namespaces/default/pods",
        body: { metadata: { name }, spec: { nodeName, containers: [{ name: "c", image: "i" }] } },
        signal: abort.signal,
      });
    for (let i = 0; i < 5; i++) await create(`early-${i}`, "burst-1");
    loops.push(reflector.run(abort.signal));
    await store.hasSynced(abort.signal);
    expect(store.size).toBe(5);
    expect(store.list()[0]?.kind).toBe("Pod");

    await create("late", "burst-1");
    await create("elsewhere", "other");
    await expect.poll(() => store.size).toBe(6);
    const body = { gracePeriodSeconds: 0 };
    await kube.request({ method: "DELETE", path: podPath("default", "early-0"), body, signal: abort.signal });
    await expect.poll(() => store.getByName("default", "early-0")).toBeUndefined();
    expect(store.getByName("default", "elsewhere")).toBeUndefined();
    expect(reflector.counters).toMatchObject({ lists: 1, watches: 1, watchErrors: 0 });
  });
});
