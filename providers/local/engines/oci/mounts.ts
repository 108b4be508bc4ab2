/** What a container of the engine oci sees of its machine's folders. */
import { join } from "node:path";
import { bind, effectiveMounts, type OciMount } from "../../bundle/bundle.ts";
import { etcMounts } from "../../bundle/etc.ts";
import { volumeSource } from "../../bundle/host-volumes.ts";
import { ContainerError, type ContainerLaunch, type MachineHome } from "../../engine.ts";
import { propagationOf } from "../../host/mounts.ts";

const PROPAGATION = { host_to_container: "rslave", bidirectional: "rshared" } as const;

/** All that is mounted into a container. @param isMapped its machine has users of its own */
export async function containerMounts(
  home: MachineHome,
  launch: ContainerLaunch,
  { bundle, isMapped }: { bundle: string; isMapped: boolean },
): Promise<OciMount[]> {
  const { dir } = home;
  const mounts: OciMount[] = [
    {
      ...bind(home.spec.host?.ipc === true ? "/dev/shm" : join(dir, "shm"), "/dev/shm", false),
      options: ["rbind", "nosuid", "nodev", "noexec", "rw"],
    },
    ...(await etcMounts(join(dir, "etc"), launch, launch.spec)),
  ];
  for (const [index, mount] of (launch.spec.mounts ?? []).entries()) {
    const parts = { image: launch.imageVolumes[mount.volume]?.location, at: join(bundle, "sub", String(index)) };
    const { source, writable, propagation } = await volumeSource(home, launch.name, mount, parts);
    if (mount.propagation !== undefined) await requirePropagation(source, mount.propagation);
    mounts.push(bind(source, mount.path, !writable, propagation && PROPAGATION[propagation]));
  }
  const shown = effectiveMounts(mounts);
  // By the mapping of the container's own user namespace.
  return isMapped ? shown.map((mount) => ({ ...mount, options: [...mount.options, "idmap"] })) : shown;
}

/** @throws ContainerError in containerd's words where the host's mount lets nothing through: runc would not say so */
async function requirePropagation(source: string, propagation: keyof typeof PROPAGATION): Promise<void> {
  const { mountPoint, isShared, isSlave } = await propagationOf(source);
  if (isShared || (isSlave && propagation === "host_to_container")) return;
  const wanted = propagation === "bidirectional" ? "a shared mount" : "a shared or slave mount";
  throw new ContainerError(
    "CreateContainerError",
    `path ${JSON.stringify(source)} is mounted on ${JSON.stringify(mountPoint)} but it is not ${wanted}`,
  );
}
