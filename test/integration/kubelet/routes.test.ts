import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { connect as connectTls } from "node:tls";
import { describe, expect, test } from "vitest";
import { DEFAULT_SESSION_LIMITS } from "../../../src/kubelet/sessions.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { ask, statusOf, type Credential } from "./client.ts";
import { startKubelet, testPod } from "./support.ts";

const SPDY = { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io" };
const EXEC = "/exec/default/p/main?command=true&output=1";

const METHODS = ["exec", "attach", "portForward"];
const unasked = () => Promise.reject(new Error("it was asked"));

describe("the kubelet API", () => {
  test("lists the node's pods as they are known now", async () => {
    await using kubelet = await startKubelet();
    const { headers, body } = await ask(kubelet, "/pods");
    const list = JSON.parse(body) as { items: { metadata: { name: string }; status: { phase: string } }[] };
    expect([headers["content-type"], list.items.map((pod) => [pod.metadata.name, pod.status.phase])]).toEqual([
      "application/json",
      [["p", "Running"]],
    ]);
  });

  test("lists as running pods only those of which a container runs and that stay", async () => {
    await using kubelet = await startKubelet();
    const waiting = { phase: "Pending", containerStatuses: [] } as never;
    kubelet.pods.set("default/waiting", { pod: testPod({ name: "waiting", status: waiting }), machineId: "m-2" });
    const leaving = {
      name: "leaving",
      namespace: "default",
      uid: "u-3",
      deletionTimestamp: "2026-01-01T00:00:00Z",
    } as never;
    kubelet.pods.set("default/leaving", { pod: testPod({ metadata: leaving }), machineId: "m-3" });
    const list = JSON.parse((await ask(kubelet, "/runningpods/")).body) as { items: { metadata: { name: string } }[] };
    expect(list.items.map((pod) => pod.metadata.name)).toEqual(["p"]);
  });

  test("shows its settings as a KubeletConfiguration", async () => {
    await using kubelet = await startKubelet();
    expect(JSON.parse((await ask(kubelet, "/configz")).body)).toEqual({
      kubeletconfig: { kind: "KubeletConfiguration", apiVersion: "kubelet.config.k8s.io/v1beta1", port: 10250 },
    });
  });

  test("says as text what runs and since when", async () => {
    await using kubelet = await startKubelet();
    const { status, body } = await ask(kubelet, "/statusz");
    expect(status).toBe(200);
    expect(body).toMatch(/^\nkubelet statusz\nWarning: .*\n\nStarted: \S+Z\nUp: \d+ s\nBinary version: 1\.2\.3\n/);
  });

  test.each(["*/*", "text/plain", "application/json;as=Other,text/*"])("says so to who accepts %s", async (accept) => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, "/statusz", { headers: { accept } })).body).toContain("kubelet statusz");
  });

  test("says what runs as a Statusz where a client names it", async () => {
    await using kubelet = await startKubelet();
    const accept = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    expect(JSON.parse((await ask(kubelet, "/statusz", { headers: { accept } })).body)).toEqual({
      kind: "Statusz",
      apiVersion: "config.k8s.io/v1beta1",
      metadata: { name: "kubelet" },
      startTime: expect.stringMatching(/Z$/) as string,
      uptimeSeconds: expect.any(Number) as number,
      goVersion: "",
      binaryVersion: "1.2.3",
      paths: ["/configz", "/healthz", "/metrics"],
    });
  });

  test("has no other form of it", async () => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, "/statusz", { headers: { accept: "application/json" } })).status).toBe(406);
  });

  test("answers health checks in the words of Kubernetes", async () => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, "/healthz")).body).toBe("ok");
    expect((await ask(kubelet, "/healthz/ping")).body).toBe("ok");
    expect((await ask(kubelet, "/healthz?verbose")).body).toBe("[+]ping ok\nhealthz check passed\n");
    expect((await ask(kubelet, "/healthz/missing")).status).toBe(404);
  });

  test.each(["/logs/?query=kubelet&tailLines=10", "/logs/", "/logs/syslog"])(
    "refuses %s by name: a node without a host has no logs of one",
    async (path) => {
      await using kubelet = await startKubelet();
      const { status, body } = await ask(kubelet, path);
      expect(status).toBe(405);
      expect(body).toMatch(/^logs endpoint is disabled\..*NodeLogQuery/);
    },
  );

  test("answers 404 to unknown paths and 405 to known ones with another method", async () => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, "/nothing")).status).toBe(404);
    expect((await ask(kubelet, "/pods", { method: "DELETE" })).status).toBe(405);
  });

  test("runs a command and answers its output, 500 when it fails", async () => {
    await using kubelet = await startKubelet();
    expect(await ask(kubelet, "/run/default/p/main?cmd=echo%20hi", { method: "POST" })).toMatchObject({
      status: 200,
      body: "hi\n",
    });
    expect((await ask(kubelet, "/run/default/p/uid-1/main?cmd=false", { method: "POST" })).status).toBe(500);
  });

  test("ends a command that it was asked to run when it writes without end, or when the client leaves", async () => {
    await using kubelet = await startKubelet();
    expect(await ask(kubelet, "/run/default/p/main?cmd=yes", { method: "POST" })).toMatchObject({
      status: 500,
      body: "the command wrote more than 16777216 bytes; use exec",
    });
    const over = () => must(kubelet.provider.openSessions === 0, "not yet");
    await waitFor({ what: "the first command is over" }, over);
    const leaving = new AbortController();
    const asking = ask(kubelet, "/run/default/p/main?cmd=sleep%201000", { method: "POST", signal: leaving.signal });
    await waitFor({ what: "the second command runs" }, () => must(kubelet.provider.openSessions === 1, "not yet"));
    leaving.abort();
    await expect(asking).rejects.toThrow("aborted");
    await waitFor({ what: "the second command is over" }, over);
  });

  test("waits for a command that it was asked to run longer than for a client that does not read", async () => {
    await using kubelet = await startKubelet({ limits: { responseIdleMs: 50 } });
    expect((await ask(kubelet, "/run/default/p/main?cmd=sleep%200.3", { method: "POST" })).status).toBe(200);
  });

  test.each([
    ["/exec/default/missing/main?command=ls&output=1", 404, "pod does not exist"],
    ["/exec/default/p/another-uid/main?command=ls&output=1", 404, "pod does not exist"],
    ["/exec/default/p/missing?command=ls&output=1", 500, 'container not found ("missing")'],
    ["/exec/default/p/main?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr"],
    ["/exec/default/p/main?output=1", 400, 'query parameter "command" is required'],
    ["/attach/default/p/missing?output=1", 500, 'container not found ("missing")'],
    ["/portForward/default/missing", 404, "pod does not exist"],
  ])("refuses %s before the upgrade with %i", async (path, status, message) => {
    await using kubelet = await startKubelet();
    expect(statusOf(await ask(kubelet, path, { method: "POST", headers: SPDY }))).toMatchObject({
      code: status,
      message,
    });
  });

  test("refuses an exec that is no upgrade", async () => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, EXEC, { method: "POST" })).status).toBe(400);
  });

  test("accepts both forms of the path, with and without the pod's UID", async () => {
    await using kubelet = await startKubelet();
    for (const path of [EXEC, "/exec/default/p/uid-1/main?command=true&output=1"]) {
      expect((await ask(kubelet, path, { method: "POST", headers: SPDY })).status).toBe(101);
    }
  });

  test.each([
    ["has no method for", {}, undefined],
    [
      "has a method for, and a backend that lacks it",
      Object.fromEntries(METHODS.map((name) => [name, unasked])),
      () => false,
    ],
  ])("says in a sentence what the provider %s", async (_why, methods, can) => {
    const provider = { name: "small", getLogs: () => [], ...methods } as unknown as Provider;
    await using kubelet = await startKubelet({ provider, can });
    for (const [path, what] of [
      [EXEC, "run commands in a container: it lacks capability exec"],
      ["/attach/default/p/main?output=1", "attach to a container: it lacks capability attach"],
      ["/portForward/default/p", "forward ports: it lacks capability port_forward"],
    ] as const) {
      const headers = { ...SPDY, "x-stream-protocol-version": "v4.channel.k8s.io, portforward.k8s.io" };
      expect(statusOf(await ask(kubelet, path, { method: "POST", headers }))).toMatchObject({
        code: 501,
        reason: "NotImplemented",
        message: `the backend small cannot ${what}`,
      });
    }
  });

  test.each([
    ["unsupported", 501, "NotImplemented", "cannot: red"],
    ["not_found", 404, "NotFound", "cannot: red"],
    ["unavailable", 503, "ServiceUnavailable", "the backend of node vm-1 is unavailable: cannot: red"],
    ["rate_limited", 429, "TooManyRequests", "cannot: red"],
    ["conflict", 409, "Conflict", "cannot: red"],
    ["unauthorized", 502, "BadGateway", "the backend of node vm-1 refused the agent's credentials"],
  ] as const)(
    "tells a provider's %s as a Status with its text and no control characters",
    async (code, status, reason, message) => {
      await using kubelet = await startKubelet();
      kubelet.provider.exec = () => Promise.reject(new ProviderError(code, "cannot: \u001b[31mred\u0007"));
      const answer = await ask(kubelet, EXEC, { method: "POST", headers: SPDY });
      expect(answer.headers["content-type"]).toBe("application/json");
      expect(statusOf(answer)).toEqual({
        ...{ kind: "Status", apiVersion: "v1", metadata: {}, status: "Failure" },
        ...{ message, reason, code: status },
      });
    },
  );

  test.each(["long", "\u20ac\ud83d\ude00", '"\\'])(
    "cuts a text of many %j, since kubectl reads no more than 1024 bytes of a refusal",
    async (text) => {
      await using kubelet = await startKubelet();
      kubelet.provider.exec = () => Promise.reject(new ProviderError("conflict", text.repeat(2000)));
      const answer = await ask(kubelet, EXEC, { method: "POST", headers: SPDY });
      const { message } = statusOf(answer);
      const bytes = Buffer.byteLength(answer.body);
      expect(bytes).toBeLessThanOrEqual(1024);
      expect(bytes).toBeGreaterThan(900);
      expect(message).toMatch(/…$/);
      expect(text.repeat(500)).toContain(message.slice(0, -2));
    },
  );

  test("tells in a Status who may not open a session, and who is too many", async () => {
    await using kubelet = await startKubelet({ limits: { sessions: { ...DEFAULT_SESSION_LIMITS, perNode: 0 } } });
    const open = async (as: Credential) => statusOf(await ask(kubelet, EXEC, { method: "POST", headers: SPDY, as }));
    expect(await open("certificate")).toMatchObject({ code: 429, details: { retryAfterSeconds: 5 } });
    kubelet.reviews.allows = () => false;
    expect(await open(kubelet.authority.issue({ commonName: "other" }, "clientAuth"))).toMatchObject({
      code: 403,
      reason: "Forbidden",
      message: "Forbidden (user=other, verb=create, resource=nodes, subresource(s)=[proxy])",
    });
  });

  test("tells nothing of the inside of a surprise", async () => {
    await using kubelet = await startKubelet();
    kubelet.provider.exec = () => Promise.reject(new TypeError("secret is undefined"));
    expect(statusOf(await ask(kubelet, EXEC, { method: "POST", headers: SPDY }))).toMatchObject({
      code: 500,
      message: "internal error",
    });
  });

  test("asks the provider for statistics once for all scrapers of a moment", async () => {
    await using kubelet = await startKubelet();
    for (const path of ["/metrics/resource", "/metrics/cadvisor", "/stats/summary"])
      expect((await ask(kubelet, path)).status).toBe(200);
    expect(kubelet.provider.statsCalls).toBe(1);
  });
});

