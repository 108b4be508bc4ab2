import { Command } from "commander";
import { stringify } from "yaml";
import { connect } from "../agent.ts";
import { loadConfig, type ConfigOverrides } from "../config/load.ts";
import type { AgentConfig, NodeConfig } from "../config/schema.ts";
import type { Kube } from "../kube/kube.ts";
import { selfSubjectAccessReview } from "../kube/reviews.ts";
import type { KubeTransport } from "../kube/transport.ts";
import { describePermission, nodePermissions } from "../permissions.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { systemRandom } from "../util/random.ts";
import { createProvider } from "./providers.ts";
import { withConfigOptions } from "./run.ts";
import { VERSION } from "./version.ts";

const TIMEOUT_MS = 10_000;

/** Prints findings as it goes; remembers whether any of them has to be cured. */
class Report {
  faults = 0;

  ok(text: string): void {
    console.log(`  ok      ${text}`);
  }

  note(text: string): void {
    console.log(`  note    ${text}`);
  }

  fault(text: string, cure: string): void {
    this.faults++;
    console.log(`  FAULT   ${text}\n          ${cure}`);
  }
}

export function checkCommand(): Command {
  return withConfigOptions(new Command("check")).action(async (flags: ConfigOverrides & { config: string }) => {
    const { config: path, ...overrides } = flags;
    const config = loadConfig(path, overrides);
    const report = new Report();
    console.log(`Effective configuration of ${path}:\n`);
    console.log(stringify(config).replace(/^/gm, "  ").trimEnd());
    for (const node of config.nodes) await checkNode(config, node, report);
    console.log(report.faults === 0 ? "\nNothing is missing." : `\n${report.faults} to cure.`);
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
    const version = await kube.request<{ gitVersion: string }>({
      method: "GET",
      path: "/version",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    report.ok(`answers, version ${version.gitVersion}`);
    await checkPermissions(config, node, { kube, self }, report);
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

async function checkPermissions(
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
  let granted = 0;
  for (const permission of permissions) {
    const answer = await selfSubjectAccessReview(
      permission.asProcess ? access.self : access.kube,
      permission.attributes,
      AbortSignal.timeout(TIMEOUT_MS),
    );
    if (answer.allowed) granted++;
    else if (permission.optional) report.note(`may not ${describePermission(permission)}: ${permission.purpose}`);
    else
      report.fault(
        `may not ${describePermission(permission)}: ${permission.purpose}`,
        "grant it, or set identity.mode: impersonate",
      );
  }
  report.ok(`${granted} of ${permissions.length} permissions granted`);
}
