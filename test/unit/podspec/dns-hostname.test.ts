import { describe, expect, test } from "vitest";
import { podDns } from "../../../src/podspec/render/dns.ts";
import { podHostname } from "../../../src/podspec/render/hostname.ts";
import type { PodEvent } from "../../../src/podspec/types.ts";
import { node, podWith, type PodSpec } from "./fixtures.ts";

function dns(spec: Partial<PodSpec>, settings = node.dns) {
  const events: PodEvent[] = [];
  return { conf: podDns(podWith(spec), settings, events), events };
}

describe("podDns", () => {
  test("points to the cluster's DNS by default", () => {
    expect(dns({}).conf).toEqual({
      nameservers: ["10.96.0.10"],
      searches: ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"],
      options: ["ndots:5"],
    });
  });

  test("takes the node's own with policy Default", () => {
    expect(dns({ dnsPolicy: "Default" }).conf).toEqual({
      nameservers: ["192.0.2.53"],
      searches: ["corp.example"],
      options: ["timeout:1"],
    });
  });

  test("takes only dnsConfig with policy None", () => {
    const dnsConfig = {
      nameservers: ["1.1.1.1"],
      searches: ["a.b"],
      options: [{ name: "ndots", value: "2" }, { name: "edns0" }],
    };
    expect(dns({ dnsPolicy: "None", dnsConfig }).conf).toEqual({
      nameservers: ["1.1.1.1"],
      searches: ["a.b"],
      options: ["ndots:2", "edns0"],
    });
  });

  test("merges dnsConfig into the policy, options by name", () => {
    const dnsConfig = {
      nameservers: ["1.1.1.1", "10.96.0.10"],
      searches: ["cluster.local", "x"],
      options: [{ name: "ndots", value: "2" }],
    };
    expect(dns({ dnsConfig }).conf).toMatchObject({ nameservers: ["10.96.0.10", "1.1.1.1"], options: ["ndots:2"] });
  });

  test("falls back to Default and warns when the node knows no cluster DNS", () => {
    const { conf, events } = dns({}, { ...node.dns, clusterDns: [] });
    expect(conf.nameservers).toEqual(["192.0.2.53"]);
    expect(events.map(({ reason }) => reason)).toEqual(["MissingClusterDNS"]);
  });

  test("cuts what resolvers cannot hold, and warns with the kubelet's text", () => {
    const nameservers = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"];
    const { conf, events } = dns({ dnsPolicy: "None", dnsConfig: { nameservers } });
    expect(conf.nameservers).toHaveLength(3);
    expect(events[0]?.message).toBe(
      "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3",
    );
  });

  test("keeps the search line within 2048 characters, 32 domains of 255 characters at most", () => {
    const searches = [...Array.from({ length: 40 }, (_, i) => `${"x".repeat(100)}${i}`), "y".repeat(256)];
    const { conf, events } = dns({ dnsPolicy: "None", dnsConfig: { nameservers: ["1.1.1.1"], searches } });
    expect(conf.searches.join(" ").length).toBeLessThanOrEqual(2048);
    expect(conf.searches).toEqual(searches.slice(0, 19));
    expect(events.map(({ reason }) => reason)).toEqual(["DNSConfigForming"]);
  });
});

describe("podHostname", () => {
  const of = (spec: Partial<PodSpec>, name = "web") => podHostname(podWith(spec, { name }), "cluster.local");

  test("is the pod's name", () => {
    expect(of({})).toEqual({ ok: true, hostname: "web", domain: undefined, asFqdn: false });
  });

  test("has a domain with subdomain", () => {
    expect(of({ hostname: "h", subdomain: "sub" })).toEqual({
      ok: true,
      hostname: "h",
      domain: "sub.shop.svc.cluster.local",
      asFqdn: false,
    });
  });

  test("is cut to 63 characters without a dash at the end", () => {
    expect(of({}, `${"a".repeat(62)}-b`)).toMatchObject({ hostname: "a".repeat(62) });
  });

  test("is what hostnameOverride says, without a domain", () => {
    expect(of({ hostnameOverride: "x.y", subdomain: "sub" })).toMatchObject({ hostname: "x.y", domain: undefined });
  });

  test("cannot be a fully qualified name of more than 64 characters", () => {
    const result = of({ subdomain: "s".repeat(30), setHostnameAsFQDN: true }, "p".repeat(20));
    expect(result.ok ? "" : result.message).toMatch(
      /^failed to construct FQDN from pod hostname and cluster domain, FQDN p+\..* is too long \(64 characters is the max, 74 characters requested\)$/,
    );
  });
});
