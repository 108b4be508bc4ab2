/** The suite's environment with instances of a real Incus cluster as the machines of both nodes. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildGuestImage } from "../../../src/cli/guest-image.ts";
import { relayTo } from "../../support/relay.ts";
import { GUEST_SUITE, guestConfigOf, missingForIncus, startIncus } from "../../support/incus.ts";
import { nodeNames, startNodes, startSuiteCluster, startSuiteRegistry, type SuiteEnvironment } from "./environment.ts";
import { hostAddress } from "./namespaces.ts";

/** The other member's network has the same range and no route to this host's: its instances would be out of reach. */
const ZONE = "one";

/** What the nodes' provider is made of, in each place that is told of it. */
export interface IncusSuiteEnvironment extends SuiteEnvironment {
  /** Of both nodes, as an agent's configuration has it. */
  provider: { type: "cloud"; cloud: object; scope: string; instanceTypes: readonly object[]; allowPrivileged: boolean };
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
  const started = await startNodes(cluster, { providers, cidr: `${incus.gateway}/24` });
  begun.defer(async () => {
    for (const agent of started.agents) await agent.stop();
  });
  const all = begun.move();
  return { cluster, registry, provider, ...started, [Symbol.asyncDispose]: () => all.disposeAsync() };
}
