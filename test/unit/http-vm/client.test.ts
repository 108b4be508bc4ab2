/** What the client makes of every status code and every malformed reply: a table each. */
import { createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import nock from "nock";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { HttpVmProvider, type HttpVmOptions, type InvalidReason } from "../../../providers/http-vm/index.ts";
import { MachineApiClient } from "../../../providers/http-vm/client.ts";
import { LOG_TYPE } from "../../../providers/http-vm/wire.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import { containerState, machine } from "../../support/builders.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const BACKEND = "https://backend.example";
const signal = new AbortController().signal;
const spec: MachineSpec = { labels: { node: "n" }, restart_policy: "never", containers: [{ name: "c", image: "i" }] };

/** Of the API, with what it may have besides. */
const told = (rest: object = {}): Machine & Record<string, unknown> => ({
  ...machine({
    revision: 5,
    labels: { node: "n" },
    addresses: [{ ip: "10.0.0.1" }],
    containers: [
      containerState("c", { state: "running", ready: true, started: true, image: "i", image_id: "sha256:1" }),
    ],
  }),
  ...rest,
});

let provider: HttpVmProvider;
let invalid: InvalidReason[];

function connect(options: Partial<HttpVmOptions> = {}): HttpVmProvider {
  return new HttpVmProvider({ url: BACKEND, onInvalidReply: (reason) => invalid.push(reason), ...options });
}

// nock stands between every socket of the process and the network, those of the test files that come after this one too.
beforeAll(() => void (nock.isActive() || nock.activate()));
afterAll(() => nock.restore());

beforeEach(() => {
  nock.disableNetConnect();
  invalid = [];
  provider = connect();
});

afterEach(async () => {
  await provider.close();
  nock.cleanAll();
  nock.enableNetConnect();
});

const idOf = (request: Request): string => request.headers.get("x-request-id") ?? "";

type Reply = { status?: number; body?: string | object; headers?: Record<string, string>; echo?: boolean };

/** Answers the next request with `reply`; the request's id is echoed unless told otherwise. */
function answer(
  reply: Reply,
  method: "get" | "put" | "delete" | "post" = "get",
  path: string | RegExp = /.*/,
): nock.Scope {
  const scope = nock(BACKEND);
  return scope[method](path).reply((request: Request) => {
    const id = idOf(request);
    const { status = 200, body = "", headers = {}, echo = true } = reply;
    return [
      status,
      typeof body === "string" ? body : JSON.stringify(body),
      { "content-type": "application/json", ...(echo ? { "x-request-id": id } : {}), ...headers },
    ];
  });
}

const envelope = (code: string, rest: object = {}) => ({ error: { code, message: "said so", ...rest } });

describe("an error reply", () => {
  test.each([
    [400, "invalid", "invalid"],
    [422, "invalid", "invalid"],
    [413, "invalid", "invalid"],
    [401, "unauthorized", "unauthorized"],
    [403, "unauthorized", "unauthorized"],
    [404, "not_found", "not_found"],
    [409, "conflict", "conflict"],
    [412, "conflict", "conflict"],
    [410, "gone", "gone"],
    [429, "rate_limited", "rate_limited"],
    [501, "unsupported", "unsupported"],
    [404, "unsupported", "unsupported"],
    [503, "quota", "quota"],
    [500, "unavailable", "unavailable"],
    [502, "unavailable", "unavailable"],
    [503, "unavailable", "unavailable"],
    [504, "unavailable", "unavailable"],
    // A code that its status contradicts.
    [500, "not_found", "unavailable"],
    [502, "gone", "unavailable"],
    [503, "invalid", "unavailable"],
    [404, "gone", "unavailable"],
  ])("%i %s is %s", async (status, code, expected) => {
    if (status === 401 || status === 403) answer({ status, body: envelope(code) });
    answer({ status, body: envelope(code) });
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: expected, message: "said so" });
  });

  test.each([
    [400, "unavailable"],
    [401, "unauthorized"],
    [403, "unauthorized"],
    [404, "unavailable"],
    [405, "unavailable"],
    [408, "unavailable"],
    [409, "unavailable"],
    [410, "unavailable"],
    [418, "unavailable"],
    [429, "rate_limited"],
    [500, "unavailable"],
    [501, "unavailable"],
    [502, "unavailable"],
    [503, "unavailable"],
    [504, "unavailable"],
    [599, "unavailable"],
  ])("%i without an envelope is %s", async (status, expected) => {
    for (const body of [
      "<html>proxy</html>",
      "",
      "{}",
      '{"error":"no"}',
      '{"error":{"code":"brand_new","message":"x"}}',
    ]) {
      if (status === 401 || status === 403) answer({ status, body });
      answer({ status, body });
      await expect(provider.getPod("m", { signal }), body).rejects.toMatchObject({ code: expected });
    }
  });

  test.each([301, 302, 303, 307, 308])("%i is never followed", async (status) => {
    answer({ status, headers: { location: "http://169.254.169.254/latest/meta-data" } });
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["redirect"]);
  });

  test("to another request proves no absence", async () => {
    answer({ status: 404, body: envelope("not_found"), echo: false });
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["request_id"]);
  });

  test.each([
    [
      "retry_after_ms of the envelope",
      { body: envelope("rate_limited", { retry_after_ms: 1500 }), headers: { "retry-after": "9" } },
      1500,
    ],
    ["Retry-After in seconds", { body: envelope("rate_limited"), headers: { "retry-after": "2" } }, 2000],
    ["Retry-After of a proxy", { body: "", headers: { "retry-after": "3" } }, 3000],
    ["nothing when Retry-After is nonsense", { body: "", headers: { "retry-after": "soon" } }, undefined],
  ])("takes %s", async (_name, reply, expected) => {
    answer({ status: 429, ...reply });
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({
      code: "rate_limited",
      retryAfterMs: expected,
    });
  });

  test("keeps the field and has no control characters in its message", async () => {
    answer({
      status: 400,
      body: { error: { code: "invalid", message: "\u001b[31mred\u0007", field: "containers.0" } },
    });
    await expect(provider.createPod("m", spec, { signal })).rejects.toThrow();
    answer(
      { status: 400, body: { error: { code: "invalid", message: "\u001b[31mred\u0007", field: "containers.0" } } },
      "put",
    );
    await expect(provider.createPod("m", spec, { signal })).rejects.toMatchObject({
      message: "red",
      field: "containers.0",
    });
  });
});

