import { expect, test } from "vitest";
import { aroundRestart } from "../../../src/provider/kit/around-restart.ts";

test("the restart comes once, when every check has made what it looks at", async () => {
  const told: string[] = [];
  const results = await aroundRestart(
    ["a", "b"],
    async () => void told.push("restart"),
    async (check, restarted) => {
      told.push(`${check} makes`);
      await restarted();
      told.push(`${check} looks`);
      return check;
    },
  );
  expect(told).toEqual(["a makes", "b makes", "restart", "a looks", "b looks"]);
  expect(results).toEqual(["a", "b"]);
});

test("a check that fails before is not waited for", async () => {
  const fails = async (check: string, restarted: () => Promise<void>) => {
    if (check === "b") return "failed";
    await restarted();
    return "passed";
  };
  expect(await aroundRestart(["a", "b"], async () => {}, fails)).toEqual(["passed", "failed"]);
});

test("a restart is waited for though every check has failed before it", async () => {
  const restart = Promise.withResolvers<void>();
  let isOver = false;
  const running = aroundRestart(
    ["a"],
    () => restart.promise,
    async () => "failed",
  ).then((results) => {
    isOver = true;
    return results;
  });
  await new Promise(setImmediate);
  expect(isOver).toBe(false);
  restart.resolve();
  expect(await running).toEqual(["failed"]);
});

test("a restart that fails is told to the checks that wait for it, and only to them", async () => {
  const told = await aroundRestart(
    ["a", "b"],
    async () => {
      throw new Error("no such command");
    },
    (check, restarted) => (check === "a" ? restarted().catch(String) : Promise.resolve("failed")),
  );
  expect(told).toEqual(["Error: no such command", "failed"]);
});

test("without checks there is no restart", async () => {
  const restart = () => Promise.reject(new Error("restarted"));
  expect(await aroundRestart([], restart, async () => "")).toEqual([]);
});
