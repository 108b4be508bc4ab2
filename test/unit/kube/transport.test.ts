import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { writeFilesVolume } from "../../../providers/local/bundle/volume-files.ts";
import { KubeTransport, type KubeTransportOptions } from "../../../src/kube/transport.ts";
import { KubeApiError, isConflict, isGone, isNotFound, saysNotFound } from "../../../src/kube/errors.ts";
import { guardedKube } from "../../../src/kube/guarded.ts";
import { NotLeaderError } from "../../../src/kube/leader-election.ts";
import { tokenReview } from "../../../src/kube/reviews.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock, type Clock } from "../../../src/util/clock.ts";
import { passTime } from "../../e2e/harness/wait.ts";
import { KubeServer, failure, json, type Handler } from "../../support/kube-server.ts";
import { caCert, clientCert, clientKey, serverCert, serverKey } from "../../support/tls.ts";

const b64 = (text: string) => Buffer.from(text).toString("base64");
const live = () => new AbortController().signal;

/** Real time, except that sleeping is noted and takes none. */
function noWait(): Clock & { slept: number[] } {
  const slept: number[] = [];
  return {
    ...systemClock,
    slept,
    sleep: async (ms) => {
      slept.push(ms);
    },
  };
}

const open: { close(): Promise<void> }[] = [];
let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "kube-transport-"));
});
afterEach(async () => {
  for (const thing of open.splice(0).reverse()) await thing.close();
  rmSync(folder, { recursive: true });
});

async function serve(handler?: Handler, tls?: object) {
  const server = await KubeServer.start(handler, tls);
  open.push({ close: () => server.stop() });
  return server;
}

function connect(
  server: KubeServer,
  options: Partial<KubeTransportOptions> & { user?: object; cluster?: object } = {},
) {
  const { user, cluster, ...rest } = options;
  const kube = new KubeTransport({
    kubeConfig: server.kubeConfig({ user, cluster }),
    clock: systemClock,
    logger: silentLogger,
    ...rest,
  });
  open.push({ close: () => kube.close() });
  return kube;
}

const failureOf = async (promise: Promise<unknown>): Promise<KubeApiError> => {
  const failure = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(failure).toBeInstanceOf(KubeApiError);
  return failure as KubeApiError;
};

const get = (path = "/api/v1/pods") => ({ method: "GET" as const, path, signal: live() });

