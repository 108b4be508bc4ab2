/** More of everything: pods, changes, restarts, refusals. */
import type { Harm, HostileCase } from "./case.ts";

export const stormCases: readonly HostileCase[] = [
  {
    name: "creates 200 pods that are refused, and each again as soon as it has failed",
    async begin(tenant) {
      const refused = { spec: { hostNetwork: true } };
      await tenant.pods(200, "memory", "refused", refused);
      return repeatedly(100, async (round) => {
        await tenant.pod("memory", `again-${round}`, refused);
      });
    },
  },
  {
    name: "creates 300 pods at once",
    async begin(tenant) {
      await tenant.pods(300, "memory", "crowd");
      return { deserved: () => tenant.untilRunning("crowd-299") };
    },
  },
  {
    name: "has 100 containers that crash as soon as they are started",
    async begin(tenant) {
      await tenant.pods(100, "memory", "crash", {
        container: { command: ["false"] },
        spec: { restartPolicy: "Always" },
      });
      return { deserved: () => tenant.untilRefused("crash-99", /^CrashLoopBackOff$/) };
    },
  },
  {
    name: "has pods whose readiness changes each second",
    async begin(tenant) {
      const readinessProbe = {
        exec: { command: ["sh", "-c", "test $(( $(date +%s) % 2 )) = 0"] },
        periodSeconds: 1,
        failureThreshold: 1,
      };
      await tenant.pods(15, "process", "flaps", { container: { readinessProbe } });
      return { deserved: () => tenant.untilRunning("flaps-14") };
    },
  },
  {
    name: "changes a ConfigMap that 50 pods have mounted, again and again",
    async begin(tenant) {
      await tenant.configMap("changing", { data: "0" });
      const volumes = [{ name: "v", configMap: { name: "changing" } }];
      const volumeMounts = [{ name: "v", mountPath: "/v" }];
      await tenant.pods(50, "memory", "mounts", { container: { volumeMounts }, spec: { volumes } });
      await tenant.untilRunning("mounts-49");
      return repeatedly(200, (round) => tenant.patch("configmaps", "changing", { data: { data: String(round) } }));
    },
  },
  {
    name: "edits the labels of its pods without end",
    async begin(tenant) {
      await tenant.pods(20, "memory", "edited");
      return repeatedly(300, (round) =>
        tenant.patch("pods", `edited-${round % 20}`, { metadata: { labels: { round: String(round) } } }),
      );
    },
  },
  {
    name: "has 40 pods that do not end when they are told to",
    async begin(tenant) {
      const command = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
      await tenant.pods(40, "process", "stubborn", {
        container: { command },
        spec: { terminationGracePeriodSeconds: 3600 },
      });
      await tenant.untilRunning("stubborn-39");
      const { client } = tenant.world;
      for (let index = 0; index < 40; index++)
        await client.delete(`/api/v1/namespaces/${tenant.namespace}/pods/stubborn-${index}`);
      return {};
    },
  },
];

/** Goes on while the neighbour lives. */
function repeatedly(rounds: number, act: (round: number) => Promise<unknown>): Harm {
  return {
    async deserved() {
      for (let round = 0; round < rounds; round++) await act(round);
    },
  };
}