describe("a malformed reply is unknown, never absent:", () => {
  const container = told().containers[0]!;
  const withContainer = (rest: object) => told({ containers: [{ ...container, ...rest }] });
  const terminated = (rest: object) =>
    withContainer({
      state: "terminated",
      terminated: { exit_code: 0, reason: "Completed", finished_at: "2026-01-01T00:00:00Z", ...rest },
    });
  const cases: [string, Reply, InvalidReason][] = [
    ["no JSON", { body: "<html>" }, "json"],
    ["no body", { body: "" }, "json"],
    ["invalid UTF-8", { body: "x", headers: { "x-binary": "1" } }, "json"],
    ["an array", { body: "[]" }, "schema"],
    ["null", { body: "null" }, "schema"],
    ["another content type", { body: told(), headers: { "content-type": "text/html" } }, "content_type"],
    ["compressed", { body: told(), headers: { "content-encoding": "gzip" } }, "content_type"],
    ["without the request's id", { body: told(), echo: false }, "request_id"],
    ["another request's id", { body: told(), echo: false, headers: { "x-request-id": "other" } }, "request_id"],
    ["about another machine", { body: told({ id: "other" }) }, "machine_id"],
    ["an id that is a path", { body: told({ id: "../m" }) }, "schema"],
    ["without a state", { body: told({ state: undefined }) }, "schema"],
    ["an unknown state", { body: told({ state: "Running" }) }, "schema"],
    ["an unknown reachability", { body: told({ reachability: "maybe" }) }, "schema"],
    ["a version that is text", { body: told({ version: "1" }) }, "schema"],
    ["a negative revision", { body: told({ revision: -1 }) }, "schema"],
    ["a time without a zone", { body: told({ created_at: "2026-01-01T00:00:00" }) }, "schema"],
    ["a time in another zone", { body: told({ created_at: "2026-01-01T00:00:00+02:00" }) }, "schema"],
    ["a time that is a number", { body: told({ created_at: 17e8 }) }, "schema"],
    ["the thirteenth month", { body: told({ created_at: "2026-13-01T00:00:00Z" }) }, "schema"],
    ["an address that is none", { body: told({ addresses: [{ ip: "host" }] }) }, "schema"],
    ["the metadata address", { body: told({ addresses: [{ ip: "169.254.169.254" }] }) }, "schema"],
    ["a multicast address", { body: told({ addresses: [{ ip: "224.0.0.1" }] }) }, "schema"],
    ["a loopback address from afar", { body: told({ addresses: [{ ip: "127.0.0.1" }] }) }, "loopback_ip"],
    ["a container name that is a path", { body: withContainer({ name: "../x" }) }, "schema"],
    ["an unknown container state", { body: withContainer({ state: "paused" }) }, "schema"],
    ["restarts below zero", { body: withContainer({ restart_count: -1 }) }, "schema"],
    ["restarts beyond int32", { body: withContainer({ restart_count: 2 ** 31 }) }, "schema"],
    ["an exit code beyond int32", { body: terminated({ exit_code: 1e12 }) }, "schema"],
    ["an exit code that is text", { body: terminated({ exit_code: "0" }) }, "schema"],
    ["an exit code with a fraction", { body: terminated({ exit_code: 0.5 }) }, "schema"],
    ["an end without a time", { body: terminated({ finished_at: undefined }) }, "schema"],
    ["__proto__ as a field", { body: JSON.stringify(told()).replace("{", '{"__proto__":{"x":1},') }, "keys"],
    ["__proto__ in disguise", { body: JSON.stringify(told()).replace("{", '{"\\u005f_proto__":{"x":1},') }, "keys"],
    ["constructor as a label", { body: JSON.stringify(told()).replace('"node"', '"constructor"') }, "keys"],
    [
      "nested too deep",
      { body: JSON.stringify(told()).replace("{", `{"x":${"[".repeat(100)}${"]".repeat(100)},`) },
      "depth",
    ],
    ["nested far too deep", { body: `${"[".repeat(100_000)}${"]".repeat(100_000)}` }, "depth"],
    ["larger than a mebibyte", { body: told({ message: "x".repeat(1024 * 1024) }) }, "size"],
    ["said to be larger than a mebibyte", { body: told(), headers: { "content-length": "99999999" } }, "size"],
    ["a success without a body", { status: 204 }, "content_type"],
  ];
  test.each(cases)("%s", async (name, reply, reason) => {
    if (name === "invalid UTF-8") {
      nock(BACKEND)
        .get(/.*/)
        .reply(200, Buffer.from([0x22, 0xff, 0x22]), { "content-type": "application/json" });
    } else {
      if (reply.status === 204) reply = { ...reply, headers: { "content-type": "text/plain" } };
      answer(reply);
    }
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual([reason]);
    expect(({} as Record<string, unknown>)["x"]).toBeUndefined();
  });
});