describe("a request", () => {
  test("for the metadata of an object takes the whole as well from who knows no better", async () => {
    const server = await serve();
    await connect(server).request({ ...get(), metadataOnly: true });
    expect(server.received[0]!.headers.accept).toBe(
      "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    );
  });

  test("for the metadata of a collection's objects asks for those of a list", async () => {
    const server = await serve();
    await connect(server).request({ ...get(), method: "DELETE", metadataOnly: "list" });
    expect(server.received[0]!.headers.accept).toBe(
      "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
    );
  });

  test("carries query, body, content type, version and credentials", async () => {
    const server = await serve();
    const kube = connect(server, { user: { token: "secret" }, version: "9.9.9" });
    await kube.request({
      method: "PATCH",
      path: "/api/v1/nodes/a",
      query: { dryRun: "All", limit: 5, absent: undefined },
      body: { a: 1 },
      contentType: "application/merge-patch+json",
      signal: live(),
    });
    const [received] = server.received;
    expect(received).toMatchObject({ method: "PATCH", url: "/api/v1/nodes/a?dryRun=All&limit=5", body: '{"a":1}' });
    expect(received?.headers).toMatchObject({
      authorization: "Bearer secret",
      "content-type": "application/merge-patch+json",
      "user-agent": "vmlet/9.9.9",
    });
  });

  test("impersonates the user and every group when told to", async () => {
    const server = await serve();
    await connect(server, { impersonate: { user: "system:node:n", groups: ["system:nodes", "other"] } }).request(get());
    expect(server.received[0]?.headers).toMatchObject({
      "impersonate-user": "system:node:n",
      "impersonate-group": "system:nodes, other",
    });
  });

  test("drops managedFields of objects and of list items", async () => {
    const managedFields = [{ manager: "x" }];
    const server = await serve((_r, reply) =>
      json(reply, 200, { metadata: { managedFields }, items: [{ metadata: { name: "a", managedFields } }] }),
    );
    const reply = await connect(server).request(get());
    expect(reply).toEqual({ metadata: {}, items: [{ metadata: { name: "a" } }] });
  });

  test("reuses its connections", async () => {
    const server = await serve();
    const kube = connect(server);
    for (let i = 0; i < 20; i++) await kube.request(get());
    // A connection comes back to the pool a moment after its reply, so two may take turns.
    expect(server.connections).toBeLessThanOrEqual(2);
  });

  test("reuses its connections after deletes with preconditions", async () => {
    const server = await serve();
    const kube = connect(server);
    const body = { preconditions: { uid: "u" } };
    for (let i = 0; i < 20; i++) await kube.request({ ...get(), method: "DELETE", body });
    expect(server.connections).toBeLessThanOrEqual(2);
  });

  test("has a connection for the lease that calls cannot occupy", async () => {
    const waiting: (() => void)[] = [];
    const server = await serve((request, reply) => {
      if (request.url === "/lease") json(reply, 200, { ok: true });
      else waiting.push(() => json(reply, 200, {}));
    });
    const kube = connect(server, { connections: 2, rateLimit: { perSecond: 0.001, burst: 3 } });
    const calls = [1, 2, 3].map(() => kube.request(get("/slow")));
    expect(await kube.request({ ...get("/lease"), lane: "lease" })).toEqual({ ok: true });
    await expect.poll(() => waiting.length).toBe(2);
    for (const finish of waiting) finish();
    await expect.poll(() => waiting.length).toBe(3);
    waiting[2]!();
    await Promise.all(calls);
  });
});

describe("calls about the objects of one namespace", () => {
  /** A server that answers calls about namespace `slow` only when the test says so; 40 of them are under way or wait. */
  async function slowNamespace(connections: number) {
    const held: (() => void)[] = [];
    let isSlow = true;
    const server = await serve((request, reply) => {
      const answer = () => reply.end(`${JSON.stringify({ url: request.url })}\n`);
      if (isSlow && request.url.includes("/namespaces/slow/")) held.push(answer);
      else answer();
    });
    const kube = connect(server, { connections, rateLimit: false });
    const slow = Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        kube.request({ ...get(`/api/v1/namespaces/slow/pods/p${i}/status`), method: "PATCH" }),
      ),
    );
    await expect.poll(() => held.length).toBe(connections / 4);
    const recover = () => {
      isSlow = false;
      for (const answer of held) answer();
      return slow;
    };
    return { kube, recover };
  }

  test("leave connections to the others, however slow an admission webhook of theirs is", async () => {
    const { kube, recover } = await slowNamespace(8);
    const paths = ["/api/v1/namespaces/other/pods/a", "/apis/apps/v1/namespaces/other/x/y", "/api/v1/nodes/n"];
    for (const path of paths) expect(await kube.request(get(path))).toEqual({ url: path });
    expect(await recover()).toHaveLength(40);
  });

  test("do not delay reviews, the lease or a watch", async () => {
    const { kube, recover } = await slowNamespace(8);
    const review = { token: "t" };
    expect(await tokenReview(kube, review, live())).toBeUndefined();
    expect(await kube.request({ ...get("/lease"), lane: "lease" })).toEqual({ url: "/lease" });
    for await (const event of kube.watch({ path: "/api/v1/nodes", signal: live() })) expect(event).toBeDefined();
    await recover();
  });

  test("wait for their turn no longer than for a reply", async () => {
    const server = await serve(() => {});
    const kube = connect(server, { connections: 4 });
    const calls = [1, 2].map((i) =>
      failureOf(kube.request({ ...get(`/api/v1/namespaces/slow/pods/${i}`), timeoutMs: 500 })),
    );
    expect((await Promise.all(calls)).map(({ reason }) => reason)).toEqual(["Timeout", "Timeout"]);
    expect(server.received).toHaveLength(1);
  });
});

describe("reviews", () => {
  test("wait for no rate limit of other calls", async () => {
    const kube = connect(await serve(), { rateLimit: { perSecond: 0.001, burst: 1 } });
    await kube.request(get());
    const waiting = new AbortController();
    const second = kube.request({ ...get(), signal: waiting.signal }).catch(() => "given up");
    expect(await tokenReview(kube, { token: "t" }, live())).toBeUndefined();
    waiting.abort();
    expect(await second).toBe("given up");
  });
});

