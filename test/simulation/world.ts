/**
 * A toy of everything around the agent: an API server with pods, a backend with machines, users, and time that moves only
 * when told. Small and slow-witted on purpose; what matters is that every effect of an agent is a choice point.
 */
import type { KubeRequest } from "../../src/kube/kube.ts";
import type { Pod } from "../../src/kube/wire.ts";
import type { Machine, MachineSpec, MachineState } from "../../src/provider/machine.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import { KubeApiError } from "../../src/kube/errors.ts";
import { rfc3339 } from "../../src/util/clock.ts";

export class Violation extends Error {}

export function seeded(seed: number): () => number {
  let s = seed >>> 0;
  return () => {
    s = (s + 0x6d2b79f5) >>> 0;
    let t = s;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export const NODE = "virtual";
export const OWNER = { "vmlet.dev/cluster": "c1", "vmlet.dev/node": NODE };

type Json = any;
interface LogEntry {
  type: "ADDED" | "MODIFIED" | "DELETED";
  pod: Pod;
}

export interface WorldFlaws {
  /** B10: a delete leaves nothing behind. */
  noTombstones?: boolean;
  /** B6: every create makes a machine. */
  createNotIdempotent?: boolean;
}

export class World {
  now = Date.parse("2026-01-01T00:00:00Z");
  readonly flaws: WorldFlaws;
  // --- the API server
  /** Agents act as their node, as they do in most clusters. */
  readonly nodeAuthorizer: boolean;
  /** A machine that is over stays for some time after its DELETE was accepted. */
  readonly deletesSlowly: boolean;
  readonly #accepted = new Set<string>();
  readonly pods = new Map<string, Json>();
  readonly log: LogEntry[] = [];
  #rv = 100;
  #uids = 0;
  /** UIDs whose object an agent removed. */
  readonly finalized = new Set<string>();
  // --- the backend
  readonly machines = new Map<string, Machine>();
  readonly machineLog: Machine[] = [];
  #revision = 0;
  #serial = 0;
  /** Ids that a test removed without a trace (host lost, data lost). */
  readonly vanished = new Set<string>();
  /** Which machine belongs to which pod UID, whatever its id says. */
  readonly uidOf = (m: Machine) => m.labels["vmlet.dev/uid"]!;

  constructor({
    nodeAuthorizer,
    deletesSlowly,
    ...flaws
  }: WorldFlaws & { nodeAuthorizer: boolean; deletesSlowly: boolean }) {
    this.flaws = flaws;
    this.nodeAuthorizer = nodeAuthorizer;
    this.deletesSlowly = deletesSlowly;
  }

  // ------------------------------------------------------------------------------------------------------- API server

  #store(key: string, pod: Json, type: LogEntry["type"]): Json {
    const stored = { ...pod, metadata: { ...pod.metadata, resourceVersion: String(++this.#rv) } };
    this.pods.set(key, stored);
    this.log.push({ type, pod: stored });
    return stored;
  }

  #remove(key: string): void {
    const pod = this.pods.get(key);
    this.pods.delete(key);
    this.log.push({
      type: "DELETED",
      pod: { ...pod, metadata: { ...pod.metadata, resourceVersion: String(++this.#rv) } },
    });
  }

  /** Undefined when there is none. */
  byUid(uid: string): Json {
    for (const pod of this.pods.values()) if (pod.metadata.uid === uid) return pod;
    return undefined;
  }

  createPod(key: string, options: { restartPolicy: string; finalizer: boolean }): void {
    const [namespace, name] = key.split("/") as [string, string];
    this.#store(
      key,
      {
        metadata: {
          namespace,
          name,
          uid: `uid-${++this.#uids}`,
          generation: 1,
          ...(options.finalizer && { finalizers: ["test/hold"] }),
        },
        spec: {
          nodeName: NODE,
          restartPolicy: options.restartPolicy,
          terminationGracePeriodSeconds: 30,
          containers: [{ name: "main", image: "x" }],
        },
        status: { phase: "Pending", conditions: [{ type: "test/foreign", status: "True" }] },
      },
      "ADDED",
    );
  }

  editPod(key: string, change: (pod: Json) => Json): void {
    const pod = this.pods.get(key);
    if (pod !== undefined) this.#store(key, change(structuredClone(pod)), "MODIFIED");
  }

  deletePod(key: string, graceSeconds: number): void {
    const pod = this.pods.get(key);
    if (pod === undefined) return;
    const terminal = pod.status.phase === "Failed" || pod.status.phase === "Succeeded";
    const held = (pod.metadata.finalizers?.length ?? 0) > 0;
    if ((graceSeconds === 0 || terminal) && !held) {
      this.#remove(key);
      return;
    }
    if (pod.metadata.deletionTimestamp !== undefined && (pod.metadata.deletionGracePeriodSeconds ?? 0) <= graceSeconds)
      return;
    this.editPod(key, (p) => {
      p.metadata.deletionTimestamp = rfc3339(this.now + graceSeconds * 1000);
      p.metadata.deletionGracePeriodSeconds = graceSeconds;
      return p;
    });
  }

  dropFinalizers(key: string): void {
    const pod = this.pods.get(key);
    if (pod?.metadata.finalizers === undefined) return;
    this.editPod(key, (p) => ({ ...p, metadata: { ...p.metadata, finalizers: undefined } }));
    const now = this.pods.get(key);
    if (now.metadata.deletionTimestamp !== undefined && now.metadata.deletionGracePeriodSeconds === 0)
      this.#remove(key);
  }

  /**
   * The Node authorizer's view: it never says that a pod is gone, and it learns late of one that was bound, so it forbids a node
   * both.
   */
  #isKnownToAuthorizer(pod: Json): boolean {
    if (pod === undefined) return false;
    const last = this.log.at(-1);
    return last === undefined || last.type !== "ADDED" || last.pod.metadata!.uid !== pod.metadata.uid;
  }

  /** The four requests that a pod reconciler makes. */
  kube(
    { method, path, body, query }: Pick<KubeRequest, "method" | "path" | "query"> & { body?: Json },
    observedRunning: ReadonlySet<string>,
  ): unknown {
    const listed = /namespaces\/([^/]+)\/pods$/.exec(path);
    if (listed !== null) {
      const name = /metadata\.name=([^,]+),spec\.nodeName=virtual$/.exec(String(query!["fieldSelector"]))![1];
      const found = this.pods.get(`${listed[1]}/${name}`);
      return { items: found === undefined ? [] : [found] };
    }
    const match = /namespaces\/([^/]+)\/pods\/([^/]+)(\/status)?$/.exec(path)!;
    const key = `${match[1]}/${match[2]}`;
    const pod = this.pods.get(key);
    if (method === "GET" && this.nodeAuthorizer && !this.#isKnownToAuthorizer(pod))
      throw new KubeApiError("no relationship found between node and this object", {
        status: 403,
        reason: "Forbidden",
      });
    if (pod === undefined) {
      const details = { kind: "pods", name: match[2]! };
      throw new KubeApiError("not found", { status: 404, reason: "NotFound", details });
    }
    if (method === "GET") return pod;
    if (method === "PATCH") {
      const { uid, resourceVersion } = body.metadata ?? {};
      if (
        (uid !== undefined && uid !== pod.metadata.uid) ||
        (resourceVersion !== undefined && resourceVersion !== pod.metadata.resourceVersion)
      ) {
        throw new KubeApiError("conflict", { status: 409, reason: "Conflict" });
      }
      const before = pod.status;
      const after = { ...before };
      for (const [field, value] of Object.entries(body.status)) {
        if (value === null) delete after[field];
        else after[field] = value;
      }
      this.#checkStatus(pod, before, after, observedRunning);
      const annotations = { ...pod.metadata.annotations, ...body.metadata?.annotations };
      return this.#store(key, { ...pod, metadata: { ...pod.metadata, annotations }, status: after }, "MODIFIED");
    }
    // DELETE
    const wanted = body.preconditions?.uid;
    if (wanted !== undefined && wanted !== pod.metadata.uid) {
      throw new KubeApiError("uid", { status: 409, reason: "Conflict" });
    }
    if (this.alive(pod.metadata.uid).length > 0) throw new Violation("S4 pod object removed while its machine runs");
    if ((pod.metadata.finalizers?.length ?? 0) > 0) {
      if (pod.metadata.deletionGracePeriodSeconds !== 0) {
        this.editPod(key, (p) => ({ ...p, metadata: { ...p.metadata, deletionGracePeriodSeconds: 0 } }));
      }
      return {};
    }
    this.finalized.add(pod.metadata.uid);
    this.#remove(key);
    return {};
  }

  #checkStatus(pod: Json, before: Json, after: Json, observedRunning: ReadonlySet<string>): void {
    const uid = pod.metadata.uid;
    const terminal = before.phase === "Failed" || before.phase === "Succeeded";
    if (terminal && after.phase !== before.phase) throw new Violation("S6 terminal phase changed");
    if (before.phase === "Running" && after.phase === "Pending") throw new Violation("S6 Running went back to Pending");
    if (before.startTime !== undefined && after.startTime !== before.startTime)
      throw new Violation("S6 startTime changed");
    if (!after.conditions?.some((c: Json) => c.type === "test/foreign"))
      throw new Violation("S5 foreign condition lost");
    for (const [i, c] of (before.containerStatuses ?? []).entries()) {
      if ((after.containerStatuses?.[i]?.restartCount ?? 0) < c.restartCount)
        throw new Violation("S6 restart count fell");
    }
    if (after.containerStatuses?.some((c: Json) => c.state?.running) && !observedRunning.has(uid)) {
      throw new Violation("S7 says running without having seen this pod's machine run");
    }
    if (after.phase === "Failed" || after.phase === "Succeeded") {
      if (!terminal && this.alive(uid).length > 0) throw new Violation("S6 terminal phase while the machine runs");
    }
  }

  // ---------------------------------------------------------------------------------------------------------- backend

  alive(uid: string): Machine[] {
    return [...this.machines.values()].filter((m) => this.uidOf(m) === uid && isAlive(m.state));
  }

  #change(id: string, change: Partial<Machine>): Machine {
    const before = this.machines.get(id)!;
    const machine = { ...before, ...change, version: before.version + 1, revision: ++this.#revision };
    this.machines.set(id, machine);
    this.machineLog.push(machine);
    return machine;
  }

  get revision(): number {
    return this.#revision;
  }

  put(wantedId: string, spec: MachineSpec): Machine {
    const id = this.flaws.createNotIdempotent ? `${wantedId}-${++this.#serial}` : wantedId;
    const known = this.machines.get(id);
    if (known?.state === "deleted") throw new ProviderError("gone", "tombstone");
    const uid = spec.labels["vmlet.dev/uid"]!;
    if (known !== undefined) {
      if (this.uidOf(known) !== uid) throw new Violation("S2 one machine for two pods");
      return known;
    }
    if (this.alive(uid).length > 0) throw new Violation("S1 two machines for one pod UID");
    if (this.finalized.has(uid)) throw new Violation("S4 machine born after its pod was finalised");
    const at = new Date(this.now).toISOString();
    const machine: Machine = {
      id,
      version: 1,
      revision: ++this.#revision,
      labels: spec.labels,
      state: "creating",
      reachability: "ok",
      sandbox_ready: false,
      created_at: at,
      addresses: [],
      containers: [
        {
          name: "main",
          kind: "main",
          state: "waiting",
          ready: false,
          started: false,
          restart_count: 0,
          image: "x",
          image_id: "",
        },
      ],
    };
    this.machines.set(id, machine);
    this.machineLog.push(machine);
    return machine;
  }

  get(id: string): Machine {
    const machine = this.machines.get(id);
    if (machine === undefined) throw new ProviderError("not_found", "no such machine");
    return machine;
  }

  #mayDestroy(m: Machine): void {
    if (!isAlive(m.state)) return;
    if (!Object.entries(OWNER).every(([k, v]) => m.labels[k] === v))
      throw new Violation("S8 touched another node's machine");
    const pod = this.byUid(this.uidOf(m));
    if (pod === undefined || pod.metadata.deletionTimestamp !== undefined) return;
    if (pod.status.phase === "Failed" || pod.status.phase === "Succeeded") return;
    throw new Violation("S3 stopped or deleted the machine of a live pod");
  }

  stop(id: string, graceSeconds: number): Machine {
    const machine = this.get(id);
    this.#mayDestroy(machine);
    if (!isAlive(machine.state)) return machine;
    void graceSeconds;
    return this.#change(id, { state: "stopping" });
  }

  delete(id: string, force: boolean): void {
    const machine = this.machines.get(id);
    if (machine === undefined) {
      if (!this.flaws.noTombstones) {
        const at = new Date(this.now).toISOString();
        const tombstone: Machine = {
          id,
          version: 1,
          revision: ++this.#revision,
          labels: {},
          state: "deleted",
          reachability: "ok",
          sandbox_ready: false,
          created_at: at,
          deleted_at: at,
          addresses: [],
          containers: [],
        };
        this.machines.set(id, tombstone);
      }
      return;
    }
    if (machine.state === "deleted") return;
    this.#mayDestroy(machine);
    if (isAlive(machine.state) && !force) {
      this.#change(id, { state: "deleting" });
      return;
    }
    if (this.deletesSlowly && !isAlive(machine.state)) this.#accepted.add(id);
    else this.#bury(id);
  }

  #bury(id: string): void {
    this.#change(id, {
      state: "deleted",
      deleted_at: new Date(this.now).toISOString(),
      containers: ended(this.machines.get(id)!, this.now, 137),
    });
    if (this.flaws.noTombstones) this.machines.delete(id);
  }

  list(labels: Record<string, string>): Machine[] {
    return [...this.machines.values()].filter(
      (m) => m.state !== "deleted" && Object.entries(labels).every(([k, v]) => m.labels[k] === v),
    );
  }

  /** A step of a machine's own life. */
  progress(id: string, r: () => number): void {
    const machine = this.machines.get(id)!;
    switch (machine.state) {
      case "creating": {
        const at = new Date(this.now).toISOString();
        const containers = machine.containers.map((c) => ({
          ...c,
          state: "running" as const,
          ready: true,
          started: true,
          id: `${id}-${c.restart_count}`,
          started_at: at,
        }));
        this.#change(id, {
          state: "running",
          sandbox_ready: true,
          addresses: [{ ip: "10.0.0.1" }],
          started_at: at,
          containers,
        });
        break;
      }
      case "running": {
        const pod = this.byUid(this.uidOf(machine));
        const x = r();
        if (x < 0.3 && pod?.spec.restartPolicy === "Always") {
          const containers = machine.containers.map((c) => ({
            ...c,
            restart_count: c.restart_count + 1,
            id: `${id}-${c.restart_count + 1}`,
            last: { exit_code: 1, reason: "Error", finished_at: new Date(this.now).toISOString() },
          }));
          this.#change(id, { containers });
        } else if (x > 0.6 && pod?.spec.restartPolicy !== "Always") {
          this.#change(id, {
            state: "stopped",
            stopped_at: new Date(this.now).toISOString(),
            containers: ended(machine, this.now, x > 0.8 ? 1 : 0),
          });
        } else if (x > 0.97) {
          this.#change(id, {
            state: "failed",
            reason: "HostLost",
            stopped_at: new Date(this.now).toISOString(),
            containers: ended(machine, this.now, 137),
          });
        }
        break;
      }
      case "stopping":
        this.#change(id, {
          state: "stopped",
          stopped_at: new Date(this.now).toISOString(),
          containers: ended(machine, this.now, r() < 0.5 ? 0 : 143),
        });
        break;
      case "deleting":
        this.#bury(id);
        break;
      case "stopped":
      case "failed":
        if (this.#accepted.has(id)) this.#bury(id);
        break;
      case "pending":
      case "starting":
      case "deleted":
        break;
    }
  }

  /** The machine is gone without a trace. */
  vanish(id: string): void {
    const machine = this.machines.get(id);
    if (machine === undefined || machine.state === "deleted") return;
    this.#revision++;
    this.machines.delete(id);
    this.vanished.add(id);
  }
}

export const isAlive = (state: MachineState) => state !== "stopped" && state !== "failed" && state !== "deleted";

function ended(machine: Machine, now: number, exitCode: number): Machine["containers"] {
  return machine.containers.map((c) =>
    c.state === "running"
      ? {
          ...c,
          state: "terminated" as const,
          ready: false,
          started: false,
          terminated: {
            exit_code: exitCode,
            reason: exitCode === 0 ? "Completed" : "Error",
            finished_at: new Date(now).toISOString(),
            ...(c.id && { id: c.id }),
          },
        }
      : c,
  );
}
