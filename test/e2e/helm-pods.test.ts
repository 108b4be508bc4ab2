/** Every case of pods and controllers again, by an agent with exactly the configuration and the identity that the chart renders. */
import { controllerCases } from "./cases/controller-cases.ts";
import { podCases } from "./cases/pod-cases.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { createNamespace, describeCases } from "./cases/suite.ts";
import type { Json } from "./harness/client.ts";
import { installChart } from "./helm-install.ts";

const cases = [...podCases, ...controllerCases];
/** Twice as many as there are cases: one that is run again needs another. */
const workloadNamespaces = Array.from({ length: 2 * cases.length }, (_, at) => `case-${at}`);
const identities: Json[] = [
  { mode: "node" },
  { mode: "certificate", autoApprove: true },
  { mode: "serviceAccount", workloadNamespaces },
];

for (const identity of identities) {
  const namespaces: readonly string[] | undefined = identity.workloadNamespaces;
  describeCases(`pods on a real control plane, by the chart with identity.mode ${identity.mode}`, {
    start: () =>
      startRealEnvironment({
        nodeName: "chart",
        async startAgent({ cluster, backend, nodeName }) {
          await Promise.all((namespaces ?? []).map((name) => createNamespace({ client: cluster.admin }, name)));
          const chart = await installChart(cluster, "pods", {
            identity,
            nodes: [
              {
                name: nodeName,
                provider: backend.provider,
                capacity: { cpu: "64", memory: "256Gi", pods: "1000" },
              },
            ],
          });
          return chart.startAgent();
        },
      }),
    // The control plane may have to be built first.
    startTimeoutMs: 1_200_000,
    cases,
    namespaces,
    // Faults are the matter of pods.test.ts; here it is what the agent may do.
    faults: ["nothing"],
    timeoutMs: 240_000,
    concurrent: true,
  });
}
