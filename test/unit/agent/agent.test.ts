import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Agent } from "../../../src/agent/agent.ts";
import { NodeAgent } from "../../../src/agent/node-agent.ts";
import type { NodeAgentOptions } from "../../../src/agent/node-options.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { EvictionZones } from "../../../src/pods/eviction-brake.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { KubeServer, json } from "../../support/kube-server.ts";

let folder: string;
let server: KubeServer;
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "agent-"));
  server = await KubeServer.start();
});
afterEach(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

function config(rest: object) {
  const write = (name: string, content: object) => {
    writeFileSync(join(folder, name), JSON.stringify(content));
    chmodSync(join(folder, name), 0o600);
    return join(folder, name);
  };
  const kubeconfig = write("kubeconfig", {
    "current-context": "c",
    clusters: [{ name: "c", cluster: { server: server.url } }],
    contexts: [{ name: "c", context: { cluster: "c", user: "u" } }],
    users: [{ name: "u", user: { token: "t" } }],
  });
  const file = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", kubeconfig, health: { port: 0 }, ...rest };
  return loadConfig(write("vmlet.yaml", file), {}, {});
}

test("the certificates of all nodes are asked for at once, so that none waits for another's approval", async () => {
  const nodes = ["a", "b", "c"].map((name, i) => ({
    name,
    provider: { type: "memory" },
    kubelet: { port: 20_000 + i },
  }));
  const pending = { metadata: { name: "csr-1" }, status: {} };
  server.handler = (_request, reply) => json(reply, 200, pending);
  const stop = new AbortController();
  const creating = Agent.open({
    config: config({ clusterId: "c1", identity: { mode: "certificate" }, nodes }),
    createProvider: () => Promise.reject(new Error("not needed")),
    clock: systemClock,
    random: Math.random,
    logger: silentLogger,
    version: "1",
    signal: stop.signal,
  });
  const asked = () => server.received.filter(({ method }) => method === "POST").length;
  await expect.poll(asked).toBe(3);
  stop.abort(new Error("stopped"));
  await expect(creating).rejects.toThrow("stopped");
});

test("a node that cannot be opened leaves nothing with what the nodes of a process share: it is tried again every ten seconds", async () => {
  const kubelet = { certificate: "files", certFile: join(folder, "absent"), keyFile: join(folder, "absent") };
  const { nodes } = config({ clusterId: "c1", nodes: [{ name: "a", provider: { type: "memory" }, kubelet }] });
  let zones = 0;
  const evictions = new EvictionZones({ clock: systemClock });
  const counted = {
    zone(...sights: Parameters<EvictionZones["zone"]>) {
      zones++;
      const zone = evictions.zone(...sights);
      return Object.assign(zone, { close: () => void zones-- });
    },
  };
  const opening = NodeAgent.open({
    ...{ node: nodes[0], clusterId: "c1", version: "1", evictions: counted, provider: {}, kube: {}, self: {} },
    services: { listed: () => Promise.resolve() },
    ...{ clock: systemClock, random: Math.random, logger: silentLogger, signal: new AbortController().signal },
    metrics: createMetrics({ version: "1", nodeNames: ["a"], process: false }),
  } as unknown as NodeAgentOptions);
  await expect(opening).rejects.toThrow("absent");
  expect(zones).toBe(0);
});
