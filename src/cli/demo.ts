/**
 * `npm run demo`: the burst of examples/burst.yaml from creation to its end, seen as a client of the API server sees
 * it. In the middle of it the agent is killed, and what the backend has run is counted.
 */
import { readFileSync } from "node:fs";
import { parseAllDocuments } from "yaml";
import { containersOf, isTerminal } from "../kube/pod.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { podPath, resourcePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Node, Pod } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { ChildAgent } from "./child-agent.ts";
import { packageFile } from "./version.ts";

const NAMESPACE = "default";
const TIMEOUT_MS = 120_000;
const POLL_MS = 200;

interface DemoOptions {
  kubeconfig: string;
  nodeName: string;
  agent: ChildAgent;
  /** What the backend has. */
  machines(): Promise<readonly Machine[]>;
  signal: AbortSignal;
}

/**
 * @returns the process's exit status: 0 when every pod succeeded, every container was started once, its log could be
 *   read, and nothing was left
 */
export async function runDemo(options: DemoOptions): Promise<number> {
  const signal = AbortSignal.any([options.signal, options.agent.failed, AbortSignal.timeout(TIMEOUT_MS)]);
  const kube = new KubeTransport({
    kubeConfig: loadKubeConfig({ path: options.kubeconfig }),
    clock: systemClock,
    logger: silentLogger,
  });
  try {
    return await burst(kube, options, signal);
  } catch (thrown) {
    const late = signal.aborted && toError(signal.reason).name === "TimeoutError";
    console.error(`demo: ${late ? `not done after ${TIMEOUT_MS / 1000} s` : toError(thrown).message}`);
    return 1;
  } finally {
    await kube.close();
  }
}

async function burst(kube: KubeTransport, options: DemoOptions, signal: AbortSignal): Promise<number> {
  const { nodeName, agent } = options;
  await until(signal, async () => {
    const nodes = await kube.request<{ items: Node[] }>({
      method: "GET",
      path: resourcePath({ resource: "nodes" }),
      signal,
    });
    return nodes.items.some(
      (n) =>
        n.metadata?.name === nodeName && n.status?.conditions?.some((c) => c.type === "Ready" && c.status === "True"),
    );
  });
  console.log(`Node ${nodeName} is Ready.`);
  // The service-account controller of a real cluster needs a moment for a new namespace; a pod without it is refused.
  const pods = examplePods();
  const names = pods.map((p) => p.metadata!.name!);
  for (const pod of pods)
    await kube.request({
      method: "POST",
      path: resourcePath({ resource: "pods", namespace: NAMESPACE }),
      body: pod,
      signal,
    });
  console.log(`Created ${names.length} pods.\n`);

  const board = new Board(names);
  let last: readonly Pod[] = [];
  let isKilled = false;
  await until(signal, async () => {
    last = await listBurst(kube, names, signal);
    board.show(last);
    const running = last.filter((pod) => pod.status?.phase === "Running").length;
    if (!isKilled && running >= names.length / 2) {
      isKilled = true;
      board.say(`The agent is killed (SIGKILL) while ${running} pods run, and started again. Their machines run on.`);
      await agent.killAndStart();
    }
    return last.length === names.length && last.every(isTerminal);
  });
  board.end();

  console.log("\nLogs:");
  for (const pod of pods) {
    const { name } = pod.metadata!;
    const containers = containersOf(pod);
    for (const { name: container } of containers) {
      const log = await kube.requestText({
        method: "GET",
        path: `${podPath(NAMESPACE, name!)}/log`,
        query: { container },
        signal,
      });
      const label = containers.length > 1 ? `${name}/${container}` : name;
      for (const line of log.trimEnd().split("\n")) console.log(`  ${label}  ${line}`);
    }
  }
  const machines = await options.machines();
  const starts = machines
    .flatMap(({ containers }) => containers)
    .map(({ id, restart_count }) => (id ? 1 : 0) + restart_count);
  const started = starts.reduce((sum, each) => sum + each, 0);
  const asked = pods.flatMap((pod) => containersOf(pod)).length;
  console.log(
    `\nThe backend has ${machines.length} machines for ${names.length} pods, and has started ${started} programs for their ${asked} containers.`,
  );
  const isExact = machines.length === names.length && started === asked;
  if (!isExact) console.error("demo: each pod should have had one machine, and each container one start");
  const failed = last.filter((p) => p.status?.phase !== "Succeeded");
  for (const pod of failed) {
    console.error(
      `demo: pod ${pod.metadata?.name} ended as ${pod.status?.phase}: ${pod.status?.reason ?? ""} ${pod.status?.message ?? ""}`,
    );
  }
  for (const name of names) {
    await kube.request({ method: "DELETE", path: podPath(NAMESPACE, name), signal });
  }
  await until(signal, async () => (await listBurst(kube, names, signal)).length === 0);
  await until(signal, async () => (await options.machines()).length === 0);
  console.log(`Deleted ${names.length} pods; the backend has no machine left.`);
  return failed.length === 0 && isExact ? 0 : 1;
}

function examplePods(): Pod[] {
  const text = readFileSync(packageFile("examples/burst.yaml"), "utf8");
  return parseAllDocuments(text).map((document) => document.toJS() as Pod);
}

async function listBurst(kube: KubeTransport, names: readonly string[], signal: AbortSignal): Promise<Pod[]> {
  const list = await kube.request<{ items: Pod[] }>({
    method: "GET",
    path: resourcePath({ resource: "pods", namespace: NAMESPACE }),
    signal,
  });
  return list.items.filter((p) => names.includes(p.metadata!.name!));
}

async function until(signal: AbortSignal, condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await systemClock.sleep(POLL_MS, signal);
}

/** A table that is drawn over itself on a terminal, and one line per change elsewhere. */
class Board {
  readonly #names: readonly string[];
  readonly #shown = new Map<string, string>();
  readonly #live = process.stdout.isTTY;
  #drawn = 0;

  constructor(names: readonly string[]) {
    this.#names = names;
  }

  show(pods: readonly Pod[]): void {
    let changed = false;
    for (const pod of pods) {
      const name = pod.metadata!.name!;
      const phase = pod.status?.phase ?? "Pending";
      if (this.#shown.get(name) === phase) continue;
      changed = true;
      this.#shown.set(name, phase);
      if (!this.#live) console.log(`${name}  ${phase}`);
    }
    if (this.#live && changed) this.#draw();
  }

  /** A line of its own below what has been drawn. */
  say(line: string): void {
    console.log(`\n${line}\n`);
    this.#drawn = 0;
    if (this.#live) this.#draw();
  }

  end(): void {
    if (!this.#live) console.log("All pods have ended.");
  }

  #draw(): void {
    if (this.#drawn > 0) process.stdout.write(`\x1b[${this.#drawn}A`);
    for (const name of this.#names) process.stdout.write(`\x1b[2K${name}  ${this.#shown.get(name) ?? "-"}\n`);
    this.#drawn = this.#names.length;
  }
}
