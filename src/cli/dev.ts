/**
 * `vmlet dev`: a cluster of one virtual node in one process, to try vmlet without having anything. With `--kubeconfig`
 * the node joins that cluster instead; with `--backend` or `--module` its machines are those of somebody's own backend.
 * With `--demo` it runs a burst of pods by itself and ends.
 */
import { Command, InvalidArgumentError, Option } from "commander";
import { rm, writeFile } from "node:fs/promises";
import { isIP } from "node:net";
import { join, resolve } from "node:path";
import { Agent } from "../agent/agent.ts";
import { ConfigError, parseConfig } from "../config/load.ts";
import type { DevCluster } from "../devcluster/index.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { DNS_1123 } from "../resources/names.ts";
import { createLogger, type LogFormat, type Logger, type LogLevel } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { systemRandom } from "../util/random.ts";
import { runDemo } from "./demo.ts";
import { ChildAgent } from "./child-agent.ts";
import type { EngineName } from "./dev-engine.ts";
import { FIRST_PORT, mustBeFree, startSmallCluster } from "./dev-cluster.ts";
import { claimFolder } from "./dev-folder.ts";
import { clusterIdOf, type DevMachines, type ForeignBackend, foreignMachines } from "./dev-machines.ts";
import { simulatedMachines, simulationFlags, type SimulationOptions, withSimulationOptions } from "./dev-simulated.ts";
import { printWelcome } from "./dev-welcome.ts";
import { portNumber, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { openPage } from "./page.ts";
import { Progress } from "./progress.ts";
import { createProvider } from "./providers.ts";
import { showPulls } from "./pull-progress.ts";
import { VERSION } from "./version.ts";

const NODE = "vmlet-dev";
const LEFT_OVER = "Removing machines that an earlier run has left";
const ENDING = "Ending machines";
/** Of a resolv.conf; more would be a warning as well. */
const MAX_NAMESERVERS = 3;
/** A Node's name is the value of a label as well. */
const MAX_NODE_NAME = 58;

interface DevOptions extends ForeignBackend, SimulationOptions {
  kubeconfig?: string | undefined;
  engine?: EngineName | undefined;
  stateDir?: string | undefined;
  port?: number | undefined;
  nodeName: string;
  nodeAddress?: string | undefined;
  demo?: boolean | undefined;
  logLevel: LogLevel;
  logFormat: LogFormat;
}

export function devCommand(): Command {
  const command = new Command("dev")
    .option("--kubeconfig <file>", "join this cluster instead of starting a small one")
    .addOption(
      new Option("--engine <engine>", "what machines are; default: containers if this host can run them").choices([
        ...["process", "oci", "cri", "vm", "memory"],
      ]),
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
    .option("--state-dir <folder>", "where kubeconfig and machines are kept (default: .vmlet)")
    .option(
      "--port <port>",
      `port of the small cluster's API server; 0 picks a free one (default: ${FIRST_PORT}, or the next that is free)`,
      portNumber,
    )
    .option("--node-name <name>", "what the node is called; several have numbers behind it", nodeName, NODE)
    .option("--node-address <ip>", "address of the node, where the API server must reach it", ipAddress)
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("warn"),
    )
    .addOption(logFormatOption())
    .option("--demo", "create a burst of pods, show what becomes of them, clean up and end");
  return withSimulationOptions(command).action(async (options: DevOptions) => {
    const logger = createLogger({ level: options.logLevel, format: options.logFormat });
    const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
    process.exitCode = await dev(options, logger, AbortSignal.any([signalToStop(), fatal]));
    fatal.throwIfAborted();
    // An engine's or a provider module's timers and connections may be left.
    process.exit();
  });
}

async function dev(options: DevOptions, logger: Logger, stop: AbortSignal): Promise<number> {
  refuseIdleFlags(options);
  // A demo may be run beside a cluster that is up.
  const stateDir = resolve(options.stateDir ?? (options.demo ? ".vmlet/demo" : ".vmlet"));
  const isForeign = options.backend !== undefined || options.module !== undefined;
  await using _folder = await claimFolder(stateDir, { isShared: isForeign, logger });
  const clusterId = isForeign ? await clusterIdOf(stateDir, logger) : "dev";
  const alone = options.kubeconfig === undefined;
  if (alone) await mustBeFree(options.port);
  const progress = new Progress();
  const machines = await progress.of("Starting what machines run on", () =>
    startMachines(options, { stateDir, clusterId, isForeign, logger }),
  );
  let cluster: DevCluster | undefined;
  let isRemoved = true;
  let status: number;
  try {
    if (alone) {
      await progress.of(LEFT_OVER, () => machines.remove());
      cluster = await startSmallCluster({ port: options.demo ? 0 : options.port, machines, clusterId, logger });
    }
    const kubeconfig = options.kubeconfig ?? join(stateDir, "kubeconfig");
    if (cluster !== undefined) await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    const config = agentConfig(options, { kubeconfig, machines, clusterId: alone ? clusterId : undefined });
    status = options.demo
      ? await demo({
          ...{ config, configFile: join(stateDir, "demo.yaml"), kubeconfig, machines, stop },
          nodeName: options.nodeName,
        })
      : await serve({ config, kubeconfig, machines, progress, logger, stop }, (at) =>
          printWelcome({
            alone,
            machines,
            kubeconfig,
            url: options.port === undefined ? cluster?.url : undefined,
            ...at,
          }),
        );
    if (!alone) console.log(`\n${whatStays(machines, options.nodeName)}`);
  } finally {
    try {
      if (alone) await progress.of(ENDING, () => machines.remove());
    } catch (thrown) {
      isRemoved = false;
      console.error(
        `\nMachines could not be removed: ${toError(thrown).message}; the next run with --state-dir ${stateDir} removes them`,
      );
    }
    try {
      await machines.close();
    } finally {
      await cluster?.close();
    }
  }
  if (alone && !options.demo && isRemoved) console.log("\nThe cluster is gone, and all that was in it.");
  return isRemoved ? status : 1;
}

function nodeName(text: string): string {
  // Those of several nodes have a number behind it.
  if (!DNS_1123.test(text) || text.length > MAX_NODE_NAME)
    throw new InvalidArgumentError(`it must be a DNS-1123 name of at most ${MAX_NODE_NAME} characters.`);
  return text;
}

function ipAddress(text: string): string {
  if (isIP(text) === 0) throw new InvalidArgumentError("it must be an IP address.");
  return text;
}

/** @throws what was thrown, with the flag in place of a field of a file that nobody has written */
function byFlag(thrown: unknown): never {
  if (!(thrown instanceof ConfigError)) throw thrown;
  throw new ConfigError(thrown.message.replace(/^nodes\[[^\]]*\]\.name: /, "--node-name: "), { cause: thrown });
}

