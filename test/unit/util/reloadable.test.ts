import { expect, test } from "vitest";
import { FILE_POLL_MS, followFiles } from "../../../src/util/reloadable.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

/** Files whose texts a test changes; what is loaded and what fails is noted. */
async function follow(texts: string[]) {
  const clock = new VirtualClock();
  const notes: string[] = [];
  const files = { texts };
  const source = await followFiles({
    read: () => Promise.resolve([...files.texts]),
    check: ([first]) => {
      if (first === "bad") throw new Error("it is bad");
    },
    onLoaded: (value) => notes.push(`loaded ${value.join(" ")}`),
    onFailed: (thrown) => notes.push(`failed: ${(thrown as Error).message}`),
    clock,
  });
  const stop = new AbortController();
  const over = source.run(stop.signal);
  const look = async () => {
    await settle();
    await clock.advance(FILE_POLL_MS);
    await settle();
  };
  await look();
  return { source, files, notes, look, end: () => (stop.abort(), over) };
}

test("files that cannot be used at first are the caller's problem", async () => {
  await expect(follow(["bad"])).rejects.toThrow("it is bad");
});

test("what files hold is told once, however often it is read", async () => {
  const { notes, look, end } = await follow(["one"]);
  await look();
  expect(notes).toEqual(["loaded one"]);
  await end();
});

test("what files hold later takes the place of what they held", async () => {
  const { source, files, look, end } = await follow(["one", "two"]);
  const changes: string[][] = [];
  source.onChange((value) => changes.push(value));
  files.texts = ["one", "three"];
  await look();
  expect([changes, source.current()]).toEqual([[["one", "three"]], ["one", "three"]]);
  await end();
});

test("what files held stays while what they hold cannot be used", async () => {
  const { source, files, notes, look, end } = await follow(["one"]);
  files.texts = ["bad"];
  await look();
  expect([source.current(), notes.at(-1)]).toEqual([["one"], "failed: it is bad"]);
  files.texts = ["two"];
  await look();
  expect(source.current()).toEqual(["two"]);
  await end();
});
