/** What is made of an Incus's answers, whose words are those that 6.0 gave. */
import { createServer, type Server } from "node:http";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { incusProblems } from "../../../providers/cloud/incus/check.ts";
import { IncusCloud } from "../../../providers/cloud/incus/cloud.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly url: string;
  readonly query: URLSearchParams;
  readonly body: Record<string, unknown>;
}

type Reply = { status?: number; error?: string; metadata?: unknown; operation?: string };

const signal = new AbortController().signal;
const SMALL = { name: "small", resources: { cpu_millis: 500, memory_bytes: 2 ** 30 } };
const labels = { "vmlet-scope": "s", "vmlet-machine": "m", "vmlet-birth": "b" };
/** Of the clock. */
const NOW = Date.parse("2026-06-01T00:00:00Z");
const JUST_NOW = new Date(NOW - 10_000).toISOString();
const STOPPED = 102;
const NEVER = "1970-01-01T00:00:00Z";

let server: Server;
let cloud: IncusCloud;
let clock: VirtualClock;
let path: string;
let asked: Asked[];
let answer: (call: Asked) => Reply | undefined;

beforeEach(async () => {
  asked = [];
  answer = () => undefined;
  server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { pathname, searchParams } = new URL(request.url!, "http://incus");
      const text = Buffer.concat(chunks).toString();
      const body = text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
      const call = {
        method: request.method!,
        path: pathname.replace(/^\/1\.0\/?/, ""),
        query: searchParams,
        body,
        url: request.url!,
      };
      asked.push(call);
      const { status = 200, error = "", metadata = null, operation = "" } = answer(call) ?? notFound("Instance");
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify({ type: "sync", error, error_code: status, metadata, operation }));
    });
  });
  path = join(await mkdtemp(join(tmpdir(), "in-")), "s");
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const place = {
    project: "p",
    instanceType: "container",
    image: "guest",
    storagePool: "pool",
    network: "net",
  } as const;
  clock = new VirtualClock(NOW);
  cloud = new IncusCloud({ url: `unix://${path}`, ...place, clock });
});

afterEach(async () => {
  await cloud.close();
  await new Promise((resolve) => server.close(resolve));
});

const notFound = (what: string): Reply => ({ status: 404, error: `${what} not found` });
const instance = (
  status: number,
  last_used_at = "2026-01-01T00:00:00Z",
  config: Record<string, string> = {},
): Reply => ({
  metadata: {
    name: "vm",
    status_code: status,
    location: "one",
    last_used_at,
    config: { "user.vmlet-scope": "s", "user.vmlet-birth": "b", "user.vmlet-type": "small", ...config },
  },
});
const isInstance = ({ method, path }: Asked) => method === "GET" && path === "instances/vm";
/** Of an order: it is taken, and ends as said. */
const ordered = (call: Asked, error: string | undefined): Reply | undefined => {
  if (call.method === "POST" && call.path === "instances") return { status: 202, operation: "/1.0/operations/o" };
  if (call.path !== "operations/o/wait") return undefined;
  return { metadata: error === undefined ? { status_code: 200 } : { status_code: 400, err: error } };
};
const create = () => cloud.createVm({ name: "vm", type: SMALL, labels }, { signal });

describe("an instance that was made and not started, because Incus was killed in between", () => {
  const madeAt = (ms: number): Reply => {
    const { metadata } = instance(STOPPED, NEVER);
    return { metadata: { ...(metadata as object), created_at: new Date(NOW - ms).toISOString() } };
  };
  const starts = () => asked.filter(({ method, body }) => method === "PUT" && body["action"] === "start");

  test("is started by who asks for it, whatever Incus says to that, and is on its way", async () => {
    answer = (call) =>
      isInstance(call)
        ? madeAt(30_000)
        : call.method === "PUT"
          ? { status: 400, error: "Instance is busy" }
          : undefined;
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ state: "booting" });
    expect(starts().map(({ path }) => path)).toEqual(["instances/vm/state"]);
  });

  test.each([
    ["that was made just now: its start follows", madeAt(5_000)],
    ["that has run", instance(STOPPED, JUST_NOW)],
    ["that runs", instance(103, JUST_NOW)],
  ])("no other one is: one %s", async (_what, reply) => {
    answer = (call) => (isInstance(call) ? reply : { metadata: {} });
    await cloud.getVm("vm", { signal });
    expect(starts()).toEqual([]);
  });
});

