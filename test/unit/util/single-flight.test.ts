import { expect, test } from "vitest";
import { SingleFlight } from "../../../src/util/single-flight.ts";

test("who asks while a question is under way gets its answer", async () => {
  const flight = new SingleFlight<string, number>();
  const answer = Promise.withResolvers<number>();
  let asked = 0;
  const ask = () => {
    asked++;
    return answer.promise;
  };
  const both = [flight.do("key", ask), flight.do("key", ask)];
  answer.resolve(7);
  expect(await Promise.all(both)).toEqual([7, 7]);
  expect(asked).toBe(1);
});

test("an answer is not kept, nor is a failure", async () => {
  const flight = new SingleFlight<string, number>();
  await expect(flight.do("key", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await flight.do("key", () => Promise.resolve(2))).toBe(2);
  expect(flight.size).toBe(0);
});
