/**
 * Mount options of volumes: those that a claim may name, and what mount(8) is told of each. Nothing else of what a
 * claim says comes near the host.
 */
import { type MachineSpec, ProviderError, volumeClaims } from "../../../src/provider/kit/index.ts";

/**
 * Of the file system, not of one mount: a runtime makes another mount for each container, and CRI takes no options for
 * that. Undefined: it is so anyway, or there is nothing to be had from it here.
 */
const KNOWN: ReadonlyMap<string, string | undefined> = new Map([
  ...[
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "sync",
    "dirsync",
    "ro",
    "acl",
    "noacl",
    "user_xattr",
    "nouser_xattr",
    "barrier=1",
    "data=ordered",
    "data=journal",
    "debug",
    "nouid32",
  ].map((name) => [name, name] as const),
  ...["defaults", "rw", "exec", "nosuid", "nodev", "async", "atime", "diratime", "barrier", "errors=remount-ro"].map(
    (name) => [name, undefined] as const,
  ),
  // Blocks that were given back would be another's, and not there to be written again: a volume's size is reserved.
  ["discard", undefined],
  ["nodiscard", undefined],
]);
const COMMIT = /^commit=([1-9][0-9]{0,2})$/;
const MAX_COMMIT_S = 300;

/** For every volume: its files are a tenant's, and give nobody the rights of this host's root or a device of it. */
const ALWAYS = ["nosuid", "nodev", "nodiscard"];
const EXT4_ALWAYS = ["errors=remount-ro"];
/** A copy has the UUID of what it was copied from, and both may be mounted. */
const XFS_ALWAYS = ["nouuid"];
/** Of those that a claim may name: XFS has them always, or not at all, and refuses the words. */
const NOT_XFS = /^(?:no)?(?:acl|user_xattr)$|^(?:barrier|data|commit)=|^(?:debug|nouid32)$/;

/** @throws ProviderError invalid for one that is not allowed */
export function assertMountOptions(spec: Pick<MachineSpec, "volumes">): void {
  for (const [index, volume] of (spec.volumes ?? []).entries())
    for (const option of (volume.type === "persistent" && volume.mount_options) || [])
      if (!isKnown(option))
        throw new ProviderError(
          "invalid",
          `the mount option ${option} is not allowed (there is ${[...KNOWN.keys()].join(", ")}, commit=1 to commit=${MAX_COMMIT_S})`,
          { field: `volumes.${index}.mount_options` },
        );
}

/** What mount(8) is told. */
export function hostOptions(
  options: readonly string[],
  { readOnly, fsType }: { readOnly: boolean; fsType: string },
): string {
  const known = options.filter(isKnown).flatMap((option) => (KNOWN.has(option) ? (KNOWN.get(option) ?? []) : option));
  const own = fsType === "xfs" ? known.filter((option) => !NOT_XFS.test(option)) : known;
  const always = [...ALWAYS, ...(fsType === "xfs" ? XFS_ALWAYS : EXT4_ALWAYS)];
  return [...new Set([...own, ...always, ...(readOnly ? ["ro"] : [])])].join(",");
}

/** Of a claim. */
export function optionsOf(spec: Pick<MachineSpec, "volumes">, id: string): readonly string[] {
  const found = volumeClaims(spec).find(({ claim }) => claim.volume === id);
  return found?.claim.mount_options ?? [];
}

function isKnown(option: string): boolean {
  if (KNOWN.has(option)) return true;
  const [, seconds] = COMMIT.exec(option) ?? [];
  return seconds !== undefined && Number(seconds) <= MAX_COMMIT_S;
}
