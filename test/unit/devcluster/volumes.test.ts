import { afterEach, describe, expect, test } from "vitest";
import { ControllerManager } from "../../../src/devcluster/controllers/index.ts";
import { createStorageClass, NamespaceLifecycle } from "../../../src/devcluster/controllers/namespaces.ts";
import type { VolumeDriver } from "../../../src/devcluster/controllers/volumes.ts";
import { mustFindKind } from "../../../src/devcluster/kinds/kinds.ts";
import { ObjectApi, type WriteContext } from "../../../src/devcluster/kinds/object-api.ts";
import type { Json } from "../../../src/devcluster/objects/object.ts";
import { Storage } from "../../../src/devcluster/objects/storage.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const DRIVER = "volumes.vmlet.dev";
const context: WriteContext = {
  user: { username: "admin", groups: ["system:masters"] },
  dryRun: false,
  fieldValidation: "Ignore",
  warnings: [],
};
const IN_USE = `kubernetes.io/csi/${DRIVER}^handle-of-`;

const ends: (() => void)[] = [];
afterEach(() => {
  for (const end of ends.splice(0)) end();
});

/** A cluster with one node, and a driver that notes what it is asked. */
async function setUp({
  fault,
  isKnown = true,
}: { fault?: (call: string) => Error | undefined; isKnown?: boolean } = {}) {
  const clock = new VirtualClock();
  const storage = new Storage({ logSize: undefined });
  const objects = new ObjectApi({ storage, clock, random: () => 0.5 });
  new NamespaceLifecycle({ objects, caBundle: "" }).start();
  const calls: string[] = [];
  const called = <T>(call: string, answer: T): Promise<T> => {
    calls.push(call);
    const error = fault?.(call);
    return error ? Promise.reject(error) : Promise.resolve(answer);
  };
  const driver: VolumeDriver = {
    name: DRIVER,
    create: ({ name, bytes }) => called(`create ${bytes}`, { handle: `handle-of-${name}`, bytes }),
    delete: (handle) => called(`delete ${handle}`, undefined),
    publish: (handle, nodeId) => called(`publish ${handle} ${nodeId}`, undefined),
    unpublish: (handle, nodeId) => called(`unpublish ${handle} ${nodeId}`, undefined),
    expand: (handle, bytes) => called(`expand ${handle} ${bytes}`, bytes),
  };
  createStorageClass(objects, DRIVER);
  const usage = { answer: () => Promise.resolve({ items: [] }) };
  const controllers = new ControllerManager({ objects, clock, logger: silentLogger, usage, volumeDriver: driver });
  controllers.start();
  ends.push(() => controllers.stop());
  const kindOf = (group: string, resource: string) => mustFindKind(group, "v1", resource);
  const create = (group: string, resource: string, body: Json) => {
    const kind = kindOf(group, resource);
    return objects.create(kind, kind.namespaced ? "default" : undefined, body, context);
  };
  create("", "nodes", { metadata: { name: "n0" } });
  const drivers = [{ name: DRIVER, nodeID: "id-of-n0" }];
  if (isKnown) create("storage.k8s.io", "csinodes", { metadata: { name: "n0" }, spec: { drivers } });
  const claimKind = kindOf("", "persistentvolumeclaims");
  const pass = async () => {
    for (let round = 0; round < 5; round++) await clock.advance(1);
  };
  await pass();
  return {
    storage,
    calls,
    pass,
    advance: (ms: number) => clock.advance(ms),
    claim: (name = "data", more: Json = {}) =>
      create("", "persistentvolumeclaims", {
        metadata: { name },
        spec: { accessModes: ["ReadWriteOnce"], resources: { requests: { storage: "1Mi" } }, ...more },
      }),
    grow: (storageSize: string) =>
      objects.patch(
        { kind: claimKind, namespace: "default", name: "data", subresource: undefined },
        "merge",
        { spec: { resources: { requests: { storage: storageSize } } } },
        context,
      ),
    deleteClaim: () => objects.delete(claimKind, "default", "data", {}, context),
    pod: (spec: Json = {}) =>
      create("", "pods", {
        metadata: { name: "p" },
        spec: {
          nodeName: "n0",
          containers: [{ name: "c", image: "i" }],
          volumes: [{ name: "v", persistentVolumeClaim: { claimName: "data" } }],
          ...spec,
        },
      }),
    endPod: () => storage.delete("/pods", "default/p"),
    /** What the node's agent says. */
    inUse: (...names: string[]) => {
      const node = storage.get("/nodes", "n0")!;
      storage.put("/nodes", "n0", { ...node, status: { ...node.status, volumesInUse: names } });
    },
    claimNow: () => storage.get("/persistentvolumeclaims", "default/data"),
    statefulSet: () =>
      create("apps", "statefulsets", {
        metadata: { name: "db" },
        spec: {
          serviceName: "db",
          selector: { matchLabels: { app: "db" } },
          template: {
            metadata: { labels: { app: "db" } },
            spec: { containers: [{ name: "c", image: "i", volumeMounts: [{ name: "data", mountPath: "/d" }] }] },
          },
          volumeClaimTemplates: [
            {
              metadata: { name: "data" },
              spec: { accessModes: ["ReadWriteOnce"], resources: { requests: { storage: "1Mi" } } },
            },
          ],
        },
      }),
    claimOf: (name: string) => storage.get("/persistentvolumeclaims", `default/${name}`),
    /** The node's agent has said by which id the driver knows it. */
    tellId: () => create("storage.k8s.io", "csinodes", { metadata: { name: "n0" }, spec: { drivers } }),
    attached: () => (storage.get("/nodes", "n0")?.status?.volumesAttached ?? []) as Json[],
    attachments: () => storage.list("storage.k8s.io/volumeattachments"),
    volumes: () => storage.list("/persistentvolumes"),
  };
}

