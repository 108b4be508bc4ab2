/**
 * The conformance kit against the in-memory provider, which must pass, in process and over HTTP, and against one broken backend per
 * check, of which it must find exactly the rule that is broken.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { MachineApiServer, httpTarget, HttpVmProvider } from "../../providers/http-vm/index.ts";
import { MEMORY_CAPABILITIES, MemoryProvider } from "../../providers/memory/index.ts";
import type { Capability } from "../../src/provider/capabilities.ts";
import {
  CHECKS,
  runConformance,
  type ConformanceOptions,
  type ConformanceReport,
  type HttpTarget,
} from "../../src/provider/kit/index.ts";
import type { Provider } from "../../src/provider/provider.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { sliced } from "../support/slice.ts";
import type { Mutant } from "./mutant-kinds.ts";
import { MUTANTS } from "./mutants.ts";

const TOKEN = "conformance-token";
const ECHO = { command: ["sleep", "3600"], port: 7777 };
/** Also what the provider can do of restart rules, though not all of them. */
const CAPABILITIES: readonly Capability[] = [
  ...MEMORY_CAPABILITIES,
  "restart_rules",
  "devices",
  "pod_ranges",
  "services",
  "resource_claims",
  "volumes.csi",
  "volumes.csi_persistent",
];
const CAPACITY = {
  allocatable: {
    ...{ cpu_millis: 1_000_000, memory_bytes: 4 * 2 ** 40, ephemeral_bytes: 16 * 2 ** 40, pods: 10_000 },
    extended: [{ name: "vendor.example/gpu", count: 4 }],
  },
};
const WITHOUT_STATS = CAPABILITIES.filter((capability) => capability !== "stats");

let folder: string;
let tokenFile: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "vmlet-conformance-"));
  tokenFile = join(folder, "token");
  await writeFile(tokenFile, `${TOKEN}\n`);
});

afterAll(() => rm(folder, { recursive: true }));

interface Subject {
  memory: MemoryProvider;
  server: MachineApiServer;
  url: string;
  http: HttpTarget;
}

/** A sound backend, and its front over HTTP. */
async function withSubject<T>(capabilities: readonly Capability[], work: (subject: Subject) => Promise<T>): Promise<T> {
  const memory = new MemoryProvider({ capabilities, capacity: CAPACITY });
  const server = new MachineApiServer({
    provider: memory,
    logger: silentLogger,
    auth: { bearerTokens: () => [TOKEN] },
  });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  try {
    return await work({ memory, server, url, http: httpTarget({ url, credentials: { tokenFile } }) });
  } finally {
    await server.close({ graceMs: 100 });
    await memory.close();
  }
}

const disruptIn = (memory: MemoryProvider) => (id: string) =>
  Promise.resolve(memory.setDisruption(id, { reason: "HostEvacuated", message: "its host is emptied" }));

const check = (provider: Provider, options: ConformanceOptions): Promise<ConformanceReport> =>
  runConformance(provider, { echo: ECHO, restart: async () => {}, concurrency: 60, patienceMs: 10_000, ...options });

const messages = (report: ConformanceReport, outcome: string): string[] =>
  report.results.filter((result) => result.outcome === outcome).map(({ name, message }) => `${name}: ${message}`);

describe("the in-memory provider", () => {
  test("passes every check in process", async () => {
    await withSubject(CAPABILITIES, async ({ memory }) => {
      const report = await check(memory, { disrupt: disruptIn(memory) });
      expect(messages(report, "failed")).toEqual([]);
      expect(report.skipped).toBe(CHECKS.filter(({ needsHttp }) => needsHttp).length);
    });
  });

  test("passes every check over HTTP", async () => {
    await withSubject(CAPABILITIES, async ({ memory, url, http }) => {
      const provider = new HttpVmProvider({
        url,
        credentials: { tokenFile },
        pacing: { concurrency: 64, perSecond: 10_000, burst: 10_000 },
      });
      const report = await check(provider, { http, disrupt: disruptIn(memory) });
      await provider.close();
      expect(messages(report, "failed")).toEqual([]);
      expect(messages(report, "skipped")).toEqual([
        "http/missing-capabilities-are-501: the backend has all gated routes",
      ]);
    });
  });

  test("without capabilities passes the core and skips the rest by name", async () => {
    await withSubject([], async ({ memory, url, http }) => {
      const provider = new HttpVmProvider({
        url,
        credentials: { tokenFile },
        pacing: { concurrency: 64, perSecond: 10_000, burst: 10_000 },
      });
      const report = await check(provider, { http, disrupt: disruptIn(memory) });
      await provider.close();
      expect(messages(report, "failed")).toEqual([]);
      expect(report.results.filter(({ outcome }) => outcome === "skipped").map(({ name }) => name)).toEqual(
        CHECKS.filter(
          ({ needs, name }) => needs !== undefined || name === "http/unknown-fields-of-a-patch-are-refused",
        ).map(({ name }) => name),
      );
    });
  });
});

