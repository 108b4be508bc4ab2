import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ReplyTooLargeError } from "../../../src/kube/errors.ts";
import { decodeList, type SkippedItem } from "../../../src/kube/list-decoder.ts";

async function decode(
  text: string,
  options: { cuts?: readonly number[]; maxItemBytes?: number; maxBytes?: number } = {},
) {
  const bytes = Buffer.from(text);
  const cuts = [0, ...(options.cuts ?? []).map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  const skipped: SkippedItem[] = [];
  const list = await decodeList(
    (async function* () {
      for (const [index, cut] of cuts.slice(1).entries()) yield bytes.subarray(cuts[index], cut);
    })(),
    {
      what: "GET /pods",
      maxItemBytes: options.maxItemBytes ?? 1e6,
      maxBytes: options.maxBytes ?? 1e9,
      onSkipped: (item) => skipped.push(item),
    },
  );
  return { list, skipped };
}

const pod = (name: string, payload = "") => ({ metadata: { name, namespace: "team-a" }, spec: { payload } });

describe("a list", () => {
  test("is what JSON.parse makes of it, wherever its bytes are cut and whatever its objects hold", async () => {
    // Texts that look like the list's own marks, and values in which they are escaped.
    const text = fc.oneof(
      fc.string({ unit: "binary" }),
      fc.constantFrom('"items":[{', "]}", '\\"', "\\", "}{", "items"),
    );
    const value = fc.dictionary(text, fc.oneof(text, fc.jsonValue(), fc.array(fc.dictionary(text, text))));
    await fc.assert(
      fc.asyncProperty(
        fc.record({ kind: text, metadata: value, items: fc.array(value), after: fc.jsonValue() }),
        fc.array(fc.nat(), { maxLength: 20 }),
        fc.constantFrom(undefined, 2),
        async (list, cuts, indent) => {
          const json = JSON.stringify(list, undefined, indent);
          expect((await decode(json, { cuts })).list).toEqual(JSON.parse(json));
        },
      ),
    );
  });

  test.each(['{"items":null,"metadata":{}}', '{"metadata":{"items":[{"a":1}]},"items":[]}', "{}", '"text"', "[1]"])(
    "without objects stays as it is: %s",
    async (json) => expect((await decode(json)).list).toEqual(JSON.parse(json)),
  );

  test("that is empty is undefined, as any empty reply", async () => expect((await decode("")).list).toBeUndefined());

  test.each(['{"items":[{"a":}]}', '{"items":[{"a":1}', "<html>"])("that is not JSON is refused: %s", (json) =>
    expect(decode(json)).rejects.toMatchObject({ status: 0, reason: "Malformed" }),
  );
});

describe("an item that is too large", () => {
  const large = pod("large", "x".repeat(5000));

  test("is left out and told by name, and all others are taken", async () => {
    const json = JSON.stringify({ metadata: { resourceVersion: "7" }, items: [pod("a"), large, pod("b")] });
    const { list, skipped } = await decode(json, { maxItemBytes: 1000, cuts: [90, 300, 2000, 4000] });
    expect(list).toEqual({ metadata: { resourceVersion: "7" }, items: [pod("a"), pod("b")] });
    expect(skipped).toEqual([{ namespace: "team-a", name: "large", bytes: JSON.stringify(large).length }]);
  });

  test("does not count for the size of the whole", async () => {
    const json = JSON.stringify({ items: [pod("a"), large, large, large, pod("b")] });
    const { list } = await decode(json, { maxItemBytes: 1000, maxBytes: 2000, cuts: [1500, 3000, 4500, 6000, 7500] });
    expect(list).toEqual({ items: [pod("a"), pod("b")] });
  });

  test("is not quoted", async () => {
    const secret = { data: { name: "secret", key: "x".repeat(5000) } };
    const { skipped } = await decode(JSON.stringify({ items: [secret] }), { maxItemBytes: 1000 });
    expect(skipped).toEqual([{ namespace: undefined, name: undefined, bytes: JSON.stringify(secret).length }]);
  });
});

test("a list whose items are too many to hold is refused as too large", () => {
  const json = JSON.stringify({ items: Array.from({ length: 100 }, (_, i) => pod(`p${i}`, "x".repeat(100))) });
  return expect(decode(json, { maxBytes: 5000 })).rejects.toBeInstanceOf(ReplyTooLargeError);
});
