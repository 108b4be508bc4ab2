/** PersistentVolumes of CSI drivers of others: when a pod may have one, and what its driver is told then. */
import { createHash } from "node:crypto";
import { beforeEach, describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodDisks } from "../../../src/podspec/references/disks.ts";
import { csiVolumeName } from "../../../src/provider/csi-names.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { FakeKube } from "./fake-kube.ts";
import { podWithContainer } from "./fixtures.ts";

const { signal } = new AbortController();
const NODE = "/api/v1/nodes/burst-0";
const CLAIM = "/api/v1/namespaces/shop/persistentvolumeclaims/data-web-0";
const VOLUME = "/api/v1/persistentvolumes/pv-1";
const DRIVER = "csi.example.com";
const CSI_DRIVER = `/apis/storage.k8s.io/v1/csidrivers/${DRIVER}`;
const IN_USE = csiVolumeName(DRIVER, "disk-1");
const HASH = createHash("sha256").update(`disk-1${DRIVER}burst-0`).digest("hex");
const ATTACHMENT = `/apis/storage.k8s.io/v1/volumeattachments/csi-${HASH}`;

const podOf = (claim: object = {}, container: object = {}): Pod =>
  podWithContainer(
    { volumeMounts: [{ name: "data", mountPath: "/data" }], ...container },
    { volumes: [{ name: "data", persistentVolumeClaim: { claimName: "data-web-0", ...claim } }] },
  );

