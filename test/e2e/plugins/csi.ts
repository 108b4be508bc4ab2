/** Inline volumes of a CSI driver whose node plugin runs on the backend's host: each a tmpfs with what the driver was told. */
import { join } from "node:path";
import { mountsBelow } from "../../../providers/local/host/mounts.ts";
import type { Json } from "../harness/client.ts";
import type { Steps } from "../harness/steps.ts";
import { must, waitFor } from "../harness/wait.ts";
import {
  create,
  killEach,
  killPlugin,
  KUBELET,
  node,
  podOf,
  podSpec,
  READY_MS,
  remove,
  running,
  startPlugin,
  warned,
  type World,
} from "./world.ts";

export const CSI_SOCKET = join(KUBELET, "plugins_registry/csi-reg.sock");
export const DRIVER = "csi.example.com";
export const STORAGE = "/apis/storage.k8s.io/v1";

/** In order; each builds on those before it. */
export const csiSteps: Steps<World> = {
  "a CSI driver registers, and the node's CSINode and labels say so": async (world) => {
    startPlugin(world, world.csi);
    await registered(world);
    const { metadata } = await world.environment.cluster.admin.get(`/api/v1/nodes/${node}`);
    must(metadata.labels["topology.example.com/rack"] === "r1", metadata.labels);
  },

  "an inline volume of a driver without a CSIDriver is waited for, in a kubelet's words": async (world) => {
    await create(world, podOf("early", podSpec(world, MOUNTING, WITH_VOLUME)));
    const words = `FailedMount: MountVolume.SetUp failed for volume "data" : volume mode "Ephemeral" not supported by driver ${DRIVER} (no CSIDriver object)`;
    await warned(world, "early", words);
    await create(world, csiDriver, `${STORAGE}/csidrivers`);
    await create(world, login, "/api/v1/namespaces/default/secrets");
    await running(world, "early");
    await remove(world, "early");
    await isClear(world);
  },

  "a pod has its volume, whose driver was told of the pod, its Secret and its token": async (world) => {
    await create(world, podOf("told", podSpec(world, MOUNTING, WITH_VOLUME)));
    const { metadata } = await running(world, "told");
    const said = await world.kubectl.run(["exec", "told", "--", "cat", "/data/told.json"]);
    const { volumeContext, secrets } = JSON.parse(said) as { volumeContext: Record<string, string>; secrets: Json };
    must(secrets.key === "s3cret" && volumeContext["share"] === "a", said);
    must(volumeContext["csi.storage.k8s.io/pod.uid"] === metadata.uid, said);
    const tokens: Json = JSON.parse(volumeContext["csi.storage.k8s.io/serviceAccount.tokens"] ?? "");
    must(String(tokens.vault.token).split(".").length === 3 && Date.parse(tokens.vault.expirationTimestamp) > 0, said);
    must((await mountsBelow(join(KUBELET, "pods", metadata.uid))).length === 1, metadata);
    await remove(world, "told");
    await isClear(world);
  },

  "a pod waits while the driver is away, and one that goes meanwhile is not held up for ever": async (world) => {
    await create(world, podOf("before", podSpec(world, MOUNTING, WITH_VOLUME)));
    await running(world, "before");
    await killPlugin(world.csi);
    await create(world, podOf("during", podSpec(world, MOUNTING, WITH_VOLUME)));
    await warned(world, "during", "FailedMount");
    await world.kubectl.run(["delete", "pod", "before", "--timeout=180s"]);
    await warned(world, "before", "FailedUnmount");
    startPlugin(world, world.csi);
    await running(world, "during");
    await remove(world, "during");
    await isClear(world);
  },

  "driver, backend and agent are killed while pods with volumes come and go, and nothing stays mounted": async (
    world,
  ) => {
    await killEach(world, {
      name: "mounting",
      spec: podSpec(world, MOUNTING, WITH_VOLUME),
      plugin: world.csi,
      isWhole: () => registered(world),
      check: async ({ metadata }) => {
        const said = await world.kubectl.run(["exec", metadata.name, "--", "cat", "/data/told.json"]);
        must(said.includes(metadata.uid), [said, metadata]);
      },
    });
    await isClear(world);
  },
};

const MOUNTING: Json = { volumeMounts: [{ name: "data", mountPath: "/data" }] };
const WITH_VOLUME: Json = {
  volumes: [
    {
      name: "data",
      csi: { driver: DRIVER, volumeAttributes: { share: "a" }, nodePublishSecretRef: { name: "login" } },
    },
  ],
};

const login: Json = { apiVersion: "v1", kind: "Secret", metadata: { name: "login" }, stringData: { key: "s3cret" } };

const csiDriver: Json = {
  apiVersion: "storage.k8s.io/v1",
  kind: "CSIDriver",
  metadata: { name: DRIVER },
  spec: {
    attachRequired: true,
    podInfoOnMount: true,
    volumeLifecycleModes: ["Ephemeral", "Persistent"],
    tokenRequests: [{ audience: "vault", expirationSeconds: 600 }],
  },
};

export async function registered({ environment }: World): Promise<void> {
  await waitFor({ what: "the driver in the CSINode", timeoutMs: READY_MS }, async () => {
    const { spec } = await environment.cluster.admin.get(`${STORAGE}/csinodes/${node}`);
    const entry = (spec.drivers as Json[]).find(({ name }) => name === DRIVER);
    must(entry?.nodeID === "host-1" && entry.allocatable.count === 8, spec);
    must(entry.topologyKeys.join() === "topology.example.com/rack", spec);
  });
}

/** Nothing is mounted for any pod. */
export async function isClear({ environment }: World): Promise<void> {
  await waitFor({ what: "all volumes to be taken back", timeoutMs: READY_MS }, async () => {
    const left = await mountsBelow(join(KUBELET, "pods"));
    must(left.length === 0, left);
    const machines = await environment.backend.machines();
    must(machines.length === 0, machines);
  });
}
