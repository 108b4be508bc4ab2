/**
 * What happened, as seen from outside the agent, and whether it was allowed to happen. Three witnesses: a watch of all
 * pods, the backend's own list, and the operating system's process table. The agent's word is never taken for anything.
 *
 * Rules, as shared by all cases (numbers as in the simulation's invariants):
 * - one   never two live machines, nor two live copies of a container, for one pod UID (S1)
 * - gone  a pod object that its agent removed leaves no process behind, not even for an instant (S4)
 * - time  startTime never changes once it is set (S6)
 * - count restart counts never fall (S6)
 * - final a terminal phase never changes, and Running never becomes Pending again (S6)
 * - left  at the end of a case, no live machine and no process belongs to a pod that does not exist (L2)
 */
import type { Client, Json } from "../harness/client.ts";
import { HttpError } from "../harness/client.ts";
import { listProcesses } from "../harness/processes.ts";
import { must, passTime, waitFor } from "../harness/wait.ts";

/** Carried by every container that the cases start, so that the process table tells whose a process is. */
export const uidVariable = "VMLET_E2E_POD_UID";
export const containerVariable = "VMLET_E2E_CONTAINER";

export interface PodVersion {
  type: "ADDED" | "MODIFIED" | "DELETED";
  pod: Json;
}

/** What the rules say of two versions of one pod that follow each other; empty when nothing is wrong. */
export function transitionViolations(before: Json, after: Json): string[] {
  const found: string[] = [];
  const name = `${after.metadata.namespace}/${after.metadata.name} (${after.metadata.uid})`;
  const was = before.status ?? {};
  const is = after.status ?? {};
  if (was.startTime !== undefined && is.startTime !== was.startTime) {
    found.push(`time: ${name}: startTime changed from ${was.startTime} to ${is.startTime}`);
  }
  const terminal = was.phase === "Succeeded" || was.phase === "Failed";
  if ((terminal && is.phase !== was.phase) || (was.phase === "Running" && is.phase === "Pending")) {
    found.push(`final: ${name}: phase went from ${was.phase} to ${is.phase}`);
  }
  for (const list of ["initContainerStatuses", "containerStatuses"]) {
    for (const old of was[list] ?? []) {
      const now = (is[list] ?? []).find((each: Json) => each.name === old.name);
      if (now === undefined) found.push(`count: ${name}: the status of container ${old.name} disappeared`);
      else if (now.restartCount < old.restartCount) {
        found.push(`count: ${name}: restart count of ${old.name} fell from ${old.restartCount} to ${now.restartCount}`);
      }
    }
  }
  return found;
}

export interface WorkloadProcess {
  pid: number;
  parent: number;
  command: string;
  uid: string;
  container: string;
}

/** The topmost process of each running container of the cases. A shell's children are not copies of it. */
export function workloadProcesses(): WorkloadProcess[] {
  const all = listProcesses().map(({ pid, parent, environment, args }) => {
    const value = (name: string) => environment.find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1);
    return { pid, parent, command: args.join(" "), uid: value(uidVariable), container: value(containerVariable) ?? "" };
  });
  const identity = new Map(all.map((each) => [each.pid, `${each.uid}/${each.container}`]));
  return all.flatMap(({ pid, parent, command, uid, container }) =>
    uid === undefined || identity.get(parent) === `${uid}/${container}`
      ? []
      : [{ pid, parent, command, uid, container }],
  );
}

/**
 * Containers of which more than one copy is in the list. What init has adopted was left behind by a copy that ended and
 * is about to be killed; a second copy is the child of the process that started it.
 */
export function doubles(processes: readonly WorkloadProcess[]): WorkloadProcess[][] {
  const started = processes.filter(({ parent }) => parent !== 1);
  const groups = Map.groupBy(started, ({ uid, container }) => `${uid}/${container}`);
  return [...groups.values()].filter((group) => group.length > 1);
}

/** States in which something of a machine may run. */
const over = new Set(["stopped", "failed", "deleted"]);

/** Pod UIDs that more than one live machine carries. @param machines the backend's list */
export function doubleMachines(machines: readonly Json[]): string[] {
  const live = machines.filter((machine) => !over.has(machine.state));
  const groups = Map.groupBy(live, (machine) => machine.labels["vmlet.dev/uid"] as string);
  return [...groups].flatMap(([uid, group]) =>
    group.length > 1
      ? [`one: pod ${uid} has ${group.length} live machines: ${group.map((machine) => machine.id).join(", ")}`]
      : [],
  );
}

export interface HistoryOptions {
  client: Client;
  /** The backend's list of machines; it may reject while the backend is down. */
  machines: () => Promise<Json[]>;
}

export interface History {
  /** Every version of the pods of a namespace, in the order of the watch. */
  versions(namespace: string): PodVersion[];
  /** From here on the rule `gone` does not hold for this pod: its user asked for the object to go at once. */
  forced(uid: string): void;
  /** Rejects when any rule was broken so far, or when something of this namespace's pods is left after `timeoutMs`. */
  check(namespace: string, timeoutMs?: number): Promise<void>;
  stop(): Promise<void>;
}

const sampleMs = 150;

