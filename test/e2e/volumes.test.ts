/**
 * Persistent volumes from the claim to the machine: a real control plane, the CSI project's own sidecars and `vmlet csi`
 * with the arguments and rights of the chart, the agent with a kubelet's rights, and a backend that has volumes.
 */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CSI_DRIVER, csiNodeId, csiVolumeName } from "../../src/provider/csi-names.ts";
import { inject } from "./cases/environment.ts";
import { podSpec, Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { auditLog, type AuditLog } from "./harness/audit.ts";
import { HttpError, type Json } from "./harness/client.ts";
import { createKubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { keyOf, rightsOf } from "../unit/helm/rights.ts";
import { startVolumeDriver, type VolumeDriver } from "./volume-driver.ts";

const CLUSTER = "e2e";
const WAIT_MS = 120_000;
/** Says what earlier pods have written, and adds to it. */
const keeper = `echo "$UID_OF_POD" >> /data/log; echo "found $(cat /data/log | wc -l)"; ${serve}`;

const claimSpec = (more: Json = {}): Json => ({
  accessModes: ["ReadWriteOnce"],
  storageClassName: "vmlet",
  resources: { requests: { storage: "16Mi" } },
  ...more,
});

describe("persistent volumes", () => {
  let env: Awaited<ReturnType<typeof startRealEnvironment>>;
  let pods: Pods;

  let audit: AuditLog;
  let disks: VolumeDriver;

  beforeAll(async () => {
    audit = await auditLog();
    env = await startRealEnvironment({ cluster: { apiServerFlags: audit.flags } });
    disks = await startVolumeDriver({
      cluster: env.cluster,
      nodes: [{ name: env.nodeName, provider: env.backend.provider }],
      clusterId: CLUSTER,
      csi: {
        storageClasses: [
          { name: "vmlet", annotations: { "storageclass.kubernetes.io/is-default-class": "true" } },
          { name: "at-once", volumeBindingMode: "Immediate" },
          { name: "shared", parameters: { class: "shared" } },
        ],
      },
    });
    const { admin } = env.cluster;
    pods = new Pods(admin, "default", env.nodeName);
  }, 900_000);
  afterAll(() => env?.[Symbol.asyncDispose]());

  const claims = "/api/v1/namespaces/default/persistentvolumeclaims";
  const node = () => env.client.get(`/api/v1/nodes/${env.nodeName}`);
  const logOf = (name: string) => env.client.text(`${pods.path}/${name}/log`);
  const volumes = async (): Promise<Json[]> => (await env.backend.client.get("/v1/volumes")).items;
  /** The backend's volume behind a claim. */
  const volumeOf = async (claim: string): Promise<Json> => {
    const { spec } = await env.client.get(`${claims}/${claim}`);
    const volume = await env.client.get(`/api/v1/persistentvolumes/${spec.volumeName}`);
    return await env.backend.client.get(`/v1/volumes/${volume.spec.csi.volumeHandle}`);
  };
  const statefulSet = (name: string, replicas: number): Json => ({
    metadata: { name },
    spec: {
      replicas,
      serviceName: name,
      podManagementPolicy: "Parallel",
      selector: { matchLabels: { app: name } },
      template: {
        metadata: { labels: { app: name } },
        spec: podSpec(env.nodeName, {
          terminationGracePeriodSeconds: 5,
          containers: [
            shell("main", keeper, {
              env: [{ name: "UID_OF_POD", valueFrom: { fieldRef: { fieldPath: "metadata.uid" } } }],
              volumeMounts: [{ name: "data", mountPath: "/data" }],
            }),
          ],
        }),
      },
      volumeClaimTemplates: [{ metadata: { name: "data" }, spec: claimSpec() }],
    },
  });
  const untilFound = (name: string, count: number) =>
    waitFor({ what: `${name} to find ${count} lines`, timeoutMs: WAIT_MS }, async () =>
      must((await logOf(name)).includes(`found ${count}\n`), await logOf(name)),
    );
  const untilReady = (name: string) =>
    pods.until(name, "to be Ready", (pod) => pod.status.containerStatuses?.[0]?.ready === true, WAIT_MS);

  test("of a StatefulSet are made, attached, and found by the pods that come after", async () => {
    await env.client.create("/apis/apps/v1/namespaces/default/statefulsets", statefulSet("db", 2));
    for (const name of ["db-0", "db-1"]) await untilFound(name, 1);

    const volume = await volumeOf("data-db-0");
    const reservation = csiNodeId(CLUSTER, env.nodeName);
    expect(volume.reservations).toEqual([expect.objectContaining({ name: reservation })]);
    expect(volume.attachments).toEqual([expect.objectContaining({ reservation })]);
    expect((await node()).status.volumesInUse).toContain(csiVolumeName(CSI_DRIVER, volume.id));

    const before = await pods.get("db-0");
    await pods.delete("db-0");
    await pods.untilGone("db-0", before.metadata.uid, WAIT_MS);
    await untilFound("db-0", 2);
    await untilFound("db-1", 1);
  });

  test.each(["the agent", "the backend"] as const)(
    "are found again when %s is killed as a pod comes for one",
    async (fault) => {
      const before = await untilReady("db-1");
      const lines = Number(/found (\d+)/.exec(await logOf("db-1"))?.[1]);
      await pods.delete("db-1");
      await inject(env, fault);
      await pods.untilGone("db-1", before.metadata.uid, WAIT_MS);
      await untilReady("db-1");
      await untilFound("db-1", lines + 1);
      expect((await volumeOf("data-db-1")).attachments).toHaveLength(1);
    },
  );

  test("stay in use, by the Node's word, when the agent is killed and nothing else changes", async () => {
    const { id } = await volumeOf("data-db-0");
    await env.agent.restart("SIGKILL");
    const machine = (await volumeOf("data-db-0")).attachments[0].machine;
    await waitFor({ what: "the Node to be reported again", timeoutMs: WAIT_MS }, async () =>
      must(
        (await node()).status.conditions.some((each: Json) => each.type === "Ready" && each.status === "True"),
        "",
      ),
    );
    expect((await node()).status.volumesInUse).toContain(csiVolumeName(CSI_DRIVER, id));
    expect((await volumeOf("data-db-0")).attachments[0].machine).toBe(machine);
  });

  test("say what is used of them, by their claims, in the node's summary and metrics", async () => {
    const proxied = `/api/v1/nodes/${env.nodeName}/proxy`;
    await waitFor({ what: "the claim's usage in the node's metrics", timeoutMs: WAIT_MS }, async () => {
      const text = await env.client.text(`${proxied}/metrics`);
      must(
        /^kubelet_volume_stats_capacity_bytes\{namespace="default",persistentvolumeclaim="data-db-0"\} 16777216$/m.test(
          text,
        ),
        text.split("\n").filter((line) => line.startsWith("kubelet_volume")),
      );
    });
    const summary = await env.client.get(`${proxied}/stats/summary`);
    const { volume } = summary.pods.find(({ podRef }: Json) => podRef.name === "db-0");
    expect(volume).toContainEqual(
      expect.objectContaining({ name: "data", pvcRef: { name: "data-db-0", namespace: "default" } }),
    );
  });

  const untilMountFails = (pod: string, why: string) =>
    waitFor({ what: `pod ${pod} to say what it waits for`, timeoutMs: WAIT_MS }, async () => {
      const { items } = await env.client.get(
        `/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D${pod}`,
      );
      must(
        items.some((each: Json) => each.reason === "FailedMount" && each.message.includes(why)),
        items.map((each: Json) => each.message),
      );
    });

  test("that are not bound yet are waited for, and the pod says why and never fails", async () => {
    await pods.create("early", {
      nodeName: env.nodeName,
      containers: [shell("main", serve, { volumeMounts: [{ name: "data", mountPath: "/data" }] })],
      volumes: [{ name: "data", persistentVolumeClaim: { claimName: "late" } }],
    });
    await untilMountFails("early", '"late" not found');
    expect((await pods.get("early")).status.phase).toBe("Pending");
    await env.client.create(claims, { metadata: { name: "late" }, spec: claimSpec({ storageClassName: "at-once" }) });
    await untilReady("early");
    await pods.delete("early", 1);
    await env.client.delete(`${claims}/late`);
  });

  test("of a pod alone (ephemeral) come and go with it", async () => {
    const { metadata } = await pods.create("scratch", {
      containers: [shell("main", serve, { volumeMounts: [{ name: "data", mountPath: "/data" }] })],
      volumes: [{ name: "data", ephemeral: { volumeClaimTemplate: { spec: claimSpec() } } }],
    });
    await untilReady("scratch");
    const { id } = await volumeOf("scratch-data");
    await pods.delete("scratch", 1);
    await pods.untilGone("scratch", metadata.uid, WAIT_MS);
    await waitFor({ what: "its volume to be deleted", timeoutMs: WAIT_MS }, async () =>
      must(!(await volumes()).some((each) => each.id === id), await volumes()),
    );
  });

  const writer = (claim: string): Json => ({
    terminationGracePeriodSeconds: 1,
    containers: [
      shell("main", keeper, {
        env: [{ name: "UID_OF_POD", valueFrom: { fieldRef: { fieldPath: "metadata.uid" } } }],
        volumeMounts: [{ name: "data", mountPath: "/data" }],
      }),
    ],
    volumes: [{ name: "data", persistentVolumeClaim: { claimName: claim } }],
  });
  const snapshots = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
  const ask = (claim: string, size: string) =>
    env.client.patch(`${claims}/${claim}`, { spec: { resources: { requests: { storage: size } } } });
  /** Also that nothing of the growth is left to be done. */
  const untilGrown = (claim: string, size: string) =>
    waitFor({ what: `${claim} to have grown`, timeoutMs: WAIT_MS }, async () => {
      const { status } = await env.client.get(`${claims}/${claim}`);
      // From Kubernetes 1.37 on a claim says as well whether pods use it.
      const left = (status.conditions ?? []).filter(({ type }: Json) => type !== "Unused");
      must(status.capacity.storage === size && left.length === 0, status);
      must(status.allocatedResourceStatuses === undefined, status);
    });

  test("grow under a pod that runs on, file system and all", async () => {
    const before = await pods.get("db-0");
    await ask("data-db-0", "32Mi");
    await untilGrown("data-db-0", "32Mi");
    expect((await volumeOf("data-db-0")).size_bytes).toBe(32 * 2 ** 20);
    const after = await pods.get("db-0");
    expect([after.metadata.uid, after.status.containerStatuses[0].restartCount]).toEqual([before.metadata.uid, 0]);
  });

  test("grow while nobody has them", async () => {
    await env.client.create(claims, { metadata: { name: "idle" }, spec: claimSpec({ storageClassName: "at-once" }) });
    await waitFor({ what: "the claim to be bound", timeoutMs: WAIT_MS }, async () => {
      const { status } = await env.client.get(`${claims}/idle`);
      must(status.phase === "Bound", status);
    });
    await ask("idle", "48Mi");
    await untilGrown("idle", "48Mi");
    expect((await volumeOf("idle")).size_bytes).toBe(48 * 2 ** 20);
    await env.client.delete(`${claims}/idle`);
  });

  test("begin as a snapshot, or as a copy of another, with what was on that and nothing that came later", async () => {
    const source = "origin";
    /** A pod comes, writes its line, and goes: what a machine may write to is not copied. */
    const visit = async (lines: number) => {
      const { metadata } = await pods.create("visitor", writer(source));
      await untilFound("visitor", lines);
      await pods.delete("visitor", 1);
      await pods.untilGone("visitor", metadata.uid, WAIT_MS);
    };
    await env.client.create(claims, { metadata: { name: source }, spec: claimSpec() });
    await visit(1);
    await env.client.create(snapshots, {
      apiVersion: "snapshot.storage.k8s.io/v1",
      kind: "VolumeSnapshot",
      metadata: { name: "kept" },
      spec: { volumeSnapshotClassName: "vmlet", source: { persistentVolumeClaimName: source } },
    });
    await waitFor({ what: "the snapshot to be ready", timeoutMs: WAIT_MS }, async () => {
      const { status } = await env.client.get(`${snapshots}/kept`);
      must(status?.readyToUse === true, status);
    });
    await visit(2);
    const sources: Record<string, Json> = {
      restored: { apiGroup: "snapshot.storage.k8s.io", kind: "VolumeSnapshot", name: "kept" },
      cloned: { kind: "PersistentVolumeClaim", name: source },
    };
    for (const [name, dataSource] of Object.entries(sources)) {
      await env.client.create(claims, { metadata: { name }, spec: claimSpec({ dataSource }) });
      await pods.create(name, writer(name));
    }
    await untilFound("restored", 2);
    await untilFound("cloned", 3);
    for (const name of Object.keys(sources)) {
      await pods.delete(name, 1);
      await env.client.delete(`${claims}/${name}`);
    }
    await env.client.delete(`${claims}/${source}`);
    await env.client.delete(`${snapshots}/kept`);
  });

  test("for one pod alone (ReadWriteOncePod) keep a second one Pending until the first is gone", async () => {
    const spec = claimSpec({ accessModes: ["ReadWriteOncePod"] });
    await env.client.create(claims, { metadata: { name: "alone" }, spec });
    const first = await pods.create("first", writer("alone"));
    await untilFound("first", 1);
    const second = await pods.create("second", writer("alone"));
    await pods.until("second", "to be told why it waits", ({ status }) =>
      (status.conditions ?? []).some(
        (each: Json) => each.reason === "Unschedulable" && /ReadWriteOncePod/.test(each.message),
      ),
    );
    expect(await logOf("first")).toBe("found 1\n");
    await pods.delete("first", 1);
    await pods.untilGone("first", first.metadata.uid, WAIT_MS);
    await untilFound("second", 2);
    await pods.delete("second", 1);
    await pods.untilGone("second", second.metadata.uid, WAIT_MS);
    await env.client.delete(`${claims}/alone`);
  });

  test("for one pod alone are refused to a second one that names its node itself, also by an agent that has begun since", async () => {
    const spec = claimSpec({ accessModes: ["ReadWriteOncePod"] });
    await env.client.create(claims, { metadata: { name: "own" }, spec });
    const first = await pods.create("owner", writer("own"));
    await untilFound("owner", 1);
    await env.agent.restart("SIGKILL");
    const second = await pods.create("intruder", { ...writer("own"), nodeName: env.nodeName });
    await untilMountFails(
      "intruder",
      "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
    );
    expect((await pods.get("intruder")).status.phase).toBe("Pending");
    await pods.delete("owner", 1);
    await pods.untilGone("owner", first.metadata.uid, WAIT_MS);
    await untilFound("intruder", 2);
    await pods.delete("intruder", 1);
    await pods.untilGone("intruder", second.metadata.uid, WAIT_MS);
    await env.client.delete(`${claims}/own`);
  });

  test("that several pods may write to are had by all of them at once", async () => {
    const spec = claimSpec({ storageClassName: "shared", accessModes: ["ReadWriteMany"] });
    await env.client.create(claims, { metadata: { name: "common" }, spec });
    for (const [index, name] of ["one", "two"].entries()) {
      await pods.create(name, writer("common"));
      await untilFound(name, index + 1);
    }
    const { attachments } = await volumeOf("common");
    expect(new Set(attachments.map(({ machine }: Json) => machine)).size).toBe(2);
    for (const name of ["one", "two"]) await pods.delete(name, 1);
    await env.client.delete(`${claims}/common`);
  });

  test("are taken from a node that is tainted as out of service, when its machine is over and not before", async () => {
    await env.client.create(claims, { metadata: { name: "stranded" }, spec: claimSpec() });
    await pods.create("stranded", writer("stranded"));
    await untilFound("stranded", 1);
    const { id, attachments } = await volumeOf("stranded");
    const [{ machine }] = attachments;
    const { spec } = await env.client.get(`${claims}/stranded`);
    const nodePath = `/api/v1/nodes/${env.nodeName}`;
    const setTaints = (taints: Json[]) => env.cluster.admin.patch(nodePath, { spec: { taints } });
    const { taints = [] } = (await node()).spec;
    await env.agent.kill("SIGKILL");
    await env.client.delete(`${pods.path}/stranded?gracePeriodSeconds=0`);
    const running = await env.backend.client.get(`/v1/machines/${machine}`);
    expect(running.state, "nobody has stopped the machine").toBe("running");
    await setTaints([
      ...taints,
      { key: "node.kubernetes.io/out-of-service", value: "nodeshutdown", effect: "NoExecute" },
    ]);
    await waitFor({ what: "the volume to be detached", timeoutMs: WAIT_MS }, async () => {
      const { items } = await env.client.get("/apis/storage.k8s.io/v1/volumeattachments");
      const left = items.filter((each: Json) => each.spec.source.persistentVolumeName === spec.volumeName);
      must(left.length === 0, left);
    });
    expect((await env.backend.client.get(`/v1/machines/${machine}`)).state).toBe("stopped");
    expect(await env.backend.client.get(`/v1/volumes/${id}`)).toMatchObject({ attachments: [], reservations: [] });
    await setTaints(taints);
    await env.agent.start();
    await pods.create("after", writer("stranded"));
    await untilFound("after", 2);
    await pods.delete("after", 1);
    await env.client.delete(`${claims}/stranded`);
  });

  test("are released before the VolumeAttachment goes, and deleted with their claims", async () => {
    const kept = await volumeOf("data-db-0");
    await env.client.delete("/apis/apps/v1/namespaces/default/statefulsets/db");
    await waitFor({ what: "the volumes to be detached", timeoutMs: WAIT_MS }, async () => {
      const { items } = await env.client.get("/apis/storage.k8s.io/v1/volumeattachments");
      must(items.length === 0, items);
    });
    // Nobody had to be told again: who has it, the backend says.
    const detached = await env.backend.client.get(`/v1/volumes/${kept.id}`);
    expect([detached.reservations, detached.attachments]).toEqual([[], []]);
    expect((await node()).status.volumesInUse ?? []).toEqual([]);
    for (const name of ["data-db-0", "data-db-1"])
      await env.client.delete(`${claims}/${name}`).catch((thrown: unknown) => {
        if (!(thrown instanceof HttpError && thrown.status === 404)) throw thrown;
      });
    await waitFor({ what: "the volumes to be deleted", timeoutMs: WAIT_MS }, async () =>
      must((await volumes()).length === 0, await volumes()),
    );
  });

  test("come with examples/statefulset.yaml, and stay with the names of its pods", async () => {
    const kubectl = await createKubectl(env.cluster.adminKubeconfig);
    const example = ["--filename", join(import.meta.dirname, "../../examples/statefulset.yaml")];
    await kubectl.run(["apply", ...example]);
    for (const name of ["stateful-0", "stateful-1", "stateful-2"]) await untilReady(name);
    await kubectl.run(["delete", "pod", "stateful-1"]);
    await untilReady("stateful-1");
    expect(await logOf("stateful-1")).toContain("start number 2\n");
    await kubectl.run(["delete", ...example, "--cascade=foreground"]);
    // As its first lines say.
    await kubectl.run(["delete", "pvc", "--selector=app=stateful"]);
    await waitFor({ what: "the volumes to be deleted", timeoutMs: WAIT_MS }, async () =>
      must((await volumes()).length === 0, await volumes()),
    );
  });

  describe("the ServiceAccount of driver and sidecars", () => {
    const user = () => `system:serviceaccount:${disks.chart.namespace}:${disks.account}`;
    const asked = async () => (await audit.events()).filter((event) => event.user.username === user());

    test("was refused nothing", async () => {
      const refused = (await asked()).filter(
        ({ annotations }) => annotations?.["authorization.k8s.io/decision"] === "forbid",
      );
      expect(refused.map(({ verb, requestURI }) => `${verb} ${requestURI}`)).toEqual([]);
    });

    test("has used every right that it has", async () => {
      const used = new Set(
        (await asked())
          .filter(({ objectRef }) => objectRef?.resource !== undefined)
          .flatMap(({ verb, objectRef: { apiGroup: group = "", resource, subresource, name } }) =>
            [name, undefined].map((each) =>
              keyOf({ verb, group, resource: subresource ? `${resource}/${subresource}` : resource, name: each }),
            ),
          ),
      );
      // This backend has no zone, so nobody asks where nodes are; only where lists are not streamed is one asked for; and
      // an event is patched when it comes again.
      const unused = rightsOf(disks.chart.objects, disks.account)
        .filter(({ resource, verb }) => resource !== "nodes" && !(resource === "events" && verb === "patch"))
        .map((right) => keyOf({ ...right, verb: right.verb === "list" ? "watch" : right.verb }))
        .filter((key) => !used.has(key));
      expect(unused).toEqual([]);
    });
  });
});
