/** A reply is judged item by item: what is wrong with one machine of many is that one's, whatever is wrong with it. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { HttpVmProvider, type HttpVmLimits, type InvalidReason } from "../../../providers/http-vm/index.ts";
import type { MachineEvent, UnknownMachineEvent } from "../../../src/provider/provider.ts";
import { machine } from "../../support/builders.ts";

const signal = new AbortController().signal;
const LABELS = { node: "n" };

const told = (id: string, rest: object = {}): Record<string, unknown> => ({
  ...machine({ id, version: 3, revision: 5, labels: { node: "n" }, addresses: [{ ip: "10.0.0.1" }] }),
  ...rest,
});
const text = (value: unknown): string => JSON.stringify(value);

let server: Server;
let provider: HttpVmProvider;
let invalid: InvalidReason[];
let reply: (request: IncomingMessage, response: ServerResponse) => void;

async function connect(limits: Partial<HttpVmLimits> = {}): Promise<void> {
  await provider?.close();
  const { port } = server.address() as AddressInfo;
  const onInvalidReply = (reason: InvalidReason) => void invalid.push(reason);
  provider = new HttpVmProvider({ url: `http://127.0.0.1:${port}`, limits, onInvalidReply });
}

beforeEach(async () => {
  invalid = [];
  server = createServer((request, response) => {
    response.setHeader("x-request-id", request.headers["x-request-id"]!);
    response.setHeader("content-type", "application/json");
    reply(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  await connect();
});

afterEach(async () => {
  await provider.close();
  server.closeAllConnections();
  server.close();
});

/** Answers with a page of these items, each as its own JSON text. */
function page(...items: (string | Buffer)[]): void {
  const body = Buffer.concat([
    Buffer.from('{"revision":9,"items":['),
    ...items.flatMap((item, index) => [Buffer.from(index === 0 ? "" : ","), Buffer.from(item)]),
    Buffer.from("]}"),
  ]);
  reply = (_request, response) => void response.end(body);
}

const sound = text(told("a"));
const deep = `${"[".repeat(100)}${"]".repeat(100)}`;

/** What may be wrong with machine `b`, the reason that is counted, and what of it is sure all the same. */
const FAULTS: [string, string | Buffer, InvalidReason, object | undefined][] = [
  ["an unknown state", text(told("b", { state: "hibernating" })), "schema", { id: "b", version: 3 }],
  ["a state that is a number", text(told("b", { state: 7 })), "schema", { id: "b", version: 3 }],
  ["a version below zero", text(told("b", { version: -1 })), "schema", { id: "b", state: "running" }],
  ["a container of an unknown kind", text(told("b", { containers: [{ kind: "x" }] })), "schema", { state: "running" }],
  ["an address that is none", text(told("b", { addresses: [{ ip: "host" }] })), "schema", { state: "running" }],
  ["more addresses than any has", text(told("b", { addresses: Array(17).fill({ ip: "10.0.0.2" }) })), "schema", {}],
  ["more containers than any has", text(told("b", { containers: Array(1001).fill({}) })), "schema", {}],
  ["labels that are a list", text(told("b", { labels: [] })), "schema", { id: "b" }],
  ["a time that is none", text(told("b", { created_at: "yesterday" })), "schema", {}],
  ["__proto__ as a field", text(told("b")).replace("{", '{"__proto__":{"x":1},'), "keys", { state: "running" }],
  ["constructor as a field", text(told("b")).replace("{", '{"constructor":{"x":1},'), "keys", { state: "running" }],
  ["one field twice", text(told("b")).replace("{", '{"state":"stopped",'), "duplicate_key", { id: "b" }],
  ["one field twice in depth", text(told("b", { x: [1] })).replace("[1]", '{"y":1,"y":2}'), "duplicate_key", {}],
  ["nested too deep", text(told("b", { x: 0 })).replace('"x":0', `"x":${deep}`), "depth", { state: "running" }],
  ["a number that JSON has not", text(told("b", { x: 0 })).replace('"x":0', '"x":NaN'), "json", undefined],
  ["no JSON", "{b}", "json", undefined],
  ["no machine", "null", "schema", undefined],
  ["an id that is a path", text(told("../b")), "schema", undefined],
  ["no id", text(told("b", { id: undefined })), "schema", undefined],
];

