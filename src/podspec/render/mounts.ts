/** Where a container sees its volumes, with their sub-paths. */
import type { Container } from "../../kube/wire.ts";
import type { ContainerSpec, Mount } from "../../provider/machine.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { mayUse, type RenderContext } from "./context.ts";
import { expand } from "./expansion.ts";
import { cleanPath, MAX_PATH_LENGTH, subPathProblem } from "./paths.ts";

type VolumeMount = NonNullable<Container["volumeMounts"]>[number];

/** Mounts of volumes that the machine does not have are left out. */
export function renderMounts(
  context: RenderContext,
  container: Pick<Container, "name" | "volumeMounts">,
  variables: ReadonlyMap<string, string>,
): Result<Mount[]> {
  const mounts: Mount[] = [];
  for (const mount of container.volumeMounts ?? []) {
    if (!context.declaredVolumes.has(mount.name) || context.deviceVolumes.has(mount.name))
      return failure(`cannot find volume "${mount.name}" to mount into container "${container.name}"`);
    if (!context.volumeNames.has(mount.name)) continue;
    const subPath = subPathOf(context, mount, variables);
    if (!subPath.ok) return subPath;
    mounts.push({
      volume: mount.name,
      path: mount.mountPath.startsWith("/") ? mount.mountPath : `/${mount.mountPath}`,
      ...((mount.readOnly || context.readOnlyVolumes.has(mount.name)) && { read_only: true }),
      ...propagationOf(context, mount),
      ...(subPath.value !== "" && subPath.value !== "." && { sub_path: subPath.value }),
    });
  }
  return success(mounts);
}

/** kubelet: makeBlockVolumes. */
export function renderDevices(
  { declaredVolumes, mountedVolumes }: RenderContext,
  { name, volumeDevices }: Pick<Container, "name" | "volumeDevices">,
): Result<NonNullable<ContainerSpec["devices"]>> {
  const devices = volumeDevices ?? [];
  const missing = devices.find((device) => !declaredVolumes.has(device.name) || mountedVolumes.has(device.name));
  if (missing !== undefined) return failure(`cannot find volume "${missing.name}" to pass into container "${name}"`);
  return success(devices.map((device) => ({ volume: device.name, path: device.devicePath })));
}

/** What the host mounts later is nothing to a machine that cannot see it. */
function propagationOf(context: RenderContext, { mountPropagation }: VolumeMount): Pick<Mount, "propagation"> {
  if (!mayUse(context, "mount_propagation")) return {};
  if (mountPropagation === "HostToContainer") return { propagation: "host_to_container" };
  return mountPropagation === "Bidirectional" ? { propagation: "bidirectional" } : {};
}

/** Empty for the whole volume. */
function subPathOf(context: RenderContext, mount: VolumeMount, variables: ReadonlyMap<string, string>): Result<string> {
  const path = mount.subPathExpr ? expandedPath(context, mount.subPathExpr, variables) : success(mount.subPath ?? "");
  if (!path.ok || path.value === "") return path;
  const problem = subPathProblem(path.value);
  return problem === undefined ? success(cleanPath(path.value)) : failure(problem);
}

function expandedPath(
  { tokens, envTokens }: RenderContext,
  expression: string,
  variables: ReadonlyMap<string, string>,
): Result<string> {
  const missing = new Set<string>();
  const lookUp = (name: string) => {
    const value = variables.get(name);
    if (value === undefined || value === "") missing.add(name);
    return value ?? "";
  };
  const path = expand(expression, lookUp, MAX_PATH_LENGTH);
  if (missing.size > 0) return failure(`missing value for ${[...missing].sort().join(", ")}`);
  if (path.includes(tokens.pod_ip) || path.includes(tokens.pod_ips)) {
    return failure(`subPathExpr "${expression}" needs the pod's address, which is known only inside the machine`);
  }
  if (path.includes(envTokens.open))
    return failure(`subPathExpr "${expression}" needs a file's value, which is known only inside the machine`);
  return success(path);
}
