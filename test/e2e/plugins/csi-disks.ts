/**
 * Persistent volumes of a CSI driver of others: attached by the cluster's own controller, staged and mounted by the node
 * plugin on the backend's host. Its attacher is played here: it says that a volume is attached, and looks what the host
 * has of it at the instant in which it is asked to detach it.
 */
import { join } from "node:path";
import { mountsBelow } from "../../../providers/local/host/mounts.ts";
import type { Json } from "../harness/client.ts";
import type { Steps } from "../harness/steps.ts";
import { must, waitFor } from "../harness/wait.ts";
import { DRIVER, isClear, registered, STORAGE } from "./csi.ts";
import {
  create,
  killEach,
  killPlugin,
  KUBELET,
  podOf,
  podSpec,
  READY_MS,
  remove,
  running,
  startPlugin,
  warned,
  type World,
} from "./world.ts";

const CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES = "/api/v1/persistentvolumes";
const ATTACHMENTS = `${STORAGE}/volumeattachments`;
/** While it is there, a detachment is asked for, and not done. */
const FINALIZER = "external-attacher/csi-example-com";
const DISK = "disk-1";

export const diskSteps: Steps<World> = {
  "a pod's persistent volume is attached, staged with what came of that, and mounted": async (world) => {
    await create(world, volume, VOLUMES);
    await create(world, claim, CLAIMS);
    await using _ = await attacher(world);
    await create(world, podOf("owner", podSpec(world, MOUNTING, WITH_DISK)));
    await running(world, "owner");
    const staged: Json = JSON.parse(await world.kubectl.run(["exec", "owner", "--", "cat", "/data/staged.json"]));
    must(staged.publishContext.dev === "sdb" && staged.volumeContext.share === "d", staged);
    await remove(world, "owner");
    await isGone(world);
  },

  "a volume is not detached while its driver is away, and so has it staged still": async (world) => {
    await using played = await attacher(world);
    await create(world, podOf("owner", podSpec(world, MOUNTING, WITH_DISK)));
    await running(world, "owner");
    await killPlugin(world.csi);
    await world.kubectl.run(["delete", "pod", "owner", "--wait=false"]);
    await warned(world, "owner", "FailedUnmount");
    must((await staged()).length === 1 && played.detachments() === 0, [await staged(), played.detachments()]);
    startPlugin(world, world.csi);
    await isGone(world);
    must(played.detachments() === 1, played.detachments());
  },

  "a claim says that its volume has grown once a pod has it": async (world) => {
    const { admin } = world.environment.cluster;
    await using _ = await attacher(world);
    await admin.patch(`${VOLUMES}/${DISK}`, { spec: { capacity: { storage: "2Gi" } } });
    await create(world, podOf("owner", podSpec(world, MOUNTING, WITH_DISK)));
    await waitFor({ what: "the claim's new size", timeoutMs: READY_MS }, async () => {
      const { status } = await admin.get(`${CLAIMS}/${DISK}`);
      must(status.capacity.storage === "2Gi", status);
    });
    await remove(world, "owner");
    await isGone(world);
  },

  "driver, backend and agent are killed while pods share a volume, and it is detached only when it is unstaged": async (
    world,
  ) => {
    await using played = await attacher(world);
    await killEach(world, {
      name: "sharing",
      spec: podSpec(world, MOUNTING, WITH_DISK),
      plugin: world.csi,
      isWhole: () => registered(world),
      check: async ({ metadata }) => {
        const said = await world.kubectl.run(["exec", metadata.name, "--", "cat", "/data/staged.json"]);
        must(said.includes("sdb"), [said, metadata]);
      },
    });
    await isGone(world);
    must(played.detachments() > 0, played.detachments());
  },
};

const MOUNTING: Json = { volumeMounts: [{ name: "data", mountPath: "/data" }] };
const WITH_DISK: Json = { volumes: [{ name: "data", persistentVolumeClaim: { claimName: DISK } }] };

const volume: Json = {
  apiVersion: "v1",
  kind: "PersistentVolume",
  metadata: { name: DISK },
  spec: {
    capacity: { storage: "1Gi" },
    accessModes: ["ReadWriteOnce"],
    persistentVolumeReclaimPolicy: "Retain",
    storageClassName: "",
    claimRef: { namespace: "default", name: DISK },
    csi: { driver: DRIVER, volumeHandle: DISK, volumeAttributes: { share: "d" } },
  },
};

const claim: Json = {
  apiVersion: "v1",
  kind: "PersistentVolumeClaim",
  metadata: { name: DISK },
  spec: {
    ...{ storageClassName: "", volumeName: DISK, accessModes: ["ReadWriteOnce"] },
    resources: { requests: { storage: "1Gi" } },
  },
};

/** What drivers have staged on this host. */
const staged = () => mountsBelow(join(KUBELET, "plugins"));

/** Nothing is mounted, staged or attached. */
async function isGone(world: World): Promise<void> {
  await isClear(world);
  const { admin } = world.environment.cluster;
  await waitFor({ what: "the volume to be detached", timeoutMs: READY_MS }, async () => {
    const { items } = await admin.get(ATTACHMENTS);
    must(items.length === 0 && (await staged()).length === 0, [items, await staged()]);
  });
}

/** Attaches and detaches what is asked for. Throws in the end when it was asked to detach what was still staged. */
async function attacher({ environment }: World) {
  const { admin } = environment.cluster;
  const stopped = new AbortController();
  const early: string[] = [];
  let detached = 0;
  const serve = async ({ metadata, status }: Json) => {
    const path = `${ATTACHMENTS}/${metadata.name}`;
    if (metadata.deletionTimestamp !== undefined) {
      early.push(...(await staged()));
      detached++;
      await admin.patch(path, { metadata: { finalizers: null } });
    } else if (status?.attached !== true) {
      await admin.patch(path, { metadata: { finalizers: [FINALIZER] } });
      await admin.patch(`${path}/status`, { status: { attached: true, attachmentMetadata: { dev: "sdb" } } });
    }
  };
  const work = async () => {
    for await (const { type, object } of admin.watch(ATTACHMENTS, stopped.signal))
      if (type !== "DELETED") await serve(object);
  };
  for (const each of (await admin.get(ATTACHMENTS)).items) await serve(each);
  const done = work().catch((thrown: unknown) => {
    if (!stopped.signal.aborted) early.push(`the attacher has ended: ${String(thrown)}`);
  });
  return {
    /** So many volumes it was asked to detach. */
    detachments: () => detached,
    async [Symbol.asyncDispose]() {
      stopped.abort();
      await done;
      must(early.length === 0, early);
    },
  };
}
