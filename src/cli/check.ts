/**
 * `vmlet check`: tries everything that `vmlet run` will need (configuration, API server, permissions, backend) and says
 * what is missing and how to get it. It changes nothing.
 */
import { constants } from "node:fs";
import { access } from "node:fs/promises";
import { join } from "node:path";
import { Command } from "commander";
import { stringify } from "yaml";
import { connect, readClusterId } from "../agent/agent.ts";
import { loadCredentialProviders } from "../config/credential-providers.ts";
import { ConfigError, loadConfig, type ConfigOverrides } from "../config/load.ts";
import type { AgentConfig, CloudProviderConfig, NodeConfig } from "../config/schema.ts";
import { nodeFileFaults } from "../config/used-files.ts";
import { isForbidden, isNotFound } from "../kube/errors.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath } from "../kube/paths.ts";
import { selfSubjectAccessReview } from "../kube/reviews.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { Node } from "../kube/wire.ts";
import { foreignIdentity, foreignNodeCure } from "../node/node-status.ts";
import { configuredPermissions, describePermission, type Permission } from "../agent/permissions.ts";
import { isProviderError } from "../provider/errors.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { goArchitecture } from "../util/platform.ts";
import { systemRandom } from "../util/random.ts";
import { checkHost } from "./check-host.ts";
import { checkNetworkPolicies } from "./check-policies.ts";
import { createProvider } from "./providers.ts";
import { rbacYaml, subjectOf } from "./rbac.ts";
import { Report, withReportOptions, type ReportOptions } from "./report.ts";
import { withConfigOptions } from "./run.ts";
import { speaksTls } from "./speaks-tls.ts";
import { VERSION } from "./version.ts";

const TIMEOUT_MS = 10_000;

interface CheckFlags extends ConfigOverrides, ReportOptions {
  config: string;
  showConfig?: boolean | undefined;
  printRbac?: string | true | undefined;
}

export function checkCommand(): Command {
  return withReportOptions(withConfigOptions(new Command("check")))
    .option("--show-config", "tell the configuration as it counts, defaults filled in")
    .option(
      "--print-rbac [account]",
      "print the roles that this configuration needs, bound to a ServiceAccount NAMESPACE/NAME (default: vmlet/vmlet) or a user, and check nothing",
    )
    .action(async (flags: CheckFlags) => {
      const { config: path, output, quiet, showConfig = false, printRbac, ...overrides } = flags;
      if (printRbac !== undefined) {
        process.stdout.write(rbacYaml(loadConfig(path, overrides), subjectOf(printRbac)));
        return;
      }
      const report = new Report({ output, quiet });
      const config = load(path, overrides, report);
      if (config === undefined) process.exit(report.end(""));
      if (showConfig && output !== "json")
        console.log(`Effective configuration of ${path}:\n\n${stringify(config).replace(/^/gm, "  ").trimEnd()}\n`);
      await checkHost(config, report);
      for (const node of config.nodes) {
        await checkNode(config, node, report);
        await checkCredentialProviders(node, report);
      }
      const status = report.end("Nothing is missing.", showConfig ? { configuration: config } : {});
      if (status !== 0) process.exit(status);
    });
}

/** The faults of the file itself are a finding where a program reads them; a person gets them as `run` tells them. */
function load(path: string, overrides: ConfigOverrides, report: Report): AgentConfig | undefined {
  try {
    return loadConfig(path, overrides);
  } catch (thrown) {
    if (!(thrown instanceof ConfigError) || !report.isForPrograms) throw thrown;
    report.section("Configuration");
    for (const line of thrown.message.split("\n")) report.fault(line);
    return undefined;
  }
}

