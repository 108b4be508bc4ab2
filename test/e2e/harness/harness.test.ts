/** The harness held to its word before anything is built on it: no agent takes part. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startCluster, type Cluster } from "./cluster.ts";
import { helmBinary } from "./binaries.ts";
import { controlPlaneVersion } from "./build.ts";
import { createClient, HttpError } from "./client.ts";
import { runCommand } from "./exec.ts";
import { createKubectl } from "./kubectl.ts";
import { must, waitFor } from "./wait.ts";

describe("the control plane of the tests", () => {
  let cluster: Cluster;
  beforeAll(async () => {
    cluster = await startCluster();
  }, 900_000);
  afterAll(() => cluster?.stop());

  test("answers kubectl with the version that it was built from", async () => {
    const kubectl = await createKubectl(cluster.adminKubeconfig);
    const version = JSON.parse(await kubectl.run(["version", "-o", "json"])) as {
      serverVersion: { gitVersion: string };
    };
    expect(version.serverVersion.gitVersion).toBe(`v${controlPlaneVersion()}`);
  });

  test("answers an old kubectl and helm", async () => {
    const old = await createKubectl(cluster.adminKubeconfig, "old");
    expect(await old.run(["get", "namespaces", "-o", "name"])).toContain("namespace/default");
    const { stdout } = await runCommand(await helmBinary(), [
      "list",
      "--kubeconfig",
      cluster.adminKubeconfig,
      "-o",
      "json",
    ]);
    expect(JSON.parse(stdout)).toEqual([]);
  });

  test("schedules a pod to a Node made by hand", async () => {
    await cluster.admin.create("/api/v1/nodes", {
      metadata: { name: "by-hand", labels: { made: "by-hand" } },
      status: {
        allocatable: { cpu: "4", memory: "8Gi", pods: "10" },
        capacity: { cpu: "4", memory: "8Gi", pods: "10" },
      },
    });
    const ready = [{ type: "Ready", status: "True", reason: "Test", lastHeartbeatTime: new Date().toISOString() }];
    await cluster.admin.patch("/api/v1/nodes/by-hand/status", { status: { conditions: ready } });
    await cluster.admin.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "placed" },
      spec: {
        nodeSelector: { made: "by-hand" },
        tolerations: [{ operator: "Exists" }],
        containers: [{ name: "main", image: "none" }],
      },
    });
    const bound = await waitFor({ what: "the scheduler to bind the pod" }, async () => {
      const pod = await cluster.admin.get("/api/v1/namespaces/default/pods/placed");
      must(pod.spec.nodeName !== undefined, pod.status);
      return pod;
    });
    expect(bound.spec.nodeName).toBe("by-hand");
  });

  test("lets a node identity write its own Node only", async () => {
    const node = await createClient(await cluster.userKubeconfig("system:node:mine", ["system:nodes"]));
    expect((await node.create("/api/v1/nodes", { metadata: { name: "mine" } })).metadata.name).toBe("mine");
    await expect(node.create("/api/v1/nodes", { metadata: { name: "other" } })).rejects.toMatchObject({ status: 403 });
    await expect(node.get("/api/v1/namespaces/kube-system/secrets")).rejects.toBeInstanceOf(HttpError);
    node.close();
  });

  test("gives a user without a role nothing", async () => {
    const nobody = await createClient(await cluster.userKubeconfig("nobody"));
    await expect(nobody.get("/api/v1/pods")).rejects.toMatchObject({ status: 403 });
    nobody.close();
  });

  test("keeps its objects when the API server is killed and started again", async () => {
    await cluster.admin.create("/api/v1/namespaces", { metadata: { name: "kept" } });
    await cluster.restartApiServer("SIGKILL");
    expect((await cluster.admin.get("/api/v1/namespaces/kept")).metadata.name).toBe("kept");
  });
});
