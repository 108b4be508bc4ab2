import { describe, expect, test } from "vitest";
import { nodeChange, reload } from "../../../src/config/reload.ts";
import { agentConfigSchema } from "../../../src/config/schema.ts";

const config = (rest: object = {}, node: object = {}) =>
  agentConfigSchema.parse({
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    nodes: [{ name: "n", provider: { type: "http-vm", url: "https://a.example", tokenFile: "/one" }, ...node }],
    ...rest,
  });

describe("a changed configuration", () => {
  test("is taken over where it may change", () => {
    const next = config({ api: { qps: 7 } }, { labels: { a: "b" }, podConcurrency: 3 });
    expect(reload(config(), next)).toEqual({ config: next, kept: [] });
  });

  test("keeps what is for the whole process, and names its fields", () => {
    const next = config({ identity: { mode: "impersonate" }, health: { port: 1 }, logLevel: "debug" });
    expect(reload(config(), next)).toEqual({ config: config(), kept: ["identity.mode", "logLevel", "health.port"] });
  });

  test("keeps a node's backend, whose machines another would not have, and takes how it is spoken to", () => {
    const provider = { type: "http-vm", url: "https://b.example", tokenFile: "/two", requestsPerSecond: 3 };
    const { config: taken, kept } = reload(config(), config({}, { provider }));
    expect(kept).toEqual(["nodes[n].provider.url"]);
    expect(taken.nodes[0]!.provider).toMatchObject({ ...provider, url: "https://a.example" });
  });

  test("takes back a token file that is not named any more", () => {
    const { config: taken } = reload(config(), config({}, { provider: { type: "http-vm", url: "https://a.example" } }));
    expect(taken.nodes[0]!.provider).not.toHaveProperty("tokenFile");
  });

  test("keeps a module with its options: what they say, only it knows", () => {
    const of = (options: object) => config({}, { provider: { type: "module", module: "m", options } });
    expect(reload(of({ a: 1 }), of({ a: 2 })).kept).toEqual(["nodes[n].provider.options.a"]);
  });

  test("may have other nodes", () => {
    const provider = { type: "memory" };
    const next = config({ nodes: [{ name: "m", provider }] });
    expect(reload(config(), next)).toEqual({ config: next, kept: [] });
  });
});

describe("a changed node", () => {
  const change = (node: object) => nodeChange(config().nodes[0]!, config({}, node).nodes[0]!);

  test("is none when it says the same", () => expect(change({ labels: {} })).toBe("nothing"));

  test.each([
    { labels: { a: "b" } },
    { annotations: { a: "b" } },
    { taints: [] },
    { capacity: { cpu: "1" } },
    { backendOutageGrace: "1m" },
  ])("is written into its Node object alone: %o", (node) => expect(change(node)).toBe("node-object"));

  test.each([
    { podConcurrency: 1 },
    { kubelet: { port: 1 } },
    { addresses: ["1.2.3.4"] },
    { sweep: { maxPerMinute: 1 } },
  ])("is made anew for the rest: %o", (node) => expect(change(node)).toBe("everything"));
});
