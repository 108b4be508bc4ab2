import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import {
  attemptToRead,
  type LogFormat,
  LogOutput,
  nineDigits,
  parseLogOptions,
} from "../../../src/kubelet/endpoints/container-logs.ts";
import type { LogLine } from "../../../src/provider/provider.ts";

const line = (content: string, options: Partial<LogLine> = {}): LogLine => ({
  at: "2026-01-01T00:00:01.5Z",
  stream: "stdout",
  partial: false,
  ...options,
  content: Buffer.from(content),
});

function output(lines: LogLine[], format: LogFormat): string {
  const collected = new LogOutput(format);
  for (const each of lines) collected.add(each);
  return collected.take().toString();
}

describe("the log's output", () => {
  test("joins the parts of a line, and has the time once at its beginning", () => {
    const lines = [line("a", { partial: true }), line("b", { partial: true }), line("c"), line("d")];
    expect(output(lines, { timestamps: true })).toBe(
      "2026-01-01T00:00:01.500000000Z abc\n2026-01-01T00:00:01.500000000Z d\n",
    );
  });

  test("invents no newline at the end of an unfinished line", () => {
    expect(output([line("unfinished", { partial: true })], { timestamps: false })).toBe("unfinished");
  });

  test("is cut to the byte, times included", () => {
    fc.assert(
      fc.property(
        fc.array(fc.string({ maxLength: 20 })),
        fc.integer({ min: 1, max: 300 }),
        fc.boolean(),
        (texts, limitBytes, timestamps) => {
          const lines = texts.map((text) => line(text));
          const whole = Buffer.from(output(lines, { timestamps }));
          const cut = Buffer.from(output(lines, { timestamps, limitBytes }));
          // A cut inside a character shows as its replacement: compare what comes before it.
          expect(cut.subarray(0, limitBytes - 4)).toEqual(whole.subarray(0, limitBytes).subarray(0, limitBytes - 4));
        },
      ),
    );
  });
});

describe("log times", () => {
  test.each([
    ["2026-01-01T00:00:01Z", "2026-01-01T00:00:01.000000000Z"],
    ["2026-01-01T00:00:01.5Z", "2026-01-01T00:00:01.500000000Z"],
    ["2026-01-01T00:00:01.123456789Z", "2026-01-01T00:00:01.123456789Z"],
    ["2026-01-01T00:00:01.1234567891Z", "2026-01-01T00:00:01.123456789Z"],
    ["2026-01-01T00:00:01.12+02:00", "2026-01-01T00:00:01.120000000+02:00"],
  ])("%s have nine digits", (at, expected) => {
    expect(nineDigits(at)).toBe(expected);
  });
});

describe("log options", () => {
  test("are read as kube-apiserver sends them", () => {
    const query = "follow=true&previous=false&timestamps=1&tailLines=0&limitBytes=5&sinceTime=2026-01-01T00:00:00Z";
    expect(parseLogOptions(new URLSearchParams(query))).toEqual({
      follow: true,
      previous: false,
      timestamps: true,
      tailLines: 0,
      limitBytes: 5,
      sinceTime: Date.parse("2026-01-01T00:00:00Z"),
    });
  });

  test.each([
    ["tail=3", { tailLines: 3 }],
    ["tail=all", {}],
    ["stream=Stderr", { stream: "stderr" }],
    ["stream=All&tailLines=1", { tailLines: 1 }],
  ])("of old and new clients are understood: %s", (query, expected) => {
    expect(parseLogOptions(new URLSearchParams(query))).toEqual({
      follow: false,
      previous: false,
      timestamps: false,
      ...expected,
    });
  });

  test.each(["tailLines=x", "limitBytes=1.5", "sinceSeconds=", "sinceTime=yesterday"])(
    "that cannot be decoded are 400: %s",
    (query) => {
      expect(() => parseLogOptions(new URLSearchParams(query))).toThrow(expect.objectContaining({ status: 400 }));
    },
  );

  test.each([
    "tailLines=-1",
    "limitBytes=0",
    "sinceSeconds=0",
    "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
    "stream=Stdout&tailLines=1",
    "stream=stdout",
  ])("that contradict themselves are 422: %s", (query) => {
    expect(() => parseLogOptions(new URLSearchParams(query))).toThrow(
      expect.objectContaining({ status: 422, message: '{"message": "Invalid request."}' }),
    );
  });
});

describe("which instance's log is read", () => {
  const podWith = (status: object | undefined): Pod =>
    ({
      metadata: { name: "p" },
      status: { containerStatuses: status ? [{ name: "c", ...status }] : [] },
    }) as unknown as Pod;
  const ended = { terminated: { containerID: "x://1", exitCode: 1 } };

  test.each([
    ["running", { state: { running: {} } }, false, false],
    ["ended", { state: ended }, false, false],
    ["waiting to be restarted", { state: { waiting: { reason: "CrashLoopBackOff" } }, lastState: ended }, false, false],
    ["the previous one of a running container", { state: { running: {} }, lastState: ended }, true, true],
    ["the previous one of an ended container", { state: ended, lastState: ended }, true, true],
    ["the one that ended last, while it waits", { state: { waiting: {} }, lastState: ended }, true, false],
  ])("%s", (_name, status, previous, expected) => {
    expect(attemptToRead(podWith(status), "c", previous)).toBe(expected);
  });

  test.each([
    [undefined, false, 'container "c" in pod "p" is not available'],
    [
      { state: { waiting: { reason: "ContainerCreating" } } },
      false,
      'container "c" in pod "p" is waiting to start: ContainerCreating',
    ],
    [
      { state: { waiting: { reason: "ErrImagePull" } } },
      false,
      `container "c" in pod "p" is waiting to start: image can't be pulled`,
    ],
    [
      { state: { waiting: { reason: "ImagePullBackOff" } } },
      false,
      'container "c" in pod "p" is waiting to start: trying and failing to pull image',
    ],
    [{ state: { terminated: { containerID: "" } } }, false, 'container "c" in pod "p" is terminated'],
    [{ state: {} }, false, 'container "c" in pod "p" is waiting to start - no logs yet'],
    [{ state: { running: {} } }, true, 'previous terminated container "c" in pod "p" not found'],
  ])("is refused with 400 and the kubelet's words: %j", (status, previous, message) => {
    expect(() => attemptToRead(podWith(status), "c", previous)).toThrow(
      expect.objectContaining({ status: 400, message }),
    );
  });
});