describe("somebody who loses the right to change anything", () => {
  const refuse = () => {
    throw new NotLeaderError("this agent does not lead any more");
  };

  test("sends no change, and reads on", async () => {
    const server = await serve();
    const kube = guardedKube(connect(server), refuse);
    for (const method of ["POST", "PUT", "PATCH", "DELETE"] as const)
      await expect(kube.request({ ...get(), method, body: {} })).rejects.toBeInstanceOf(NotLeaderError);
    await kube.request(get());
    expect(server.received.map(({ method }) => method)).toEqual(["GET"]);
  });

  test("does not send what had to wait meanwhile", async () => {
    const server = await serve();
    let leads = true;
    const waited = Promise.withResolvers<void>();
    const clock: Clock = { ...systemClock, sleep: () => waited.promise };
    const kube = guardedKube(connect(server, { clock, rateLimit: { perSecond: 1, burst: 1 } }), () => {
      if (!leads) refuse();
    });
    await kube.request(get());
    const patch = kube.request({ ...get(), method: "PATCH", body: {} });
    leads = false;
    waited.resolve();
    await expect(patch).rejects.toBeInstanceOf(NotLeaderError);
    expect(server.received).toHaveLength(1);
  });
});

describe("the server's clock", () => {
  test("is noted with each reply to a lease", async () => {
    const server = await serve((_r, reply) => json(reply, 200, {}, { date: "Thu, 01 Jan 2026 00:00:07 GMT" }));
    const times: number[] = [];
    const metrics = {
      onRequest: () => {},
      onRetry: () => {},
      onRateLimited: () => {},
      onServerTime: (ms: number) => void times.push(ms),
    };
    const kube = connect(server, { metrics });
    await kube.request(get());
    await kube.request({ ...get(), lane: "lease" });
    expect(times).toEqual([Date.parse("2026-01-01T00:00:07Z")]);
  });
});

describe("closing", () => {
  test("lets requests under way finish", async () => {
    let answer = () => {};
    const server = await serve((_r, reply) => (answer = () => json(reply, 200, { ok: true })));
    const kube = connect(server);
    const call = kube.request(get());
    await expect.poll(() => server.received.length).toBe(1);
    const closing = kube.close();
    answer();
    expect(await call).toEqual({ ok: true });
    await closing;
  });

  test("does not wait for a server that does not answer", async () => {
    const server = await serve(() => {});
    const kube = connect(server, { clock: noWait() });
    const call = failureOf(kube.request(get()));
    await expect.poll(() => server.received.length).toBe(1);
    await kube.close();
    expect(await call).toMatchObject({ status: 0, reason: "Transport", message: "the transport was closed" });
  });
});

