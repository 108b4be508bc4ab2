import { afterEach, describe, expect, test, vi } from "vitest";
import { ConfigError } from "../../../src/config/load.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { fixedCapacity, type CapacitySource } from "../../../src/node/capacity.ts";
import { NodeController } from "../../../src/node/node-controller.ts";
import type { BackendHealth } from "../../../src/node/settings.ts";
import { strategicMergePatch } from "../../../src/devcluster/objects/patch.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { ScriptedKube, apiError } from "../../support/scripted-kube.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const NODE = "/api/v1/nodes/burst-1";
const LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/burst-1";

const running: AbortController[] = [];
afterEach(() => {
  for (const abort of running.splice(0)) abort.abort();
});

/** An API server that keeps one Node and its lease; `fault` may make any request fail. */
class NodeApi {
  readonly kube = new ScriptedKube();
  node: Node | undefined;
  lease: { metadata: { ownerReferences?: { uid: string }[] }; spec: { renewTime: string } } | undefined;
  gitVersion = "v1.36.2";
  /** Changes are kept from the watch. */
  isWatchLate = false;
  fault: (request: KubeRequest) => Error | undefined = () => undefined;
  #revision = 100;

  constructor() {
    this.kube.answer = (request) => {
      const fault = this.fault(request);
      if (fault) throw fault;
      return this.#answer(request);
    };
  }

