/** Rules of ids and specifications, for every engine: what the document allows and this backend does not. */
import { containersOf, type MachineSpec, ProviderError, type Volume } from "../../../src/provider/kit/index.ts";

const ID_PATTERN = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}$/;
const NAME_PATTERN = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;

/** Ids become names of folders. @throws ProviderError invalid */
export function assertId(id: string): void {
  if (!ID_PATTERN.test(id))
    throw new ProviderError("invalid", `machine id "${id}" must match ${ID_PATTERN.source}`, { field: "id" });
}

/** Rules of the model itself. @throws ProviderError invalid */
export function validateSpec(spec: MachineSpec): void {
  const invalid = (field: string, message: string) => new ProviderError("invalid", `${field}: ${message}`, { field });
  if (spec.containers.length === 0) throw invalid("containers", "a machine needs at least one container");
  const volumes = new Map<string, Volume["type"]>();
  for (const { name, type } of spec.volumes ?? []) {
    // Engines make folders of these names.
    if (!NAME_PATTERN.test(name)) throw invalid("volumes.name", `"${name}" must be a DNS label`);
    if (volumes.has(name)) throw invalid("volumes.name", `"${name}" is used twice`);
    volumes.set(name, type);
  }
  const seen = new Set<string>();
  for (const { spec: container } of containersOf(spec)) {
    if (!NAME_PATTERN.test(container.name)) throw invalid("containers.name", `"${container.name}" must be a DNS label`);
    if (seen.has(container.name)) throw invalid("containers.name", `"${container.name}" is used twice`);
    seen.add(container.name);
    for (const mount of container.mounts ?? []) {
      if (!volumes.has(mount.volume))
        throw invalid(
          "containers.mounts",
          `container "${container.name}" mounts volume "${mount.volume}", which does not exist`,
        );
    }
    for (const { name } of container.claims ?? [])
      if (!(spec.resource_claims ?? []).some((claim) => claim.name === name))
        throw invalid("containers.claims", `container "${container.name}" uses claim "${name}", which does not exist`);
    for (const { volume } of container.devices ?? [])
      if (volumes.get(volume) !== "persistent")
        throw invalid(
          "containers.devices",
          `container "${container.name}" has volume "${volume}" as a block device, which ${volumes.has(volume) ? "is none" : "does not exist"}`,
        );
  }
}
