import { createHash } from "node:crypto";
import { beforeEach, describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodDisks } from "../../../src/podspec/references/disks.ts";
import { CSI_DRIVER, csiVolumeName } from "../../../src/provider/csi-names.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube } from "./fake-kube.ts";
import { podWithContainer } from "./fixtures.ts";

const { signal } = new AbortController();
const NODE = "/api/v1/nodes/burst-0";
const CLAIM = "/api/v1/namespaces/shop/persistentvolumeclaims/data-web-0";
const VOLUME = "/api/v1/persistentvolumes/pv-1";
const HANDLE = "abc.pvc-1";
const IN_USE = csiVolumeName(CSI_DRIVER, HANDLE);
const attachmentOf = (handle: string) =>
  `/apis/storage.k8s.io/v1/volumeattachments/csi-${createHash("sha256").update(`${handle}volumes.vmlet.devburst-0`).digest("hex")}`;

const CSI = { driver: "volumes.vmlet.dev", volumeHandle: HANDLE };
const SPEC = { claimRef: { uid: "claim-uid" }, csi: CSI, accessModes: ["ReadWriteOnce"], volumeMode: "Filesystem" };

const podOf = (volume: object = { persistentVolumeClaim: { claimName: "data-web-0" } }, container: object = {}): Pod =>
  podWithContainer(
    { volumeMounts: [{ name: "data", mountPath: "/data" }], ...container },
    { volumes: [{ name: "data", ...volume }] },
  );

