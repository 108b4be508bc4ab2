/** What a container of the engine oci sees of its machine's folders. */
import { join } from "node:path";
import { bind, effectiveMounts, type OciMount } from "../../bundle/bundle.ts";
import { etcMounts } from "../../bundle/etc.ts";
import { volumeSource } from "../../bundle/host-volumes.ts";
import type { ContainerLaunch, MachineHome } from "../../engine.ts";

/** All that is mounted into a container. @param isMapped its machine has users of its own */
export async function containerMounts(
  home: MachineHome,
  launch: ContainerLaunch,
  { bundle, isMapped }: { bundle: string; isMapped: boolean },
): Promise<OciMount[]> {
  const { dir } = home;
  const mounts: OciMount[] = [
    { ...bind(join(dir, "shm"), "/dev/shm", false), options: ["rbind", "nosuid", "nodev", "noexec", "rw"] },
    ...(await etcMounts(join(dir, "etc"), launch, launch.spec)),
  ];
  for (const [index, mount] of (launch.spec.mounts ?? []).entries()) {
    const parts = { image: launch.imageVolumes[mount.volume]?.location, at: join(bundle, "sub", String(index)) };
    const { source, writable } = await volumeSource(home, launch.name, mount, parts);
    mounts.push(bind(source, mount.path, !writable));
  }
  const shown = effectiveMounts(mounts);
  // By the mapping of the container's own user namespace.
  return isMapped ? shown.map((mount) => ({ ...mount, options: [...mount.options, "idmap"] })) : shown;
}
