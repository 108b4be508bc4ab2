import { describe, expect, test } from "vitest";
import type { EndpointSlice, Service } from "../../../src/kube/wire.ts";
import { servicePorts } from "../../../src/node/service-ports.ts";

type Spec = NonNullable<Service["spec"]>;
type Endpoint = NonNullable<EndpointSlice["endpoints"]>[number];

const PLACE = { nodeName: "burst-0", zone: "z1" };
const service = (spec: Partial<Spec> = {}, labels?: Record<string, string>): Service => ({
  metadata: { name: "s", namespace: "n", ...(labels && { labels }) },
  spec: { clusterIP: "10.96.0.10", clusterIPs: ["10.96.0.10"], ports: [{ port: 80, protocol: "TCP" }], ...spec },
});
const slice = (endpoints: readonly Endpoint[], more: Partial<EndpointSlice> = {}): EndpointSlice => ({
  addressType: "IPv4",
  ports: [{ name: "", protocol: "TCP", port: 8080 }],
  endpoints,
  ...more,
});
const at = (address: string, more: Partial<Endpoint> = {}): Endpoint => ({ addresses: [address], ...more });
const leads = (endpoints: readonly Endpoint[], spec: Partial<Spec> = {}) =>
  servicePorts(service(spec), [slice(endpoints)], PLACE).map((port) => port.endpoints.map(({ address }) => address));

describe("a Service's addresses lead", () => {
  test("to the port that its endpoints have by that name and protocol", () => {
    const ports = [
      { port: 80, name: "web" },
      { port: 53, name: "dns", protocol: "UDP" },
      { port: 53, name: "dns-tcp" },
    ];
    const its = slice([at("10.1.0.1")], {
      ports: [
        { name: "web", protocol: "TCP", port: 8080 },
        { name: "dns", protocol: "UDP", port: 5353 },
        { name: "dns-tcp", protocol: "TCP", port: 5354 },
      ],
    });
    const found = servicePorts(service({ ports }), [its], PLACE);
    expect(found.map(({ protocol, port, endpoints }) => [protocol, port, endpoints[0]?.port])).toEqual([
      ["TCP", 80, 8080],
      ["UDP", 53, 5353],
      ["TCP", 53, 5354],
    ]);
  });

  test("nowhere while it has no endpoints", () => {
    expect(servicePorts(service(), [], PLACE)).toEqual([
      { address: "10.96.0.10", protocol: "TCP", port: 80, endpoints: [] },
    ]);
  });

  test.each([
    ["a headless one", { clusterIP: "None", clusterIPs: ["None"] }],
    ["one that has none yet", { clusterIP: "", clusterIPs: [] }],
    [
      "an ExternalName",
      { type: "ExternalName", clusterIP: undefined, clusterIPs: undefined, externalName: "x.example" },
    ],
  ])("by no address of %s", (_, spec) => {
    expect(servicePorts(service(spec as Partial<Spec>), [slice([at("10.1.0.1")])], PLACE)).toEqual([]);
  });

  test("by none of its that is another proxy's", () => {
    const other = service({}, { "service.kubernetes.io/service-proxy-name": "mesh" });
    expect(servicePorts(other, [slice([at("10.1.0.1")])], PLACE)).toEqual([]);
  });

  test("by no external address, which any tenant could say of others' traffic", () => {
    const spec = { externalIPs: ["192.0.2.1"], loadBalancerIP: "192.0.2.2" };
    expect(servicePorts(service(spec), [slice([at("10.1.0.1")])], PLACE).map(({ address }) => address)).toEqual([
      "10.96.0.10",
    ]);
  });

  test("to endpoints of each address's own family", () => {
    const both = service({ clusterIPs: ["10.96.0.10", "fd00::10"] });
    const slices = [slice([at("10.1.0.1")]), slice([at("fd01::1")], { addressType: "IPv6" })];
    expect(servicePorts(both, slices, PLACE).map(({ address, endpoints }) => [address, endpoints[0]?.address])).toEqual(
      [
        ["10.96.0.10", "10.1.0.1"],
        ["fd00::10", "fd01::1"],
      ],
    );
  });

  test("to those that are ready, and that say nothing of it", () => {
    expect(
      leads([
        at("10.1.0.1", { conditions: { ready: false } }),
        at("10.1.0.2"),
        at("10.1.0.3", { conditions: { ready: true } }),
      ]),
    ).toEqual([["10.1.0.2", "10.1.0.3"]]);
  });

  test("to those that end and answer still, where none is ready", () => {
    const ending = at("10.1.0.1", { conditions: { ready: false, serving: true, terminating: true } });
    const silent = at("10.1.0.2", { conditions: { ready: false, serving: false, terminating: true } });
    expect(leads([ending, silent])).toEqual([["10.1.0.1"]]);
    expect(leads([ending, silent, at("10.1.0.3")])).toEqual([["10.1.0.3"]]);
  });

  test("to those of this node alone by internalTrafficPolicy Local, or nowhere", () => {
    const far = at("10.1.0.1", { nodeName: "other" });
    const near = at("10.1.0.2", { nodeName: "burst-0" });
    expect(leads([far, near], { internalTrafficPolicy: "Local" })).toEqual([["10.1.0.2"]]);
    expect(leads([far], { internalTrafficPolicy: "Local" })).toEqual([[]]);
  });

  test("to those that are hinted for this zone, and for this node before that", () => {
    const zones = (name: string) => ({ forZones: [{ name }] });
    const [far, near] = [at("10.1.0.1", { hints: zones("z2") }), at("10.1.0.2", { hints: zones("z1") })];
    expect(leads([far, near])).toEqual([["10.1.0.2"]]);
    // One without a hint: then there are none.
    expect(leads([far, near, at("10.1.0.3")])).toEqual([["10.1.0.1", "10.1.0.2", "10.1.0.3"]]);
    expect(leads([far])).toEqual([["10.1.0.1"]]);
    const own = at("10.1.0.4", { hints: { ...zones("z2"), forNodes: [{ name: "burst-0" }] } });
    const others = at("10.1.0.5", { hints: { ...zones("z1"), forNodes: [{ name: "other" }] } });
    expect(leads([own, others])).toEqual([["10.1.0.4"]]);
  });

  test("to each endpoint once, in an order that does not depend on the slices", () => {
    const [a, b] = [slice([at("10.1.0.2"), at("10.1.0.1")]), slice([at("10.1.0.1")])];
    const found = servicePorts(service(), [b, a], PLACE);
    expect(found).toEqual(servicePorts(service(), [a, b], PLACE));
    expect(found[0]?.endpoints).toHaveLength(2);
  });

  test("not to what a tenant says is the host's own, while the others go on", () => {
    expect(leads([at("127.0.0.1"), at("169.254.169.254"), at("fd00::1"), at("10.1.0.1")])).toEqual([["10.1.0.1"]]);
  });

  test("to a thousand at most", () => {
    const many = Array.from({ length: 1500 }, (_, n) => at(`10.1.${n >> 8}.${n & 255}`));
    expect(leads(many)[0]).toHaveLength(1000);
  });

  test("to the same one for a caller, for as long as ClientIP says", () => {
    const sticky = { sessionAffinity: "ClientIP", sessionAffinityConfig: { clientIP: { timeoutSeconds: 7 } } };
    expect(servicePorts(service(sticky), [], PLACE)[0]?.affinity_s).toBe(7);
    expect(servicePorts(service({ sessionAffinity: "ClientIP" }), [], PLACE)[0]?.affinity_s).toBe(10_800);
  });
});
