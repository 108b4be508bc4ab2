/** `vmlet dev` where others are: another one, a taken port, somebody else's Node, a terminal that is closed. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { spawn as spawnPty } from "@lydell/node-pty";
import { expect, onTestFinished, test, vi } from "vitest";
import { parse } from "yaml";
import { connect } from "../../e2e/fidelity/api.ts";
import { create, pod, podWhen, PODS } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 60_000, interval: 50 };
const PROCESSES = ["--engine", "process"];

function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** @param cwd where the flags' paths begin */
function dev(cwd: string, ...flags: string[]) {
  const child = spawn(process.execPath, [program, "dev", ...flags], { cwd });
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (chunk: Buffer) => (said += chunk.toString()));
  onTestFinished(() => void child.kill("SIGKILL"));
  const up = () => vi.waitFor(() => expect(said).toContain("In another terminal"), PATIENCE);
  return { child, ended: once(child, "exit"), said: () => said, up };
}

function apiOf(kubeconfig: string) {
  const { clusters, users } = parse(readFileSync(kubeconfig, "utf8"));
  const { server, "certificate-authority-data": ca } = clusters[0].cluster;
  const api = connect({ url: server, token: users[0].user.token, ca: Buffer.from(ca, "base64").toString() });
  onTestFinished(() => api.close());
  return api;
}

const sleeper = { restartPolicy: "Never", containers: [{ name: "a", image: "none", command: ["sleep", "600"] }] };

/** A program of another sort that has the port, unless one has it already. */
async function take(port: number): Promise<number> {
  const server = createServer().on("error", () => {});
  server.listen(port, "127.0.0.1");
  await Promise.race([once(server, "listening"), once(server, "error")]);
  onTestFinished(() => void server.close());
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : port;
}

test("a second one in the same folder is refused in one line, and the first one's pods run on and begin", async () => {
  const dir = folder();
  const first = dev(dir, "--port", "0", ...PROCESSES);
  await first.up();
  const second = dev(dir, "--port", "0", ...PROCESSES);
  expect(await second.ended).toEqual([2, null]);
  expect(second.said()).toMatch(/^--state-dir: another vmlet dev uses .*--state-dir FOLDER.*\n$/);
  const api = apiOf(join(dir, ".vmlet/kubeconfig"));
  await create(api, PODS, pod("p", sleeper));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  first.child.kill("SIGINT");
  expect(await first.ended).toEqual([0, null]);
  expect(readdirSync(join(dir, ".vmlet"))).toEqual(["kubeconfig"]);
  expect(first.said()).toContain("The cluster is gone, and all that was in it.");
}, 120_000);

test("the demo runs beside a cluster that is up", async () => {
  const dir = folder();
  const first = dev(dir, "--port", "0", ...PROCESSES);
  await first.up();
  const demo = dev(dir, "--demo");
  expect(await demo.ended, demo.said()).toEqual([0, null]);
  expect(first.child.exitCode).toBeNull();
  first.child.kill("SIGINT");
  expect(await first.ended).toEqual([0, null]);
}, 180_000);

test("where the usual port is taken, another one is, which is told", async () => {
  await take(6443);
  const dir = folder();
  const { child, ended, said, up } = dev(dir, ...PROCESSES);
  await up();
  const [, url] = /Port 6443 is taken by another program, so the API server is at (\S+);/.exec(said()) ?? [];
  const [{ cluster }] = parse(readFileSync(join(dir, ".vmlet/kubeconfig"), "utf8")).clusters;
  expect(cluster.server).toBe(url);
  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
}, 120_000);

test("a port that was asked for and is taken is refused, with the cure", async () => {
  const port = await take(0);
  const { ended, said } = dev(folder(), "--port", String(port), ...PROCESSES);
  expect(await ended).toEqual([2, null]);
  expect(said()).toBe(
    `--port: port ${port} of 127.0.0.1 is taken by another program; without --port the next free one is taken\n`,
  );
});

