/** Dynamic Resource Allocation, with the driver of Kubernetes' own tests: two devices, which are variables in containers. */
import { existsSync, readdirSync } from "node:fs";
import type { Json } from "../harness/client.ts";
import type { Steps } from "../harness/steps.ts";
import { must, waitFor } from "../harness/wait.ts";
import {
  create,
  killEach,
  killPlugin,
  node,
  pod,
  podOf,
  podSpec,
  READY_MS,
  remove,
  running,
  startPlugin,
  stopPlugin,
  unschedulable,
  until,
  warned,
  type World,
} from "./world.ts";

export const DRIVER = "test-driver.cdi.k8s.io";
export const CDI = "/var/run/cdi";
const RESOURCES = "/apis/resource.k8s.io/v1";
const CLAIMS = `${RESOURCES}/namespaces/default/resourceclaims`;

/** In order; each builds on those before it. */
export const claimSteps: Steps<World> = {
  "a driver publishes its devices, and the container that names a claim has what was allocated": async (world) => {
    await create(world, deviceClass, `${RESOURCES}/deviceclasses`);
    await create(world, claimTemplate, `${RESOURCES}/namespaces/default/resourceclaimtemplates`);
    startPlugin(world, world.driver);
    await published(world);
    const spec = podSpec(world, CLAIMING, WITH_CLAIM);
    const { resources: _resources, ...other } = spec.containers[0];
    spec.containers.push({ ...other, name: "other" });
    await create(world, podOf("one", spec));
    const { status } = await running(world, "one");
    const variables = (container: string) => world.kubectl.run(["exec", "one", "-c", container, "--", "env"]);
    const seen = await variables("main");
    must(seen.includes(variableOfClaim(status)) && seen.includes("user_answer=42"), seen);
    const others = await variables("other");
    must(!others.includes("claim_"), others);
  },

  "a pod waits while all devices are allocated, and has one when another gives its own back": async (world) => {
    await create(world, podOf("two", podSpec(world, CLAIMING, WITH_CLAIM)));
    await running(world, "two");
    await create(world, podOf("three", podSpec(world, CLAIMING, WITH_CLAIM)));
    await unschedulable(world, "three", "cannot allocate all claims");
    must(prepared().length === 2, prepared());
    await remove(world, "one");
    await running(world, "three");
    await remove(world, "two", "three");
    // The driver has taken them back: a claim's file is gone with it.
    must(prepared().length === 0, prepared());
    await gone(world);
  },

  "a container that asks for an extended resource which the driver has gets a device, and its neighbour none": async (
    world,
  ) => {
    await create(world, extendedClass, `${RESOURCES}/deviceclasses`);
    const asking = { resources: { requests: { [EXTENDED]: "1" }, limits: { [EXTENDED]: "1" } } };
    const spec = podSpec(world, asking);
    const { resources: _resources, ...other } = spec.containers[0];
    spec.containers.push({ ...other, name: "other" });
    await create(world, podOf("extended", spec));
    const { status } = await running(world, "extended");
    const { resourceClaimName, requestMappings } = status.extendedResourceClaimStatus;
    const variables = (container: string) => world.kubectl.run(["exec", "extended", "-c", container, "--", "env"]);
    const seen = await variables("main");
    must(seen.includes(variableOf(resourceClaimName, requestMappings[0].requestName)), [seen, status]);
    const others = await variables("other");
    must(!others.includes("claim_"), others);
    await remove(world, "extended");
    must(prepared().length === 0, prepared());
    await gone(world);
  },

  "a pod whose claim is not allocated waits, in a kubelet's words": async (world) => {
    const claim = {
      apiVersion: "resource.k8s.io/v1",
      kind: "ResourceClaim",
      metadata: { name: "mine" },
      spec: DEVICES,
    };
    await create(world, claim, CLAIMS);
    const spec = { nodeName: node, resourceClaims: [{ name: "gpu", resourceClaimName: "mine" }] };
    await create(world, podOf("bound", podSpec(world, CLAIMING, spec)));
    const words =
      "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: pod bound";
    await warned(world, "bound", words);
    must((await pod(world, "bound")).status.phase === "Pending", "it runs");
    await remove(world, "bound");
    await world.environment.cluster.admin.delete(`${CLAIMS}/mine`);
    await gone(world);
  },

  "a pod waits while the driver is away, and another is not gone before the driver has taken its claim back": async (
    world,
  ) => {
    await create(world, podOf("before", podSpec(world, CLAIMING, WITH_CLAIM)));
    await running(world, "before");
    await killPlugin(world.driver);
    await create(world, podOf("during", podSpec(world, CLAIMING, WITH_CLAIM)));
    await warned(world, "during", "FailedPrepareDynamicResources");
    await world.kubectl.run(["delete", "pod", "before", "--wait=false"]);
    await warned(world, "before", "FailedUnprepareDynamicResources");
    await until(world, "before", "to have stopped, and to be there", ({ metadata, status }) =>
      Boolean(metadata.deletionTimestamp && !status.containerStatuses[0].ready),
    );
    startPlugin(world, world.driver);
    await running(world, "during");
    await world.kubectl.run(["wait", "--for=delete", "pod/before", `--timeout=${READY_MS}ms`]);
    await remove(world, "during");
    await gone(world);
  },

  "driver, backend and agent are killed while pods come and go, and no claim is left": async (world) => {
    await killEach(world, {
      name: "claiming",
      spec: podSpec(world, CLAIMING, WITH_CLAIM),
      plugin: world.driver,
      isWhole: () => published(world),
      check: async ({ metadata, status }) => {
        const seen = await world.kubectl.run(["exec", metadata.name, "--", "env"]);
        must(seen.includes(variableOfClaim(status)), [seen, status]);
      },
    });
    await gone(world);
  },

  "a driver that has gone, or was killed, takes its devices with it, and is back with them": async (world) => {
    for (const end of [stopPlugin, killPlugin]) {
      await end(world.driver);
      await waitFor({ what: "the driver's slices to be removed", timeoutMs: READY_MS }, async () => {
        const slices = await slicesOf(world);
        must(slices.length === 0, slices);
      });
      startPlugin(world, world.driver);
      await published(world);
    }
  },
};

