import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { formatTraceParent, parseTraceParent, readTraceContext } from "../../../src/telemetry/trace-context.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN = "00f067aa0ba902b7";
const PARENT = `00-${TRACE}-${SPAN}-01`;

describe("a traceparent", () => {
  test("tells trace, parent and whether that was sampled", () => {
    expect(parseTraceParent(PARENT)).toEqual({ traceId: TRACE, spanId: SPAN, isSampled: true });
    expect(parseTraceParent(`00-${TRACE}-${SPAN}-00`)?.isSampled).toBe(false);
  });

  test("of a later version is read as far as this one goes, and passed on as this one", () => {
    expect(readTraceContext({ traceparent: `cc-${TRACE}-${SPAN}-03-what-the-future-brings` })).toEqual({
      traceparent: PARENT,
    });
  });

  test.each([
    ["nothing", ""],
    ["too short an id", `00-${TRACE.slice(1)}-${SPAN}-01`],
    ["capital letters", `00-${TRACE.toUpperCase()}-${SPAN}-01`],
    ["an id of zeros", `00-${"0".repeat(32)}-${SPAN}-01`],
    ["a span of zeros", `00-${TRACE}-${"0".repeat(16)}-01`],
    ["the version that cannot be", `ff-${TRACE}-${SPAN}-01`],
    ["more than its version has", `${PARENT}-more`],
    ["blanks around it", ` ${PARENT} `],
    ["two of them", `${PARENT}, ${PARENT}`],
    ["a second line", `${PARENT}\r\nx: y`],
    ["far too much", `cc-${TRACE}-${SPAN}-01-${"x".repeat(10_000)}`],
  ])("with %s is as if it had not been sent", (_what, traceparent) => {
    expect(readTraceContext({ traceparent, tracestate: "a=b" })).toBeUndefined();
  });

  test("that comes as several headers is as if it had not been sent", () => {
    expect(readTraceContext({ traceparent: [PARENT, PARENT] })).toBeUndefined();
  });

  test("of any text is either refused or passed on in its one form", () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.stringMatching(/^[0-9a-f-]{55}$/)), (text) => {
        const parsed = parseTraceParent(text);
        expect(parsed === undefined || parseTraceParent(formatTraceParent(parsed)) !== undefined).toBe(true);
      }),
    );
  });
});

describe("a tracestate", () => {
  const stateOf = (tracestate: string | undefined) => readTraceContext({ traceparent: PARENT, tracestate })?.tracestate;

  test("is passed on as it is, without blanks and empty members", () => {
    expect(stateOf("congo=t61rcWkgMzE,\t rojo@tenant=00f067aa0ba902b7 , ")).toBe(
      "congo=t61rcWkgMzE,rojo@tenant=00f067aa0ba902b7",
    );
  });

  test.each([
    ["a member without a value", "congo"],
    ["a key with capital letters", "Congo=1"],
    ["a value with =", "congo=a=b"],
    ["a key twice", "a=1,a=2"],
    ["a character that is none of ASCII's", "a=\u00e9"],
    ["33 members", Array.from({ length: 33 }, (_, i) => `k${i}=v`).join(",")],
    ["513 characters", `a=${"x".repeat(511)}`],
    ["nothing but commas", ",,,"],
  ])("with %s is left out, and the traceparent stands", (_what, tracestate) => {
    expect(stateOf(tracestate)).toBeUndefined();
    expect(readTraceContext({ traceparent: PARENT, tracestate })?.traceparent).toBe(PARENT);
  });

  test("without a traceparent is nobody's", () => {
    expect(readTraceContext({ tracestate: "a=b" })).toBeUndefined();
  });
});