/** A flag without effect is a setting that does not apply. */
function refuseIdleFlags({ backend, tokenFile, caFile }: DevOptions): void {
  if (backend !== undefined) return;
  const idle = tokenFile !== undefined ? "--token-file" : caFile !== undefined ? "--ca-file" : undefined;
  if (idle !== undefined) throw new ConfigError(`${idle} is for --backend, which is missing`);
}

async function startMachines(
  options: DevOptions,
  context: { stateDir: string; clusterId: string; isForeign: boolean; logger: Logger },
): Promise<DevMachines> {
  const { stateDir, clusterId, isForeign, logger } = context;
  if (isForeign) return await foreignMachines(options, { clusterId, nodeName: options.nodeName, logger });
  const alone = options.kubeconfig === undefined;
  const flags = simulationFlags(options);
  const engine = options.engine ?? (flags.length > 0 ? "memory" : undefined);
  if (engine === "memory" && options.demo)
    throw new ConfigError(
      "--demo kills the agent, and machines of engine memory are the agent's: choose another --engine",
    );
  if (engine === "memory") return simulatedMachines(options);
  if (flags.length > 0) throw new ConfigError(`${flags[0]} is for --engine memory, not for engine ${engine}`);
  // Not loaded for machines that are simulated: it is of this host alone.
  const own = await import("./dev-own-machines.ts");
  // In a cluster that others use as well, a stand-in could be taken for the real thing.
  const ofHost = { stateDir, standIns: alone, isForgotten: alone, logger };
  if (engine !== undefined) return await own.ownMachines(engine, ofHost);
  // The demo is to be the same everywhere; machines that run on must be found again by the same engine.
  if (options.demo || !alone) return await own.ownMachines("process", ofHost);
  const { engine: chosen, said } = await own.chosenEngine(stateDir);
  if (chosen === "memory") return { ...simulatedMachines(options), said };
  return await own.chosenMachines({ engine: chosen, said }, ofHost);
}

