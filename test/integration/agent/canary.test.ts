/**
 * Secrets of every kind that pass through an agent, each a value that stands nowhere else, and every fault that makes somebody talk:
 * none of them turns up in what others read: logs at level debug, events, statuses, the Node, metrics.
 */
import { randomBytes } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { request } from "node:https";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { containerStatus, Pods, serve, shell } from "../../e2e/cases/pods.ts";
import { startAgent, startBackend, type AgentProcess, type BackendProcess } from "../../e2e/harness/agent.ts";
import { clientOf, type Client, type Json } from "../../e2e/harness/client.ts";
import { createSandbox, type Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { openExec } from "../hostile/exec.ts";

const NAMESPACE = "canary";
const canary = (what: string) => `canary-${what}-${randomBytes(8).toString("hex")}`;
const SECRETS = {
  variable: canary("variable"),
  file: canary("file"),
  command: canary("command"),
  probe: canary("probe"),
};
const REGISTRY = canary("registry");
const STDIN = canary("stdin");

let sandbox: Sandbox;
let cluster: DevCluster;
let client: Client;
let backend: BackendProcess;
/** One node runs real processes, whose faults are real; the other's backend can mount files and pulls images with credentials. */
let agents: Record<"process" | "memory", AgentProcess>;
let pods: Record<"process" | "memory", Pods>;
beforeAll(async () => {
  sandbox = await createSandbox("canary");
  cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, tls: false });
  const kubeconfig = join(sandbox.dir, "kubeconfig");
  await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
  client = clientOf(cluster.url, { token: cluster.token });
  backend = await startBackend({ sandbox });
  const at = { sandbox, kubeconfig };
  agents = {
    process: await startAgent({ ...at, nodeName: "process", provider: backend.provider }),
    memory: await startAgent({ ...at, nodeName: "memory", provider: { type: "memory" } }),
  };
  await client.create("/api/v1/namespaces", { metadata: { name: NAMESPACE } });
  await waitFor({ what: "the default ServiceAccount" }, () =>
    client.get(`/api/v1/namespaces/${NAMESPACE}/serviceaccounts/default`),
  );
  pods = { process: new Pods(client, NAMESPACE, "process"), memory: new Pods(client, NAMESPACE, "memory") };
}, 60_000);
afterAll(async () => {
  client?.close();
  await sandbox?.close();
  await cluster?.close();
});

const base64 = (text: string) => Buffer.from(text).toString("base64");
const secretKey = (key: string) => ({ secretKeyRef: { name: "canaries", key } });
const variable = (name: string, key: string) => ({ env: [{ name, valueFrom: secretKey(key) }] });

async function makeSecrets(): Promise<void> {
  const path = `/api/v1/namespaces/${NAMESPACE}/secrets`;
  const data = Object.fromEntries(Object.entries(SECRETS).map(([key, text]) => [key, base64(text)]));
  const broken = base64(`${SECRETS.variable}\0`);
  await client.create(path, { metadata: { name: "canaries" }, data: { ...data, broken } });
  const auths = { "registry.invalid": { username: "u", password: REGISTRY } };
  await client.create(path, {
    metadata: { name: "registry" },
    type: "kubernetes.io/dockerconfigjson",
    data: { ".dockerconfigjson": base64(JSON.stringify({ auths })) },
  });
}

/** Pods that work, that fail, that cannot start, and that have the backend or a probe repeat what it was given. */
async function makePods(): Promise<void> {
  const imagePullSecrets = [{ name: "registry" }];
  const volumes = [{ name: "s", secret: { secretName: "canaries" } }];
  const volumeMounts = [{ name: "s", mountPath: "/tmp/vmlet-canary" }];
  const probe = { exec: { command: ["/bin/sh", "-c", 'echo "$PROBE" >&2; exit 1'] }, periodSeconds: 1 };
  await pods.process.create("works", {
    containers: [shell("main", serve, variable("GIVEN", "variable"))],
  });
  await pods.memory.create("mounts", {
    volumes,
    imagePullSecrets,
    containers: [shell("main", serve, { volumeMounts })],
  });
  await pods.memory.create("unpulled", {
    imagePullSecrets,
    containers: [{ ...shell("main", serve), image: "registry.invalid/app:1" }],
  });
  await pods.process.create("refused", {
    hostNetwork: true,
    containers: [shell("main", serve, variable("GIVEN", "variable"))],
  });
  await pods.process.create("broken", { containers: [shell("main", serve, variable("GIVEN", "broken"))] });
  await pods.process.create("missing", { containers: [shell("main", serve, variable("GIVEN", "none"))] });
  await pods.process.create("no-program", {
    restartPolicy: "Never",
    containers: [{ ...shell("main", "", variable("PROGRAM", "command")), command: ["/$(PROGRAM)"] }],
  });
  await pods.process.create("probed", {
    containers: [shell("main", serve, { ...variable("PROBE", "probe"), readinessProbe: probe })],
  });
}

