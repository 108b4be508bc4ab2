/** What mount(8) is told of a volume's mount options, by its file system. */
import { describe, expect, test } from "vitest";
import { assertMountOptions, hostOptions } from "../../../providers/local/volumes/mount-options.ts";

/** Every one that a claim may name. */
const ALLOWED = ["noatime", "ro", "acl", "nouser_xattr", "barrier=1", "data=journal", "commit=30", "debug", "nouid32"];
const claim = (mount_options: string[]) => ({
  volumes: [{ name: "data", type: "persistent" as const, volume: "v", reservation: "r", mount_options }],
});
const told = (options: readonly string[], fsType: string, readOnly = false) =>
  hostOptions(options, { fsType, readOnly }).split(",");

test("what a claim may not name is refused, by its field", () => {
  expect(() => assertMountOptions(claim(ALLOWED))).not.toThrow();
  for (const option of ["suid", "dev", "context=x", "commit=301", "uid=0", "noatime,suid"])
    expect(() => assertMountOptions(claim([option]))).toThrow(
      expect.objectContaining({ field: "volumes.0.mount_options" }),
    );
});

describe.each(["ext4", "xfs"])("%s", (fsType) => {
  test("gives nobody the rights of the host's root or a device of it, and keeps its blocks", () => {
    expect(told(["suid", "dev", "discard"], fsType)).toEqual(expect.arrayContaining(["nosuid", "nodev", "nodiscard"]));
    expect(told(["suid", "dev", "discard"], fsType)).not.toEqual(expect.arrayContaining(["suid"]));
  });

  test("is read-only where that is asked for", () => {
    expect(told([], fsType, true)).toContain("ro");
    expect(told([], fsType)).not.toContain("ro");
  });
});

test("ext4 takes every option that a claim may name", () => {
  expect(told(ALLOWED, "ext4")).toEqual(expect.arrayContaining([...ALLOWED, "errors=remount-ro"]));
});

test("of those that xfs does not know it is told none", () => {
  expect(told(ALLOWED, "xfs").toSorted()).toEqual(["noatime", "nodev", "nodiscard", "nosuid", "nouuid", "ro"]);
});
