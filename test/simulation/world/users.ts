/** What users and controllers do to pods. */
import { pick } from "../seeded.ts";
import type { Json, NewPod } from "./api-server.ts";
import { NAMESPACES, NODE, OTHER_NODE } from "./names.ts";
import type { World } from "./world.ts";

/** Two of them give the same word when namespace and name are joined by a dash. */
export const KEYS = ["a/b-c", "a-b/c", "a/x"] as const;

export function userStep(world: World): void {
  const { api, random, scenario } = world;
  const key = pick(random, KEYS);
  const pod: Json = api.pods.get(key);
  const x = random();
  if (pod === undefined) {
    if (x < 0.6) api.create(key, newPod(world));
  } else if (x < 0.3) api.delete(key, pick(random, [30, 30, 30, 5]));
  else if (x < 0.38) api.delete(key, 0);
  else if (x < 0.45) api.dropFinalizers(key);
  else if (x < 0.55) api.edit(key, (p) => ({ ...p, metadata: { ...p.metadata, labels: { n: String(random()) } } }));
  // kube-controller-manager's pod GC ends pods of a node that it believes gone.
  else if (x < 0.57) api.edit(key, failedByGarbageCollection);
  // A controller of readiness gates.
  else if (x < 0.6) api.edit(key, withForeignCondition(String(random())));
  else if (scenario.updates && x < 0.7) api.edit(key, withNextImage);
  else if (scenario.updates && x < 0.85) world.configMaps.write(pick(random, NAMESPACES));
}

export function newPod({ random, scenario }: World): NewPod {
  const x = random();
  return {
    nodeName: random() < (scenario.volumes === true ? 0.3 : 0.1) ? OTHER_NODE : NODE,
    restartPolicy: pick(random, ["Always", "OnFailure", "Never"]),
    containers: random() < 0.3 ? 2 : 1,
    init: x < 0.7 ? "none" : x < 0.9 ? "once" : "sidecar",
    finalizer: random() < 0.1,
    files: (scenario.updates || scenario.admission) === true && random() < 0.7,
    grace: pick(random, [30, 30, 7]),
    activeDeadlineSeconds: scenario.deadlines && random() < 0.5 ? pick(random, [20, 90, 600]) : undefined,
    critical: scenario.admission === true && random() < 0.2,
    disk: scenario.volumes === true && random() < 0.9,
  };
}

function failedByGarbageCollection(pod: Json): Json {
  const isOver = pod.status.phase === "Succeeded" || pod.status.phase === "Failed";
  return { ...pod, status: { ...pod.status, phase: isOver ? pod.status.phase : "Failed" } };
}

const withForeignCondition =
  (reason: string) =>
  (pod: Json): Json => ({
    ...pod,
    status: {
      ...pod.status,
      conditions: pod.status.conditions.map((c: Json) => (c.type.startsWith("test/") ? { ...c, reason } : c)),
    },
  });

/** kubectl set image. */
function withNextImage(pod: Json): Json {
  const [main, ...rest] = pod.spec.containers;
  const image = `x:${Number(main.image.slice(2)) + 1}`;
  return {
    ...pod,
    metadata: { ...pod.metadata, generation: pod.metadata.generation + 1 },
    spec: { ...pod.spec, containers: [{ ...main, image }, ...rest] },
  };
}
