/**
 * The kubelet's behaviours as cases, one table for every place where they are held to it. Each names its ids in the list of
 * behaviours that the project keeps, and what it needs of a backend; where that is missing, the case is left out by name.
 */
import type { Capability } from "../../../../src/provider/capabilities.ts";
import type { Client, Json } from "../../harness/client.ts";
import { must, waitFor } from "../../harness/wait.ts";
import { containerVariable, uidVariable } from "../history.ts";
import type { Case, CaseContext } from "../pod-cases.ts";

/** Where the cases run. */
export interface Surroundings {
  capabilities: readonly Capability[];
  /** kube-controller-manager and kube-scheduler are there. */
  controllers: boolean;
  /** An image with busybox's commands under /bin. Engine `process` takes any name for it. */
  image: string;
  /** An image like `image` that only this user may pull; undefined where there are no images. */
  privateImage?: { image: string; user: { name: string; password: string } } | undefined;
  /** A folder of this host that containers see under the same path; undefined where they get a volume instead. */
  hostFolder: ((context: CaseContext) => string) | undefined;
  /** A command line that serves the files of a folder over HTTP. */
  httpd: (port: number, dir: string) => string;
}

export interface ChecklistContext extends CaseContext, Omit<Surroundings, "hostFolder"> {
  /** A user who may do everything. */
  client: Client;
  /** A path that no other case uses, in a folder that all containers of a pod share and that outlives each of them. */
  file(name: string): string;
  /** Creates a pod. */
  create(name: string, spec: Json, metadata?: Json): Promise<Json>;
  /** A container that runs a script. */
  shell(name: string, script: string, extra?: Json): Json;
  /** Creates an object in the case's namespace: `configmaps`, `secrets`, `services`... */
  make(resource: string, name: string, body: Json): Promise<Json>;
  /** The lines that a container (default "main") has written. */
  output(pod: string, container?: string): Promise<string[]>;
  /** Runs a script to its end in a pod of its own and returns what it wrote; fails when it ends with another code than 0. */
  outputOf(script: string, spec?: Json, extra?: Json): Promise<string[]>;
  events(pod: string): Promise<Json[]>;
  /** Waits for an event of the pod, and returns it. `message` is its text, or a pattern for it. */
  untilEvent(pod: string, reason: string, message: string | RegExp, timeoutMs?: number): Promise<Json>;
  /** Every status that the API server has had for the pod of this name, in order. */
  statuses(name: string): Json[];
}

export interface ChecklistCase {
  ids: readonly string[];
  /** A behaviour, as a sentence. */
  name: string;
  needs?: readonly Capability[];
  /** It is about what a backend does without this. */
  lacks?: Capability;
  needsControllers?: boolean;
  run(context: ChecklistContext): Promise<void>;
}

export function namedCase({ ids, name }: ChecklistCase): string {
  return `${ids.join(" ")} ${name}`;
}

/** Why a case cannot run here; undefined when it can. */
export function obstacle(each: ChecklistCase, { capabilities, controllers }: Surroundings): string | undefined {
  const missing = (each.needs ?? []).filter((capability) => !capabilities.includes(capability));
  if (missing.length > 0) return `needs ${missing.join(", ")}`;
  if (each.lacks !== undefined && capabilities.includes(each.lacks)) return `is about backends without ${each.lacks}`;
  return each.needsControllers === true && !controllers ? "needs controllers" : undefined;
}

const SCRATCH = { name: "scratch", path: "/scratch" };

/** The case as the suites of pods take it. */
export function asCase(each: ChecklistCase, surroundings: Surroundings): Case {
  return { name: namedCase(each), run: (context) => each.run(checklistContext(context, surroundings)) };
}

function checklistContext(context: CaseContext, surroundings: Surroundings): ChecklistContext {
  const { env, pods } = context;
  const { client } = env;
  const { hostFolder, image } = surroundings;
  const mounts = hostFolder === undefined ? [{ name: SCRATCH.name, mountPath: SCRATCH.path }] : [];
  const volumes = hostFolder === undefined ? [{ name: SCRATCH.name, emptyDir: {} }] : [];
  const full: ChecklistContext = {
    ...context,
    ...surroundings,
    client,
    file: (name) => `${hostFolder?.(context) ?? SCRATCH.path}/${pods.namespace}-${name}`,
    create: (name, spec, metadata) =>
      pods.create(name, { ...spec, volumes: [...volumes, ...(spec.volumes ?? [])] }, metadata),
    shell: (name, script, extra = {}) =>
      container(name, script, { image, ...extra, volumeMounts: [...mounts, ...(extra.volumeMounts ?? [])] }),
    make: (resource, name, body) =>
      client.create(`/api/v1/namespaces/${pods.namespace}/${resource}`, { metadata: { name }, ...body }),
    async output(pod, name = "main") {
      const text = await client.text(`${pods.path}/${pod}/log?container=${name}`);
      return text === "" ? [] : text.replace(/\n$/, "").split("\n");
    },
    outputOf: (script, spec = {}, extra = {}) => outputOf(full, script, spec, extra),
    async events(pod) {
      const { items } = await client.get(`/api/v1/namespaces/${pods.namespace}/events`);
      return items.filter((event: Json) => event.involvedObject.name === pod);
    },
    untilEvent: (pod, reason, message, timeoutMs = 60_000) =>
      waitFor({ what: `event ${reason} of pod ${pod}: ${message}`, timeoutMs }, async () => {
        const all = await full.events(pod);
        const isWanted = (said: string) => (typeof message === "string" ? said === message : message.test(said));
        const found = all.find((event) => event.reason === reason && isWanted(event.message));
        must(
          found !== undefined,
          all.map((event) => `${event.reason}: ${event.message}`),
        );
        return found;
      }),
    statuses: (name) =>
      env.history
        .versions(pods.namespace)
        .filter(({ pod }) => pod.metadata.name === name)
        .map(({ pod }) => pod.status),
  };
  return full;
}

/** Marked for the witness of processes, except with `marks: false`: commands of hooks and probes would pass for copies. */
function container(name: string, script: string, { marks = true, env = [], ...extra }: Json): Json {
  const mark = [
    { name: uidVariable, valueFrom: { fieldRef: { fieldPath: "metadata.uid" } } },
    { name: containerVariable, value: name },
  ];
  return {
    name,
    imagePullPolicy: "IfNotPresent",
    command: ["/bin/sh", "-c", script],
    ...extra,
    env: [...(marks ? mark : []), ...env],
  };
}

async function outputOf({ create, shell, pods, output }: ChecklistContext, script: string, spec: Json, extra: Json) {
  await create("once", {
    restartPolicy: "Never",
    ...spec,
    containers: [shell("main", script, extra), ...(spec.containers ?? [])],
  });
  const { status } = await pods.until("once", "to be over", (pod) =>
    ["Succeeded", "Failed"].includes(pod.status.phase),
  );
  const lines = status.containerStatuses === undefined ? [] : await output("once");
  if (status.phase === "Failed") throw new Error(`the script failed: ${JSON.stringify({ status, lines })}`);
  return lines;
}

export function condition(pod: Json, type: string): Json {
  return (pod.status.conditions ?? []).find((each: Json) => each.type === type);
}
