/** The figures of the bench: everything is seen from outside the agent, so that every agent is measured alike. */
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import type { Client, Json } from "../e2e/harness/client.ts";
import { HttpError } from "../e2e/harness/client.ts";
import { must, waitFor } from "../e2e/harness/wait.ts";

/** As many requests at once as the published figures of the peers were measured with. */
const parallelism = 16;

export interface Usage {
  rssMiB: number;
  /** Of one core, in percent, since the previous reading. */
  cpuPercent: number;
}

export interface Latencies {
  p50: number;
  p90: number;
  p99: number;
  max: number;
}

/** Resident memory now, and the share of a core used over `seconds`, of the processes together. */
export async function usage(pids: readonly number[], seconds: number): Promise<Usage> {
  const before = cpuSeconds(pids);
  const started = performance.now();
  await sleep(seconds * 1000);
  const elapsed = (performance.now() - started) / 1000;
  const rssKiB = pids.map((pid) => Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]));
  return {
    rssMiB: rssKiB.reduce((sum, each) => sum + each, 0) / 1024,
    cpuPercent: ((cpuSeconds(pids) - before) / elapsed) * 100,
  };
}

/** User and system time of the processes: fields 14 and 15 of /proc/PID/stat, in ticks of 1/100 s (proc_pid_stat(5)). */
export function cpuSeconds(pids: readonly number[]): number {
  const ticks = pids.map((pid) => {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8")
      .replace(/^.*\) /s, "")
      .split(" ");
    return Number(fields[11]) + Number(fields[12]);
  });
  return ticks.reduce((sum, each) => sum + each, 0) / 100;
}

export function percentiles(values: readonly number[]): Latencies {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) };
}

/** Follows the pods of a namespace and notes when each was first seen Running, and when it was seen to go. */
export class PodWatch implements AsyncDisposable {
  readonly runningAt = new Map<string, number>();
  readonly goneAt = new Map<string, number>();
  readonly #stop = new AbortController();
  readonly #done: Promise<void>;
  #wake: () => void = () => undefined;
  #broken: unknown;

  private constructor(client: Client, path: string, resourceVersion: string) {
    this.#done = this.#follow(client, path, resourceVersion);
  }

  static async start(client: Client, namespace: string): Promise<PodWatch> {
    const path = `/api/v1/namespaces/${namespace}/pods`;
    const list = await client.get(`${path}?limit=1`);
    return new PodWatch(client, path, list.metadata.resourceVersion);
  }

  /** The API server ends the watch of a client that it finds slow; the next one goes on where that ended. */
  async #follow(client: Client, path: string, resourceVersion: string): Promise<void> {
    let last = resourceVersion;
    try {
      while (!this.#stop.signal.aborted) {
        for await (const { type, object } of client.watch(`${path}?resourceVersion=${last}`, this.#stop.signal)) {
          if (type === "ERROR") throw new Error(`watch failed: ${JSON.stringify(object)}`);
          last = object.metadata.resourceVersion;
          const name: string = object.metadata.name;
          if (type === "DELETED") this.goneAt.set(name, performance.now());
          else if (object.status?.phase === "Running" && !this.runningAt.has(name))
            this.runningAt.set(name, performance.now());
          this.#wake();
        }
      }
    } catch (thrown) {
      if (this.#stop.signal.aborted) return;
      this.#broken = thrown;
      this.#wake();
    }
  }

  /** Resolves when every name is in the map; rejects after `timeoutMs`, saying how many are. */
  async all(which: "runningAt" | "goneAt", names: readonly string[], timeoutMs: number): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    for (;;) {
      if (this.#broken !== undefined) throw this.#broken;
      const missing = names.filter((name) => !this[which].has(name)).length;
      if (missing === 0) return;
      const left = deadline - performance.now();
      if (left <= 0)
        throw new Error(`${names.length - missing} of ${names.length} pods reached ${which} in ${timeoutMs / 1000} s`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#wake = () => (clearTimeout(timer), resolve());
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#done;
  }
}

export function benchPod(name: string, nodeName: string): Json {
  return {
    metadata: { name },
    spec: {
      nodeName,
      terminationGracePeriodSeconds: 1,
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      tolerations: [{ operator: "Exists" }],
      containers: [{ name: "main", image: "none", command: ["sleep", "86400"] }],
    },
  };
}

/** Calls `work` for every item, sixteen at a time. */
export async function inParallel<T>(
  items: readonly T[],
  work: (item: T) => Promise<unknown>,
  atOnce = parallelism,
): Promise<void> {
  const queue = items.values();
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (const item of queue) await work(item);
    }),
  );
}