function whatStays({ shared, nodeCount = 1 }: DevMachines, nodeName: string): string {
  const stays = nodeCount === 1 ? `the node ${nodeName} stays` : `the nodes ${nodeName}-N stay`;
  const cure = nodeCount === 1 ? `kubectl delete node ${nodeName} removes it` : "kubectl delete node removes them";
  return `${shared ? "Machines have ended" : "Machines run on"}, and ${stays}: ${cure}.`;
}

/** @returns the process's exit status */
async function demo(options: {
  config: string;
  configFile: string;
  kubeconfig: string;
  machines: DevMachines;
  nodeName: string;
  stop: AbortSignal;
}): Promise<number> {
  const { config, configFile, kubeconfig, machines, nodeName, stop } = options;
  await writeFile(configFile, config, { mode: 0o600 });
  const agent = new ChildAgent(configFile);
  try {
    const list = () => machines.list(stop);
    return await runDemo({ kubeconfig, nodeName, agent, machines: list, signal: stop });
  } finally {
    await agent.stop();
    await rm(configFile, { force: true });
  }
}

/** Until it is stopped. @param isUp is told where to look @returns the process's exit status */
async function serve(
  options: {
    config: string;
    kubeconfig: string;
    machines: DevMachines;
    progress: Progress;
    logger: Logger;
    stop: AbortSignal;
  },
  isUp: (at: { page: string; metrics: string }) => void,
): Promise<number> {
  const { config, kubeconfig, machines, progress, logger, stop } = options;
  const agent = await openAgent(config, { shared: machines.shared, logger, stop }).catch((thrown: unknown) => {
    if (!stop.aborted) throw thrown;
  });
  if (agent === undefined) return 0;
  const running = agent.run(stop);
  await Promise.race([agent.ready(stop), running]).catch(byFlag);
  const kubeConfig = loadKubeConfig({ path: kubeconfig });
  const page = await openPage({ kubeConfig, namespace: undefined, port: 0, logger });
  if (!stop.aborted) isUp({ page: page.url, metrics: `http://127.0.0.1:${agent.healthPort}/metrics` });
  const ended = new AbortController();
  const pulls = showPulls(machines.list, progress, { clock: systemClock, signal: ended.signal });
  const shown = Promise.all([page.run(ended.signal), pulls]);
  try {
    await running;
  } finally {
    ended.abort(new Error("the agent has ended"));
    await shown;
  }
  return 0;
}

function agentConfig(
  options: DevOptions,
  surroundings: { kubeconfig: string; machines: DevMachines; clusterId: string | undefined },
): string {
  const { kubeconfig, clusterId } = surroundings;
  const { provider, nodeCount = 1, capacity, nameservers } = surroundings.machines;
  const { nodeName } = options;
  const names = nodeCount === 1 ? [nodeName] : Array.from({ length: nodeCount }, (_, index) => `${nodeName}-${index}`);
  const joined = options.kubeconfig !== undefined;
  return JSON.stringify({
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    clusterId,
    kubeconfig,
    // Another process's warnings would be printed into the demo's table.
    logLevel: options.demo && options.logLevel === "warn" ? "error" : options.logLevel,
    health: { port: 0 },
    nodes: names.map((name) => ({
      name,
      provider,
      capacity,
      kubelet: {
        port: 0,
        address: joined ? "0.0.0.0" : "127.0.0.1",
        ...(!joined && { certificate: "self-signed" }),
      },
      ...(options.nodeAddress !== undefined
        ? { addresses: [options.nodeAddress] }
        : !joined && { addresses: ["127.0.0.1"] }),
      // There is no DNS of a cluster, and that would be a warning at each pod that wants it.
      ...(!joined && nameservers !== undefined && { dns: { clusterDns: nameservers.slice(0, MAX_NAMESERVERS) } }),
      // Alone in its cluster, the node takes every pod; beside others it takes those that ask for it.
      ...(!joined && { taints: [] }),
    })),
  });
}

function openAgent(
  config: string,
  { shared, logger, stop }: { shared: DevMachines["shared"]; logger: Logger; stop: AbortSignal },
): Promise<Agent> {
  return Agent.open({
    config: parseConfig(config, "(vmlet dev)"),
    createProvider: async (provider, events) =>
      shared ?? (await createProvider(provider, { clock: systemClock, random: systemRandom, logger, ...events })),
    clock: systemClock,
    random: systemRandom,
    logger,
    version: VERSION,
    signal: stop,
  });
}