describe("in a list, a machine with", () => {
  test.each(FAULTS)("%s is unknown, and the others are as they are", async (_name, item, reason, sure) => {
    page(sound, item, text(told("c")));
    const list = await provider.getPods({ signal, labels: LABELS });
    expect(list.items.map(({ id }) => id)).toEqual(["a", "c"]);
    expect(list.unknown ?? []).toMatchObject(sure === undefined ? [] : [sure]);
    expect(list.revision).toBe(9);
    expect(invalid).toEqual([reason]);
  });

  test("bytes that are no UTF-8 is read all the same: they are replaced", async () => {
    const broken = Buffer.from(text(told("b", { message: "?" })));
    broken[broken.indexOf("?")] = 0xff;
    page(sound, broken);
    const list = await provider.getPods({ signal, labels: LABELS });
    expect(list.items.map(({ message }) => message)).toEqual([undefined, "\ufffd"]);
  });

  test("another owner's labels is nobody's, however wrong it is otherwise", async () => {
    page(sound, text(told("b", { state: "?", labels: { node: "other" } })));
    const list = await provider.getPods({ signal, labels: LABELS });
    expect(list.unknown).toBeUndefined();
  });

  test("two descriptions is unknown", async () => {
    page(sound, text(told("b")), text(told("b", { state: "stopped" })));
    const list = await provider.getPods({ signal, labels: LABELS });
    expect(list.items.map(({ id }) => id)).toEqual(["a"]);
    expect(list.unknown).toMatchObject([{ id: "b" }]);
    expect(invalid).toEqual(["duplicate_id"]);
  });

  test("a field twice is not believed in either of its two ways", async () => {
    page(sound, text(told("b")).replace("{", '{"state":"stopped",'));
    expect((await provider.getPods({ signal, labels: LABELS })).unknown?.[0]?.state).toBeUndefined();
  });

  test("one description that can be believed and one that cannot is unknown", async () => {
    page(text(told("b", { state: "?" })), text(told("b")));
    const list = await provider.getPods({ signal, labels: LABELS });
    expect(list.unknown).toMatchObject([{ id: "b" }]);
    expect(list.items).toEqual([]);
  });
});

