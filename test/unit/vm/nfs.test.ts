/** Folders of NFS servers: what a guest is told, and which options it does not have. */
import { describe, expect, test } from "vitest";
import { assertNfsOptions, nfsCommand, nfsCommands } from "../../../providers/local/engines/vm/nfs.ts";
import type { Volume } from "../../../src/provider/machine.ts";

type NfsVolume = Extract<Volume, { type: "nfs" }>;

const share = (more: Partial<NfsVolume> = {}): NfsVolume => ({
  ...{ name: "v", type: "nfs", server: "192.0.2.9", path: "/share" },
  ...more,
});
const told = (more: Parameters<typeof share>[0], server = "192.0.2.9") => nfsCommand(share(more), server, "10.99.0.2");
const ALWAYS = "addr=192.0.2.9,clientaddr=10.99.0.2";

test("a guest tries the newest version first, and trusts a server with nobody's rights", () => {
  const options = `rw,nosuid,nodev,${ALWAYS}`;
  expect(told({})).toEqual(["nfs", "v", "192.0.2.9:/share", options, "4.2", "4.1", "4.0"]);
});

test.each([
  [["nfsvers=4.1"], ["4.1"]],
  [["vers=4"], ["4.2", "4.1", "4.0"]],
  [["vers=4.2", "nfsvers=4.0"], ["4.0"]],
])("of %j it tries %j", (mount_options, versions) => {
  expect(told({ mount_options }).slice(4)).toEqual(versions);
});

test("what is mount.nfs' own is no word for the kernel, and nobody says another address", () => {
  const mount_options = ["bg", "retry=2", "hard", "timeo=600", "_netdev", "addr=192.0.2.1", "ro", "noatime"];
  expect(told({ mount_options })[3]).toBe(`ro,nosuid,nodev,hard,timeo=600,noatime,${ALWAYS}`);
  expect(told({ read_only: true })[3]).toBe(`ro,nosuid,nodev,${ALWAYS}`);
});

test("a server by its IPv6 address is told as URLs tell it", () => {
  const [, , source, options] = told({ server: "2001:db8::9" }, "2001:db8::9");
  expect([source, options]).toEqual(["[2001:db8::9]:/share", "rw,nosuid,nodev,addr=2001:db8::9"]);
});

test("a machine without such volumes asks nobody for addresses", async () => {
  expect(await nfsCommands({}, "10.99.0.2", new AbortController().signal)).toEqual([]);
});

test("a server whose name nobody knows is told by the volume's name", async () => {
  const spec = { volumes: [share({ server: "no such server" })] };
  const asked = nfsCommands(spec, "10.99.0.2", AbortSignal.timeout(20_000));
  await expect(asked).rejects.toThrow("volume v: the NFS server no such server is not known: ");
});

describe("an option", () => {
  const asked = (option: string) => () => assertNfsOptions({ volumes: [share({ mount_options: [option] })] });

  test.each(["vers=3", "nfsvers=2", "v3", "vers=4.3", "mountport=20048", "sec=krb5p", "proto=rdma"])(
    "%s is refused",
    (option) => expect(asked(option)).toThrow(`the mount option ${option} is not to be had`),
  );

  test.each(["vers=4", "nfsvers=4.2", "sec=sys", "proto=tcp", "nolock", "rsize=1048576", "nconnect=4"])(
    "%s is not",
    (option) => expect(asked(option)).not.toThrow(),
  );
});
