/** The page's server on a small cluster: what it serves to whom, and what it passes on. */
import { request as httpRequest, type IncomingMessage } from "node:http";
import { KubeConfig } from "@kubernetes/client-node";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { UiServer } from "../../../src/ui/server.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";
import { create, node, pod, PODS } from "../devcluster/support.ts";
import { connect, type Api } from "../../e2e/fidelity/api.ts";

const TOKEN = "t".repeat(43);
const stop = new AbortController();
let cluster: DevCluster;
let api: Api;
let kube: KubeTransport;
let page: UiServer;
let running: Promise<void>;
let port: number;

beforeAll(async () => {
  cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, binder: false, controllers: false });
  api = connect({ url: cluster.url, token: cluster.token, ca: cluster.caBundle! });
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(cluster.kubeConfigYaml);
  kube = new KubeTransport({ kubeConfig, clock: systemClock, logger: silentLogger });
  page = new UiServer({
    ...{ kube, clock: systemClock, random: systemRandom, logger: silentLogger, port: 0, token: TOKEN },
    ...{ about: { server: cluster.url, context: "dev", version: "1" }, namespace: undefined },
  });
  await page.listen();
  port = Number(new URL(page.url).port);
  running = page.run(stop.signal);
  await create(api, "/api/v1/nodes", node("burst-0", { providerID: "vmlet://dev/burst-0" }));
});
afterAll(async () => {
  stop.abort(new Error("the tests are over"));
  await running;
  await kube.close();
  api.close();
  await cluster.close();
});

function ask(path: string, headers: Record<string, string> = {}, method = "GET"): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    httpRequest({ host: "127.0.0.1", port, path, method, headers: { host: `127.0.0.1:${port}`, ...headers } }, resolve)
      .on("error", reject)
      .end();
  });
}
const bearer = { authorization: `Bearer ${TOKEN}` };
async function text(reply: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of reply) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

/** Lines of the feed until one satisfies `wanted`. */
async function fed(wanted: (line: Record<string, unknown>) => boolean): Promise<Record<string, unknown>> {
  const reply = await ask("/api/feed", bearer);
  let rest = "";
  for await (const chunk of reply) {
    const lines = (rest + String(chunk)).split("\n");
    rest = lines.pop()!;
    const found = lines.map((line) => JSON.parse(line) as Record<string, unknown>).find(wanted);
    if (found === undefined) continue;
    reply.destroy();
    return found;
  }
  throw new Error("the feed has ended");
}

describe("the page's files", () => {
  test.each(["/", "/main.js", "/style.css", "/xterm.js", "/xterm.css", "/icon.svg"])("%s is served", async (path) => {
    const reply = await ask(path);
    expect(reply.statusCode).toBe(200);
    expect((await text(reply)).length).toBeGreaterThan(100);
  });

  test("run and show nothing but themselves", async () => {
    const { headers } = await ask("/");
    const policy = headers["content-security-policy"];
    expect(policy).toContain("default-src 'none'");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).toContain("require-trusted-types-for 'script'");
    expect(policy).not.toMatch(/unsafe|\*|data:/);
    expect(headers["access-control-allow-origin"]).toBeUndefined();
    expect(headers["set-cookie"]).toBeUndefined();
  });

  test.each(["/../server.ts", "/..%2fserver.ts", "/page/main.js", "/__proto__", "/constructor", "//etc/passwd"])(
    "%s is none of them",
    async (path) => {
      expect((await ask(path, bearer)).statusCode).toBe(404);
    },
  );
});

