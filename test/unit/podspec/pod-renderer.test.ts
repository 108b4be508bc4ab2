import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import type { Machine, RuntimeHandler } from "../../../src/provider/machine.ts";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { NodeAllocation } from "../../../src/podspec/admission/allocation.ts";
import { PodRenderer, type PodRendererOptions } from "../../../src/podspec/pod-renderer.ts";
import { machine as machineWith } from "../../support/builders.ts";
import { ReferenceCache } from "../../../src/podspec/references/references.ts";
import { ServiceCache } from "../../../src/podspec/references/services.ts";
import { TokenManager } from "../../../src/podspec/references/tokens.ts";
import { TrustBundles } from "../../../src/podspec/references/trust-bundles.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube, isAbout } from "./fake-kube.ts";
import { certificatesFrom, claimsFrom, csiFrom, disksFrom } from "../../support/disks.ts";
import { node as facts, podWith, podWithContainer } from "./fixtures.ts";

const registered: Node = {
  metadata: { name: "burst-0" },
  status: { allocatable: { cpu: "1", memory: "1Gi", pods: "10" } },
};
const CONFIG = "/api/v1/namespaces/shop/configmaps/c";

const mounting = (metadata: Pod["metadata"] = {}): Pod => {
  const pod = podWithContainer(
    { volumeMounts: [{ name: "v", mountPath: "/v" }] },
    { volumes: [{ name: "v", configMap: { name: "c" } }] },
  );
  return { ...pod, metadata: { ...pod.metadata, ...metadata } };
};

const GPU = "vendor.example/gpu";
const CLAIM = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/web-extended";
/** A pod whose gpu a DRA driver has, and of which the node tells nothing. */
const withExtended: Pod = {
  ...podWithContainer({ resources: { requests: { [GPU]: "1" }, limits: { [GPU]: "1" } } }),
  status: {
    extendedResourceClaimStatus: {
      resourceClaimName: "web-extended",
      requestMappings: [{ containerName: "app", resourceName: GPU, requestName: "container-0-request-0" }],
    },
  },
};

