import { describe, expect, test } from "vitest";
import {
  SelectorError,
  findUntoleratedTaint,
  matchesNodeSelectorTerms,
  matchesRequirements,
  parseSelector,
  toleratesTaint,
} from "../../../src/resources/labels.ts";

describe("matchesRequirements", () => {
  test.each([
    [{ key: "n", operator: "In", values: ["5", "6"] }, true],
    [{ key: "n", operator: "In", values: ["6"] }, false],
    [{ key: "missing", operator: "In", values: ["5"] }, false],
    [{ key: "n", operator: "NotIn", values: ["5"] }, false],
    [{ key: "missing", operator: "NotIn", values: ["5"] }, true],
    [{ key: "n", operator: "Exists" }, true],
    [{ key: "missing", operator: "DoesNotExist" }, true],
    [{ key: "n", operator: "Gt", values: ["4"] }, true],
    [{ key: "n", operator: "Gt", values: ["5"] }, false],
    [{ key: "n", operator: "Lt", values: ["6"] }, true],
    [{ key: "word", operator: "Gt", values: ["1"] }, false],
    [{ key: "n", operator: "Gt", values: ["1", "2"] }, false],
    [{ key: "n", operator: "Unheard", values: ["5"] }, false],
  ])("%j is %s", (requirement, expected) => {
    expect(matchesRequirements({ n: "5", word: "x" }, [requirement])).toBe(expected);
  });

  test("finds no label that only the prototype has", () => {
    expect(matchesRequirements({}, [{ key: "constructor", operator: "Exists" }])).toBe(false);
  });
});

describe("parseSelector", () => {
  test("reads every form", () => {
    expect(parseSelector("a=b,c==d, e!=f,g in (x, y),h notin (z),i,!j,k>1,l<2")).toEqual([
      { key: "a", operator: "In", values: ["b"] },
      { key: "c", operator: "In", values: ["d"] },
      { key: "e", operator: "NotIn", values: ["f"] },
      { key: "g", operator: "In", values: ["x", "y"] },
      { key: "h", operator: "NotIn", values: ["z"] },
      { key: "i", operator: "Exists", values: [] },
      { key: "j", operator: "DoesNotExist", values: [] },
      { key: "k", operator: "Gt", values: ["1"] },
      { key: "l", operator: "Lt", values: ["2"] },
    ]);
  });

  test("reads an empty text as no requirement", () => {
    expect(parseSelector("")).toEqual([]);
  });

  test.each(["a in x", "=b", "a=b=c", "a (b)"])("refuses %j", (text) => {
    expect(() => parseSelector(text)).toThrow(SelectorError);
  });
});

const nameTerm = (operator: string, value: string) => [
  { matchFields: [{ key: "metadata.name", operator, values: [value] }] },
];

describe("matchesNodeSelectorTerms", () => {
  const node = { name: "burst-0", labels: { zone: "a" } };

  test("needs one of the terms", () => {
    const terms = [
      { matchExpressions: [{ key: "zone", operator: "In", values: ["b"] }] },
      { matchExpressions: [{ key: "zone", operator: "In", values: ["a"] }] },
    ];
    expect(matchesNodeSelectorTerms(node, terms)).toBe(true);
  });

  test("never matches an empty term", () => {
    expect(matchesNodeSelectorTerms(node, [{}])).toBe(false);
  });

  test("matches the node's name as a field", () => {
    expect(matchesNodeSelectorTerms(node, nameTerm("In", "burst-0"))).toBe(true);
    expect(matchesNodeSelectorTerms(node, nameTerm("NotIn", "burst-0"))).toBe(false);
    expect(matchesNodeSelectorTerms(node, nameTerm("Exists", "burst-0"))).toBe(false);
  });
});

describe("toleratesTaint", () => {
  const taint = { key: "k", value: "5", effect: "NoExecute" };

  test.each([
    [{ key: "k", operator: "Equal", value: "5", effect: "NoExecute" }, true],
    [{ key: "k", value: "5" }, true],
    [{ key: "k", value: "6" }, false],
    [{ key: "k", operator: "Exists" }, true],
    [{ key: "k", operator: "Exists", effect: "NoSchedule" }, false],
    [{ operator: "Exists" }, true],
    [{ key: "other", operator: "Exists" }, false],
    [{ key: "k", operator: "Gt", value: "4" }, true],
    [{ key: "k", operator: "Lt", value: "5" }, false],
    [{ key: "k", operator: "Lt", value: "many" }, false],
    [{ key: "k", operator: "Unheard", value: "5" }, false],
  ])("%j: %s", (toleration, expected) => {
    expect(toleratesTaint(toleration, taint)).toBe(expected);
  });

  test("treats an absent value as the empty one", () => {
    expect(toleratesTaint({ key: "k" }, { key: "k", effect: "NoSchedule" })).toBe(true);
  });
});

describe("findUntoleratedTaint", () => {
  test("looks only at the effects asked for", () => {
    const taints = [
      { key: "a", effect: "NoSchedule" },
      { key: "b", effect: "NoExecute" },
    ];
    expect(findUntoleratedTaint(taints, [], ["NoExecute"])?.key).toBe("b");
    expect(findUntoleratedTaint(taints, [{ key: "b", operator: "Exists" }], ["NoExecute"])).toBeUndefined();
  });
});