describe("a pod's persistent volume of a CSI driver of others", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let claimed: string[];
  let isTold: boolean;
  let offered: readonly string[];
  let disks: PodDisks;
  /** The API server's, by path; undefined: there is none. */
  let objects: Record<string, unknown>;

  const pv = (more: object = {}, csi: object = {}) => {
    objects[VOLUME] = {
      metadata: { name: "pv-1" },
      spec: {
        ...{ claimRef: { uid: "claim-uid" }, accessModes: ["ReadWriteOnce"], volumeMode: "Filesystem" },
        csi: { driver: DRIVER, volumeHandle: "disk-1", ...csi },
        ...more,
      },
    };
  };
  const csiDriver = (spec: object = {}) => {
    objects[CSI_DRIVER] = { metadata: { name: DRIVER }, spec: { volumeLifecycleModes: ["Persistent"], ...spec } };
  };
  const secret = (namespace: string, name: string, data: Record<string, string>) => {
    const encoded = Object.entries(data).map(([key, value]) => [key, Buffer.from(value).toString("base64")]);
    objects[`/api/v1/namespaces/${namespace}/secrets/${name}`] = { data: Object.fromEntries(encoded) as object };
  };

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    [claimed, isTold, offered] = [[], true, ["volumes.persistent", "volumes.csi_persistent"]];
    objects = {
      [CLAIM]: {
        metadata: { uid: "claim-uid", name: "data-web-0" },
        spec: { volumeName: "pv-1" },
        status: { phase: "Bound", capacity: { storage: "1Gi" } },
      },
      [NODE]: { status: { volumesAttached: [{ name: IN_USE, devicePath: "" }] } },
      [ATTACHMENT]: { metadata: {}, status: { attached: true, attachmentMetadata: { dev: "sdb" } } },
    };
    pv();
    csiDriver();
    kube.intercept = ({ path }) => {
      if (objects[path] === undefined && path.includes("/secrets/"))
        throw apiError(404, "NotFound", { details: { kind: "secrets", name: path.split("/").at(-1)! } });
      return objects[path];
    };
    disks = new PodDisks({
      kube,
      nodeName: "burst-0",
      reservation: "abc.burst-0",
      use: {
        claim: (_uid, names) => {
          claimed.push(...names);
          return isTold;
        },
        isOthers: () => false,
        isHeldByOthers: () => Promise.resolve(false),
        release: () => undefined,
      },
      tokens: {
        issueOne: (_pod, { audience }) =>
          Promise.resolve({ token: `t-${audience}`, expirationTimestamp: "2030-01-01T00:00:00Z" }),
      },
      offers: (capability) => offered.includes(capability),
      clock,
      random: () => 0,
      onChange: () => undefined,
    });
  });

  const read = async (pod: Pod = podOf()) => (await disks.read(pod, signal)).get("data");
  const disk = async (pod: Pod = podOf()) => {
    const found = await read(pod);
    return found?.kind === "found" ? found.disk : found;
  };
  const asked = () => kube.requests.map(({ path }) => path);
  const persistent = { volume: "disk-1", pv: "pv-1", access_mode: "read_write_once" };

  test("is had once it is told of, attached, and its attachment says so, with what came of that", async () => {
    expect(await disk()).toEqual({
      ...{ type: "csi", driver: DRIVER },
      persistent: { ...persistent, publish_context: { dev: "sdb" } },
    });
    expect(claimed).toEqual([IN_USE]);
  });

  test("is told of as in use before anything is asked about its being attached", async () => {
    isTold = false;
    expect(await read()).toEqual({ kind: "waiting" });
    expect([asked().includes(NODE), asked().includes(ATTACHMENT)]).toEqual([false, false]);
  });

  test.each([
    ["the Node does not say that it is attached", NODE, { status: {} }],
    ["its attachment says that it is not", ATTACHMENT, { metadata: {}, status: { attached: false } }],
    [
      "its attachment is being deleted",
      ATTACHMENT,
      { metadata: { deletionTimestamp: "2026-01-01T00:00:00Z" }, status: { attached: true } },
    ],
  ])("is waited for without a word while %s", async (_why, path, object) => {
    objects[path] = object;
    expect(await read()).toEqual({ kind: "waiting" });
  });

  test("of a driver that attaches nothing is had when the Node tells of it", async () => {
    csiDriver({ attachRequired: false });
    objects[NODE] = { status: {} };
    delete objects[ATTACHMENT];
    expect(await disk()).toEqual({ type: "csi", driver: DRIVER, persistent });
    expect([claimed, asked().includes(ATTACHMENT)]).toEqual([[IN_USE], false]);
    isTold = false;
    expect(await read()).toEqual({ kind: "waiting" });
  });

  test("of a driver without a CSIDriver is attached, as by a kubelet", async () => {
    kube.intercept = ({ path }) => {
      if (path === CSI_DRIVER) throw apiError(404, "NotFound", { details: { kind: "csidrivers", name: DRIVER } });
      return objects[path];
    };
    expect(await disk()).toMatchObject({ persistent: { publish_context: { dev: "sdb" } } });
  });

  test("of a driver for inline volumes alone is refused in a kubelet's words", async () => {
    csiDriver({ volumeLifecycleModes: ["Ephemeral"] });
    expect(await read()).toEqual({
      kind: "waiting",
      isWhole: true,
      message: `MountVolume.SetUp failed for volume "pv-1" : volume mode "Persistent" not supported by driver ${DRIVER} (only supports ["Ephemeral"])`,
    });
    expect(claimed).toEqual([]);
  });

  test("has all that the volume says of it", async () => {
    pv(
      { mountOptions: ["noatime"], accessModes: ["ReadWriteMany"] },
      { fsType: "xfs", volumeAttributes: { share: "a" } },
    );
    expect(await disk(podOf({ readOnly: true }))).toEqual({
      ...{ type: "csi", driver: DRIVER, fs_type: "xfs", read_only: true, attributes: { share: "a" } },
      persistent: {
        ...{ volume: "disk-1", pv: "pv-1", access_mode: "read_write_many", mount_options: ["noatime"] },
        publish_context: { dev: "sdb" },
      },
    });
  });

  test("has the secrets that the volume names, of whatever namespace, which are kept out of texts", async () => {
    pv(
      {},
      {
        nodeStageSecretRef: { namespace: "storage", name: "stage" },
        nodePublishSecretRef: { namespace: "storage", name: "publish" },
        nodeExpandSecretRef: { namespace: "storage", name: "expand" },
      },
    );
    secret("storage", "stage", { key: "one" });
    secret("storage", "publish", { key: "two" });
    const found = await read();
    expect(found).toMatchObject({
      disk: { secrets: { key: "two" }, persistent: { stage_secrets: { key: "one" } } },
      secrets: ["one", "two"],
    });
    // What does not grow needs no secret for that.
    expect(asked()).not.toContain("/api/v1/namespaces/storage/secrets/expand");
  });

  test("waits for a secret that is not there, in a kubelet's words, and stays told of", async () => {
    pv({}, { nodeStageSecretRef: { namespace: "storage", name: "stage" } });
    expect(await read()).toEqual({
      kind: "waiting",
      isWhole: true,
      message:
        'MountVolume.MountDevice failed for volume "pv-1" : fetching NodeStageSecretRef storage/stage failed: secrets "stage" not found',
    });
    expect(claimed).toEqual([IN_USE]);
    secret("storage", "stage", { key: "one" });
    expect(await disk()).toMatchObject({ persistent: { stage_secrets: { key: "one" } } });
  });

  test("tells its driver of the pod and gives it tokens where it wants that", async () => {
    csiDriver({ podInfoOnMount: true, tokenRequests: [{ audience: "vault" }], requiresRepublish: true });
    const found = await read();
    expect(found).toMatchObject({
      isStale: true,
      secrets: ["t-vault"],
      disk: {
        secret_attributes: { "csi.storage.k8s.io/serviceAccount.tokens": expect.stringContaining("t-vault") },
        persistent: {
          publish_attributes: {
            "csi.storage.k8s.io/pod.uid": "0a1b",
            "csi.storage.k8s.io/ephemeral": "false",
          },
        },
      },
    });
  });

  test.each([
    ["ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce"], true],
    ["ReadWriteOnceWithFSType", "ext4", ["ReadWriteOncePod"], true],
    ["ReadWriteOnceWithFSType", "ext4", ["ReadWriteMany"], undefined],
    ["ReadWriteOnceWithFSType", "", ["ReadWriteOnce"], undefined],
    ["File", "", ["ReadWriteMany"], true],
    ["None", "ext4", ["ReadWriteOnce"], undefined],
  ])(
    "is given to the pod's group by the driver's policy: %s, %s, %j",
    async (fsGroupPolicy, fsType, accessModes, is) => {
      csiDriver({ fsGroupPolicy });
      pv({ accessModes }, { fsType });
      expect(await disk()).toMatchObject({ type: "csi" });
      expect(((await disk()) as { apply_group?: boolean }).apply_group).toBe(is);
    },
  );

  test("that has grown is let grow on its host, with the secret for that", async () => {
    pv({ capacity: { storage: "2Gi" } }, { nodeExpandSecretRef: { namespace: "storage", name: "expand" } });
    secret("storage", "expand", { key: "three" });
    expect(await disk()).toMatchObject({
      persistent: { size_bytes: 2 * 2 ** 30, expand_secrets: { key: "three" } },
    });
  });

  const blockPod = (claim: object = {}) =>
    podOf(claim, { volumeMounts: [], volumeDevices: [{ name: "data", devicePath: "/dev/xvda" }] });

  test("as a block device is refused by name where the backend has none of drivers", async () => {
    pv({ volumeMode: "Block" });
    expect(await read(blockPod())).toEqual({
      kind: "waiting",
      isWhole: true,
      message: `MapVolume.MapPodDevice failed for volume "pv-1" : it has volumeMode Block, and this node gives machines volumes of the CSI driver ${DRIVER} as file systems alone (its backend lacks the capability volumes.csi_block)`,
    });
    expect(claimed).toEqual([]);
  });

  test("as a block device has nothing of a file system, and its driver is told of no tokens", async () => {
    offered = [...offered, "volumes.csi_block"];
    pv({ volumeMode: "Block", mountOptions: ["noatime"] }, { fsType: "ext4", volumeAttributes: { a: "1" } });
    csiDriver({ podInfoOnMount: true, fsGroupPolicy: "File", tokenRequests: [{ audience: "vault" }] });
    expect(await disk(blockPod({ readOnly: true }))).toEqual({
      ...{ type: "csi", driver: DRIVER, read_only: true, attributes: { a: "1" } },
      persistent: {
        ...persistent,
        mode: "block",
        publish_context: { dev: "sdb" },
        publish_attributes: expect.objectContaining({ "csi.storage.k8s.io/ephemeral": "false" }) as object,
      },
    });
  });

  test("as a block device waits in a kubelet's words of devices for its secrets", async () => {
    offered = [...offered, "volumes.csi_block"];
    pv({ volumeMode: "Block" }, { nodeStageSecretRef: { namespace: "storage", name: "stage" } });
    expect(await read(blockPod())).toMatchObject({
      message: expect.stringMatching(/^MapVolume\.SetUpDevice failed for volume "pv-1" : /) as string,
    });
  });

  test("is refused where the backend has none, and so is one of vmlet's own", async () => {
    offered = ["volumes.persistent"];
    expect(await read()).toMatchObject({ message: expect.stringContaining(`is of the CSI driver ${DRIVER}`) });
    offered = ["volumes.csi_persistent"];
    pv({}, { driver: "volumes.vmlet.dev" });
    expect(await read()).toMatchObject({ message: expect.stringContaining("is of the CSI driver volumes.vmlet.dev") });
  });
});
