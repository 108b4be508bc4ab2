/**
 * What some tests of the suite take a node for: a host that root reaches by SSH, on which systemd keeps a unit named kubelet. OpenSSH's
 * own server answers at each node's address; a `systemctl` of ours stops and starts that node's agent. All else is this run's
 * host as it is: its mounts, its processes.
 */
import { randomBytes } from "node:crypto";
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import type { AgentProcess } from "../../e2e/harness/agent.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import type { Sandbox } from "../../e2e/harness/processes.ts";
import { hostAddresses } from "./namespaces.ts";

/** By what the suite gets there; it is run as the provider that has SSH and no cloud. */
export interface NodeSsh extends Disposable {
  provider: "local";
  env: { LOCAL_SSH_KEY: string; KUBE_SSH_USER: "root" };
}

/** @param agents of each node, in the order of their addresses */
export async function startNodeSsh(sandbox: Sandbox, agents: readonly AgentProcess[]): Promise<NodeSsh> {
  const folder = join(sandbox.dir, "node-ssh");
  const [bin, key, hostKey] = [join(folder, "bin"), join(folder, "key"), join(folder, "host-key")];
  await mkdir(bin, { recursive: true });
  for (const file of [key, hostKey]) await runCommand("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", file]);
  const units = serveUnits(agents, join("/run", `vmlet-units-${randomBytes(4).toString("hex")}.sock`));
  await units.listening;
  const systemctl = join(bin, "systemctl");
  await writeFile(
    systemctl,
    `#!/bin/sh
set -- "$1" "$2" $SSH_CONNECTION
exec curl --fail --silent --show-error --unix-socket ${units.socket} "http://node/$1/$2/$5"
`,
  );
  await chmod(systemctl, 0o755);
  const config = join(folder, "sshd_config");
  await writeFile(
    config,
    [
      ...hostAddresses.slice(0, agents.length).map((address) => `ListenAddress ${address}:22`),
      `HostKey ${hostKey}`,
      `AuthorizedKeysFile ${key}.pub`,
      "PasswordAuthentication no",
      "PermitRootLogin prohibit-password",
      // The folder is one of /tmp.
      "StrictModes no",
      "PidFile none",
      // The tests log in once for each command, some at once.
      "MaxStartups 100",
      `SetEnv PATH=${bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
      "",
    ].join("\n"),
  );
  await mkdir("/run/sshd", { recursive: true });
  sandbox.spawn("sshd", "/usr/sbin/sshd", ["-D", "-e", "-f", config]);
  return {
    provider: "local",
    env: { LOCAL_SSH_KEY: key, KUBE_SSH_USER: "root" },
    [Symbol.dispose]: () => units.close(),
  };
}

/** Answers `/VERB/UNIT/ADDRESS`, as much as the tests ask of systemd. */
function serveUnits(agents: readonly AgentProcess[], socket: string) {
  const stopped = new Set<AgentProcess>();
  const verbs: Record<string, (agent: AgentProcess) => Promise<string>> = {
    async stop(agent) {
      if (!stopped.has(agent)) await agent.kill("SIGTERM");
      stopped.add(agent);
      return "";
    },
    async start(agent) {
      if (stopped.has(agent)) await agent.start();
      stopped.delete(agent);
      return "";
    },
    show: async (agent) => (stopped.has(agent) ? "inactive\n" : "active\n"),
  };
  const server = createServer((request, response) => {
    const [, verb = "", unit, address] = request.url!.split("/");
    const agent = agents[hostAddresses.findIndex((each) => each === address)];
    const act = unit === "kubelet" ? verbs[verb] : undefined;
    if (agent === undefined || act === undefined) {
      response.writeHead(404).end();
      return;
    }
    act(agent).then(
      (text) => response.end(text),
      (thrown: unknown) => response.writeHead(500).end(String(thrown)),
    );
  });
  const { promise: listening, resolve, reject } = Promise.withResolvers<void>();
  server.once("error", reject).listen(socket, resolve);
  return { socket, listening, close: () => void server.close() };
}
