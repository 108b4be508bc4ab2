import { describe, expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { leavingPatch, NodeSpec, wantedTaints } from "../../../src/node/node-spec.ts";
import type { Taint } from "../../../src/resources/labels.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const taint = (text: string): Taint => {
  const [rest = "", effect = ""] = text.split(":");
  const [key = "", value] = rest.split("=");
  return { key, effect, ...(value !== undefined && { value }) };
};
const node = (taints: string[], recorded?: string, spec: object = {}) =>
  ({
    metadata: { name: "n", uid: "u", ...(recorded !== undefined && { annotations: { "vmlet.dev/taints": recorded } }) },
    spec: { taints: taints.map(taint), ...spec },
  }) as Node;
const wanted = (current: Node, ...configured: string[]) => wantedTaints(current, configured.map(taint));

describe("taints", () => {
  test("of a Node from before they were recorded stay", () => {
    expect(wanted(node(["a:NoSchedule"]), "b:NoSchedule")).toBeUndefined();
  });

  test("that the configuration gives no more go, and new ones come", () => {
    expect(wanted(node(["a=1:NoSchedule"], "a=1:NoSchedule"), "b:NoExecute")).toEqual([taint("b:NoExecute")]);
  });

  test("of others stay", () => {
    const current = node(["theirs:NoExecute", "a:NoSchedule"], "a:NoSchedule");
    expect(wanted(current)).toEqual([taint("theirs:NoExecute")]);
  });

  test("that somebody took away do not come back by themselves", () => {
    expect(wanted(node([], "a:NoSchedule"), "a:NoSchedule")).toBeUndefined();
  });

  test("have another value when the configuration has", () => {
    expect(wanted(node(["a=1:NoSchedule"], "a=1:NoSchedule"), "a=2:NoSchedule")).toEqual([taint("a=2:NoSchedule")]);
  });

  test("are right when an administrator has done what the agent may not", () => {
    expect(wanted(node(["b:NoSchedule"], "a:NoSchedule"), "b:NoSchedule")).toBeUndefined();
  });
});

describe("a node that leaves", () => {
  const leaving = { metadata: { annotations: { "vmlet.dev/leaving": "true" } }, spec: { unschedulable: true } };

  test("is cordoned, once", () => {
    expect(leavingPatch(node([]), true)).toEqual(leaving);
    expect(leavingPatch(leaving as Node, true)).toBeUndefined();
  });

  test("and comes back is not cordoned any more", () => {
    expect(leavingPatch(leaving as Node, false)).toMatchObject({ spec: { unschedulable: null } });
  });

  test("and was cordoned by somebody else stays so when it comes back", () => {
    const theirs = node([], undefined, { unschedulable: true });
    expect([leavingPatch(theirs, true), leavingPatch(theirs, false)]).toEqual([undefined, undefined]);
  });
});

describe("an API server that refuses", () => {
  const settings = { name: "n", clusterId: "c", version: "1", addresses: [], kubeletPort: 1 };
  const refusing = (refused: RegExp) => {
    const sent: unknown[] = [];
    const warnings: string[][] = [];
    const request = (asked: KubeRequest) => {
      sent.push(asked.body);
      if (refused.test(JSON.stringify(asked.body))) throw new KubeApiError("no", { status: 403, reason: "Forbidden" });
      return Promise.resolve(undefined as never);
    };
    const kube = { request, watch: () => Promise.reject(new Error("not asked for")) as never };
    const spec = new NodeSpec({ kube, logger: silentLogger, warn: (...warning) => void warnings.push(warning) });
    return { sent, warnings, spec };
  };
  const { signal } = new AbortController();

  test("a node's own taints is told of once, with what an administrator has to type", async () => {
    const { sent, warnings, spec } = refusing(/taints/);
    const current = node(["a=1:NoSchedule", "c:NoExecute"], "a=1:NoSchedule,c:NoExecute");
    const taints = [taint("b=2:NoSchedule"), taint("c:NoExecute")];
    for (let i = 0; i < 3; i++) await spec.write(current, { ...settings, taints }, false, signal);
    expect(sent).toHaveLength(1);
    expect(warnings).toEqual([
      ["CannotTaint", expect.stringContaining("kubectl taint node n --overwrite b=2:NoSchedule a=1:NoSchedule-")],
    ]);
  });

  test("taints lets the node be cordoned all the same", async () => {
    const { sent, spec } = refusing(/taints/);
    const current = node(["a:NoSchedule"], "a:NoSchedule");
    await spec.write(current, { ...settings, taints: [] }, true, signal);
    expect(sent).toContainEqual(expect.objectContaining({ spec: { unschedulable: true } }));
  });
});
