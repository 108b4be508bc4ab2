/**
 * `vmlet dev`: a cluster of one virtual node in one process, to try vmlet without having anything. With `--kubeconfig`
 * the node joins that cluster instead; with `--backend` or `--module` its machines are those of somebody's own backend.
 * With `--demo` it runs a burst of pods by itself and ends.
 */
import { Command, Option } from "commander";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { Agent } from "../agent/agent.ts";
import { configuredBy, parseConfig } from "../config/load.ts";
import { startDevCluster, type DevCluster } from "../devcluster/index.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { createLogger, type LogFormat, type Logger, type LogLevel } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { runDemo } from "./demo.ts";
import { DemoAgent } from "./demo-agent.ts";
import {
  clusterIdOf,
  type DevMachines,
  type EngineName,
  type ForeignBackend,
  foreignMachines,
  ownMachines,
} from "./dev-machines.ts";
import { portNumber, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { openPage } from "./page.ts";
import { createProvider } from "./providers.ts";
import { VERSION } from "./version.ts";

const NODE = "vmlet-dev";

interface DevOptions extends ForeignBackend {
  kubeconfig?: string | undefined;
  engine: EngineName;
  stateDir: string;
  port: number;
  nodeAddress?: string | undefined;
  demo?: boolean | undefined;
  logLevel: LogLevel;
  logFormat: LogFormat;
}

export function devCommand(): Command {
  return new Command("dev")
    .option("--kubeconfig <file>", "join this cluster instead of starting a small one")
    .addOption(
      new Option("--engine <engine>", "what machines are").choices(["process", "oci", "cri", "vm"]).default("process"),
    )
    .addOption(
      new Option("--backend <url>", "the Machine API of a backend of your own, instead of --engine").conflicts([
        "module",
        "demo",
      ]),
    )
    .option("--token-file <file>", "the token that it asks for")
    .option("--ca-file <file>", "who has signed its certificate")
    .addOption(new Option("--module <file>", "a provider of your own, as a module").conflicts("demo"))
    .option("--state-dir <folder>", "where kubeconfig and machines are kept", ".vmlet")
    .option("--port <port>", "port of the small cluster's API server; 0 picks a free one", portNumber, 6443)
    .option("--node-address <ip>", "address of the node, where the API server must reach it")
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("warn"),
    )
    .addOption(logFormatOption())
    .option("--demo", "create a burst of pods, show what becomes of them, clean up and end")
    .action(async (options: DevOptions) => {
      const logger = createLogger({ level: options.logLevel, format: options.logFormat });
      const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
      process.exitCode = await dev(options, logger, AbortSignal.any([signalToStop(), fatal]));
      fatal.throwIfAborted();
    });
}

async function dev(options: DevOptions, logger: Logger, stop: AbortSignal): Promise<number> {
  const stateDir = resolve(options.stateDir);
  await configuredBy("--state-dir", () => mkdir(stateDir, { recursive: true }));
  const isForeign = options.backend !== undefined || options.module !== undefined;
  const clusterId = isForeign ? await clusterIdOf(stateDir) : "dev";
  const alone = options.kubeconfig === undefined;
  const machines = isForeign
    ? await foreignMachines(options, { clusterId, nodeName: NODE, logger })
    : await ownMachines({
        engine: options.engine,
        stateDir,
        // In a cluster that others use as well, a stand-in could be taken for the real thing.
        standIns: alone,
        logger,
      });
  let cluster: DevCluster | undefined;
  try {
    if (alone) {
      await machines.remove();
      const port = options.demo ? 0 : options.port;
      const isPlain = !isForeign && options.engine === "process";
      // Machines of other engines have networks of their own, where this process's addresses are not seen.
      const serviceProxy =
        (isForeign || isPlain) && machines.dial ? { network: serviceNetwork(port), dial: machines.dial } : undefined;
      // Plain processes have no volumes. A token that every pod lacks would be a warning at each of them.
      const automountServiceAccountToken = isPlain ? false : undefined;
      cluster = await configuredBy("--port", () =>
        startDevCluster({ clock: systemClock, logger, port, serviceProxy, automountServiceAccountToken }),
      );
    }
    const kubeconfig = options.kubeconfig ?? join(stateDir, "kubeconfig");
    if (cluster !== undefined) await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    const { provider } = machines;
    const config = agentConfig(options, { kubeconfig, provider, clusterId: alone ? clusterId : undefined });
    const status = options.demo
      ? await demo({ config, configFile: join(stateDir, "demo.yaml"), kubeconfig, machines, stop })
      : await serve({ config, kubeconfig, logger, stop }, (page) =>
          printWelcome({ alone, kind: machines.kind, kubeconfig, page }),
        );
    if (!alone) console.log(`\nMachines run on, and the node ${NODE} stays: kubectl delete node ${NODE} removes it.`);
    return status;
  } finally {
    if (alone) await machines.remove();
    await machines.close();
    await cluster?.close();
    if (alone) await rm(join(stateDir, "backend"), { recursive: true, force: true });
  }
}

