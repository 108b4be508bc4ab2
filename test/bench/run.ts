/**
 * `npm run bench -- [--pods N] [--rate N] [--target memory|http|process]... [--vs kwok|virtual-kubelet|least]...
 * [--against DIR] [--limit] [--curve] [--scale] [--many] [--markdown]`
 *
 * Prints what agents cost and how fast they are, all measured in the same run on the same control plane. Nothing is
 * asserted: the figures depend on the machine. With `--vs`, the peers come first and the ratios to them are printed;
 * with `--against`, each target of another checkout, built with `npm run build` there, is measured right before its own.
 * `--limit` measures first what the API server itself bears, and prints each agent's share of it. `--curve` measures
 * each target with 100, 1,000 and 10,000 pods (or `--at 100 --at 500`): what grows faster than the pods shows there.
 * `--scale` measures instead what a node of 10,000 pods (or `--pods N`) goes through: see `scale.ts`.
 * `--many` measures ten nodes in one process and fifty agents of one API server: see `many.ts`.
 * `--markdown` ends with the table that README.md holds.
 */
import { statSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, cpus, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { toError } from "../../src/util/errors.ts";
import { startCluster, type Cluster } from "../e2e/harness/cluster.ts";
import {
  agentWrites,
  benchPod,
  cpuSeconds,
  createNamespace,
  deletePod,
  formatMs,
  inParallel,
  PodWatch,
  steadyCreation,
  untilNodeReady,
  usage,
  type Latencies,
  type Usage,
} from "./measure.ts";
import { apiServerLimit, type Limit } from "./limit.ts";
import { many } from "./many.ts";
import { scale } from "./scale.ts";
import { kwok, least, virtualKubelet, vmlet, type Target } from "./targets.ts";

const peers: Record<string, () => Target> = { kwok, "virtual-kubelet": virtualKubelet, least };
/** The audit log is written in batches of 200 ms. */
const AUDIT_BATCH_MS = 1_000;
/** Three events a pod are sent at a kubelet's 50 a second; of very many pods, as many as are kept. */
const settleMs = (pods: number) => 10_000 + Math.min(70 * pods, 210_000);
const variants = ["memory", "http", "process"] as const;

interface Figures {
  target: string;
  pods: number;
  idle: Usage;
  backendIdle: Usage | undefined;
  /** Seconds from the start of the agent until all pods were seen Running. */
  startSeconds: number;
  writes: Map<string, number>;
  deletionWrites: Map<string, number>;
  /** CPU of the agent for one pod's end, in milliseconds. */
  deleteCpuMsPerPod: number;
  /** Meanwhile of the control plane and the bench, for one pod, in milliseconds. */
  othersCpuMs: { start: number; deletion: number };
  loaded: Usage;
  /** When the events of the start have been sent as well. */
  settled: Usage;
  backendLoaded: Usage | undefined;
  /** CPU seconds that the agent spent on bringing one pod to Running, in milliseconds. */
  cpuMsPerPod: number;
  deleteSeconds: number;
  latencies: Latencies;
  rate: number;
}

const { values } = parsed();
if (values.help) {
  // What stands at the head of this file, without the marks of a comment.
  const head = (await readFile(import.meta.filename, "utf8")).split("*/")[0]!;
  console.log(head.replaceAll(/^(?:\/\*\*| \*) ?/gm, "").trim());
  process.exit();
}
const size = { pods: positive("pods"), rate: positive("rate"), steady: positive("steady") };
const against = values.against === undefined ? undefined : resolve(values.against);
const compared = values.vs.map((name) => (peers[name] ?? fail(unknown(name, Object.keys(peers))))());
const targets = [
  ...compared,
  ...values.target.flatMap((name) => {
    const variant = variants.find((each) => each === name) ?? fail(unknown(name, variants));
    return [...(against === undefined ? [] : [vmlet(variant, against)]), vmlet(variant)];
  }),
];

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
/** These measure no targets. */
const isWhole = values.scale || values.many;
try {
  if (values.scale) await scale(cluster, size.pods);
  if (values.many) await many(cluster, size.pods);
  const limit = values.limit ? await apiServerLimit(cluster, size.pods) : undefined;
  if (limit !== undefined)
    console.log(
      `\nThe API server bears ${limit.perSecond.toFixed(0)} statuses/s, of ${limit.cpuMs.toFixed(2)} ms CPU of the client each`,
    );
  const podCounts = values.curve ? values.at.map(Number) : [size.pods];
  for (const target of isWhole ? [] : targets) {
    await target.prepare(cluster);
    try {
      for (const pods of podCounts) {
        const figures = await measure(cluster, target, pods);
        results.push(figures);
        print(figures, limit);
      }
    } finally {
      await target.close();
    }
  }
  if (values.curve) for (const line of curve(results)) console.log(line);
  if (values.markdown) for (const line of markdown(results, limit)) console.log(line);
  if (!values.curve && !isWhole) {
    const [others, ours] = [results.slice(0, compared.length), results.slice(compared.length)];
    for (const each of ours) for (const peer of others) compare(each, peer);
    if (against !== undefined) for (let i = 0; i < ours.length; i += 2) compare(ours[i + 1]!, ours[i]!);
  }
  if (values.json)
    console.log(
      JSON.stringify(
        results.map((each) => ({
          ...each,
          writes: Object.fromEntries(each.writes),
          deletionWrites: Object.fromEntries(each.deletionWrites),
        })),
      ),
    );
} finally {
  await cluster.stop();
  await rm(auditDir, { recursive: true, force: true });
}

async function measure(where: Cluster, target: Target, pods: number): Promise<Figures> {
  const { admin } = where;
  const namespace = await createNamespace(admin, `${target.nodeName}-${pods}`);
  await using watch = await PodWatch.start(admin, namespace);
  const path = `/api/v1/namespaces/${namespace}/pods`;
  // The slowest peer needs more than half a second per pod, and its first look at a thousand pods takes longer still.
  const timeoutMs = 60_000 + pods * 1_000;

  // A second agent of the same node, with a backend of its own, would run the pods as well.
  await target.stopAgent();
  // The agent registers its Node first: a pod that is bound to a Node that does not exist is collected as garbage.
  await target.startAgent();
  await Promise.race([untilNodeReady(admin, target.nodeName), target.failed()]);
  const idle = await usage(target.pids(), 5);
  const backendIdle = await backendUsage(target);
  await target.stopAgent();

  const names = Array.from({ length: pods }, (_, index) => `bound-${index}`);
  await inParallel(names, (name) => admin.create(path, benchPod(name, target.nodeName)));
  const auditFrom = statSync(auditLog, { throwIfNoEntry: false })?.size ?? 0;
  const othersBefore = othersCpu(where);
  const started = performance.now();
  await target.startAgent();
  await Promise.race([watch.all("runningAt", names, timeoutMs), target.failed()]);
  const startSeconds = (latest(watch.runningAt, names) - started) / 1000;
  const cpuMsPerPod = (cpuSeconds(target.pids()) / pods) * 1000;
  const start = ((othersCpu(where) - othersBefore) / pods) * 1000;
  const loaded = await usage(target.pids(), 5);
  const backendLoaded = await backendUsage(target);
  // Events are sent for a while after the last pod runs; then nothing is left to do.
  await sleep(settleMs(pods));
  const settled = await usage(target.pids(), 10);
  // The five seconds above are also what the audit log's batches and late events needed to be written.
  const writes = agentWrites(auditLog, auditFrom);

  const deletionFrom = statSync(auditLog).size;
  const cpuBefore = cpuSeconds(target.pids());
  const othersLoaded = othersCpu(where);
  const deleting = performance.now();
  await inParallel(names, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", names, timeoutMs);
  const deleteSeconds = (latest(watch.goneAt, names) - deleting) / 1000;
  const deleteCpuMsPerPod = ((cpuSeconds(target.pids()) - cpuBefore) / pods) * 1000;
  const deletion = ((othersCpu(where) - othersLoaded) / pods) * 1000;
  await sleep(AUDIT_BATCH_MS);
  const deletionWrites = agentWrites(auditLog, deletionFrom);

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
    pods,
    idle,
    backendIdle,
    startSeconds,
    writes,
    deletionWrites,
    deleteCpuMsPerPod,
    othersCpuMs: { start, deletion },
    loaded,
    backendLoaded,
    settled,
    cpuMsPerPod,
    deleteSeconds,
    latencies: steady.latencies,
    rate: size.rate,
  };
}

/** CPU seconds so far of the control plane and of this process. */
function othersCpu(where: Cluster): number {
  return cpuSeconds([process.pid, ...Object.values(where.processes()).map(({ pid }) => pid)]);
}

/** When the last of the pods was seen: not when the bench noticed that it had been. */
function latest(seen: ReadonlyMap<string, number>, names: readonly string[]): number {
  return Math.max(...names.map((name) => seen.get(name)!));
}

async function backendUsage(target: Target): Promise<Usage | undefined> {
  const pids = target.backendPids();
  return pids.length === 0 ? undefined : usage(pids, 2);
}

/** Cost against the number of pods: flat where cost grows as the work does. */
function curve(all: readonly Figures[]): string[] {
  const rows = all.map(
    (f) =>
      `${f.target.padEnd(24)} ${String(f.pods).padStart(6)}  ${(f.pods / f.startSeconds).toFixed(0).padStart(6)}/s  ` +
      `${f.cpuMsPerPod.toFixed(2).padStart(6)} ms  ${kibPerPod(f).toFixed(0).padStart(6)} KiB  ` +
      `${((f.settled.cpuPercent / f.pods) * 1000).toFixed(2).padStart(6)} %`,
  );
  return ["", "                           pods  to Running  CPU/pod   memory/pod  idle per 1000 pods", ...rows];
}

function kibPerPod(f: Figures): number {
  return ((f.loaded.rssMiB - f.idle.rssMiB) * 1024) / f.pods;
}

/** The table of README.md. */
function markdown(all: readonly Figures[], limit: Limit | undefined): string[] {
  const row = (what: string, cell: (f: Figures) => string) => `| ${[what, ...all.map(cell)].join(" | ")} |`;
  return [
    "",
    row("", (f) => `${f.target}, ${f.pods} pods`),
    row("---", () => "---"),
    row("bound to Running", (f) => `${(f.pods / f.startSeconds).toFixed(0)}/s`),
    ...(limit === undefined
      ? []
      : [row(`of what the API server bears (${limit.perSecond.toFixed(0)}/s)`, (f) => `${share(f, limit)} %`)]),
    row("deletion", (f) => `${(f.pods / f.deleteSeconds).toFixed(0)}/s`),
    row("creation to Running, p50 / p99", (f) => `${formatMs(f.latencies.p50)} / ${formatMs(f.latencies.p99)}`),
    row("CPU a pod to Running", (f) => `${f.cpuMsPerPod.toFixed(2)} ms`),
    row("memory, no pods / all", (f) => `${f.idle.rssMiB.toFixed(0)} / ${f.loaded.rssMiB.toFixed(0)} MiB`),
    row("idle with all, of a core", (f) => `${f.settled.cpuPercent.toFixed(1)} %`),
  ];
}

function share(f: Figures, limit: Limit): string {
  return ((f.pods / f.startSeconds / limit.perSecond) * 100).toFixed(0);
}

function print(f: Figures, limit: Limit | undefined): void {
  const use = ({ rssMiB, cpuPercent }: Usage) => `${rssMiB.toFixed(0)} MiB, ${cpuPercent.toFixed(1)} % of a core`;
  const perPod = (writes: ReadonlyMap<string, number>) => {
    const total = [...writes.values()].reduce((sum, each) => sum + each, 0);
    const parts = [...writes].map(([what, count]) => `${what} ${(count / f.pods).toFixed(2)}`).join(", ");
    return `${(total / f.pods).toFixed(2)} (${parts})`;
  };
  console.log(`\n${f.target}`);
  console.log(
    `  ${f.pods} bound pods to Running   ${f.startSeconds.toFixed(1)} s (${(f.pods / f.startSeconds).toFixed(1)}/s)`,
  );
  console.log(
    `  deletion of ${f.pods}             ${f.deleteSeconds.toFixed(1)} s (${(f.pods / f.deleteSeconds).toFixed(1)}/s)`,
  );
  if (limit !== undefined) console.log(`  of what the API server bears   ${share(f, limit)} %`);
  const { p50, p90, p99, max } = f.latencies;
  console.log(
    `  creation at ${f.rate}/s to Running  p50 ${formatMs(p50)}  p90 ${formatMs(p90)}  p99 ${formatMs(p99)}  max ${formatMs(max)}`,
  );
  console.log(`  API writes per pod to Running  ${perPod(f.writes)}`);
  console.log(`  API writes per pod's deletion  ${perPod(f.deletionWrites)}`);
  console.log(`  CPU per pod to Running         ${f.cpuMsPerPod.toFixed(2)} ms`);
  console.log(`  CPU per pod's deletion         ${f.deleteCpuMsPerPod.toFixed(2)} ms`);
  const { start, deletion } = f.othersCpuMs;
  console.log(`  CPU per pod of all others      ${start.toFixed(2)} ms, its deletion ${deletion.toFixed(2)} ms`);
  console.log(`  agent with 0 pods              ${use(f.idle)}`);
  console.log(`  agent with ${f.pods} pods           ${use(f.loaded)}`);
  console.log(`  when its events are sent       ${use(f.settled)}`);
  if (f.backendIdle && f.backendLoaded) {
    console.log(`  backend with 0 / ${f.pods} pods     ${use(f.backendIdle)} / ${use(f.backendLoaded)}`);
  }
}

function compare(ours: Figures, peer: Figures): void {
  const ratio = (better: number, than: number) => `${(better / than).toFixed(2)} x`;
  console.log(
    `\n${ours.target} against ${peer.target}: start ${ratio(peer.startSeconds, ours.startSeconds)} as fast, ` +
      `deletion ${ratio(peer.deleteSeconds, ours.deleteSeconds)}, p50 ${ratio(ours.latencies.p50, peer.latencies.p50)} as long, ` +
      `p99 ${ratio(ours.latencies.p99, peer.latencies.p99)}, CPU a pod ${ratio(ours.cpuMsPerPod, peer.cpuMsPerPod)}, ` +
      `memory ${ratio(ours.loaded.rssMiB, peer.loaded.rssMiB)}`,
  );
}

function positive(name: "pods" | "rate" | "steady"): number {
  const value = Number(values[name] ?? (values.scale ? 10_000 : 1_000));
  if (!(value > 0)) fail(`--${name} must be a number above 0, not ${values[name]}`);
  return value;
}

function unknown(name: string, known: readonly string[]): string {
  return `unknown agent ${name}; known are ${known.join(", ")}`;
}

function fail(message: string): never {
  console.error(`bench: ${message}`);
  process.exit(2);
}

function parsed() {
  try {
    return parseArgs({
      options: {
        help: { type: "boolean", short: "h", default: false },
        pods: { type: "string" },
        rate: { type: "string", default: "20" },
        steady: { type: "string", default: "300" },
        target: { type: "string", multiple: true, default: ["memory", "http"] },
        vs: { type: "string", multiple: true, default: [] },
        against: { type: "string" },
        limit: { type: "boolean", default: false },
        curve: { type: "boolean", default: false },
        scale: { type: "boolean", default: false },
        many: { type: "boolean", default: false },
        at: { type: "string", multiple: true, default: ["100", "1000", "10000"] },
        markdown: { type: "boolean", default: false },
        json: { type: "boolean", default: false },
      },
    });
  } catch (thrown) {
    return fail(`${toError(thrown).message}; --help tells the options`);
  }
}
