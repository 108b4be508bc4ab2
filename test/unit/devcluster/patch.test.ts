import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { jsonPatch, mergePatch, strategicMergePatch } from "../../../src/devcluster/objects/patch.ts";

describe("strategicMergePatch", () => {
  const pod = {
    spec: {
      containers: [
        { name: "a", image: "1", env: [{ name: "X", value: "1" }] },
        { name: "b", image: "2" },
      ],
    },
  };

  test("merges lists of lists by their keys", () => {
    const patch = { spec: { containers: [{ name: "a", env: [{ name: "Y", value: "2" }] }] } };
    expect(strategicMergePatch("V1Pod", pod, patch).spec.containers).toEqual([
      {
        name: "a",
        image: "1",
        env: [
          { name: "Y", value: "2" },
          { name: "X", value: "1" },
        ],
      },
      { name: "b", image: "2" },
    ]);
  });

  test("replaces a list that has no merge key", () => {
    const patch = { spec: { containers: [{ name: "a", args: ["x"] }] } };
    const twice = strategicMergePatch("V1Pod", strategicMergePatch("V1Pod", pod, patch), {
      spec: { containers: [{ name: "a", args: ["y"] }] },
    });
    expect(twice.spec.containers[0].args).toEqual(["y"]);
  });

  test("replaces a whole list or object on $patch: replace", () => {
    expect(
      strategicMergePatch("V1Pod", pod, { spec: { containers: [{ $patch: "replace" }, { name: "c" }] } }).spec
        .containers,
    ).toEqual([{ name: "c" }]);
    expect(strategicMergePatch("V1Pod", pod, { spec: { $patch: "replace", nodeName: "n" } }).spec).toEqual({
      nodeName: "n",
    });
  });

  test("keeps only $retainKeys of an object that changes its kind", () => {
    const before = { spec: { volumes: [{ name: "v", emptyDir: {} }] } };
    const patch = { spec: { volumes: [{ name: "v", $retainKeys: ["name", "secret"], secret: { secretName: "s" } }] } };
    expect(strategicMergePatch("V1Pod", before, patch).spec.volumes).toEqual([
      { name: "v", secret: { secretName: "s" } },
    ]);
  });

  test("refuses an item without its merge key", () => {
    expect(() => strategicMergePatch("V1Pod", pod, { spec: { containers: [{ image: "x" }] } })).toThrow(
      "does not contain declared merge key: name",
    );
  });
});

describe("every patch kind", () => {
  const json = fc.dictionary(
    fc.constantFrom("a", "b", "c"),
    fc.oneof(fc.integer(), fc.string(), fc.dictionary(fc.constantFrom("x", "y"), fc.integer())),
  );

  test("leaves its arguments alone", () => {
    fc.assert(
      fc.property(json, json, (document, patch) => {
        const before = structuredClone([document, patch]);
        mergePatch(document, patch);
        jsonPatch(document, [{ op: "add", path: "/z", value: patch }]);
        strategicMergePatch("V1ConfigMap", document, patch);
        expect([document, patch]).toEqual(before);
      }),
    );
  });

  test("changes nothing when a merge patch is the document itself", () => {
    fc.assert(
      fc.property(json, (document) => {
        expect(mergePatch(document, document)).toEqual(document);
      }),
    );
  });
});

test.for([
  [{ op: "remove", path: "/gone" }],
  [{ op: "replace", path: "/gone", value: 1 }],
  [{ op: "add", path: "/list/9", value: 1 }],
  [{ op: "test", path: "/a", value: 2 }],
  [{ op: "move", from: "/gone", path: "/b" }],
] as const)("a JSON patch that cannot be done is 422: %j", ([operation]) => {
  expect(() => jsonPatch({ a: 1, list: [] }, [operation])).toThrow(
    expect.objectContaining({ body: expect.objectContaining({ code: 422 }) }),
  );
});

test("a JSON patch moves, copies and appends", () => {
  const operations = [
    { op: "move", from: "/a", path: "/b" },
    { op: "copy", from: "/b", path: "/list/0" },
    { op: "add", path: "/list/-", value: 9 },
    { op: "remove", path: "/odd~1name" },
  ];
  expect(jsonPatch({ a: 1, list: [5], "odd/name": true }, operations)).toEqual({ b: 1, list: [1, 5, 9] });
});

test.each(["/__proto__/polluted", "/metadata/__proto__/polluted", "/constructor/prototype/polluted"])(
  "a JSON patch of %s changes no object but its own",
  (path) => {
    expect(() => jsonPatch({ metadata: {} }, [{ op: "add", path, value: "yes" }])).toThrow();
    expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  },
);
