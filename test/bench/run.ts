/**
 * `npm run bench -- [--pods N] [--rate N] [--target memory|http|process]... [--vs kwok|virtual-kubelet]...`
 *
 * Prints what agents cost and how fast they are, all measured in the same run on the same control plane. Nothing is
 * asserted: the figures depend on the machine. With `--vs`, the peers come first and the ratios to them are printed.
 */
import { statSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { availableParallelism, cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { startCluster, type Cluster } from "../e2e/harness/cluster.ts";
import {
  agentWrites,
  benchPod,
  cpuSeconds,
  createNamespace,
  deletePod,
  inParallel,
  PodWatch,
  steadyCreation,
  untilNodeReady,
  usage,
  type Latencies,
  type Usage,
} from "./measure.ts";
import { kwok, virtualKubelet, vmlet, type Target } from "./targets.ts";

const makers: Record<string, () => Target> = {
  kwok,
  "virtual-kubelet": virtualKubelet,
  memory: () => vmlet("memory"),
  http: () => vmlet("http"),
  process: () => vmlet("process"),
};

interface Figures {
  target: string;
  pods: number;
  idle: Usage;
  backendIdle: Usage | undefined;
  /** Seconds from the start of the agent until all pods were seen Running. */
  startSeconds: number;
  writes: Map<string, number>;
  loaded: Usage;
  backendLoaded: Usage | undefined;
  /** CPU seconds that the agent spent on bringing one pod to Running, in milliseconds. */
  cpuMsPerPod: number;
  deleteSeconds: number;
  latencies: Latencies;
  rate: number;
}

const { values } = parseArgs({
  options: {
    pods: { type: "string", default: "1000" },
    rate: { type: "string", default: "20" },
    steady: { type: "string", default: "300" },
    target: { type: "string", multiple: true, default: ["memory", "http"] },
    vs: { type: "string", multiple: true, default: [] },
    json: { type: "boolean", default: false },
  },
});
const size = { pods: positive("pods"), rate: positive("rate"), steady: positive("steady") };
const targets = [...values.vs, ...values.target].map((name) => {
  const make = makers[name];
  if (!make) fail(`unknown agent ${name}; known are ${Object.keys(makers).join(", ")}`);
  return make();
});

console.log(`${cpus()[0]?.model ?? "unknown CPU"}, ${availableParallelism()} cores; ${size.pods} pods, ${size.rate}/s`);
const auditDir = await mkdtemp(join(tmpdir(), "vmlet-bench-"));
const auditLog = join(auditDir, "audit.log");
const auditPolicy = join(auditDir, "policy.json");
await writeFile(
  auditPolicy,
  JSON.stringify({
    apiVersion: "audit.k8s.io/v1",
    kind: "Policy",
    omitStages: ["RequestReceived"],
    rules: [
      {
        level: "Metadata",
        verbs: ["create", "update", "patch", "delete"],
        resources: [{ group: "", resources: ["pods", "pods/status", "events", "serviceaccounts/token"] }],
      },
      { level: "None" },
    ],
  }),
);
const cluster = await startCluster({
  apiServerFlags: [
    `--audit-policy-file=${auditPolicy}`,
    `--audit-log-path=${auditLog}`,
    "--audit-log-mode=batch",
    "--audit-log-batch-max-wait=200ms",
  ],
});
const results: Figures[] = [];
try {
  for (const target of targets) {
    await target.prepare(cluster);
    try {
      const figures = await measure(cluster, target);
      results.push(figures);
      print(figures);
    } finally {
      await target.close();
    }
  }
  compare(results, values.vs.length);
  if (values.json)
    console.log(JSON.stringify(results.map((each) => ({ ...each, writes: Object.fromEntries(each.writes) }))));
} finally {
  await cluster.stop();
  await rm(auditDir, { recursive: true, force: true });
}

async function measure(where: Cluster, target: Target): Promise<Figures> {
  const { admin } = where;
  const namespace = await createNamespace(admin, target.nodeName);
  await using watch = await PodWatch.start(admin, namespace);
  const path = `/api/v1/namespaces/${namespace}/pods`;
  // The slowest peer needs more than half a second per pod, and its first look at a thousand pods takes longer still.
  const timeoutMs = 60_000 + size.pods * 1_000;

  // The agent registers its Node first: a pod that is bound to a Node that does not exist is collected as garbage.
  await target.startAgent();
  await Promise.race([untilNodeReady(admin, target.nodeName), target.failed()]);
  const idle = await usage(target.pids(), 5);
  const backendIdle = await backendUsage(target);
  await target.stopAgent();

  const names = Array.from({ length: size.pods }, (_, index) => `bound-${index}`);
  await inParallel(names, (name) => admin.create(path, benchPod(name, target.nodeName)));
  const auditFrom = statSync(auditLog, { throwIfNoEntry: false })?.size ?? 0;
  const started = performance.now();
  await target.startAgent();
  await Promise.race([watch.all("runningAt", names, timeoutMs), target.failed()]);
  const startSeconds = (latest(watch.runningAt, names) - started) / 1000;
  const cpuMsPerPod = (cpuSeconds(target.pids()) / size.pods) * 1000;
  const loaded = await usage(target.pids(), 5);
  const backendLoaded = await backendUsage(target);
  // The five seconds above are also what the audit log's batches and late events needed to be written.
  const writes = agentWrites(auditLog, auditFrom);

  const deleting = performance.now();
  await inParallel(names, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", names, timeoutMs);
  const deleteSeconds = (latest(watch.goneAt, names) - deleting) / 1000;

  const steady = await steadyCreation({
    client: admin,
    namespace,
    nodeName: target.nodeName,
    watch,
    count: size.steady,
    perSecond: size.rate,
    timeoutMs,
  });
  await inParallel(steady.names, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", steady.names, timeoutMs);
  return {
    target: target.name,
    pods: size.pods,
    idle,
    backendIdle,
    startSeconds,
    writes,
    loaded,
    backendLoaded,
    cpuMsPerPod,
    deleteSeconds,
    latencies: steady.latencies,
    rate: size.rate,
  };
}

/** When the last of the pods was seen: not when the bench noticed that it had been. */
function latest(seen: ReadonlyMap<string, number>, names: readonly string[]): number {
  return Math.max(...names.map((name) => seen.get(name)!));
}

async function backendUsage(target: Target): Promise<Usage | undefined> {
  const pids = target.backendPids();
  return pids.length === 0 ? undefined : usage(pids, 2);
}

function print(f: Figures): void {
  const use = ({ rssMiB, cpuPercent }: Usage) => `${rssMiB.toFixed(0)} MiB, ${cpuPercent.toFixed(1)} % of a core`;
  const total = [...f.writes.values()].reduce((sum, each) => sum + each, 0);
  const parts = [...f.writes].map(([what, count]) => `${what} ${(count / f.pods).toFixed(2)}`).join(", ");
  console.log(`\n${f.target}`);
  console.log(
    `  ${f.pods} bound pods to Running   ${f.startSeconds.toFixed(1)} s (${(f.pods / f.startSeconds).toFixed(1)}/s)`,
  );
  console.log(
    `  deletion of ${f.pods}             ${f.deleteSeconds.toFixed(1)} s (${(f.pods / f.deleteSeconds).toFixed(1)}/s)`,
  );
  const { p50, p90, p99, max } = f.latencies;
  console.log(`  creation at ${f.rate}/s to Running  p50 ${ms(p50)}  p90 ${ms(p90)}  p99 ${ms(p99)}  max ${ms(max)}`);
  console.log(`  API writes per pod to Running  ${(total / f.pods).toFixed(2)} (${parts})`);
  console.log(`  CPU per pod to Running         ${f.cpuMsPerPod.toFixed(2)} ms`);
  console.log(`  agent with 0 pods              ${use(f.idle)}`);
  console.log(`  agent with ${f.pods} pods           ${use(f.loaded)}`);
  if (f.backendIdle && f.backendLoaded) {
    console.log(`  backend with 0 / ${f.pods} pods     ${use(f.backendIdle)} / ${use(f.backendLoaded)}`);
  }
}

function compare(all: readonly Figures[], peers: number): void {
  for (const ours of all.slice(peers)) {
    for (const peer of all.slice(0, peers)) {
      const ratio = (better: number, than: number) => `${(better / than).toFixed(2)} x`;
      console.log(
        `\n${ours.target} against ${peer.target}: start ${ratio(peer.startSeconds, ours.startSeconds)} as fast, ` +
          `deletion ${ratio(peer.deleteSeconds, ours.deleteSeconds)}, p50 ${ratio(ours.latencies.p50, peer.latencies.p50)} as long, ` +
          `p99 ${ratio(ours.latencies.p99, peer.latencies.p99)}`,
      );
    }
  }
}

function ms(value: number): string {
  return value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(2)} s`;
}

function positive(name: "pods" | "rate" | "steady"): number {
  const value = Number(values[name]);
  if (!(value > 0)) fail(`--${name} must be a number above 0, not ${values[name]}`);
  return value;
}

function fail(message: string): never {
  console.error(`bench: ${message}`);
  process.exit(2);
}
