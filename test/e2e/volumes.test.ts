/**
 * Persistent volumes from the claim to the machine: a real control plane, the CSI project's own sidecars, `vmlet csi`, the
 * agent with a kubelet's rights, and a backend that has volumes.
 */
import { once } from "node:events";
import { connect } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CSI_DRIVER, csiNodeId } from "../../src/provider/csi-names.ts";
import { DISK_PREFIX } from "../../src/podspec/references/disks.ts";
import { inject } from "./cases/environment.ts";
import { podSpec, Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { buildCsiAttacher, buildCsiProvisioner } from "./harness/build.ts";
import { restartable } from "./harness/agent.ts";
import { HttpError, type Json } from "./harness/client.ts";
import { must, waitFor } from "./harness/wait.ts";

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

/** They end when they lose the driver, and a kubelet starts them again. */
const again = (program: string, args: readonly string[]) => [
  "-c",
  'while :; do "$@"; sleep 1; done',
  "sh",
  program,
  ...args,
];

async function answers(socket: string): Promise<void> {
  const connection = connect(socket);
  try {
    await once(connection, "connect");
  } finally {
    connection.destroy();
  }
}

describe("persistent volumes", () => {
  let env: Awaited<ReturnType<typeof startRealEnvironment>>;
  let pods: Pods;

  beforeAll(async () => {
    const [provisioner, attacher] = await Promise.all([buildCsiProvisioner(), buildCsiAttacher()]);
    env = await startRealEnvironment();
    const { sandbox, adminKubeconfig, admin } = env.cluster;
    const socket = join(sandbox.dir, "csi.sock");
    const { url, tokenFile } = env.backend.provider;
    const driver = ["csi", "--endpoint", `unix://${socket}`, "--backend", url, "--token-file", tokenFile];
    await restartable(sandbox, "csi", [...driver, "--cluster-id", CLUSTER], () => answers(socket)).start();
    const common = [`--csi-address=${socket}`, `--kubeconfig=${adminKubeconfig}`, "--timeout=30s"];
    sandbox.spawn("csi-provisioner", "/bin/sh", again(provisioner, [...common, "--extra-create-metadata"]));
    sandbox.spawn("csi-attacher", "/bin/sh", again(attacher, common));
    await admin.create("/apis/storage.k8s.io/v1/csidrivers", {
      metadata: { name: CSI_DRIVER },
      spec: {
        attachRequired: true,
        podInfoOnMount: false,
        fsGroupPolicy: "File",
        volumeLifecycleModes: ["Persistent"],
      },
    });
    await admin.create("/apis/storage.k8s.io/v1/storageclasses", {
      metadata: { name: "vmlet" },
      provisioner: CSI_DRIVER,
      volumeBindingMode: "WaitForFirstConsumer",
      allowVolumeExpansion: true,
    });
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
    expect((await node()).status.volumesInUse).toContain(DISK_PREFIX + volume.id);

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
    expect((await node()).status.volumesInUse).toContain(DISK_PREFIX + id);
    expect((await volumeOf("data-db-0")).attachments[0].machine).toBe(machine);
  });

  test("that are not bound yet are waited for, and the pod says why and never fails", async () => {
    await pods.create("early", {
      nodeName: env.nodeName,
      containers: [shell("main", serve, { volumeMounts: [{ name: "data", mountPath: "/data" }] })],
      volumes: [{ name: "data", persistentVolumeClaim: { claimName: "late" } }],
    });
    const events = `/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dearly`;
    await waitFor({ what: "the pod to say what it waits for", timeoutMs: WAIT_MS }, async () => {
      const { items } = await env.client.get(events);
      must(
        items.some((each: Json) => each.reason === "FailedMount" && each.message.includes('"late" not found')),
        items.map((each: Json) => each.message),
      );
    });
    expect((await pods.get("early")).status.phase).toBe("Pending");
    await env.client.create("/apis/storage.k8s.io/v1/storageclasses", {
      metadata: { name: "at-once" },
      provisioner: CSI_DRIVER,
    });
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
});
