import { KubeConfig } from "@kubernetes/client-node";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { resourcePath } from "../../../src/kube/paths.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { NodeAllocation } from "../../../src/podspec/admission/allocation.ts";
import { PodRenderer } from "../../../src/podspec/pod-renderer.ts";
import { ReferenceCache } from "../../../src/podspec/references/references.ts";
import { ServiceCache } from "../../../src/podspec/references/services.ts";
import { TokenManager } from "../../../src/podspec/references/tokens.ts";
import { TrustBundles } from "../../../src/podspec/references/trust-bundles.ts";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";
import { node as facts } from "../../unit/podspec/fixtures.ts";
import { certificatesFrom, claimsFrom, csiFrom, disksFrom } from "../../support/disks.ts";

const configMaps = resourcePath({ resource: "configmaps", namespace: "default" });

/** The whole way from objects in an API server to a machine's spec, as a node that may read only what its pods refer to. */
describe("rendering against an API server", () => {
  const done = new AbortController();
  const { signal } = done;
  const clock = systemClock;
  const logger = silentLogger;
  let cluster: DevCluster;
  let admin: KubeTransport;
  let asNode: KubeTransport;
  let renderer: PodRenderer;
  let pod: Pod;
  let wake: () => void = () => {};

  /** Resolves when something that the pod refers to has changed. */
  const nextChange = () =>
    new Promise<void>((resolve) => {
      wake = resolve;
    });

  beforeAll(async () => {
    cluster = await startDevCluster({ clock, logger, binder: false });
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromString(cluster.kubeConfigYaml);
    admin = new KubeTransport({ kubeConfig, clock, logger });
    asNode = new KubeTransport({
      kubeConfig,
      clock,
      logger,
      impersonate: { user: "system:node:burst-0", groups: ["system:nodes"] },
    });
    await create(resourcePath({ resource: "nodes" }), {
      apiVersion: "v1",
      kind: "Node",
      metadata: { name: "burst-0" },
      status: { allocatable: { cpu: "4", memory: "8Gi", pods: "10" } },
    });
    await create(configMaps, {
      apiVersion: "v1",
      kind: "ConfigMap",
      metadata: { name: "settings" },
      data: { color: "red" },
    });
    pod = await create<Pod>(resourcePath({ resource: "pods", namespace: "default" }), {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name: "web" },
      spec: {
        nodeName: "burst-0",
        containers: [
          {
            name: "app",
            image: "nginx",
            env: [{ name: "COLOR", valueFrom: { configMapKeyRef: { name: "settings", key: "color" } } }],
            volumeMounts: [{ name: "conf", mountPath: "/conf" }],
          },
        ],
        volumes: [{ name: "conf", configMap: { name: "settings" } }],
      },
    });

    const parts = { kube: asNode, clock, random: systemRandom, logger, onChange: () => wake() };
    const services = new ServiceCache(parts);
    const references = new ReferenceCache({ ...parts, services });
    void services.run(signal);
    signal.addEventListener("abort", () => references.close());
    const node = await admin.request<never>({
      method: "GET",
      path: resourcePath({ resource: "nodes", name: "burst-0" }),
      signal,
    });
    renderer = new PodRenderer({
      kube: asNode,
      references,
      tokens: new TokenManager(parts),
      trustBundles: new TrustBundles(parts),
      disks: disksFrom({ kube: asNode, clock }),
      claims: claimsFrom({ kube: asNode, clock }),
      csi: csiFrom({ kube: asNode, clock }),
      certificates: certificatesFrom({ kube: asNode, clock }),
      node: () => node,
      facts: () => facts,
      backend: () => ({ name: "test", capabilities: new Set(ALL_CAPABILITIES) }),
      allocation: new NodeAllocation(),
      daemonSets: "run",
    });
  });

  afterAll(async () => {
    done.abort();
    await asNode.close();
    await admin.close();
    await cluster.close();
  });

  async function create<T>(path: string, body: object): Promise<T> {
    return admin.request<T>({ method: "POST", path, body, signal });
  }

  async function render(subject: Pod): Promise<MachineSpec> {
    const result = await renderer.render(subject, signal);
    if (result.kind !== "ready") throw new Error(JSON.stringify(result));
    return result.spec;
  }

  function fileIn(spec: MachineSpec, volumeName: (name: string) => boolean, path: string): string | undefined {
    const volume = spec.volumes?.find(({ name }) => volumeName(name));
    const file = volume?.type === "files" ? volume.files.find((entry) => entry.path === path) : undefined;
    return file && Buffer.from(file.content_b64, "base64").toString();
  }

  test("resolves env, files, service variables and the service account's token", async () => {
    const spec = await render(pod);
    const env = Object.fromEntries((spec.containers[0]?.env ?? []).map(({ name, value }) => [name, value]));
    expect(env["COLOR"]).toBe("red");
    expect(env["KUBERNETES_SERVICE_PORT"]).toBe("443");
    expect(fileIn(spec, (name) => name === "conf", "color")).toBe("red");
    const isAccount = (name: string) => name.startsWith("kube-api-access-");
    expect(fileIn(spec, isAccount, "namespace")).toBe("default");
    expect(fileIn(spec, isAccount, "token")?.split(".")).toHaveLength(3);
  });

  test("hears of a change and renders it", async () => {
    const machine = { containers: [] as Machine["containers"] } as Machine;
    await render(pod);
    const before = renderer.version(pod, machine);
    const changed = nextChange();
    await admin.request({
      method: "PATCH",
      path: `${configMaps}/settings`,
      contentType: "application/merge-patch+json",
      body: { data: { color: "blue" } },
      signal,
    });
    await changed;
    expect(renderer.version(pod, machine)).not.toBe(before);
    expect(fileIn(await render(pod), (name) => name === "conf", "color")).toBe("blue");
  });

  test("waits for a secret that does not exist, and goes on when it does", async () => {
    const waiting = await create<Pod>(resourcePath({ resource: "pods", namespace: "default" }), {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name: "late" },
      spec: {
        nodeName: "burst-0",
        containers: [{ name: "app", image: "nginx", envFrom: [{ secretRef: { name: "late" } }] }],
      },
    });
    const first = await renderer.render(waiting, signal);
    expect(first.kind === "wait" && first.waiting.get("app")).toEqual({
      reason: "CreateContainerConfigError",
      message: 'secret "late" not found',
    });
    const changed = nextChange();
    await create(resourcePath({ resource: "secrets", namespace: "default" }), {
      apiVersion: "v1",
      kind: "Secret",
      metadata: { name: "late" },
      stringData: { KEY: "here" },
    });
    await changed;
    expect((await render(waiting)).containers[0]?.env).toContainEqual({ name: "KEY", value: "here" });
  });
});