describe("a claim", () => {
  test("that names no class gets a volume of the default one", async () => {
    const s = await setUp();
    const { metadata } = s.claim();
    await s.pass();
    expect(s.calls).toEqual(["create 1048576"]);
    expect(s.claimNow()).toMatchObject({
      spec: { storageClassName: "vmlet", volumeName: `pvc-${metadata.uid}` },
      status: { phase: "Bound", capacity: { storage: "1Mi" } },
    });
    expect(s.volumes()).toMatchObject([
      { spec: { csi: { driver: DRIVER }, claimRef: { uid: metadata.uid } }, status: { phase: "Bound" } },
    ]);
  });

  test("of another class is left alone", async () => {
    const s = await setUp();
    s.claim("data", { storageClassName: "other" });
    await s.pass();
    expect([s.calls, s.claimNow()?.status?.phase]).toEqual([[], "Pending"]);
  });

  test("whose volume cannot be made says why, and is tried again", async () => {
    let isFull = true;
    const s = await setUp({ fault: () => (isFull ? new Error("there is no room") : undefined) });
    s.claim();
    await s.pass();
    const events = s.storage.list("/events").map(({ reason, message }) => [reason, message]);
    expect(events).toContainEqual(["ProvisioningFailed", "there is no room"]);
    isFull = false;
    await s.advance(2_000);
    expect(s.claimNow()?.status?.phase).toBe("Bound");
  });

  test("grows, and says so", async () => {
    const s = await setUp();
    s.claim();
    await s.pass();
    s.grow("2Mi");
    await s.pass();
    expect(s.calls.at(-1)).toMatch(/^expand handle-of-.* 2097152$/);
    expect(s.claimNow()?.status?.capacity).toEqual({ storage: "2Mi" });
  });

  test("goes with its volume, but not while a pod uses it", async () => {
    const s = await setUp();
    s.claim();
    await s.pass();
    s.pod();
    await s.pass();
    s.deleteClaim();
    await s.pass();
    expect(s.claimNow()).toBeDefined();
    s.endPod();
    await s.advance(2_000);
    expect([s.claimNow(), s.volumes(), s.attachments()]).toEqual([undefined, [], []]);
    expect(s.calls.at(-1)).toMatch(/^delete handle-of-/);
  });
});

describe("a volume that a pod of a node wants", () => {
  const attachedTo = async () => {
    const s = await setUp();
    s.claim();
    await s.pass();
    s.pod();
    await s.pass();
    return s;
  };

  test("is attached to the node, by its id", async () => {
    const s = await attachedTo();
    expect(s.calls.at(-1)).toMatch(/^publish handle-of-.* id-of-n0$/);
    expect(s.attachments()).toMatchObject([{ spec: { nodeName: "n0" }, status: { attached: true } }]);
    expect(s.attached()).toMatchObject([{ name: expect.stringContaining(IN_USE) }]);
  });

  test("is attached as soon as the node's agent has said by which id the driver knows it", async () => {
    const s = await setUp({ isKnown: false });
    s.claim();
    await s.pass();
    s.pod();
    await s.pass();
    expect(s.attached()).toEqual([]);
    s.tellId();
    await s.pass();
    expect(s.attached()).toHaveLength(1);
  });

  test("is detached when no pod wants it, and the node says that it is not in use", async () => {
    const s = await attachedTo();
    s.inUse(s.attached()[0].name as string);
    s.endPod();
    await s.pass();
    // The node is told first, so that nothing begins to use it.
    expect(s.attached()).toEqual([]);
    expect(s.calls.filter((call) => call.startsWith("unpublish"))).toEqual([]);
    s.inUse();
    await s.pass();
    expect(s.calls.at(-1)).toMatch(/^unpublish handle-of-.* id-of-n0$/);
    expect(s.attachments()).toEqual([]);
  });
});

test("a pod's own volume gets a claim that is the pod's", async () => {
  const s = await setUp();
  const spec = { accessModes: ["ReadWriteOnce"], resources: { requests: { storage: "1Mi" } } };
  const pod = s.pod({ volumes: [{ name: "scratch", ephemeral: { volumeClaimTemplate: { spec } } }] });
  await s.pass();
  expect(s.storage.get("/persistentvolumeclaims", "default/p-scratch")).toMatchObject({
    metadata: { ownerReferences: [{ kind: "Pod", uid: pod.metadata.uid, controller: true }] },
    status: { phase: "Bound" },
  });
});

test("a StatefulSet's pods mount what its claims bring", async () => {
  const s = await setUp();
  s.statefulSet();
  await s.pass();
  expect(s.claimOf("data-db-0")).toMatchObject({ status: { phase: "Bound" } });
  expect(s.storage.get("/pods", "default/db-0")?.spec.volumes).toContainEqual({
    name: "data",
    persistentVolumeClaim: { claimName: "data-db-0" },
  });
});