test("a terminal that is closed ends it, and its machines", async () => {
  const dir = folder();
  const terminal = spawnPty(process.execPath, [program, "dev", "--port", "0", ...PROCESSES], { cwd: dir });
  let said = "";
  terminal.onData((data) => (said += data));
  const ended = new Promise((resolve) => terminal.onExit(resolve));
  await vi.waitFor(() => expect(said).toContain("Ctrl-C stops everything."), PATIENCE);
  const api = apiOf(join(dir, ".vmlet/kubeconfig"));
  await create(api, PODS, pod("p", sleeper));
  await podWhen(api, "p", ({ status }) => status?.phase === "Running");
  expect(readdirSync(join(dir, ".vmlet/backend/machines"))).toHaveLength(1);
  // What the kernel sends when the window goes.
  terminal.kill("SIGHUP");
  await ended;
  expect(readdirSync(join(dir, ".vmlet"))).toEqual(["kubeconfig"]);
}, 120_000);

test("a Node of somebody else is refused before anything is said to be up; another name joins", async () => {
  const dir = folder();
  const first = dev(dir, "--port", "0", ...PROCESSES);
  await first.up();
  const kubeconfig = join(dir, ".vmlet/kubeconfig");
  const joining = ["--kubeconfig", kubeconfig, "--state-dir", folder(), ...PROCESSES];
  const second = dev(dir, ...joining);
  expect(await second.ended).toEqual([2, null]);
  expect(second.said()).not.toContain("joined");
  // The Node and its lease are looked at by two who do not wait for each other.
  expect(second.said()).toMatch(
    /--node-name: (?:an agent with backend .+ answers for this Node, .+|a Node of this name exists and is not this agent's: .+); give this node another name/,
  );
  const third = dev(dir, ...joining, "--node-name", "mine");
  await third.up();
  expect(third.said()).toContain("The virtual node has joined the cluster.");
  const nodes = (await apiOf(kubeconfig).request("GET", "/api/v1/nodes")).body.items;
  expect(nodes.map(({ metadata }: { metadata: { name: string } }) => metadata.name)).toEqual(["mine", "vmlet-dev"]);
  third.child.kill("SIGINT");
  expect(await third.ended).toEqual([0, null]);
  expect(third.said()).toContain("kubectl delete node mine removes it");
}, 120_000);

test.each([
  ["--node-address", "foo", "it must be an IP address."],
  ["--node-name", "Not_A_Name", "it must be a DNS-1123 name"],
])("%s %s is refused by its flag", async (flag, value, text) => {
  const { ended, said } = dev(folder(), flag, value);
  expect(await ended).toEqual([2, null]);
  expect(said()).toContain(`option '${flag}`);
  expect(said()).toContain(text);
});

test("a folder that cannot be made is refused by its flag", async () => {
  const { ended, said } = dev(folder(), "--state-dir", "/proc/x/y");
  expect(await ended).toEqual([2, null]);
  expect(said()).toMatch(/^--state-dir: ENOENT/);
});

test("the address that it prints has the agent's figures", async () => {
  const { child, ended, said, up } = dev(folder(), "--engine", "memory", "--port", "0");
  await up();
  const [, url = ""] = /for Prometheus: (\S+)/.exec(said()) ?? [];
  expect(await (await fetch(url)).text()).toContain("vmlet_build_info{");
  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
}, 120_000);

test("what it prints can be typed wherever one is", async () => {
  const dir = folder();
  const { child, ended, said, up } = dev(dir, "--engine", "memory", "--port", "0");
  await up();
  const files = [...said().matchAll(/kubectl apply -f (\S+)/g)].map(([, file]) => join(dir, file!));
  expect(files).toHaveLength(2);
  for (const file of files) expect(readFileSync(file, "utf8")).toContain("kind: ");
  child.kill("SIGINT");
  expect(await ended).toEqual([0, null]);
}, 120_000);
