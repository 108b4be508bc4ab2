/** Device plugins: Kubernetes' sample, and one of ours whose devices break. */
import { join } from "node:path";
import { GPU, SAMPLE, TestPlugin } from "../../support/device-plugin.ts";
import type { Json } from "../harness/client.ts";
import type { Steps } from "../harness/steps.ts";
import { must, waitFor } from "../harness/wait.ts";
import {
  create,
  isOver,
  killEach,
  killPlugin,
  KUBELET,
  node,
  pod,
  podOf,
  podSpec,
  remove,
  running,
  startPlugin,
  unschedulable,
  until,
  type World,
} from "./world.ts";

/** In which what plugins say is to be the Node's: the agent asks every five. */
const SECONDS_MS = 15_000;
/** A plugin looks for a new socket every ten, and machines wait for it for a minute. */
const RETURN_MS = 60_000;

/** In order; each builds on those before it. */
export const deviceSteps: Steps<World> = {
  "the Node has a plugin's devices within seconds, and a pod that asks for one sees it": async (world) => {
    startPlugin(world, world.device);
    await counted(world, SAMPLE, "2", "2", SECONDS_MS);
    await create(world, asking(world, "first"));
    const first = await running(world, "first");
    const [device] = devicesOf(first);
    must(device?.resourceID === "Dev-1" || device?.resourceID === "Dev-2", first.status);
    must(device.health === "Healthy", device);
    const seen = await world.kubectl.run(["exec", "first", "--", "ls", "/tmp"]);
    must(seen === `${device.resourceID}\n`, seen);
  },

  "who asks for more than are free waits, and is refused in a kubelet's words where no scheduler asks": async (
    world,
  ) => {
    await create(world, asking(world, "second"));
    must(idsOf(await running(world, "second"))[0] !== idsOf(await running(world, "first"))[0], "one device twice");
    await create(world, asking(world, "third"));
    await unschedulable(world, "third", `Insufficient ${SAMPLE}`);
    await create(world, asking(world, "bound", { nodeName: node }));
    const { status } = await until(world, "bound", "to be over", isOver);
    must(status.phase === "Failed" && status.reason === `OutOf${SAMPLE}`, status);
    must(status.message.includes(`didn't have enough resource: ${SAMPLE}, requested: 1, used: 2, capacity: 2`), status);
    await remove(world, "bound");
  },

  "a plugin that is killed takes its devices off the Node, and from no pod": async (world) => {
    await killPlugin(world.device);
    await counted(world, SAMPLE, "0", "2", SECONDS_MS);
    const first = await told(world, "first", "Unknown");
    must(first.status.containerStatuses[0].restartCount === 0, first.status);
    startPlugin(world, world.device);
    await counted(world, SAMPLE, "2", "2", RETURN_MS);
    await told(world, "first", "Healthy");
  },

  "a backend that is killed gives nothing twice": async (world) => {
    const before = idsOf(await pod(world, "first"));
    await world.environment.backend.restart("SIGKILL");
    await counted(world, SAMPLE, "2", "2", RETURN_MS);
    const first = await told(world, "first", "Healthy");
    must(idsOf(first)[0] === before[0] && first.status.containerStatuses[0].restartCount === 0, first.status);
    await remove(world, "second");
    // The third has waited for this.
    must(idsOf(await running(world, "third"))[0] !== before[0], "one device twice");
    await remove(world, "first", "third");
  },

  "a device that fails leaves what is allocatable, and its pod says so": async (world) => {
    const plugin = new TestPlugin();
    await plugin.listen(join(KUBELET, "plugins_registry/gpu.sock"));
    await counted(world, GPU, "2", "2", SECONDS_MS);
    await create(world, asking(world, "watched", { resource: GPU }));
    const [id] = idsOf(await running(world, "watched"), GPU);
    plugin.break(id!);
    await counted(world, GPU, "1", "2", SECONDS_MS);
    await told(world, "watched", "Unhealthy", GPU);
    plugin.break();
    await told(world, "watched", "Healthy", GPU);
    await remove(world, "watched");
    plugin.die();
  },

  "plugin, backend and agent are killed while pods come and go, and no device has two": async (world) => {
    await killEach(world, {
      name: "pair",
      spec: podSpec(world, limits(SAMPLE)),
      plugin: world.device,
      isWhole: () => counted(world, SAMPLE, "2", "2", RETURN_MS),
      ownOf: (found) => idsOf(found),
    });
  },
};

const limits = (resource: string): Json => ({ resources: { limits: { [resource]: "1" } } });

function asking(
  world: World,
  name: string,
  { nodeName, resource = SAMPLE }: { nodeName?: string; resource?: string } = {},
): Json {
  return podOf(name, podSpec(world, limits(resource), { nodeName }));
}

/** Of the pod's device. */
async function told(world: World, name: string, health: string, resource = SAMPLE): Promise<Json> {
  const what = `to have a device that is ${health}`;
  return await until(world, name, what, (found) => devicesOf(found, resource)[0]?.health === health);
}

/** What the Node has of a resource. */
async function counted(
  { environment }: World,
  resource: string,
  allocatable: string,
  capacity: string,
  timeoutMs: number,
): Promise<void> {
  await waitFor({ what: `${allocatable} of ${capacity} ${resource} on the Node`, timeoutMs }, async () => {
    const { status } = await environment.cluster.admin.get(`/api/v1/nodes/${node}`);
    const is = [status.allocatable[resource], status.capacity[resource]];
    must(is[0] === allocatable && is[1] === capacity, is);
  });
}

function devicesOf({ status }: Json, resource = SAMPLE): Json[] {
  const all: Json[] = status.containerStatuses?.[0]?.allocatedResourcesStatus ?? [];
  return all.flatMap(({ name, resources }) => (name === resource ? resources : []));
}

const idsOf = (found: Json, resource = SAMPLE): string[] =>
  devicesOf(found, resource).map(({ resourceID }) => resourceID);
