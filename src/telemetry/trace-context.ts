/**
 * W3C Trace Context (https://www.w3.org/TR/trace-context/): which trace a request is part of, in two headers. Others
 * write them, so they are read strictly and briefly, and what is not as it should be is as if it had not been sent.
 */

/** Where a piece of work belongs: to be sent as headers by these names. */
export interface TraceContext {
  readonly traceparent: string;
  readonly tracestate?: string;
}

/** The parts of a `traceparent`. */
interface TraceParent {
  traceId: string;
  spanId: string;
  isSampled: boolean;
}

/** A later version may append fields; none that is this long is worth a look. */
const MAX_PARENT = 256;
const PARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?$/;
/** What the standard asks everybody to pass on. */
const MAX_STATE = 512;
const MAX_MEMBERS = 32;
const MEMBER = /^([a-z0-9][a-z0-9_*/@-]{0,255})=([ -+\--<>-~]{0,255}[!-+\--<>-~])$/;
const BLANKS = /^[ \t]*$/;

/** @returns undefined where the headers have none, or one that breaks the rules: several of them are one such */
export function readTraceContext(
  headers: Readonly<Record<string, string | string[] | undefined>>,
): TraceContext | undefined {
  const { traceparent, tracestate } = headers;
  if (typeof traceparent !== "string") return undefined;
  const parent = parseTraceParent(traceparent);
  if (parent === undefined) return undefined;
  const state = parseState(tracestate);
  return { traceparent: formatTraceParent(parent), ...(state !== undefined && { tracestate: state }) };
}

export function parseTraceParent(text: string): TraceParent | undefined {
  if (text.length > MAX_PARENT) return undefined;
  const [, version, traceId = "", spanId = "", flags = "", more] = PARENT.exec(text) ?? [];
  if (version === undefined || version === "ff" || (version === "00" && more !== undefined)) return undefined;
  if (isZero(traceId) || isZero(spanId)) return undefined;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

export function formatTraceParent({ traceId, spanId, isSampled }: TraceParent): string {
  return `00-${traceId}-${spanId}-${isSampled ? "01" : "00"}`;
}

/** The whole list or nothing: half of it would be another's word. */
function parseState(header: string | string[] | undefined): string | undefined {
  if (typeof header !== "string" || header.length > MAX_STATE) return undefined;
  const members = header
    .split(",")
    .filter((each) => !BLANKS.test(each))
    .map((each) => each.trim());
  const keys = members.map((each) => MEMBER.exec(each)?.[1]);
  if (members.length === 0 || members.length > MAX_MEMBERS || keys.includes(undefined)) return undefined;
  return new Set(keys).size === keys.length ? members.join(",") : undefined;
}

const isZero = (hex: string): boolean => /^0*$/.test(hex);