export async function recordHistory(options: HistoryOptions): Promise<History> {
  const { client } = options;
  const stopping = new AbortController();
  const { signal } = stopping;
  const latest = new Map<string, Json>();
  /** UIDs of all pods that this API server ever had. */
  const mine = new Set<string>();
  const recorded: PodVersion[] = [];
  const force = new Set<string>();
  const violations: string[] = [];
  const violated = (...found: string[]) => {
    for (const each of found) if (!violations.includes(each)) violations.push(each);
  };

  const observe = (type: PodVersion["type"], pod: Json) => {
    const { uid } = pod.metadata;
    mine.add(uid);
    const before = latest.get(uid);
    if (before?.metadata.resourceVersion === pod.metadata.resourceVersion && type !== "DELETED") return;
    recorded.push({ type, pod });
    if (before !== undefined) violated(...transitionViolations(before, pod));
    if (type !== "DELETED") {
      latest.set(uid, pod);
      return;
    }
    latest.delete(uid);
    // A pod that was never bound has no agent, and a grace of 0 asked by its user is marked by the case.
    if (pod.spec.nodeName === undefined || force.has(uid)) return;
    const alive = workloadProcesses().filter((each) => each.uid === uid);
    if (alive.length > 0) {
      const { namespace, name } = pod.metadata;
      violated(
        `gone: ${namespace}/${name} (${uid}) was removed while ${alive.map((each) => each.container).join(", ")} still ran`,
      );
    }
  };

  const relist = async (): Promise<string> => {
    const list = await client.get("/api/v1/pods");
    const present = new Set(list.items.map((pod: Json) => pod.metadata.uid));
    for (const pod of list.items) observe("MODIFIED", pod);
    for (const [uid, pod] of latest) if (!present.has(uid)) observe("DELETED", pod);
    return list.metadata.resourceVersion;
  };

  const follow = async () => {
    let resourceVersion: string | undefined;
    while (!signal.aborted) {
      try {
        resourceVersion ??= await relist();
        for await (const event of client.watch(
          `/api/v1/pods?resourceVersion=${resourceVersion}&allowWatchBookmarks=true`,
          signal,
        )) {
          if (event.type === "ERROR") {
            resourceVersion = undefined;
            break;
          }
          resourceVersion = event.object.metadata.resourceVersion;
          if (event.type !== "BOOKMARK") observe(event.type, event.object);
        }
      } catch (thrown) {
        if (signal.aborted) return;
        if (thrown instanceof HttpError && thrown.status === 410) resourceVersion = undefined;
        await pause(100);
      }
    }
  };

  const sample = async () => {
    while (!signal.aborted) {
      // The table is not read in one instant: a container that was restarted meanwhile looks like two. Only what is
      // there at a second look as well, under the same process ids, ran at the same time.
      // Other environments of this host have witnesses of their own.
      const suspects = doubles(workloadProcesses().filter(({ uid }) => mine.has(uid)));
      if (suspects.length > 0) {
        const still = new Set(workloadProcesses().map((each) => each.pid));
        for (const group of suspects.filter((each) => each.every((process) => still.has(process.pid)))) {
          const [{ uid, container }] = group as [WorkloadProcess];
          const copies = group.map(({ pid, parent, command }) => `${pid} (child of ${parent}) ${command}`);
          violated(`one: container ${container} of pod ${uid} runs ${group.length} times: ${copies.join(" and ")}`);
        }
      }
      try {
        violated(...doubleMachines(await options.machines()));
      } catch (thrown) {
        // The case may have killed the backend; the process table is watched all the same.
        if (signal.aborted) throw thrown;
      }
      await pause(sampleMs);
    }
  };

  const pause = (ms: number) => passTime(ms, "it looks now and then");
  const running = Promise.all([follow(), sample()]);
  running.catch(() => undefined);

  return {
    versions: (namespace) => recorded.filter(({ pod }) => pod.metadata.namespace === namespace),
    forced: (uid) => void force.add(uid),
    async check(namespace, timeoutMs = 30_000) {
      await waitFor({ what: `nothing of ${namespace} to be left`, timeoutMs }, async () => {
        const pods = await client.get("/api/v1/pods");
        const exists = new Set(pods.items.map((pod: Json) => pod.metadata.uid));
        const seen = new Set(
          recorded.filter(({ pod }) => pod.metadata.namespace === namespace).map(({ pod }) => pod.metadata.uid),
        );
        const stray = (uid: string) => seen.has(uid) && !exists.has(uid);
        const processes = workloadProcesses().filter(({ uid }) => stray(uid));
        must(processes.length === 0, { "processes without a pod": processes });
        const machines = (await options.machines()).filter(
          (m) => !over.has(m.state) && stray(m.labels["vmlet.dev/uid"]),
        );
        must(machines.length === 0, {
          "live machines without a pod": machines.map((m) => ({ id: m.id, state: m.state })),
        });
      });
      // Each violation fails one case, the one at whose end it is found, and not all that follow.
      const found = violations.splice(0);
      if (found.length > 0) throw new Error(`rules broken:\n${found.join("\n")}`);
    },
    async stop() {
      stopping.abort();
      await running.catch(() => undefined);
    },
  };
}
