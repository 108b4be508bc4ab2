/**
 * What an agent of version 0.1.0 left behind when it was replaced: its Node, its lease, a pod with its status, and the machine that it
 * had asked for. Frozen: whatever comes after takes it over as it is.
 */
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import { Agent } from "../../../src/agent/agent.ts";
import { loadConfig } from "../../../src/config/load.ts";
import type { Json } from "../../e2e/fidelity/api.ts";
import type { StoredObject } from "../../../src/devcluster/index.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { PODS, runDevCluster } from "../devcluster/support.ts";

interface Left {
  clusterId: string;
  node: StoredObject;
  lease: StoredObject;
  pod: StoredObject;
  configMap: StoredObject;
  secret: StoredObject;
  machine: { id: string; spec: MachineSpec; snapshot: Machine };
}

const left = JSON.parse(readFileSync(join(import.meta.dirname, "../../fixtures/0.1.0/agent.json"), "utf8")) as Left;
const { id, spec, snapshot } = left.machine;

test("an agent takes over what version 0.1.0 left: no machine is changed, a status only gains what is new, and updates go on", async () => {
  await using dev = await runDevCluster();
  const { storage } = dev.cluster;
  storage.put("/nodes", "burst-0", left.node);
  storage.put("coordination.k8s.io/leases", "kube-node-lease/burst-0", left.lease);
  storage.put("/configmaps", "default/settings", left.configMap);
  storage.put("/secrets", "default/key", left.secret);
  storage.put("/pods", "default/web", left.pod);

  // The machine has run since then.
  const provider = new MemoryProvider({ clock: new VirtualClock(Date.parse(snapshot.created_at)) });
  provider.insert(id, spec);
  const changes: string[] = [];
  for (const name of ["createPod", "updatePod", "stopPod", "deletePod"] as const) {
    const call = provider[name].bind(provider) as (id: string, ...rest: unknown[]) => Promise<never>;
    provider[name] = (which: string, ...rest: unknown[]) => {
      changes.push(`${name} ${which} ${name === "updatePod" ? Object.keys(rest[0] as object).join() : ""}`.trim());
      return call(which, ...rest);
    };
  }
  const dir = mkdtempSync(join(tmpdir(), "vmlet-upgrade-"));
  const write = (name: string, content: object) => {
    writeFileSync(join(dir, name), JSON.stringify(content));
    chmodSync(join(dir, name), 0o600);
    return join(dir, name);
  };
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    clusterId: left.clusterId,
    kubeconfig: write("kubeconfig", dev.cluster.kubeconfig),
    health: { port: 0 },
    nodes: [
      {
        name: "burst-0",
        provider: { type: "memory" },
        addresses: ["192.0.2.1"],
        kubelet: { port: 0, certificate: "self-signed" },
      },
    ],
  };
  const stop = new AbortController();
  const agent = await Agent.open({
    config: loadConfig(write("vmlet.yaml", config), {}, {}),
    createProvider: () => Promise.resolve(provider),
    clock: systemClock,
    random: Math.random,
    logger: silentLogger,
    version: "0.2.0",
    signal: stop.signal,
  });
  const running = agent.run(stop.signal);
  try {
    await agent.ready(AbortSignal.timeout(30_000));
    const { pods } = agent.nodes[0]!;
    const looked = () => pods.store.synced && pods.queue.depth === 0 && pods.working > 0;
    await expect.poll(looked, { timeout: 30_000 }).toBe(true);
    expect(changes).toEqual([]);
    const pod = (): Json => storage.get("/pods", "default/web");
    // As a kubelet of 1.37 tells of every pod, and that version did not.
    const requests = { cpu: "100m", memory: "64Mi" };
    const ofThePod = { allocatedResources: requests, resources: { requests } };
    await expect.poll(() => pod().status, { timeout: 30_000 }).toEqual({ ...left.pod.status, ...ofThePod });
    expect(storage.get("/nodes", "burst-0")!.metadata.uid).toBe(left.node.metadata.uid);
    expect(storage.list("/nodes")).toHaveLength(1);

    // Live updates reach the machine that another version made.
    storage.put("/configmaps", "default/settings", { ...left.configMap, data: { greeting: "hello again" } });
    await expect.poll(() => changes, { timeout: 30_000 }).toEqual([`updatePod ${id} files`]);
    await dev.api.request("DELETE", `${PODS}/web`, { gracePeriodSeconds: 1 });
    await expect.poll(() => provider.machines.map(({ state }) => state), { timeout: 30_000 }).toEqual([]);
    await expect.poll(pod, { timeout: 30_000 }).toBeUndefined();
  } finally {
    stop.abort();
    await running;
    rmSync(dir, { recursive: true });
  }
});
