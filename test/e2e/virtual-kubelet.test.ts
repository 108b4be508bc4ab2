/**
 * virtual-kubelet's own end-to-end suite, unchanged, against vmlet. The Go binary runs once; each of its tests is reported
 * as a test of its own here, by name, so that one that is missing is noticed.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Environment } from "./cases/environment.ts";
import { serve } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { hostAddress } from "./harness/agent.ts";
import { buildVirtualKubeletSuite } from "./harness/build.ts";
import { tryCommand } from "./harness/exec.ts";

const names = [
  "TestCreatePodWithMandatoryInexistentConfigMap",
  "TestCreatePodWithMandatoryInexistentSecrets",
  "TestCreatePodWithOptionalInexistentConfigMap",
  "TestCreatePodWithOptionalInexistentSecrets",
  "TestGetMetricsResource",
  "TestGetPods",
  "TestGetStatsSummary",
  "TestPodLifecycleForceDelete",
  "TestPodLifecycleGracefulDelete",
];

describe("virtual-kubelet's own suite", () => {
  let env: Environment;
  let output = "";

  beforeAll(async () => {
    const suite = await buildVirtualKubeletSuite();
    const nodeName = "vmlet-vk-suite";
    const command = ["/bin/sh", "-c", serve];
    env = await startRealEnvironment({
      nodeName,
      images: { foo: command, bar: command, baz: command },
      // Two tests scrape `pods/https:NODE:10250/proxy`: the API server shows no credentials there, and the port is fixed.
      node: { taints: [], kubelet: { port: 10250, anonymousMetrics: true } },
    });
    await createPodInFrontOfKubelet(env);
    const result = await tryCommand(suite, [
      "-test.v",
      "-test.timeout=5m",
      `-kubeconfig=${env.kubeconfig}`,
      "-namespace=default",
      `-node-name=${nodeName}`,
    ]);
    output = `${result.stdout}${result.stderr}`;
  }, 1_800_000);
  afterAll(() => env?.[Symbol.asyncDispose]());

  test.each(names)("%s passes", (name) => {
    const passed = new RegExp(`^\\s*--- PASS: TestEndToEnd/${name} `, "m").test(output);
    expect(passed, output).toBe(true);
  });

  test("has no test that is not listed here", () => {
    const run = [...output.matchAll(/^\s*--- \w+: TestEndToEnd\/(\w+) /gm)].map(([, name]) => name);
    expect(new Set(run)).toEqual(new Set(names));
  });
});

/**
 * The suite reaches the kubelet through a pod that is named like the node, as where virtual-kubelet runs as a pod. Here it
 * is a pod of nobody, bound to a Node that exists for it only, so that no agent runs it.
 */
async function createPodInFrontOfKubelet({ client, nodeName }: Environment): Promise<void> {
  await client.create("/api/v1/nodes", { metadata: { name: "outside" } });
  await client.create("/api/v1/namespaces/default/pods", {
    metadata: { name: nodeName },
    spec: {
      nodeName: "outside",
      tolerations: [{ operator: "Exists" }],
      containers: [{ name: "main", image: "none", ports: [{ containerPort: 10250 }] }],
    },
  });
  await client.patch(`/api/v1/namespaces/default/pods/${nodeName}/status`, {
    status: { phase: "Running", podIP: hostAddress(), podIPs: [{ ip: hostAddress() }] },
  });
}
