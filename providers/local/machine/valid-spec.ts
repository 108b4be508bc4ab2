/** Rules of ids and specifications, for every engine: what the document allows and this backend does not. */
import {
  type ContainerSpec,
  containersOf,
  envFilesOf,
  type MachineSpec,
  MAX_ENV_FILES,
  ProviderError,
  type Volume,
} from "../../../src/provider/kit/index.ts";

const ID_PATTERN = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}$/;
const NAME_PATTERN = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;

type Kind = Volume["type"] | "csi device" | "host device";

/** What of the volumes may be a block device; which mode one of vmlet's own has, only the volume itself tells. */
const DEVICES: ReadonlySet<Kind | undefined> = new Set(["persistent", "csi device", "host device"] as const);

/** Ids become names of folders. @throws ProviderError invalid */
export function assertId(id: string): void {
  if (!ID_PATTERN.test(id))
    throw new ProviderError("invalid", `machine id "${id}" must match ${ID_PATTERN.source}`, { field: "id" });
}

/** Rules of the model itself. @throws ProviderError invalid */
export function validateSpec(spec: MachineSpec): void {
  const invalid = (field: string, message: string) => new ProviderError("invalid", `${field}: ${message}`, { field });
  if (spec.containers.length === 0) throw invalid("containers", "a machine needs at least one container");
  const volumes = new Map<string, Kind>();
  for (const volume of spec.volumes ?? []) {
    const { name, type } = volume;
    // Engines make folders of these names.
    if (!NAME_PATTERN.test(name)) throw invalid("volumes.name", `"${name}" must be a DNS label`);
    if (volumes.has(name)) throw invalid("volumes.name", `"${name}" is used twice`);
    volumes.set(name, kindOf(volume) ?? type);
  }
  const seen = new Set<string>();
  for (const { spec: container } of containersOf(spec)) {
    if (!NAME_PATTERN.test(container.name)) throw invalid("containers.name", `"${container.name}" must be a DNS label`);
    if (seen.has(container.name)) throw invalid("containers.name", `"${container.name}" is used twice`);
    seen.add(container.name);
    const use = usesProblem(container, volumes);
    if (use !== undefined) throw invalid(use.field, `container "${container.name}" ${use.why}`);
    const problem = envFilesProblem(container, volumes);
    if (problem !== undefined)
      throw invalid("containers.env.from_file", `container "${container.name}" reads variables from ${problem}`);
    for (const { name } of container.claims ?? [])
      if (!(spec.resource_claims ?? []).some((claim) => claim.name === name))
        throw invalid("containers.claims", `container "${container.name}" uses claim "${name}", which does not exist`);
  }
}

/** Where it is another than its type. A device of the host may be mounted as well, as any path of it. */
function kindOf(volume: Volume): Kind | undefined {
  if (volume.type === "csi" && volume.persistent?.mode === "block") return "csi device";
  return volume.type === "host" && volume.path_type === "BlockDevice" ? "host device" : undefined;
}

/** What of its mounts and devices is not of the volume's kind, or of none. */
function usesProblem(
  { mounts = [], devices = [] }: ContainerSpec,
  volumes: ReadonlyMap<string, Kind>,
): { field: string; why: string } | undefined {
  for (const { volume } of mounts) {
    const why = `mounts volume "${volume}", which`;
    if (!volumes.has(volume)) return { field: "containers.mounts", why: `${why} does not exist` };
    if (volumes.get(volume) === "csi device")
      return { field: "containers.mounts", why: `${why} is a block device: name it in devices` };
  }
  const other = devices.find(({ volume }) => !DEVICES.has(volumes.get(volume)));
  return (
    other && {
      field: "containers.devices",
      why: `has volume "${other.volume}" as a block device, which ${volumes.has(other.volume) ? "is none" : "does not exist"}`,
    }
  );
}

function envFilesProblem(container: ContainerSpec, volumes: ReadonlyMap<string, Kind>): string | undefined {
  const files = envFilesOf(container);
  if (files.length > MAX_ENV_FILES) return `${files.length} files, more than ${MAX_ENV_FILES}`;
  const other = files.find(({ volume }) => volumes.get(volume) !== "empty_dir");
  return other && `volume "${other.volume}", which ${volumes.has(other.volume) ? "is no empty_dir" : "does not exist"}`;
}
