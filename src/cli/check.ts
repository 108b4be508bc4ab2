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
import { exposedSecrets } from "../config/exposed-files.ts";
import { loadConfig, type ConfigOverrides } from "../config/load.ts";
import type { AgentConfig, NodeConfig } from "../config/schema.ts";
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath } from "../kube/paths.ts";
import { selfSubjectAccessReview } from "../kube/reviews.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { Node } from "../kube/wire.ts";
import { foreignIdentity, foreignNodeCure } from "../node/node-status.ts";
import { describePermission, nodePermissions, type Permission } from "../agent/permissions.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { goArchitecture } from "../util/platform.ts";
import { systemRandom } from "../util/random.ts";
import { createProvider } from "./providers.ts";
import { withConfigOptions } from "./run.ts";
import { VERSION } from "./version.ts";

const TIMEOUT_MS = 10_000;

/**
 * Prints findings as it goes; remembers whether any of them has to be cured.
 * @internal
 */
export class Report {
  faults = 0;
  readonly #print: (text: string) => void;

  constructor(print: (text: string) => void = console.log) {
    this.#print = print;
  }

  ok(text: string): void {
    this.#print(`  ok      ${text}`);
  }

  note(text: string): void {
    this.#print(`  note    ${text}`);
  }

  fault(text: string, cure: string): void {
    this.faults++;
    this.#print(`  FAULT   ${text}\n          ${cure}`);
  }
}

export function checkCommand(): Command {
  return withConfigOptions(new Command("check")).action(async (flags: ConfigOverrides & { config: string }) => {
    const { config: path, ...overrides } = flags;
    const config = loadConfig(path, overrides);
    const report = new Report();
    console.log(`Effective configuration of ${path}:\n`);
    console.log(stringify(config).replace(/^/gm, "  ").trimEnd());
    for (const path of await exposedSecrets(config))
      report.note(`${path} holds a secret, and every user of this host can read it: chmod o-r ${path}`);
    for (const node of config.nodes) {
      await checkNode(config, node, report);
      await checkCredentialProviders(node, report);
    }
    console.log(report.faults === 0 ? "\nNothing is missing." : `\nFaults to fix: ${report.faults}.`);
    if (report.faults > 0) process.exit(2);
  });
}

async function checkNode(config: AgentConfig, node: NodeConfig, report: Report): Promise<void> {
  console.log(`\nNode ${node.name}: API server`);
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
  } catch (thrown) {
    report.fault(
      `does not answer: ${toError(thrown).message}`,
      "check `kubeconfig` and that the server can be reached from here",
    );
  } finally {
    for (const transport of opened) await transport.close();
  }

  console.log(`\nNode ${node.name}: backend (${node.provider.type})`);
  try {
    const provider = await createProvider(node.provider, {
      clock: systemClock,
      random: systemRandom,
      logger: silentLogger,
    });
    try {
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
    const where =
      node.provider.type === "http-vm"
        ? `check nodes[].provider.url (${node.provider.url}), tokenFile and caFile`
        : "check nodes[].provider";
    report.fault(`does not answer: ${toError(thrown).message}`, where);
  }
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
  console.log(`\nNode ${node.name}: image credential providers`);
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
  const permissions = nodePermissions(node.name, {
    mode: config.identity.mode,
    leaderElection: config.leaderElection.enabled ? config.leaderElection : undefined,
    csr:
      node.kubelet.certificate === "csr" ||
      (node.kubelet.certificate === undefined && node.kubelet.certFile === undefined),
    clusterId: config.clusterId === undefined,
    clientCa: node.kubelet.clientCAFile === undefined,
    // The node's own certificate is asked for by a running agent only.
  }).filter((permission) => config.identity.mode !== "certificate" || permission.asProcess);
  const ask = async (asked: readonly Permission[], as: Kube): Promise<Permission[]> => {
    const missing: Permission[] = [];
    for (const permission of asked) {
      const answer = await selfSubjectAccessReview(as, permission.attributes, AbortSignal.timeout(TIMEOUT_MS));
      if (answer.allowed) continue;
      missing.push(permission);
      const text = `may not ${describePermission(permission)}: ${permission.purpose}`;
      if (permission.optional) report.note(text);
      else report.fault(text, "grant it; the chart's roles have all that is needed");
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
  report.ok(`${asked - missing.length} of ${asked} permissions granted`);
}
