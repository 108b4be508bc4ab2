import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeLogLine, encodeLogLine } from "../../../providers/http-vm/wire.ts";

test("a log line keeps its bytes, spaces included", () => {
  expect(decodeLogLine(Buffer.from("2026-01-01T00:00:00.1Z stderr P  two  spaces "))).toEqual({
    at: "2026-01-01T00:00:00.1Z",
    stream: "stderr",
    partial: true,
    content: Buffer.from(" two  spaces "),
  });
});

test("what is encoded is decoded to the same line", () => {
  fc.assert(
    fc.property(
      fc.record({
        at: fc.constantFrom("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789Z"),
        stream: fc.constantFrom("stdout", "stderr"),
        partial: fc.boolean(),
        content: fc.uint8Array().map((bytes) => Buffer.from(bytes.filter((byte) => byte !== 10))),
      }),
      (line) => {
        const record = encodeLogLine(line);
        expect(record.at(-1)).toBe(10);
        expect(decodeLogLine(record.subarray(0, -1))).toEqual(line);
      },
    ),
  );
});

test.each([
  "",
  "no spaces",
  "2026-01-01T00:00:00Z stdout F",
  "2026-01-01T00:00:00Z neither F x",
  "2026-01-01T00:00:00Z stdout X x",
  "2026-01-01T00:00:00Z stdoutxF x",
  "2026-01-01T00:00:00Z stdout Fxx",
  "2026-01-01T00:00:00.1234567890Z stdout F x",
  "yesterday stdout F x",
])("%j is no log line", (text) => {
  expect(decodeLogLine(Buffer.from(text))).toBeUndefined();
});
