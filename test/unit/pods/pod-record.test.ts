import { expect, test } from "vitest";
import { PodRecords } from "../../../src/pods/pod-record.ts";

test("a record is opened once, whoever asks for it first", () => {
  const opened: string[] = [];
  const records = new PodRecords((uid) => void opened.push(uid));
  records.update("u1", { created: true });
  expect(records.memory("u1").created).toBe(true);
  expect(records.of("u1")).toBe(records.find("u1"));
  expect(opened).toEqual(["u1"]);
});

test("looking for a record opens none", () => {
  const records = new PodRecords(() => undefined);
  expect(records.find("u1")).toBeUndefined();
  expect([...records.uids()]).toEqual([]);
});

test("what hangs on a record is let go when it is dropped, and nothing of another", () => {
  const released: string[] = [];
  const records = new PodRecords((uid, { dropped }) => dropped.addEventListener("abort", () => released.push(uid)));
  records.of("u1");
  records.of("u2");
  records.drop("u1");
  expect(released).toEqual(["u1"]);
  expect([...records.uids()]).toEqual(["u2"]);
});

test("a pod that comes back after it was dropped is remembered by nothing of before", () => {
  const records = new PodRecords(() => undefined);
  records.update("u1", { created: true });
  records.drop("u1");
  expect(records.memory("u1").created).toBe(false);
  expect(records.of("u1").dropped.aborted).toBe(false);
});
