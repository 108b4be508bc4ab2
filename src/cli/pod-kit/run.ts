/**
 * `vmlet conformance --pods`: a small cluster in this process, an agent that can be killed in a process of its own, and
 * the backend that is checked behind it. Pods are the checks' own, and so are the machines that are removed afterwards.
 */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import PQueue from "p-queue";
import { startDevCluster } from "../../devcluster/index.ts";
import { isNotFound } from "../../kube/errors.ts";
import { loadKubeConfig } from "../../kube/kubeconfig.ts";
import { nodePath } from "../../kube/paths.ts";
import { KubeTransport } from "../../kube/transport.ts";
import type { Node } from "../../kube/wire.ts";
import { aroundRestart, untilItAnswers } from "../../provider/kit/around-restart.ts";
import { lacking, reportOf, WITHOUT_RESTART } from "../../provider/kit/conformance.ts";
import { Violation } from "../../provider/kit/context.ts";
import type { CheckResult, ConformanceReport } from "../../provider/kit/index.ts";
import { LABEL_UID, ownerLabels } from "../../provider/owner.ts";
import type { Provider, ProviderInfo } from "../../provider/provider.ts";
import { silentLogger } from "../../telemetry/logger.ts";
import { systemClock as clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import { ChildAgent } from "../child-agent.ts";
import { machinesOf } from "../dev-machines.ts";
import type { PodCheck } from "./check.ts";
import { FIRST_POD_CHECK, POD_CHECKS } from "./checks.ts";
import { PodContext } from "./context.ts";

const NODE = "vmlet-conformance";
const POLL_MS = 200;
/** For the agent's own start, which says nothing of the backend. */
const START_MS = 120_000;

export interface PodConformanceOptions {
  /** A client of the backend: what it has is looked at behind the agent's back. */
  provider: Provider;
  /** The same backend as `nodes[].provider` of an agent's configuration. */
  backend: Record<string, unknown>;
  image?: string | undefined;
  only?: readonly string[] | undefined;
  keep?: boolean | undefined;
  /** The agent tells each request to the backend on standard error. */
  trace?: boolean | undefined;
  /** Restarts the backend. */
  restart?: (() => Promise<void>) | undefined;
  patienceMs: number;
  concurrency: number;
  signal: AbortSignal;
  onResult?: ((result: CheckResult) => void) | undefined;
}

/** What all checks of one run have in common. */
interface Stage {
  kube: KubeTransport;
  agent: ChildAgent;
  info: ProviderInfo;
  labels: Record<string, string>;
  runId: string;
  signal: AbortSignal;
  options: PodConformanceOptions;
}

/** @returns those whose names begin with one of the prefixes */
export function podChecks(only: readonly string[] = [""]): PodCheck[] {
  return POD_CHECKS.filter(({ name }) => only.some((prefix) => name.startsWith(prefix)));
}

/**
 * @throws Error when the backend does not answer or the node does not become Ready; the signal's reason, tidied up
 *   after
 */
export async function runPodConformance(options: PodConformanceOptions): Promise<ConformanceReport> {
  const { provider } = options;
  const info = await provider.getInfo({ signal: options.signal });
  const runId = randomBytes(4).toString("hex");
  const clusterId = `conf-${runId}`;
  const labels = ownerLabels(clusterId, NODE);
  const machines = machinesOf(provider, labels);
  const keptPods = new Set<string>();
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), "vmlet-conformance-"));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const cluster = await startDevCluster({ clock, logger: silentLogger, automountServiceAccountToken: false });
  stack.defer(() => cluster.close());
  const kubeconfig = join(folder, "kubeconfig");
  await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
  const kube = new KubeTransport({ kubeConfig: loadKubeConfig({ path: kubeconfig }), clock, logger: silentLogger });
  stack.defer(() => kube.close());
  const configFile = join(folder, "agent.json");
  await writeFile(configFile, JSON.stringify(agentConfig(options, { clusterId, kubeconfig })), { mode: 0o600 });
  // After the agent's end: nobody makes new ones.
  stack.defer(() => machines.remove((machine) => keptPods.has(machine.labels[LABEL_UID] ?? "")));
  const agent = new ChildAgent(configFile);
  stack.defer(() => agent.stop());
  const signal = AbortSignal.any([options.signal, agent.failed]);
  await untilNodeIsReady(kube, signal);
  const stage: Stage = { kube, agent, info, labels, runId, signal, options };
  const results = await runAll(stage, keptPods);
  signal.throwIfAborted();
  return reportOf(info, results, { uncheckedCapabilities: [] });
}

function agentConfig(
  { backend, trace }: PodConformanceOptions,
  { clusterId, kubeconfig }: { clusterId: string; kubeconfig: string },
): object {
  return {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    clusterId,
    kubeconfig,
    logLevel: trace === true ? "debug" : "error",
    health: { port: 0 },
    nodes: [
      {
        name: NODE,
        provider: backend,
        addresses: ["127.0.0.1"],
        kubelet: { port: 0, address: "127.0.0.1", certificate: "self-signed" },
        taints: [],
      },
    ],
  };
}