describe("a failure", () => {
  test("is an error with the status, the reason and the server's words", async () => {
    const server = await serve((_r, reply) => json(reply, 404, failure(404, "NotFound", 'pods "x" not found')));
    const error = await failureOf(connect(server, { user: { token: "secret" } }).request(get()));
    expect(error).toMatchObject({ code: "KUBE_API", status: 404, reason: "NotFound", retryable: false });
    expect(error.message).toBe('GET /api/v1/pods: 404 pods "x" not found');
    expect(isNotFound(error)).toBe(true);
    expect(JSON.stringify(error) + error.stack).not.toContain("secret");
  });

  test.each([
    [
      "the API server about this pod",
      failure(404, "NotFound", 'pods "x" not found', { kind: "pods", name: "x" }),
      true,
    ],
    ["the API server about another one", failure(404, "NotFound", "", { kind: "pods", name: "y" }), false],
    ["the API server about its namespace", failure(404, "NotFound", "", { kind: "namespaces", name: "x" }), false],
    ["an API server without such a path", failure(404, "NotFound", "", {}), false],
    ["a proxy, in JSON of its own", { reason: "NotFound", details: { kind: "pods", name: "x" } }, false],
    ["a proxy, in HTML", "<html>404 page not found</html>", false],
  ])("404 by %s proves or does not prove that the pod is gone", async (_by, body, expected) => {
    const server = await serve((_r, reply) => json(reply, 404, body));
    const error = await failureOf(connect(server).request(get("/api/v1/namespaces/d/pods/x")));
    expect(saysNotFound(error, { resource: "pods", name: "x" })).toBe(expected);
  });

  test.each([
    [409, "Conflict", isConflict, true],
    [409, "AlreadyExists", isConflict, false],
    [410, "Expired", isGone, true],
    [500, "InternalError", isGone, false],
  ] as const)("%i %s is told apart", async (status, reason, guard, expected) => {
    const server = await serve((_r, reply) => json(reply, status, failure(status, reason)));
    expect(guard(await failureOf(connect(server).request(get())))).toBe(expected);
  });

  test("keeps plain text of a proxy as the message", async () => {
    const server = await serve((_r, reply) => reply.writeHead(502).end("bad gateway\n"));
    const error = await failureOf(connect(server).request(get()));
    expect(error).toMatchObject({ status: 502, retryable: true, message: "GET /api/v1/pods: 502 bad gateway" });
  });

  test("says that nobody listens", async () => {
    const server = await serve();
    const kube = connect(server);
    await server.stop();
    const error = await failureOf(kube.request(get()));
    expect(error).toMatchObject({ status: 0, reason: "ConnectionRefused", retryable: true });
    expect(error.message).toMatch(/^GET \/api\/v1\/pods: connect ECONNREFUSED 127/);
  });

  test("refuses a reply that is not JSON", async () => {
    const server = await serve((_r, reply) => reply.end("<html>"));
    expect(await failureOf(connect(server).request(get()))).toMatchObject({ status: 0, reason: "Malformed" });
  });

  test("refuses a reply beyond the byte limit", async () => {
    const server = await serve((_r, reply) => json(reply, 200, { text: "x".repeat(2000) }));
    const error = await failureOf(connect(server, { maxReplyBytes: 1000 }).request(get()));
    expect(error).toMatchObject({ status: 0, reason: "Malformed" });
  });

  test("ends a request that is not answered in time", async () => {
    const server = await serve(() => {});
    const error = await failureOf(connect(server).request({ ...get(), timeoutMs: 50 }));
    expect(error).toMatchObject({ status: 0, reason: "Timeout" });
  });

  test("ends a request whose reply stalls half-way", async () => {
    const server = await serve((_r, reply) => void reply.writeHead(200, { "content-length": "100" }).write("{"));
    const error = await failureOf(connect(server).request({ ...get(), timeoutMs: 50 }));
    expect(error).toMatchObject({ status: 0, reason: "Timeout" });
  });

  test("gives the caller's own reason when the caller aborts", async () => {
    const caller = new AbortController();
    const server = await serve(() => caller.abort(new Error("shutting down")));
    await expect(connect(server).request({ ...get(), signal: caller.signal })).rejects.toThrow("shutting down");
  });
});

