/** Ports and folders that `run` and `backend` would fail on, found by the checks before. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer, type AddressInfo, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { checkBackendHost } from "../../../src/cli/check-backend-host.ts";
import { checkHost } from "../../../src/cli/check-host.ts";
import { Report } from "../../../src/cli/report.ts";
import { parseConfig } from "../../../src/config/load.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

async function portOf(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => new Promise((resolve) => server.close(resolve)));
  return (server.address() as AddressInfo).port;
}

function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-check-"));
  cleanups.push(() => rmSync(dir, { recursive: true }));
  return dir;
}

async function agentFindings(ports: { health: number; kubelet: number; address?: string }) {
  const { health, kubelet, address = "127.0.0.1" } = ports;
  const node = { name: "a", provider: { type: "memory" }, kubelet: { address, port: kubelet } };
  const file = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", health: { port: health }, nodes: [node] };
  const report = new Report({}, () => {});
  await checkHost(parseConfig(JSON.stringify(file), "vmlet.yaml"), report);
  return report.findings;
}

test("ports that are free are said to be", async () => {
  expect(await agentFindings({ health: 0, kubelet: 0 })).not.toContainEqual(
    expect.objectContaining({ level: "fault" }),
  );
});

test("a port that another program has is told by field, with a cure", async () => {
  const port = await portOf(createServer((socket) => socket.destroy()));
  const fault = (field: string) =>
    expect.objectContaining({
      level: "fault",
      text: `${field}: port ${port} of 127.0.0.1 is taken by another program`,
      cure: expect.stringContaining(`set ${field} to another`),
    });
  expect(await agentFindings({ health: 0, kubelet: port })).toContainEqual(fault("nodes[a].kubelet.port"));
  expect(await agentFindings({ health: port, kubelet: 0 })).toContainEqual(fault("health.port"));
});

test("an address that this host does not have is told", async () => {
  expect(await agentFindings({ health: 0, kubelet: 10_250, address: "192.0.2.1" })).toContainEqual(
    expect.objectContaining({ level: "fault", text: "nodes[a].kubelet.port: 192.0.2.1 is no address of this host" }),
  );
});

test("ports that a running agent has are no fault", async () => {
  const metrics = createHttpServer((_request, response) => response.end("# x\nvmlet_build_info 1\n"));
  const [health, kubelet] = [await portOf(metrics), await portOf(createServer())];
  const findings = await agentFindings({ health, kubelet });
  expect(findings.filter(({ level }) => level === "fault")).toEqual([]);
  expect(findings).toContainEqual(expect.objectContaining({ text: "an agent runs here already, and has these ports" }));
});

async function backendFaults(file: object): Promise<string[]> {
  const head = { apiVersion: "vmlet.dev/v1", kind: "BackendConfig" };
  const report = new Report({}, () => {});
  await checkBackendHost(parseBackendConfig(JSON.stringify({ ...head, ...file }), "backend.yaml"), report);
  return report.findings.filter(({ level }) => level === "fault").map(({ text }) => text);
}

test("a backend's host that has what its configuration names has no fault", async () => {
  const dir = folder();
  writeFileSync(join(dir, "token"), "t");
  mkdirSync(join(dir, "run"));
  const tokenFile = join(dir, "token");
  expect(await backendFaults({ stateDir: join(dir, "a/b"), listen: { port: 0 }, tokenFile })).toEqual([]);
  expect(await backendFaults({ stateDir: dir, listen: { socket: join(dir, "run/x.sock") } })).toEqual([]);
});

test.each([
  [{ tokenFile: "/none/token" }, "tokenFile: cannot be read"],
  [{ clients: [{ name: "a", tokenFile: "/dev/null" }] }, "clients[0].tokenFile: /dev/null is empty"],
  [{ tls: { certFile: "/none/cert", keyFile: "/dev/null" } }, "tls.certFile: cannot be read"],
  [{ tls: { certFile: "/dev/null", keyFile: "/dev/null" } }, "tls.certFile, keyFile: /dev/null holds no certificate"],
  [{ stateDir: "/dev/null/state" }, "stateDir: /dev/null is not a folder"],
  [{ listen: { socket: "/none/x.sock" } }, "listen.socket: its folder is not there"],
  [{ listen: { address: "192.0.2.1", port: 1 } }, "listen.port: 192.0.2.1 is no address of this host"],
])("a backend's host is told of %j", async (wrong, fault) => {
  const dir = folder();
  writeFileSync(join(dir, "token"), "t");
  const right = { stateDir: dir, listen: { port: 0 }, tokenFile: join(dir, "token") };
  expect(await backendFaults({ ...right, ...wrong })).toEqual([expect.stringContaining(fault)]);
});