async function checkNode(config: AgentConfig, node: NodeConfig, report: Report): Promise<void> {
  report.section(`Node ${node.name}: API server`);
  const connection = { config, clock: systemClock, logger: silentLogger, version: VERSION };
  const opened: KubeTransport[] = [];
  try {
    const kube = connect({ ...connection, node });
    const self = connect(connection);
    opened.push(kube, self);
    const version = await self.request<{ gitVersion: string }>({
      method: "GET",
      path: "/version",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    report.ok(`answers, version ${version.gitVersion}`);
    await checkPermissions(config, node, { kube, self }, report);
    await checkOwner(config, node, { kube, self }, report);
    await checkNetworkPolicies(self, report, AbortSignal.timeout(TIMEOUT_MS));
  } catch (thrown) {
    report.fault(`${verdictOf(thrown)}${toError(thrown).message}`, await apiServerCure(config));
  } finally {
    for (const transport of opened) await transport.close();
  }

  await checkBackend(node, report);
}

async function checkBackend(node: NodeConfig, report: Report): Promise<void> {
  report.section(`Node ${node.name}: backend (${node.provider.type})`);
  if (nodeFileFaults(node).some(({ field }) => field.includes(".provider.")))
    return report.note("was not asked: the files above come first");
  try {
    const provider = await createProvider(node.provider, {
      clock: systemClock,
      random: systemRandom,
      logger: silentLogger,
    });
    try {
      if (node.provider.type === "cloud") await checkCloud(node.provider.cloud, report);
      const info = await provider.getInfo({ signal: AbortSignal.timeout(TIMEOUT_MS) });
      report.ok(`${info.name} ${info.version} answers`);
      report.note(`capabilities: ${[...info.capabilities].sort().join(", ") || "none"}`);
      const { os = node.os ?? "linux", architecture = node.architecture ?? goArchitecture(process.arch) } = info;
      report.note(
        `machines are ${os}/${architecture}${info.architecture === undefined ? ", which it does not say itself" : ""}`,
      );
      const unknown = info.unknownCapabilities ?? [];
      if (unknown.length > 0)
        report.note(`${unknown.join(", ")}: no capability of that name is known, it counts for nothing`);
      if (!info.capabilities.includes("events")) report.note("no `events`: changes are seen by listing every 5 s");
      if (!info.capabilities.includes("capacity") && node.capacity === undefined) {
        report.note("no `capacity` and none in the file: the node will report 16 cpu, 64Gi memory, 110 pods");
      }
    } finally {
      await provider.close();
    }
  } catch (thrown) {
    report.fault(`${verdictOf(thrown)}${toError(thrown).message}`, await backendCure(node));
  }
}

async function checkCloud(cloud: CloudProviderConfig["cloud"], report: Report): Promise<void> {
  const { incusProblems } = await import("../../providers/cloud/incus/check.ts");
  const problems = await incusProblems(cloud, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  for (const { problem, cure } of problems) report.fault(problem, cure);
  if (problems.length === 0)
    report.ok(`${cloud.url} has project ${cloud.project}, its image, network and storage pool`);
}

/** @internal */
export async function apiServerCure({ kubeconfig }: Pick<AgentConfig, "kubeconfig">): Promise<string> {
  const server = serverOf(kubeconfig);
  if (server !== undefined && (await speaksTls(server)))
    return `TLS is spoken there: set the cluster's server in the kubeconfig to ${server.replace("http:", "https:")}`;
  return "check `kubeconfig` and that the server can be reached from here";
}

function serverOf(path: string | undefined): string | undefined {
  try {
    return loadKubeConfig({ path }).getCurrentCluster()?.server;
  } catch {
    // Told already: it is why the server was not asked.
    return undefined;
  }
}

async function backendCure({ provider }: NodeConfig): Promise<string> {
  if (provider.type === "cloud") return `check nodes[].provider.cloud.url (${provider.cloud.url}) and caFile`;
  if (provider.type !== "http-vm") return "check nodes[].provider";
  if (await speaksTls(provider.url))
    return `TLS is spoken there: set nodes[].provider.url to ${provider.url.replace("http:", "https:")}`;
  return `check nodes[].provider.url (${provider.url}), tokenFile and caFile`;
}

/** How a fault of the other end begins: one that answered, or was never asked, is not silent. */
function verdictOf(thrown: unknown): string {
  if (thrown instanceof VmletError && ["CONFIG", "KUBECONFIG"].includes(thrown.code)) return "was not asked: ";
  return isProviderError(thrown) && thrown.code !== "unavailable"
    ? "answers, but not as it should: "
    : "does not answer: ";
}

/**
 * A Node of that name must be this agent's, or there must be none. A read that is not allowed was reported with the
 * permissions.
 */
async function checkOwner(
  config: AgentConfig,
  { name }: NodeConfig,
  { kube, self }: { kube: Kube; self: Kube },
  report: Report,
): Promise<void> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  let existing: Node;
  try {
    existing = await kube.request<Node>({ method: "GET", path: nodePath(name), signal });
  } catch (thrown) {
    if (isNotFound(thrown) || isForbidden(thrown)) return;
    throw thrown;
  }
  const clusterId = config.clusterId ?? (await readClusterId(self, signal));
  const foreign = foreignIdentity(existing, { name, clusterId });
  if (foreign === undefined) report.ok(`the Node ${name} is there, and is this agent's`);
  else report.fault(`a Node ${name} exists and is not this agent's: ${foreign}`, foreignNodeCure({ name }));
}

/** The plugins are run when a pod's image asks for them, too late to notice that one is missing. */
async function checkCredentialProviders(node: NodeConfig, report: Report): Promise<void> {
  if (node.imageCredentialProvider === undefined) return;
  report.section(`Node ${node.name}: image credential providers`);
  const { config: path, binDir } = node.imageCredentialProvider;
  try {
    for (const { name } of loadCredentialProviders(path).config.providers) {
      await access(join(binDir, name), constants.X_OK);
      report.ok(name);
    }
  } catch (thrown) {
    report.fault(toError(thrown).message, "check nodes[].imageCredentialProvider");
  }
}

/**
 * Reports every permission that is missing, of the process and of the node that it acts as. @throws KubeApiError
 * @internal
 */
export async function checkPermissions(
  config: AgentConfig,
  node: NodeConfig,
  access: { kube: Kube; self: Kube },
  report: Report,
): Promise<void> {
  const permissions = configuredPermissions(config, node);
  const ask = async (asked: readonly Permission[], as: Kube): Promise<Permission[]> => {
    const missing: Permission[] = [];
    for (const permission of asked) {
      const answer = await selfSubjectAccessReview(as, permission.attributes, AbortSignal.timeout(TIMEOUT_MS));
      if (answer.allowed) continue;
      missing.push(permission);
      const text = `may not ${describePermission(permission)}: ${permission.purpose}`;
      if (permission.optional) report.note(text);
      else report.fault(text);
    }
    return missing;
  };
  const [ofProcess, ofNode] = [true, false].map((asProcess) =>
    permissions.filter((permission) => (permission.asProcess ?? false) === asProcess),
  ) as [Permission[], Permission[]];
  const missing = await ask(ofProcess, access.self);
  // Without the right to act as the node, the agent cannot ask what the node may do.
  const isNode = missing.every(({ attributes }) => attributes.verb !== "impersonate");
  const asked = isNode ? permissions.length : ofProcess.length;
  if (isNode) missing.push(...(await ask(ofNode, access.kube)));
  const told = `${asked - missing.length} of ${asked} permissions granted`;
  if (missing.every(({ optional = false }) => optional)) report.ok(told);
  else
    report.fault(told, "grant what is missing: the chart's roles have it, and `vmlet check --print-rbac` prints them");
}
