/** The flags by which kubectl is told which cluster and namespace it is about, for commands that go where it goes. */
import type { Command } from "commander";
import { loadKubeConfig, type KubeConfig } from "../kube/kubeconfig.ts";
import { KubeTransport } from "../kube/transport.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { signalToStop } from "./exit.ts";
import { VERSION } from "./version.ts";

export interface ClusterOptions {
  kubeconfig?: string | undefined;
  context?: string | undefined;
  namespace?: string | undefined;
  allNamespaces?: boolean | undefined;
}

export function withClusterOptions(command: Command): Command {
  return command
    .option("--kubeconfig <file>", "kubeconfig of the cluster (default: KUBECONFIG, or ~/.kube/config)")
    .option("--context <name>", "context of the kubeconfig (default: its current one)")
    .option("-n, --namespace <name>", "namespace (default: the context's)");
}

/** @returns `namespace` is undefined for all of them. @throws KubeConfigError */
export function clusterOf(options: ClusterOptions): { kubeConfig: KubeConfig; namespace: string | undefined } {
  const kubeConfig = loadKubeConfig({ path: options.kubeconfig, context: options.context });
  const own = kubeConfig.contexts.find(({ name }) => name === kubeConfig.currentContext)?.namespace;
  return { kubeConfig, namespace: options.allNamespaces ? undefined : (options.namespace ?? own ?? "default") };
}

/**
 * Does `work` on the cluster that the flags name, until it is done or the user stops it.
 *
 * @throws KubeConfigError, and what `work` throws
 */
export async function withKube(
  options: ClusterOptions,
  work: (kube: KubeTransport, namespace: string | undefined, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const { kubeConfig, namespace } = clusterOf(options);
  const kube = new KubeTransport({ kubeConfig, clock: systemClock, logger: silentLogger, version: VERSION });
  const signal = signalToStop();
  try {
    await work(kube, namespace, signal);
  } catch (thrown) {
    if (!signal.aborted) throw thrown;
  } finally {
    await kube.close();
  }
}
