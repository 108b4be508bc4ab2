import { once } from "node:events";
import { connect as connectTcp } from "node:net";
import { connect } from "node:tls";
import { describe, expect, test } from "vitest";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { ask } from "./client.ts";
import { startKubelet, TestAuthority, TESTER } from "./support.ts";

const PATHS = [
  "/healthz",
  "/pods",
  "/runningpods/",
  "/metrics",
  "/metrics/resource",
  "/metrics/cadvisor",
  "/metrics/probes",
  "/stats/summary",
  "/configz",
  "/containerLogs/default/p/main",
  "/exec/default/p/main?command=ls&output=1",
  "/attach/default/p/main?output=1",
  "/portForward/default/p",
  "/run/default/p/main?cmd=ls",
  "/nothing/here",
];

const UPGRADE = { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io" };

describe("authentication of the kubelet API", () => {
  test("answers 401 with the same text on every path without credentials, and asks the API server nothing", async () => {
    await using kubelet = await startKubelet();
    for (const path of PATHS) {
      expect(await ask(kubelet, path, { as: "none" })).toMatchObject({ status: 401, body: "Unauthorized" });
    }
    expect(kubelet.reviews.reviews).toEqual([]);
  });

  test("with anonymousMetrics, serves the two paths that metrics are scraped from to anybody, and nothing else", async () => {
    await using kubelet = await startKubelet({ anonymousMetrics: true });
    const open = ["/metrics/resource", "/stats/summary"];
    for (const path of open) expect((await ask(kubelet, path, { as: "none" })).status).toBe(200);
    for (const path of PATHS.filter((each) => !open.includes(each))) {
      expect((await ask(kubelet, path, { as: "none" })).status).toBe(401);
    }
    expect((await ask(kubelet, "/stats/summary", { as: "none", method: "POST" })).status).toBe(401);
  });

  test("answers 401 to an upgrade without credentials and closes the connection", async () => {
    await using kubelet = await startKubelet();
    const answer = await ask(kubelet, "/exec/default/p/main?command=ls&output=1", {
      as: "none",
      method: "POST",
      headers: UPGRADE,
    });
    expect(answer).toMatchObject({ status: 401, body: "Unauthorized", headers: { connection: "close" } });
  });

  test("takes user and groups from a client certificate of the cluster's CA", async () => {
    await using kubelet = await startKubelet();
    await ask(kubelet, "/pods");
    expect(kubelet.reviews.reviews[0]!.spec).toMatchObject({
      user: "tester",
      groups: ["test:admins", "system:authenticated"],
    });
  });

  test("refuses certificates of another CA, of its own making, and without a client's usage", async () => {
    await using kubelet = await startKubelet();
    const other = new TestAuthority("test-ca").issue(TESTER, "clientAuth");
    const server = kubelet.authority.issue(TESTER, "serverAuth");
    for (const as of [other, server]) expect((await ask(kubelet, "/pods", { as })).status).toBe(401);
  });

  test("refuses certificates without a common name", async () => {
    await using kubelet = await startKubelet();
    const as = kubelet.authority.issue({ commonName: "" }, "clientAuth");
    expect((await ask(kubelet, "/pods", { as })).status).toBe(401);
  });

  test("refuses a certificate from the moment on that it ends, on connections from before, too", async () => {
    const clock = new VirtualClock(Date.now());
    await using kubelet = await startKubelet({ clock });
    const before = await ask(kubelet, "/pods");
    await clock.advance(2 * 86_400_000);
    expect([before.status, (await ask(kubelet, "/pods")).status]).toEqual([200, 401]);
  });

  test("follows a change of the client CA without a restart", async () => {
    await using kubelet = await startKubelet();
    const next = new TestAuthority("next-ca");
    kubelet.clientCa.set(next.cert);
    expect((await ask(kubelet, "/pods")).status).toBe(401);
    expect((await ask(kubelet, "/pods", { as: next.issue(TESTER, "clientAuth") })).status).toBe(200);
  });

  test("ends a handshake that began under the CA before", async () => {
    await using kubelet = await startKubelet();
    const socket = connectTcp(kubelet.server.port, "127.0.0.1").on("error", () => {});
    // The other side has it, too.
    expect((await ask(kubelet, "/pods")).status).toBe(200);
    kubelet.clientCa.set(new TestAuthority("next-ca").cert);
    await once(socket, "close");
  });

  test("ends with its response a connection that the CA before has let in", async () => {
    await using kubelet = await startKubelet();
    const socket = connect({
      port: kubelet.server.port,
      host: "127.0.0.1",
      ...kubelet.client,
      rejectUnauthorized: false,
    });
    socket.write("GET /containerLogs/default/p/main?follow=true HTTP/1.1\r\nHost: x\r\n\r\n");
    await once(socket, "data");
    kubelet.clientCa.set(new TestAuthority("next-ca").cert);
    kubelet.provider.endLogs();
    await once(socket, "close");
  });

  test("accepts no certificate at all while it has no client CA", async () => {
    await using kubelet = await startKubelet({
      clientCa: { current: () => undefined, onChange() {}, run: async () => {} },
    });
    expect((await ask(kubelet, "/pods")).status).toBe(401);
  });

  test("serves a new certificate without a restart", async () => {
    await using kubelet = await startKubelet();
    const next = new TestAuthority("other");
    kubelet.certificate.set(next.issue({ commonName: "vm-1" }, "serverAuth"));
    await expect(ask(kubelet, "/pods")).rejects.toThrow(/certificate/);
  });

  test("lets no session be resumed, in which a certificate would outlive its CA, before and after a new certificate", async () => {
    await using kubelet = await startKubelet();
    const ticket = async () => {
      const options = { port: kubelet.server.port, host: "127.0.0.1", ...kubelet.client, rejectUnauthorized: false };
      const socket = connect({ ...options, maxVersion: "TLSv1.2" });
      await once(socket, "secureConnect");
      const given = socket.getTLSTicket();
      socket.destroy();
      return given;
    };
    const before = await ticket();
    kubelet.certificate.set(kubelet.authority.issue({ commonName: "vm-1" }, "serverAuth"));
    expect([before, await ticket()]).toEqual([undefined, undefined]);
  });

  test("asks the API server about a token once in two minutes", async () => {
    const clock = new VirtualClock();
    await using kubelet = await startKubelet({ clock });
    const tokenReviews = () => kubelet.reviews.reviews.filter(({ kind }) => kind === "TokenReview").length;
    for (let i = 0; i < 3; i++) expect((await ask(kubelet, "/pods", { as: { token: "good" } })).status).toBe(200);
    const before = tokenReviews();
    await clock.advance(121_000);
    await ask(kubelet, "/pods", { as: { token: "good" } });
    expect([before, tokenReviews()]).toEqual([1, 2]);
  });

  test("takes a token from a WebSocket subprotocol, for browsers", async () => {
    await using kubelet = await startKubelet();
    const headers = {
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
      "sec-websocket-protocol": `base64url.bearer.authorization.k8s.io.${Buffer.from("good").toString("base64url")}, v4.channel.k8s.io`,
    };
    const answer = await ask(kubelet, "/exec/default/p/main?command=true&output=1", { as: "none", headers });
    expect(answer).toMatchObject({ status: 101, headers: { "sec-websocket-protocol": "v4.channel.k8s.io" } });
  });

  test("lets no web page in: neither cookies nor an origin are credentials, and no reply is for other origins", async () => {
    await using kubelet = await startKubelet();
    const page = { origin: "https://evil.example", cookie: "token=good; session=good" };
    const socket = {
      ...page,
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
      "sec-websocket-protocol": "v4.channel.k8s.io",
    };
    const asked = {
      ...page,
      "access-control-request-method": "POST",
      "access-control-request-headers": "authorization",
    };
    const EXEC = "/exec/default/p/main?command=true&output=1";
    const answers = [
      await ask(kubelet, EXEC, { as: "none", headers: socket }),
      await ask(kubelet, EXEC, { as: "none", headers: asked, method: "OPTIONS" }),
      await ask(kubelet, "/pods", { as: "none", headers: page }),
      await ask(kubelet, "/pods", { headers: page }),
      await ask(kubelet, "/pods", { headers: asked, method: "OPTIONS" }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([401, 401, 401, 200, 405]);
    const names = answers.flatMap(({ headers }) => Object.keys(headers));
    expect(names.filter((name) => name.startsWith("access-control-") || name === "set-cookie")).toEqual([]);
    expect(kubelet.provider.openSessions).toBe(0);
  });

  test("denies with 503 when the API server cannot be asked", async () => {
    await using kubelet = await startKubelet();
    kubelet.reviews.fault = new Error("connection refused");
    expect((await ask(kubelet, "/pods", { as: { token: "good" } })).status).toBe(503);
    expect((await ask(kubelet, "/pods")).status).toBe(503);
  });

  test("asks the API server about no more than ten bad tokens a second of one address", async () => {
    const clock = new VirtualClock();
    const metrics = unusedMetrics();
    await using kubelet = await startKubelet({ clock, metrics });
    const asking = Array.from({ length: 40 }, (_, i) => ask(kubelet, "/pods", { as: { token: `bad-${i}` } }));
    await waitFor({ what: "thirty of them to be held back" }, async () => {
      const { values } = await metrics.authnDecisions.get();
      must(values.find(({ labels }) => labels.result === "limited")?.value === 30, values);
    });
    await clock.advance(1_000);
    const answers = await Promise.all(asking);
    const count = (status: number) => answers.filter((answer) => answer.status === status).length;
    expect([count(401), count(429), kubelet.reviews.reviews.length]).toEqual([10, 30, 10]);
    expect((await ask(kubelet, "/pods", { as: { token: "good" }, localAddress: "127.0.0.2" })).status).toBe(200);
  });
});

describe("authorization of the kubelet API", () => {
  test.each([
    ["GET", "/healthz", "get", ["healthz", "proxy"]],
    ["GET", "/healthz/ping", "get", ["healthz", "proxy"]],
    ["GET", "/pods", "get", ["pods", "proxy"]],
    ["GET", "/runningpods/", "get", ["pods", "proxy"]],
    ["GET", "/configz", "get", ["configz", "proxy"]],
    ["GET", "/metrics", "get", ["metrics"]],
    ["GET", "/metrics/resource", "get", ["metrics"]],
    ["GET", "/metrics/cadvisor", "get", ["metrics"]],
    ["GET", "/metrics/probes", "get", ["metrics"]],
    ["GET", "/stats/summary", "get", ["stats"]],
    ["POST", "/stats/summary", "create", ["stats"]],
    ["GET", "/logs/", "get", ["log"]],
    ["POST", "/checkpoint/default/p/main", "create", ["checkpoint"]],
    ["GET", "/containerLogs/default/p/main", "get", ["proxy"]],
    ["GET", "/exec/default/p/main", "create", ["proxy"]],
    ["POST", "/exec/default/p/main", "create", ["proxy"]],
    ["GET", "/exec/default/p/uid-1/main", "create", ["proxy"]],
    ["GET", "/attach/default/p/main", "create", ["proxy"]],
    ["GET", "/portForward/default/p", "create", ["proxy"]],
    ["POST", "/run/default/p/main", "create", ["proxy"]],
    ["GET", "/debug/pprof/", "get", ["proxy"]],
    ["DELETE", "/anything", "delete", ["proxy"]],
  ])("asks for %s %s: %s of %j", async (method, path, verb, subresources) => {
    await using kubelet = await startKubelet();
    kubelet.reviews.allows = () => false;
    const answer = await ask(kubelet, path, { method });
    const asked = kubelet.reviews.reviews.map(({ spec }) => spec["resourceAttributes"]);
    expect(asked).toEqual(
      subresources.map((subresource) => ({ verb, version: "v1", resource: "nodes", subresource, name: "vm-1" })),
    );
    expect(answer).toMatchObject({
      status: 403,
      body: `Forbidden (user=tester, verb=${verb}, resource=nodes, subresource(s)=[${subresources.join(" ")}])\n`,
    });
  });

  test("refuses a WebSocket exec to whoever may only read nodes/proxy", async () => {
    await using kubelet = await startKubelet();
    kubelet.reviews.allows = ({ resourceAttributes }) => resourceAttributes["verb"] === "get";
    const headers = {
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    };
    const answer = await ask(kubelet, "/exec/default/p/main?command=ls&output=1", { headers });
    expect([answer.status, kubelet.provider.openSessions]).toEqual([403, 0]);
  });

  test("is satisfied by any one of the subresources", async () => {
    await using kubelet = await startKubelet();
    kubelet.reviews.allows = ({ resourceAttributes }) => resourceAttributes["subresource"] === "proxy";
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test("forbids before it looks at anything else of the request", async () => {
    await using kubelet = await startKubelet();
    kubelet.reviews.allows = () => false;
    expect((await ask(kubelet, "/containerLogs/default/missing/main?tailLines=nonsense")).status).toBe(403);
  });

  test("keeps a permission for five minutes and a refusal for thirty seconds", async () => {
    const clock = new VirtualClock();
    await using kubelet = await startKubelet({ clock });
    const reviews = async () => {
      await ask(kubelet, "/metrics/resource");
      return kubelet.reviews.reviews.length;
    };
    const counts = [await reviews(), await reviews()];
    await clock.advance(301_000);
    kubelet.reviews.allows = () => false;
    counts.push(await reviews(), await reviews());
    await clock.advance(31_000);
    counts.push(await reviews());
    expect(counts).toEqual([1, 1, 2, 2, 3]);
  });

  test("has nothing for debuggers: no profile, no flags, no inspector, whoever asks", async () => {
    await using kubelet = await startKubelet();
    const paths = [
      "/debug/pprof/",
      "/debug/pprof/heap",
      "/debug/flags/v",
      "/cri/exec/token",
      "/json/list",
      "/json/version",
      "/checkpoint/default/p/main",
    ];
    for (const path of paths)
      for (const method of ["GET", "PUT", "POST"])
        expect([path, (await ask(kubelet, path, { method })).status]).toEqual([path, 404]);
  });

  test("reads no meaning into paths that two parsers could read differently", async () => {
    await using kubelet = await startKubelet();
    const paths = [
      "//pods",
      "/pods/../metrics",
      "/containerLogs/default/p%2fx/main",
      "/pods/.",
      "/a%00b",
      "/pods;x",
      "http://127.0.0.1/pods",
    ];
    for (const path of paths) expect([path, (await ask(kubelet, path)).status]).toEqual([path, 400]);
  });
});
