/** `vmlet node`: what `helm uninstall` does with the Node objects, by an identity of its own. */
import { Command } from "commander";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath, podsPath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Pod } from "../kube/wire.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock, type Clock } from "../util/clock.ts";
import { VmletError } from "../util/errors.ts";
import { NoSuchNodeError, requireNode } from "./no-such-node.ts";
import { VERSION } from "./version.ts";

/** An agent that was asked to end may still register its Node again; then it is deleted again. */
const SETTLE_MS = 10_000;
const POLL_MS = 1_000;
const TIMEOUT_MS = 240_000;

class NotDrainedError extends VmletError {
  readonly code = "NOT_DRAINED";
}

class NodeStaysError extends VmletError {
  readonly code = "NODE_STAYS";
}

export function nodeCommand(): Command {
  const command = new Command("node");
  const withKube = (
    name: string,
    description: string,
    work: (kube: Kube, node: string, mayBeAbsent: boolean) => Promise<void>,
  ) =>
    command
      .command(name)
      .description(description)
      .argument("<nodes...>", "names of the nodes")
      .option(
        "--kubeconfig <file>",
        "kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, or the service account)",
      )
      .option("--ignore-not-found", "a Node that is not there is nothing to complain of")
      .action(async (nodes: string[], options: { kubeconfig?: string | undefined; ignoreNotFound?: boolean }) => {
        const kubeConfig = loadKubeConfig({ path: options.kubeconfig });
        const kube = new KubeTransport({ kubeConfig, clock: systemClock, logger: silentLogger, version: VERSION });
        try {
          // Together: one after the other, many nodes would outlast the Job that runs this.
          await Promise.all(nodes.map((node) => work(kube, node, options.ignoreNotFound ?? false)));
        } finally {
          await kube.close();
        }
      });
  withKube("drained", "fail while pods are left on the nodes", requireDrained);
  withKube("remove", "delete the Node objects", (kube, node, mayBeAbsent) =>
    removeNode(kube, node, { clock: systemClock, mayBeAbsent }),
  );
  return command;
}

/**
 * DaemonSet pods do not count: nothing can drain them.
 *
 * @throws NotDrainedError naming the pods; NoSuchNodeError unless the Node may be absent
 * @internal
 */
export async function requireDrained(kube: Kube, node: string, mayBeAbsent: boolean): Promise<void> {
  if (!mayBeAbsent) await requireNode(kube, node, AbortSignal.timeout(TIMEOUT_MS));
  const { items } = await kube.request<{ items: Pod[] }>({
    method: "GET",
    path: podsPath(),
    query: { fieldSelector: `spec.nodeName=${node},status.phase!=Succeeded,status.phase!=Failed` },
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const left = items.filter((pod) => !pod.metadata?.ownerReferences?.some((owner) => owner.kind === "DaemonSet"));
  if (left.length === 0) return;
  const names = left.slice(0, 10).map((pod) => `${pod.metadata!.namespace!}/${pod.metadata!.name!}`);
  throw new NotDrainedError(
    `node ${node} still has ${left.length} ${left.length === 1 ? "pod" : "pods"} (${names.join(", ")}${left.length > names.length ? ", ..." : ""}); ` +
      `without the agent their machines would run on: kubectl drain ${node} --ignore-daemonsets --delete-emptydir-data`,
  );
}

/**
 * Deletes the Node and resolves when it has stayed away for a while.
 *
 * @throws NodeStaysError when it never does; NoSuchNodeError when it was never there, unless it may be absent
 * @internal
 */
export async function removeNode(
  kube: Kube,
  node: string,
  { clock, mayBeAbsent }: { clock: Clock; mayBeAbsent: boolean },
): Promise<void> {
  const { signal } = new AbortController();
  let wasThere = mayBeAbsent;
  const deadline = clock.monotonic() + TIMEOUT_MS;
  let goneSince: number | undefined;
  while (goneSince === undefined || clock.monotonic() - goneSince < SETTLE_MS) {
    try {
      await kube.request({ method: "DELETE", path: nodePath(node), signal });
      goneSince = undefined;
      wasThere = true;
    } catch (thrown) {
      if (!isNotFound(thrown)) throw thrown;
      if (!wasThere) throw new NoSuchNodeError(node);
      goneSince ??= clock.monotonic();
    }
    if (clock.monotonic() >= deadline) {
      throw new NodeStaysError(
        `node ${node} came back each time that it was deleted, for ${TIMEOUT_MS / 1000} s: an agent that has it still runs; stop it first`,
      );
    }
    await clock.sleep(POLL_MS);
  }
}
