/** The agent's own Node: what is known of it, and by whose word. */
import { beforeEach, expect, test } from "vitest";
import { OwnNode } from "../../../src/agent/own-node.ts";
import type { Store } from "../../../src/kube/store.ts";
import type { Node } from "../../../src/kube/wire.ts";

const nodeWith = (allocatable: Record<string, string>): Node => ({
  metadata: { name: "burst-0", annotations: { "vmlet.dev/extended-resources": "v.example/gpu" } },
  status: { allocatable },
});
const known = (own: OwnNode) => [own.allocatable.get("example.com/slots")?.toNumber(), [...own.othersResources]];

let stored: Node | undefined;
let own: OwnNode;

beforeEach(() => {
  stored = undefined;
  own = new OwnNode("burst-0");
  own.follow({ store: { getByName: () => stored } as unknown as Store<Node>, refresh: () => {} });
});

test("there is nothing of a Node that is not registered", () => {
  expect(known(own)).toEqual([undefined, []]);
});

test("what somebody else has written into it is told from what is the backend's", () => {
  stored = nodeWith({ "example.com/slots": "5", "v.example/gpu": "1" });
  expect(known(own)).toEqual([5, ["example.com/slots"]]);
});

test("what the watch has brought while the API server was asked counts", () => {
  const before = nodeWith({});
  stored = nodeWith({ "example.com/slots": "6" });
  own.see(nodeWith({}), before);
  expect(known(own)).toEqual([6, ["example.com/slots"]]);
});

test("what the API server has just said counts, until the watch brings something", () => {
  stored = nodeWith({});
  own.see(nodeWith({ "example.com/slots": "5" }), stored);
  expect(known(own)).toEqual([5, ["example.com/slots"]]);
  stored = nodeWith({ "example.com/slots": "6" });
  expect(known(own)).toEqual([6, ["example.com/slots"]]);
  stored = nodeWith({});
  expect(known(own)).toEqual([undefined, []]);
});
