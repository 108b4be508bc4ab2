/** What the checks of volumes that outlive machines begin with. */
import type { MachineSpec } from "../../machine.ts";
import type { PersistentVolume, VolumeClaim, VolumeProvider } from "../../volume.ts";
import type { CheckContext } from "../context.ts";

export const NEEDS = ["volumes.persistent"] as const;
export const MIB = 2 ** 20;
export const PLACE = "/conformance";

export const volumesOf = (context: CheckContext): VolumeProvider => context.provider.volumes!;

/** The name of a class whose volumes several machines may write to; undefined where there is none. */
export const sharedClassOf = ({ info: { volumeClasses = [] } }: CheckContext): string | undefined =>
  volumeClasses.find(({ sharing, modes = ["filesystem"] }) => sharing === "writers" && modes.includes("filesystem"))
    ?.name;

/** A new volume. */
export const made = (
  context: CheckContext,
  name: string,
  rest: { size_bytes?: number; class?: string } = {},
): Promise<PersistentVolume> =>
  context.volume({ labels: context.labelsOf(name), size_bytes: 64 * MIB, mode: "filesystem", ...rest });

/** A new volume that begins as a copy. */
export const copied = (context: CheckContext, name: string, source: string): Promise<PersistentVolume> =>
  context.volume({
    labels: context.labelsOf(name),
    size_bytes: 64 * MIB,
    mode: "filesystem",
    source: { volume: source },
  });

/** What of a specification mounts this volume. */
export function mounting(
  context: CheckContext,
  name: string,
  script: string,
  claims: readonly Partial<VolumeClaim>[],
  subPath?: string,
): Partial<MachineSpec> {
  const volumes = claims.map((claim, index): VolumeClaim => ({
    name: `data-${index}`,
    type: "persistent",
    volume: "",
    ...claim,
  }));
  return {
    labels: context.labelsOf(name),
    volumes,
    containers: [
      context.container(script, {
        mounts: volumes.map((volume, index) => ({
          volume: volume.name,
          path: index === 0 ? PLACE : `${PLACE}-${index}`,
          ...(subPath !== undefined && { sub_path: subPath }),
        })),
      }),
    ],
  };
}
