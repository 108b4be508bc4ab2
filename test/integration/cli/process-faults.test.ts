/** A process that outlives its surroundings: what a provider module forgets to catch ends neither it nor its nodes. */
import { execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { runDevCluster } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
/** On a host that has much else to do, an agent needs a while to start. */
const PATIENCE = { timeout: 60_000 };
let dir: string;
const open: (() => unknown)[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-faults-"));
});
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
  rmSync(dir, { recursive: true });
});

/** An agent whose provider is a module that runs `source` when it is made. Resolves when its node is ready. */
async function start(source: string, options: { port?: number; stderr?: number } = {}) {
  const dev = await runDevCluster();
  open.push(() => dev[Symbol.asyncDispose]());
  writeFileSync(
    join(dir, "provider.mjs"),
    `export const createProvider = () => {
      ${source}
      return {
        getInfo: async () => ({ name: "careless", version: "1", capabilities: [] }),
        getPods: async () => ({ items: [], revision: 1 }),
        close: async () => { throw new Error("cannot be closed"); },
      };
    };`,
  );
  const write = (name: string, content: object) => {
    writeFileSync(join(dir, name), JSON.stringify(content));
    chmodSync(join(dir, name), 0o600);
  };
  write("kubeconfig", dev.cluster.kubeconfig);
  write("run.yaml", {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    kubeconfig: "kubeconfig",
    logLevel: "info",
    health: { port: options.port ?? 0 },
    nodes: [
      {
        name: "burst-0",
        provider: { type: "module", module: "./provider.mjs" },
        kubelet: { port: 0, certificate: "self-signed" },
      },
    ],
  });
  const child = spawn(process.execPath, [program, "run", "--config", "run.yaml"], {
    cwd: dir,
    stdio: ["ignore", "ignore", options.stderr ?? "pipe"],
  });
  open.push(() => child.kill("SIGKILL"));
  let log = "";
  child.stderr?.on("data", (chunk) => (log += chunk));
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
  const port = async () => {
    await expect.poll(() => /"healthPort":(\d+)/.exec(log)?.[1], PATIENCE).toBeDefined();
    return Number(/"healthPort":(\d+)/.exec(log)![1]);
  };
  const metric = async (name: string) => {
    const text = await (await fetch(`http://127.0.0.1:${await port()}/metrics`)).text();
    return Number(
      text
        .split("\n")
        .find((line) => line.startsWith(name))
        ?.split(" ")[1] ?? 0,
    );
  };
  return { child, ended, port, metric, api: dev.api, log: () => log };
}

test("a promise that a provider module forgot, and what its callbacks throw, are counted and logged; the agent goes on", async () => {
  const agent = await start(`
    setInterval(() => { Promise.reject(new Error("forgotten")); }, 20);
    setInterval(() => { throw new Error("in a callback"); }, 20);`);
  for (const kind of ["rejection", "exception"])
    await expect
      .poll(() => agent.metric(`vmlet_unhandled_errors_total{kind="${kind}"}`), { timeout: 20_000 })
      .toBeGreaterThan(5);
  const health = await fetch(`http://127.0.0.1:${await agent.port()}/livez`);
  expect(health.status).toBe(200);
  expect(agent.log()).toContain("the process goes on");
  agent.child.kill("SIGTERM");
  expect(await agent.ended).toBe(0);
});

test("an agent opens no debugger when it is sent the signal at which Node.js would", async () => {
  const agent = await start("");
  await agent.port();
  agent.child.kill("SIGUSR1");
  await expect.poll(agent.log).toContain("SIGUSR1 is ignored");
  expect(agent.log()).not.toContain("Debugger listening");
});

test("an agent whose event loop stood still says so to the probe that waited, and is alive for the next; its lease goes on", async () => {
  const agent = await start(`
    process.on("SIGUSR2", () => { for (const end = performance.now() + 5_500; performance.now() < end; ); });`);
  const health = `http://127.0.0.1:${await agent.port()}`;
  // As a kubelet: one that is kept may be closed for its idleness before the request on it is read.
  const once = { headers: { connection: "close" } };
  const probe = async () => {
    const response = await fetch(`${health}/livez`, once);
    return { status: response.status, text: await response.text() };
  };
  const renewTime = async () => {
    const path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/burst-0";
    const { body } = await agent.api.request("GET", path);
    return (body.spec?.renewTime ?? "") as string;
  };
  await expect.poll(async () => (await fetch(`${health}/readyz`, once)).status, PATIENCE).toBe(200);
  await expect.poll(renewTime, PATIENCE).not.toBe("");
  const before = await renewTime();
  agent.child.kill("SIGUSR2");
  let stalled = await probe();
  await expect.poll(async () => (stalled.status === 500 ? 500 : (stalled = await probe()).status), PATIENCE).toBe(500);
  expect(stalled.text).toMatch(/event-loop failed: the event loop stood still for \d{4,} ms/);
  // Each look at either figure begins its measure again.
  let worst = 0;
  await expect
    .poll(async () => (worst = Math.max(worst, await agent.metric("nodejs_eventloop_lag_max_seconds"))), PATIENCE)
    .toBeGreaterThan(5);
  await expect.poll(probe, PATIENCE).toEqual({ status: 200, text: "ok" });
  await expect.poll(renewTime, PATIENCE).not.toBe(before);
}, 180_000);

test("a standstill is told though the probe was read in the same turn of the event loop", async () => {
  const agent = await start(`
    const { Server } = process.getBuiltinModule("node:http");
    const { emit } = Server.prototype;
    Server.prototype.emit = function (event, request, ...more) {
      if (event === "request" && request.url === "/livez")
        for (const end = performance.now() + 5_500; performance.now() < end; );
      return emit.call(this, event, request, ...more);
    };`);
  const response = await fetch(`http://127.0.0.1:${await agent.port()}/livez`);
  expect(await response.text()).toContain("event-loop failed");
  expect(response.status).toBe(500);
}, 180_000);

test("an agent whose standard error nobody reads goes on, and says what it had to say when somebody does", async () => {
  const path = join(dir, "stderr");
  execFileSync("mkfifo", [path]);
  const pipe = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  open.push(() => closeSync(pipe));
  expect(() => {
    for (;;) writeSync(pipe, "x".repeat(1000));
  }).toThrow("EAGAIN");
  const port = await freePort();
  await start("", { port, stderr: pipe });
  const livez = () =>
    fetch(`http://127.0.0.1:${port}/livez`).then(
      ({ status }) => status,
      () => 0,
    );
  await expect.poll(livez, PATIENCE).toBe(200);
  const buffer = Buffer.alloc(1 << 20);
  let said = "";
  await expect
    .poll(() => {
      try {
        said += buffer.subarray(0, readSync(pipe, buffer)).toString();
      } catch {
        // Nothing there yet.
      }
      return said;
    })
    .toContain("Agent starts");
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
