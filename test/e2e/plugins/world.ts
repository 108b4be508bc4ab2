/** What the tests of plugins run in, what they do to pods there, and what they see of them. */
import { type Environment, nodeNames } from "../../conformance/kubernetes/environment.ts";
import type { Json } from "../harness/client.ts";
import type { Kubectl } from "../harness/kubectl.ts";
import type { ManagedProcess } from "../harness/processes.ts";
import { must, waitFor } from "../harness/wait.ts";

/** A plugin, as a process of its own. */
interface Plugin {
  name: string;
  program: string;
  args: readonly string[];
  running?: ManagedProcess;
}

export interface World {
  environment: Environment;
  kubectl: Kubectl;
  /** Kubernetes' sample device plugin. */
  device: Plugin;
  /** Kubernetes' test driver of Dynamic Resource Allocation. */
  driver: Plugin;
  /** The node plugin of a CSI driver of our own. */
  csi: Plugin;
}

export const [node] = nodeNames;
export const KUBELET = "/var/lib/kubelet";
export const PODS = "/api/v1/namespaces/default/pods";
export const READY_MS = 120_000;
const DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments";

// --- what is done ---

export function startPlugin({ environment }: World, plugin: Plugin): void {
  plugin.running = environment.cluster.sandbox.spawn(plugin.name, plugin.program, plugin.args);
}

export async function killPlugin(plugin: Plugin): Promise<void> {
  await plugin.running?.kill("SIGKILL");
}

/** As its DaemonSet does: it takes its registration back. */
export async function stopPlugin(plugin: Plugin): Promise<void> {
  await plugin.running?.kill("SIGTERM");
}

export async function create({ environment }: World, object: Json, path = PODS): Promise<void> {
  await environment.cluster.admin.create(path, object);
}

export async function remove(world: World, ...names: string[]): Promise<void> {
  await world.kubectl.run(["delete", "pod", ...names, `--timeout=${READY_MS}ms`]);
}

/** @param container beside its command, and @param more of the pod's specification */
export function podSpec({ environment }: World, container: Json, more: Json = {}): Json {
  const main = { name: "main", image: `${environment.registry.host}/busybox:1`, command: ["sleep", "100000"] };
  return { terminationGracePeriodSeconds: 1, ...more, containers: [{ ...main, ...container }] };
}

export function podOf(name: string, spec: Json): Json {
  return { apiVersion: "v1", kind: "Pod", metadata: { name }, spec };
}

/** What shows of the pods of a deployment, while each of these is killed as they come and go. */
interface Ordeal {
  name: string;
  spec: Json;
  plugin: Plugin;
  /** Each round begins with this: a plugin that cannot register ends; on a node its DaemonSet starts it again. */
  isWhole: () => Promise<void>;
  /** What a pod has that no other may have. Default: nothing shows that. */
  ownOf?: (found: Json) => readonly string[];
  /** Looks whether a pod that runs has what it asked for. */
  check?: (found: Json) => Promise<void>;
}

/** Kills plugin, backend and agent, each while pods come and while they go. */
export async function killEach(
  world: World,
  { name, spec, plugin, isWhole, ownOf = () => [], check }: Ordeal,
): Promise<void> {
  const { admin } = world.environment.cluster;
  const { backend, agents } = world.environment;
  const victims = {
    plugin: { kill: () => killPlugin(plugin), start: async () => startPlugin(world, plugin) },
    backend: { kill: () => backend.kill("SIGKILL"), start: () => backend.start() },
    agent: { kill: () => agents[0]!.kill("SIGKILL"), start: () => agents[0]!.start() },
  };
  const labels = { app: name };
  const template = { metadata: { labels }, spec };
  const deployment = { metadata: { name }, spec: { replicas: 0, selector: { matchLabels: labels }, template } };
  await create(world, { apiVersion: "apps/v1", kind: "Deployment", ...deployment }, DEPLOYMENTS);
  const seen = watchForDoubles(world, ownOf);
  try {
    for (const [victim, { kill, start }] of Object.entries(victims))
      for (const replicas of [2, 0]) {
        await isWhole();
        const changed = seen.changed();
        await admin.patch(`${DEPLOYMENTS}/${name}`, { spec: { replicas } });
        // In the midst of it: the first change that the pods show.
        await changed;
        await kill();
        await start();
        await waitFor({ what: `${replicas} pods after the ${victim} was killed`, timeoutMs: READY_MS }, async () => {
          const { items } = await admin.get(`${PODS}?labelSelector=app%3D${name}`);
          const left = (items as Json[]).filter((each) => !isOver(each));
          must(left.length === replicas && left.every(isReady), left);
          for (const each of left) await check?.(each);
        });
      }
  } finally {
    seen.stop();
  }
  must(seen.doubles.length === 0, seen.doubles);
}

// --- what is seen ---

export async function pod({ environment }: World, name: string): Promise<Json> {
  return await environment.cluster.admin.get(`${PODS}/${name}`);
}

export async function until(world: World, name: string, what: string, holds: (found: Json) => boolean): Promise<Json> {
  return await waitFor({ what: `${name} ${what}`, timeoutMs: READY_MS }, async () => {
    const found = await pod(world, name);
    must(holds(found), found.status);
    return found;
  });
}

export async function running(world: World, name: string): Promise<Json> {
  return await until(world, name, "to run", isReady);
}

/** It waits for a node, for this reason. */
export async function unschedulable(world: World, name: string, why: string): Promise<void> {
  await until(world, name, "to wait for the scheduler", ({ status }) =>
    status.conditions?.some(
      ({ type, message = "" }: Json) => type === "PodScheduled" && (message as string).includes(why),
    ),
  );
}

export async function warned({ environment }: World, name: string, text: string): Promise<void> {
  await waitFor({ what: `an event of ${name} that says ${text}`, timeoutMs: READY_MS }, async () => {
    const { items } = await environment.cluster.admin.get(
      `/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D${name}`,
    );
    const said = (items as Json[]).map(({ reason, message }) => `${reason}: ${message}`);
    must(
      said.some((each) => each.includes(text)),
      said,
    );
  });
}

export const isOver = ({ status }: Json): boolean => ["Failed", "Succeeded"].includes(status.phase);

export const isReady = ({ status }: Json): boolean =>
  status.conditions?.some(({ type, status: is }: Json) => type === "Ready" && is === "True") === true;

/** Looks at each status of the pods, until it is stopped. */
function watchForDoubles({ environment }: World, ownOf: NonNullable<Ordeal["ownOf"]>) {
  const stopped = new AbortController();
  const pods = new Map<string, Json>();
  const doubles: string[] = [];
  let next = Promise.withResolvers<void>();
  const look = async () => {
    for await (const { type, object } of environment.cluster.admin.watch(PODS, stopped.signal)) {
      if (type === "DELETED" || isOver(object)) pods.delete(object.metadata.uid);
      else pods.set(object.metadata.uid, object);
      const given = [...pods.values()].flatMap(ownOf);
      if (new Set(given).size < given.length) doubles.push(given.join(", "));
      next.resolve();
      next = Promise.withResolvers();
    }
  };
  look().catch((thrown: unknown) => {
    if (!stopped.signal.aborted) doubles.push(`the watch has ended: ${String(thrown)}`);
  });
  return { doubles, changed: () => next.promise, stop: () => stopped.abort() };
}
