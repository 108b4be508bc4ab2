import { expect, test } from "vitest";
import { descriptionsOf } from "../../../src/devcluster/kubectl/descriptions.ts";
import { kinds } from "../../../src/devcluster/kinds/kinds.ts";

test("every kind that is served has a description", () => {
  expect(kinds.filter(({ model }) => descriptionsOf(model).kind === undefined).map(({ kind }) => kind)).toEqual([]);
});

test("a field's description is its own, not that of its neighbour", () => {
  const { fields } = descriptionsOf("V1PodSpec");
  // A field that is an object has the description of its type.
  expect(fields.has("affinity")).toBe(false);
  expect(fields.get("nodeName")).toMatch(/^NodeName indicates in which node this pod is scheduled/);
});

test("quotes and comment marks read as Kubernetes wrote them", () => {
  expect(descriptionsOf("V1RuleWithOperations").fields.get("resources")).toContain(
    "'*/scale' means all scale subresources",
  );
  expect(descriptionsOf("V1RuleWithOperations").fields.get("resources")).toContain("'*/*' means all resources");
});

test("a model that has no declaration has no description", () => {
  expect(descriptionsOf("V1Nothing")).toEqual({ kind: undefined, fields: new Map() });
});