test("there is one broken backend for every check", () => {
  expect(Object.keys(MUTANTS).toSorted()).toEqual(CHECKS.map(({ name }) => name).toSorted());
});

/** A proxy that changes the bodies of JSON replies to GET. */
async function rewriting(url: string, change: (body: string, path: string) => string) {
  const proxy = createServer((request, response) => {
    void (async () => {
      const body = Buffer.concat(await Array.fromAsync(request as AsyncIterable<Buffer>));
      const headers = request.headers as Record<string, string>;
      const { method = "GET", url: path = "/" } = request;
      const reply = await fetch(`${url}${path}`, { method, headers, ...(body.length > 0 && { body }) });
      const text = await reply.text();
      response.writeHead(reply.status, {
        "content-type": reply.headers.get("content-type") ?? "",
        "x-request-id": reply.headers.get("x-request-id") ?? "",
      });
      response.end(method === "GET" ? change(text, path) : text);
    })();
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, close: () => proxy.close() };
}

describe("a backend that says what an agent would pass over", () => {
  test.each<[string, string, (body: string, path: string) => string]>([
    [
      "of a machine in a list",
      "list/shows-what-was-just-created",
      (body, path) => (path.startsWith("/v1/machines?") ? body.replace('"state":"', '"state":"un') : body),
    ],
    [
      "of a machine's addresses",
      "http/replies-are-valid",
      (body) => body.replace(/"addresses":\[[^\]]*\]/, '"addresses":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]'),
    ],
    [
      "of its capacity",
      "http/replies-are-valid",
      (body, path) => (path === "/v1/capacity" ? body.replace("{", '{"taints":[{}],') : body),
    ],
  ])("%s fails", async (_what, only, change) => {
    await withSubject(CAPABILITIES, async ({ url }) => {
      const proxy = await rewriting(url, change);
      const options = { url: proxy.url, credentials: { tokenFile } };
      const provider = new HttpVmProvider(options);
      const report = await check(provider, { http: httpTarget(options), only: [only] });
      await provider.close();
      proxy.close();
      expect(report).toMatchObject({ passed: 0, failed: 1 });
    });
  });
});

describe("a backend that breaks", () => {
  test.concurrent.for(sliced(Object.entries(MUTANTS)))(
    "%s is found, and nothing else",
    async ([name, mutant]: [string, Mutant], { expect: concurrentExpect }) => {
      await withSubject(mutant.withoutStats === true ? WITHOUT_STATS : CAPABILITIES, async ({ memory, http }) => {
        const world = { isRestarted: false };
        const overrides = mutant.provider?.(memory, world) ?? {};
        const provider = new Proxy(memory, {
          get: (target, key) => {
            const value: unknown = Reflect.get(overrides, key) ?? Reflect.get(target, key, target);
            return typeof value === "function"
              ? (value as (...all: unknown[]) => unknown).bind(key in overrides ? overrides : target)
              : value;
          },
        });
        const request = mutant.http?.(http.request.bind(http)) ?? http.request.bind(http);
        const restart = async () => {
          world.isRestarted = true;
        };
        const disrupt = disruptIn(memory);
        const report = await check(provider, { http: { ...http, hasCredentials: true, request }, restart, disrupt });
        const failed = report.results.filter(({ outcome }) => outcome === "failed");
        concurrentExpect(failed.map((result) => result.name)).toEqual([name]);
        concurrentExpect(failed[0]?.message).toMatch(/^Expected .+, but .+\. .+\.$/s);
      });
    },
  );
});
