/** Each change of a machine, and each session in one, leaves one line at the Machine API, whatever becomes of it. */
import { once } from "node:events";
import { connect } from "node:net";
import { PassThrough } from "node:stream";
import { afterEach, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { MachineApiServer, type MachineApiServerOptions } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { silentLogger, type Logger } from "../../../src/telemetry/logger.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

type Line = Record<string, unknown>;

const labels = ownerLabels("cluster-a", "n-0");
const owner = { cluster: labels["vmlet.dev/cluster"], node: "n-0" };
const spec: MachineSpec = { labels, restart_policy: "never", containers: [{ name: "c", image: "i" }] };
const signal = new AbortController().signal;

async function setup(options: Partial<MachineApiServerOptions> = {}) {
  const lines: Line[] = [];
  const info = (fields: object) => void ("audit" in fields && lines.push(fields));
  const logger: Logger = { ...silentLogger, info };
  const memory = new MemoryProvider();
  const auth = { clients: [{ name: "agent-a", bearerTokens: () => ["good"] }] };
  const server = new MachineApiServer({ provider: memory, logger, auth, ...options });
  const { url, port } = await server.listen({ host: "127.0.0.1", port: 0 });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
  );
  await memory.createPod("m", spec, { signal });
  const call = async (method: string, path: string, body?: unknown, token = "good") =>
    fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json", "x-request-id": "r-1" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  const open = (path: string, token = "good") => {
    const socket = new WebSocket(`${url.replace("http", "ws")}${path}`, ["v5.channel.k8s.io"], {
      headers: { authorization: `Bearer ${token}`, "x-request-id": "r-1" },
    });
    socket.on("error", () => {});
    cleanups.push(() => Promise.resolve(socket.terminate()));
    return socket;
  };
  const theLine = async () => {
    await expect.poll(() => lines.length).toBe(1);
    return lines[0]!;
  };
  return { lines, theLine, memory, server, url, port, call, open };
}

const CHANGES: [action: string, method: string, path: string, body?: unknown][] = [
  ["create", "PUT", "/v1/machines/m", spec],
  ["update", "PATCH", "/v1/machines/m", { containers: [{ name: "c", image: "next" }] }],
  ["stop", "POST", "/v1/machines/m/stop", { grace_seconds: 0 }],
  ["delete", "DELETE", "/v1/machines/m?force=true"],
];
const SESSIONS: [action: string, path: string, more: object][] = [
  ["exec", "/v1/machines/m/containers/c/exec?command=sh&command=secret&stdout=true", { container: "c", command: "sh" }],
  ["attach", "/v1/machines/m/containers/c/attach?stdout=true", { container: "c" }],
  ["port-forward", "/v1/machines/m/ports/80", { port: "80" }],
];

describe("of each change of a machine there is one line", () => {
  test.each(CHANGES)("of %s: who changed whose machine, how it ended, and the request's id", async (...change) => {
    const [action, method, path, body] = change;
    const it = await setup();
    await it.call(method, path, body);
    expect(await it.theLine()).toEqual({
      audit: action,
      result: "ok",
      client: "agent-a",
      source: expect.stringMatching(/^127\.0\.0\.1 \d+$/),
      machine: "m",
      ...owner,
      requestId: "r-1",
      durationMs: expect.any(Number),
    });
  });

  test.each(CHANGES)("of %s that is refused for want of credentials", async (...change) => {
    const [action, method, path, body] = change;
    const it = await setup();
    await it.call(method, path, body, "bad");
    const line = await it.theLine();
    expect(line).toMatchObject({ audit: action, result: "refused", status: 401, machine: "m", requestId: "r-1" });
    expect(line).not.toHaveProperty("client");
  });

  test.each(CHANGES)("of %s that the provider refuses, or breaks at", async (...change) => {
    const [action, method, path, body] = change;
    for (const [code, result] of [
      ["invalid", "refused"],
      ["unavailable", "failed"],
    ] as const) {
      const it = await setup();
      const refuse = () => Promise.reject(new ProviderError(code, "no\nroom"));
      Object.assign(it.memory, { createPod: refuse, updatePod: refuse, stopPod: refuse, deletePod: refuse });
      await it.call(method, path, body);
      expect(await it.theLine()).toMatchObject({ audit: action, result, reason: "no\ufffdroom", ...owner });
    }
  });

  test("of a create that is refused, with the cluster and node that it was for", async () => {
    const it = await setup({
      auth: { clients: [{ name: "agent-a", bearerTokens: () => ["good"], nodes: ["n-1"] }] },
    });
    await it.call("PUT", "/v1/machines/next", spec);
    expect(await it.theLine()).toMatchObject({ audit: "create", result: "refused", status: 401, ...owner });
  });

  test.each(["/v1/./machines/m", "/v1/x/../machines/m", "/v1\\machines\\m"])(
    "however its path is spelt: %s",
    async (path) => {
      const it = await setup();
      const socket = connect(it.port, "127.0.0.1");
      socket.end(`DELETE ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nConnection: close\r\n\r\n`);
      expect((await socket.toArray()).join("")).toMatch(/^HTTP\/1\.1 204/);
      expect(await it.theLine()).toMatchObject({ audit: "delete", result: "ok", machine: "m" });
    },
  );

  test("and none of what only reads", async () => {
    const it = await setup();
    for (const path of ["/v1/info", "/v1/machines", "/v1/machines/m", "/v1/stats", "/v1/machines/m/containers/c/logs"])
      await it.call("GET", path);
    expect(it.lines).toEqual([]);
  });
});