describe("a reply that can be used", () => {
  test("loses the fields that the document does not name", async () => {
    answer({ body: told({ future: { x: 1 }, containers: [{ ...told().containers[0], colour: "red" }] }) });
    expect(await provider.getPod("m", { signal })).toEqual(told());
  });

  test("has its messages cut and cleaned", async () => {
    answer({ body: told({ message: `\u001b[31mred\u001b[0m\u0000\u202e ${"é".repeat(2000)}` }) });
    const { message } = await provider.getPod("m", { signal });
    expect(message).toMatch(/^red é+$/);
    expect(Buffer.byteLength(message!)).toBeLessThanOrEqual(1024);
  });

  test("keeps a container's last words up to kubelet's 4096 bytes", async () => {
    const words = "line\n".repeat(800);
    const ended = { exit_code: 1, reason: "Error", message: words, finished_at: "2026-01-01T00:00:00Z" };
    answer({ body: told({ containers: [{ ...told().containers[0], state: "terminated", terminated: ended }] }) });
    expect((await provider.getPod("m", { signal })).containers[0]?.terminated?.message).toBe(words);
  });

  test("has times of the future set to now", async () => {
    answer({ body: told({ created_at: "9999-01-01T00:00:00Z" }) });
    expect(Date.parse((await provider.getPod("m", { signal })).created_at)).toBeLessThanOrEqual(Date.now());
    expect(invalid).toEqual(["future_time"]);
  });

  test.each([
    ["the beginning of Unix time", "1970-01-01T00:00:00Z"],
    ["Go's zero", "0001-01-01T00:00:00Z"],
    ["a leap second, which no Date has", "2016-12-31T23:59:60Z"],
  ])("has no times that are %s: they are left out, or now", async (_what, zero) => {
    const ended = { exit_code: 0, reason: "Completed", started_at: zero, finished_at: zero };
    const container = { ...told().containers[0], state: "terminated", started_at: zero, terminated: ended };
    answer({ body: told({ started_at: zero, stopped_at: zero, containers: [container] }) });
    const read = await provider.getPod("m", { signal });
    expect([read.started_at, read.stopped_at, read.containers[0]!.started_at]).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
    expect(read.containers[0]!.terminated!.started_at).toBeUndefined();
    expect(Date.parse(read.containers[0]!.terminated!.finished_at)).toBeGreaterThan(Date.UTC(2024));
    expect(new Set(invalid)).toEqual(new Set(["past_time"]));
  });

  test.each(["1970-01-01T00:00:00Z", "9999-01-01T00:00:00Z"])(
    "has the same time of creation in each reply, also where it cannot be %s",
    async (created_at) => {
      answer({ body: told({ created_at }) });
      answer({ body: told({ created_at }) });
      const [first, second] = [await provider.getPod("m", { signal }), await provider.getPod("m", { signal })];
      expect(first.created_at).toBe(second.created_at);
    },
  );

  test("has one address of each family, the first", async () => {
    const addresses = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"].map((ip) => ({ ip }));
    answer({ body: told({ addresses }) });
    expect((await provider.getPod("m", { signal })).addresses).toEqual([{ ip: "10.0.0.1" }, { ip: "fd00::1" }]);
    expect(invalid).toEqual(["extra_address", "extra_address"]);
  });

  test("has ids, images and reasons of a length that a status can bear, and no half characters", async () => {
    const long = "x".repeat(20_000);
    const container = {
      ...told().containers[0],
      id: long,
      image: long,
      image_id: `\u001b[31m${long}`,
      reason: long,
    };
    const notice = {
      at: "2026-01-01T00:00:00Z",
      type: "Normal",
      reason: long,
      message: "\ud800",
      container: long,
      seq: 1,
    };
    answer({ body: told({ host: "h", containers: [container], notices: [notice] }) });
    const read = await provider.getPod("m", { signal });
    const { id, image, image_id, reason } = read.containers[0]!;
    expect([id, image, image_id, reason].map((text) => text!.length)).toEqual([1024, 8192, 1024, 128]);
    expect(image_id).toMatch(/^x+$/);
    expect(read.notices![0]).toMatchObject({ reason: "x".repeat(128), container: "x".repeat(1024), message: "\ufffd" });
  });

  test("may have a loopback address when the backend itself is on loopback", async () => {
    const local = connect({ url: "http://127.0.0.1:9" });
    nock("http://127.0.0.1:9")
      .get("/v1/machines/m")
      .reply((request: Request) => {
        return [
          200,
          JSON.stringify(told({ addresses: [{ ip: "127.0.0.1" }] })),
          { "content-type": "application/json", "x-request-id": idOf(request) },
        ];
      });
    expect((await local.getPod("m", { signal })).addresses).toEqual([{ ip: "127.0.0.1" }]);
    await local.close();
  });

  test("says what its machines are built for", async () => {
    answer({ body: { name: "b", version: "1", api: "v1", capabilities: [], os: "linux", architecture: "arm64" } });
    expect(await provider.getInfo({ signal })).toMatchObject({ os: "linux", architecture: "arm64" });
  });

  test("says which runtimes a machine may name", async () => {
    const runtime_handlers = [{ name: "" }, { name: "kata", user_namespaces: true }];
    answer({ body: { name: "b", version: "1", api: "v1", capabilities: [], runtime_handlers } });
    expect(await provider.getInfo({ signal })).toMatchObject({ runtimeHandlers: runtime_handlers });
  });

  test.each([true, false, undefined])("says of its host whether that is inside a user namespace: %s", async (told) => {
    answer({ body: { name: "b", version: "1", api: "v1", capabilities: [], running_in_user_namespace: told } });
    expect((await provider.getInfo({ signal })).runningInUserNamespace).toBe(told);
  });

  test("says of its machines what no label could hold", async () => {
    answer({ body: { name: "b", version: "1", api: "v1", capabilities: [], architecture: "x86 64/v3" } });
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("names capabilities that are not known: they are told apart", async () => {
    answer({ body: { name: "b", version: "1", api: "v1", capabilities: ["exec", "teleport", "constructor"] } });
    expect(await provider.getInfo({ signal })).toMatchObject({
      capabilities: ["exec"],
      unknownCapabilities: ["teleport", "constructor"],
    });
  });
});

describe("a list", () => {
  const page = (ids: string[], rest: object = {}) => ({
    items: ids.map((id) => told({ id })),
    revision: 9,
    ...rest,
  });

  test("is read page by page", async () => {
    answer({ body: page(["a", "b"], { next_cursor: "1" }) });
    answer({ body: page(["c"], { revision: 12 }) }, "get", /cursor=1/);
    const list = await provider.getPods({ signal, labels: {} });
    expect(list.items.map(({ id }) => id)).toEqual(["a", "b", "c"]);
    expect(list.revision).toBe(9);
  });

  test("whose pages go in a circle is refused", async () => {
    answer({ body: page(["a"], { next_cursor: "1" }) });
    answer({ body: page(["b"], { next_cursor: "2" }) });
    answer({ body: page(["c"], { next_cursor: "1" }) });
    await expect(provider.getPods({ signal, labels: {} })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["cursor_loop"]);
  });

  test("with a machine on two pages says of it no more than that it is there", async () => {
    answer({ body: page(["a", "b"], { next_cursor: "1" }) });
    answer({ body: page(["a"]) });
    const list = await provider.getPods({ signal, labels: {} });
    expect(list.items.map(({ id }) => id)).toEqual(["b"]);
    expect(list.unknown).toMatchObject([{ id: "a" }]);
    expect(invalid).toEqual(["duplicate_id"]);
  });

  test("loses machines that do not carry the labels, and counts them", async () => {
    answer({ body: { items: [told({ id: "a" }), told({ id: "b", labels: { node: "other" } })], revision: 1 } });
    expect((await provider.getPods({ signal, labels: { node: "n" } })).items.map(({ id }) => id)).toEqual(["a"]);
    expect(invalid).toEqual(["labels"]);
  });

  test("that breaks off in the middle is unknown", async () => {
    answer({ body: page(["a"], { next_cursor: "1" }) });
    answer({ status: 503, body: envelope("unavailable") });
    await expect(provider.getPods({ signal, labels: {} })).rejects.toMatchObject({ code: "unavailable" });
  });
});

describe("a request", () => {
  test("carries its id, labels, limit and no redirecting or compressing headers", async () => {
    let seen = new Headers();
    nock(BACKEND)
      .get("/v1/machines")
      .query({ label: "a/b=c d", limit: "500", include_deleted: "true" })
      .reply((request: Request) => {
        seen = request.headers;
        return [200, { items: [], revision: 0 }, { "x-request-id": idOf(request) }];
      });
    await provider.getPods({ signal, labels: { "a/b": "c d" }, includeDeleted: true });
    expect(seen.get("accept-encoding")).toBe("identity");
    expect(seen.get("x-request-id")).toMatch(/^[a-f0-9]{12}-1$/);
  });

  test("puts the specification on the wire as it is", async () => {
    let sent: unknown;
    nock(BACKEND)
      .put("/v1/machines/m", (body) => {
        sent = body;
        return true;
      })
      .reply((request: Request) => {
        return [201, told(), { "x-request-id": idOf(request) }];
      });
    await provider.createPod("m", spec, { signal });
    expect(sent).toEqual(spec);
  });

  test("that was aborted rejects soon", async () => {
    const stop = new AbortController();
    nock(BACKEND).get(/.*/).delay(60_000).reply(200, {});
    const call = provider.getPod("m", { signal: stop.signal });
    await settle();
    stop.abort();
    await expect(call).rejects.toMatchObject({ code: "unavailable" });
    nock.abortPendingRequests();
  });

  test("whose connection is refused is unknown", async () => {
    nock(BACKEND)
      .get(/.*/)
      .replyWithError(Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" }));
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable", retryable: true });
  });
});

describe("a log", () => {
  test("does not go out on a connection that the backend is through with", async () => {
    const used = new Set<Socket>();
    const server = createServer((request, reply) => {
      if (used.has(request.socket)) return void request.socket.destroy();
      used.add(request.socket);
      reply.writeHead(200, { "content-type": LOG_TYPE, "x-request-id": request.headers["x-request-id"] }).end();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    nock.enableNetConnect("127.0.0.1");
    const { port } = server.address() as AddressInfo;
    const local = connect({ url: `http://127.0.0.1:${port}`, allowPlainHttp: true });
    const lines = async () => await Array.fromAsync(local.getLogs("m", "c", { signal }));
    await expect(lines()).resolves.toEqual([]);
    await expect(lines()).resolves.toEqual([]);
    await local.close();
    server.close();
  });

  test("is asked for once more with the token that replaced the one that was refused", async () => {
    answer({ status: 401, body: envelope("unauthorized") });
    answer({ headers: { "content-type": LOG_TYPE } });
    await expect(Array.fromAsync(provider.getLogs("m", "c", { signal }))).resolves.toEqual([]);
  });
});

describe("deletePod", () => {
  test.each([202, 204, 200])("is done with %i", async (status) => {
    answer({ status, body: status === 200 ? "{}" : "" }, "delete", "/v1/machines/m?force=true");
    await provider.deletePod("m", { signal, force: true });
  });

  test("is not done when the reply is not to it", async () => {
    answer({ status: 204, echo: false }, "delete");
    await expect(provider.deletePod("m", { signal, force: false })).rejects.toMatchObject({ code: "unavailable" });
  });
});

describe("the backend's address", () => {
  test.each([
    ["http://10.0.0.1:80", /plain HTTP beyond loopback/],
    ["ftp://x", /must start with https/],
    ["backend", /is no URL/],
    ["https://user:pass@x", /tokenFile/],
    ["unix://relative", /absolute/],
  ])("%s is refused with the cure", (url, message) => {
    expect(() => connect({ url })).toThrow(message);
  });

  test.each([
    "https://backend",
    "http://127.0.0.1:1",
    "http://[::1]:1",
    "http://localhost:1/prefix/",
    "unix:///run/x.sock",
  ])("%s is taken", (url) => {
    expect(() => connect({ url })).not.toThrow();
  });
});

describe("pacing", () => {
  test("after Retry-After no call goes out before its time", async () => {
    const clock = new VirtualClock();
    const paced = connect({ clock });
    answer({ status: 429, headers: { "retry-after": "5" } });
    await expect(paced.getPod("m", { signal })).rejects.toMatchObject({ code: "rate_limited" });
    const scope = answer({ body: told() });
    const next = paced.getPod("m", { signal });
    await clock.advance(4999);
    expect(scope.isDone()).toBe(false);
    await clock.advance(1);
    await next;
    await paced.close();
  });

  test.each([
    ["a stop", (p: HttpVmProvider) => p.deletePod("m", { signal, force: true }), "delete" as const],
    ["a create", (p: HttpVmProvider) => p.createPod("m", spec, { signal }), "put" as const],
    ["a look at one machine", (p: HttpVmProvider) => p.getPod("m", { signal }), "get" as const],
  ])("%s does not wait because the backend has no time for figures", async (_what, call, method) => {
    const clock = new VirtualClock();
    const paced = connect({ clock });
    answer({ status: 503, headers: { "retry-after": "60" } }, "get", /stats/);
    await expect(paced.getStats({ signal, labels: {} })).rejects.toMatchObject({ retryAfterMs: 60_000 });
    answer({ body: told() }, method);
    await call(paced);
    expect(clock.monotonic()).toBe(new VirtualClock().monotonic());
    await paced.close();
  });

  test("a pause that many calls of one kind wait out takes no room from another kind", async () => {
    const clock = new VirtualClock();
    const paced = connect({ clock, pacing: { concurrency: 2 } });
    answer({ status: 503, headers: { "retry-after": "60" } }, "put");
    await expect(paced.createPod("m", spec, { signal })).rejects.toMatchObject({ code: "unavailable" });
    const stop = new AbortController();
    const waiting = Array.from({ length: 10 }, () => paced.createPod("m", spec, { signal: stop.signal }));
    answer({ body: told() });
    await paced.getPod("m", { signal });
    stop.abort();
    await Promise.allSettled(waiting);
    await paced.close();
  });

  test("a stop is sent though slow creates take all the room that there is for them", async () => {
    const slow: (() => void)[] = [];
    const server = createServer((request, reply) => {
      const end = () => reply.writeHead(202, { "x-request-id": request.headers["x-request-id"] }).end();
      if (request.method === "PUT") slow.push(end);
      else end();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    nock.enableNetConnect("127.0.0.1");
    const { port } = server.address() as AddressInfo;
    const local = connect({ url: `http://127.0.0.1:${port}`, pacing: { concurrency: 4 } });
    const creates = Array.from({ length: 10 }, () => local.createPod("m", spec, { signal }));
    await expect.poll(() => slow.length).toBe(3);
    await local.deletePod("m", { signal, force: true });
    expect(slow.length).toBe(3);
    await local.close();
    await Promise.allSettled(creates);
    server.closeAllConnections();
    server.close();
  });

  test("429 halves the calls in flight once per burst, and success restores them one by one", async () => {
    const client = new MachineApiClient({
      url: BACKEND,
      clock: new VirtualClock(),
      pacing: { concurrency: 8, perSecond: 1000, burst: 1000 },
    });
    const get = () => client.json({ method: "GET", path: "/v1/machines/m", signal }, "Machine");
    for (let i = 0; i < 4; i++) answer({ status: 429, body: envelope("rate_limited") });
    await Promise.allSettled([get(), get(), get(), get()]);
    expect(client.pacing.limit).toBe(4);
    for (let i = 0; i < 30; i++) {
      answer({ body: told() });
      await get();
    }
    expect(client.pacing.limit).toBe(8);
    client.close();
  });

  test("calls beyond the burst go out at the rate", async () => {
    const clock = new VirtualClock();
    const paced = connect({ clock, pacing: { perSecond: 10, burst: 2 } });
    nock(BACKEND)
      .get(/.*/)
      .times(4)
      .reply((request: Request) => {
        return [200, told(), { "x-request-id": idOf(request) }];
      });
    let done = 0;
    const calls = Array.from({ length: 4 }, () => paced.getPod("m", { signal }).then(() => done++));
    await clock.advance(0);
    await expect.poll(() => done).toBe(2);
    await clock.advance(100);
    await expect.poll(() => done).toBe(3);
    await clock.advance(100);
    await Promise.all(calls);
    await paced.close();
  });
});
