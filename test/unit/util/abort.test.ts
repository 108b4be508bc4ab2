import { getEventListeners } from "node:events";
import { expect, test } from "vitest";
import { linkAbort } from "../../../src/util/abort.ts";

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