describe("an instance", () => {
  test("is absent only when Incus says so of itself", async () => {
    await expect(cloud.getVm("vm", { signal })).rejects.toMatchObject({ code: "not_found" });
    answer = () => notFound("Project");
    await expect(cloud.getVm("vm", { signal })).rejects.toMatchObject({ code: "unavailable" });
    answer = () => ({ status: 500, error: "Server isn't ready yet" });
    await expect(cloud.getVm("vm", { signal })).rejects.toMatchObject({ code: "unavailable" });
    answer = () => ({ status: 403, error: "Certificate is restricted" });
    await expect(cloud.getVm("vm", { signal })).rejects.toMatchObject({ code: "unauthorized" });
  });

  test("on a member that cannot be seen is out of sight, whatever else is said of it", async () => {
    answer = (call) => (isInstance(call) ? instance(112) : undefined);
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ isSeen: false });
    answer = (call) => (isInstance(call) ? instance(103) : { status: 500, error: "Server isn't ready yet" });
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ isSeen: false });
  });

  test.each([
    ["that never ran is on its way", 102, NEVER, "booting"],
    ["whose start is written down and not seen is on its way", 102, JUST_NOW, "booting"],
    ["that went with its host is stopped", 102, "2026-01-01T00:00:00Z", "stopped"],
    ["that starts is on its way", 106, NEVER, "booting"],
    ["that stops may still run something", 107, undefined, "deleting"],
    ["that is frozen runs", 110, undefined, "running"],
  ])("%s", async (_what, status, used, state) => {
    answer = (call) => (isInstance(call) ? instance(status, used) : undefined);
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ state, isSeen: true, type: "small", host: "one" });
  });

  test("on a member that is silent is out of sight, though nothing is said of itself", async () => {
    const listed = { name: "vm", status_code: 112, location: "two", config: null };
    answer = (call) =>
      call.path === "instances" ? { metadata: [listed] } : { status: 500, error: "Server isn't ready yet" };
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ name: "vm", isSeen: false, host: "two" });
    await expect(cloud.getVm("other", { signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("on a silent member is found in one list for all, which is read anew when it is old", async () => {
    const names = Array.from({ length: 40 }, (_, i) => `vm-${i}`);
    const metadata = names.map((name) => ({ name, status_code: 112, location: "two", config: null }));
    answer = (call) => (call.path === "instances" ? { metadata } : { status: 500, error: "Server isn't ready yet" });
    const lists = () => asked.filter((call) => call.path === "instances").length;
    const seen = await Promise.all(names.map((name) => cloud.getVm(name, { signal })));
    expect(seen.map(({ name, isSeen }) => [name, isSeen])).toEqual(names.map((name) => [name, false]));
    expect(lists()).toBe(1);
    await clock.advance(3_001);
    metadata.length = 0;
    await expect(cloud.getVm("vm-0", { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(lists()).toBe(2);
  });

  test("on a member that is being evacuated has a notice, until that is over", async () => {
    let status = "Evacuated";
    const members = () => [{ server_name: "one", status }];
    answer = (call) => {
      if (call.path === "cluster/members") return { metadata: members() };
      return isInstance(call) ? instance(103) : { metadata: {} };
    };
    const notice = { reason: "HostEvacuated", message: "cluster member one is being evacuated" };
    expect((await cloud.getVm("vm", { signal })).notice).toEqual(notice);
    await cloud.getVm("vm", { signal });
    expect(asked.filter(({ path: each }) => each === "cluster/members")).toHaveLength(1);
    status = "Online";
    await clock.advance(3_001);
    expect((await cloud.getVm("vm", { signal })).notice).toBeUndefined();
  });

  test("has no notice where the state of the members may not be read", async () => {
    answer = (call) => {
      if (call.path === "cluster/members") return { status: 403, error: "Forbidden" };
      return isInstance(call) ? instance(103) : { metadata: {} };
    };
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ state: "running", isSeen: true, notice: undefined });
  });

  test("that has run and was stopped is stopped at once", async () => {
    const power = { "volatile.last_state.power": "STOPPED" };
    answer = (call) => (isInstance(call) ? instance(102, JUST_NOW, power) : undefined);
    expect(await cloud.getVm("vm", { signal })).toMatchObject({ state: "stopped" });
  });

  test("has the labels of its order, and the addresses of its own network", async () => {
    const addresses = [
      { family: "inet6", address: "fd00::5", scope: "global" },
      { family: "inet", address: "10.0.0.5", scope: "global" },
      { family: "inet6", address: "fe80::1", scope: "link" },
    ];
    const network = { eth0: { addresses }, vmlet0: { addresses: [{ address: "100.127.255.1", scope: "global" }] } };
    answer = (call) => (isInstance(call) ? instance(103) : { metadata: { network } });
    expect(await cloud.getVm("vm", { signal })).toMatchObject({
      labels: { "vmlet-scope": "s", "vmlet-birth": "b" },
      addresses: ["10.0.0.5", "fd00::5"],
    });
  });
});

describe("an order", () => {
  test("says size and labels, and takes no profile", async () => {
    answer = (call) => ordered(call, undefined);
    await create();
    expect(asked[0]!.query.get("project")).toBe("p");
    expect(asked[0]!.body).toMatchObject({
      name: "vm",
      type: "container",
      start: true,
      profiles: [],
      source: { type: "image", alias: "guest" },
      config: {
        "limits.cpu": "1",
        "limits.cpu.allowance": "50ms/100ms",
        "limits.memory": String(2 ** 30),
        "security.nesting": "true",
        "boot.autostart": "false",
        // It goes when its pod has left, and not with it to another member.
        "cluster.evacuate": "stop",
        "boot.host_shutdown_timeout": "120",
        "user.vmlet-birth": "b",
      },
      devices: { root: { pool: "pool" }, eth0: { network: "net" } },
    });
  });

  test("is a conflict when an instance of another order has the name, whatever Incus calls that", async () => {
    answer = (call) => {
      const failed = ordered(
        call,
        "Failed creating instance record: UNIQUE constraint failed: instances.project_id, name",
      );
      return failed ?? (isInstance(call) ? instance(102, NEVER, { "user.vmlet-birth": "other" }) : undefined);
    };
    await expect(create()).rejects.toMatchObject({ code: "conflict" });
    expect(asked.some(({ method }) => method === "DELETE")).toBe(false);
  });

  test.each([
    [
      "the project's limit",
      'Failed checking if instance creation allowed: Reached maximum number of instances in project "p"',
      "quota",
    ],
    ["a limit of its memory", 'Reached maximum aggregate value "1GiB" for "limits.memory" in project "p"', "quota"],
    ["a member that is evacuated", "Cluster member is evacuated", "quota"],
    ["no member", "No suitable cluster member could be found", "quota"],
    ["an image that is not there", "Image not found", "unavailable"],
  ])("that fails for %s is %s", async (_why, error, code) => {
    answer = (call) => (call.method === "POST" ? { status: 400, error } : undefined);
    await expect(create()).rejects.toMatchObject({ code, message: expect.stringContaining(error) as unknown });
  });

  test("that another member carries out, whose operation is told with a query, is waited for", async () => {
    answer = ({ method, path: each }) => {
      const failed = { status_code: 400, err: "Reached maximum number of instances" };
      if (each === "operations/o/wait") return { metadata: failed };
      if (method === "POST") return { status: 202, operation: "/1.0/operations/o?project=p" };
      return each.startsWith("operations") ? { metadata: { status_code: 103 } } : undefined;
    };
    const order = cloud.createVm({ name: "vm", type: SMALL, labels }, { signal });
    await expect(order).rejects.toMatchObject({ code: "quota" });
  });

  test("whose instance was made and did not start leaves none", async () => {
    let isThere = true;
    answer = (call) => {
      if (call.method === "DELETE") isThere = false;
      if (call.method !== "GET" && call.path !== "instances") return { metadata: null };
      return (
        ordered(call, "Failed to start device") ?? (isInstance(call) && isThere ? instance(102, NEVER) : undefined)
      );
    };
    await expect(create()).rejects.toMatchObject({ code: "unavailable" });
    expect(isThere).toBe(false);
  });
});

test("an instance that is not there is deleted", async () => {
  await cloud.deleteVm("vm", { signal });
  expect(asked.map(({ method }) => method)).toEqual(["PUT", "DELETE"]);
});

test("one that stays is not taken for deleted", async () => {
  answer = (call) => (isInstance(call) ? instance(103) : { status: 400, error: "Instance is running" });
  await expect(cloud.deleteVm("vm", { signal })).rejects.toMatchObject({ code: "unavailable" });
});

test("of a list that ignores the filter only what has the label is taken", async () => {
  const other = { name: "other", status_code: 103, config: {} };
  answer = () => ({ metadata: [instance(103).metadata, other] });
  const found = await cloud.listVms(["vmlet-scope", "s"], { signal });
  expect(found.map(({ name }) => name)).toEqual(["vm"]);
  expect(asked[0]!.query.get("filter")).toBe("config.user.vmlet-scope eq s");
});

test("of a list with something that is no instance the others are taken", async () => {
  answer = () => ({ metadata: [null, "x", {}, instance(103).metadata] });
  const found = await cloud.listVms(["vmlet-scope", "s"], { signal });
  expect(found.map(({ name }) => name)).toEqual(["vm"]);
});

test("of a list of profiles with something that is none, and one without a configuration, the others are taken", async () => {
  answer = () => ({ metadata: [null, 7, { name: "vmlet-x-1", config: null }] });
  await expect(cloud.entries.list(["vmlet-scope", "s"], { signal })).resolves.toEqual([]);
});

describe("an entry", () => {
  let profiles: Map<string, Record<string, string>>;
  /** Numbers of versions that Incus does not remove. */
  let stubborn: number[];

  beforeEach(() => {
    profiles = new Map();
    stubborn = [];
    answer = ({ method, path, query, body }) => {
      const name = path.slice("profiles/".length);
      if (method === "GET" && path === "profiles") {
        const whole = query.get("recursion") === "1";
        const all = [...profiles].map(([each, config]) => (whole ? { name: each, config } : `/1.0/profiles/${each}`));
        return { metadata: all };
      }
      if (method === "POST") {
        const { name: wanted, config } = body as { name: string; config: Record<string, string> };
        if (profiles.has(wanted)) return { status: 400, error: `The profile "${wanted}" already exists` };
        profiles.set(wanted, config);
        return {};
      }
      if (!profiles.has(name)) return notFound("Profile");
      if (method === "DELETE" && stubborn.includes(Number(name.split("-").at(-1))))
        return { status: 500, error: "Database is locked" };
      if (method === "DELETE") profiles.delete(name);
      return { metadata: { name, config: profiles.get(name) } };
    };
  });

  test("is read as it was written last, and one version of it is kept", async () => {
    const { entries } = cloud;
    const first = await entries.create("m", { scope: "s", n: "1" }, { signal });
    await entries.swap("m", { scope: "s", n: "2" }, first.version, { signal });
    expect((await entries.get("m", { signal })).words).toEqual({ scope: "s", n: "2" });
    expect(await entries.list(["scope", "s"], { signal })).toHaveLength(1);
    expect(profiles.size).toBe(1);
  });

  test("that another has changed is a conflict, also when its number is free again", async () => {
    const { entries } = cloud;
    const first = await entries.create("m", { n: "1" }, { signal });
    const second = await entries.swap("m", { n: "2" }, first.version, { signal });
    await expect(entries.swap("m", { n: "x" }, first.version, { signal })).rejects.toMatchObject({ code: "conflict" });
    const third = await entries.swap("m", { n: "3" }, second.version, { signal });
    // Version 2 is gone by now.
    await expect(entries.swap("m", { n: "x" }, first.version, { signal })).rejects.toMatchObject({ code: "conflict" });
    expect(await entries.get("m", { signal })).toEqual(third);
    expect(profiles.size).toBe(1);
  });

  test("that is there cannot be created, one that was removed can", async () => {
    const { entries } = cloud;
    const first = await entries.create("m", { n: "1" }, { signal });
    await expect(entries.create("m", { n: "2" }, { signal })).rejects.toMatchObject({ code: "conflict" });
    await entries.remove("m", first.version, { signal });
    await expect(entries.get("m", { signal })).rejects.toMatchObject({ code: "not_found" });
    expect(await entries.list(["n", "1"], { signal })).toEqual([]);
    const again = await entries.create("m", { n: "2" }, { signal });
    expect(again.version).not.toBe(first.version);
    await expect(entries.swap("m", { n: "x" }, first.version, { signal })).rejects.toMatchObject({ code: "conflict" });
  });

  test("that was removed does not come back, whatever Incus did not remove of it", async () => {
    const { entries } = cloud;
    stubborn = [1, 2];
    const first = await entries.create("m", { n: "1" }, { signal });
    const second = await entries.swap("m", { n: "2" }, first.version, { signal });
    await entries.remove("m", second.version, { signal });
    await clock.advance(2 * 3_600_000);
    await entries.list(["n", "1"], { signal });
    await expect(entries.get("m", { signal })).rejects.toMatchObject({ code: "not_found" });
    stubborn = [];
    await entries.list(["n", "1"], { signal });
    expect(profiles.size).toBe(0);
  });

  test("of a project that is not there is not known to be absent", async () => {
    answer = () => notFound("Project");
    await expect(cloud.entries.get("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
  });
});

describe("what is missing", () => {
  const problems = () =>
    incusProblems(
      { url: `unix://${path}`, project: "p", image: "guest", storagePool: "pool", network: "net" },
      { signal },
    );
  const trusted = ({ path: asked }: Asked) => (asked === "" ? { metadata: { auth: "trusted" } } : undefined);

  test("is nothing where all is there", async () => {
    answer = (call) => trusted(call) ?? {};
    expect(await problems()).toEqual([]);
  });

  test("is asked of the server by its very path", async () => {
    answer = (call) => trusted(call) ?? {};
    await problems();
    expect(asked[0]!.path).toBe("");
    expect(asked[0]!.url).toBe("/1.0?project=p");
  });

  test("is trust in the certificate, before anything else", async () => {
    answer = () => ({ metadata: { auth: "untrusted" } });
    expect(await problems()).toMatchObject([{ cure: expect.stringContaining("--restricted --projects p") as unknown }]);
  });

  test("is a right on the project", async () => {
    answer = (call) => trusted(call) ?? { status: 403, error: "Certificate is restricted" };
    expect(await problems()).toMatchObject([{ problem: "project p: Certificate is restricted" }]);
  });

  test.each([
    ["image", "images/aliases/guest", "vmlet cloud image"],
    ["network", "networks/net", "incus network list"],
    ["storagePool", "storage-pools/pool", "incus storage list"],
  ])("is the %s, with the cure", async (field, missing, cure) => {
    answer = (call) => trusted(call) ?? (call.path === missing ? notFound("It") : {});
    const [only, ...others] = await problems();
    expect(others).toEqual([]);
    expect(only).toMatchObject({ problem: expect.stringContaining(`cloud.${field}`) as unknown });
    expect(only!.cure).toContain(cure);
  });
});