describe("a pod's persistent volume", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let changed: string[];
  let claimed: [string, readonly string[]][];
  let released: string[];
  let isTold: boolean;
  /** By machines that an earlier agent has asked for. */
  let held: readonly string[];
  let disks: PodDisks;
  let offered: readonly string[];
  /** The API server's, by path. */
  let objects: Record<string, unknown>;

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    [changed, claimed, released, isTold, held] = [[], [], [], true, []];
    offered = ["volumes.persistent"];
    objects = {
      [CLAIM]: {
        metadata: { uid: "claim-uid", name: "data-web-0" },
        spec: { volumeName: "pv-1" },
        status: { phase: "Bound" },
      },
      [VOLUME]: { metadata: { name: "pv-1" }, spec: SPEC },
      [NODE]: { status: { volumesAttached: [{ name: IN_USE, devicePath: "" }] } },
      [attachmentOf(HANDLE)]: { metadata: {}, status: { attached: true } },
    };
    kube.intercept = ({ path }) => objects[path];
    disks = new PodDisks({
      kube,
      nodeName: "burst-0",
      reservation: "abc.burst-0",
      use: {
        claim: (uid, handles) => {
          claimed.push([uid, handles]);
          return isTold;
        },
        isOthers: (uid, handle) => claimed.some(([other, handles]) => other !== uid && handles.includes(handle)),
        isHeldByOthers: (_uid, handle) => Promise.resolve(held.includes(handle)),
        release: (uid) => void released.push(uid),
      },
      tokens: { issueOne: () => Promise.reject(new Error("no tokens are issued here")) },
      offers: (capability) => offered.includes(capability),
      clock,
      random: () => 0,
      onChange: (uid) => void changed.push(uid),
    });
  });

  const read = async (pod: Pod = podOf()) => (await disks.read(pod, signal)).get("data");
  const asked = () => kube.requests.map(({ path }) => path);

  test("is had by the node's reservation once it is attached", async () => {
    expect(await read()).toEqual({
      kind: "found",
      disk: { type: "persistent", volume: HANDLE, reservation: "abc.burst-0" },
    });
  });

  test("is told of as in use before the API server is asked whether it is attached", async () => {
    isTold = false;
    expect(await read()).toEqual({ kind: "waiting" });
    expect(claimed).toEqual([["0a1b", [IN_USE]]]);
    expect(asked()).not.toContain(NODE);
    expect(asked()).not.toContain(attachmentOf(HANDLE));
  });

  test.each([
    ["the Node does not say so", NODE, { status: {} }],
    ["its VolumeAttachment says that it is not", attachmentOf(HANDLE), { metadata: {}, status: { attached: false } }],
    [
      "its VolumeAttachment is being deleted",
      attachmentOf(HANDLE),
      { metadata: { deletionTimestamp: "2026-01-01T00:00:00Z" }, status: { attached: true } },
    ],
  ])("is waited for without a word while it is not attached: %s", async (_why, path, object) => {
    objects[path] = object;
    expect(await read()).toEqual({ kind: "waiting" });
  });

  test("for one pod alone is not claimed for a second one, and says so in a kubelet's words", async () => {
    objects[VOLUME] = { metadata: { name: "pv-1" }, spec: { ...SPEC, accessModes: ["ReadWriteOncePod"] } };
    claimed.push(["first", [IN_USE]]);
    expect(await read()).toEqual({
      kind: "waiting",
      message:
        "error processing PVC shop/data-web-0: volume uses the ReadWriteOncePod access mode and is already in use by another pod",
    });
    claimed.length = 0;
    expect(await read()).toMatchObject({ kind: "found" });
  });

  test("for one pod alone is not claimed for a second one of an agent that has begun since", async () => {
    objects[VOLUME] = { metadata: { name: "pv-1" }, spec: { ...SPEC, accessModes: ["ReadWriteOncePod"] } };
    held = [IN_USE];
    expect(await read()).toEqual({
      kind: "waiting",
      message:
        "error processing PVC shop/data-web-0: volume uses the ReadWriteOncePod access mode and is already in use by another pod",
    });
    expect(claimed).toEqual([]);
    held = [];
    expect(await read()).toMatchObject({ kind: "found" });
  });

  describe("that is a path of a node", () => {
    const hosts = (spec: object) => {
      objects[VOLUME] = { metadata: { name: "pv-1" }, spec: { ...SPEC, csi: undefined, ...spec } };
    };
    beforeEach(() => void (offered = ["volumes.host"]));

    test("is had at once, and a local one becomes the pod's group's", async () => {
      hosts({ local: { path: "/mnt/disk" } });
      const disk = { type: "host", path: "/mnt/disk", path_type: "Directory", fs_group: true, fs_type: "ext4" };
      expect(await read()).toEqual({ kind: "found", disk });
      expect(asked()).toEqual([CLAIM, VOLUME]);
    });

    test.each([
      ["xfs", "xfs"],
      ["", "ext4"],
      // Then a device is refused, for it is no folder.
      ["btrfs", undefined],
    ])("is had with the file system that it names, if it is a device: %j", async (fsType, expected) => {
      hosts({ local: { path: "/dev/sdz", fsType } });
      const disk = { type: "host", path: "/dev/sdz", path_type: "Directory", fs_group: true };
      expect(await read()).toEqual({ kind: "found", disk: expected ? { ...disk, fs_type: expected } : disk });
    });

    test("is had as its type says, as it is", async () => {
      hosts({ hostPath: { path: "/data", type: "DirectoryOrCreate" } });
      const disk = { type: "host", path: "/data", path_type: "DirectoryOrCreate" };
      expect(await read()).toEqual({ kind: "found", disk });
    });

    test("is had as a block device", async () => {
      hosts({ local: { path: "/dev/sdz" }, volumeMode: "Block" });
      const pod = podOf(undefined, { volumeMounts: [], volumeDevices: [{ name: "data", devicePath: "/dev/x" }] });
      expect(await read(pod)).toEqual({
        kind: "found",
        disk: { type: "host", path: "/dev/sdz", path_type: "BlockDevice" },
      });
    });

    test("is read-only for a pod that claims it so", async () => {
      hosts({ local: { path: "/mnt/disk" } });
      const pod = podOf({ persistentVolumeClaim: { claimName: "data-web-0", readOnly: true } });
      expect(await read(pod)).toEqual({
        kind: "found",
        disk: { type: "host", path: "/mnt/disk", path_type: "Directory", read_only: true, fs_type: "ext4" },
      });
    });

    test("is a read-only block device for a pod that claims it so", async () => {
      hosts({ local: { path: "/dev/sdz" }, volumeMode: "Block" });
      const claim = { persistentVolumeClaim: { claimName: "data-web-0", readOnly: true } };
      const pod = podOf(claim, { volumeMounts: [], volumeDevices: [{ name: "data", devicePath: "/dev/x" }] });
      expect(await read(pod)).toEqual({
        kind: "found",
        disk: { type: "host", path: "/dev/sdz", path_type: "BlockDevice", read_only: true },
      });
    });

    test.each(["", "data", "/a/../b"])("is held while its path is none: %j", async (path) => {
      hosts({ local: { path } });
      expect(await read()).toMatchObject({ kind: "waiting", message: expect.stringContaining("which is none") });
    });

    test("is held on another node than those that it names, for a pod that has passed the scheduler by", async () => {
      const matchExpressions = [{ key: "kubernetes.io/hostname", operator: "In", values: ["burst-0"] }];
      const nodeAffinity = { required: { nodeSelectorTerms: [{ matchExpressions }] } };
      hosts({ local: { path: "/mnt/disk" }, nodeAffinity });
      const seen = (hostname: string) =>
        disks.nodeChanged({ metadata: { name: "burst-0", labels: { "kubernetes.io/hostname": hostname } } });
      expect(await read()).toEqual({ kind: "waiting" });
      seen("burst-1");
      expect(await read()).toEqual({
        kind: "waiting",
        isWhole: true,
        message: `MountVolume.NodeAffinity check failed for volume "pv-1" : no matching NodeSelectorTerms`,
      });
      seen("burst-0");
      expect(await read()).toMatchObject({ kind: "found" });
    });

    test("is held for a pod that may have no path of the backend's host", async () => {
      offered = [];
      hosts({ local: { path: "/etc" } });
      expect(await read()).toMatchObject({ kind: "waiting", message: expect.stringContaining("engine.host") });
    });
  });

  describe("that is a folder of an NFS server", () => {
    const served = (nfs: object, spec: object = {}) => {
      objects[VOLUME] = { metadata: { name: "pv-1" }, spec: { ...SPEC, csi: undefined, nfs, ...spec } };
    };
    beforeEach(() => void (offered = ["volumes.nfs"]));

    test("is had at once, as it is mounted for all", async () => {
      served({ server: "files.example", path: "/share" }, { mountOptions: ["nfsvers=4.1"] });
      const disk = { type: "nfs", server: "files.example", path: "/share", mount_options: ["nfsvers=4.1"] };
      expect(await read()).toEqual({ kind: "found", disk });
      expect(asked()).toEqual([CLAIM, VOLUME]);
    });

    test("is read-only where the volume says so", async () => {
      served({ server: "files.example", path: "/share", readOnly: true });
      expect(await read()).toMatchObject({ kind: "found", disk: { read_only: true } });
    });

    test("is held where the backend mounts none", async () => {
      offered = [];
      served({ server: "files.example", path: "/share" });
      expect(await read()).toMatchObject({ kind: "waiting", message: expect.stringContaining("volumes.nfs") });
    });
  });

  test("for a node is claimed for a second pod of it", async () => {
    claimed.push(["first", [IN_USE]]);
    held = [IN_USE];
    expect(await read()).toMatchObject({ kind: "found" });
  });

  test("is waited for while the API server does not answer what is attached", async () => {
    kube.intercept = ({ path }) => {
      if (path === NODE) throw failure(500, "InternalError");
      return objects[path];
    };
    expect(await read()).toEqual({ kind: "waiting" });
  });

  test("is looked for again when the Node says that something was attached, and later and later without", async () => {
    objects[NODE] = { status: {} };
    await read();
    disks.nodeChanged({ status: { volumesAttached: [{ name: "x", devicePath: "" }] } });
    expect(changed).toEqual(["0a1b"]);
    disks.nodeChanged({ status: { volumesAttached: [{ name: "x", devicePath: "" }] } });
    expect(changed).toHaveLength(1);
    await clock.advance(500);
    expect(changed).toHaveLength(2);
    await read();
    await clock.advance(500);
    expect(changed).toHaveLength(2);
    await clock.advance(500);
    expect(changed).toHaveLength(3);
  });

  test("of a pod that goes while its claims are read is not in use on its account afterwards", async () => {
    const answer = Promise.withResolvers<void>();
    kube.intercept = async ({ path }) => (await answer.promise, objects[path]);
    const reading = read();
    disks.release("0a1b");
    answer.resolve();
    expect(await reading).toEqual({ kind: "waiting" });
    expect(claimed).toEqual([]);
    await clock.advance(60_000);
    expect(changed).toEqual([]);
  });

  test("of a pod that is gone is looked for no more, and not in use on its account", async () => {
    objects[NODE] = { status: {} };
    await read();
    disks.release("0a1b");
    await clock.advance(60_000);
    expect([changed, released]).toEqual([[], ["0a1b"]]);
  });

  test.each([
    ["PVC is not bound", { ...boundTo("claim-uid"), status: { phase: "Pending" } }],
    ["PVC has empty pvc.Spec.VolumeName", { ...boundTo("claim-uid"), spec: {} }],
    [
      "PVC is being deleted",
      { ...boundTo("claim-uid"), metadata: { uid: "claim-uid", deletionTimestamp: "2026-01-01T00:00:00Z" } },
    ],
    [
      "found PV object pv-1 but its pv.Spec.ClaimRef.UID claim-uid does not point to claim.UID another",
      boundTo("another"),
    ],
  ])("is not had for a claim of which a kubelet says: %s", async (why, claim) => {
    objects[CLAIM] = claim;
    expect(await read()).toEqual({ kind: "waiting", message: `error processing PVC shop/data-web-0: ${why}` });
    expect(claimed).toEqual([]);
  });

  test("of a claim that is being deleted and protected is had: its pod was there before", async () => {
    objects[CLAIM] = {
      ...boundTo("claim-uid"),
      metadata: {
        uid: "claim-uid",
        deletionTimestamp: "2026-01-01T00:00:00Z",
        finalizers: ["kubernetes.io/pvc-protection"],
      },
    };
    expect(await read()).toMatchObject({ kind: "found" });
  });

  test("is not had for a claim that does not exist", async () => {
    delete objects[CLAIM];
    expect(await read()).toEqual({
      kind: "waiting",
      message:
        'error processing PVC shop/data-web-0: failed to fetch PVC from API server: persistentvolumeclaims "data-web-0" not found',
    });
  });

  test("is waited for without a word while the authorizer may not know of the pod yet", async () => {
    kube.intercept = () => {
      throw failure(403, "Forbidden");
    };
    const messages = [];
    for (let look = 0; look < 5; look++) messages.push(await read());
    expect(messages.slice(0, 4)).toEqual(Array(4).fill({ kind: "waiting" }));
    expect(messages[4]).toMatchObject({ message: expect.stringContaining("the server said 403") });
  });

  test.each([
    [{ csi: { driver: "other.example", volumeHandle: "x" } }, "is of the CSI driver other.example"],
    [
      { csi: undefined, iscsi: { targetPortal: "s", iqn: "i", lun: 0 } },
      "is no volume of the CSI driver volumes.vmlet.dev",
    ],
  ])("of another kind is held, with the reason", async (more, why) => {
    objects[VOLUME] = { spec: { ...SPEC, ...more } };
    expect(await read()).toMatchObject({ kind: "waiting", message: expect.stringContaining(why) });
  });

  test.each([
    ["Block", {}, "volume data has volumeMode Block, but is specified in volumeMounts"],
    [
      "Filesystem",
      { volumeMounts: [], volumeDevices: [{ name: "data", devicePath: "/dev/x" }] },
      "volume data has volumeMode Filesystem, but is specified in volumeDevices",
    ],
  ])("of mode %s is not had as the other", async (volumeMode, container, why) => {
    objects[VOLUME] = { spec: { ...SPEC, volumeMode } };
    expect(await read(podOf(undefined, container))).toMatchObject({ message: expect.stringContaining(why) });
  });

  test.each([
    ["the pod says so", SPEC, { persistentVolumeClaim: { claimName: "data-web-0", readOnly: true } }],
    ["the volume says so", { ...SPEC, csi: { ...CSI, readOnly: true } }, undefined],
    ["many nodes may only read it", { ...SPEC, accessModes: ["ReadOnlyMany"] }, undefined],
  ])("is read only where %s", async (_why, spec, volume) => {
    objects[VOLUME] = { spec };
    expect(await read(podOf(volume))).toMatchObject({ kind: "found", disk: { read_only: true } });
  });

  test("has the mount options of its PersistentVolume", async () => {
    objects[VOLUME] = { spec: { ...SPEC, mountOptions: ["noatime"] } };
    expect(await read()).toMatchObject({ kind: "found", disk: { mount_options: ["noatime"] } });
  });

  test("that is the pod's own is had when its claim was made for this pod, and no other's", async () => {
    const path = "/api/v1/namespaces/shop/persistentvolumeclaims/web-data";
    const own = podOf({ ephemeral: { volumeClaimTemplate: { spec: {} } } });
    const claim = boundTo("claim-uid");
    objects[path] = claim;
    expect(await read(own)).toMatchObject({ message: expect.stringContaining("(pod is not owner)") });
    const ownerReferences = [{ uid: "0a1b", controller: true }];
    objects[path] = { ...claim, metadata: { ...claim.metadata, ownerReferences } };
    expect(await read(own)).toMatchObject({ kind: "found" });
  });

  test("is had with all others of the pod, or none is", async () => {
    const pod = podWithContainer(
      { volumeMounts: ["data", "more"].map((name) => ({ name, mountPath: `/${name}` })) },
      {
        volumes: [
          { name: "data", persistentVolumeClaim: { claimName: "data-web-0" } },
          { name: "more", persistentVolumeClaim: { claimName: "more-web-0" } },
        ],
      },
    );
    expect([...(await disks.read(pod, signal)).values()].map(({ kind }) => kind)).toEqual(["waiting", "waiting"]);
    await settle();
    expect(claimed).toEqual([]);
  });

  test("costs nothing for a pod without one", async () => {
    expect((await disks.read(podWithContainer({}), signal)).size).toBe(0);
    expect(kube.requests).toEqual([]);
  });

  test("is refused with more than a pod may have of them", async () => {
    const names = Array.from({ length: 129 }, (_, index) => `v-${index}`);
    const pod = podWithContainer(
      { volumeMounts: names.map((name) => ({ name, mountPath: `/${name}` })) },
      { volumes: names.map((name) => ({ name, persistentVolumeClaim: { claimName: name } })) },
    );
    await expect(disks.read(pod, signal)).rejects.toThrow("the pod has 129 persistent volumes, more than 128");
    expect(kube.requests).toEqual([]);
  });
});

function boundTo(uid: string) {
  return { metadata: { uid }, spec: { volumeName: "pv-1" }, status: { phase: "Bound" } };
}
