import { KubeConfig } from "@kubernetes/client-node";
import { afterEach, beforeEach, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { EventRecorder } from "../../../src/kube/events.ts";
import { resourcePath } from "../../../src/kube/paths.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { PodController } from "../../../src/pods/controller.ts";
import { NodeAllocation } from "../../../src/podspec/admission/allocation.ts";
import { machineId } from "../../../src/podspec/machine-id.ts";
import { PodRenderer } from "../../../src/podspec/pod-renderer.ts";
import { ReferenceCache } from "../../../src/podspec/references/references.ts";
import { ServiceCache } from "../../../src/podspec/references/services.ts";
import { TokenManager } from "../../../src/podspec/references/tokens.ts";
import { TrustBundles } from "../../../src/podspec/references/trust-bundles.ts";
import type { FileEntry, Machine, MachinePatch, MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { node as facts } from "../../unit/podspec/fixtures.ts";
import { certificatesFrom, claimsFrom, csiFrom, disksFrom } from "../../support/disks.ts";

/** What the API server's admission writes into every pod. */
const LIFE_S = 3607;
const [clock, logger] = [systemClock, silentLogger];

/** Keeps the files that machines were given: the memory provider has no use for them. */
class Recorder extends MemoryProvider {
  readonly tokens: string[] = [];

  override createPod(id: string, spec: MachineSpec, options: { signal: AbortSignal }): Promise<Machine> {
    for (const volume of spec.volumes ?? []) if (volume.type === "files") this.#keep(volume.files);
    return super.createPod(id, spec, options);
  }

  override updatePod(id: string, patch: MachinePatch, options: { signal: AbortSignal }): Promise<Machine> {
    for (const { files } of patch.files ?? []) this.#keep(files);
    return super.updatePod(id, patch, options);
  }

  #keep(files: readonly FileEntry[]): void {
    const token = files.find(({ path }) => path === "token");
    if (token !== undefined) this.tokens.push(Buffer.from(token.content_b64, "base64").toString());
  }
}

/** Ages tokens; everything else lives in real time. */
let tokenClock: VirtualClock;
let cluster: DevCluster;
let admin: KubeTransport;
let asNode: KubeTransport;
let provider: Recorder;
let done: AbortController;
let running: Promise<unknown>;

beforeEach(async () => {
  done = new AbortController();
  const { signal } = done;
  tokenClock = new VirtualClock(Date.now());
  provider = new Recorder();
  cluster = await startDevCluster({ clock, logger, binder: false });
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(cluster.kubeConfigYaml);
  admin = new KubeTransport({ kubeConfig, clock, logger });
  const impersonate = { user: "system:node:burst-0", groups: ["system:nodes"] };
  asNode = new KubeTransport({ kubeConfig, clock, logger, impersonate });
  const node = await post<Node>(resourcePath({ resource: "nodes" }), {
    apiVersion: "v1",
    kind: "Node",
    metadata: { name: "burst-0" },
    status: { allocatable: { cpu: "4", memory: "8Gi", pods: "10" } },
  });
  const parts = {
    kube: asNode,
    clock,
    random: systemRandom,
    logger,
    onChange: (uid: string) => controller.requeue(uid),
  };
  const services = new ServiceCache(parts);
  const references = new ReferenceCache({ ...parts, services });
  signal.addEventListener("abort", () => references.close());
  const { capabilities } = await provider.getInfo({ signal });
  const renderer = new PodRenderer({
    kube: asNode,
    references,
    tokens: new TokenManager({ ...parts, clock: tokenClock }),
    trustBundles: new TrustBundles(parts),
    disks: disksFrom({ kube: asNode, clock }),
    claims: claimsFrom({ kube: asNode, clock }),
    csi: csiFrom({ kube: asNode, clock }),
    certificates: certificatesFrom({ kube: asNode, clock }),
    node: () => node,
    facts: () => facts,
    backend: () => ({ name: "memory", capabilities: new Set(capabilities) }),
    allocation: new NodeAllocation(),
    daemonSets: "run",
  });
  const events = new EventRecorder({ kube: asNode, clock, logger, component: "kubelet", host: "burst-0" });
  const controller: PodController = new PodController({
    kube: asNode,
    provider,
    renderer,
    events,
    nodeName: "burst-0",
    clusterId: facts.clusterId,
    hostIPs: () => ["10.0.0.1"],
    concurrency: 4,
    sweep: { enabled: true, maxPerMinute: 10 },
    clock,
    random: systemRandom,
    logger,
  });
  running = Promise.all([services.run(signal), controller.observe(signal), controller.act(signal)]);
});

afterEach(async () => {
  done.abort();
  await running;
  await provider.close();
  await asNode.close();
  await admin.close();
  await cluster.close();
});

function post<T>(path: string, body: object): Promise<T> {
  return admin.request<T>({ method: "POST", path, body, signal: done.signal });
}

async function review(token: string): Promise<unknown> {
  const path = resourcePath({ group: "authentication.k8s.io", resource: "tokenreviews" });
  const kind = { apiVersion: "authentication.k8s.io/v1", kind: "TokenReview" };
  return (await post<{ status: unknown }>(path, { ...kind, spec: { token } })).status;
}

test("a running machine gets a new token when 80 % of the old one's life are over, and not before", async () => {
  const pod = await post<Pod>(resourcePath({ resource: "pods", namespace: "default" }), {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name: "web" },
    spec: { nodeName: "burst-0", containers: [{ name: "app", image: "nginx" }] },
  });
  const { uid } = pod.metadata!;
  await expect.poll(() => provider.tokens.length, { timeout: 30_000 }).toBe(1);
  const machine = () => provider.getPod(machineId(facts.clusterId, uid!), { signal: done.signal });
  await expect.poll(async () => (await machine()).state, { timeout: 30_000 }).toBe("running");

  await tokenClock.advance((LIFE_S * 0.8 - 15) * 1000);
  expect(tokenClock.pending).toBe(1);
  expect(provider.tokens).toHaveLength(1);
  await tokenClock.advance(15_000);
  await expect.poll(() => provider.tokens.length, { timeout: 30_000 }).toBe(2);

  const [old, fresh] = provider.tokens as [string, string];
  expect(fresh).not.toBe(old);
  for (const token of [old, fresh]) {
    expect(await review(token)).toMatchObject({
      authenticated: true,
      user: { extra: { "authentication.kubernetes.io/pod-uid": [uid] } },
    });
  }
});
