/** Pods as the API server keeps them: versions, a log that watches follow, preconditions, finalizers, the Node authorizer. */
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { rfc3339 } from "../../../src/util/clock.ts";
import { judgePodRemoval, judgeStatusWrite } from "../invariants/pod-writes.ts";
import type { Sender } from "../invariants/sender.ts";
import { pick } from "../seeded.ts";
import { CONFIG_NAME } from "./config-maps.ts";
import { CLAIM_NAME } from "./disks.ts";
import { REFUSALS, type Refusal } from "./history.ts";
import { OTHER_NODE } from "./names.ts";
import type { World } from "./world.ts";

/** Pods are changed here as the JSON that they are. */
export type Json = any;

export interface LogEntry {
  type: "ADDED" | "MODIFIED" | "DELETED";
  version: number;
  pod: Pod;
}

export interface NewPod {
  nodeName: string;
  restartPolicy: "Always" | "OnFailure" | "Never";
  containers: number;
  init: "none" | "once" | "sidecar";
  finalizer: boolean;
  files: boolean;
  /** Seconds. */
  grace: number;
  activeDeadlineSeconds?: number | undefined;
  /** Asks others to make room for it. */
  critical: boolean;
  /** It claims its namespace's volume. */
  disk: boolean;
}

/** system-cluster-critical */
type AgentsRequest = Pick<KubeRequest, "method" | "path" | "query" | "body" | "metadataOnly">;

const CRITICAL_PRIORITY = 2_000_000_000;
const FOREIGN_CONDITION = "test/foreign";

export class ApiServer {
  readonly pods = new Map<string, Json>();
  readonly log: LogEntry[] = [];
  /** Agents act as their node, as they do in most clusters. */
  readonly #nodeAuthorizer: boolean;
  readonly #world: World;
  #version = 100;
  #uids = 0;

  constructor(world: World, options: { nodeAuthorizer: boolean }) {
    this.#world = world;
    this.#nodeAuthorizer = options.nodeAuthorizer;
  }

  get version(): number {
    return this.#version;
  }

  /** Undefined when there is none. */
  byUid(uid: string): Json {
    for (const pod of this.pods.values()) if (pod.metadata.uid === uid) return pod;
    return undefined;
  }

  /** What a complete list of a node's pods held when the log was `length` entries long. */
  listAt(length: number, nodeName: string): { items: Pod[]; version: number } {
    const items = new Map<string, Pod>();
    for (const { type, pod } of this.log.slice(0, length)) {
      if (pod.spec!.nodeName !== nodeName) continue;
      if (type === "DELETED") items.delete(pod.metadata!.uid!);
      else items.set(pod.metadata!.uid!, pod);
    }
    return { items: [...items.values()], version: this.log[length - 1]?.version ?? 100 };
  }

  /** Index of the first entry of the log that a watch from this version sees. */
  positionAfter(version: number): number {
    const index = this.log.findIndex((entry) => entry.version > version);
    return index === -1 ? this.log.length : index;
  }

  // ------------------------------------------------------------------------------------------------------------- users

