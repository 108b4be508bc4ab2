/** The examples on a cluster with a real node of two CPUs beside two virtual ones; statefulset.yaml in volumes.test.ts. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hostAddress, startBackend } from "./harness/agent.ts";
import type { Json } from "./harness/client.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { freePorts } from "./harness/ports.ts";
import { must, waitFor } from "./harness/wait.ts";

const examples = join(import.meta.dirname, "../../examples");
const program = join(import.meta.dirname, "../../src/cli/main.ts");

let cluster: Cluster;
let kubectl: Kubectl;

beforeAll(async () => {
  cluster = await startCluster();
  kubectl = await createKubectl(cluster.adminKubeconfig);
  const backend = await startBackend({ sandbox: cluster.sandbox });
  const [health, ...ports] = await freePorts(4);
  const node = (name: string, port: number, more: Json) => ({
    name,
    provider: backend.provider,
    addresses: [hostAddress()],
    kubelet: { port, certificate: "self-signed" },
    ...more,
  });
  const virtual = { capacity: { cpu: "64", memory: "64Gi", pods: "200" }, podDeletionCost: true };
  const config = join(cluster.sandbox.dir, "agent.yaml");
  await writeFile(
    config,
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "AgentConfig",
      clusterId: "examples",
      kubeconfig: cluster.adminKubeconfig,
      identity: { mode: "impersonate" },
      health: { port: health },
      nodes: [
        // To everybody but its agent it is a real node: another type, no taint, not much room.
        node("real", ports[0]!, {
          labels: { type: "host" },
          taints: [],
          capacity: { cpu: "2", memory: "8Gi", pods: "50" },
        }),
        node("virtual", ports[1]!, virtual),
        node("virtual-soft", ports[2]!, {
          ...virtual,
          taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "PreferNoSchedule" }],
        }),
      ],
    }),
  );
  cluster.sandbox.spawn("agent", process.execPath, [program, "run", "--config", config]);
  await kubectl.run(["version"]);
  await waitFor({ what: "three nodes to be Ready", timeoutMs: 60_000 }, async () => {
    const { items } = await cluster.admin.get("/api/v1/nodes");
    const ready = items.filter((each: Json) =>
      each.status.conditions?.some((c: Json) => c.type === "Ready" && c.status === "True"),
    );
    must(
      ready.length === 3,
      items.map((each: Json) => each.metadata.name),
    );
  });
}, 1_200_000);
afterAll(() => cluster?.stop());

/** Applies an example, and removes it with all its pods when `look` has seen what it wanted. */
async function withExample(file: string, look: () => Promise<void>): Promise<void> {
  const path = join(examples, file);
  await kubectl.run(["apply", "--filename", path]);
  try {
    await look();
  } finally {
    await kubectl.run(["delete", "--filename", path, "--cascade=foreground", "--timeout=90s"]);
    await waitFor({ what: `the pods of ${file} to be gone`, timeoutMs: 90_000 }, async () => {
      const { items } = await cluster.admin.get("/api/v1/namespaces/default/pods");
      must(
        items.length === 0,
        items.map((pod: Json) => pod.metadata.name),
      );
    });
  }
}

async function runningPods(app: string, count: number): Promise<Json[]> {
  return waitFor({ what: `${count} pods of ${app} to run`, timeoutMs: 90_000 }, async () => {
    const { items } = await cluster.admin.get(`/api/v1/namespaces/default/pods?labelSelector=app%3D${app}`);
    must(
      items.length === count && items.every((pod: Json) => pod.status.phase === "Running"),
      items.map((pod: Json) => [pod.metadata.name, pod.status]),
    );
    return items;
  });
}

const nodesOf = (pods: Json[]) => pods.map((pod) => pod.spec.nodeName as string).toSorted();
const isVirtual = (name: string) => name.startsWith("virtual");

describe("examples", () => {
  test("hard.yaml runs on virtual nodes only", () =>
    withExample("hard.yaml", async () => {
      expect(nodesOf(await runningPods("hard", 3)).every(isVirtual)).toBe(true);
    }));

  test("overflow.yaml fills the real node first, and scale-in empties the virtual ones first", () =>
    withExample("overflow.yaml", async () => {
      const nodes = nodesOf(await runningPods("overflow", 6));
      expect(nodes.filter((name) => name === "real")).toHaveLength(4);
      expect(nodes.filter(isVirtual)).toHaveLength(2);
      await kubectl.run(["scale", "deployment/overflow", "--replicas=4"]);
      expect(nodesOf(await runningPods("overflow", 4))).toEqual(Array(4).fill("real"));
    }));

  test("prefer-no-schedule.yaml overflows to the node with the soft taint, without saying so", () =>
    withExample("prefer-no-schedule.yaml", async () => {
      const nodes = nodesOf(await runningPods("prefer-no-schedule", 6));
      expect(nodes).toEqual([...Array(4).fill("real"), ...Array(2).fill("virtual-soft")]);
    }));

  test("job-burst.yaml completes its tasks on virtual nodes", () =>
    withExample("job-burst.yaml", async () => {
      await waitFor({ what: "the Job to complete", timeoutMs: 120_000 }, async () => {
        const { status } = await cluster.admin.get("/apis/batch/v1/namespaces/default/jobs/job-burst");
        const { items } = await cluster.admin.get("/api/v1/namespaces/default/pods?labelSelector=app%3Djob-burst");
        must(status.succeeded === 20, [status, items.map((pod: Json) => pod.status)]);
      });
      const { items } = await cluster.admin.get("/api/v1/namespaces/default/pods?labelSelector=app%3Djob-burst");
      expect(items).toHaveLength(20);
      expect(nodesOf(items).every(isVirtual)).toBe(true);
    }));

  test("daemonset-exclusion.yaml leaves virtual nodes out", () =>
    withExample("daemonset-exclusion.yaml", async () => {
      expect(nodesOf(await runningPods("host-agent", 1))).toEqual(["real"]);
      const { status } = await cluster.admin.get("/apis/apps/v1/namespaces/default/daemonsets/host-agent");
      expect(status.desiredNumberScheduled).toBe(1);
    }));

  test("hpa.yaml finds the Deployment that it scales", () =>
    withExample("overflow.yaml", () =>
      withHpa(async () => {
        await waitFor({ what: "the autoscaler to look at its target", timeoutMs: 60_000 }, async () => {
          const { status } = await cluster.admin.get(
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/overflow",
          );
          must(
            status.conditions?.some((each: Json) => each.type === "AbleToScale" && each.status === "True"),
            status,
          );
        });
      }),
    ));

  test("burst.yaml's pods all succeed", () =>
    withExample("burst.yaml", async () => {
      await waitFor({ what: "ten pods to succeed", timeoutMs: 90_000 }, async () => {
        const { items } = await cluster.admin.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dburst");
        must(
          items.length === 10 && items.every((pod: Json) => pod.status.phase === "Succeeded"),
          items.map((pod: Json) => pod.status),
        );
      });
    }));
});

async function withHpa(look: () => Promise<void>): Promise<void> {
  await kubectl.run(["apply", "--filename", join(examples, "hpa.yaml")]);
  try {
    await look();
  } finally {
    await kubectl.run(["delete", "--filename", join(examples, "hpa.yaml")]);
  }
}
