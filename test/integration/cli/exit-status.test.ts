/** What scripts go by: 0 done, 1 failed, 2 the user has to change something first. Real processes, as a shell starts them. */
import { execFile, type ChildProcess } from "node:child_process";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { runDevCluster } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const STACK = /^ {4}at /m;
let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-cli-"));
});
const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
});
afterAll(() => rmSync(dir, { recursive: true }));

function vmlet(...args: string[]): Promise<{ status: number; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [program, ...args], { cwd: dir }, (error, stdout, stderr) =>
      resolve({ status: error === null ? 0 : Number(error.code), stdout, stderr }),
    );
  });
}

const FREE_PORTS = "    kubelet: { port: 0 }\nhealth: { port: 0 }\n";

async function check(node: string, rest = ""): Promise<{ status: number; stdout: string; stderr: string }> {
  const text = `apiVersion: vmlet.dev/v1\nkind: AgentConfig\n${rest}nodes:\n  - name: burst-0\n${node}`;
  writeFileSync(join(dir, "vmlet.yaml"), text);
  return vmlet("check", "--config", "vmlet.yaml");
}

test.each([
  ["an unknown command", ["bogus"], "unknown command 'bogus'"],
  ["an unknown command of a command", ["node", "bogus"], "unknown command 'bogus'"],
  ["a missing argument", ["check"], "required option '-c, --config <file>' not specified"],
  ["a file that is not there", ["check", "--config", "none.yaml"], "cannot read the configuration file none.yaml"],
  ["a kubeconfig that is not there", ["smoke", "n", "--kubeconfig", "none"], "Cannot load the kubeconfig none"],
  [
    "a kubeconfig that is not there",
    ["node", "drained", "n", "--kubeconfig", "none"],
    "Cannot load the kubeconfig none",
  ],
  ["a time that is none", ["smoke", "n", "--timeout", "soon"], "'--timeout <duration>' argument 'soon' is invalid"],
  [
    "a check that there is none of",
    ["conformance", "http://127.0.0.1:1", "--only", "info/,nonsense"],
    "--only: no check's name begins with nonsense",
  ],
  [
    "half of what only goes together",
    ["conformance", "http://127.0.0.1:1", "--echo-port", "80"],
    "--echo-command and --echo-port go together",
  ],
  ["neither a backend nor a module to check", ["conformance"], "give either a URL or --module"],
  ["a module that is not there", ["conformance", "--module", "none.js"], "provider.module: cannot load"],
  ["a port that is none", ["dev", "--port", "web"], "'--port <port>' argument 'web' is invalid"],
  ["a folder that cannot be made", ["dev", "--state-dir", "/dev/null/x"], "--state-dir: ENOTDIR: not a directory"],
  ["a log level that is none", ["dev", "--log-level", "loud"], "'--log-level <level>' argument 'loud' is invalid"],
])("%s is 2, and said", async (_what, args, message) => {
  const { status, stderr } = await vmlet(...args);
  expect(stderr).toContain(message);
  expect(stderr).not.toMatch(STACK);
  expect(status).toBe(2);
});

test.each([
  [["dev", "--bogus"], "(vmlet dev --help says what it takes)"],
  [["node", "drained", "--bogus"], "(vmlet node drained --help says what it takes)"],
  [["--bogus"], "(vmlet --help lists the commands)"],
])("%j is told which help to read", async (args, told) => {
  expect((await vmlet(...args)).stderr).toContain(told);
});

test("a Node.js that is too old is told in words, and is 2", async () => {
  const versions = `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.20.2" } });`;
  const old = `data:text/javascript,${encodeURIComponent(`${versions} Object.defineProperty(process, "version", { value: "v20.20.2" });`)}`;
  const { status, stderr } = await new Promise<{ status: number; stderr: string }>((resolve) =>
    execFile(process.execPath, ["--import", old, program, "version"], (error, _stdout, stderr) =>
      resolve({ status: error === null ? 0 : Number(error.code), stderr }),
    ),
  );
  expect(stderr).toBe(
    "vmlet needs Node.js 22.20 or newer, this is v20.20.2: install a newer one (https://nodejs.org)\n",
  );
  expect(status).toBe(2);
});