describe("PodRenderer", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let allocation: NodeAllocation;
  let changed: string[];
  let done: AbortController;
  let references: ReferenceCache;
  let tokens: TokenManager;
  let trustBundles: TrustBundles;

  beforeEach(async () => {
    kube = new FakeKube();
    clock = new VirtualClock();
    allocation = new NodeAllocation();
    changed = [];
    done = new AbortController();
    const onChange = (uid: string) => void changed.push(uid);
    const parts = { kube, clock, random: () => 0, logger: silentLogger, onChange };
    const services = new ServiceCache(parts);
    references = new ReferenceCache({ ...parts, services });
    tokens = new TokenManager(parts);
    trustBundles = new TrustBundles(parts);
    void services.run(done.signal);
    await services.firstList(done.signal);
  });
  afterEach(() => done.abort());

  function renderer(options: Partial<PodRendererOptions> = {}, lacking: Capability[] = []): PodRenderer {
    const capabilities = new Set(ALL_CAPABILITIES.filter((capability) => !lacking.includes(capability)));
    return new PodRenderer({
      kube,
      references,
      tokens,
      trustBundles,
      disks: disksFrom({ kube, clock }),
      claims: claimsFrom({ kube, clock }),
      csi: csiFrom({ kube, clock }),
      certificates: certificatesFrom({ kube, clock }),
      node: () => registered,
      facts: () => facts,
      backend: () => ({ name: "test", capabilities }),
      allocation,
      daemonSets: "run",
      ...options,
    });
  }

  test("gives a container the devices of a claim that the scheduler made for its extended resource", async () => {
    const results = [{ driver: "gpu.example.com" }];
    const status = { reservedFor: [{ resource: "pods", uid: "0a1b" }], allocation: { devices: { results } } };
    kube.intercept = ({ path }) => (path === CLAIM ? { metadata: { uid: "claim-uid" }, status } : undefined);
    const claim = { name: "extended-resources", namespace: "shop", claim: "web-extended", uid: "claim-uid" };
    expect(await renderer().render(withExtended, done.signal)).toMatchObject({
      kind: "ready",
      spec: {
        resource_claims: [{ ...claim, drivers: ["gpu.example.com"] }],
        containers: [{ claims: [{ name: "extended-resources", request: "container-0-request-0" }] }],
      },
    });
  });

  test("refuses a pod whose extended resource nobody has, and one whose claim the backend cannot have", async () => {
    const { status: _, ...unclaimed } = withExtended;
    expect(await renderer().render(unclaimed, done.signal)).toMatchObject({ reason: `OutOf${GPU}` });
    expect(await renderer({}, ["resource_claims"]).render(withExtended, done.signal)).toMatchObject({
      kind: "reject",
      missing: ["resource_claims"],
    });
  });

  test("reads what the pod refers to and renders it", async () => {
    kube.put(CONFIG, { data: { k: "v" } });
    expect(await renderer().render(mounting(), done.signal)).toMatchObject({
      kind: "ready",
      spec: { volumes: [{ name: "v", type: "files" }] },
    });
  });

  test("waits for what is missing, and hears when it appears", async () => {
    const subject = renderer();
    expect(await subject.render(mounting(), done.signal)).toMatchObject({ kind: "wait", unmountedVolumes: ["v"] });
    await settle();
    kube.put(CONFIG, { data: { k: "v" } });
    await settle();
    expect(changed).toEqual(["0a1b"]);
    expect(await subject.render(mounting(), done.signal)).toMatchObject({ kind: "ready" });
  });

  test("gives a pod its trust anchors, and looks again when they have changed", async () => {
    const collection = "/apis/certificates.k8s.io/v1/clustertrustbundles";
    kube.intercept = ({ path, query }) =>
      path === collection && query?.["watch"] === undefined
        ? { kind: "List", metadata: { resourceVersion: "1" }, items: [] }
        : undefined;
    const sources = [{ clusterTrustBundle: { name: "a", path: "ca.pem" } }];
    const pod = podWithContainer(
      { volumeMounts: [{ name: "v", mountPath: "/v" }] },
      { volumes: [{ name: "v", projected: { sources } }] },
    );
    const subject = renderer();
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "wait", unmountedVolumes: ["v"] });
    await settle();
    const trustBundle = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n";
    kube.put(`${collection}/a`, { spec: { trustBundle } });
    await settle();
    expect(changed).toEqual(["0a1b"]);
    expect(await subject.render(pod, done.signal)).toMatchObject({
      kind: "ready",
      spec: { volumes: [{ files: [{ path: "ca.pem", content_b64: Buffer.from(trustBundle).toString("base64") }] }] },
    });
  });

  test("reads nothing for a pod that it refuses", async () => {
    const before = kube.requests.length;
    const pod = { ...mounting(), spec: { ...mounting().spec!, hostNetwork: true } };
    expect(await renderer({}, ["host_network"]).render(pod, done.signal)).toMatchObject({
      kind: "reject",
      reason: "UnsupportedFeature",
    });
    expect(kube.requests).toHaveLength(before);
  });

  test("gives capacity away once: of two pods that fit alone, the second is refused", async () => {
    const wanting = (uid: string) =>
      podWith({ containers: [{ name: "app", resources: { requests: { cpu: "600m" } } }] }, { uid });
    const pods = [wanting("u1"), wanting("u2")];
    for (const pod of pods) allocation.put(pod);
    const subject = renderer();
    expect(await subject.render(pods[0]!, done.signal)).toMatchObject({ kind: "ready" });
    expect(await subject.render(pods[1]!, done.signal)).toMatchObject({ kind: "reject", reason: "OutOfcpu" });
  });

  test("counts pods that an earlier process of the agent started, and not those that are over", async () => {
    const wanting = (uid: string, status: NonNullable<Pod["status"]>): Pod => ({
      ...podWith({ containers: [{ name: "app", resources: { requests: { cpu: "600m" } } }] }, { uid }),
      status,
    });
    allocation.put(wanting("u1", { phase: "Succeeded", startTime: "2026-01-01T00:00:00Z" }));
    expect(await renderer().render(wanting("u2", {}), done.signal)).toMatchObject({ kind: "ready" });
    allocation.put(wanting("u1", { phase: "Running", startTime: "2026-01-01T00:00:00Z" }));
    expect(await renderer().render(wanting("u2", {}), done.signal)).toMatchObject({ kind: "reject" });
  });

  test("asks the API server before it refuses a pod for the node's labels", async () => {
    const pod = podWith({ nodeSelector: { zone: "a" } });
    expect(await renderer().render(pod, done.signal)).toMatchObject({ kind: "reject", reason: "NodeAffinity" });
    kube.intercept = ({ path }) =>
      path === "/api/v1/nodes/burst-0"
        ? { ...registered, metadata: { name: "burst-0", labels: { zone: "a" } } }
        : undefined;
    expect(await renderer().render(pod, done.signal)).toMatchObject({ kind: "ready" });
  });

  test("asks the API server before it refuses a pod for a resource that somebody may have just given the node", async () => {
    const pod = podWithContainer({ resources: { requests: { "example.com/dongle": "1" } } });
    const subject = renderer();
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "reject", reason: "OutOfexample.com/dongle" });
    kube.intercept = ({ path }) =>
      path === "/api/v1/nodes/burst-0"
        ? { ...registered, status: { allocatable: { ...registered.status?.allocatable, "example.com/dongle": "1" } } }
        : undefined;
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "ready" });
  });

  test("does not ask a pod again that it took in, whatever has become of the node since", async () => {
    let node: Node = registered;
    const pod = podWith({ containers: [{ name: "app", resources: { requests: { cpu: "600m" } } }] });
    const subject = renderer({ node: () => node });
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "ready" });
    node = { ...registered, status: { allocatable: { cpu: "100m", memory: "1Gi", pods: "0" } } };
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "ready" });
    subject.release("0a1b");
    expect(await subject.render(pod, done.signal)).toMatchObject({ kind: "reject" });
  });

  test("gives capacity away once to two pods that are rendered at the same time", async () => {
    const wanting = (uid: string) =>
      podWith({ containers: [{ name: "app", resources: { requests: { cpu: "600m" } } }] }, { uid });
    const pods = [wanting("u1"), wanting("u2")];
    for (const pod of pods) allocation.put(pod);
    const subject = renderer();
    const both = await Promise.all(pods.map((pod) => subject.render(pod, done.signal)));
    expect(both.map(({ kind }) => kind).toSorted()).toEqual(["ready", "reject"]);
  });

  test("refuses nothing for want of room while the node is registered with a capacity that nobody knows yet", async () => {
    const nothing = { cpu: "0", memory: "0", pods: "0", "ephemeral-storage": "0" };
    const unknown: Node = { ...registered, status: { allocatable: nothing } };
    expect(await renderer({ node: () => unknown }).render(podWith(), done.signal)).toMatchObject({ kind: "wait" });
    const full: Node = { ...registered, status: { allocatable: { ...nothing, cpu: "4" } } };
    expect(await renderer({ node: () => full }).render(podWith(), done.signal)).toMatchObject({ reason: "OutOfpods" });
  });

  test("refuses nothing while the node is not registered", async () => {
    expect(await renderer({ node: () => undefined }).render(podWith(), done.signal)).toMatchObject({ kind: "wait" });
  });

  describe("with a runtime class", () => {
    const CLASS = "/apis/node.k8s.io/v1/runtimeclasses/gvisor";
    const pod = podWith({ runtimeClassName: "gvisor" });

    test("waits when there is no such class", async () => {
      expect(await renderer().render(pod, done.signal)).toMatchObject({
        kind: "wait",
        events: [
          {
            reason: "FailedCreatePodSandBox",
            message: 'Failed to create pod sandbox: unable to get OCI runtime: RuntimeClass "gvisor" not found',
          },
        ],
      });
    });

    test("waits when the node does not have its handler, and names those it has", async () => {
      kube.put(CLASS, { handler: "runsc" });
      expect(await renderer({ runtimeHandlers: ["kata"] }).render(pod, done.signal)).toMatchObject({
        kind: "wait",
        events: [
          {
            message: 'Failed to create pod sandbox: no runtime for "runsc" is configured (handlers of this node: kata)',
          },
        ],
      });
    });

    test("renders when the node has it", async () => {
      kube.put(CLASS, { handler: "runsc" });
      const rendered = await renderer({ runtimeHandlers: ["runsc"] }).render(pod, done.signal);
      expect(rendered).toMatchObject({
        kind: "ready",
        spec: expect.not.objectContaining({ runtime_handler: "runsc" }),
      });
    });

    const offering = (runtimeHandlers: RuntimeHandler[]) =>
      renderer({ backend: () => ({ name: "test", capabilities: new Set(ALL_CAPABILITIES), runtimeHandlers }) });

    test("names the handler to a backend that has it", async () => {
      kube.put(CLASS, { handler: "runsc" });
      const backend = [{ name: "" }, { name: "runsc" }];
      expect(await offering(backend).render(pod, done.signal)).toMatchObject({ spec: { runtime_handler: "runsc" } });
    });

    test("leaves the choice to the backend when the class's handler has no name", async () => {
      kube.put(CLASS, { handler: "" });
      const rendered = await offering([{ name: "" }, { name: "runsc" }]).render(pod, done.signal);
      expect(rendered).toMatchObject({ kind: "ready", spec: expect.not.objectContaining({ runtime_handler: "" }) });
    });

    test("waits when the handler has no user namespaces and the pod wants one", async () => {
      kube.put(CLASS, { handler: "runsc" });
      const alone = podWith({ runtimeClassName: "gvisor", hostUsers: false });
      expect(await offering([{ name: "runsc" }]).render(alone, done.signal)).toMatchObject({
        kind: "wait",
        events: [
          {
            reason: "FailedCreatePodSandBox",
            message: expect.stringContaining('RuntimeClass handler "runsc" does not support user namespaces'),
          },
        ],
      });
      const able = offering([{ name: "runsc", user_namespaces: true }]);
      expect(await able.render(alone, done.signal)).toMatchObject({ kind: "ready" });
    });
  });

  test("adds credentials of plugins to those of the pod's secrets", async () => {
    const imageCredentials = {
      concerns: () => true,
      forPod: async () => [{ registry: "r", username: "u", password: "p" }],
    };
    expect(await renderer({ imageCredentials }).render(podWith(), done.signal)).toMatchObject({
      spec: { registry_auth: [{ registry: "r" }] },
    });
  });

  describe("for a machine that runs", () => {
    test("brings new files when the configMap changes, and nothing when it does not", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer();
      const rendered = await subject.render(mounting(), done.signal);
      const volume = rendered.kind === "ready" ? rendered.spec.volumes?.[0] : undefined;
      const machine = machineWith({
        file_versions: [{ volume: "v", version: volume?.type === "files" ? volume.version : "" }],
      });
      expect((await subject.diff(mounting(), machine, done.signal)).patch).toBeUndefined();

      const before = subject.version(mounting(), machineWith({}));
      await settle();
      kube.put(CONFIG, { data: { k: "new" } });
      await settle();
      expect(subject.version(mounting(), machineWith({}))).not.toBe(before);
      expect((await subject.diff(mounting(), machine, done.signal)).patch?.files).toHaveLength(1);
    });

    test("says what an ephemeral container lacks, until the machine has one of its name", async () => {
      const pod = podWith({ ephemeralContainers: [{ name: "debug", image: "busybox", tty: true }] });
      const subject = renderer({}, ["tty"]);
      const result = await subject.diff(pod, machineWith({}), done.signal);
      expect(result.patch).toBeUndefined();
      expect(result.events.map(({ reason, fieldPath }) => [reason, fieldPath])).toEqual([
        ["UnsupportedFeature", "spec.ephemeralContainers{debug}"],
      ]);
      expect(result.waiting?.get("debug")?.reason).toBe("UnsupportedFeature");

      const debug: Machine["containers"][number] = {
        name: "debug",
        kind: "ephemeral",
        state: "running",
        ready: true,
        started: true,
        restart_count: 0,
        image: "busybox",
        image_id: "",
      };
      const later = await subject.diff(pod, machineWith({ containers: [debug] }), done.signal);
      expect([later.events, later.waiting]).toEqual([[], undefined]);
    });

    test("keeps files that cannot be rendered any more, and says so", async () => {
      const result = await renderer().diff(
        mounting(),
        machineWith({ file_versions: [{ volume: "v", version: "1" }] }),
        done.signal,
      );
      expect(result.patch).toBeUndefined();
      expect(result.events.map(({ reason }) => reason)).toEqual(["FailedMount"]);
    });

    test("has a new version with each generation of the pod", () => {
      const subject = renderer();
      expect(subject.version(mounting({ generation: 1 }), machineWith({}))).not.toBe(
        subject.version(mounting({ generation: 2 }), machineWith({})),
      );
    });

    test("has a new version when a label changes that a file shows", () => {
      const pod = podWithContainer(
        { volumeMounts: [{ name: "v", mountPath: "/v" }] },
        {
          volumes: [{ name: "v", downwardAPI: { items: [{ path: "l", fieldRef: { fieldPath: "metadata.labels" } }] } }],
        },
      );
      const relabelled = { ...pod, metadata: { ...pod.metadata, labels: { a: "1" } } };
      expect(renderer().version(pod, machineWith({}))).not.toBe(renderer().version(relabelled, machineWith({})));
    });
  });

  describe("the version of what was rendered", () => {
    const renderedBy = async (subject: PodRenderer, pod = mounting()) => {
      const rendered = await subject.render(pod, done.signal);
      if (rendered.kind !== "ready") throw new Error("was not rendered");
      const volume = rendered.spec.volumes?.[0];
      return { version: rendered.version, files: volume?.type === "files" ? volume.version : "" };
    };

    test("is the present one while nothing changes, whether the files are in place yet or not", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer();
      const { version, files } = await renderedBy(subject);
      expect(subject.version(mounting(), machineWith({}))).toBe(version);
      expect(subject.version(mounting(), machineWith({ file_versions: [{ volume: "v", version: files }] }))).toBe(
        version,
      );
    });

    test("is an older one when a configMap changed after it was read", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer();
      const { version } = await renderedBy(subject);
      await settle();
      kube.put(CONFIG, { data: { k: "new" } });
      await settle();
      expect(subject.version(mounting(), machineWith({}))).not.toBe(version);
    });

    test("is not that of a machine that says that it has other files, as one has that an earlier create made", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer();
      const { version } = await renderedBy(subject);
      const old = machineWith({ file_versions: [{ volume: "v", version: "of an earlier create" }] });
      expect(subject.version(mounting(), old)).not.toBe(version);
      const difference = await subject.diff(mounting(), old, done.signal);
      expect(difference.patch?.files).toHaveLength(1);
      // Until the backend has them in place there is nothing more to be done.
      expect(subject.version(mounting(), old)).toBe(difference.version);
    });

    test("is that of a machine with other files where the backend cannot change them", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer({}, ["patch_files"]);
      const { version } = await renderedBy(subject);
      expect(subject.version(mounting(), machineWith({ file_versions: [{ volume: "v", version: "other" }] }))).toBe(
        version,
      );
    });

    test.each([
      ["is not that of a machine into which an older image came back", [], false],
      ["is that of a machine with another image where the backend cannot change it", ["patch_image"], true],
    ] as const)("%s", async (_what, lacking, isSame) => {
      kube.put(CONFIG, { data: { k: "v" } });
      const subject = renderer({}, [...lacking]);
      const { version } = await renderedBy(subject);
      const { name } = mounting().spec!.containers[0]!;
      const withImage = (image: string) =>
        machineWith({
          containers: [
            { name, kind: "main", state: "running", ready: true, started: true, restart_count: 0, image, image_id: "" },
          ],
        });
      expect(subject.version(mounting(), withImage("older:1")) === version).toBe(isSame);
      expect(subject.version(mounting(), withImage(mounting().spec!.containers[0]!.image ?? ""))).toBe(version);
    });

    test("is not that of a machine that has other credentials than it was to be given", async () => {
      const pod = podWith({ imagePullSecrets: [{ name: "pull" }] });
      const auths = { r: { username: "u", password: "p" } };
      kube.put("/api/v1/namespaces/shop/secrets/pull", {
        type: "kubernetes.io/dockerconfigjson",
        data: { ".dockerconfigjson": Buffer.from(JSON.stringify({ auths })).toString("base64") },
      });
      const subject = renderer();
      const rendered = await subject.render(pod, done.signal);
      if (rendered.kind !== "ready") throw new Error("was not rendered");
      const { registry_auth_version } = rendered.spec;
      expect(subject.version(pod, machineWith({ registry_auth_version: registry_auth_version! }))).toBe(
        rendered.version,
      );
      expect(subject.version(pod, machineWith({ registry_auth_version: "old" }))).not.toBe(rendered.version);
    });

    test("of a difference is that of what it holds, though a configMap changes while something else is read", async () => {
      kube.put(CONFIG, { data: { k: "v" } });
      const token = { serviceAccountToken: { path: "t", expirationSeconds: 600 } };
      const pod = podWithContainer(
        { volumeMounts: [{ name: "v", mountPath: "/v" }] },
        { volumes: [{ name: "v", projected: { sources: [{ configMap: { name: "c" } }, token] } }] },
      );
      let answer: (() => void) | undefined;
      kube.intercept = ({ path, method }) => {
        if (method !== "POST" || !path.endsWith("/token")) return undefined;
        const status = { token: "t", expirationTimestamp: "2026-01-01T00:10:00Z" };
        return new Promise((resolve) => (answer = () => resolve({ status })));
      };
      const subject = renderer();
      const diffing = subject.diff(pod, machineWith({}), done.signal);
      await settle();
      kube.put(CONFIG, { data: { k: "new" } });
      await settle();
      answer!();
      const { patch, version } = await diffing;
      const files = patch!.files![0]!.files.map(({ content_b64 }) => Buffer.from(content_b64, "base64").toString());
      expect({ files, isApplied: subject.version(pod, machineWith({})) === version }).toEqual({
        files: ["new", "t"],
        isApplied: true,
      });
    });
  });

  test("a token that is over and cannot be replaced is told, and the machine keeps its files", async () => {
    const token = { serviceAccountToken: { path: "t", expirationSeconds: 600 } };
    const pod = podWithContainer(
      { volumeMounts: [{ name: "v", mountPath: "/v" }] },
      { volumes: [{ name: "v", projected: { sources: [token] } }] },
    );
    kube.intercept = ({ method, path }) =>
      method === "POST" && path.endsWith("/token")
        ? { status: { token: "t", expirationTimestamp: new Date(clock.now() + 600_000).toISOString() } }
        : undefined;
    const subject = renderer();
    const rendered = await subject.render(pod, done.signal);
    if (rendered.kind !== "ready") return expect.fail("was not rendered");
    const [volume] = rendered.spec.volumes ?? [];
    if (volume?.type !== "files") return expect.fail("has no files");
    const machine = machineWith({ file_versions: [{ volume: "v", version: volume.version }] });
    const applied = subject.version(pod, machine);
    kube.intercept = ({ method }) => {
      if (method === "POST") throw failure(403, "Forbidden");
    };
    await clock.advance(660_000);
    expect(changed).toContain("0a1b");
    expect(subject.version(pod, machine)).not.toBe(applied);
    expect(await subject.diff(pod, machine, done.signal)).toMatchObject({
      patch: undefined,
      events: [
        {
          type: "Warning",
          reason: "FailedMount",
          message:
            'MountVolume.SetUp failed for volume "v" : failed to fetch token: token expired and refresh failed: the server said 403',
        },
      ],
    });
  });

  describe("registry credentials of a machine that runs", () => {
    const SECRET = "/api/v1/namespaces/shop/secrets/pull";
    const pulling = podWith({ imagePullSecrets: [{ name: "pull" }] });
    const pullSecret = (password: string) => ({
      type: "kubernetes.io/dockerconfigjson",
      data: {
        ".dockerconfigjson": Buffer.from(JSON.stringify({ auths: { r: { username: "u", password } } })).toString(
          "base64",
        ),
      },
    });
    const created = async (subject: PodRenderer) => {
      const rendered = await subject.render(pulling, done.signal);
      return rendered.kind === "ready" ? rendered.spec : expect.fail("was not rendered");
    };

    test("are sent again when the backend has lost them, and only then", async () => {
      kube.put(SECRET, pullSecret("p"));
      const subject = renderer();
      const { registry_auth, registry_auth_version } = await created(subject);
      const holds = machineWith({ registry_auth_version: registry_auth_version! });
      expect((await subject.diff(pulling, holds, done.signal)).patch).toBeUndefined();
      const lost = machineWith({});
      expect(subject.version(pulling, lost)).not.toBe(subject.version(pulling, holds));
      expect((await subject.diff(pulling, lost, done.signal)).patch).toEqual({ registry_auth, registry_auth_version });
    });

    test("follow the secret", async () => {
      kube.put(SECRET, pullSecret("old"));
      const subject = renderer();
      const machine = machineWith({ registry_auth_version: (await created(subject)).registry_auth_version! });
      await settle();
      kube.put(SECRET, pullSecret("new"));
      await settle();
      expect((await subject.diff(pulling, machine, done.signal)).patch?.registry_auth).toEqual([
        { registry: "r", username: "u", password: "new" },
      ]);
    });

    test("stay when the secret cannot be read just now", async () => {
      kube.intercept = (request) => {
        if (isAbout(request, "pull")) throw new Error("connection refused");
        return undefined;
      };
      const holds = machineWith({ registry_auth_version: "pull@7" });
      expect((await renderer().diff(pulling, holds, done.signal)).patch).toBeUndefined();
    });

    test("follow the other secrets when one could never be read", async () => {
      kube.put(SECRET, pullSecret("p"));
      kube.intercept = (request) => {
        if (isAbout(request, "forbidden")) throw failure(403, "Forbidden");
        return undefined;
      };
      const pod = podWith({ imagePullSecrets: [{ name: "pull" }, { name: "forbidden" }] });
      const holds = machineWith({ registry_auth_version: "pull@7,forbidden@unknown" });
      expect((await renderer().diff(pod, holds, done.signal)).patch?.registry_auth).toHaveLength(1);
    });

    test("of plugins are asked for anew when a pull has failed, once per failure", async () => {
      let asked = 0;
      const imageCredentials = {
        concerns: () => true,
        forPod: async () => [{ registry: "r", username: "u", password: `p${++asked}` }],
      };
      const subject = renderer({ imageCredentials });
      const state = {
        name: "app",
        kind: "main",
        ready: false,
        started: false,
        restart_count: 0,
        image: "i",
        image_id: "",
      } as const;
      const machine = (reason: string) =>
        machineWith({ registry_auth_version: "plugins", containers: [{ ...state, state: "waiting", reason }] });
      const diff = async (reason: string) => (await subject.diff(podWith(), machine(reason), done.signal)).patch;
      expect((await diff("ErrImagePull"))?.registry_auth).toEqual([{ registry: "r", username: "u", password: "p1" }]);
      expect((await diff("ImagePullBackOff"))?.registry_auth).toBeUndefined();
      expect(subject.version(podWith(), machine("ErrImagePull"))).not.toBe(
        subject.version(podWith(), machine("ImagePullBackOff")),
      );
    });

    test("stay what they were on a backend that cannot be given others", async () => {
      kube.put(SECRET, pullSecret("p"));
      const result = await renderer({}, ["patch_registry_auth"]).diff(pulling, machineWith({}), done.signal);
      expect(result.patch).toBeUndefined();
    });
  });

  describe("of what a pod keeps secret", () => {
    const pod = podWith({ imagePullSecrets: [{ name: "pull" }] });
    const said = machineWith({ state: "failed", message: "401 for robot:registry-password" });

    beforeEach(() => {
      const auths = { "r.example": { auth: Buffer.from("robot:registry-password").toString("base64") } };
      const config = Buffer.from(JSON.stringify({ auths })).toString("base64");
      kube.put("/api/v1/namespaces/shop/secrets/pull", {
        type: "kubernetes.io/dockerconfigjson",
        data: { ".dockerconfigjson": config },
      });
    });

    test("knows when it has rendered it", async () => {
      const subject = renderer();
      await subject.render(pod, done.signal);
      expect(subject.mustLearn(pod, said)).toBe(false);
      expect(subject.withoutSecrets(pod, said).message).toBe("401 for robot:[redacted]");
      expect(subject.redact("0a1b", "registry-password")).toBe("[redacted]");
    });

    test("learns when it has not, and watches nothing of a pod that is over", async () => {
      const subject = renderer();
      const over: Pod = { ...pod, status: { phase: "Failed" } };
      expect(subject.mustLearn(over, machineWith({}))).toBe(false);
      expect(subject.mustLearn(over, said)).toBe(true);
      await subject.learn(over, done.signal);
      await settle();
      expect(subject.mustLearn(over, said)).toBe(false);
      expect(subject.withoutSecrets(over, said).message).toBe("401 for robot:[redacted]");
      expect(kube.watches).toBe(1);
    });

    test("keeps it while the pod is over, and forgets it when it is gone", async () => {
      const subject = renderer();
      await subject.render(pod, done.signal);
      subject.rest("0a1b");
      expect(subject.withoutSecrets(pod, said).message).toBe("401 for robot:[redacted]");
      subject.release("0a1b");
      expect(subject.mustLearn(pod, said)).toBe(true);
    });
  });

  test("lets go of everything of a pod that is over", async () => {
    kube.put(CONFIG, { data: {} });
    const subject = renderer();
    await subject.render(mounting(), done.signal);
    await settle();
    expect(kube.watches).toBe(2);
    subject.release("0a1b");
    await settle();
    // The watch of services remains.
    expect(kube.watches).toBe(1);
  });
});