  create(key: string, options: NewPod): void {
    const [namespace, name] = key.split("/") as [string, string];
    const uid = `uid-${++this.#uids}`;
    const history = this.#world.history.of(uid);
    history.namespace = namespace;
    history.name = name;
    history.graces.add(options.grace);
    if (this.#world.scenario.refusals) history.refuses = pick(this.#world.random, REFUSALS);
    const container = (name: string) => ({
      name,
      image: "x:1",
      imagePullPolicy: "IfNotPresent",
      resources: { requests: { cpu: name === "main" ? "1" : "0" } },
      ...((options.files || options.disk) && { volumeMounts: mounts }),
    });
    const volumes = [
      ...(options.files ? [{ name: "files", configMap: { name: CONFIG_NAME } }] : []),
      ...(options.disk ? [{ name: "disk", persistentVolumeClaim: { claimName: CLAIM_NAME } }] : []),
    ];
    const mounts = volumes.map(({ name }) => ({ name, mountPath: `/${name}` }));
    this.#store(
      key,
      {
        metadata: {
          namespace,
          name,
          uid,
          generation: 1,
          creationTimestamp: rfc3339(this.#world.now),
          annotations: { "test/user": "kept" },
          ...(options.finalizer && { finalizers: ["test/hold"] }),
        },
        spec: {
          nodeName: options.nodeName,
          automountServiceAccountToken: false,
          priority: options.critical ? CRITICAL_PRIORITY : 0,
          restartPolicy: options.restartPolicy,
          terminationGracePeriodSeconds: options.grace,
          ...(options.activeDeadlineSeconds !== undefined && { activeDeadlineSeconds: options.activeDeadlineSeconds }),
          ...(options.init !== "none" && {
            initContainers: [
              { ...container("first"), ...(options.init === "sidecar" && { restartPolicy: "Always" as const }) },
            ],
          }),
          containers: [container("main"), container("second")].slice(0, options.containers),
          ...(volumes.length > 0 && { volumes }),
        },
        status: {
          phase: "Pending",
          qosClass: "BestEffort",
          nominatedNodeName: OTHER_NODE,
          conditions: [{ type: FOREIGN_CONDITION, status: "True", reason: "Test" }],
        },
      },
      "ADDED",
    );
  }

  edit(key: string, change: (pod: Json) => Json): void {
    const pod = this.pods.get(key);
    if (pod !== undefined) this.#store(key, change(structuredClone(pod)), "MODIFIED");
  }

  /** kubectl delete. With a grace of 0 nobody waits for the machine. */
  delete(key: string, graceSeconds: number): void {
    const pod = this.pods.get(key);
    if (pod === undefined) return;
    const history = this.#world.history.of(pod.metadata.uid);
    const held = (pod.metadata.finalizers?.length ?? 0) > 0;
    const terminal = pod.status.phase === "Failed" || pod.status.phase === "Succeeded";
    if ((graceSeconds === 0 || terminal) && !held) {
      history.removedByForce = true;
      this.#remove(key);
      return;
    }
    if (pod.metadata.deletionTimestamp !== undefined && (pod.metadata.deletionGracePeriodSeconds ?? 0) <= graceSeconds)
      return;
    history.graces.add(Math.max(1, graceSeconds));
    this.edit(key, (p) => {
      p.metadata.deletionTimestamp = rfc3339(this.#world.now + graceSeconds * 1000);
      p.metadata.deletionGracePeriodSeconds = graceSeconds;
      return p;
    });
  }

  dropFinalizers(key: string): void {
    const pod = this.pods.get(key);
    if (pod?.metadata.finalizers === undefined) return;
    this.edit(key, (p) => ({ ...p, metadata: { ...p.metadata, finalizers: undefined } }));
    const { uid, deletionTimestamp, deletionGracePeriodSeconds } = this.pods.get(key).metadata;
    if (deletionTimestamp === undefined || deletionGracePeriodSeconds !== 0) return;
    this.#world.history.of(uid).removedByForce = true;
    this.#remove(key);
  }

  #store(key: string, pod: Json, type: LogEntry["type"]): Json {
    const version = ++this.#version;
    const stored = { ...pod, metadata: { ...pod.metadata, resourceVersion: String(version) } };
    this.pods.set(key, stored);
    this.log.push({ type, version, pod: stored });
    return stored;
  }

  #remove(key: string): void {
    const pod = this.pods.get(key);
    this.pods.delete(key);
    const version = ++this.#version;
    this.log.push({
      type: "DELETED",
      version,
      pod: { ...pod, metadata: { ...pod.metadata, resourceVersion: String(version) } },
    });
  }

  // ------------------------------------------------------------------------------------------------------------ agents

  /** What a pod reconciler asks of one pod, or of the pods of one name. */
  request(request: AgentsRequest, sender: Sender): Json {
    const reply = this.#answer(request, sender);
    // Some servers leave the rest out, others never do.
    const isPartial = request.metadataOnly && Number(reply.metadata.resourceVersion) % 3 > 0;
    return isPartial ? { kind: "PartialObjectMetadata", metadata: reply.metadata } : reply;
  }

  #answer({ method, path, body, query }: AgentsRequest, sender: Sender): Json {
    const listed = /namespaces\/([^/]+)\/pods$/.exec(path);
    if (listed !== null) {
      const selector = /^metadata\.name=([^,]+),spec\.nodeName=(.+)$/.exec(String(query!["fieldSelector"]))!;
      const found = this.pods.get(`${listed[1]}/${selector[1]}`);
      return { items: found === undefined || found.spec.nodeName !== selector[2] ? [] : [found] };
    }
    const match = /namespaces\/([^/]+)\/pods\/([^/]+)(\/status)?$/.exec(path)!;
    const key = `${match[1]}/${match[2]}`;
    const pod = this.pods.get(key);
    if (method === "GET" && this.#nodeAuthorizer && !this.#isKnownToAuthorizer(pod))
      throw new KubeApiError("no relationship found between node and this object", {
        status: 403,
        reason: "Forbidden",
      });
    if (pod === undefined) {
      const details = { kind: "pods", name: match[2]! };
      throw new KubeApiError(`pods "${match[2]}" not found`, { status: 404, reason: "NotFound", details });
    }
    if (method === "GET") return pod;
    return method === "PATCH" ? this.#patchStatus(key, pod, body, sender) : this.#finalDelete(key, pod, body, sender);
  }

