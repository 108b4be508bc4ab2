import { beforeEach, expect, test } from "vitest";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { ProcessFaults } from "../../../src/telemetry/process-faults.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let clock: VirtualClock;
let lines: { fields: Record<string, unknown>; message: string }[];
let fatal: Error[];
let faults: ProcessFaults;
beforeEach(() => {
  clock = new VirtualClock();
  lines = [];
  fatal = [];
  faults = new ProcessFaults({
    clock,
    logger: { ...silentLogger, error: (fields, message) => lines.push({ fields: fields as never, message }) },
    onFatal: (error) => fatal.push(error),
    ownFolder: "/app/dist/src",
  });
});

/** An error that was raised where these functions ran, the innermost first. */
function raisedIn(...files: string[]): Error {
  const error = new Error("boom");
  error.stack = ["Error: boom", ...files.map((file) => `    at f (file://${file}:1:2)`)].join("\n");
  return error;
}

test("a promise that somebody forgot is counted and logged, and the process goes on", () => {
  const error = raisedIn("/plugins/cloud.mjs", "/app/dist/src/pods/reconciler.js");
  faults.rejected(error);
  faults.rejected("not even an error");
  expect(faults.counts).toEqual({ rejection: 2, exception: 0 });
  expect(lines[0]!.fields).toMatchObject({ err: error, rejections: 1 });
  expect(fatal).toEqual([]);
});

test.each([
  ["in a callback of a provider module", raisedIn("/plugins/cloud.mjs")],
  ["in a library", raisedIn("/app/node_modules/ws/lib/websocket.js")],
  ["in a library that lies in a folder of ours", raisedIn("/app/dist/src/node_modules/ws/lib/websocket.js")],
  ["in a library that is packed into vmlet's own package", raisedIn("/app/dist/src/packages/ws.js")],
  ["in Node itself", raisedIn("node:internal/timers")],
  ["and is no error", "boom"],
])("what is thrown %s is counted, and the process goes on", (_where, thrown) => {
  faults.thrown(thrown);
  expect(faults.counts).toEqual({ rejection: 0, exception: 1 });
  expect(lines).toHaveLength(1);
  expect(fatal).toEqual([]);
});

test("what interrupts vmlet's own code stops the process, once", () => {
  const error = raisedIn("/plugins/cloud.mjs", "/app/dist/src/pods/machines.js");
  faults.thrown(error);
  faults.thrown(raisedIn("/app/dist/src/pods/machines.js"));
  expect(fatal).toEqual([error]);
  expect(lines.map(({ message }) => message)).toEqual(
    Array(2).fill("Nobody caught an exception of vmlet's own code; the process stops"),
  );
});

test("what is thrown again and again is logged now and then, with how often it was", async () => {
  for (let i = 0; i < 100; i++) faults.rejected(raisedIn("/plugins/cloud.mjs"));
  await clock.advance(10_000);
  faults.rejected(raisedIn("/plugins/cloud.mjs"));
  expect(lines.map(({ fields }) => fields["rejections"])).toEqual([1, 101]);
});
