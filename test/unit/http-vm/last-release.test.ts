/**
 * Agents and backends are not upgraded in one instant. What the last release's two ends said to each other is recorded
 * (test/fixtures/wire/last-release.json, by test/support/record-exchanges.ts): this release's agent reads those replies,
 * and this release's backend takes those requests.
 */
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { once } from "node:events";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { fileVersion, type MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type { RecordedExchange } from "../../support/record-exchanges.ts";

const file = join(import.meta.dirname, "../../fixtures/wire/last-release.json");
const exchanges = JSON.parse(readFileSync(file, "utf8")) as RecordedExchange[];
const ID = "c1-3b1c";
const signal = AbortSignal.timeout(30_000);
const labels = { "vmlet.dev/cluster": "c1", "vmlet.dev/node": "burst-0" };
const GPU = [{ name: "nvidia.com/gpu", count: 1 }];

const SPEC: MachineSpec = { labels, restart_policy: "never", containers: [{ name: "main", image: "i" }] };

describe("this release's agent with the last release's backend", () => {
  const refused: string[] = [];
  let provider: HttpVmProvider;
  const pathOf = (path: string): string => path.replace(/&limit=\d+/, "");
  const asked = new Map<string, number>();
  // Its replies, as they were recorded: in their order for one method and path, the last one for ever.
  const backend = createServer((request, reply) => {
    request.resume().on("end", () => {
      const call = `${request.method} ${pathOf(request.url!)}`;
      const fits = exchanges.filter(({ method, path }) => `${method} ${pathOf(path)}` === call);
      const count = asked.get(call) ?? 0;
      asked.set(call, count + 1);
      const { status, type, reply: body } = fits[Math.min(count, fits.length - 1)] ?? { status: 599 };
      const text = typeof body === "string" ? body : JSON.stringify(body);
      const id = request.headers["x-request-id"];
      reply.writeHead(status, { ...(type !== undefined && { "content-type": type }), "x-request-id": id }).end(text);
    });
  });
  beforeAll(async () => {
    await once(backend.listen(0, "127.0.0.1"), "listening");
    const { port } = backend.address() as AddressInfo;
    provider = new HttpVmProvider({
      url: `http://127.0.0.1:${port}`,
      onInvalidReply: (reason) => refused.push(reason),
    });
  });
  afterAll(async () => {
    await provider.close();
    backend.close();
  });

  test("knows what it can do", async () => {
    expect((await provider.getInfo({ signal })).capabilities).toContain("volumes.files");
  });

  test("knows what it has of other resources", async () => {
    const { allocatable } = await provider.getCapacity({ signal });
    expect(allocatable.extended).toEqual([{ name: "nvidia.com/gpu", count: 2 }]);
  });

  test("reads the machine that it made", async () => {
    expect((await provider.createPod(ID, SPEC, { signal })).labels).toEqual(labels);
  });

  test("knows which files are in place, and what a container is promised", async () => {
    const machine = await provider.getPod(ID, { signal });
    expect(fileVersion(machine, "cfg")).toBe("1");
    const web = machine.containers.find(({ name }) => name === "web");
    expect(web).toMatchObject({ state: "running", resources: { requests: { extended: GPU } } });
  });

  test("knows every machine of a list", async () => {
    const { items, unknown = [] } = await provider.getPods({ labels, signal });
    expect(unknown).toEqual([]);
    expect(items.map(({ id }) => id)).toEqual([ID, "c1-other"]);
  });

  test("knows tombstones", async () => {
    const { items } = await provider.getPods({ labels, includeDeleted: true, signal });
    expect(items.find(({ state }) => state === "deleted")?.containers[0]?.terminated?.exit_code).toBe(3);
  });

  test("reads samples and logs", async () => {
    expect(await provider.getStats({ labels, signal })).not.toEqual([]);
    const lines = await Array.fromAsync(provider.getLogs("c1-other", "main", { signal }));
    expect(lines.map(({ content }) => content.toString())).toEqual(["hello"]);
  });

  test("knows what is absent, and what is gone", async () => {
    await expect(provider.getPod("c1-absent", { signal })).rejects.toMatchObject({ code: "not_found" });
    const create = () => provider.createPod("c1-other", SPEC, { signal });
    expect((await create()).id).toBe("c1-other");
    await expect(create()).rejects.toMatchObject({ code: "gone" });
  });

  test("had nothing to refuse", () => {
    expect(refused).toEqual([]);
  });
});

test("this release's backend takes every request of the last release's agent", async () => {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const answers: string[] = [];
  for (const { method, path, body } of exchanges) {
    const headers = { "content-type": "application/json" };
    const { status } = await fetch(`${url}${path}`, {
      method,
      ...(body !== undefined && { headers, body: JSON.stringify(body) }),
    });
    answers.push(`${method} ${path} ${status >= 200 && status < 300 ? "2xx" : status}`);
  }
  expect(answers).toEqual(
    exchanges.map(({ method, path, status }) => `${method} ${path} ${status < 300 ? "2xx" : status}`),
  );
  await server.close();
  await memory.close();
});
