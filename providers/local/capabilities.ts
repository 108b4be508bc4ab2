/** What this backend tells that it can do, and judges machines by. */
import type { Capability } from "../../src/provider/kit/index.ts";

interface Declared {
  engine: {
    readonly capabilities: readonly Capability[];
    readonly hasCdi?: boolean | undefined;
    readonly hasCsi?: boolean | undefined;
  };
  /** Whether the host's owner offers volumes that outlive machines, where the engine has them. Default: yes. */
  persistentVolumes?: boolean | undefined;
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
  { engine, persistentVolumes, plugins }: Declared,
  { tellsCapacity }: { readonly tellsCapacity: boolean },
): readonly Capability[] {
  const capabilities = new Set(engine.capabilities);
  if (persistentVolumes === false) for (const each of VOLUME_CAPABILITIES) capabilities.delete(each);
  if (tellsCapacity) capabilities.add("capacity");
  if (plugins !== undefined) capabilities.add("devices");
  // What drivers give to a container, they give in the Container Device Interface alone.
  if (plugins !== undefined && engine.hasCdi === true) capabilities.add("resource_claims");
  if (plugins !== undefined && engine.hasCsi === true) capabilities.add("volumes.csi");
  return [...capabilities];
}