  #answer({ method, path, body, contentType }: KubeRequest): unknown {
    if (path === "/version") return { gitVersion: this.gitVersion };
    if (path === "/api/v1/nodes" && method === "GET") {
      const items = this.node ? [structuredClone(this.node)] : [];
      return { kind: "NodeList", apiVersion: "v1", metadata: { resourceVersion: String(this.#revision) }, items };
    }
    if (path === "/api/v1/nodes" && method === "POST") {
      if (this.node) throw apiError(409, "AlreadyExists");
      return this.put(
        { ...(body as Node), metadata: { ...(body as Node).metadata, uid: `uid-${++this.#revision}` } },
        "ADDED",
      );
    }
    if (path === NODE && method === "GET") {
      if (!this.node) throw apiError(404, "NotFound");
      return this.node;
    }
    if (path === `${NODE}/status` && method === "PATCH") {
      expect(contentType).toBe("application/strategic-merge-patch+json");
      return this.#patchStatus(body as Node);
    }
    if (path === LEASE && method === "PATCH") {
      if (!this.lease) throw apiError(404, "NotFound");
      const patch = body as NonNullable<NodeApi["lease"]>;
      this.lease = {
        metadata: { ...this.lease.metadata, ...patch.metadata },
        spec: { ...this.lease.spec, ...patch.spec },
      };
      return this.lease;
    }
    if (path === LEASE.replace("/burst-1", "") && method === "POST") {
      this.lease = body as NonNullable<NodeApi["lease"]>;
      return this.lease;
    }
    throw new Error(`unexpected ${method} ${path}`);
  }

  #patchStatus(patch: Node): Node {
    if (!this.node) throw apiError(404, "NotFound");
    const wanted = patch.metadata?.resourceVersion;
    if (wanted !== undefined && wanted !== this.node.metadata?.resourceVersion) throw apiError(409, "Conflict");
    return this.put(strategicMergePatch("V1Node", structuredClone(this.node), patch), "MODIFIED");
  }

  /** Stores the Node and tells the watch. */
  put(node: Node, type: "ADDED" | "MODIFIED"): Node {
    this.node = { ...node, metadata: { ...node.metadata, resourceVersion: String(++this.#revision) } };
    if (!this.isWatchLate) this.kube.watches.at(-1)?.send({ type, object: structuredClone(this.node) });
    return this.node;
  }

  deleteNode(): void {
    const object = { ...this.node, metadata: { ...this.node?.metadata, resourceVersion: String(++this.#revision) } };
    this.node = undefined;
    this.kube.current.send({ type: "DELETED", object });
  }

  ready(): { status: string; reason: string } | undefined {
    return this.node?.status?.conditions?.find((c) => c.type === "Ready") as
      | { status: string; reason: string }
      | undefined;
  }

  sent(method: string, path: string): KubeRequest[] {
    return this.kube.requests.filter((r) => r.method === method && r.path === path);
  }
}

function setup(
  options: {
    node?: Node;
    capacity?: CapacitySource;
    backend?: BackendHealth;
    graceMs?: number;
    release?: string;
    takeOver?: boolean;
    volumes?: ConstructorParameters<typeof NodeController>[0]["volumes"];
  } = {},
) {
  const api = new NodeApi();
  api.node = options.node;
  const clock = new VirtualClock();
  const events: string[] = [];
  const renewals: number[] = [];
  const versions: string[] = [];
  let registrations = 0;
  const backend: { failingSince: number | undefined; lastError: string | undefined; seen?: boolean } = {
    failingSince: undefined,
    lastError: undefined,
    ...options.backend,
  };
  const controller = new NodeController({
    kube: api.kube,
    clock,
    random: () => 0.5,
    logger: silentLogger,
    events: { event: (_about, type, reason) => void events.push(`${type} ${reason}`) },
    settings: {
      name: "burst-1",
      clusterId: "c1",
      version: "0.1.0",
      addresses: ["10.0.0.5"],
      kubeletPort: 10250,
      backendOutageGraceMs: options.graceMs,
      release: options.release,
      isReleaseElected: options.release?.startsWith("backend ") === false,
      takeOver: options.takeOver,
    },
    report: () => ({ runtime: { name: "memory", version: "1" } }),
    capacity: options.capacity ?? fixedCapacity(),
    backend,
    volumes: options.volumes,
    metrics: {
      onRegistered: () => void registrations++,
      onLeaseRenewed: (seconds) => void renewals.push(seconds),
      onKubeletVersion: (version) => void versions.push(version),
    },
  });
  const abort = new AbortController();
  running.push(abort);
  const start = async () => {
    const done = controller.run(abort.signal);
    await settle();
    return { done };
  };
  return {
    api,
    clock,
    events,
    backend,
    controller,
    abort,
    start,
    renewals,
    versions,
    registrations: () => registrations,
  };
}

describe("registration", () => {
  test("creates the Node, ready from the start", async () => {
    const s = setup();
    await s.start();
    expect(s.api.ready()).toMatchObject({ status: "True", reason: "KubeletReady" });
    expect(s.controller.uid).toBe(s.api.node?.metadata?.uid);
    expect(s.events).toEqual(["Normal Starting"]);
    expect(s.registrations()).toBe(1);
  });

  test("is tried for ever: after 100 ms, doubling to 7 s", async () => {
    const s = setup();
    s.api.fault = (r) =>
      r.method === "POST" && r.path === "/api/v1/nodes" ? apiError(503, "ServiceUnavailable") : undefined;
    const at: number[] = [];
    const fault = s.api.fault;
    s.api.fault = (r) => {
      const error = fault(r);
      if (error) at.push(s.clock.monotonic());
      return error;
    };
    await s.start();
    await s.clock.advance(30_000);
    const pauses = at.slice(1).map((t, i) => Math.round(t - at[i]!));
    expect(pauses).toEqual([100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
    s.api.fault = () => undefined;
    await s.clock.advance(7_000);
    expect(s.api.ready()?.status).toBe("True");
  });

  test("adopts a Node that exists, with its taints, its labels and its UID", async () => {
    const node: Node = {
      metadata: { name: "burst-1", uid: "old", labels: { zone: "z" } },
      spec: { taints: [{ key: "mine", effect: "NoSchedule" }] },
    };
    const s = setup({ node });
    await s.start();
    expect(s.registrations()).toBe(0);
    expect(s.api.node?.metadata).toMatchObject({ uid: "old", labels: { zone: "z", type: "virtual-kubelet" } });
    expect(s.api.node?.spec).toEqual({ taints: [{ key: "mine", effect: "NoSchedule" }] });
    expect(s.api.ready()?.status).toBe("True");
  });

  test("adopts a Node that somebody creates at the same moment", async () => {
    const s = setup();
    s.api.fault = (r) => {
      if (r.method === "POST" && r.path === "/api/v1/nodes" && !s.api.node) {
        s.api.put({ metadata: { name: "burst-1", uid: "other" } }, "ADDED");
      }
      return undefined;
    };
    await s.start();
    expect(s.controller.uid).toBe("other");
    expect(s.api.ready()?.status).toBe("True");
  });

  const foreign: [string, Node][] = [
    ["of a machine of the cloud", { spec: { providerID: "aws:///eu-west-1a/i-1" } }],
    [
      "of another cluster's agent, or of this one before its clusterId was changed",
      { spec: { providerID: "vmlet://c0/burst-1" } },
    ],
    [
      "of a kubelet that has no provider",
      { status: { nodeInfo: { kubeletVersion: "v1.35.1", systemUUID: "1" } as never } },
    ],
  ];
  test.each(foreign)("refuses the Node %s, for good and untouched", async (_whose, node) => {
    const s = setup({ node: { metadata: { name: "burst-1", uid: "theirs" }, ...node } });
    const claimed = vi.fn<() => void>();
    void s.controller.claimed(s.abort.signal).then(claimed);
    await expect(s.controller.run(s.abort.signal)).rejects.toThrow(ConfigError);
    expect(s.api.sent("PATCH", `${NODE}/status`)).toEqual([]);
    expect(claimed).not.toHaveBeenCalled();
  });

  test("refuses a Node that somebody else has made in place of its own", async () => {
    const s = setup();
    const { done } = await s.start();
    const refused = expect(done).rejects.toThrow(/providerID is aws:.*not vmlet:.*kubectl delete node burst-1/s);
    s.api.put({ metadata: { name: "burst-1", uid: "theirs" }, spec: { providerID: "aws:///i-1" } }, "MODIFIED");
    await s.clock.advance(11_000);
    await refused;
  });

  test("goes on with its own Node that was made before it without a providerID", async () => {
    const first = setup({ node: { metadata: { name: "burst-1", uid: "old" } } });
    await first.start();
    const second = setup({ node: first.api.node! });
    await second.start();
    expect(second.api.ready()?.status).toBe("True");
  });

  test("says when the Node is known to be its own", async () => {
    const s = setup();
    s.api.fault = (r) => (r.path.startsWith("/api/v1/nodes") ? apiError(500, "InternalError") : undefined);
    const claimed = vi.fn<() => void>();
    void s.controller.claimed(s.abort.signal).then(claimed);
    await s.start();
    await s.clock.advance(10_000);
    expect(claimed).not.toHaveBeenCalled();
    s.api.fault = () => undefined;
    await s.clock.advance(10_000);
    expect(claimed).toHaveBeenCalled();
  });

  test("registers again when the Node is deleted, and gives the lease its new owner", async () => {
    const s = setup();
    await s.start();
    await s.clock.advance(11_000);
    const before = s.api.node?.metadata?.uid;
    expect(s.api.lease?.metadata.ownerReferences?.[0]?.uid).toBe(before);
    s.api.deleteNode();
    await s.clock.advance(100);
    const after = s.api.node?.metadata?.uid;
    expect(after).toBeDefined();
    expect(after).not.toBe(before);
    await s.clock.advance(11_000);
    expect(s.api.lease?.metadata.ownerReferences?.[0]?.uid).toBe(after);
    expect(s.registrations()).toBe(2);
  });

  test("registers again when the deletion itself went unnoticed", async () => {
    const s = setup();
    await s.start();
    s.api.node = undefined;
    await s.clock.advance(310_000 * 1.5);
    expect(s.registrations()).toBe(2);
  });
});

describe("reporting", () => {
  const patches = (s: ReturnType<typeof setup>) => s.api.sent("PATCH", `${NODE}/status`);

  test("sends nothing for minutes while nothing changes, then a heartbeat", async () => {
    const s = setup({ node: { metadata: { name: "burst-1", uid: "u" } } });
    await s.start();
    expect(patches(s)).toHaveLength(1);
    await s.clock.advance(280_000);
    expect(patches(s)).toHaveLength(1);
    await s.clock.advance(40_000);
    expect(patches(s)).toHaveLength(2);
    expect(patches(s)[1]?.body).toMatchObject({
      status: { conditions: expect.arrayContaining([expect.objectContaining({ type: "Ready" })]) },
    });
  });

  test("repairs within ten seconds what somebody changed", async () => {
    const s = setup();
    await s.start();
    await s.clock.advance(1_000);
    const conditions = [{ type: "Ready", status: "Unknown", reason: "NodeStatusUnknown", message: "x" }];
    s.api.put({ ...s.api.node, status: { ...s.api.node?.status, conditions } }, "MODIFIED");
    await s.clock.advance(11_000);
    expect(s.api.ready()?.status).toBe("True");
    expect(s.events).toContain("Normal NodeReady");
  });

  test("reports at once when told that something changed", async () => {
    let gpus = "1";
    const s = setup({ capacity: { current: () => fixedCapacity({ "nvidia.com/gpu": gpus }).current() } });
    await s.start();
    gpus = "4";
    s.controller.refresh();
    await settle();
    expect(s.api.node?.status?.allocatable?.["nvidia.com/gpu"]).toBe("4");
  });

  test("zeroes an extended resource that the source no longer names", async () => {
    let resources: Record<string, string> = { "example.com/fpga": "2" };
    const s = setup({ capacity: { current: () => fixedCapacity(resources).current() } });
    await s.start();
    resources = {};
    await s.clock.advance(11_000);
    expect(s.api.node?.status?.capacity?.["example.com/fpga"]).toBe("0");
    await s.clock.advance(600_000);
    expect(s.api.node?.status?.allocatable?.["example.com/fpga"]).toBe("0");
  });

  test("turns ready within a moment of the first capacity report", async () => {
    let current: ReturnType<CapacitySource["current"]>;
    const s = setup({ capacity: { current: () => current } });
    await s.start();
    await s.clock.advance(5_000);
    expect(s.api.ready()?.status).toBe("False");
    current = fixedCapacity().current();
    await s.clock.advance(200);
    expect(s.api.ready()?.status).toBe("True");
  });

  test("tells once that it turned ready, though the watch is late to bring its own report", async () => {
    const conditions = [{ type: "Ready", status: "False" }];
    const s = setup({
      node: { metadata: { name: "burst-1", uid: "u", resourceVersion: "9" }, status: { conditions } },
    });
    s.api.isWatchLate = true;
    await s.start();
    for (let round = 0; round < 3; round++) {
      s.controller.refresh();
      await settle();
    }
    expect(s.api.sent("PATCH", `${NODE}/status`).length).toBeGreaterThan(1);
    expect(s.events.filter((event) => event.endsWith("NodeReady"))).toEqual(["Normal NodeReady"]);
  });

  test("recovers after a failed report without waiting for the next turn", async () => {
    const s = setup({ node: { metadata: { name: "burst-1", uid: "u" } } });
    s.api.fault = (r) =>
      r.method === "PATCH" && r.path === `${NODE}/status` ? apiError(500, "InternalError") : undefined;
    await s.start();
    expect(s.controller.ready).toBeUndefined();
    s.api.fault = () => undefined;
    await s.clock.advance(200);
    expect(s.controller.ready).toBe(true);
  });
});

describe("the version that it reports", () => {
  test.each([
    ["v1.35.2", "v1.35.0+vmlet.0.1.0"],
    ["v1.36.3", "v1.36.0+vmlet.0.1.0"],
    ["v1.37.1", "v1.37.0+vmlet.0.1.0"],
    ["v1.38.0-alpha.1", "v1.37.0+vmlet.0.1.0"],
    ["v1.31.4-gke.100", "v1.31.0+vmlet.0.1.0"],
    ["unknown", "v1.37.0+vmlet.0.1.0"],
  ])("is, of an API server %s, %s", async (server, version) => {
    const s = setup();
    s.api.gitVersion = server;
    await s.start();
    await s.clock.advance(60_000);
    expect(s.api.node?.status?.nodeInfo?.kubeletVersion).toBe(version);
    expect(s.versions).toEqual([version]);
    expect(s.api.sent("GET", "/version")).toHaveLength(1);
  });

  test("is the newest where the API server does not tell", async () => {
    const s = setup();
    s.api.fault = (r) => (r.path === "/version" ? apiError(403, "Forbidden") : undefined);
    await s.start();
    expect(s.versions).toEqual(["v1.37.0+vmlet.0.1.0"]);
    expect(s.api.ready()?.status).toBe("True");
  });

  test("waits for an API server that is not well", async () => {
    const s = setup();
    s.api.fault = (r) => (r.path === "/version" ? apiError(503, "ServiceUnavailable") : undefined);
    await s.start();
    expect(s.api.node).toBeUndefined();
    s.api.fault = () => undefined;
    await s.clock.advance(1_000);
    expect(s.api.ready()?.status).toBe("True");
  });
});

describe("cordoning", () => {
  test("is told of as an event once, and so is its end", async () => {
    const s = setup();
    await s.start();
    const cordon = (unschedulable: boolean) =>
      s.api.put({ ...s.api.node, spec: { ...s.api.node?.spec, unschedulable } }, "MODIFIED");
    cordon(true);
    await s.clock.advance(30_000);
    expect(s.events).toEqual(["Normal Starting", "Normal NodeNotSchedulable"]);
    cordon(false);
    await s.clock.advance(30_000);
    expect(s.events).toEqual(["Normal Starting", "Normal NodeNotSchedulable", "Normal NodeSchedulable"]);
  });
});

describe("a backend outage", () => {
  test("is told of, leaves the node ready for the grace, then turns it not ready, and back", async () => {
    const s = setup({ graceMs: 600_000 });
    await s.start();
    s.backend.failingSince = s.clock.monotonic();
    s.backend.lastError = "ECONNREFUSED";
    await s.clock.advance(30_000);
    expect(s.events).toContain("Warning BackendUnavailable");
    expect(s.api.ready()?.status).toBe("True");
    await s.clock.advance(560_000);
    expect(s.api.ready()?.status).toBe("True");
    await s.clock.advance(25_000);
    expect(s.api.ready()).toMatchObject({ status: "False", reason: "BackendUnavailable" });
    s.backend.failingSince = undefined;
    await s.clock.advance(11_000);
    expect(s.api.ready()?.status).toBe("True");
    expect(s.events.slice(-4)).toEqual([
      "Warning BackendUnavailable",
      "Normal NodeNotReady",
      "Normal NodeReady",
      "Normal BackendAnswers",
    ]);
  });

  test("of a moment is no news", async () => {
    const s = setup();
    await s.start();
    const before = s.api.sent("PATCH", `${NODE}/status`).length;
    s.backend.failingSince = s.clock.monotonic();
    await s.clock.advance(5_000);
    s.controller.refresh();
    await settle();
    expect(s.api.sent("PATCH", `${NODE}/status`)).toHaveLength(before);
  });

  test("never touches the lease", async () => {
    const s = setup();
    await s.start();
    s.backend.failingSince = s.clock.monotonic();
    s.backend.lastError = "down";
    const before = s.renewals.length;
    await s.clock.advance(1_200_000);
    expect(s.renewals.length - before).toBeGreaterThanOrEqual(115);
  });
});

describe("of two releases that name one Node", () => {
  const RELEASE = "vmlet.dev/release";
  const registered: Node = {
    metadata: { name: "burst-1", uid: "u", annotations: { [RELEASE]: "kube-system/first" } },
    spec: { providerID: "vmlet://c1/burst-1" },
  };

  /** The second, which starts so long after the first has renewed the lease. */
  function second(sinceRenewalMs: number, options: { release?: string; takeOver?: boolean; node?: Node } = {}) {
    const s = setup({ node: structuredClone(registered), release: "kube-system/second", ...options });
    const renewTime = new Date(s.clock.now() - sinceRenewalMs).toISOString();
    s.api.lease = { metadata: {}, spec: { renewTime } };
    return { ...s, renewTime, holder: () => s.api.node?.metadata?.annotations?.[RELEASE] };
  }

  test("the second one is refused while the first one lives, with the cure, and leaves Node and lease alone", async () => {
    const s = second(5_000);
    await expect(s.controller.run(s.abort.signal)).rejects.toThrow(
      /^nodes\[burst-1\]\.name: release kube-system\/first answers for this Node, and renewed its lease 5 s ago; .* leaderElection\.takeOver/,
    );
    expect(s.api.lease?.spec.renewTime).toBe(s.renewTime);
    expect(s.holder()).toBe("kube-system/first");
    expect(s.events).toEqual([]);
  });

  test("an agent without an election is refused as well", async () => {
    const s = setup({ node: structuredClone(registered) });
    s.api.lease = { metadata: {}, spec: { renewTime: new Date(s.clock.now()).toISOString() } };
    await expect(s.controller.run(s.abort.signal)).rejects.toThrow(ConfigError);
  });

  test("the second one answers for it when the first one has not renewed the lease for its duration", async () => {
    const s = second(40_000);
    await s.start();
    expect(s.holder()).toBe("kube-system/second");
    expect(s.api.ready()?.status).toBe("True");
    await s.clock.advance(60_000);
    expect(s.holder()).toBe("kube-system/second");
  });

  test("the second one takes it over by force", async () => {
    const s = second(5_000, { takeOver: true });
    await s.start();
    expect(s.holder()).toBe("kube-system/second");
    expect(s.api.ready()?.status).toBe("True");
  });

  test("the one that it was taken over from ends", async () => {
    const s = setup({ release: "kube-system/first" });
    const { done } = await s.start();
    expect(s.api.node?.metadata?.annotations?.[RELEASE]).toBe("kube-system/first");
    const ended = expect(done).rejects.toThrow(
      /release kube-system\/second answers for this Node, and has taken it over/,
    );
    const { metadata, ...node } = s.api.node!;
    const annotations = { ...metadata?.annotations, [RELEASE]: "kube-system/second" };
    s.api.put({ ...node, metadata: { ...metadata, annotations } }, "MODIFIED");
    await s.clock.advance(11_000);
    await ended;
  });

  test.each([
    ["agents with machines elsewhere, and no election, are refused as well", "backend https://b", "backend https://a"],
    ["an election is refused by one without", "kube-system/second", "backend https://a"],
  ])("%s", async (_, release, holder) => {
    const node = { ...registered, metadata: { ...registered.metadata, annotations: { [RELEASE]: holder } } };
    const s = second(5_000, { release, node });
    await expect(s.controller.run(s.abort.signal)).rejects.toThrow(
      /an agent with backend https:\/\/a answers for this Node/,
    );
    expect(s.holder()).toBe(holder);
  });

  test.each([
    ["one without an election gives the Node up at its end", "backend https://a", undefined],
    ["one of an election leaves it to its successor", "kube-system/first", "kube-system/first"],
  ])("%s", async (_, release, left) => {
    const s = setup({ release });
    const { done } = await s.start();
    expect(s.api.node?.metadata?.annotations?.[RELEASE]).toBe(release);
    s.abort.abort();
    await done;
    await s.controller.giveUp(new AbortController().signal);
    expect(s.api.node?.metadata?.annotations?.[RELEASE]).toBe(left);
  });

  test("what another release has taken over is not given up for it", async () => {
    const s = setup({ release: "backend https://a" });
    const { done } = await s.start();
    const { metadata, ...node } = s.api.node!;
    s.api.put({ ...node, metadata: { ...metadata, annotations: { [RELEASE]: "backend https://b" } } }, "MODIFIED");
    await settle();
    s.abort.abort();
    await done;
    await s.controller.giveUp(new AbortController().signal);
    expect(s.api.node?.metadata?.annotations?.[RELEASE]).toBe("backend https://b");
  });

  test("a successor of the same release goes on at once", async () => {
    const s = second(1_000, { release: "kube-system/first" });
    await s.start();
    expect(s.api.ready()?.status).toBe("True");
  });
});

describe("the lease", () => {
  test("is created and then renewed every ten seconds on its own lane", async () => {
    const s = setup();
    await s.start();
    expect(s.api.lease).toMatchObject({
      metadata: { name: "burst-1", namespace: "kube-node-lease" },
      spec: { holderIdentity: "burst-1", leaseDurationSeconds: 40, renewTime: "2026-01-01T00:00:00.000000Z" },
    });
    await s.clock.advance(100_000);
    expect(s.renewals.length).toBeGreaterThanOrEqual(10);
    expect(s.renewals.length).toBeLessThanOrEqual(11);
    expect(s.api.kube.requests.filter((r) => r.path.includes("/leases")).every((r) => r.lane === "lease")).toBe(true);
  });

  test("is renewed while the Node cannot be registered", async () => {
    const s = setup();
    s.api.fault = (r) => (r.path.startsWith("/api/v1/nodes") ? apiError(500, "InternalError") : undefined);
    await s.start();
    await s.clock.advance(60_000);
    expect(s.renewals.length).toBeGreaterThanOrEqual(6);
    expect(s.api.lease?.metadata.ownerReferences).toBeUndefined();
    s.api.fault = () => undefined;
    await s.clock.advance(20_000);
    expect(s.api.lease?.metadata.ownerReferences).toEqual([
      { apiVersion: "v1", kind: "Node", name: "burst-1", uid: s.api.node?.metadata?.uid },
    ]);
  });

  test("is tried again after 200 ms, doubling to 7 s", async () => {
    const s = setup();
    const at: number[] = [];
    s.api.fault = (r) => {
      if (!r.path.includes("/leases")) return undefined;
      at.push(s.clock.monotonic());
      return apiError(0, "Timeout");
    };
    await s.start();
    await s.clock.advance(35_000);
    expect(at.slice(1).map((t, i) => Math.round(t - at[i]!))).toEqual([
      200, 400, 800, 1600, 3200, 6400, 7000, 7000, 7000,
    ]);
  });

  test("is renewed with a later time each time, though the clock is set back", async () => {
    const s = setup();
    await s.start();
    const times: number[] = [];
    for (let i = 0; i < 5; i++) {
      if (i === 2) s.clock.step(-86_400_000);
      await s.clock.advance(11_000);
      times.push(Date.parse(s.api.lease!.spec.renewTime));
    }
    expect(times).toEqual(times.toSorted((a, b) => a - b));
    expect(new Set(times).size).toBe(5);
  });

  test("goes on from the time that an agent wrote whose clock was ahead", async () => {
    const s = setup();
    const renewTime = "2026-01-04T00:00:00.000000Z";
    s.api.lease = { metadata: {}, spec: { renewTime } };
    await s.start();
    expect(s.api.lease.spec.renewTime > renewTime).toBe(true);
    const first = s.api.lease.spec.renewTime;
    await s.clock.advance(11_000);
    expect(s.api.lease.spec.renewTime > first).toBe(true);
  });

  test("tells that the process makes progress, whether or not it is renewed", async () => {
    const s = setup();
    s.api.fault = (r) => (r.path.includes("/leases") ? apiError(0, "Timeout") : undefined);
    await s.start();
    await s.clock.advance(120_000);
    expect(s.clock.monotonic() - s.controller.lease.attemptedAt!).toBeLessThan(20_000);
    expect(s.controller.lease.renewedAt).toBeUndefined();
  });

  test("is made again when somebody deletes it", async () => {
    const s = setup();
    await s.start();
    s.api.lease = undefined;
    await s.clock.advance(11_000);
    expect(s.api.lease).toBeDefined();
  });
});

describe("stopping", () => {
  test("leaves the Node and the lease in place and ends every timer", async () => {
    const s = setup();
    const { done } = await s.start();
    s.abort.abort();
    await done;
    expect(s.clock.pending).toBe(0);
    expect(s.api.kube.requests.some((r) => r.method === "DELETE")).toBe(false);
  });
});

describe("volumes in use", () => {
  const volumesSaying = (names: string[]) => {
    const told: (readonly string[])[] = [];
    return {
      told,
      volumes: {
        wanted: () => names,
        isNews: (wanted: readonly string[]) => told.length > 0 && told.at(-1)!.join() !== wanted.join(),
        told: (wanted: readonly string[]) => void told.push(wanted),
      },
    };
  };

  test("are told when the API server has taken them, not before", async () => {
    const { volumes, told } = volumesSaying(["csi^a"]);
    const s = setup({ volumes });
    s.api.fault = (r) =>
      r.method === "PATCH" && r.path === `${NODE}/status` ? apiError(500, "InternalError") : undefined;
    await s.start();
    expect(told).toEqual([]);
    s.api.fault = () => undefined;
    await s.clock.advance(10_000);
    expect(s.api.node?.status?.volumesInUse).toEqual(["csi^a"]);
    expect(told.at(-1)).toEqual(["csi^a"]);
  });

  test("are not written over what another process has told since the Node was read", async () => {
    const names = ["csi^a"];
    const { volumes } = volumesSaying(names);
    const s = setup({ volumes });
    await s.start();
    s.api.isWatchLate = true;
    s.api.put({ ...s.api.node, status: { ...s.api.node!.status, volumesInUse: ["csi^b"] } }, "MODIFIED");
    names.push("csi^c");
    s.controller.refresh();
    await settle();
    expect(s.api.node?.status?.volumesInUse).toEqual(["csi^b"]);
    await s.clock.advance(100);
    expect(s.api.node?.status?.volumesInUse).toEqual(["csi^a", "csi^c"]);
  });

  test("are written though the cached Node looks as if they were", async () => {
    const names = ["csi^a"];
    const { volumes } = volumesSaying(names);
    const s = setup({ volumes });
    await s.start();
    // The watch brings nothing of what is written from here on.
    s.api.isWatchLate = true;
    names.pop();
    s.controller.refresh();
    await settle();
    expect(s.api.node?.status?.volumesInUse).toEqual([]);
    names.push("csi^a");
    s.controller.refresh();
    await settle();
    expect(s.api.node?.status?.volumesInUse).toEqual(["csi^a"]);
  });
});
