import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { EndpointCache } from "../../../src/kube/endpoints.ts";
import type { Kube } from "../../../src/kube/kube.ts";
import { Store } from "../../../src/kube/store.ts";
import type { EndpointSlice, Node, Service } from "../../../src/kube/wire.ts";
import { NodeServices } from "../../../src/node/node-services.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { type ServicesSpec, ServiceTable } from "../../../src/provider/services.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const meta = (name: string, more: object = {}) => ({ namespace: "n", name, uid: name, ...more });
const service = (name: string, clusterIP: string): Service => ({
  metadata: meta(name),
  spec: { clusterIP, clusterIPs: [clusterIP], ports: [{ port: 80 }] },
});
const slice = (name: string, ...addresses: string[]): EndpointSlice => ({
  metadata: meta(`${name}-x`, { labels: { "kubernetes.io/service-name": name } }),
  addressType: "IPv4",
  ports: [{ name: "", port: 8080, protocol: "TCP" }],
  endpoints: addresses.map((address) => ({ addresses: [address] })),
});

describe("the cluster's Services, for a backend that takes them", () => {
  let clock: VirtualClock;
  let services: Store<Service>;
  let endpoints: EndpointCache;
  let node: Node;
  let calls: ServicesSpec[];
  let backend: ServiceTable;
  let refusal: ProviderError | undefined;
  let warned: string[];
  let done: AbortController;

  beforeEach(() => {
    clock = new VirtualClock();
    services = new Store({ logger: silentLogger });
    // The test fills its store.
    endpoints = new EndpointCache({ kube: {} as Kube, clock, random: () => 0, logger: silentLogger });
    node = { metadata: { labels: {} } };
    [calls, warned, refusal] = [[], [], undefined];
    backend = new ServiceTable();
    done = new AbortController();
  });
  afterEach(() => done.abort());

  const run = async () => {
    const told = new NodeServices({
      provider: {
        services: {
          put: (spec) => {
            calls.push(spec);
            if (refusal !== undefined) return Promise.reject(refusal);
            const { labels: _, ...change } = spec;
            try {
              backend.apply(change);
            } catch (thrown) {
              return Promise.reject(thrown);
            }
            return Promise.resolve({ revision: change.revision, services: backend.size });
          },
        },
      },
      ...{ clusterId: "c1", nodeName: "burst-0", services, endpoints, node: () => node, clock },
      ...{ random: () => 0.5, logger: silentLogger, warn: (_: string, message: string) => void warned.push(message) },
    });
    void told.run(done.signal);
    await settle();
  };
  const later = async (ms: number) => {
    await clock.advance(ms);
    await settle();
  };
  const leads = () =>
    backend.ports.map(({ address, endpoints: all }) => [address, ...all.map((each) => each.address)].join(" ")).sort();

  test("are told when all are listed, and not before", async () => {
    services.replace([service("a", "10.96.0.1")]);
    await run();
    expect(calls).toEqual([]);
    endpoints.store.replace([slice("a", "10.1.0.1")]);
    await settle();
    expect(leads()).toEqual(["10.96.0.1 10.1.0.1"]);
    expect(calls[0]?.labels).toEqual(ownerLabels("c1", "burst-0"));
  });

  test("that cannot be read are told of by events of the Node", async () => {
    services.replace([]);
    await run();
    await later(31_000);
    expect(warned[0]).toContain("it needs list and watch of endpointslices");
    endpoints.store.replace([]);
    await later(31_000);
    expect(warned).toHaveLength(1);
  });

  test("are told by what has changed, at most once a second", async () => {
    services.replace([service("a", "10.96.0.1"), service("b", "10.96.0.2")]);
    endpoints.store.replace([slice("a", "10.1.0.1"), slice("b", "10.1.0.2")]);
    await run();
    for (let n = 3; n < 9; n++) endpoints.store.upsert(slice("a", `10.1.0.${n}`));
    await settle();
    expect(calls).toHaveLength(1);
    await later(1_000);
    expect(calls).toHaveLength(2);
    expect(calls[1]?.services.map(({ address }) => address)).toEqual(["10.96.0.1"]);
    expect(leads()).toEqual(["10.96.0.1 10.1.0.8", "10.96.0.2 10.1.0.2"]);
  });

  test("lead nowhere any more once they are gone", async () => {
    services.replace([service("a", "10.96.0.1")]);
    endpoints.store.replace([slice("a", "10.1.0.1")]);
    await run();
    await later(1_000);
    services.remove(service("a", "10.96.0.1"));
    await settle();
    expect(leads()).toEqual([]);
  });

  test("of which there are too many lead on as they did, without the newest", async () => {
    const made = (index: number) => {
      const each = service(`s${index}`, `10.${96 + (index >> 16)}.${(index >> 8) & 255}.${index & 255}`);
      const at = new Date(1.7e12 + index * 1000).toISOString();
      return { ...each, metadata: { ...each.metadata, creationTimestamp: at } };
    };
    services.replace(Array.from({ length: 20_002 }, (_, index) => made(20_002 - index)));
    endpoints.store.replace([]);
    await run();
    expect(backend.size).toBe(20_000);
    expect(backend.ports.map(({ address }) => address)).not.toContain("10.96.78.34");
    expect(warned[0]).toContain("of the 20002 ports of the cluster's Services");
  });

  test("whose endpoints are by ClientIP weigh more: they cost a machine's kernel more", async () => {
    const many = Array.from({ length: 1_000 }, (_, n) => `10.1.${n >> 8}.${n & 255}`);
    const names = Array.from({ length: 11 }, (_, n) => `s${String(n).padStart(2, "0")}`);
    services.replace(
      names.map((name, n) => {
        const each = service(name, `10.96.0.${n + 1}`);
        return { ...each, spec: { ...each.spec, sessionAffinity: "ClientIP" } };
      }),
    );
    endpoints.store.replace(names.map((name) => slice(name, ...many)));
    await run();
    expect(backend.size).toBe(10);
    expect(warned[0]).toContain("machines reach the 10 oldest");
  });

  test("are told again to a backend that has lost them, within a minute", async () => {
    services.replace([service("a", "10.96.0.1")]);
    endpoints.store.replace([]);
    await run();
    backend = new ServiceTable();
    await later(61_000);
    expect(leads()).toEqual(["10.96.0.1"]);
  });

  test("are told again and again while the backend refuses, and the Node's events say why", async () => {
    services.replace([service("a", "10.96.0.1")]);
    endpoints.store.replace([]);
    refusal = new ProviderError("unavailable", "its disk is full");
    await run();
    await later(10_000);
    expect(calls.length).toBeGreaterThan(2);
    expect(warned[0]).toContain("its disk is full");
    refusal = undefined;
    await later(30_000);
    expect(leads()).toEqual(["10.96.0.1"]);
  });

  test("lead to the zone that its Node says", async () => {
    const hinted = (address: string, zone: string) => ({ addresses: [address], hints: { forZones: [{ name: zone }] } });
    services.replace([service("a", "10.96.0.1"), service("b", "10.96.0.2")]);
    const its = { ...slice("a"), endpoints: [hinted("10.1.0.1", "z1"), hinted("10.1.0.2", "z2")] };
    endpoints.store.replace([its, slice("b")]);
    await run();
    expect(leads()[0]).toBe("10.96.0.1 10.1.0.1 10.1.0.2");
    node = { metadata: { labels: { "topology.kubernetes.io/zone": "z2" } } };
    endpoints.store.upsert(slice("b", "10.1.0.9"));
    await later(2_000);
    expect(leads()).toEqual(["10.96.0.1 10.1.0.2", "10.96.0.2 10.1.0.9"]);
  });
});
