/**
 * Plugins that extend a node, against a real control plane, on engine cri: Kubernetes' sample device plugin, and plugin,
 * backend and agent killed at each step.
 *
 * A program of its own, because it needs namespaces of its own: there, plugins find the backend where they find a
 * kubelet. It prints one line of JSON for each step; the test reads them.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { nodeNames, startEnvironment, type Environment } from "../conformance/kubernetes/environment.ts";
import { isInside, runInside, setUp } from "../conformance/kubernetes/namespaces.ts";
import { GPU, SAMPLE, TestPlugin } from "../support/device-plugin.ts";
import { busyboxImage } from "../support/registry.ts";
import { buildSampleDevicePlugin } from "./harness/build.ts";
import type { Json } from "./harness/client.ts";
import { runCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import type { ManagedProcess } from "./harness/processes.ts";
import { runSteps, type Steps } from "./harness/steps.ts";
import { must, waitFor } from "./harness/wait.ts";

interface World {
  environment: Environment;
  kubectl: Kubectl;
  plugin: { program: string; running?: ManagedProcess };
}

const [node] = nodeNames;
const KUBELET = "/var/lib/kubelet";
const PODS = "/api/v1/namespaces/default/pods";
const READY_MS = 120_000;
/** In which what plugins say is to be the Node's: the agent asks every five. */
const SECONDS_MS = 15_000;
/** A plugin looks for a new socket every ten, and machines wait for it for a minute. */
const RETURN_MS = 60_000;
const VICTIMS = ["plugin", "backend", "agent"] as const;

/** In order; each builds on those before it. */
const steps: Steps<World> = {
  "the Node has a plugin's devices within seconds, and a pod that asks for one sees it": async (world) => {
    startPlugin(world);
    await counted(world, SAMPLE, "2", "2", SECONDS_MS);
    await create(world, asking("first"));
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
    await create(world, asking("second"));
    must(idsOf(await running(world, "second"))[0] !== idsOf(await running(world, "first"))[0], "one device twice");
    await create(world, asking("third"));
    await waitFor({ what: "the scheduler to say why", timeoutMs: READY_MS }, async () => {
      const { status } = await pod(world, "third");
      const why: string = status.conditions?.find(({ type }: Json) => type === "PodScheduled")?.message ?? "";
      must(why.includes(`Insufficient ${SAMPLE}`), status);
    });
    await create(world, asking("bound", { nodeName: node }));
    const { status } = await over(world, "bound");
    must(status.phase === "Failed", status);
    const { reason, message } = status;
    must(reason === `OutOf${SAMPLE}`, status);
    must(message.includes(`didn't have enough resource: ${SAMPLE}, requested: 1, used: 2, capacity: 2`), status);
    await remove(world, "bound");
  },

  "a plugin that is killed takes its devices off the Node, and from no pod": async (world) => {
    await kill(world, "plugin");
    await counted(world, SAMPLE, "0", "2", SECONDS_MS);
    const first = await told(world, "first", "Unknown");
    must(first.status.containerStatuses[0].restartCount === 0, first.status);
    startPlugin(world);
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
    await create(world, asking("watched", { resource: GPU }));
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
    const { admin } = world.environment.cluster;
    await create(world, pair(0), "/apis/apps/v1/namespaces/default/deployments");
    const seen = watchForDoubles(world);
    try {
      for (const victim of VICTIMS)
        for (const replicas of [2, 0]) {
          const changed = seen.changed();
          await admin.patch("/apis/apps/v1/namespaces/default/deployments/pair", { spec: { replicas } });
          // In the midst of it: the first change that the pods show.
          await changed;
          await kill(world, victim);
          if (victim === "plugin") startPlugin(world);
          else if (victim === "backend") await world.environment.backend.start();
          else await world.environment.agents[0]!.start();
          await waitFor({ what: `${replicas} pods after the ${victim} was killed`, timeoutMs: READY_MS }, async () => {
            const pods = await alive(world);
            must(
              pods.length === replicas && pods.every(isReady),
              pods.map(({ status }) => status),
            );
          });
          // A plugin that cannot register ends, as the sample does; on a node its DaemonSet starts it again.
          await counted(world, SAMPLE, "2", "2", RETURN_MS);
        }
    } finally {
      seen.stop();
    }
    must(seen.doubles.length === 0, seen.doubles);
  },
};

export const stepNames = Object.keys(steps);

// --- what is done ---

function startPlugin({ environment, plugin }: World): void {
  plugin.running = environment.cluster.sandbox.spawn("device-plugin", plugin.program, []);
}

async function kill({ environment, plugin }: World, victim: (typeof VICTIMS)[number]): Promise<void> {
  if (victim === "plugin") await plugin.running?.kill("SIGKILL");
  else await (victim === "backend" ? environment.backend : environment.agents[0]!).kill("SIGKILL");
}

