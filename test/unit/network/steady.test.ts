import { expect, test } from "vitest";
import { sameTwice, whileSteady } from "../../../providers/local/network/steady.ts";

/** What is there at each look. */
function looks(...seen: string[][]) {
  const last = seen.at(-1)!;
  return () => Promise.resolve(seen.shift() ?? last);
}

function failing(times: number) {
  const calls = { count: 0 };
  const act = () =>
    ++calls.count > times ? Promise.resolve("done") : Promise.reject(new Error(`failure ${calls.count}`));
  return { calls, act };
}

test("what fails because an interface has gone meanwhile is done anew, without those that are gone", async () => {
  const { act, calls } = failing(1);
  expect(await whileSteady(looks(["a", "b"], ["a"]), act)).toBe("done");
  expect(calls.count).toBe(2);
});

test("what fails while all stays as it is has failed", async () => {
  const { act, calls } = failing(1);
  await expect(whileSteady(looks(["a"]), act)).rejects.toThrow("failure 1");
  expect(calls.count).toBe(1);
});

test("it is given up where interfaces come and go without end", async () => {
  const { act } = failing(100);
  const endless = looks(...Array.from({ length: 20 }, (_, index) => [String(index)]));
  await expect(whileSteady(endless, act)).rejects.toThrow("failure 3");
});

test.each([
  ["nothing", [undefined], undefined],
  ["what is found again", ["a", "a"], "a"],
  ["nothing, when what was found is not found again", ["a", undefined], undefined],
  ["the last, when it is another each time", ["a", "b", "c"], "c"],
])("of looks that disagree comes %s", async (_title, seen, expected) => {
  const left = [...seen];
  expect(await sameTwice(() => Promise.resolve(left.shift()))).toBe(expected);
});
