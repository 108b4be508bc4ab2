import { getEventListeners } from "node:events";
import { describe, expect, test } from "vitest";
import { linkAbort, onAbort, pause, unlessAborted, untilAborted } from "../../../src/util/abort.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const listeners = (signal: AbortSignal) => getEventListeners(signal, "abort").length;

test("a linked signal aborts with the first of its sources, for the same reason", () => {
  const [first, second] = [new AbortController(), new AbortController()];
  const { signal } = linkAbort(first.signal, second.signal);
  second.abort(new Error("second"));
  first.abort(new Error("first"));
  expect(signal.reason).toEqual(new Error("second"));
});

test("a signal linked to one that has aborted is aborted", () => {
  expect(linkAbort(AbortSignal.abort("before"), new AbortController().signal).signal.reason).toBe("before");
});

test("a released signal leaves nothing behind in its sources", () => {
  const source = new AbortController();
  linkAbort(source.signal).release();
  expect(getEventListeners(source.signal, "abort")).toEqual([]);
});

describe("onAbort", () => {
  test("calls at once when the signal has aborted already", () => {
    let calls = 0;
    onAbort(AbortSignal.abort(), () => calls++);
    expect(calls).toBe(1);
  });

  test("calls nobody after it was disposed of, and leaves nothing behind", () => {
    const source = new AbortController();
    let calls = 0;
    onAbort(source.signal, () => calls++)[Symbol.dispose]();
    expect(listeners(source.signal)).toBe(0);
    source.abort();
    expect(calls).toBe(0);
  });
});

describe("many who wait for one signal", () => {
  test("are one listener of it, and none when the last has gone", () => {
    const source = new AbortController();
    const all = Array.from({ length: 1_000 }, () => onAbort(source.signal, () => undefined));
    expect(listeners(source.signal)).toBe(1);
    for (const each of all) each[Symbol.dispose]();
    expect(listeners(source.signal)).toBe(0);
  });

  test("are all called, in the order of their coming, but those that went or that one before them sent away", () => {
    const source = new AbortController();
    const called: string[] = [];
    onAbort(source.signal, () => {
      called.push("first");
      third[Symbol.dispose]();
    });
    const second = onAbort(source.signal, () => called.push("second"));
    const third = onAbort(source.signal, () => called.push("third"));
    onAbort(source.signal, () => called.push("fourth"));
    second[Symbol.dispose]();
    source.abort();
    expect(called).toEqual(["first", "fourth"]);
  });

  test("are told though one of them throws, which is an uncaught exception", async () => {
    const source = new AbortController();
    const uncaught = new Promise((resolve) => process.prependOnceListener("uncaughtException", resolve));
    const others = process.listeners("uncaughtException").slice(1);
    for (const each of others) process.off("uncaughtException", each);
    let calls = 0;
    onAbort(source.signal, () => {
      throw new Error("of the first");
    });
    onAbort(source.signal, () => calls++);
    source.abort();
    expect(calls).toBe(1);
    expect(await uncaught).toEqual(new Error("of the first"));
    for (const each of others) process.on("uncaughtException", each);
  });
});

describe("unlessAborted", () => {
  test("gives what the work came to, and leaves nothing behind", async () => {
    const source = new AbortController();
    expect(await unlessAborted(Promise.resolve(1), source.signal)).toBe(1);
    expect(listeners(source.signal)).toBe(0);
  });

  test("fails with the signal's reason while the work goes on", async () => {
    const source = new AbortController();
    const waiting = unlessAborted(new Promise(() => undefined), source.signal);
    source.abort(new Error("enough"));
    await expect(waiting).rejects.toThrow("enough");
  });

  test("prefers the reason of a signal that had aborted before to what was done already", async () => {
    await expect(unlessAborted(Promise.resolve(1), AbortSignal.abort(new Error("before")))).rejects.toThrow("before");
  });
});

describe("untilAborted", () => {
  test("ends with the work, also when that failed", async () => {
    await untilAborted(new AbortController().signal, Promise.reject(new Error("failed")));
  });

  test("ends with the signal when nothing else is waited for, and leaves nothing behind", async () => {
    const source = new AbortController();
    const waiting = untilAborted(source.signal);
    source.abort();
    await waiting;
    expect(listeners(source.signal)).toBe(0);
  });
});

test("a pause ends early, without an error, when the signal aborts", async () => {
  const clock = new VirtualClock();
  const source = new AbortController();
  const waiting = pause(clock, 60_000, source.signal);
  source.abort();
  await waiting;
  expect(listeners(source.signal)).toBe(0);
});
