/**
 * What /livez and /readyz say in each plight of an agent. Alive is a process that makes progress by itself, whatever becomes of others:
 * restarting it would cure nothing else. Ready is one that knows its pods and, if it acts, is registered.
 */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { Agent } from "../../../src/agent/agent.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { type Clock, rfc3339Micro, systemClock } from "../../../src/util/clock.ts";
import { freePorts } from "../../e2e/harness/ports.ts";
import { create, runDevCluster, type Running } from "../devcluster/support.ts";

const loop = vi.hoisted(() => ({ stallMs: 0 }));
vi.mock(import("../../../src/agent/event-loop.ts"), async (original) => {
  const { EventLoopWatch } = await original();
  return {
    EventLoopWatch: class extends EventLoopWatch {
      constructor(clock: Clock) {
        super({
          ...clock,
          monotonic: () => clock.monotonic() + loop.stallMs,
          after: (_ms, tick) => clock.after(5, tick),
        });
      }
    },
  };
});

/** Between the agent and its API server. */
class Gate {
  /** Requests that are answered with 503. */
  shut: RegExp | undefined;
  refused = 0;
  readonly #server: Server;

  constructor(target: string) {
    this.#server = createServer((incoming, reply) => {
      const { method, url = "/", headers } = incoming;
      if (this.shut?.test(`${method} ${url}`)) {
        this.refused++;
        incoming.resume();
        reply.writeHead(503).end();
        return;
      }
      const outgoing = request(new URL(url, target), { method, headers, agent: false }, (answer) => {
        reply.writeHead(answer.statusCode!, answer.headers).flushHeaders();
        answer.pipe(reply);
      });
      outgoing.on("error", () => reply.destroy());
      reply.on("close", () => outgoing.destroy());
      incoming.pipe(outgoing);
    });
  }

  async open(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Nothing gets through any more, and what is open breaks. */
  goDown(): void {
    this.shut = /./;
    this.#server.closeAllConnections();
  }

  close(): Promise<void> {
    this.#server.closeAllConnections();
    return new Promise((resolve) => this.#server.close(() => resolve()));
  }
}

let dev: Running;
let gate: Gate;
let folder: string;
let provider: Provider;
let skipped: number;
let stop: AbortController;
let running: Promise<unknown>;
let port: number;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-health-"));
  dev = await runDevCluster();
  gate = new Gate(dev.cluster.url);
  provider = new MemoryProvider();
  skipped = 0;
  loop.stallMs = 0;
  stop = new AbortController();
  running = Promise.resolve();
});
afterEach(async () => {
  stop.abort(new Error("over"));
  await running;
  await gate.close();
  await dev[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

/** Starts an agent of one node, `n`. */
async function start(rest: object = {}): Promise<void> {
  const server = await gate.open();
  const ports = await freePorts(2);
  port = ports[0]!;
  const write = (name: string, content: object) => {
    writeFileSync(join(folder, name), JSON.stringify(content));
    chmodSync(join(folder, name), 0o600);
    return join(folder, name);
  };
  const kubeconfig = write("kubeconfig", {
    "current-context": "c",
    clusters: [{ name: "c", cluster: { server } }],
    contexts: [{ name: "c", context: { cluster: "c", user: "u" } }],
    users: [{ name: "u", user: { token: dev.cluster.token } }],
  });
  const file = {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    kubeconfig,
    clusterId: "c1",
    health: { address: "127.0.0.1", port },
    nodes: [{ name: "n", provider: { type: "memory" }, kubelet: { port: ports[1], certificate: "self-signed" } }],
    ...rest,
  };
  const creating = Agent.open({
    config: loadConfig(write("vmlet.yaml", file), {}, {}),
    createProvider: () => Promise.resolve(provider),
    clock: { ...systemClock, monotonic: () => systemClock.monotonic() + skipped },
    random: Math.random,
    logger: silentLogger,
    version: "1",
    signal: stop.signal,
  });
  running = creating.then((agent) => agent.run(stop.signal)).catch(() => undefined);
}

/** Status and failing checks of each endpoint. */
async function health(): Promise<Record<string, readonly unknown[]>> {
  const endpoints = ["livez", "readyz"].map(async (endpoint) => {
    const reply = await fetch(`http://127.0.0.1:${port}/${endpoint}`);
    const failing = [...(await reply.text()).matchAll(/^\[-\](\S+) /gm)].map(([, name]) => name);
    return [endpoint, [reply.status, ...failing]] as const;
  });
  return Object.fromEntries(await Promise.all(endpoints));
}
const becomes = (expected: Record<string, readonly unknown[]>) =>
  expect.poll(() => health().catch(() => undefined), { timeout: 30_000 }).toEqual(expected);

const WELL = { livez: [200], readyz: [200] };
const held = (holderIdentity: string, leaseDurationSeconds: number) => ({
  metadata: { name: "vmlet" },
  spec: { holderIdentity, leaseDurationSeconds, renewTime: rfc3339Micro(Date.now()), leaseTransitions: 0 },
});

test("an agent that waits for its certificate is alive and not ready", async () => {
  await start({ identity: { mode: "certificate" } });
  await becomes({ livez: [200], readyz: [500, "started"] });
});

test("an agent that cannot list its pods is alive and not ready", async () => {
  gate.shut = /^GET \/api\/v1\/pods/;
  await start();
  await becomes({ livez: [200], readyz: [500, "n-pods-synced"] });
  gate.shut = undefined;
  await becomes(WELL);
});

test("an agent that cannot register its node is alive and not ready", async () => {
  gate.shut = /^POST \/api\/v1\/nodes/;
  await start();
  await becomes({ livez: [200], readyz: [500, "n-registered"] });
  gate.shut = undefined;
  await becomes(WELL);
});

test("an agent whose backend is down is alive and ready: that is the node's to tell", async () => {
  const down = () => Promise.reject(new ProviderError("unavailable", "down"));
  Object.assign(provider, { getInfo: down, getPods: down, getCapacity: down });
  await start();
  await becomes(WELL);
});

test("a standby is alive and ready to take over", async () => {
  await create(dev.api, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", held("another", 3600));
  await start({ leaderElection: { enabled: true } });
  await becomes(WELL);
  expect((await dev.api.request("GET", "/api/v1/nodes/n")).status).toBe(404);
});

test("an agent that has lost its API server is alive and ready: nobody else would serve better", async () => {
  await start();
  await becomes(WELL);
  gate.goDown();
  await expect.poll(() => gate.refused, { timeout: 30_000 }).toBeGreaterThan(3);
  expect(await health()).toEqual(WELL);
});

test("an agent whose event loop stood still is not alive, until it turns again", async () => {
  await start();
  await becomes(WELL);
  loop.stallMs = 6_000;
  await becomes({ livez: [500, "event-loop"], readyz: [200] });
  expect(await health()).toEqual(WELL);
});

test("an agent in which nothing tries to renew the lease any more is not alive", async () => {
  await start();
  await becomes(WELL);
  skipped = 61_000;
  expect(await health()).toEqual({ livez: [500, "n-lease"], readyz: [200] });
});
