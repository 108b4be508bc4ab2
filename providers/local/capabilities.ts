/** What this backend tells that it can do, and judges machines by. */
import {
  assertCapable,
  assertRuntimeHandler,
  type Capability,
  type MachineSpec,
  requiredCapabilities,
} from "../../src/provider/kit/index.ts";
import type { Engine } from "./engine.ts";

interface Declared {
  engine: {
    readonly capabilities: readonly Capability[];
    readonly hasCdi?: boolean | undefined;
    readonly hasCsi?: boolean | undefined;
    readonly nodeRange?: object | undefined;
  };
  /** Whether the host's owner offers volumes that outlive machines, where the engine has them. Default: yes. */
  persistentVolumes?: boolean | undefined;
  /** In place of the engine's: volumes that this host is given. */
  volumes?: object | undefined;
  /** Absent: its machines reach Services as this host does. */
  services?: object | undefined;
  /** Absent: plugins of this host are not served. */
  plugins?: object | undefined;
}

const VOLUME_CAPABILITIES: readonly Capability[] = [
  "volumes.persistent",
  "volumes.block",
  "volumes.clone",
  "volumes.exclusive",
  "volumes.force_release",
];

/** The engine's, without those that the host's owner does not offer, and with those that the host adds. */
export function capabilitiesOf(
  { engine, persistentVolumes, volumes, services, plugins }: Declared,
  { tellsCapacity }: { readonly tellsCapacity: boolean },
): readonly Capability[] {
  const capabilities = new Set(engine.capabilities);
  if (persistentVolumes === false || volumes !== undefined)
    for (const each of VOLUME_CAPABILITIES) capabilities.delete(each);
  if (volumes !== undefined) capabilities.add("volumes.persistent");
  if (tellsCapacity) capabilities.add("capacity");
  if (engine.nodeRange !== undefined) capabilities.add("pod_ranges");
  if (services !== undefined) capabilities.add("services");
  if (plugins !== undefined) capabilities.add("devices");
  // What drivers give to a container, they give in the Container Device Interface alone.
  if (plugins !== undefined && engine.hasCdi === true) capabilities.add("resource_claims");
  if (plugins !== undefined && engine.hasCsi === true)
    for (const each of ["volumes.csi", "volumes.csi_persistent", "volumes.csi_growth"] as const) capabilities.add(each);
  // A device is held open by a loop device: where the host's own volumes are none, so are drivers'.
  if (capabilities.has("volumes.csi_persistent") && capabilities.has("volumes.block"))
    capabilities.add("volumes.csi_block");
  return [...capabilities];
}

/** @throws ProviderError where the engine cannot run it, or not yet */
export function assertServable(
  spec: MachineSpec,
  engine: Pick<Engine, "runtimeHandlers" | "validate" | "nodeRange">,
  capabilities: readonly Capability[],
): void {
  assertCapable(requiredCapabilities(spec), capabilities);
  assertRuntimeHandler(spec, engine.runtimeHandlers);
  engine.validate?.(spec);
  engine.nodeRange?.assertServes(spec);
}
