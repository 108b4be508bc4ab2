import { closeSync, mkdtempSync, openSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import { LogSink } from "../../../src/telemetry/log-sink.ts";
import { createLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** The fields that one line has for this error. */
function logged(err: unknown): Record<string, unknown> {
  const file = join(mkdtempSync(join(tmpdir(), "vmlet-logger-")), "log");
  const destination = openSync(file, "w");
  createLogger({ level: "info", destination }).warn({ err }, "Something broke");
  closeSync(destination);
  return JSON.parse(readFileSync(file, "utf8")) as Record<string, unknown>;
}

test("a foreseen error is logged as its message, without a stack trace", () => {
  const error = new KubeApiError("GET /api/v1/pods: other side closed", { status: 0, reason: "Transport" });
  expect(logged(error)).toMatchObject({ level: "warn", err: error.message, msg: "Something broke" });
});

test("the code of a foreseen error is logged too, by which the reference of errors explains it", () => {
  const error = new KubeApiError("GET /api/v1/pods: other side closed", { status: 0, reason: "Transport" });
  expect(logged(error)["code"]).toBe("KUBE_API");
});

test("any other error is logged with the place where it was raised", () => {
  expect(logged(new TypeError("x is not a function"))["err"]).toMatchObject({
    type: "TypeError",
    message: "x is not a function",
    stack: expect.stringContaining("logger.test.ts"),
  });
});

test("a message in place of an error stays as it is", () =>
  expect(logged("connection lost")["err"]).toBe("connection lost"));

test("what else a library's error holds, such as its request's headers, is not logged", () => {
  const error = Object.assign(new Error("socket hang up"), {
    code: "ECONNRESET",
    config: { headers: { authorization: "Bearer canary" } },
    request: { _header: "Authorization: Bearer canary" },
  });
  const line = logged(error);
  expect(line["err"]).toMatchObject({ type: "Error", message: "socket hang up", code: "ECONNRESET" });
  expect(JSON.stringify(line)).not.toContain("canary");
});

test("a log that cannot be written does not end the process", async () => {
  const full = openSync("/dev/full", "w");
  // What waits for room is tried again for ever: in a time that ends with the test.
  const sink = new LogSink({ destination: full, clock: new VirtualClock(), droppedLine: String });
  const logger = createLogger({ level: "info", sink });
  logger.warn({}, "Nobody will read this");
  // What a stream has to say of an error, it says a turn later; unhandled, it would fail this test's run.
  await new Promise((resolve) => setImmediate(resolve));
  logger.warn({}, "Nor this");
});

test("every line is one object with level, time and message, whatever a field holds", () => {
  const file = join(mkdtempSync(join(tmpdir(), "vmlet-logger-")), "log");
  const destination = openSync(file, "w");
  const logger = createLogger({ level: "debug", destination }).child({ node: "n" });
  const odd = "a\nb\r\u001b[31mred\u0000\u2028end";
  logger.debug({ pod: odd }, "Seen");
  logger.info({ nested: { text: odd } }, "Seen");
  logger.warn({ err: new Error(odd) }, "Seen");
  logger.error({ err: odd, list: [odd] }, "Seen");
  closeSync(destination);
  const lines = readFileSync(file, "utf8").trimEnd().split("\n");
  expect(lines).toHaveLength(4);
  for (const line of lines) {
    // oxlint-disable-next-line no-control-regex
    expect(line).not.toMatch(/[\u0000-\u001f]/);
    expect(JSON.parse(line)).toMatchObject({
      level: expect.stringMatching(/^(debug|info|warn|error)$/),
      time: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
      msg: "Seen",
      node: "n",
    });
  }
});