/** Creates pods at an even rate and returns the milliseconds from each request to its pod being seen Running. */
export async function steadyCreation(options: {
  client: Client;
  namespace: string;
  nodeName: string;
  watch: PodWatch;
  count: number;
  perSecond: number;
  timeoutMs: number;
}): Promise<{ latencies: Latencies; names: string[] }> {
  const names = Array.from({ length: options.count }, (_, index) => `steady-${index}`);
  const sentAt = new Map<string, number>();
  const requests: Promise<unknown>[] = [];
  const started = performance.now();
  for (const [index, name] of names.entries()) {
    await sleep(Math.max(0, started + (index * 1000) / options.perSecond - performance.now()));
    sentAt.set(name, performance.now());
    requests.push(
      options.client.create(`/api/v1/namespaces/${options.namespace}/pods`, benchPod(name, options.nodeName)),
    );
  }
  await Promise.all(requests);
  await options.watch.all("runningAt", names, options.timeoutMs);
  return { latencies: percentiles(names.map((name) => options.watch.runningAt.get(name)! - sentAt.get(name)!)), names };
}

export async function createNamespace(client: Client, name: string): Promise<string> {
  await client.create("/api/v1/namespaces", { metadata: { name } });
  await waitFor({ what: `the default ServiceAccount of ${name}` }, () =>
    client.get(`/api/v1/namespaces/${name}/serviceaccounts/default`),
  );
  return name;
}

/** @param options.force at once, for pods that no agent looks after */
export async function deletePod(
  client: Client,
  namespace: string,
  name: string,
  { force = false }: { force?: boolean } = {},
): Promise<void> {
  const query = force ? "?gracePeriodSeconds=0" : "";
  await client.delete(`/api/v1/namespaces/${namespace}/pods/${name}${query}`).catch((thrown: unknown) => {
    if (!(thrown instanceof HttpError && thrown.status === 404)) throw thrown;
  });
}

export async function untilNodeReady(client: Client, nodeName: string): Promise<void> {
  await waitFor({ what: `node ${nodeName} to be Ready`, timeoutMs: 60_000 }, async () => {
    const node = await client.get(`/api/v1/nodes/${nodeName}`);
    const ready = (node.status.conditions ?? []).find((each: Json) => each.type === "Ready");
    must(ready?.status === "True", ready);
  });
}

/**
 * Writes to the API server by the agent under test, from the audit log: by resource, without leases and what concerns
 * the Node. Everybody else (the bench, the controllers, the scheduler, the API server itself) is left out by name.
 */
export function agentWrites(auditLog: string, from: number): Map<string, number> {
  const counts = new Map<string, number>();
  // A batch may be half written at either end: only whole lines between two newlines count.
  const log = readFileSync(auditLog);
  const start = from === 0 ? 0 : log.indexOf("\n", from - 1) + 1;
  const lines = log.subarray(start, log.lastIndexOf("\n")).toString().split("\n");
  for (const line of lines) {
    if (line === "") continue;
    const event: Json = JSON.parse(line);
    const user: string = event.user.username;
    if (
      user === "admin" ||
      user.startsWith("system:kube-") ||
      user.startsWith("system:serviceaccount:") ||
      user === "system:apiserver"
    )
      continue;
    const { resource, subresource } = event.objectRef ?? {};
    if (!["pods", "events", "serviceaccounts"].includes(resource)) continue;
    const key = `${event.verb} ${resource}${subresource === undefined ? "" : `/${subresource}`}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

/** A line of what was measured. */
export function printFigure(what: string, figure: string): void {
  console.log(`  ${what.padEnd(76)}${figure}`);
}

export function formatMs(value: number): string {
  return value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(2)} s`;
}
