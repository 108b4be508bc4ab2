/** Each exec, attach, port-forward and run leaves one line, whatever becomes of it. */
import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import type { KubeletServerOptions } from "../../../src/kubelet/options.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { ask, type Credential } from "./client.ts";
import { startKubelet, type TestKubelet } from "./support.ts";

const SPDY = {
  connection: "Upgrade",
  upgrade: "SPDY/3.1",
  "x-stream-protocol-version": "v4.channel.k8s.io, portforward.k8s.io",
};
const SESSIONS = [
  ["exec", "POST", "/exec/default/p/main?command=sh&command=-c&command=secret&output=1"],
  ["exec", "GET", "/exec/default/p/uid-1/main?command=sh&command=-c&command=secret&output=1"],
  ["attach", "POST", "/attach/default/p/main?output=1"],
  ["port-forward", "POST", "/portForward/default/p"],
  ["run", "POST", "/run/default/p/main?cmd=sh%20-c%20secret"],
] as const;

type Line = Record<string, unknown>;

async function startAudited(overrides: Partial<KubeletServerOptions> = {}): Promise<TestKubelet & { lines: Line[] }> {
  const lines: Line[] = [];
  const info = (fields: object) => void ("audit" in fields && lines.push(fields));
  const logger = { ...silentLogger, info, child: () => logger };
  return Object.assign(await startKubelet({ logger, ...overrides }), { lines });
}

/** The one line that there must be. */
async function theLine({ lines }: { lines: Line[] }): Promise<Line> {
  await waitFor({ what: "a line of the audit" }, () => must(lines.length > 0, "none yet"));
  expect(lines).toHaveLength(1);
  return lines[0]!;
}

/** Runs a session over a WebSocket to its end. */
async function session(kubelet: TestKubelet, path: string): Promise<void> {
  const socket = new WebSocket(`${kubelet.url.replace("https", "wss")}${path}`, ["v5.channel.k8s.io"], {
    ...kubelet.client,
    ca: kubelet.authority.cert,
  });
  socket.on("error", () => {});
  await once(socket, "close");
}

describe("the audit of the kubelet API says", () => {
  test("of an exec who ran what where from which address, how it ended and how long it took", async () => {
    await using kubelet = await startAudited();
    await session(kubelet, "/exec/default/p/main?command=sh&command=-c&command=exit%203&output=1");
    expect(await theLine(kubelet)).toEqual({
      audit: "exec",
      result: "ok",
      user: "tester",
      groups: ["test:admins", "system:authenticated"],
      source: expect.stringMatching(/^127\.0\.0\.1 \d+$/),
      namespace: "default",
      pod: "p",
      podUid: "uid-1",
      container: "main",
      command: "sh",
      commandWords: 3,
      tty: false,
      stdin: false,
      exitCode: 3,
      durationMs: expect.any(Number),
    });
  });

  test("all words of a command when that is wanted", async () => {
    await using kubelet = await startAudited({ auditCommands: "full" });
    await session(kubelet, "/exec/default/p/main?command=echo&command=two%20words&output=1");
    expect(await theLine(kubelet)).toMatchObject({ command: ["echo", "two words"] });
  });

  test("of a run its exit code, and whom the API server ran it for", async () => {
    await using kubelet = await startAudited();
    const headers = { "x-forwarded-for": "10.1.2.3" };
    await ask(kubelet, "/run/default/p/main?cmd=false", { method: "POST", headers });
    expect(await theLine(kubelet)).toMatchObject({
      ...{ audit: "run", result: "ok", command: "false", exitCode: 1, forwardedFor: "10.1.2.3" },
    });
  });

  test("of a port-forward its ports", async () => {
    await using kubelet = await startAudited();
    const server = createServer((socket) => void socket.end("x"));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const socket = new WebSocket(`${kubelet.url.replace("https", "wss")}/portForward/default/p?port=${port}`, {
      ...kubelet.client,
      ca: kubelet.authority.cert,
    });
    await once(socket, "close");
    server.close();
    expect(await theLine(kubelet)).toMatchObject({
      audit: "port-forward",
      result: "ok",
      podUid: "uid-1",
      ports: [port],
    });
  });

  test("of a client that left that it did", async () => {
    await using kubelet = await startAudited();
    const socket = new WebSocket(
      `${kubelet.url.replace("https", "wss")}/exec/default/p/main?command=sleep&command=1000&output=1`,
      ["v5.channel.k8s.io"],
      { ...kubelet.client, ca: kubelet.authority.cert },
    );
    await once(socket, "open");
    socket.terminate();
    expect(await theLine(kubelet)).toMatchObject({ result: "failed", reason: "the client closed the connection" });
  });

  test.each([
    ["/pods", "GET"],
    ["/containerLogs/default/p/main", "GET"],
    ["/exec/default/p", "POST"],
    ["/nowhere", "GET"],
  ])("nothing of %s", async (path, method) => {
    await using kubelet = await startAudited();
    await ask(kubelet, path, { method });
    expect(kubelet.lines).toEqual([]);
  });
});

describe.each(SESSIONS)("of a refused %s (%s %s) there is one line", (action, method, path) => {
  const refuse = async (kubelet: TestKubelet & { lines: Line[] }, as: Credential = "certificate") => {
    await ask(kubelet, path, { method, as, headers: action === "run" ? {} : SPDY }).catch(() => {});
    const line = await theLine(kubelet);
    expect(JSON.stringify(line)).not.toContain("secret");
    return line;
  };
  const common = { audit: action, namespace: "default", pod: "p", durationMs: expect.any(Number) };

  test("for who shows no credentials", async () => {
    await using kubelet = await startAudited();
    const line = await refuse(kubelet, "none");
    expect(line).toMatchObject({ ...common, result: "refused", status: 401, reason: "Unauthorized" });
    expect(line).not.toHaveProperty("user");
  });

  test("for who may not, with the name", async () => {
    await using kubelet = await startAudited();
    kubelet.reviews.allows = () => false;
    expect(await refuse(kubelet)).toMatchObject({ ...common, result: "refused", status: 403, user: "tester" });
  });

  // A port-forward is granted before anything is asked of the backend.
  test.runIf(action !== "port-forward")("for what the backend refuses", async () => {
    await using kubelet = await startAudited();
    const down = () => Promise.reject(new ProviderError("unavailable", "down\n\u001b[31m"));
    Object.assign(kubelet.provider, { exec: down, attach: down });
    expect(await refuse(kubelet)).toMatchObject({
      ...common,
      result: "refused",
      status: 503,
      reason: "the backend of node vm-1 is unavailable: down\ufffd",
    });
  });

  test("for a pod that there is not", async () => {
    await using kubelet = await startAudited();
    kubelet.pods.clear();
    expect(await refuse(kubelet)).toMatchObject({ ...common, result: "refused", status: 404, user: "tester" });
  });
});
