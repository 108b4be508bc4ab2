import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Quantity, QuantityError } from "../../../src/resources/quantity.ts";

/** What Go's resource.ParseQuantity (apimachinery v0.36.3) answers: text, String(), Value(), MilliValue(). */
const FROM_GO: readonly (readonly [string, string, bigint, bigint])[] = [
  ["0", "0", 0n, 0n],
  ["1", "1", 1n, 1000n],
  ["100m", "100m", 1n, 100n],
  ["0.1", "100m", 1n, 100n],
  ["1.5", "1500m", 2n, 1500n],
  ["2k", "2k", 2000n, 2_000_000n],
  ["1e3", "1e3", 1000n, 1_000_000n],
  ["1E3", "1e3", 1000n, 1_000_000n],
  ["12e6", "12e6", 12_000_000n, 12_000_000_000n],
  ["1.5e3", "1500", 1500n, 1_500_000n],
  ["1000", "1k", 1000n, 1_000_000n],
  ["1000k", "1M", 1_000_000n, 1_000_000_000n],
  ["1Ki", "1Ki", 1024n, 1_024_000n],
  ["1024", "1024", 1024n, 1_024_000n],
  ["1024Ki", "1Mi", 1_048_576n, 1_048_576_000n],
  ["1.5Gi", "1536Mi", 1_610_612_736n, 1_610_612_736_000n],
  ["0.5Mi", "512Ki", 524_288n, 524_288_000n],
  ["9Ei", "9223372036854775807", 9_223_372_036_854_775_807n, 9_223_372_036_854_775_807_000n],
  ["1n", "1n", 1n, 1n],
  ["0.1n", "1n", 1n, 1n],
  ["1500u", "1500u", 1n, 2n],
  ["100000000n", "100m", 1n, 100n],
  ["-1", "-1", -1n, -1000n],
  ["-100m", "-100m", -1n, -100n],
  ["-1.5Gi", "-1536Mi", -1_610_612_736n, -1_610_612_736_000n],
  ["+5", "5", 5n, 5000n],
  [".5", "500m", 1n, 500n],
  ["1.1Ki", "1126400m", 1127n, 1_126_400n],
  ["0.0001Ki", "102400u", 1n, 103n],
  ["1000Mi", "1000Mi", 1_048_576_000n, 1_048_576_000_000n],
  ["1E", "1E", 1_000_000_000_000_000_000n, 10n ** 21n],
  ["128974848000m", "128974848", 128_974_848n, 128_974_848_000n],
  ["1e-3", "1e-3", 1n, 1n],
  ["10e-1", "1", 1n, 1000n],
  ["1e-10", "1e-9", 1n, 1n],
  ["16Pi", "16Pi", 2n ** 54n, 2n ** 54n * 1000n],
  ["999999999999999999", "999999999999999999", 999_999_999_999_999_999n, 999_999_999_999_999_999_000n],
];

/** Rejected by Go too. */
const NOT_QUANTITIES = [
  "",
  "a",
  "1.1.1",
  "1 ",
  " 1",
  "1KiB",
  "1ki",
  "1K",
  "1e",
  "1e+",
  "--1",
  "1m3",
  "0x1",
  "1i",
  "NaN",
];

const anyAmount = fc
  .record({
    whole: fc.bigInt({ min: 0n, max: 10n ** 12n }),
    fraction: fc.option(fc.stringMatching(/^\d{1,9}$/), { nil: undefined }),
    suffix: fc.constantFrom("n", "u", "m", "", "k", "M", "G", "Ki", "Mi", "Gi", "e2", "e-2"),
    negative: fc.boolean(),
  })
  .map(
    ({ whole, fraction, suffix, negative }) =>
      `${negative ? "-" : ""}${whole}${fraction === undefined ? "" : `.${fraction}`}${suffix}`,
  );

describe("Quantity", () => {
  test.each(FROM_GO)("reads %s as Go does", (text, canonical, value, millis) => {
    const quantity = Quantity.parse(text);
    expect([quantity.toString(), quantity.value(), quantity.milliValue()]).toEqual([canonical, value, millis]);
  });

  test.each(NOT_QUANTITIES)("refuses %j", (text) => {
    expect(() => Quantity.parse(text)).toThrow(QuantityError);
  });

  test("accepts plain numbers, as YAML gives them", () => {
    expect(Quantity.parse(1.5).toMillis()).toBe(1500);
  });

  test("refuses an exponent that would need a giant number", () => {
    expect(Quantity.tryParse("1e1000000000")).toBeUndefined();
  });

  test("gives numbers that never exceed what a double holds exactly", () => {
    expect(Quantity.parse("9Ei").toNumber()).toBe(Number.MAX_SAFE_INTEGER);
  });

  test("takes the other's format when it is zero", () => {
    expect(Quantity.zero.add(Quantity.parse("1Gi")).toString()).toBe("1Gi");
  });

  test("keeps its format when something is added", () => {
    expect(Quantity.parse("1Gi").add(Quantity.parse("1073741824")).toString()).toBe("2Gi");
  });

  test("counts a binary amount below one as decimal", () => {
    expect(Quantity.parse("0.0001Ki").add(Quantity.parse("1Gi")).format).toBe("DecimalSI");
  });

  test("prints what it can read again, unchanged", () => {
    fc.assert(
      fc.property(anyAmount, (text) => {
        const quantity = Quantity.parse(text);
        const again = Quantity.parse(quantity.toString());
        expect(again.nano).toBe(quantity.nano);
        expect(again.toString()).toBe(quantity.toString());
      }),
    );
  });

  test("adds and subtracts without loss", () => {
    fc.assert(
      fc.property(anyAmount, anyAmount, (a, b) => {
        const sum = Quantity.parse(a).add(Quantity.parse(b));
        expect(sum.sub(Quantity.parse(b)).equals(Quantity.parse(a))).toBe(true);
      }),
    );
  });

  test("orders by amount, whatever the format", () => {
    fc.assert(
      fc.property(anyAmount, anyAmount, (a, b) => {
        const [x, y] = [Quantity.parse(a), Quantity.parse(b)];
        expect(x.compare(y) + y.compare(x)).toBe(0);
        expect(x.compare(y) < 0).toBe(x.sub(y).nano < 0n);
      }),
    );
  });

  test("rounds whole values to the next one away from zero", () => {
    fc.assert(
      fc.property(anyAmount, (text) => {
        const quantity = Quantity.parse(text);
        const distance = quantity.value() * 1_000_000_000n - quantity.nano;
        const outward = quantity.nano >= 0n ? distance : -distance;
        expect(outward >= 0n && outward < 1_000_000_000n).toBe(true);
      }),
    );
  });
});
