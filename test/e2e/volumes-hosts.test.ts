/**
 * Persistent volumes of several hosts: each with a backend, a node and disks of its own. Where a volume is, its pods go; what
 * one host does is nothing to the volumes of the others.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ZONE_KEY } from "../../src/provider/csi-names.ts";
import { podSpec, serve, shell } from "./cases/pods.ts";
import { startAgent, startBackend, type AgentProcess, type BackendProcess } from "./harness/agent.ts";
import type { Json } from "./harness/client.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { must, waitFor } from "./harness/wait.ts";
import { startVolumeDriver } from "./volume-driver.ts";

const WAIT_MS = 120_000;
const HOSTS = ["host-a", "host-b"] as const;
type Host = (typeof HOSTS)[number];
/** Says what earlier pods have written, and adds to it. */
const keeper = `echo line >> /data/log; echo "found $(cat /data/log | wc -l)"; ${serve}`;

describe("persistent volumes of several hosts", () => {
  let cluster: Cluster;
  const backends = {} as Record<Host, BackendProcess>;
  const agents: AgentProcess[] = [];

  beforeAll(async () => {
    cluster = await startCluster();
    const { sandbox } = cluster;
    const kubeconfig = await cluster.userKubeconfig("vmlet-agents", ["system:masters"]);
    for (const name of HOSTS) {
      backends[name] = await startBackend({ sandbox, name: `backend-${name}`, config: { zone: name, hostName: name } });
      const { provider } = backends[name];
      agents.push(await startAgent({ sandbox, kubeconfig, nodeName: name, provider, node: {} }));
    }
    await startVolumeDriver({
      cluster,
      nodes: HOSTS.map((name) => ({ name, provider: backends[name].provider })),
      clusterId: "e2e",
      csi: {
        storageClasses: [{ name: "vmlet", annotations: { "storageclass.kubernetes.io/is-default-class": "true" } }],
      },
    });
  }, 900_000);
  afterAll(async () => {
    for (const agent of agents) await agent.stop();
    for (const backend of Object.values(backends)) await backend.stop();
    await cluster?.stop();
  });

  const claims = "/api/v1/namespaces/default/persistentvolumeclaims";
  const pods = "/api/v1/namespaces/default/pods";
  const volumesOf = async (host: Host): Promise<string[]> =>
    (await backends[host].client.get("/v1/volumes")).items.map(({ id }: Json) => id);
  const claim = (name: string, more: Json = {}) =>
    cluster.admin.create(claims, {
      metadata: { name },
      spec: { accessModes: ["ReadWriteOnce"], resources: { requests: { storage: "16Mi" } }, ...more },
    });
  /** @param host where it has to go; absent: where it may */
  const pod = (name: string, claimName: string, host?: Host) => {
    const { nodeSelector, ...spec } = podSpec(host ?? "", {
      // Not that a node is cordoned.
      tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists" }],
      terminationGracePeriodSeconds: 1,
      containers: [shell("main", keeper, { volumeMounts: [{ name: "data", mountPath: "/data" }] })],
      volumes: [{ name: "data", persistentVolumeClaim: { claimName } }],
    });
    return cluster.admin.create(pods, {
      metadata: { name },
      spec: host === undefined ? spec : { ...spec, nodeSelector },
    });
  };
  const untilFound = (name: string, lines: number) =>
    waitFor({ what: `${name} to find ${lines} lines`, timeoutMs: WAIT_MS }, async () => {
      const { status } = await cluster.admin.get(`${pods}/${name}`);
      must(status.phase === "Running", status);
      const text = await cluster.admin.text(`${pods}/${name}/log`);
      must(text === `found ${lines}\n`, text);
    });
  const removePod = async (name: string) => {
    await cluster.admin.delete(`${pods}/${name}`);
    await waitFor({ what: `${name} to be gone`, timeoutMs: WAIT_MS }, async () =>
      must(!(await cluster.admin.get(pods)).items.some(({ metadata }: Json) => metadata.name === name), name),
    );
  };
  const cordon = (host: Host, unschedulable: boolean) =>
    cluster.admin.patch(`/api/v1/nodes/${host}`, { spec: { unschedulable } });

  test("are made where their pod goes, and say where they are", async () => {
    for (const host of HOSTS) {
      await claim(`on-${host}`);
      await pod(`on-${host}`, `on-${host}`, host);
    }
    for (const host of HOSTS) {
      await untilFound(`on-${host}`, 1);
      const { spec } = await cluster.admin.get(`${claims}/on-${host}`);
      const volume = await cluster.admin.get(`/api/v1/persistentvolumes/${spec.volumeName}`);
      expect(volume.spec.nodeAffinity.required.nodeSelectorTerms).toEqual([
        { matchExpressions: [{ key: ZONE_KEY, operator: "In", values: [host] }] },
      ]);
      expect(await volumesOf(host)).toEqual([volume.spec.csi.volumeHandle]);
    }
  });

  test("keep their pods to their host, which wait for it where another has room", async () => {
    await removePod("on-host-a");
    await cordon("host-a", true);
    await pod("again", "on-host-a");
    await waitFor({ what: "the pod to be told why it waits", timeoutMs: WAIT_MS }, async () => {
      const { status } = await cluster.admin.get(`${pods}/again`);
      must(
        (status.conditions ?? []).some(
          ({ reason, message }: Json) =>
            reason === "Unschedulable" && /volume.*affinity|affinity.*volume/i.test(message),
        ),
        status,
      );
    });
    await cordon("host-a", false);
    await untilFound("again", 2);
  });

  test("are made, grown and deleted on one host while the backend of another is killed", async () => {
    await backends["host-a"].kill("SIGKILL");
    await claim("alone");
    await pod("alone", "alone", "host-b");
    await untilFound("alone", 1);
    await cluster.admin.patch(`${claims}/alone`, { spec: { resources: { requests: { storage: "32Mi" } } } });
    await waitFor({ what: "the claim to have grown", timeoutMs: WAIT_MS }, async () => {
      const { status } = await cluster.admin.get(`${claims}/alone`);
      must(status.capacity.storage === "32Mi", status);
    });
    await removePod("alone");
    await cluster.admin.delete(`${claims}/alone`);
    await waitFor({ what: "its volume to be deleted", timeoutMs: WAIT_MS }, async () =>
      must((await volumesOf("host-b")).length === 1, await volumesOf("host-b")),
    );
    await backends["host-a"].start();
    await removePod("again");
    await pod("after", "on-host-a");
    await untilFound("after", 3);
  });
});
