import { expect, test } from "vitest";
import { Once } from "../../../src/util/once.ts";

/** Work that ends when it is told to. */
function manual() {
  const runs: PromiseWithResolvers<string>[] = [];
  const once = new Once(() => {
    const run = Promise.withResolvers<string>();
    runs.push(run);
    return run.promise;
  });
  return { once, runs };
}

test("all who ask get the result of one piece of work", async () => {
  const { once, runs } = manual();
  const asked = [once.get(), once.get()];
  runs[0]!.resolve("made");
  expect(await Promise.all([...asked, once.get()])).toEqual(["made", "made", "made"]);
  expect(runs).toHaveLength(1);
});

test("a failure is told to those who wait, and the next to ask tries again", async () => {
  const { once, runs } = manual();
  const asked = [once.get(), once.get()];
  runs[0]!.reject(new Error("no room"));
  for (const each of asked) await expect(each).rejects.toThrow("no room");
  expect(once.peek()).toBeUndefined();
  const again = once.get();
  runs[1]!.resolve("made");
  expect(await again).toBe("made");
});

test("what was forgotten is made again", async () => {
  const { once, runs } = manual();
  void once.get();
  runs[0]!.resolve("old");
  await once.peek();
  once.forget();
  const again = once.get();
  runs[1]!.resolve("new");
  expect(await again).toBe("new");
});