describe("repeating", () => {
  const failing = (times: number, status: number, headers: Record<string, string>): Handler => {
    let left = times;
    return (_r, reply) =>
      left-- > 0 ? json(reply, status, failure(status, "Busy"), headers) : json(reply, 200, { ok: true });
  };

  test("waits as long as Retry-After says", async () => {
    const clock = noWait();
    const kube = connect(await serve(failing(2, 429, { "retry-after": "7" })), { clock });
    expect(await kube.request(get())).toEqual({ ok: true });
    expect(clock.slept).toEqual([7000, 7000]);
  });

  test.each([429, 503])("waits a second after %i with Retry-After: 0, as without any", async (status) => {
    const clock = noWait();
    const kube = connect(await serve(failing(2, status, { "retry-after": "0" })), { clock });
    expect(await kube.request(get())).toEqual({ ok: true });
    expect(clock.slept).toEqual([1000, 1000]);
  });

  test("gives up after ten times and tells when to come again", async () => {
    const server = await serve(failing(100, 429, { "retry-after": "1" }));
    const error = await failureOf(connect(server, { clock: noWait() }).request(get()));
    expect(error).toMatchObject({ status: 429, retryAfterMs: 1000 });
    expect(server.received).toHaveLength(11);
  });

  test("reports 429 at once when Retry-After lies beyond the time limit", async () => {
    const server = await serve(failing(100, 429, { "retry-after": "60" }));
    const error = await failureOf(connect(server).request(get()));
    expect(error).toMatchObject({ status: 429, retryAfterMs: 60_000 });
  });

  test("takes 429 for the answer where it is one, and asks no second time", async () => {
    const clock = noWait();
    const server = await serve(failing(100, 429, {}));
    const eviction = { ...get(), method: "POST", body: {}, once: true } as const;
    const error = await failureOf(connect(server, { clock }).request(eviction));
    expect(error).toMatchObject({ status: 429 });
    expect(server.received).toHaveLength(1);
    expect(clock.slept).toEqual([]);
  });

  test("never repeats a POST after 503", async () => {
    const server = await serve(failing(1, 503, { "retry-after": "1" }));
    const error = await failureOf(connect(server, { clock: noWait() }).request({ ...get(), method: "POST", body: {} }));
    expect(error.status).toBe(503);
    expect(server.received).toHaveLength(1);
  });

  test("repeats a GET once when the server closed a kept-alive connection", async () => {
    const server = await serve((request, reply) => {
      if (server.received.length === 2) request.socket.destroy();
      else json(reply, 200, { ok: true });
    });
    const kube = connect(server);
    await kube.request(get());
    expect(await kube.request(get())).toEqual({ ok: true });
    expect(server.received).toHaveLength(3);
  });

  test("does not repeat a POST whose connection was closed", async () => {
    const server = await serve((request) => request.socket.destroy());
    const error = await failureOf(connect(server).request({ ...get(), method: "POST", body: {} }));
    expect(error).toMatchObject({ status: 0, reason: "Transport" });
    expect(server.received).toHaveLength(1);
  });
});

describe("the client-side rate limit", () => {
  test("holds calls back beyond the burst", async () => {
    // However long the requests themselves take.
    const clock = { ...noWait(), monotonic: () => 0 };
    const kube = connect(await serve(), { clock, rateLimit: { perSecond: 10, burst: 2 } });
    for (let i = 0; i < 3; i++) await kube.request(get());
    expect(clock.slept).toHaveLength(1);
    expect(clock.slept[0]).toBeGreaterThan(50);
    expect(clock.slept[0]).toBeLessThanOrEqual(100);
  });
});

describe("credentials", () => {
  test("are read again after 401, and the request repeated", async () => {
    const tokenFile = join(folder, "token");
    writeFileSync(tokenFile, "old\n");
    const server = await serve((request, reply) =>
      request.headers.authorization === "Bearer new"
        ? json(reply, 200, { ok: true })
        : json(reply, 401, failure(401, "Unauthorized")),
    );
    const kube = connect(server, { user: { authProvider: { name: "tokenFile", config: { tokenFile } } } });
    expect((await failureOf(kube.request(get()))).status).toBe(401);
    writeFileSync(tokenFile, "new\n");
    expect(await kube.request(get())).toEqual({ ok: true });
  });

  test("are read again once when a mounted Secret was replaced: one request is refused, and no more", async () => {
    const mount = mkdtempSync(join(folder, "secret-"));
    const mountToken = (token: string) =>
      writeFilesVolume(mount, [{ path: "token", mode: 0o600, content_b64: b64(token) }]);
    mountToken("old");
    let accepted = "old";
    let refused = 0;
    const server = await serve((request, reply) => {
      if (request.headers.authorization === `Bearer ${accepted}`) return json(reply, 200, {});
      refused++;
      return json(reply, 401, failure(401, "Unauthorized"));
    });
    const config = { tokenFile: join(mount, "token") };
    const kube = connect(server, { user: { authProvider: { name: "tokenFile", config } } });
    await kube.request(get());
    mountToken("new");
    accepted = "new";
    for (let i = 0; i < 3; i++) await kube.request(get());
    expect(refused).toBeLessThanOrEqual(1);
  });

  test("that cannot be read are reported as such, without a request", async () => {
    const server = await serve();
    const tokenFile = join(folder, "missing");
    const kube = connect(server, { user: { authProvider: { name: "tokenFile", config: { tokenFile } } } });
    const error = await failureOf(kube.request(get()));
    expect(error.message).toContain("Cannot read the credentials for the API server");
    expect(server.received).toHaveLength(0);
  });

  test("can be a user name and password", async () => {
    const server = await serve();
    await connect(server, { user: { username: "u", password: "p" } }).request(get());
    expect(server.received[0]?.headers.authorization).toBe(`Basic ${b64("u:p")}`);
  });

  test("can be a client certificate, replaced on disk without a restart", async () => {
    const tls = { cert: serverCert, key: serverKey, ca: caCert, requestCert: true, rejectUnauthorized: true };
    const server = await serve(undefined, tls);
    const [certFile, keyFile] = [join(folder, "crt"), join(folder, "key")];
    writeFileSync(certFile, clientCert);
    writeFileSync(keyFile, clientKey);
    let skewMs = 0;
    const clock: Clock = { ...systemClock, monotonic: () => systemClock.monotonic() + skewMs };
    const kube = connect(server, { clock, user: { certFile, keyFile }, cluster: { caData: b64(caCert) } });
    await kube.request(get());
    writeFileSync(certFile, serverCert);
    writeFileSync(keyFile, serverKey);
    skewMs = 60_000;
    await kube.request(get());
    expect(server.connections).toBe(2);
  });
});

