/** Who a caller of the Machine API is, and what that client reaches. */
import { mkdtempSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { request as httpsRequest } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as tlsConnect } from "node:tls";
import { afterEach, describe, expect, test } from "vitest";
import {
  MachineApiServer,
  HttpVmProvider,
  type ApiClient,
  type MachineApiServerOptions,
} from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { csiNodeId } from "../../../src/provider/csi-names.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { silentLogger, type Logger } from "../../../src/telemetry/logger.ts";
import { caCert, serverCert, serverKey } from "../../support/tls.ts";
import { namedCert, namedKey, namesCa } from "../../support/tls-names.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const CLUSTER = "cluster-a";
const signal = new AbortController().signal;

const specOf = (labels: Record<string, string>): MachineSpec => ({
  labels,
  restart_policy: "never",
  containers: [{ name: "c", image: "i", command: ["sleep", "60"] }],
});

/** A backend with machines of two clusters and two nodes, tombstones of both, and one of an id that never was. */
async function backendWith(clients: readonly ApiClient[], more: Partial<MachineApiServerOptions> = {}) {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, auth: { clients }, ...more });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
  );
  const owners = { own: [CLUSTER, "n-0"], neighbour: [CLUSTER, "n-1"], foreign: ["cluster-b", "n-0"] } as const;
  for (const [id, [cluster, node]] of Object.entries(owners)) {
    await memory.createPod(id, specOf(ownerLabels(cluster, node)), { signal });
    await memory.createPod(`${id}-gone`, specOf(ownerLabels(cluster, node)), { signal });
    await memory.deletePod(`${id}-gone`, { signal, force: true });
  }
  await memory.deletePod("never-was", { signal, force: true });
  await expect.poll(() => memory.machines.filter(({ state }) => state === "running").length).toBe(3);
  await expect.poll(async () => (await memory.getPod("own-gone", { signal })).state).toBe("deleted");
  const call = async (method: string, path: string, body?: unknown) => {
    const reply = await fetch(url + path, {
      method,
      headers: { authorization: "Bearer token-a", "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await reply.text();
    // oxlint-disable-next-line typescript/no-unsafe-type-assertion
    return { status: reply.status, body: (text === "" ? undefined : JSON.parse(text)) as Reply };
  };
  return { memory, server, url, call };
}

interface Reply {
  items: { id: string }[];
  id: string;
  state: string;
  revision: number;
  events: { machine: { id: string } }[];
  error: { code: string; message: string };
}

const agent = (scope: Partial<ApiClient> = {}): ApiClient => ({
  name: "agent-a",
  bearerTokens: () => ["token-a"],
  clusters: [CLUSTER],
  nodes: ["n-0"],
  ...scope,
});

const ids = ({ items }: Reply) => items.map(({ id }) => id).toSorted();
const query = (cluster: string, node: string) =>
  Object.entries(ownerLabels(cluster, node))
    .map(([label, value]) => `label=${encodeURIComponent(`${label}=${value}`)}`)
    .join("&");

describe("a client that is bound to a cluster and a node", () => {
  test.each(["neighbour", "foreign", "neighbour-gone", "foreign-gone"])(
    "reaches nothing of machine %s, and does nothing to it, and is never told that it is absent",
    async (id) => {
      const { call, memory } = await backendWith([agent()]);
      const before = await memory.getPod(id, { signal });
      const refusals = await Promise.all([
        call("GET", `/v1/machines/${id}`),
        call("GET", `/v1/machines/${id}?wait=stopped&timeout=1`),
        call("PATCH", `/v1/machines/${id}`, { containers: [{ name: "c", image: "evil" }] }),
        call("POST", `/v1/machines/${id}/stop`, { grace_seconds: 0 }),
        call("DELETE", `/v1/machines/${id}?force=true`),
        call("GET", `/v1/machines/${id}/containers/c/logs`),
      ]);
      expect(refusals.map(({ status, body }) => [status, body.error.code])).toEqual(
        refusals.map(() => [401, "unauthorized"]),
      );
      expect(refusals[0].body.error.message).toMatch(/^the client agent-a may not reach this machine/);
      expect(await memory.getPod(id, { signal })).toEqual(before);
    },
  );

  test.each(["exec", "attach", "portForward"] as const)("opens no %s into another's machine", async (kind) => {
    const { url, memory } = await backendWith([agent()]);
    let opened = 0;
    const count = () => (opened++, Promise.reject(new Error("opened")));
    Object.assign(memory, { exec: count, attach: count, portForward: count });
    const provider = providerOf(url);
    const streams = { signal, stdin: false, stdout: true, stderr: false, tty: false };
    const open = {
      exec: () => provider.exec("neighbour", "c", ["true"], streams),
      attach: () => provider.attach("neighbour", "c", streams),
      portForward: () => provider.portForward("neighbour", 80, { signal }),
    };
    await expect(open[kind]()).rejects.toMatchObject({ code: "unauthorized" });
    expect(opened).toBe(0);
  });

  test("does everything to its own machines", async () => {
    const { call, url, memory } = await backendWith([agent()]);
    expect((await call("GET", "/v1/machines/own")).body).toMatchObject({ id: "own", state: "running" });
    expect((await call("GET", "/v1/machines/own-gone")).body.state).toBe("deleted");
    expect((await call("PUT", "/v1/machines/next", specOf(ownerLabels(CLUSTER, "n-0")))).status).toBe(200);
    memory.portForward = () => Promise.reject(new Error("reached"));
    await expect(providerOf(url).portForward("own", 80, { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect((await call("POST", "/v1/machines/own/stop", { grace_seconds: 0 })).status).toBe(202);
    expect((await call("DELETE", "/v1/machines/own?force=true")).status).toBe(204);
  });

  test.each([
    ["of another node", ownerLabels(CLUSTER, "n-1")],
    ["of another cluster", ownerLabels("cluster-b", "n-0")],
    ["of nobody", {}],
    ["of an inherited label", { ...ownerLabels(CLUSTER, "n-0"), "vmlet.dev/node": "constructor" }],
  ])("makes no machine %s", async (_title, labels) => {
    const { call, memory } = await backendWith([agent()]);
    const { status, body } = await call("PUT", "/v1/machines/next", specOf(labels));
    expect([status, body.error.code]).toEqual([401, "unauthorized"]);
    await expect(memory.getPod("next", { signal })).rejects.toMatchObject({ code: "not_found" });
  });

  test("does not get another's machine by creating it", async () => {
    const { call, memory } = await backendWith([agent()]);
    const before = await memory.getPod("neighbour", { signal });
    const { body } = await call("PUT", "/v1/machines/neighbour", specOf(ownerLabels(CLUSTER, "n-0")));
    expect(body.error.code).toBe("conflict");
    expect(await memory.getPod("neighbour", { signal })).toEqual(before);
  });

  test("is told that a machine is absent which is, and leaves a tombstone in its place", async () => {
    const { call } = await backendWith([agent()]);
    expect((await call("GET", "/v1/machines/nowhere")).body.error.code).toBe("not_found");
    expect((await call("DELETE", "/v1/machines/nowhere")).status).toBe(204);
    expect((await call("GET", "/v1/machines/nowhere")).body.state).toBe("deleted");
    expect((await call("PUT", "/v1/machines/nowhere", specOf(ownerLabels(CLUSTER, "n-0")))).body.error.code).toBe(
      "gone",
    );
  });

  test.each(["", query(CLUSTER, "n-0")])("lists its own machines and tombstones, by %j", async (labels) => {
    const { call } = await backendWith([agent()]);
    expect(ids((await call("GET", `/v1/machines?${labels}`)).body)).toEqual(["own"]);
    const all = (await call("GET", `/v1/machines?include_deleted=true&${labels}`)).body;
    expect(ids(all)).toEqual(["own", "own-gone"]);
    expect(ids((await call("GET", `/v1/stats?${labels}`)).body)).toEqual(["own"]);
  });

  test.each([query(CLUSTER, "n-1"), query("cluster-b", "n-0")])(
    "is refused lists, events and stats of others, which would look as if their machines were gone: %s",
    async (labels) => {
      const { call } = await backendWith([agent()]);
      for (const path of ["/v1/machines?", "/v1/events?since=0&timeout=0&", "/v1/stats?"]) {
        const { status, body } = await call("GET", path + labels);
        expect([path, status, body.error?.code]).toEqual([path, 401, "unauthorized"]);
      }
    },
  );

  test("sees the events of its own machines alone", async () => {
    const { call, memory } = await backendWith([agent()]);
    const { revision } = (await call("GET", "/v1/machines")).body;
    for (const id of ["neighbour", "foreign", "own"]) await memory.stopPod(id, { signal, graceSeconds: 0 });
    const seen: string[] = [];
    for (let since = revision; seen.length === 0;) {
      const { body } = await call("GET", `/v1/events?since=${since}&timeout=5`);
      since = body.revision;
      seen.push(...body.events.map(({ machine }) => machine.id));
    }
    expect(new Set(seen)).toEqual(new Set(["own"]));
  });
});

describe("a client that is bound", () => {
  test("to two nodes of any cluster is shown the machines of both", async () => {
    const { call } = await backendWith([agent({ clusters: undefined, nodes: ["n-0", "n-1"] })]);
    expect(ids((await call("GET", "/v1/machines")).body)).toEqual(["foreign", "neighbour", "own"]);
    expect(ids((await call("GET", `/v1/stats?${query(CLUSTER, "n-1")}`)).body)).toEqual(["neighbour"]);
  });

  test("to a cluster is shown all of its nodes, and no other cluster", async () => {
    const { call } = await backendWith([agent({ nodes: undefined })]);
    expect(ids((await call("GET", "/v1/machines")).body)).toEqual(["neighbour", "own"]);
  });

  test.each<[verb: "read" | "logs" | "write" | "exec" | "port_forward", allowed: string[]]>([
    ["read", ["get", "list", "events", "stats"]],
    ["logs", ["logs"]],
    ["write", ["stop", "delete"]],
    ["exec", ["exec", "attach"]],
    ["port_forward", ["port"]],
  ])("to the verb %s does nothing else", async (verb, allowed) => {
    const { call, url, memory } = await backendWith([agent({ verbs: [verb] })]);
    const opened = () => Promise.reject(new Error("opened"));
    Object.assign(memory, { exec: opened, attach: opened, portForward: opened });
    const provider = providerOf(url);
    const streams = { signal, stdin: false, stdout: true, stderr: false, tty: false };
    const codeOf = (call: Promise<unknown>) =>
      call.then(
        () => "ok",
        ({ code }: { code: string }) => code,
      );
    const done: Record<string, () => Promise<unknown>> = {
      get: () => call("GET", "/v1/machines/own"),
      list: () => call("GET", "/v1/machines"),
      events: () => call("GET", "/v1/events?since=0&timeout=0"),
      stats: () => call("GET", "/v1/stats"),
      logs: () => codeOf(provider.getLogs("own", "c", { signal }).next()),
      exec: () => codeOf(provider.exec("own", "c", ["true"], streams)),
      attach: () => codeOf(provider.attach("own", "c", streams)),
      port: () => codeOf(provider.portForward("own", 80, { signal })),
      stop: () => call("POST", "/v1/machines/own/stop", { grace_seconds: 0 }),
      delete: () => call("DELETE", "/v1/machines/own?force=true"),
    };
    const refused: string[] = [];
    for (const [name, act] of Object.entries(done)) {
      const outcome = await act();
      const code = typeof outcome === "string" ? outcome : (outcome as { body?: Reply }).body?.error?.code;
      if (code === "unauthorized") refused.push(name);
    }
    expect(refused).toEqual(Object.keys(done).filter((name) => !allowed.includes(name)));
  });
});

describe("images that are kept ready, which take the host's disk,", () => {
  const image = (cluster: string) => ({ labels: ownerLabels(cluster, "x"), image: "r.test/app:1" });
  const withImages = async (scope: Partial<ApiClient>) => {
    const it = await backendWith([agent(scope)]);
    await it.memory.images.create("own", image(CLUSTER), { signal });
    await it.memory.images.create("foreign", image("cluster-b"), { signal });
    return it;
  };

  test("are read by any client of their cluster, and changed by none that lacks the verb", async () => {
    const { call } = await withImages({ nodes: undefined });
    expect(ids((await call("GET", "/v1/images")).body)).toEqual(["own"]);
    expect((await call("GET", "/v1/images/own")).status).toBe(200);
    expect((await call("PUT", "/v1/images/next", image(CLUSTER))).body?.error?.code).toBe("unauthorized");
    expect((await call("DELETE", "/v1/images/own")).body?.error?.code).toBe("unauthorized");
  });

  test("are changed by a client that has it, in its own cluster", async () => {
    const { call, memory } = await withImages({ verbs: ["read", "images"] });
    expect((await call("PUT", "/v1/images/next", image(CLUSTER))).status).toBe(200);
    expect((await call("DELETE", "/v1/images/own")).status).toBe(204);
    for (const [method, path, body] of [
      ["GET", "/v1/images/foreign", undefined],
      ["PUT", "/v1/images/foreign", image(CLUSTER)],
      ["PUT", "/v1/images/other", image("cluster-b")],
      ["DELETE", "/v1/images/foreign", undefined],
    ] as const)
      expect([path, (await call(method, path, body)).body?.error?.code]).toEqual([path, "unauthorized"]);
    expect(await memory.images.get("foreign", { signal })).toMatchObject({ id: "foreign" });
  });
});

describe("volumes, which are a cluster's", () => {
  const volume = (cluster: string) => ({
    labels: ownerLabels(cluster, "x"),
    size_bytes: 1,
    mode: "filesystem" as const,
  });
  const withVolumes = async (scope: Partial<ApiClient>) => {
    const it = await backendWith([agent(scope)]);
    await it.memory.volumes.create("own-disk", volume(CLUSTER), { signal });
    await it.memory.volumes.create("foreign-disk", volume("cluster-b"), { signal });
    return it;
  };
  const codeOf = async (reply: Promise<{ status: number; body: Reply | undefined }>) => {
    const { status, body } = await reply;
    return body?.error?.code ?? status;
  };
  const ofNode = (node: string) => csiNodeId(CLUSTER, node);
  const machineWith = (id: string, reservation: string | undefined = ofNode("n-0")): MachineSpec => ({
    ...specOf(ownerLabels(CLUSTER, "n-0")),
    volumes: [{ name: "data", type: "persistent", volume: id, ...(reservation !== "" && { reservation }) }],
  });

  test("are read by a client that is bound to a node, and not changed", async () => {
    const { call } = await withVolumes({});
    expect(ids((await call("GET", "/v1/volumes")).body)).toEqual(["own-disk"]);
    expect(await codeOf(call("GET", "/v1/volumes/own-disk"))).toBe(200);
    for (const [method, path, body] of [
      ["PUT", "/v1/volumes/next", volume(CLUSTER)],
      ["PATCH", "/v1/volumes/own-disk", { size_bytes: 2 }],
      ["PUT", "/v1/volumes/own-disk/reservations/n-0", {}],
      ["DELETE", "/v1/volumes/own-disk/reservations/n-0", undefined],
      ["DELETE", "/v1/volumes/own-disk", undefined],
    ] as const)
      expect([method, path, await codeOf(call(method, path, body))]).toEqual([method, path, "unauthorized"]);
  });

  test("are changed by a client that has the verb, in its own cluster", async () => {
    const { call } = await withVolumes({ nodes: undefined, verbs: ["read", "volumes"] });
    expect(await codeOf(call("PUT", "/v1/volumes/next", volume(CLUSTER)))).toBe(200);
    expect(await codeOf(call("PATCH", "/v1/volumes/own-disk", { size_bytes: 2 }))).toBe(200);
    expect(await codeOf(call("PUT", "/v1/volumes/own-disk/reservations/n-0", {}))).toBe(200);
    expect(await codeOf(call("DELETE", "/v1/volumes/own-disk/reservations/n-0"))).toBe(204);
    expect(await codeOf(call("DELETE", "/v1/volumes/own-disk"))).toBe(204);
    expect(await codeOf(call("DELETE", "/v1/volumes/never-was"))).toBe(204);
  });

  test("are taken by force from machines of its own nodes alone", async () => {
    const { call, memory } = await withVolumes({ verbs: ["read", "write", "volumes"] });
    for (const node of ["n-0", "n-1"]) {
      await memory.volumes.reserve("own-disk", ofNode(node), { signal });
      const spec = { ...machineWith("own-disk", ofNode(node)), labels: ownerLabels(CLUSTER, node) };
      await memory.createPod(`of-${node}`, spec, { signal });
      const forced = await codeOf(call("DELETE", `/v1/volumes/own-disk/reservations/${ofNode(node)}?force=true`));
      const { state } = await memory.getPod(`of-${node}`, { signal });
      expect([node, forced, state]).toEqual(
        node === "n-0" ? [node, 204, "stopped"] : [node, "unauthorized", expect.stringMatching(/pending|running/)],
      );
    }
  });

  test("of another cluster are out of reach, and never said to be absent", async () => {
    const { call, memory } = await withVolumes({ nodes: undefined });
    const before = await memory.volumes.get("foreign-disk", { signal });
    for (const [method, path, body] of [
      ["GET", "/v1/volumes/foreign-disk", undefined],
      ["PUT", "/v1/volumes/foreign-disk", volume(CLUSTER)],
      ["PUT", "/v1/volumes/next", volume("cluster-b")],
      ["PATCH", "/v1/volumes/foreign-disk", { size_bytes: 2 }],
      ["PUT", "/v1/volumes/foreign-disk/reservations/n-0", {}],
      ["DELETE", "/v1/volumes/foreign-disk/reservations/n-0", undefined],
      ["DELETE", "/v1/volumes/foreign-disk", undefined],
      ["GET", `/v1/volumes?${query("cluster-b", "n-0").split("&")[0]}`, undefined],
    ] as const)
      expect([method, path, await codeOf(call(method, path, body))]).toEqual([method, path, "unauthorized"]);
    expect(await memory.volumes.get("foreign-disk", { signal })).toEqual(before);
  });

  test("are given to no machine of a client that is bound to nodes of no cluster", async () => {
    const { call } = await withVolumes({ clusters: undefined });
    expect(await codeOf(call("PUT", "/v1/machines/thief", machineWith("own-disk")))).toBe("unauthorized");
  });

  test("of another cluster are given to no machine", async () => {
    const { call, memory } = await withVolumes({});
    await memory.volumes.reserve("own-disk", ofNode("n-0"), { signal });
    expect(await codeOf(call("PUT", "/v1/machines/thief", machineWith("foreign-disk")))).toBe("unauthorized");
    expect(await codeOf(call("PUT", "/v1/machines/keeper", machineWith("own-disk")))).toBe(200);
    expect(await codeOf(call("PUT", "/v1/machines/hopeful", machineWith("no-disk")))).toBe("not_found");
    expect((await memory.volumes.get("foreign-disk", { signal })).attachments).toEqual([]);
  });
});

describe("volumes of a cluster, for a client that is bound to nodes", () => {
  const volume = { labels: ownerLabels(CLUSTER, "x"), size_bytes: 1, mode: "filesystem" as const };
  const reserved = csiNodeId(CLUSTER, "n-1");
  const made = async (reservation: string | undefined, reservedFor: string | undefined) => {
    const { call, memory } = await backendWith([agent({})]);
    await memory.volumes.create("disk", volume, { signal });
    if (reservedFor !== undefined) await memory.volumes.reserve("disk", reservedFor, { signal });
    const claim = { name: "data", type: "persistent" as const, volume: "disk", ...(reservation && { reservation }) };
    const { body } = await call("PUT", "/v1/machines/m", {
      ...specOf(ownerLabels(CLUSTER, "n-0")),
      volumes: [claim],
    });
    return { reply: body, attachments: (await memory.volumes.get("disk", { signal })).attachments };
  };

  test.each([
    ["that is kept for another node", reserved, reserved],
    ["that is kept for nobody, and has what another node's machine left on it", undefined, undefined],
    ["by the reservation of a cluster that is named alike", csiNodeId("cluster-b", "n-0"), undefined],
  ])("are given to none of its machines %s", async (_what, reservation, reservedFor) => {
    const { reply, attachments } = await made(reservation, reservedFor);
    expect(reply?.error).toMatchObject({
      code: "unauthorized",
      message: expect.stringContaining(`its node's is ${csiNodeId(CLUSTER, "n-0")}`),
    });
    expect(attachments).toEqual([]);
  });

  test("are given to its machines by the reservation of their own node", async () => {
    const own = csiNodeId(CLUSTER, "n-0");
    expect((await made(own, own)).attachments).toEqual([expect.objectContaining({ machine: "m", reservation: own })]);
  });
});

describe("what a backend reserves for some namespaces", () => {
  const privileged = { containers: [{ name: "c", image: "i", security: { privileged: true } }] };
  const made = async (client: Partial<ApiClient>, spec: object) => {
    const { call, memory } = await backendWith([agent({ clusters: undefined, nodes: undefined, ...client })]);
    const info = await memory.getInfo({ signal });
    const reserved = { capabilities: ["privileged", "host_pid"], namespaces: ["kube-system"] };
    const create = memory.createPod.bind(memory);
    Object.assign(memory, {
      getInfo: () => Promise.resolve({ ...info, capabilities: ALL_CAPABILITIES, reserved }),
      createPod: (id: string, { labels }: MachineSpec, options: { signal: AbortSignal }) =>
        create(id, specOf(labels), options),
    });
    const body = { labels: {}, restart_policy: "never", containers: [{ name: "c", image: "i" }], ...spec };
    return { reply: (await call("PUT", "/v1/machines/new", body)).body, call };
  };

  test.each([
    ["privileged", privileged],
    ["the host's processes", { host: { pid: true } }],
  ])("is refused to a client without the verb host: %s", async (_name, spec) => {
    const { reply } = await made({}, spec);
    expect(reply.error).toMatchObject({
      code: "unauthorized",
      message: expect.stringContaining("lacks the verb host"),
    });
  });

  test("is had by one that was given it, and what is not reserved by all", async () => {
    expect((await made({ verbs: ["read", "write", "host"] }, privileged)).reply.error).toBeUndefined();
    expect((await made({}, {})).reply.error).toBeUndefined();
  });

  test("is not had by a container that is added later either", async () => {
    const { call } = await made({}, {});
    const { body } = await call("PATCH", "/v1/machines/new", {
      ephemeral_containers: [{ name: "debug", image: "i", security: { privileged: true } }],
    });
    expect(body.error?.code).toBe("unauthorized");
  });
});

describe("which client it is", () => {
  test("its token says, one beside the other, and each can be replaced", async () => {
    let tokens = ["token-a"];
    const { url } = await backendWith([
      agent({ bearerTokens: () => tokens }),
      agent({ name: "agent-b", bearerTokens: () => ["token-b"], nodes: ["n-1"] }),
    ]);
    const machinesOf = async (token: string) => {
      const reply = await fetch(`${url}/v1/machines`, { headers: { authorization: `Bearer ${token}` } });
      return reply.status === 200 ? ids((await reply.json()) as Reply) : reply.status;
    };
    expect(await machinesOf("token-a")).toEqual(["own"]);
    expect(await machinesOf("token-b")).toEqual(["neighbour"]);
    expect(await machinesOf("token-c")).toBe(401);
    tokens = ["token-c"];
    expect([await machinesOf("token-a"), await machinesOf("token-c")]).toEqual([401, ["own"]]);
  });

  test("a token beside them that is nobody's in particular may do everything", async () => {
    const { call } = await backendWith([], {
      auth: { bearerTokens: () => ["token-a"], clients: [agent({ bearerTokens: () => ["other"] })] },
    });
    expect(ids((await call("GET", "/v1/machines")).body)).toEqual(["foreign", "neighbour", "own"]);
  });

  const tls = { cert: serverCert, key: serverKey, clientCa: namesCa };
  const named = { cert: namedCert, key: namedKey };

  /** The status of a list, and what is on it, by a connection of its own. */
  const listBy = (url: string, certificate: object, token?: string): Promise<[number | string, unknown]> =>
    new Promise((resolve) => {
      const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
      const request = httpsRequest(`${url}/v1/machines`, { ca: caCert, agent: false, headers, ...certificate });
      request.on("error", () => resolve(["cut", undefined]));
      request.on("response", (reply) => {
        void reply.toArray().then((chunks: Buffer[]) => {
          const body = JSON.parse(Buffer.concat(chunks).toString()) as Reply;
          resolve([reply.statusCode!, reply.statusCode === 200 ? ids(body) : body.error.message]);
        });
      });
      request.end();
    });

  test.each([
    ["agent-cn", true],
    ["other-cn", true],
    ["agent.example", true],
    ["spiffe://vmlet/agent", true],
    ["spiffe://vmlet/a,b", true],
    ["spiffe://vmlet/forged", false],
    ["forged@example", false],
    ["agent", false],
    ["AGENT-CN", false],
  ])("its certificate's name says: %s, %s", async (name, known) => {
    const { url } = await backendWith([agent({ bearerTokens: undefined, certificateNames: [name] })], { tls });
    expect(await listBy(url, named)).toEqual(
      known ? [200, ["own"]] : [401, "the certificate's names are those of no client"],
    );
    expect(await listBy(url, {})).toEqual(["cut", undefined]);
  });

  test("token and certificate say together, where both are asked for", async () => {
    const both = agent({ certificateNames: ["agent-cn"] });
    const { url } = await backendWith([both], { tls });
    expect(await listBy(url, named, "token-a")).toEqual([200, ["own"]]);
    expect((await listBy(url, named))[0]).toBe(401);
    expect((await listBy(url, named, "token-b"))[0]).toBe(401);
  });

  test("a certificate of a CA that is gone says nothing any more, on connections from before either", async () => {
    const client = agent({ bearerTokens: undefined, certificateNames: ["agent-cn"] });
    const { url, server, memory } = await backendWith([client], { tls });
    const watching = Promise.withResolvers<void>();
    const watch = memory.watchPods.bind(memory);
    memory.watchPods = (...args) => (watching.resolve(), watch(...args));
    const { revision } = await memory.getPods({ labels: {}, signal });
    const socket = tlsConnect({ port: Number(new URL(url).port), ca: caCert, ...named });
    cleanups.push(() => Promise.resolve(socket.destroy()));
    const get = (path: string) => socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
    get(`/v1/events?since=${revision}&timeout=60`);
    await watching.promise;
    server.setTls({ ...tls, clientCa: caCert });
    await memory.stopPod("own", { signal, graceSeconds: 0 });
    get("/v1/machines");
    const replies = (await socket.toArray()).join("");
    expect(replies.match(/HTTP\/1\.1 \d+/g)).toEqual(["HTTP/1.1 200", "HTTP/1.1 401"]);
    expect(replies).toContain("the client certificate counts no more: connect again");
    expect(await listBy(url, named)).toEqual(["cut", undefined]);
  });
});

describe("a server that asks for no credentials", () => {
  test("does not listen where other hosts reach it", async () => {
    const server = new MachineApiServer({ provider: new MemoryProvider(), logger: silentLogger });
    await expect(server.listen({ host: "0.0.0.0", port: 0 })).rejects.toThrow("0.0.0.0 is reached by other hosts");
  });

  test("says on loopback that every program of this host may use it", async () => {
    const warnings: string[] = [];
    const logger: Logger = { ...silentLogger, warn: (_fields, message) => void warnings.push(message) };
    const server = new MachineApiServer({ provider: new MemoryProvider(), logger });
    cleanups.push(() => server.close());
    await server.listen({ host: "127.0.0.1", port: 0 });
    expect(warnings).toEqual([expect.stringContaining("every program of this host may use it")]);
  });
});

test("one of several clients cannot take all connections", async () => {
  const { url, call } = await backendWith(
    [agent(), agent({ name: "agent-b", bearerTokens: () => ["token-b"], nodes: ["n-1"] })],
    { limits: { connections: 4, connectionsPerClient: 2 } },
  );
  const { revision } = (await call("GET", "/v1/machines")).body;
  const waiting = new AbortController();
  cleanups.push(() => Promise.resolve(waiting.abort()));
  const wait = (token: string) =>
    fetch(`${url}/v1/events?since=${revision}&timeout=60`, {
      headers: { authorization: `Bearer ${token}` },
      signal: waiting.signal,
    });
  const held = [wait("token-a"), wait("token-a")].map((poll) => poll.catch(() => {}));
  await expect
    .poll(async () => (await fetch(`${url}/v1/machines`, { headers: { authorization: "Bearer token-a" } })).status)
    .toBe(429);
  expect((await fetch(`${url}/v1/machines`, { headers: { authorization: "Bearer token-b" } })).status).toBe(200);
  waiting.abort();
  await Promise.all(held);
});

function providerOf(url: string): HttpVmProvider {
  const folder = mkdtempSync(join(tmpdir(), "vmlet-clients-"));
  writeFileSync(join(folder, "token"), "token-a");
  const provider = new HttpVmProvider({ url, credentials: { tokenFile: join(folder, "token") } });
  cleanups.push(
    () => rm(folder, { recursive: true }),
    () => provider.close(),
  );
  return provider;
}
