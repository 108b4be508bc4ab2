import { closeSync, mkdtempSync, openSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import { createLogger } from "../../../src/telemetry/logger.ts";

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

test("any other error is logged with the place where it was raised", () => {
  expect(logged(new TypeError("x is not a function"))["err"]).toMatchObject({
    type: "TypeError",
    message: "x is not a function",
    stack: expect.stringContaining("logger.test.ts"),
  });
});

test("a message in place of an error stays as it is", () =>
  expect(logged("connection lost")["err"]).toBe("connection lost"));