describe("TLS", () => {
  const tls = { cert: serverCert, key: serverKey };

  test("accepts a server that the configured CA vouches for", async () => {
    const server = await serve(undefined, tls);
    await connect(server, { cluster: { caData: b64(caCert) } }).request(get());
    expect(server.received).toHaveLength(1);
  });

  test("refuses a server of an unknown CA", async () => {
    const server = await serve(undefined, tls);
    const error = await failureOf(connect(server).request(get()));
    expect(error).toMatchObject({ status: 0, reason: "Transport" });
    expect(error.message).toMatch(
      /certificate: no CA .*; set certificate-authority-data of the kubeconfig's cluster to the one that did$/,
    );
    expect(server.received).toHaveLength(0);
  });

  test("is not found where there is none, and that is said", async () => {
    const server = await serve();
    const kube = connect(server, {
      cluster: { server: server.url.replace("http://", "https://"), caData: b64(caCert) },
    });
    const { message } = await failureOf(kube.request(get()));
    expect(message).toMatch(/does not speak TLS; its address may have to begin with http:\/\/$/);
  });

  test("names both settings where a client's key is not its certificate's", async () => {
    const server = await serve(undefined, tls);
    const user = { certData: b64(clientCert), keyData: b64(serverKey) };
    const { message } = await failureOf(connect(server, { user, cluster: { caData: b64(caCert) } }).request(get()));
    expect(message).toContain(
      "client-certificate and client-key of the kubeconfig's user are not a certificate and its own key",
    );
  });

  test("checks the name that tls-server-name gives", async () => {
    const server = await serve(undefined, tls);
    const wrong = connect(server, { cluster: { caData: b64(caCert), tlsServerName: "kubernetes.default" } });
    await failureOf(wrong.request(get()));
    const right = connect(server, { cluster: { caData: b64(caCert), tlsServerName: "localhost" } });
    await right.request(get());
    expect(server.received).toHaveLength(1);
  });
});

