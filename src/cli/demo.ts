/**
 * `npm run demo`: the burst of examples/burst.yaml from creation to its end, seen as a client of the API server sees
 * it.
 */
import { readFileSync } from "node:fs";
import { parseAllDocuments } from "yaml";
import { containersOf, isTerminal } from "../kube/pod.ts";
import { loadKubeConfig } from "../kube/credentials.ts";
import { podPath, resourcePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Node, Pod } from "../kube/wire.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { packageFile } from "./version.ts";

const NAMESPACE = "default";
const TIMEOUT_MS = 120_000;
const POLL_MS = 200;

/** @returns the process's exit status: 0 when every pod succeeded, its log could be read, and nothing was left */
export async function runDemo(options: { kubeconfig: string; nodeName: string; signal: AbortSignal }): Promise<number> {
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(TIMEOUT_MS)]);
  const kube = new KubeTransport({
    kubeConfig: loadKubeConfig({ path: options.kubeconfig }),
    clock: systemClock,
    logger: silentLogger,
  });
  try {
    return await burst(kube, options.nodeName, signal);
  } catch (thrown) {
    const late = signal.aborted && !options.signal.aborted;
    console.error(`demo: ${late ? `not done after ${TIMEOUT_MS / 1000} s` : toError(thrown).message}`);
    return 1;
  } finally {
    await kube.close();
  }
}

async function burst(kube: KubeTransport, nodeName: string, signal: AbortSignal): Promise<number> {
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
  await until(signal, async () => {
    last = await listBurst(kube, names, signal);
    board.show(last);
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
  console.log(`\nDeleted ${names.length} pods.`);
  return failed.length === 0 ? 0 : 1;
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

  end(): void {
    if (!this.#live) console.log("All pods have ended.");
  }

  #draw(): void {
    if (this.#drawn > 0) process.stdout.write(`\x1b[${this.#drawn}A`);
    for (const name of this.#names) process.stdout.write(`\x1b[2K${name}  ${this.#shown.get(name) ?? "-"}\n`);
    this.#drawn = this.#names.length;
  }
}