describe("what is asked of the cluster", () => {
  const paths = ["/api/feed", "/api/events?uid=a", "/api/log?namespace=a&pod=b&container=c", "/api/nothing"];

  test.each(paths)("%s needs the token", async (path) => {
    expect((await ask(path)).statusCode).toBe(401);
    expect((await ask(path, { authorization: "Bearer wrong" })).statusCode).toBe(401);
  });

  test.each(["/", ...paths])("%s is refused under another name, and to another page", async (path) => {
    expect((await ask(path, { ...bearer, host: `rebound.example:${port}` })).statusCode).toBe(403);
    expect((await ask(path, { ...bearer, origin: "https://evil.example" })).statusCode).toBe(403);
  });

  test("can only be read", async () => {
    expect((await ask("/api/feed", bearer, "POST")).statusCode).toBe(405);
  });

  test("tells nodes, pods and when it is complete", async () => {
    await create(api, PODS, pod("fed", { nodeName: "burst-0" }));
    expect(await fed(({ kind }) => kind === "nodes")).toMatchObject({ put: [{ name: "burst-0" }] });
    const isFed = ({ kind, put }: Record<string, unknown>) =>
      kind === "pods" && (put as { name: string }[]).some(({ name }) => name === "fed");
    await fed(isFed);
    await fed(({ kind }) => kind === "synced");
  });

  test("has the events of an object, and takes no selector for a UID", async () => {
    const { metadata } = await create(api, PODS, pod("told"));
    await create(api, "/api/v1/namespaces/default/events", {
      metadata: { name: "told.1" },
      involvedObject: { kind: "Pod", namespace: "default", name: "told", uid: metadata.uid },
      ...{ reason: "Testing", message: "<b>text</b>", type: "Normal", lastTimestamp: "2026-01-01T00:00:00Z" },
    });
    const events = JSON.parse(await text(await ask(`/api/events?namespace=default&uid=${metadata.uid}`, bearer)));
    expect(events).toEqual([expect.objectContaining({ reason: "Testing", message: "<b>text</b>", count: 1 })]);
    expect((await ask("/api/events?namespace=default&uid=a,involvedObject.kind!=Pod", bearer)).statusCode).toBe(400);
  });

  test("says what the cluster refuses, in its words", async () => {
    const reply = await ask("/api/log?namespace=default&pod=nobody&container=c", bearer);
    expect(reply.statusCode).toBe(404);
    expect(await text(reply)).toContain('pods "nobody" not found');
  });

  test.each(["..", "a/b", "a%2fb", "%2e%2e"])("has no log of a pod that is called %j", async (name) => {
    expect(
      (await ask(`/api/log?namespace=default&pod=${encodeURIComponent(name)}&container=c`, bearer)).statusCode,
    ).toBe(400);
  });
});

describe("a terminal", () => {
  const open = (protocols: string[], headers: Record<string, string> = {}) =>
    new WebSocket(`ws://127.0.0.1:${port}/api/terminal?namespace=default&pod=nobody&container=c`, protocols, {
      headers,
    });
  const refusal = (socket: WebSocket) =>
    new Promise((resolve) => {
      socket.on("error", () => undefined);
      socket.on("unexpected-response", (_request, reply) => resolve(reply.statusCode));
    });

  test("needs the token", async () => {
    expect(await refusal(open(["terminal.vmlet.dev", "token.vmlet.dev.wrong"]))).toBe(401);
    expect(await refusal(open(["terminal.vmlet.dev"]))).toBe(401);
  });

  test("is for no other page", async () => {
    const protocols = ["terminal.vmlet.dev", `token.vmlet.dev.${TOKEN}`];
    expect(await refusal(open(protocols, { origin: "https://evil.example" }))).toBe(403);
    expect(await refusal(open(protocols, { host: "rebound.example" }))).toBe(403);
  });

  test("that cannot be opened says why, and gives the token back to nobody", async () => {
    const socket = open(["terminal.vmlet.dev", `token.vmlet.dev.${TOKEN}`]);
    const message = await new Promise<Buffer>((resolve, reject) => {
      socket.on("message", (data) => resolve(data as Buffer));
      socket.on("error", reject);
    });
    expect(socket.protocol).toBe("terminal.vmlet.dev");
    expect(message[0]).toBe(3);
    expect(JSON.parse(message.subarray(1).toString())).toMatchObject({
      status: "Failure",
      message: expect.stringContaining('pods "nobody" not found'),
    });
    socket.terminate();
  });
});
