/** `vmlet why POD`: why a pod is no machine yet, or is as it is, and where it would run. */
import { Command } from "commander";
import type { Kube } from "../kube/kube.ts";
import { resourcePath } from "../kube/paths.ts";
import { isForbidden } from "../kube/errors.ts";
import type { Node, Pod } from "../kube/wire.ts";
import { printable } from "../streaming/plain-text.ts";
import { eventRows, type WireEvent } from "../ui/events.ts";
import { obstacles, offerOf, wishesOf } from "../ui/placement.ts";
import { nodeRow, podRow, type PodRow } from "../ui/rows.ts";
import { systemClock } from "../util/clock.ts";
import { humanDuration } from "../util/human-duration.ts";
import { withClusterOptions, withKube, type ClusterOptions } from "./cluster-options.ts";
import { findMachine, machinesOf, vmletNodes } from "./cluster-rows.ts";
import { formatBytes, formatCpu, formatSize } from "./sizes.ts";

/** Of the pod's events, so many are told. */
const EVENTS = 5;

export function whyCommand(): Command {
  return withClusterOptions(new Command("why"))
    .argument("<pod>", "NAME, NAMESPACE/NAME or a machine's id")
    .action(async (name: string, options: ClusterOptions) => {
      await withKube(options, async (kube, namespace, signal) => {
        const pod = await findMachine(kube, name, { namespace }, signal);
        const nodes = await vmletNodes(kube, signal);
        const others = pod.spec?.nodeName
          ? []
          : (await machinesOf(kube, { namespace: undefined }, signal).catch(ofNothing)).map(({ row }) => row);
        const lines = [...whyLines(pod, nodes, others), ...(await toldEvents(kube, pod, signal))];
        console.log(lines.map((line) => printable(line)).join("\n"));
      });
    });
}

function ofNothing(thrown: unknown): [] {
  if (isForbidden(thrown)) return [];
  throw thrown;
}

/**
 * Lines for people.
 *
 * @param nodes undefined where Nodes may not be read
 * @param others pods that take room on the nodes
 * @internal
 */
export function whyLines(pod: Pod, nodes: readonly Node[] | undefined, others: readonly PodRow[]): string[] {
  const row = podRow(pod);
  const lines = [
    `${row.namespace}/${row.name}: ${row.status || row.phase}${row.message === "" ? "" : ` (${row.message})`}`,
  ];
  const isOver = row.phase === "Failed" || row.phase === "Succeeded";
  const unwell = row.containers.filter(
    ({ state, reason }) =>
      (state === "waiting" && row.node !== "" && !isOver) || (state === "ended" && !reason.endsWith("(0)")),
  );
  for (const { name, state, reason } of unwell)
    lines.push(`  container ${name} ${state}: ${reason || "no reason is told"}`);
  if (row.node !== "") {
    lines.push(whereLine(row, isOver));
    const node = nodes?.map(nodeRow).find(({ name }) => name === row.node);
    if (node !== undefined && node.backend.state !== "answers")
      lines.push(`  the node's backend: ${node.backend.message}`);
    return lines;
  }
  lines.push(`  it asks for ${formatSize(row.size) || "nothing in particular"}`);
  if (nodes === undefined) return [...lines, "  where it could run cannot be told: you may not read Nodes"];
  if (nodes.length === 0) return [...lines, "  this cluster has no vmlet node"];
  for (const node of nodes) {
    const found = [...obstacles(wishesOf(pod), offerOf(node)), ...lackOfRoom(row, node, others)];
    const { name } = nodeRow(node);
    if (found.length === 0) lines.push(`  node ${name}: could run it`);
    else lines.push(`  node ${name}: no`, ...found.map((obstacle) => `    - ${obstacle}`));
  }
  return lines;
}

function whereLine({ node, machine, host }: PodRow, isOver: boolean): string {
  const at = ` as machine ${machine}${host === "" ? "" : ` on host ${host}`}`;
  if (machine !== "") return `  ${isOver ? "ran" : "runs"} on node ${node}${at}`;
  if (isOver)
    return `  was refused by node ${node}, which made no machine for it: nothing runs it again under this name`;
  return `  runs on node ${node}, which has made no machine for it yet`;
}

function lackOfRoom({ size }: PodRow, node: Node, others: readonly PodRow[]): string[] {
  const { name, state, capacity } = nodeRow(node);
  const there = others.filter((each) => each.node === name && each.phase !== "Succeeded" && each.phase !== "Failed");
  const left = {
    cpu: capacity.cpuMillis - there.reduce((sum, each) => sum + each.size.cpuMillis, 0),
    memory: capacity.memoryBytes - there.reduce((sum, each) => sum + each.size.memoryBytes, 0),
    pods: capacity.pods - there.length,
  };
  return [
    state !== "Ready" && `the node is ${state}`,
    size.cpuMillis > left.cpu && `cpu: ${formatCpu(size.cpuMillis)} wanted, ${formatCpu(Math.max(0, left.cpu))} left`,
    size.memoryBytes > left.memory &&
      `memory: ${formatBytes(size.memoryBytes)} wanted, ${formatBytes(Math.max(0, left.memory))} left`,
    left.pods < 1 && "pods: the node has as many as it takes",
  ].filter((each) => each !== false);
}

async function toldEvents(kube: Pick<Kube, "request">, { metadata }: Pod, signal: AbortSignal): Promise<string[]> {
  const { items } = await kube.request<{ items?: WireEvent[] | null }>({
    method: "GET",
    path: resourcePath({ resource: "events", namespace: metadata?.namespace ?? "default" }),
    query: { fieldSelector: `involvedObject.uid=${metadata?.uid ?? ""}`, limit: 500 },
    signal,
  });
  const now = systemClock.now();
  const rows = eventRows(items ?? []).slice(0, EVENTS);
  if (rows.length === 0) return [];
  return [
    "  newest events:",
    ...rows.map(({ at, type, reason, message }) => `    ${humanDuration(now - at)} ago  ${type} ${reason}: ${message}`),
  ];
}