describe("a watch", () => {
  const event = (type: string, name: string, extra: object = {}) =>
    `${JSON.stringify({ type, object: { metadata: { name, ...extra } } })}\n`;
  const watch = (kube: KubeTransport, signal = live()) =>
    kube.watch<{ metadata: { name: string } }>({ path: "/api/v1/pods", query: { resourceVersion: "5" }, signal });
  const collect = async (events: AsyncIterable<unknown>) => {
    const all: unknown[] = [];
    for await (const e of events) all.push(e);
    return all;
  };

  test("yields events until the server ends it", async () => {
    const server = await serve(
      (_r, reply) => void reply.end(event("ADDED", "a", { managedFields: [] }) + event("DELETED", "b")),
    );
    expect(await collect(watch(connect(server)))).toEqual([
      { type: "ADDED", object: { metadata: { name: "a" } } },
      { type: "DELETED", object: { metadata: { name: "b" } } },
    ]);
    expect(server.received[0]?.url).toBe("/api/v1/pods?resourceVersion=5&watch=true");
  });

  test("joins events that are cut anywhere, even within a character", async () => {
    const bytes = Buffer.from(event("ADDED", "nœud-🚀"));
    const server = await serve(async (_r, reply) => {
      for (const byte of bytes) {
        reply.write(Buffer.of(byte));
        await new Promise((resolve) => setImmediate(resolve));
      }
      reply.end();
    });
    expect(await collect(watch(connect(server)))).toEqual([
      { type: "ADDED", object: { metadata: { name: "nœud-🚀" } } },
    ]);
  });

  test.each([
    ["ends within an event", `${event("ADDED", "a")}{"type":"ADD`],
    ["sends a line that is not JSON", `${event("ADDED", "a")}oops\n`],
    ["sends an event beyond the limit", event("ADDED", "a") + event("ADDED", "x".repeat(2000))],
  ])("breaks when the server %s, after what was whole", async (_name, body) => {
    const server = await serve((_r, reply) => void reply.end(body));
    const seen: unknown[] = [];
    const error = await failureOf(
      (async () => {
        for await (const e of watch(connect(server, { maxEventBytes: 1000 }))) seen.push(e);
      })(),
    );
    expect(error).toMatchObject({ status: 0, reason: "Malformed" });
    expect(seen).toHaveLength(1);
  });

  test("takes the largest object that the API server does, though it comes with every character escaped", async () => {
    const value = "<".repeat(3 * 1024 * 1024);
    const escaped = event("ADDED", "a", { value }).replaceAll("<", "\\u003c");
    const server = await serve((_r, reply) => void reply.end(escaped));
    const [received] = (await collect(watch(connect(server)))) as { object: { metadata: { value: string } } }[];
    expect(received!.object.metadata.value).toHaveLength(value.length);
  });

  test("breaks with a transport fault when the connection is reset", async () => {
    const server = await serve((request, reply) => {
      reply.write(event("ADDED", "a"));
      setImmediate(() => request.socket.resetAndDestroy());
    });
    expect(await failureOf(collect(watch(connect(server))))).toMatchObject({ status: 0, reason: "Transport" });
  });

  test("fails to open with the server's status", async () => {
    const server = await serve((_r, reply) => json(reply, 410, failure(410, "Expired")));
    expect(isGone(await failureOf(collect(watch(connect(server)))))).toBe(true);
  });

  test("fails when the server does not open it in time", async () => {
    const server = await serve(() => {});
    const error = await failureOf(collect(watch(connect(server, { timeoutMs: 50 }))));
    expect(error).toMatchObject({ status: 0, reason: "Timeout" });
  });

  test("may be silent for longer than a request may take", async () => {
    let finish = () => {};
    const server = await serve((_r, reply) => {
      reply.write(event("ADDED", "a"));
      finish = () => void reply.end(event("ADDED", "b"));
    });
    const seen: unknown[] = [];
    const done = (async () => {
      for await (const e of watch(connect(server, { timeoutMs: 200 }))) seen.push(e);
    })();
    await expect.poll(() => seen.length).toBe(1);
    await passTime(300, "silence itself is tried");
    finish();
    await done;
    expect(seen).toHaveLength(2);
  });

  test("closes its connection when the consumer stops", async () => {
    let closed = false;
    const server = await serve((request, reply) => {
      request.socket.on("close", () => {
        closed = true;
      });
      reply.write(event("ADDED", "a"));
    });
    for await (const _event of watch(connect(server))) break;
    await expect.poll(() => closed).toBe(true);
  });

  test("ends with the caller's reason on abort", async () => {
    const caller = new AbortController();
    const server = await serve((_r, reply) => void reply.write(event("ADDED", "a")));
    const consume = async () => {
      for await (const _event of watch(connect(server), caller.signal)) caller.abort(new Error("enough"));
    };
    await expect(consume()).rejects.toThrow("enough");
  });

  test("holds the server back while the consumer is slow", async () => {
    let written = 0;
    const line = event("ADDED", "x".repeat(64 * 1024));
    const server = await serve((_r, reply) => {
      const more = () => {
        while (written < 2000 && !reply.destroyed) {
          written++;
          if (!reply.write(line)) return void reply.once("drain", more);
        }
        reply.end();
      };
      more();
    });
    const events = watch(connect(server))[Symbol.asyncIterator]();
    await events.next();
    let before = -1;
    await expect.poll(() => before === (before = written), { interval: 200 }).toBe(true);
    expect(written).toBeLessThan(1000);
    await events.return?.(undefined);
  });
});
