import { expect, test } from "vitest";
import { isProviderError, ProviderError } from "../../../src/provider/errors.ts";

// A provider module may bring its own installation of the kit.
const otherCopy = "../../../src/provider/errors.ts?copy=2";

test("an error of another copy of the kit is known, with its code", async () => {
  const other = (await import(otherCopy)) as { ProviderError: typeof ProviderError };
  expect(other.ProviderError).not.toBe(ProviderError);
  const error = new other.ProviderError("not_found", "no such machine");
  expect(error instanceof ProviderError).toBe(true);
  expect(isProviderError(error, "not_found")).toBe(true);
  expect(isProviderError(error, "gone")).toBe(false);
});

test.each([[new Error("not_found")], [{ code: "not_found" }], [null], [undefined], ["not_found"]])(
  "%s is no provider's error",
  (thrown) => {
    expect(thrown instanceof ProviderError).toBe(false);
    expect(isProviderError(thrown)).toBe(false);
  },
);
