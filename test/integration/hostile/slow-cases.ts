/** What hangs or fails for the tenant alone: its admission webhooks, its events, the backend's work for it. */
import type { HostileCase } from "./case.ts";

export const slowCases: readonly HostileCase[] = [
  {
    name: "has a webhook that keeps every write of its namespace waiting",
    async begin(tenant) {
      tenant.world.proxy.delayWrites(tenant.namespace, 25_000);
      const sources = [{ serviceAccountToken: { path: "token" } }];
      const volumes = [{ name: "v", projected: { sources } }];
      const volumeMounts = [{ name: "v", mountPath: "/v" }];
      await tenant.pods(80, "memory", "waits", { container: { volumeMounts }, spec: { volumes } });
      return {};
    },
  },
  {
    name: "has a webhook that fails every event",
    async begin(tenant) {
      tenant.world.proxy.failWrites(tenant.namespace, "/events", { code: 500, reason: "InternalError" });
      await tenant.pods(100, "memory", "told", { spec: { hostNetwork: true } });
      return {};
    },
  },
  {
    name: "has a webhook that keeps every event waiting",
    async begin(tenant) {
      tenant.world.proxy.delayWrites(tenant.namespace, 25_000, "/events");
      await tenant.pods(100, "memory", "told", { spec: { hostNetwork: true } });
      return {};
    },
  },
  {
    name: "has a webhook that refuses every status of its pods",
    async begin(tenant) {
      tenant.world.proxy.failWrites(tenant.namespace, "/status", { code: 422, reason: "Invalid" });
      await tenant.pods(60, "memory", "untold");
      return {};
    },
  },
  {
    name: "has pods that take the backend half a minute each",
    namespace: "slow-backend",
    async begin(tenant) {
      await tenant.pods(80, "memory", "slow");
      return {};
    },
  },
];
