/** The real renderer of an agent's node: admission, references that are read and watched, capabilities. */
import type { Kube } from "../../../src/kube/kube.ts";
import type { NodeFacts } from "../../../src/podspec/types.ts";
import { NodeAllocation } from "../../../src/podspec/admission/allocation.ts";
import { PodRenderer } from "../../../src/podspec/pod-renderer.ts";
import { ReferenceCache } from "../../../src/podspec/references/references.ts";
import type { ServiceCache } from "../../../src/podspec/references/services.ts";
import { TokenManager } from "../../../src/podspec/references/tokens.ts";
import { TrustBundles } from "../../../src/podspec/references/trust-bundles.ts";
import type { Capability } from "../../../src/provider/capabilities.ts";
import { parseResourceList } from "../../../src/resources/pod-resources.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type { Clock } from "../../../src/util/clock.ts";
import type { Random } from "../../../src/util/random.ts";
import { certificatesFrom, claimsFrom, csiFrom, disksFrom } from "../../support/disks.ts";
import type { PodDisks } from "../../../src/podspec/references/disks.ts";
import { CLUSTER, NODE } from "../world/names.ts";
import type { World } from "../world/world.ts";

const CAPABILITIES: readonly Capability[] = [
  "events",
  "images",
  "multi_container",
  "init_containers",
  "sidecars",
  "volumes.files",
  "volumes.persistent",
  "patch_files",
  "patch_image",
  "pod_ip",
  "hostname",
  "hosts",
  "dns",
];
export const BACKEND = { name: "toy", capabilities: new Set<Capability>(CAPABILITIES) };

export interface RendererInputs {
  world: World;
  kube: Kube;
  clock: Clock;
  random: Random;
  /** Told of each pod that comes, changes and goes. */
  allocation: NodeAllocation;
  requeue: (uid: string) => void;
  /** Absent: no pod has any. */
  disks: PodDisks | undefined;
}

/** No Services: they are no matter of the protocol. */
const NO_SERVICES = {
  firstList: () => Promise.resolve(),
  listed: () => Promise.resolve(),
  of: () => [],
} as unknown as ServiceCache;

export function rendererOf({ world, kube, clock, random, allocation, requeue, disks }: RendererInputs): PodRenderer {
  const wiring = { kube, clock, random, logger: silentLogger, onChange: requeue };
  const facts = (): NodeFacts => ({
    clusterId: CLUSTER,
    nodeName: NODE,
    hostIPs: ["10.1.1.1"],
    allocatable: parseResourceList(world.capacity.node.status!.allocatable),
    dns: { clusterDns: [], clusterDomain: "cluster.local", host: { nameservers: [], searches: [], options: [] } },
    allowHostPath: false,
  });
  return new PodRenderer({
    kube,
    references: new ReferenceCache({ ...wiring, services: NO_SERVICES }),
    tokens: new TokenManager(wiring),
    trustBundles: new TrustBundles(wiring),
    disks: disks ?? disksFrom(wiring),
    claims: claimsFrom(wiring),
    csi: csiFrom(wiring),
    certificates: certificatesFrom(wiring),
    node: () => world.capacity.node,
    facts,
    backend: () => BACKEND,
    allocation,
    daemonSets: "run",
  });
}