async function create({ environment }: World, object: Json, path = PODS): Promise<void> {
  await environment.cluster.admin.create(path, object);
}

async function remove(world: World, ...names: string[]): Promise<void> {
  await world.kubectl.run(["delete", "pod", ...names, `--timeout=${READY_MS}ms`]);
}

function asking(name: string, { nodeName, resource = SAMPLE }: { nodeName?: string; resource?: string } = {}): Json {
  return { apiVersion: "v1", kind: "Pod", metadata: { name }, spec: { ...specOf(resource), nodeName } };
}

let registry = "";

function specOf(resource: string): Json {
  return {
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: "main",
        image: `${registry}/busybox:1`,
        command: ["sleep", "100000"],
        resources: { limits: { [resource]: "1" } },
      },
    ],
  };
}

function pair(replicas: number): Json {
  const labels = { app: "pair" };
  return {
    apiVersion: "apps/v1",
    kind: "Deployment",
    metadata: { name: "pair" },
    spec: { replicas, selector: { matchLabels: labels }, template: { metadata: { labels }, spec: specOf(SAMPLE) } },
  };
}

// --- what is seen ---

async function pod({ environment }: World, name: string): Promise<Json> {
  return await environment.cluster.admin.get(`${PODS}/${name}`);
}

async function running(world: World, name: string): Promise<Json> {
  return await waitFor({ what: `${name} to run`, timeoutMs: READY_MS }, async () => {
    const found = await pod(world, name);
    must(isReady(found), found.status);
    return found;
  });
}

async function over(world: World, name: string): Promise<Json> {
  return await waitFor({ what: `${name} to be over`, timeoutMs: READY_MS }, async () => {
    const found = await pod(world, name);
    must(isOver(found), found.status);
    return found;
  });
}

/** Of the pod's device. */
async function told(world: World, name: string, health: string, resource = SAMPLE): Promise<Json> {
  return await waitFor({ what: `the device of ${name} to be ${health}`, timeoutMs: RETURN_MS }, async () => {
    const found = await pod(world, name);
    must(devicesOf(found, resource)[0]?.health === health, found.status);
    return found;
  });
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
const isOver = ({ status }: Json) => ["Failed", "Succeeded"].includes(status.phase);
const isReady = ({ status }: Json) =>
  status.conditions?.some(({ type, status: is }: Json) => type === "Ready" && is === "True") === true;

async function alive({ environment }: World): Promise<Json[]> {
  const { items } = await environment.cluster.admin.get(`${PODS}?labelSelector=app%3Dpair`);
  return (items as Json[]).filter((each) => !isOver(each));
}

/** Looks at each status of the pods, until it is stopped. */
function watchForDoubles({ environment }: World) {
  const stopped = new AbortController();
  const pods = new Map<string, Json>();
  const doubles: string[] = [];
  let next = Promise.withResolvers<void>();
  const seen = {
    doubles,
    changed: () => next.promise,
    stop: () => stopped.abort(),
  };
  const look = async () => {
    for await (const { type, object } of environment.cluster.admin.watch(PODS, stopped.signal)) {
      if (type === "DELETED" || isOver(object)) pods.delete(object.metadata.uid);
      else pods.set(object.metadata.uid, object);
      const given = [...pods.values()].flatMap((each) => idsOf(each));
      if (new Set(given).size < given.length) doubles.push(given.join(", "));
      next.resolve();
      next = Promise.withResolvers();
    }
  };
  look().catch((thrown: unknown) => {
    if (!stopped.signal.aborted) doubles.push(`the watch has ended: ${String(thrown)}`);
  });
  return seen;
}

async function describeAll(kubectl: Kubectl): Promise<string> {
  const asked = [
    ["get", "pods", "--output=wide"],
    ["get", "events"],
    ["describe", "node", node],
  ];
  const outputs = await Promise.all(asked.map((args) => kubectl.try(args)));
  return outputs.map(({ stdout, stderr }) => stdout + stderr).join("\n");
}

async function main(): Promise<number> {
  await setUp();
  await mkdir(KUBELET, { recursive: true });
  await runCommand("mount", ["-t", "tmpfs", "kubelet", KUBELET]);
  const program = await buildSampleDevicePlugin();
  await using environment = await startEnvironment({
    engine: "cri",
    nodes: 1,
    kubeProxy: false,
    plugins: { directory: KUBELET },
  });
  registry = environment.registry.host;
  await environment.registry.push("busybox:1", await busyboxImage());
  const kubectl = await createKubectl(environment.cluster.adminKubeconfig);
  return await runSteps(steps, { environment, kubectl, plugin: { program } }, () => describeAll(kubectl));
}

if (process.argv[1] === import.meta.filename) process.exitCode = isInside() ? await main() : await runInside();