const DEVICES: Json = {
  devices: {
    requests: [{ name: "gpu", exactly: { deviceClassName: "test" } }],
    config: [{ requests: ["gpu"], opaque: { driver: DRIVER, parameters: { answer: "42" } } }],
  },
};
const CLAIMING: Json = { resources: { claims: [{ name: "gpu" }] } };
const WITH_CLAIM: Json = { resourceClaims: [{ name: "gpu", resourceClaimTemplateName: "gpu" }] };

const deviceClass: Json = {
  apiVersion: "resource.k8s.io/v1",
  kind: "DeviceClass",
  metadata: { name: "test" },
  spec: { selectors: [{ cel: { expression: `device.driver == "${DRIVER}"` } }] },
};

const EXTENDED = "test.example/device";
const extendedClass: Json = {
  ...deviceClass,
  metadata: { name: "extended" },
  spec: { ...deviceClass.spec, extendedResourceName: EXTENDED },
};

const claimTemplate: Json = {
  apiVersion: "resource.k8s.io/v1",
  kind: "ResourceClaimTemplate",
  metadata: { name: "gpu" },
  spec: { spec: DEVICES },
};

/** By which the driver says that a container has a request of a claim. */
const variableOf = (claim: string, request: string) =>
  `claim_${claim}_${request}`.replaceAll(/[^a-zA-Z0-9]/g, "_") + "=true";

/** The same of the claim that is the pod's by the template. */
const variableOfClaim = ({ resourceClaimStatuses: [claim] }: Json) => variableOf(claim.resourceClaimName, "gpu");

async function slicesOf({ environment }: World): Promise<Json[]> {
  const { items } = await environment.cluster.admin.get(`${RESOURCES}/resourceslices`);
  return (items as Json[]).filter(({ spec }) => spec.nodeName === node);
}

async function published(world: World): Promise<void> {
  await waitFor({ what: "the driver's devices", timeoutMs: READY_MS }, async () => {
    const slices = await slicesOf(world);
    must(slices.flatMap(({ spec }) => spec.devices).length === 2, slices);
  });
}

/** The driver's files, of claims that it has ready. */
const prepared = (): string[] => (existsSync(CDI) ? readdirSync(CDI).filter((name) => name.startsWith(DRIVER)) : []);

/** Nothing has or claims a device any more. */
async function gone({ environment }: World): Promise<void> {
  await waitFor({ what: "all claims to be gone", timeoutMs: READY_MS }, async () => {
    const { items } = await environment.cluster.admin.get(CLAIMS);
    must(items.length === 0, items);
    const machines = await environment.backend.machines();
    must(machines.length === 0, machines);
  });
}