async function untilNodeIsReady(kube: KubeTransport, signal: AbortSignal): Promise<void> {
  const deadline = clock.monotonic() + START_MS;
  let last = "there is no Node";
  while (clock.monotonic() < deadline) {
    try {
      const { status } = await kube.request<Node>({ method: "GET", path: nodePath(NODE), signal });
      const ready = status?.conditions?.find(({ type }) => type === "Ready");
      if (ready?.status === "True") return;
      last = ready?.message ?? "it has no condition Ready";
    } catch (thrown) {
      if (!isNotFound(thrown)) throw thrown;
    }
    await clock.sleep(POLL_MS, signal);
  }
  throw new Error(`the agent's node is not Ready after ${START_MS / 1000} s: ${last}`);
}

async function runAll(stage: Stage, keptPods: Set<string>): Promise<CheckResult[]> {
  const { options, signal, agent } = stage;
  const { provider, restart } = options;
  const wanted = podChecks(options.only);
  const results: CheckResult[] = [];
  let firstFailed = false;
  const run = async (check: PodCheck, restarted?: () => Promise<void>) => {
    if (signal.aborted) return;
    const result = firstFailed ? notRun(check) : await runOne(stage, { check, restarted, keptPods });
    // A check that was broken off by a stop says nothing of the backend.
    if (signal.aborted) return;
    results.push(result);
    options.onResult?.(result);
  };
  if (wanted.includes(FIRST_POD_CHECK)) await run(FIRST_POD_CHECK);
  firstFailed = results.some(({ outcome }) => outcome === "failed");
  const queue = new PQueue({ concurrency: options.concurrency });
  const plain = wanted.filter((check) => check !== FIRST_POD_CHECK && check.restarts === undefined);
  await Promise.all(plain.map((check) => queue.add(() => run(check))));
  const disturbances = {
    agent: () => agent.killAndStart(),
    backend:
      restart &&
      (() => restart().then(() => untilItAnswers(provider, { clock, patienceMs: options.patienceMs, signal }))),
  };
  for (const what of ["agent", "backend"] as const) {
    const checks = wanted.filter(({ restarts }) => restarts === what);
    const disturb = firstFailed ? undefined : disturbances[what];
    if (disturb === undefined) for (const check of checks) await run(check);
    else await aroundRestart(checks, disturb, run);
  }
  return results;
}

const notRun = ({ name }: PodCheck): CheckResult => ({
  name,
  outcome: "skipped",
  message: `not run: it needs what ${FIRST_POD_CHECK.name} has found to fail`,
  durationMs: 0,
});

async function runOne(
  { kube, info, labels, runId, signal, options }: Stage,
  {
    check,
    restarted,
    keptPods,
  }: { check: PodCheck; restarted?: (() => Promise<void>) | undefined; keptPods: Set<string> },
): Promise<CheckResult> {
  const { name, needs = [] } = check;
  const missing = needs.find((capability) => !info.capabilities.includes(capability));
  if (missing !== undefined) return { name, ...lacking(missing), durationMs: 0 };
  if (check.restarts !== undefined && restarted === undefined)
    return { name, outcome: "skipped", message: WITHOUT_RESTART, durationMs: 0 };
  const context = new PodContext({
    ...{ kube, info, clock, signal, restarted, provider: options.provider, ownerLabels: labels, nodeName: NODE },
    prefix: `conf-${runId}-${POD_CHECKS.indexOf(check)}`,
    image: options.image ?? "busybox:stable",
    patienceMs: options.patienceMs,
  });
  const startedAt = clock.monotonic();
  const durationMs = () => Math.round(clock.monotonic() - startedAt);
  try {
    await check.run(context);
    const passed = { name, outcome: "passed", durationMs: durationMs() } as const;
    await context.cleanUp();
    return passed;
  } catch (thrown) {
    const failed: CheckResult = {
      ...{ name, outcome: "failed", message: `${explain(thrown)} ${check.why}`, script: context.script },
      durationMs: durationMs(),
    };
    if (signal.aborted) return failed;
    if (options.keep !== true) {
      await context.cleanUp();
      return failed;
    }
    for (const { metadata } of context.pods) keptPods.add(metadata?.uid ?? "");
    const kept = await Promise.all(context.pods.map((pod) => context.machinesOf(pod).catch(() => [])));
    return { ...failed, kept: kept.flat().map(({ id }) => id) };
  }
}

function explain(thrown: unknown): string {
  if (thrown instanceof Violation) return thrown.sentence;
  return `Expected every call of the API server to succeed, but one failed: ${toError(thrown).message}.`;
}
