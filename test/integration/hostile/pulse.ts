/** Whether the nodes live on: their leases and conditions by a watch, and the agent's liveness by asking as a kubelet would. */
import { setInterval } from "node:timers/promises";
import type { RestartableProcess } from "../../e2e/harness/agent.ts";
import type { Client, Json } from "../../e2e/harness/client.ts";

/** After that the control plane takes the node for lost (node-monitor-grace-period is 40 s or more). */
const LEASE_DURATION_MS = 40_000;
/** The chart's liveness probe: every 10 s, six failures restart the agent. One of each two seconds is asked for here. */
const PROBE_EVERY_MS = 2_000;
const PROBE_TIMEOUT_MS = 5_000;

export interface Pulse {
  /** Both nodes have been seen to be Ready. */
  readonly ready: boolean;
  /** All that a control plane would have noticed since this was asked last. */
  takeFaults(): string[];
  stop(): Promise<void>;
}

export function watchPulse(options: {
  client: Client;
  nodeNames: readonly string[];
  livez: () => Promise<string>;
  agent: RestartableProcess;
}): Pulse {
  const { client, nodeNames, livez, agent } = options;
  const stop = new AbortController();
  const faults: string[] = [];
  const renewedAt = new Map<string, number>();
  const readyNodes = new Set<string>();
  const follow = async (path: string, see: (object: Json) => void) => {
    for await (const { type, object } of client.watch(path, stop.signal))
      if (type === "ADDED" || type === "MODIFIED") see(object);
  };
  const seeLease = ({ metadata }: Json) => renewedAt.set(metadata.name, performance.now());
  const seeNode = ({ metadata, status }: Json) => {
    const ready = status?.conditions?.find((each: Json) => each.type === "Ready");
    if (ready?.status === "True") readyNodes.add(metadata.name);
    else if (readyNodes.has(metadata.name)) faults.push(`node ${metadata.name} is not Ready: ${ready?.message}`);
  };
  const checkLeases = () => {
    for (const name of nodeNames) {
      const age = performance.now() - (renewedAt.get(name) ?? performance.now());
      if (age <= LEASE_DURATION_MS) continue;
      faults.push(`the lease of node ${name} was not renewed for ${Math.round(age)} ms`);
      // Told once for each time that it happens.
      renewedAt.set(name, performance.now());
    }
  };
  const probe = async () => {
    let failures = 0;
    for await (const _ of setInterval(PROBE_EVERY_MS, undefined, { signal: stop.signal })) {
      checkLeases();
      const timeout = AbortSignal.timeout(PROBE_TIMEOUT_MS);
      const answered = await Promise.race([
        livez().then(
          () => true,
          () => false,
        ),
        new Promise<boolean>((resolve) => timeout.addEventListener("abort", () => resolve(false), { once: true })),
      ]);
      failures = answered ? 0 : failures + 1;
      if (failures === 6) faults.push("six liveness probes failed in a row: the agent would have been restarted");
    }
  };
  const loops = [
    follow("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", seeLease),
    follow("/api/v1/nodes", seeNode),
    probe(),
  ].map((loop) =>
    loop.catch((thrown: unknown) => {
      if (!stop.signal.aborted) faults.push(`the test lost sight of the nodes: ${String(thrown)}`);
    }),
  );
  agent.failed().catch((thrown: unknown) => {
    if (!stop.signal.aborted) faults.push(String(thrown));
  });
  return {
    get ready() {
      return nodeNames.every((name) => readyNodes.has(name));
    },
    takeFaults: () => faults.splice(0),
    async stop() {
      stop.abort();
      await Promise.all(loops);
    },
  };
}
