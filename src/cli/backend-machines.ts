/**
 * For the operator: the machines that an agent's backends have, beside the pods that they are for; those without are
 * orphans.
 */
import { connect, readClusterId } from "../agent/agent.ts";
import { loadConfig } from "../config/load.ts";
import type { AgentConfig, NodeConfig } from "../config/schema.ts";
import type { Kube } from "../kube/kube.ts";
import { podsPath } from "../kube/paths.ts";
import { isTerminal, uidOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { LABEL_NAMESPACE, LABEL_POD, LABEL_UID, ownerLabels } from "../provider/owner.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { listAll } from "./cluster-rows.ts";
import { createProvider } from "./providers.ts";
import { listText, type OutputOptions } from "./table.ts";
import { VERSION } from "./version.ts";

const TIMEOUT_MS = 60_000;

/**
 * `verdict`: an orphan is a machine without a pod, which the agent takes away; a pod without a machine waits for one.
 */
interface Pair {
  node: string;
  machine: string;
  state: string;
  host: string;
  namespace: string;
  pod: string;
  phase: string;
  verdict: "ok" | "orphan" | "no machine" | "unknown state";
}

interface Seen {
  id: string;
  state?: string | undefined;
  host?: string | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
}

/** @returns the list as text @throws ConfigError, KubeApiError, ProviderError */
export async function backendMachines(path: string, output: OutputOptions["output"]): Promise<string> {
  const config = loadConfig(path, {});
  const pairs: Pair[] = [];
  for (const node of config.nodes) pairs.push(...(await pairsOf(config, node)));
  return listText(pairs, {
    kind: "BackendMachineList",
    output,
    empty: "The backends have no machines of these nodes, and no pods are bound to them.",
    columns: [
      { title: "NODE", cell: ({ node }) => node },
      { title: "MACHINE", cell: ({ machine }) => machine },
      { title: "STATE", cell: ({ state }) => state },
      { title: "HOST", cell: ({ host }) => host },
      { title: "NAMESPACE", cell: ({ namespace }) => namespace },
      { title: "POD", cell: ({ pod }) => pod },
      { title: "PHASE", cell: ({ phase }) => phase },
      { title: "VERDICT", cell: ({ verdict }) => (verdict === "orphan" ? "ORPHAN" : verdict) },
    ],
  });
}

async function pairsOf(config: AgentConfig, node: NodeConfig): Promise<Pair[]> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const kube = connect({ config, clock: systemClock, logger: silentLogger, version: VERSION });
  const provider = await createProvider(node.provider, {
    ...{ clock: systemClock, random: systemRandom, logger: silentLogger },
  });
  try {
    const clusterId = config.clusterId ?? (await readClusterId(kube, signal));
    const { items, unknown = [] } = await provider.getPods({ labels: ownerLabels(clusterId, node.name), signal });
    return pair(node.name, [...items, ...unknown], await podsOn(kube, node.name, signal));
  } finally {
    await kube.close();
  }
}

function podsOn(kube: Kube, node: string, signal: AbortSignal): Promise<Pod[]> {
  return listAll<Pod>(kube, podsPath(), { fieldSelector: `spec.nodeName=${node}` }, signal);
}

/** @internal */
export function pair(node: string, machines: readonly Seen[], pods: readonly Pod[]): Pair[] {
  const byUid = new Map(pods.map((pod) => [uidOf(pod), pod]));
  const pairs = machines.map(({ id, state, host = "", labels = {} }): Pair => {
    const uid = labels[LABEL_UID] ?? "";
    const pod = byUid.get(uid);
    byUid.delete(uid);
    return {
      ...{ node, machine: id, state: state ?? "unknown", host },
      namespace: pod?.metadata?.namespace ?? labels[LABEL_NAMESPACE] ?? "",
      pod: pod?.metadata?.name ?? labels[LABEL_POD] ?? "",
      phase: pod?.status?.phase ?? "",
      verdict: pod !== undefined ? "ok" : labels[LABEL_UID] === undefined ? "unknown state" : "orphan",
    };
  });
  const without = [...byUid.values()].map(({ metadata, status }): Pair => ({
    ...{ node, machine: "", state: "", host: "", namespace: metadata?.namespace ?? "", pod: metadata?.name ?? "" },
    phase: status?.phase ?? "",
    verdict: isTerminal({ ...(status && { status }) }) ? "ok" : "no machine",
  }));
  return [...pairs, ...without];
}
