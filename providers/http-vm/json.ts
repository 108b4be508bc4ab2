/**
 * JSON of the other side, read so that nothing in it can do harm: nesting is bounded, no member comes twice, no name
 * reaches an object's prototype. A list is read item by item: a fault of one item, a syntax error included, does not
 * spoil the others.
 */
import { InvalidReplyError } from "./invalid-reply.ts";

const MAX_DEPTH = 32;
const FORBIDDEN_KEYS: readonly string[] = ["__proto__", "constructor", "prototype"];

/** One value, or why it cannot be used; `value` is then what could be read of it all the same. */
export interface Parsed {
  value?: unknown;
  fault?: InvalidReplyError | undefined;
}

/** @throws InvalidReplyError json, depth, keys or duplicate_key */
export function parseJson(text: string): unknown {
  const { value, fault } = tryParse(text);
  if (fault !== undefined) throw fault;
  return value;
}

export function tryParse(text: string): Parsed {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (thrown) {
    return {
      fault: new InvalidReplyError("json", `the body is not JSON: ${(thrown as Error).message.slice(0, 200)}`, {
        cause: thrown,
      }),
    };
  }
  const fault = faultOf(value, text);
  return fault === undefined ? { value } : { value, fault };
}

/**
 * An object one of whose fields is a list, which `envelope` has empty.
 *
 * @throws InvalidReplyError when the object itself is at fault, or it cannot be told where its items end
 */
export function parseItems(text: string, field: string): { envelope: unknown; items: Parsed[] } {
  const { value, fault } = tryParse(text);
  if (fault === undefined) {
    if (!isRecord(value) || !Array.isArray(value[field])) return { envelope: value, items: [] };
    return { envelope: { ...value, [field]: [] }, items: value[field].map((item: unknown) => ({ value: item })) };
  }
  const cut = cutList(text, field);
  if (cut === undefined) throw fault;
  return { envelope: parseJson(cut.rest), items: cut.items.map(tryParse) };
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Without recursion, since the depth is what is in doubt. */
function faultOf(root: unknown, text: string): InvalidReplyError | undefined {
  const stack: { value: unknown; depth: number }[] = [{ value: root, depth: 1 }];
  let members = 0;
  for (let item = stack.pop(); item !== undefined; item = stack.pop()) {
    const { value, depth } = item;
    if (typeof value !== "object" || value === null) continue;
    if (depth > MAX_DEPTH) return new InvalidReplyError("depth", `the body is nested deeper than ${MAX_DEPTH}`);
    if (Array.isArray(value)) {
      for (const child of value) stack.push({ value: child, depth: depth + 1 });
      continue;
    }
    for (const [key, child] of Object.entries(value)) {
      if (FORBIDDEN_KEYS.includes(key)) return new InvalidReplyError("keys", `the body has a field named ${key}`);
      members++;
      stack.push({ value: child, depth: depth + 1 });
    }
  }
  if (members === membersIn(text)) return undefined;
  // One reader takes the first of them, another the last: an author of either one would decide what the other reader
  // believes.
  return new InvalidReplyError("duplicate_key", "the body has an object with one field twice");
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const COMMA = 0x2c;

/** How many members the objects of a JSON text have, told by their colons. */
function membersIn(text: string): number {
  let count = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at);
    else if (code === COLON) count++;
  }
  return count;
}

/** Position of the quote that ends the string which begins at `start`, or the text's length. */
function endOfString(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let first = end;
    while (text.charCodeAt(first - 1) === BACKSLASH) first--;
    if ((end - first) % 2 === 0) return end;
  }
  return text.length;
}

const isOpening = (code: number): boolean => code === 0x7b || code === 0x5b;
const isClosing = (code: number): boolean => code === 0x7d || code === 0x5d;

/**
 * The items of the list that is the object's field, each as its own text, and the object without them. Undefined when
 * there is no such list.
 */
function cutList(text: string, field: string): { rest: string; items: string[] } | undefined {
  const begin = startOfList(text, field);
  if (begin === undefined) return undefined;
  const items: string[] = [];
  let depth = 0;
  let from = begin;
  for (let at = begin; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at);
    else if (isOpening(code)) depth++;
    else if (isClosing(code) && depth > 0) depth--;
    else if (isClosing(code) || (code === COMMA && depth === 0)) {
      const item = text.slice(from, at);
      if (item.trim() !== "" || code === COMMA || items.length > 0) items.push(item);
      if (isClosing(code)) return { rest: text.slice(0, begin) + text.slice(at), items };
      from = at + 1;
    }
  }
  return undefined;
}

/** Position after the bracket that opens the list. */
function startOfList(text: string, field: string): number | undefined {
  const name = JSON.stringify(field);
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (isOpening(code)) depth++;
    else if (isClosing(code)) depth--;
    if (code !== QUOTE) continue;
    const end = endOfString(text, at);
    if (depth === 1 && text.slice(at, end + 1) === name) {
      const opening = /^\s{0,100}:\s{0,100}\[/.exec(text.slice(end + 1, end + 203));
      if (opening !== null) return end + 1 + opening[0].length;
    }
    at = end;
  }
  return undefined;
}