describe.each(SESSIONS)("of each %s there is one line", (action, path, more) => {
  test("when it is over, not when the caller leaves a moment later", async () => {
    const it = await setup();
    const stdout = new PassThrough();
    const process = {
      stdin: null,
      stdout,
      stderr: null,
      resize() {},
      close() {},
      exit: Promise.resolve({ exitCode: 7 }),
    };
    Object.assign(it.memory, {
      exec: () => Promise.resolve(process),
      attach: () => Promise.resolve(process),
      portForward: () => Promise.resolve(stdout),
    });
    const socket = it.open(path);
    await once(socket, "open");
    stdout.end();
    if (action === "port-forward") socket.send(Buffer.alloc(0));
    await once(socket, "close");
    expect(await it.theLine()).toEqual({
      audit: action,
      result: "ok",
      client: "agent-a",
      source: expect.stringMatching(/^127\.0\.0\.1 \d+$/),
      machine: "m",
      ...owner,
      ...more,
      ...(action === "exec" && { commandWords: 2 }),
      ...(action !== "port-forward" && { exitCode: 7 }),
      requestId: "r-1",
      durationMs: expect.any(Number),
    });
  });

  test("when the caller leaves, although the provider says nothing more", async () => {
    const it = await setup();
    const never = { stdin: null, stdout: null, stderr: null, resize() {}, close() {}, exit: new Promise(() => {}) };
    Object.assign(it.memory, {
      exec: () => Promise.resolve(never),
      attach: () => Promise.resolve(never),
      portForward: () => Promise.resolve(new PassThrough()),
    });
    const socket = it.open(path);
    await once(socket, "open");
    socket.terminate();
    expect(await it.theLine()).toMatchObject({ audit: action, client: "agent-a", ...owner });
  });

  test("when it is refused, to a stranger and to a client", async () => {
    for (const token of ["bad", "good"]) {
      const it = await setup();
      const refuse = () => Promise.reject(new ProviderError("conflict", "not now"));
      Object.assign(it.memory, { exec: refuse, attach: refuse, portForward: refuse });
      const socket = it.open(path, token);
      await new Promise((resolve) => socket.once("close", resolve));
      expect(await it.theLine()).toMatchObject({
        ...{ audit: action, result: "refused", machine: "m", requestId: "r-1" },
        ...(token === "bad" ? { status: 401 } : { status: 409, client: "agent-a", reason: "not now", ...owner }),
      });
      expect(JSON.stringify(it.lines)).not.toContain("secret");
    }
  });

  test("when it is no upgrade", async () => {
    const it = await setup();
    await it.call("GET", path);
    expect(await it.theLine()).toMatchObject({ audit: action, result: "refused", status: 501 });
  });
});

test("all words of a command are there when that is wanted", async () => {
  const it = await setup({ auditCommands: "full" });
  await once(it.open("/v1/machines/m/containers/c/exec?command=echo&command=two%20words&stdout=true"), "close");
  expect(await it.theLine()).toMatchObject({ command: ["echo", "two words"] });
});