test("names of checks may stand before the address", async () => {
  const { status, stderr } = await vmlet(
    "conformance",
    "--only",
    "create,delete",
    "--only",
    "http",
    "http://127.0.0.1:1",
  );
  expect(stderr).toContain("http://127.0.0.1:1 could not be checked");
  expect(status).toBe(2);
});

test("a provider module is checked as a backend is", async () => {
  const example = join(import.meta.dirname, "../../../examples/custom-provider.ts");
  const { status, stdout } = await vmlet("conformance", "--module", example, "--only", "info,http/info");
  expect(stdout).toMatch(/^ok {4}info\/says-what-it-is/m);
  expect(stdout).toMatch(/^example 1: \d+ passed, 0 failed, \d+ skipped$/m);
  expect(status).toBe(0);
});

test.each([
  ["smoke --help", "(default: 3m0s)"],
  ["help run", "--cluster-id <id>"],
  ["backend check --help", "-c, --config <file>"],
])("vmlet %s tells %s", async (words, told) => {
  const { status, stdout } = await vmlet(...words.split(" "));
  expect(stdout).toContain(told);
  expect(status).toBe(0);
});

test("help and version are 0", async () => {
  expect((await vmlet("--help")).status).toBe(0);
  expect((await vmlet("--version")).status).toBe(0);
});

test("faults of the file are told with place and field, and are 2", async () => {
  const { status, stderr } = await check(
    '    provider: { type: http-vm, url: "http://127.0.0.1:1" }\n    capactiy: { cpu: "4" }\n    capacity: { cpu: 4x }\n',
  );
  expect(stderr.trim().split("\n")).toEqual([
    "vmlet.yaml:7:17: nodes[0].capacity.cpu: must be a Kubernetes quantity such as 500m, 4, 512Mi or 64Gi",
    "vmlet.yaml:6:5: nodes[0].capactiy: unknown key; did you mean capacity?",
  ]);
  expect(status).toBe(2);
});

test("what is no YAML is told with its place, and is 2", async () => {
  const { status, stderr } = await check("   provider: {\n");
  expect(stderr).toMatch(/^vmlet\.yaml:5:\d+: .+\n$/);
  expect(status).toBe(2);
});

test("a backend and an API server that do not answer are told with the field to look at, and are 2", async () => {
  const { status, stdout } = await check(
    `    provider: { type: http-vm, url: "http://127.0.0.1:1" }\n${FREE_PORTS}`,
    "kubeconfig: none.kubeconfig\n",
  );
  expect(stdout).toContain("Cannot load the kubeconfig none.kubeconfig");
  expect(stdout).toContain("check nodes[].provider.url (http://127.0.0.1:1), tokenFile and caFile");
  expect(stdout).toContain("Faults to fix: 2.");
  expect(status).toBe(2);
});

test("faults are told to programs as JSON, those of the file too, and are 2", async () => {
  const args = ["check", "--config", "vmlet.yaml", "-o", "json"];
  await check(`    provider: { type: memory }\n${FREE_PORTS}`, "kubeconfig: none.kubeconfig\n");
  const found = await vmlet(...args);
  const { faults, findings } = JSON.parse(found.stdout) as { faults: number; findings: { text: string }[] };
  expect([found.status, faults]).toEqual([2, 1]);
  expect(findings.map(({ text }) => text)).toContainEqual(
    expect.stringContaining("was not asked: kubeconfig: Cannot load the kubeconfig none.kubeconfig"),
  );
  await check("    provider: { type: memory }\n", "logLvl: info\n");
  const malformed = await vmlet(...args);
  expect(JSON.parse(malformed.stdout)).toEqual({
    faults: 1,
    findings: [
      {
        section: "Configuration",
        level: "fault",
        text: "vmlet.yaml:3:1: logLvl: unknown key; did you mean logLevel?",
      },
    ],
  });
  expect([malformed.status, malformed.stderr]).toEqual([2, ""]);
});