  /**
   * The Node authorizer's view: it never says that a pod is gone, and it learns late of one that was bound, so it forbids a node
   * both; those of other nodes anyway.
   */
  #isKnownToAuthorizer(pod: Json): boolean {
    if (pod === undefined || pod.spec.nodeName === OTHER_NODE) return false;
    const last = this.log.at(-1);
    return last === undefined || last.type !== "ADDED" || last.pod.metadata!.uid !== pod.metadata.uid;
  }

  #patchStatus(key: string, pod: Json, body: Json, sender: Sender): Json {
    const { uid, resourceVersion } = body.metadata ?? {};
    if (
      (uid !== undefined && uid !== pod.metadata.uid) ||
      (resourceVersion !== undefined && resourceVersion !== pod.metadata.resourceVersion)
    ) {
      throw new KubeApiError("conflict", { status: 409, reason: "Conflict" });
    }
    const refusal = refusalOf(this.#world.history.of(pod.metadata.uid).refuses, body);
    if (refusal !== undefined) throw refusal;
    const status = { ...pod.status };
    for (const [field, value] of Object.entries(body.status)) {
      if (value === null) delete status[field];
      else status[field] = value;
    }
    this.#world.trace?.(`  ${uid} becomes ${brief(status)} (${Object.keys(body.status).join()})`);
    judgeStatusWrite(this.#world, { pod, patch: body, after: status, sender });
    // What changes nothing makes no new version.
    const annotations = { ...pod.metadata.annotations, ...body.metadata?.annotations };
    const next = { ...pod, metadata: { ...pod.metadata, annotations }, status };
    return JSON.stringify(next) === JSON.stringify(pod) ? pod : this.#store(key, next, "MODIFIED");
  }

  #finalDelete(key: string, pod: Json, body: Json, sender: Sender): Json {
    const wanted = body.preconditions?.uid;
    if (wanted !== undefined && wanted !== pod.metadata.uid)
      throw new KubeApiError("uid", { status: 409, reason: "Conflict" });
    judgePodRemoval(this.#world, pod, sender);
    if ((pod.metadata.finalizers?.length ?? 0) > 0) {
      if (pod.metadata.deletionGracePeriodSeconds !== 0)
        this.edit(key, (p) => ({ ...p, metadata: { ...p.metadata, deletionGracePeriodSeconds: 0 } }));
      return pod;
    }
    this.#world.history.of(pod.metadata.uid).finalized = true;
    this.#remove(key);
    return pod;
  }
}

/** Why a patch of a status is never taken; undefined when it is. */
function refusalOf(refuses: Refusal, { metadata = {}, status = {} }: Json): KubeApiError | undefined {
  const invalid = (field: string) =>
    new KubeApiError(`${field}: Invalid value`, {
      status: 422,
      reason: "Invalid",
      details: { causes: [{ reason: "FieldValueInvalid", message: "Invalid value", field }] },
    });
  if (refuses === "hostIPs" && status.hostIPs) return invalid("status.hostIPs[0].ip");
  if (refuses === "annotations" && metadata.annotations) return invalid("metadata.annotations");
  const rest = Object.keys(status).filter(
    (field) => !["phase", "conditions"].includes(field) && status[field] !== null,
  );
  if (refuses !== "all" || rest.length === 0) return undefined;
  return new KubeApiError("the object is too large", { status: 413, reason: "RequestEntityTooLarge" });
}

/** For the trace. */
function brief({ phase, reason, initContainerStatuses = [], containerStatuses = [] }: Json): string {
  const containers = [...initContainerStatuses, ...containerStatuses].map(
    ({ name, state, restartCount, ready }: Json) =>
      `${name} ${Object.keys(state ?? {}).join()}${state?.terminated ? ` ${state.terminated.exitCode}` : ""} ${restartCount}${ready ? " ready" : ""}`,
  );
  return [phase, reason, ...containers].filter(Boolean).join(", ");
}