describe("container logs", () => {
  const LOGS = "/containerLogs/default/p/main";

  test("come as they were written", async () => {
    await using kubelet = await startKubelet();
    for (const line of ["one", "", "three"]) kubelet.provider.log(line);
    expect(await ask(kubelet, LOGS)).toMatchObject({ status: 200, body: "one\n\nthree\n" });
  });

  test("are 200 and empty for a container that wrote nothing", async () => {
    await using kubelet = await startKubelet();
    expect(await ask(kubelet, LOGS)).toMatchObject({ status: 200, body: "" });
  });

  test.each([
    ["/containerLogs/default/missing/main", 404, 'pod "missing" does not exist'],
    ["/containerLogs/default/p/missing", 404, 'container "missing" not found in pod "p"'],
    [`${LOGS}?previous=true`, 400, 'previous terminated container "main" in pod "p" not found'],
    [`${LOGS}?tailLines=x`, 400, '{"message": "Unable to decode query."}'],
    [`${LOGS}?tailLines=-1`, 422, '{"message": "Invalid request."}'],
  ])("answer %s with %i", async (path, status, body) => {
    await using kubelet = await startKubelet();
    expect(await ask(kubelet, path)).toMatchObject({ status, body });
  });

  test("are whole for a time before time began, and for numbers as large as Kubernetes takes", async () => {
    await using kubelet = await startKubelet();
    kubelet.provider.log("all");
    const largest = "9223372036854775807";
    for (const query of [`sinceSeconds=${largest}`, `limitBytes=${largest}&tailLines=${largest}`])
      expect(await ask(kubelet, `${LOGS}?${query}`)).toMatchObject({ status: 200, body: "all\n" });
    expect((await ask(kubelet, `${LOGS}?limitBytes=9223372036854775808`)).status).toBe(400);
  });

  test("begin at once when a silent container is followed, and end with the container", async () => {
    await using kubelet = await startKubelet();
    const answer = await ask(kubelet, `${LOGS}?follow=true`, {
      onStart: () => {
        kubelet.provider.log("late");
        kubelet.provider.endLogs();
      },
    });
    expect(answer).toMatchObject({ status: 200, body: "late\n" });
  });

  test("end in a TLS record of their own: API servers lose what they read together with the end of a log", async () => {
    await using kubelet = await startKubelet();
    kubelet.provider.log("all");
    const records: string[] = [];
    const socket = connectTls({
      host: "127.0.0.1",
      port: kubelet.server.port,
      ca: kubelet.authority.cert,
      ...kubelet.client,
    });
    socket.on("data", (data) => void records.push(data.toString()));
    socket.write(`GET ${LOGS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
    await once(socket, "close");
    expect(records.at(-1)).toBe("0\r\n\r\n");
  });

  test("stop at the provider when the follower leaves", async () => {
    await using kubelet = await startKubelet();
    const cancelled = Promise.withResolvers<void>();
    kubelet.provider.getLogs = async function* (_id, _container, options) {
      options.signal.addEventListener("abort", () => cancelled.resolve(), { once: true });
      yield { at: new Date().toISOString(), stream: "stdout", partial: false, content: Buffer.from("x") };
      await cancelled.promise;
    };
    await ask(kubelet, `${LOGS}?follow=true`, { onStart: (response) => void response.destroy() }).catch(() => {});
    await cancelled.promise;
  });

  test("are no fault of ours when the follower leaves while they wait for him", async () => {
    const warnings: string[] = [];
    const logger = { ...silentLogger, warn: (_fields: object, message: string) => void warnings.push(message) };
    await using kubelet = await startKubelet({ logger });
    const over = Promise.withResolvers<void>();
    kubelet.provider.getLogs = async function* () {
      const line = { at: new Date().toISOString(), stream: "stdout" as const, partial: false };
      try {
        for (;;) yield { ...line, content: Buffer.alloc(1 << 20) };
      } finally {
        over.resolve();
      }
    };
    const leave = (response: IncomingMessage) => void response.pause().destroy();
    await ask(kubelet, LOGS, { onStart: leave }).catch(() => {});
    await over.promise;
    await kubelet.server.close(0);
    expect(warnings).toEqual([]);
  });

  test("tell a fault of the backend before the first line as an error", async () => {
    await using kubelet = await startKubelet();
    kubelet.provider.getLogs = () => {
      throw new ProviderError("unavailable", "backend is down");
    };
    expect(await ask(kubelet, LOGS)).toMatchObject({
      status: 503,
      body: "the backend of node vm-1 is unavailable: backend is down",
    });
  });

  test("break off when the backend fails in their middle", async () => {
    await using kubelet = await startKubelet();
    const begun = Promise.withResolvers<void>();
    kubelet.provider.getLogs = async function* () {
      yield { at: new Date().toISOString(), stream: "stdout", partial: false, content: Buffer.alloc(100_000) };
      await begun.promise;
      throw new ProviderError("unavailable", "backend is down");
    };
    await expect(ask(kubelet, LOGS, { onStart: () => begun.resolve() })).rejects.toThrow(/aborted|ECONNRESET/);
  });
});
