/** What `vmlet run` needs of this host: the files that the configuration names, and the ports. */
import { Agent as HttpAgent, get } from "node:http";
import type { AgentConfig } from "../config/schema.ts";
import { exposedSecrets } from "../config/exposed-files.ts";
import { nodeFileFaults } from "../config/used-files.ts";
import { portFault } from "./ports.ts";
import type { Report } from "./report.ts";

const TIMEOUT_MS = 3_000;

export async function checkHost(config: AgentConfig, report: Report): Promise<void> {
  report.section("This host: files and ports");
  for (const path of await exposedSecrets(config))
    report.note(`${path} holds a secret, and every user of this host can read it: chmod o-r ${path}`);
  const faults = config.nodes.flatMap(nodeFileFaults);
  for (const { field, problem, cure } of faults) report.fault(`${field}: ${problem}`, cure);
  if (faults.length === 0) report.ok("every certificate, key and token file that is named can be used");
  await checkPorts(config, report);
}

async function checkPorts(config: AgentConfig, report: Report): Promise<void> {
  const { address, port, probePort } = config.health;
  const wanted = [
    { field: "health.port", address, port },
    ...(probePort === undefined ? [] : [{ field: "health.probePort", address, port: probePort }]),
    ...config.nodes.map(({ name, kubelet }) => ({ field: `nodes[${name}].kubelet.port`, ...kubelet })),
  ];
  const taken: { field: string; problem: string; port: number }[] = [];
  for (const { field, ...listen } of wanted) {
    const problem = await portFault(listen);
    if (problem !== undefined) taken.push({ field, problem, port: listen.port });
  }
  if (taken.length === 0) report.ok("the ports are free");
  else if (await isAgent(address, port)) report.note("an agent runs here already, and has these ports");
  else
    for (const { field, problem, port: number } of taken)
      report.fault(
        `${field}: ${problem}`,
        number === 10_248 || number === 10_250
          ? `set ${field} to another: a kubelet on this host has ${number} too`
          : `set ${field} to another, or end what has it (ss -ltnp 'sport = :${number}')`,
      );
}

/** Whether a vmlet agent serves its metrics there. */
async function isAgent(address: string, port: number): Promise<boolean> {
  const host = address === "0.0.0.0" ? "127.0.0.1" : address === "::" ? "::1" : address;
  const agent = new HttpAgent();
  try {
    return await new Promise<boolean>((resolve) => {
      const request = get(
        { host, port, path: "/metrics", agent, signal: AbortSignal.timeout(TIMEOUT_MS) },
        (response) => {
          let text = "";
          response.setEncoding("utf8");
          response.on("data", (chunk: string) => {
            text += chunk;
            const isOurs = text.includes("\nvmlet_build_info");
            if (isOurs || text.length > 4_000_000) {
              resolve(isOurs);
              request.destroy();
            }
          });
          response.on("end", () => resolve(false));
          response.on("error", () => resolve(false));
        },
      );
      request.on("error", () => resolve(false));
    });
  } finally {
    agent.destroy();
  }
}