/** Gives a command what it reads, as a password that is typed. */
async function type(): Promise<void> {
  const socket = await openExec(
    { url: cluster.url, token: cluster.token },
    { namespace: NAMESPACE, name: "works" },
    ["/bin/sh", "-c", "read line; echo got it"],
    { stdin: true },
  );
  let output = "";
  socket.on("message", (data: Buffer) => (output += data.subarray(1).toString()));
  socket.send(Buffer.concat([Buffer.of(0), Buffer.from(`${STDIN}\n`)]));
  await waitFor({ what: "the command to have read its input" }, () => must(output.includes("got it"), output));
  socket.terminate();
}

function askKubelet({ kubeletPort }: AgentProcess, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { headers: { authorization: `Bearer ${cluster.token}` }, rejectUnauthorized: false, agent: false };
    request(`https://127.0.0.1:${kubeletPort}${path}`, options, (reply) => {
      let body = "";
      reply.on("data", (chunk: Buffer) => (body += chunk.toString()));
      reply.on("end", () => (reply.statusCode === 200 ? resolve(body) : reject(new Error(`${path}: ${body}`))));
    })
      .on("error", reject)
      .end();
  });
}

const KUBELET_PATHS = [
  "/metrics",
  "/metrics/resource",
  "/metrics/cadvisor",
  "/metrics/probes",
  "/stats/summary",
  "/configz",
];

/** All that others may read, by where it stands. */
async function everythingTold(): Promise<Map<string, string>> {
  const told = new Map<string, string>();
  for (const file of await readdir(sandbox.dir))
    if (file.endsWith(".log")) told.set(file, await readFile(join(sandbox.dir, file), "utf8"));
  const { items: events } = await client.get("/api/v1/events");
  told.set("events", JSON.stringify(events));
  for (const { metadata, status } of await pods.process.list())
    told.set(`pod ${metadata.name}`, JSON.stringify([metadata.annotations, status]));
  for (const [name, agent] of Object.entries(agents)) {
    told.set(`node ${name}`, JSON.stringify(await client.get(`/api/v1/nodes/${name}`)));
    const health = clientOf(agent.healthUrl);
    for (const path of ["/metrics", "/livez?verbose", "/readyz?verbose"])
      told.set(`${name} ${path}`, await health.text(path));
    health.close();
    for (const path of KUBELET_PATHS) told.set(`${name} kubelet ${path}`, await askKubelet(agent, path));
  }
  return told;
}

test(
  "no secret that passed through an agent stands in its log, an event, a status or a metric, whatever went wrong",
  { timeout: 120_000 },
  async () => {
    await makeSecrets();
    await makePods();
    await Promise.all([pods.process.untilReady("works"), pods.memory.untilReady("mounts")]);
    await type();
    await backend.restart("SIGKILL");
    for (const agent of Object.values(agents)) await agent.restart("SIGKILL");
    await pods.process.until("missing", "to wait", (pod) => containerStatus(pod, "main")?.state.waiting !== undefined);
    await pods.process.untilPhase("no-program", "Failed");
    const heard = async (name: string, reason: RegExp) =>
      waitFor({ what: `an event of ${name}` }, async () => {
        const { items } = await client.get(`/api/v1/namespaces/${NAMESPACE}/events`);
        const reasons = items
          .filter((each: Json) => each.involvedObject.name === name)
          .map(({ reason }: Json) => reason);
        must(
          reasons.some((each: string) => reason.test(each)),
          reasons,
        );
      });
    await heard("probed", /Unhealthy/);
    await heard("unpulled", /Failed/);
    await heard("broken", /./);
    await heard("refused", /./);
    await pods.process.delete("works");

    const backendToken = (await readFile(backend.provider.tokenFile, "utf8")).trim();
    const canaries = { ...SECRETS, registry: REGISTRY, stdin: STDIN, bearer: cluster.token, backend: backendToken };
    const told = await everythingTold();
    // The backend and the probe did repeat what they were given.
    for (const place of ["pod no-program", "events"]) expect(told.get(place)).toContain("[redacted]");
    const found: string[] = [];
    for (const [place, text] of told) {
      for (const [what, value] of Object.entries(canaries))
        for (const form of [value, base64(value), encodeURIComponent(value), Buffer.from(value).toString("hex")])
          if (text.includes(form)) found.push(`${what} in ${place}: ${excerpt(text, form)}`);
    }
    expect(found).toEqual([]);
  },
);

const excerpt = (text: string, form: string) =>
  text.slice(Math.max(0, text.indexOf(form) - 300), text.indexOf(form) + 20);
