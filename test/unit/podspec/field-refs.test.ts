import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  addressTokens,
  fieldValue,
  fieldValueForEnv,
  formatMap,
  quoteGo,
  resourceValue,
} from "../../../src/podspec/render/field-refs.ts";
import { node, podWith } from "./fixtures.ts";

const pod = podWith(
  { serviceAccountName: "robot" },
  { labels: { app: "web", constructor: "x" }, annotations: { "a/b": 'say "hi"\n', z: "1" } },
);
const facts = { nodeName: "burst-0", hostIPs: node.hostIPs, tokens: addressTokens("0a1b") };

describe("fieldValueForEnv", () => {
  test.each([
    ["metadata.name", "web"],
    ["metadata.namespace", "shop"],
    ["metadata.uid", "0a1b"],
    ["metadata.labels['app']", "web"],
    ["metadata.labels['missing']", ""],
    ["metadata.labels['toString']", ""],
    ["metadata.annotations['a/b']", 'say "hi"\n'],
    ["spec.nodeName", "burst-0"],
    ["spec.serviceAccountName", "robot"],
    ["status.hostIP", "10.0.0.1"],
    ["status.hostIPs", "10.0.0.1,fd00::1"],
    ["status.podIP", facts.tokens.pod_ip],
    ["status.podIPs", facts.tokens.pod_ips],
  ])("resolves %s", (fieldPath, value) => {
    expect(fieldValueForEnv(pod, { fieldPath }, facts)).toEqual({ ok: true, value });
  });

  test("refuses another version of the API", () => {
    expect(fieldValueForEnv(pod, { apiVersion: "v2", fieldPath: "metadata.name" }, facts)).toEqual({
      ok: false,
      message: "unsupported pod version: v2",
    });
  });

  test("refuses a field that the downward API does not have", () => {
    expect(fieldValueForEnv(pod, { fieldPath: "spec.containers" }, facts)).toEqual({
      ok: false,
      message: "unsupported fieldPath: spec.containers",
    });
  });

  test("refuses a subscript where there is no map", () => {
    expect(fieldValue(pod, "spec.nodeName['x']").ok).toBe(false);
  });
});

describe("addressTokens", () => {
  test("makes two strings of which neither contains the other", () => {
    const { pod_ip, pod_ips } = addressTokens("u");
    expect(pod_ips.includes(pod_ip) || pod_ip.includes(pod_ips)).toBe(false);
  });
});

describe("resourceValue", () => {
  const container = { name: "app", resources: { limits: { cpu: "1500m", memory: "100M" }, requests: { cpu: "250m" } } };

  test.each([
    ["limits.cpu", undefined, "2"],
    ["limits.cpu", "1m", "1500"],
    ["requests.cpu", "1", "1"],
    ["requests.cpu", "0", "1"],
    ["limits.memory", "1Mi", "96"],
    ["limits.memory", "1", "100000000"],
    ["requests.memory", undefined, "0"],
    ["limits.ephemeral-storage", "1Gi", "100"],
    ["limits.hugepages-2Mi", undefined, "0"],
  ])("%s by %s is %s", (resource, divisor, value) => {
    const ref = { resource, ...(divisor !== undefined && { divisor }) };
    expect(resourceValue(podWith(), container, ref, node.allocatable)).toEqual({ ok: true, value });
  });

  test("falls back to the node's allocatable for a limit that is not set", () => {
    expect(resourceValue(podWith(), { name: "app" }, { resource: "limits.cpu" }, node.allocatable)).toEqual({
      ok: true,
      value: "8",
    });
  });

  test("prefers the pod's own limit to the node's", () => {
    const limited = podWith({ resources: { limits: { cpu: "3" } } });
    expect(resourceValue(limited, { name: "app" }, { resource: "limits.cpu" }, node.allocatable)).toEqual({
      ok: true,
      value: "3",
    });
  });

  test("names a container that does not exist", () => {
    expect(
      resourceValue(podWith(), container, { containerName: "ghost", resource: "limits.cpu" }, node.allocatable),
    ).toEqual({
      ok: false,
      message: "container ghost not found",
    });
  });

  test("refuses a resource that the downward API does not have", () => {
    expect(resourceValue(podWith(), container, { resource: "limits.nvidia.com/gpu" }, node.allocatable)).toEqual({
      ok: false,
      message: "unsupported container resource : limits.nvidia.com/gpu",
    });
  });
});

/** What Go's strconv.Quote answers. */
const QUOTED: readonly (readonly [string, string])[] = [
  ["", '""'],
  ["a b", '"a b"'],
  ["tab\tnl\n", '"tab\\tnl\\n"'],
  ['q"q', '"q\\"q"'],
  ["back\\slash", '"back\\\\slash"'],
  ["\0", '"\\x00"'],
  ["\u001b[0m", '"\\x1b[0m"'],
  ["\u007f", '"\\x7f"'],
  ["é日本😀€½²\u0301", '"é日本😀€½²\u0301"'],
  ["\u00a0", '"\\u00a0"'],
  ["\u00ad", '"\\u00ad"'],
  ["\u200b\u2028", '"\\u200b\\u2028"'],
  ["\u{e0001}", '"\\U000e0001"'],
  ["\u0007\b\f\r\v", '"\\a\\b\\f\\r\\v"'],
];

/** What Go's `strconv.Unquote` makes of a quoted string: written from its grammar, not from quoteGo. */
function unquoteGo(quoted: string): string {
  const names: Record<string, string> = { a: "\x07", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t", v: "\v" };
  return quoted
    .slice(1, -1)
    .replaceAll(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/g, (_all, x, u, long, name: string) =>
      name === undefined ? String.fromCodePoint(Number.parseInt(x ?? u ?? long, 16)) : (names[name] ?? name),
    );
}

describe("quoteGo", () => {
  test("is one printable line that reads back as what was quoted", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        const quoted = quoteGo(text);
        expect(unquoteGo(quoted)).toBe(text);
        expect(quoted).toMatch(/^"[^\p{C}\p{Zl}\p{Zp}]*"$/u);
        expect(quoted.slice(1, -1)).not.toMatch(/(?<!\\)(?:\\\\)*"/);
      }),
    );
  });

  test.each(QUOTED)("quotes %j as Go does", (text, quoted) => {
    expect(quoteGo(text)).toBe(quoted);
  });
});

describe("formatMap", () => {
  test("writes sorted lines", () => {
    expect(formatMap({ z: "1", "a/b": "x\ny", B: "2" })).toBe('B="2"\na/b="x\\ny"\nz="1"');
  });
});