describe("a list as a whole", () => {
  test.each([
    ["that is no object", "[]", "schema"],
    ["without items", '{"revision":1}', "schema"],
    ["whose items are no list", '{"revision":1,"items":{}}', "schema"],
    ["without a revision", '{"items":[]}', "schema"],
    ["with two revisions", '{"revision":1,"revision":2,"items":[]}', "duplicate_key"],
    ["that is cut off", '{"revision":1,"items":[{}', "json"],
  ])("%s is unknown", async (_name, body, reason) => {
    reply = (_request, response) => void response.end(body);
    await expect(provider.getPods({ signal, labels: LABELS })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual([reason]);
  });

  test("that names new pages for ever, with nothing on them, is refused", async () => {
    let pages = 0;
    reply = (_request, response) => void response.end(text({ items: [], revision: 1, next_cursor: `${++pages}` }));
    await expect(provider.getPods({ signal, labels: LABELS })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["cursor_loop"]);
  });

  test.each([
    ["machines", { listItems: 10 }],
    ["bytes", { listChars: 2000 }],
  ])("that has more %s than there is memory for is refused before it is read to its end", async (_what, limits) => {
    await connect(limits);
    let pages = 0;
    reply = (_request, response) =>
      void response.end(text({ items: [told(`m-${++pages}`)], revision: 1, next_cursor: `${pages}` }));
    await expect(provider.getPods({ signal, labels: LABELS })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["size"]);
    expect(pages).toBeLessThan(20);
  });

  test("is read in smaller pages when a page is too large, until it has been read", async () => {
    const all = Array.from({ length: 20 }, (_, i) => told(`m-${10 + i}`, { message: "x".repeat(900_000) }));
    const limits: number[] = [];
    reply = (request, response) => {
      const query = new URL(request.url!, "http://x").searchParams;
      const limit = Number(query.get("limit"));
      limits.push(limit);
      const from = Number(query.get("cursor") ?? 0);
      const next = from + limit;
      response.end(
        text({ items: all.slice(from, next), revision: 1, ...(next < all.length && { next_cursor: `${next}` }) }),
      );
    };
    const { items } = await provider.getPods({ signal, labels: LABELS });
    expect(items).toHaveLength(20);
    expect(limits.slice(0, 5)).toEqual([500, 125, 32, 8, 8]);
    limits.length = 0;
    await provider.getPods({ signal, labels: LABELS });
    expect(limits[0]).toBe(16);
  });
});

describe("in the stream of events,", () => {
  /** All that comes of a stream which ends after these events. */
  async function read(...events: (string | Buffer)[]): Promise<(MachineEvent | UnknownMachineEvent)[]> {
    reply = (_request, response) => {
      response.setHeader("content-type", "text/event-stream");
      response.end(Buffer.concat(events.map((event) => Buffer.concat([Buffer.from(event), Buffer.from("\n\n")]))));
    };
    const seen: (MachineEvent | UnknownMachineEvent)[] = [];
    const reading = (async () => {
      for await (const event of provider.watchPods(1, { signal, labels: LABELS })) seen.push(event);
    })();
    await expect(reading).rejects.toMatchObject({ message: "the backend ended the stream of events" });
    return seen;
  }
  const event = (revision: number, item: string | Buffer) =>
    Buffer.concat([
      Buffer.from(`id: ${revision}\ndata: {"revision":${revision},"machine":`),
      Buffer.from(item),
      Buffer.from("}"),
    ]);

  test.each(FAULTS)("a machine with %s is unknown, and the stream goes on", async (_name, item, reason, sure) => {
    const seen = await read(event(2, sound), event(3, item), event(4, text(told("c"))));
    const expected = [
      { revision: 2, machine: { id: "a" } },
      ...(sure === undefined ? [] : [{ unknown: sure }]),
      { revision: 4, machine: { id: "c" } },
    ];
    expect(seen).toMatchObject(expected);
    expect(invalid).toEqual([reason]);
  });

  test.each([
    ["in one line", `data: ${"x".repeat(3 * 1024 * 1024)}`],
    [
      "in many lines",
      Array(3 * 1024)
        .fill(`data: ${"x".repeat(1024)}`)
        .join("\n"),
    ],
  ])("an event that is too large %s is passed over, and the stream goes on", async (_name, large) => {
    const seen = await read(event(2, sound), large, event(4, text(told("c"))));
    expect(seen.map(({ machine }) => machine?.id)).toEqual(["a", "c"]);
    expect(invalid).toEqual(["size"]);
  });

  test.each([
    ["went back", "1"],
    ["is no number", '"3"'],
    ["is missing", "null"],
  ])("a machine whose event's revision %s is unknown", async (_name, revision) => {
    const odd = `data: {"revision":${revision},"machine":${text(told("b"))}}`;
    const seen = await read(event(2, sound), odd, event(3, text(told("c"))));
    expect(seen).toMatchObject([
      { machine: { id: "a" } },
      { revision: 2, unknown: { id: "b" } },
      { machine: { id: "c" } },
    ]);
  });

  test("events of ever new machines end it: a list says which of them are there", async () => {
    await connect({ listItems: 10 });
    reply = (_request, response) => {
      response.setHeader("content-type", "text/event-stream");
      for (let i = 0; i < 100; i++)
        response.write(Buffer.concat([event(2, text(told(`m-${i}`))), Buffer.from("\n\n")]));
    };
    let seen = 0;
    const reading = (async () => {
      for await (const _ of provider.watchPods(1, { signal, labels: LABELS })) seen++;
    })();
    await expect(reading).rejects.toMatchObject({ code: "unavailable" });
    expect(seen).toBe(10);
    expect(invalid).toEqual(["size"]);
  });

  test("events of another owner's machines are passed over", async () => {
    const seen = await read(event(2, text(told("b", { labels: { node: "other" } }))), event(3, sound));
    expect(seen.map(({ machine }) => machine?.id)).toEqual(["a"]);
    expect(invalid).toEqual(["labels"]);
  });
});

describe("a single machine that cannot be believed", () => {
  test.each(FAULTS.filter(([, , , sure]) => sure !== undefined))(
    "with %s is unknown, and the error says what is sure",
    async (_name, item, reason, sure) => {
      reply = (_request, response) => void response.end(item);
      await expect(provider.getPod("b", { signal })).rejects.toMatchObject({
        code: "unavailable",
        unknownMachine: { ...sure, id: "b" },
      });
      expect(invalid).toEqual([reason]);
    },
  );

  test("because it is too large is unknown", async () => {
    reply = (_request, response) => void response.end(text(told("b", { message: "x".repeat(2 * 1024 * 1024) })));
    await expect(provider.getPod("b", { signal })).rejects.toMatchObject({
      code: "unavailable",
      unknownMachine: { id: "b" },
    });
  });

  test("because it is another is not said to be unknown: the reply may be to another request", async () => {
    reply = (_request, response) => void response.end(text(told("c")));
    await expect(provider.getPod("b", { signal })).rejects.toMatchObject({
      code: "unavailable",
      unknownMachine: undefined,
    });
  });
});

const HOSTILE_BODIES: [string, string][] = [
  ["an invalid machine", text(told("b", { state: "?" }))],
  ["another machine", text(told("c"))],
  ["no JSON", "<html>"],
  ["nothing", ""],
  ["two mebibytes", "x".repeat(2 * 1024 * 1024)],
];

describe("a stop is done when the backend has accepted it,", () => {
  test.each(HOSTILE_BODIES)("although its reply has %s", async (_name, body) => {
    reply = (_request, response) => void response.writeHead(202).end(body);
    expect(await provider.stopPod("b", { signal, graceSeconds: 1 })).toBeUndefined();
  });

  test("although its reply is of another type", async () => {
    reply = (_request, response) => void response.writeHead(200, { "content-type": "text/html" }).end("ok");
    expect(await provider.stopPod("b", { signal, graceSeconds: 1 })).toBeUndefined();
  });

  test("although its reply breaks off", async () => {
    reply = (_request, response) => {
      response.writeHead(202, { "content-length": "100" });
      response.write("{");
      setImmediate(() => response.destroy());
    };
    expect(await provider.stopPod("b", { signal, graceSeconds: 1 })).toBeUndefined();
  });

  test("and shows the machine where the reply can be believed", async () => {
    reply = (_request, response) => void response.writeHead(202).end(text(told("b", { state: "stopping" })));
    expect(await provider.stopPod("b", { signal, graceSeconds: 1 })).toMatchObject({ state: "stopping" });
  });
});

describe("a deletion is done when the backend has accepted it,", () => {
  test.each(HOSTILE_BODIES)("although its reply has %s", async (_name, body) => {
    reply = (_request, response) => void response.writeHead(202).end(body);
    await expect(provider.deletePod("b", { signal, force: true })).resolves.toBeUndefined();
  });
});

describe("in stats, a sample with", () => {
  const sample = (id: string, rest: object = {}) => ({
    id,
    at: "2026-01-01T00:00:00Z",
    containers: [
      { name: "c", started_at: "2026-01-01T00:00:00Z", cpu_usage_ns_total: 1, memory_working_set_bytes: 1, ...rest },
    ],
  });

  test.each([
    ["a figure beyond any counter", text(sample("b", { cpu_usage_ns_total: 2 ** 60 })), "schema"],
    ["a figure below zero", text(sample("b", { memory_working_set_bytes: -1 })), "schema"],
    ["a figure that JSON has not", text(sample("b")).replace(":1,", ":Infinity,"), "json"],
    ["two machines' ids", text(sample("b")).replace("{", '{"id":"c",'), "duplicate_key"],
    ["the id of one before it", text(sample("a")), "duplicate_id"],
  ])("%s is left out, and the others stand", async (_name, item, reason) => {
    page(text(sample("a")), item, text(sample("c")));
    reply = (
      (answer) => (request: IncomingMessage, response: ServerResponse) =>
        answer(request, response)
    )(reply);
    const items = await provider.getStats({ signal, labels: LABELS });
    expect(items.map(({ id }) => id)).toEqual(["a", "c"]);
    expect(invalid).toEqual([reason]);
  });
});

describe("in the capacity,", () => {
  const condition = { type: "GpuHealthy", status: "True", reason: "Ok", message: "" };
  const taint = { key: "a/b", effect: "NoSchedule" };

  const driver = { name: "csi.example.com", node_id: "host-1", topology: { rack: "r1" }, max_volumes: 8 };

  test("a condition, taint or CSI driver that is not valid is left out", async () => {
    reply = (_request, response) =>
      void response.end(
        text({
          allocatable: { cpu_millis: 1000 },
          conditions: [condition, { ...condition, status: "Maybe" }, null],
          taints: [taint, { ...taint, effect: "NoWay" }],
          csi_drivers: [driver, { ...driver, node_id: "" }, { ...driver, topology: { rack: 1 } }],
        }),
      );
    expect(await provider.getCapacity({ signal })).toEqual({
      allocatable: { cpu_millis: 1000 },
      conditions: [condition],
      taints: [taint],
      csi_drivers: [driver],
    });
    expect(invalid).toEqual(["schema", "schema", "schema", "schema", "schema"]);
  });

  test("an amount that is not valid leaves nothing to believe", async () => {
    reply = (_request, response) => void response.end(text({ allocatable: { cpu_millis: -1 } }));
    await expect(provider.getCapacity({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });
});