test("a check of the backend's host tells files, folder and port by field, and is 2", async () => {
  await using server = await silentServer();
  const file = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: "/dev/null/state",
    listen: { address: "127.0.0.1", port: server.port },
    tokenFile: join(dir, "no-token"),
  };
  writeFileSync(join(dir, "check.yaml"), JSON.stringify(file));
  const { status, stdout } = await vmlet("backend", "--config", "check.yaml", "check");
  for (const field of ["tokenFile: cannot be read", "stateDir: /dev/null is not a folder", "listen.port: port"])
    expect(stdout).toContain(field);
  expect(status).toBe(2);
});

test("a file of credential providers that is not there is told with its field, and is 2", async () => {
  const { status, stdout } = await check(
    "    provider: { type: memory }\n    imageCredentialProvider: { config: none.yaml, binDir: /none }\n",
    "kubeconfig: none.kubeconfig\n",
  );
  expect(stdout).toContain("cannot read the credential providers none.yaml");
  expect(stdout).toContain("check nodes[].imageCredentialProvider");
  expect(status).toBe(2);
});

/** A server that says nothing, and its port. */
async function silentServer() {
  const sockets = new Set<Socket>();
  const called = Promise.withResolvers<void>();
  const server = createServer((socket) => {
    sockets.add(socket);
    called.resolve();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: (server.address() as AddressInfo).port,
    called: called.promise,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** `vmlet run` with this configuration, as it goes. */
function start(config: object, kubeconfig: object) {
  writeFileSync(join(dir, "kubeconfig"), JSON.stringify(kubeconfig));
  chmodSync(join(dir, "kubeconfig"), 0o600);
  const file = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", kubeconfig: join(dir, "kubeconfig"), ...config };
  writeFileSync(join(dir, "run.yaml"), JSON.stringify(file));
  let stderr = "";
  const child = execFile(process.execPath, [program, "run", "--config", "run.yaml"], { cwd: dir });
  children.push(child);
  child.stderr!.on("data", (chunk: string) => (stderr += chunk));
  const ended = new Promise<{ status: number | null; stderr: string }>((resolve) =>
    child.on("close", (status) => resolve({ status, stderr })),
  );
  return { stop: () => child.kill("SIGTERM"), ended };
}

const kubeconfigOf = (server: string) => ({
  apiVersion: "v1",
  kind: "Config",
  "current-context": "c",
  clusters: [{ name: "c", cluster: { server } }],
  contexts: [{ name: "c", context: { cluster: "c", user: "u" } }],
  users: [{ name: "u", user: { token: "t" } }],
});
const memoryNode = { name: "burst-0", provider: { type: "memory" }, kubelet: { port: 0, certificate: "self-signed" } };

test("a stop before the API server has answered is 0, and nothing to tell", async () => {
  await using server = await silentServer();
  const agent = start({ health: { port: 0 }, nodes: [memoryNode] }, kubeconfigOf(`http://127.0.0.1:${server.port}`));
  await server.called;
  agent.stop();
  expect(await agent.ended).toEqual({ status: 0, stderr: "" });
});

test("a port that is taken is told with its field, and is 2", async () => {
  await using server = await silentServer();
  await using dev = await runDevCluster();
  const { kubeconfig } = dev.cluster;
  const busyCluster = await vmlet("dev", "--engine", "process", "--port", String(server.port));
  expect(busyCluster).toMatchObject({ status: 2, stderr: expect.stringContaining("is taken by another program") });
  expect(busyCluster.stderr).not.toMatch(STACK);

  const busyHealth = await start({ health: { port: server.port }, nodes: [memoryNode] }, kubeconfig).ended;
  expect(busyHealth).toMatchObject({ status: 2, stderr: expect.stringContaining("health: listen EADDRINUSE") });
  expect(busyHealth.stderr).not.toMatch(STACK);

  const node = { ...memoryNode, kubelet: { ...memoryNode.kubelet, address: "127.0.0.1", port: server.port } };
  const busyKubelet = await start({ health: { port: 0 }, nodes: [node] }, kubeconfig).ended;
  const told = expect.stringMatching(/nodes\[burst-0\]\.kubelet: listen EADDRINUSE.*; set another port/);
  expect(busyKubelet).toMatchObject({ status: 2, stderr: told });
  expect(busyKubelet.stderr).not.toMatch(STACK);
});

test("a backend that its host does not let start says what the host said, and is 2", async () => {
  await using server = await silentServer();
  const start = (more: object) => {
    const file = { apiVersion: "vmlet.dev/v1", kind: "BackendConfig", stateDir: join(dir, "state"), ...more };
    writeFileSync(join(dir, "token"), "secret");
    const given = { engine: { type: "process" }, tokenFile: join(dir, "token"), ...file };
    writeFileSync(join(dir, "backend.yaml"), JSON.stringify(given));
    return vmlet("backend", "--config", "backend.yaml");
  };
  const busy = await start({ listen: { address: "127.0.0.1", port: server.port } });
  const noFolder = await start({
    listen: { address: "127.0.0.1", port: 0 },
    stateDir: join(dir, "backend.yaml/state"),
  });
  expect([busy.stderr, noFolder.stderr]).toEqual([
    expect.stringContaining("backend.yaml: listen: listen EADDRINUSE"),
    expect.stringContaining("backend.yaml: stateDir: ENOTDIR: not a directory, mkdir"),
  ]);
  for (const { stderr, status } of [busy, noFolder]) {
    expect(stderr).not.toMatch(STACK);
    expect(status).toBe(2);
  }
});

test("an address of the backend that cannot be one is told with its field, and is 2", async () => {
  await using dev = await runDevCluster();
  const provider = { type: "http-vm", url: "https://" };
  const config = { health: { port: 0 }, nodes: [{ ...memoryNode, provider }] };
  const { status, stderr } = await start(config, dev.cluster.kubeconfig).ended;
  expect(stderr).toContain("provider.url: the backend's address https:// is no URL");
  expect(stderr).not.toMatch(STACK);
  expect(status).toBe(2);
});

test("a leadership that was lost is 1, and said", async () => {
  await using dev = await runDevCluster();
  const leaderElection = { enabled: true, retryPeriod: "100ms" };
  const agent = start({ health: { port: 0 }, leaderElection, nodes: [memoryNode] }, dev.cluster.kubeconfig);
  const path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
  const watch = await dev.api.watch(`${path}?watch=true`);
  await watch.nextChange(50_000);
  watch.close();
  const spec = { holderIdentity: "another", renewTime: "2026-01-01T00:00:00.000000Z" };
  await dev.api.request("PATCH", `${path}/vmlet`, { spec }, { "content-type": "application/merge-patch+json" });
  const { status, stderr } = await agent.ended;
  expect(stderr).toContain("vmlet: not leading any more");
  expect(stderr).not.toMatch(STACK);
  expect(status).toBe(1);
});

test("a Node of the same name that is somebody else's is left alone, is 2, and is found by check before", async () => {
  await using dev = await runDevCluster();
  const providerID = "aws:///eu-west-1a/i-1";
  const node = { apiVersion: "v1", kind: "Node", metadata: { name: "burst-0" }, spec: { providerID } };
  await dev.api.request("POST", "/api/v1/nodes", node);
  const run = await start({ health: { port: 0 }, nodes: [memoryNode] }, dev.cluster.kubeconfig).ended;
  const told = expect.stringContaining(`its providerID is ${providerID}, not vmlet://`);
  expect(run).toMatchObject({ status: 2, stderr: told });
  expect(run.stderr).not.toMatch(STACK);
  const { body } = await dev.api.request("GET", "/api/v1/nodes/burst-0");
  expect(body.status?.nodeInfo?.kubeletVersion ?? "").toBe("");

  chmodSync(join(dir, "kubeconfig"), 0o644);
  const checked = await vmlet("check", "--config", "run.yaml");
  expect(checked).toMatchObject({ status: 2, stdout: told });
  expect(checked.stdout).toContain("give this node another name");
  expect(checked.stdout).toContain(
    `${join(dir, "kubeconfig")} holds a secret, and every user of this host can read it`,
  );
});
