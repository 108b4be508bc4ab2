/** The suite's environment with instances of a real Incus cluster as the machines of both nodes. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildGuestImage } from "../../../src/cli/guest-image.ts";
import type { Client } from "../../e2e/harness/client.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { relayTo } from "../../support/relay.ts";
import { GUEST_SUITE, guestConfigOf, missingForIncus, startIncus } from "../../support/incus.ts";
import { nodeNames, startNodes, startSuiteCluster, startSuiteRegistry, type SuiteEnvironment } from "./environment.ts";
import { hostAddress, serviceCidr } from "./namespaces.ts";

/** The other member's network has the same range and no route to this host's: its instances would be out of reach. */
const ZONE = "one";

/** What the nodes' provider is made of, in each place that is told of it. */
export interface IncusSuiteEnvironment extends SuiteEnvironment {
  /** Of both nodes, as an agent's configuration has it. */
  provider: { type: "cloud"; cloud: object; scope: string; instanceTypes: readonly object[]; allowPrivileged: boolean };
}

/** Each agent acts as its node alone, which by itself may not. */
async function letNodesReadEndpoints(admin: Client): Promise<void> {
  const [apiGroup, metadata] = ["rbac.authorization.k8s.io", { name: "read-endpoints" }];
  const path = `/apis/${apiGroup}/v1`;
  const rules = [{ apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"] }];
  await admin.create(`${path}/clusterroles`, { metadata, rules });
  const roleRef = { apiGroup, kind: "ClusterRole", name: metadata.name };
  const subjects = [{ apiGroup, kind: "Group", name: "system:nodes" }];
  await admin.create(`${path}/clusterrolebindings`, { metadata, roleRef, subjects });
}

/** kube-proxy on this host is for the API server, and for ports of nodes: instances have Services by their own rules. */
async function refuseServicesOfInstances(): Promise<void> {
  const chain = "ip suite_services prerouting";
  const rules = [
    "add table ip suite_services",
    `add chain ${chain} { type filter hook prerouting priority raw; policy accept; }`,
    `add rule ${chain} iifname != { "lo", "host0" } ip daddr ${serviceCidr} drop`,
  ];
  await runCommand("nft", ["-f", "-"], { input: `${rules.join("\n")}\n` });
}

/** For `runInside`: an image's packages are fetched where there is a network, and kept. */
export async function fetchGuestPackages(): Promise<void> {
  const missing = await missingForIncus();
  if (missing.length > 0) throw new Error(`no Incus can be had here: ${missing.join(", ")}`);
  const dir = await mkdtemp(join(tmpdir(), "vmlet-guest-packages-"));
  await buildGuestImage(join(dir, "guest.tar"), { suite: GUEST_SUITE, signal: AbortSignal.timeout(600_000) });
  await rm(dir, { recursive: true });
}

interface IncusEnvironmentOptions {
  /** Whether there are volumes that outlive instances: on the member where the instances are. Default false. */
  volumes?: boolean | undefined;
}

export async function startIncusEnvironment({
  volumes = false,
}: IncusEnvironmentOptions = {}): Promise<IncusSuiteEnvironment> {
  const missing = await missingForIncus();
  if (missing.length > 0) throw new Error(`no Incus can be had here: ${missing.join(", ")}`);
  await using begun = new AsyncDisposableStack();
  const listening = await startSuiteRegistry();
  begun.defer(() => listening.stop());
  const port = Number(listening.host.split(":")[1]);
  begun.use(await relayTo(hostAddress, port));
  const registry = { ...listening, host: `${hostAddress}:${port}` };
  const cluster = await startSuiteCluster();
  begun.defer(() => cluster.stop());
  const incus = await startIncus(cluster.sandbox, {
    guestConfig: () => guestConfigOf(registry.host),
  });
  begun.defer(() => incus.stop());
  const instanceTypes = [
    // Whole processors: where cgroups are v1, a container's limit may not be above a fraction that its instance has.
    { name: "small", cpu: "2", memory: "1Gi", price: 0.01, zone: ZONE },
    { name: "large", cpu: "16", memory: "32Gi", price: 0.2, zone: ZONE },
  ];
  const { instanceConfig } = incus.cloud;
  const cloud = {
    ...incus.cloud,
    // For privileged containers, which where cgroups are v1 may have no device that their instance has not.
    instanceConfig: { ...instanceConfig, "raw.lxc": `${instanceConfig["raw.lxc"]}\nlxc.cgroup.devices.allow=a` },
    ...(volumes && { volumes: { pools: [incus.cloud.storagePool], member: ZONE } }),
  };
  const provider = { type: "cloud", cloud, scope: "suite", instanceTypes, allowPrivileged: true } as const;
  const providers = nodeNames.map(() => provider);
  await letNodesReadEndpoints(cluster.admin);
  await refuseServicesOfInstances();
  const started = await startNodes(cluster, { providers, cidr: `${incus.gateway}/24` });
  begun.defer(async () => {
    for (const agent of started.agents) await agent.stop();
  });
  const all = begun.move();
  return { cluster, registry, provider, ...started, [Symbol.asyncDispose]: () => all.disposeAsync() };
}
