/**
 * `vmlet dev`: a cluster of one virtual node in one process, to try vmlet without having anything. With `--kubeconfig`
 * the node joins that cluster instead. With `--demo` it runs a burst of pods by itself and ends.
 */
import { randomBytes } from "node:crypto";
import { Command, Option } from "commander";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { startBackend, type RunningBackend } from "../../providers/local/backend.ts";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { Agent } from "../agent/agent.ts";
import { configuredBy, parseConfig } from "../config/load.ts";
import { startDevCluster, type DevCluster } from "../devcluster/index.ts";
import { createLogger, type Logger, type LogLevel } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { runDemo } from "./demo.ts";
import { portNumber, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { createProvider } from "./providers.ts";
import { VERSION } from "./version.ts";

const NODE = "vmlet-dev";

interface DevOptions {
  kubeconfig?: string | undefined;
  engine: "process" | "oci" | "cri" | "vm";
  stateDir: string;
  port: number;
  nodeAddress?: string | undefined;
  demo?: boolean | undefined;
  logLevel: LogLevel;
}

export function devCommand(): Command {
  return new Command("dev")
    .option("--kubeconfig <file>", "join this cluster instead of starting a small one")
    .addOption(
      new Option("--engine <engine>", "what machines are").choices(["process", "oci", "cri", "vm"]).default("process"),
    )
    .option("--state-dir <folder>", "where kubeconfig and machines are kept", ".vmlet")
    .option("--port <port>", "port of the small cluster's API server; 0 picks a free one", portNumber, 6443)
    .option("--node-address <ip>", "address of the node, where the API server must reach it")
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("warn"),
    )
    .option("--demo", "create a burst of pods, show what becomes of them, clean up and end")
    .action(async (options: DevOptions) => {
      const logger = createLogger({ level: options.logLevel });
      const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
      process.exitCode = await dev(options, logger, AbortSignal.any([signalToStop(), fatal]));
      fatal.throwIfAborted();
    });
}

async function dev(options: DevOptions, logger: Logger, stop: AbortSignal): Promise<number> {
  const stateDir = resolve(options.stateDir);
  await configuredBy("--state-dir", () => mkdir(stateDir, { recursive: true }));
  const backend = await openBackend(options, stateDir, logger);
  let cluster: DevCluster | undefined;
  try {
    if (options.kubeconfig === undefined) {
      // What an earlier run left behind belongs to a cluster that is gone.
      await removeMachines(backend);
      const port = options.demo ? 0 : options.port;
      cluster = await configuredBy("--port", () => startDevCluster({ clock: systemClock, logger, port }));
    }
    const kubeconfig = options.kubeconfig ?? join(stateDir, "kubeconfig");
    if (cluster !== undefined) await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    const surroundings = {
      kubeconfig,
      backend: { url: backend.url, tokenFile: tokenFileIn(stateDir) },
      joined: cluster === undefined,
      logger,
      stop,
    };
    const agent = await openAgent(options, surroundings).catch((thrown: unknown) => {
      if (!stop.aborted) throw thrown;
    });
    if (agent === undefined) return 0;
    const ended = new AbortController();
    const signal = AbortSignal.any([stop, ended.signal]);
    const running = agent.run(signal);
    let status = 0;
    if (options.demo) {
      status = await Promise.race([runDemo({ kubeconfig, nodeName: NODE, signal: stop }), running.then(() => 1)]);
      ended.abort(new Error("the demo is over"));
    } else {
      await Promise.race([agent.ready(signal), running]);
      if (!signal.aborted) printWelcome(options, kubeconfig);
    }
    await running;
    if (cluster === undefined)
      console.log(`\nMachines run on, and the node ${NODE} stays: kubectl delete node ${NODE} removes it.`);
    return status;
  } finally {
    if (options.kubeconfig === undefined) await removeMachines(backend);
    await backend.close();
    await cluster?.close();
    await rm(tokenFileIn(stateDir), { force: true });
    if (options.kubeconfig === undefined) await rm(join(stateDir, "backend"), { recursive: true, force: true });
  }
}

/** Made for each run: other programs of this host are kept out by it. */
const tokenFileIn = (stateDir: string): string => join(stateDir, "backend-token");

async function openBackend(options: DevOptions, stateDir: string, logger: Logger): Promise<RunningBackend> {
  await writeFile(tokenFileIn(stateDir), randomBytes(32).toString("hex"), { mode: 0o600 });
  const config = parseBackendConfig(
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir: join(stateDir, "backend"),
      listen: { address: "127.0.0.1", port: 0 },
      tokenFile: tokenFileIn(stateDir),
      engine:
        options.engine === "process"
          ? // In a cluster that others use as well, a stand-in could be taken for the real thing.
            { type: "process", standIns: options.kubeconfig === undefined }
          : { type: options.engine, ...(options.engine === "vm" && { warmPool: 1 }) },
    }),
    "(vmlet dev)",
  );
  return await startBackend(config, { clock: systemClock, logger, version: VERSION });
}

function openAgent(
  options: DevOptions,
  surroundings: {
    kubeconfig: string;
    backend: { url: string; tokenFile: string };
    joined: boolean;
    logger: Logger;
    stop: AbortSignal;
  },
): Promise<Agent> {
  const { kubeconfig, backend, joined, logger, stop } = surroundings;
  const config = parseConfig(
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "AgentConfig",
      ...(joined ? {} : { clusterId: "dev" }),
      kubeconfig,
      logLevel: options.logLevel,
      health: { port: 0 },
      nodes: [
        {
          name: NODE,
          provider: { type: "http-vm", ...backend },
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
    }),
    "(vmlet dev)",
  );
  return Agent.create({
    config,
    createProvider: (provider, events) =>
      createProvider(provider, { clock: systemClock, random: systemRandom, logger, ...events }),
    clock: systemClock,
    random: systemRandom,
    logger,
    version: VERSION,
    signal: stop,
  });
}

async function removeMachines(backend: RunningBackend): Promise<void> {
  const signal = AbortSignal.timeout(30_000);
  const { items } = await backend.provider.getPods({ labels: {}, signal });
  await Promise.all(items.map(({ id }) => backend.provider.deletePod(id, { force: true, signal })));
  while ((await backend.provider.getPods({ labels: {}, signal })).items.length > 0) await systemClock.sleep(50, signal);
}

function printWelcome(options: DevOptions, kubeconfig: string): void {
  const file = relative(process.cwd(), kubeconfig) || kubeconfig;
  const where =
    options.kubeconfig === undefined
      ? "A cluster of one virtual node is up."
      : "The virtual node has joined the cluster.";
  console.log(`
${where} Machines are ${{ process: "plain processes of this machine, without isolation", oci: "containers", cri: "containers of a containerd of its own", vm: "QEMU microVMs" }[options.engine]}.

In another terminal:

  export KUBECONFIG=${resolve(file)}
  kubectl get nodes
  kubectl apply -f examples/burst.yaml
  kubectl get pods --watch
  kubectl logs burst-00
  kubectl run web --image=nginx && kubectl port-forward web 8080:80
  kubectl run -it --rm box --image=busybox -- sh
  kubectl apply -f examples/hard.yaml && kubectl rollout status deployment/hard

Ctrl-C stops ${options.kubeconfig === undefined ? "everything" : "the agent"}.`);
}