/** @returns the process's exit status */
async function demo(options: {
  config: string;
  configFile: string;
  kubeconfig: string;
  machines: DevMachines;
  stop: AbortSignal;
}): Promise<number> {
  const { config, configFile, kubeconfig, machines, stop } = options;
  await writeFile(configFile, config, { mode: 0o600 });
  const agent = new DemoAgent(configFile);
  try {
    const list = () => machines.list(stop);
    return await runDemo({ kubeconfig, nodeName: NODE, agent, machines: list, signal: stop });
  } finally {
    await agent.stop();
    await rm(configFile, { force: true });
  }
}

/** Until it is stopped. @param isUp is told the address of the page @returns the process's exit status */
async function serve(
  { config, kubeconfig, logger, stop }: { config: string; kubeconfig: string; logger: Logger; stop: AbortSignal },
  isUp: (page: string) => void,
): Promise<number> {
  const agent = await openAgent(config, logger, stop).catch((thrown: unknown) => {
    if (!stop.aborted) throw thrown;
  });
  if (agent === undefined) return 0;
  const running = agent.run(stop);
  await Promise.race([agent.ready(stop), running]);
  const kubeConfig = loadKubeConfig({ path: kubeconfig });
  const page = await openPage({ kubeConfig, namespace: undefined, port: 0, logger });
  if (!stop.aborted) isUp(page.url);
  const ended = new AbortController();
  const shown = page.run(ended.signal);
  try {
    await running;
  } finally {
    ended.abort(new Error("the agent has ended"));
    await shown;
  }
  return 0;
}

/** Apart from the addresses of machines, 127.64.0.0/10, and as a rule from those of another such cluster. */
const serviceNetwork = (port: number): string => `127.${128 + (port % 100)}`;

function agentConfig(
  options: DevOptions,
  surroundings: { kubeconfig: string; provider: DevMachines["provider"]; clusterId: string | undefined },
): string {
  const { kubeconfig, provider, clusterId } = surroundings;
  const joined = options.kubeconfig !== undefined;
  return JSON.stringify({
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    clusterId,
    kubeconfig,
    // Another process's warnings would be printed into the demo's table.
    logLevel: options.demo && options.logLevel === "warn" ? "error" : options.logLevel,
    health: { port: 0 },
    nodes: [
      {
        name: NODE,
        provider,
        kubelet: {
          port: 0,
          address: joined ? "0.0.0.0" : "127.0.0.1",
          ...(!joined && { certificate: "self-signed" }),
        },
        ...(options.nodeAddress !== undefined
          ? { addresses: [options.nodeAddress] }
          : !joined && { addresses: ["127.0.0.1"] }),
        // Alone in its cluster, the node takes every pod; beside others it takes those that ask for it.
        ...(!joined && { taints: [] }),
      },
    ],
  });
}

function openAgent(config: string, logger: Logger, stop: AbortSignal): Promise<Agent> {
  return Agent.open({
    config: parseConfig(config, "(vmlet dev)"),
    createProvider: (provider, events) =>
      createProvider(provider, { clock: systemClock, random: systemRandom, logger, ...events }),
    clock: systemClock,
    random: systemRandom,
    logger,
    version: VERSION,
    signal: stop,
  });
}

function printWelcome(options: { alone: boolean; kind: string; kubeconfig: string; page: string }): void {
  const { alone, kind, kubeconfig, page } = options;
  const file = relative(process.cwd(), kubeconfig) || kubeconfig;
  const where = alone ? "A cluster of one virtual node is up." : "The virtual node has joined the cluster.";
  console.log(`
${where} Machines are ${kind}.

Look at it in the browser (the address is for you alone):

  ${page}

In another terminal:

  export KUBECONFIG=${resolve(file)}
  kubectl get nodes
  kubectl apply -f examples/burst.yaml
  kubectl get pods --watch
  kubectl logs burst-00
  kubectl run web --image=nginx && kubectl port-forward web 8080:80
  kubectl run -it --rm box --image=busybox -- sh
  kubectl apply -f examples/hard.yaml && kubectl rollout status deployment/hard

Ctrl-C stops ${alone ? "everything" : "the agent"}.`);
}
