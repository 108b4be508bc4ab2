/**
 * Lists, page by page. Pages are in the order of the ids, so a page needs no memory of the one before but its last id.
 */
import { bisect, ProviderError } from "../../../src/provider/kit/index.ts";

interface Cursor {
  /** Last id of the page before. */
  after: string;
  /** Revision of the first page. */
  revision: number;
}

interface Page {
  /** As JSON. */
  items: string[];
  revision: number;
  /** A further field of the reply, with its comma; empty on the last page. */
  nextCursor: string;
}

/**
 * @param bodies all that there is, in any order
 * @param options.revision what the list is true of, unless an earlier page has said so
 */
export function pageOf(
  bodies: readonly { id: string; text: () => string }[],
  options: {
    limit: number | undefined;
    cursor: Cursor | undefined;
    revision: number;
    limits: { pageItems: number; pageBytes: number };
  },
): Page {
  const { cursor, limits } = options;
  const limit = Math.min(options.limit ?? limits.pageItems, limits.pageItems);
  const items = bodies.toSorted((a, b) => (a.id < b.id ? -1 : 1));
  const from = cursor === undefined ? 0 : bisect(items.length, (index) => items[index]!.id > cursor.after);
  const revision = cursor?.revision ?? options.revision;

  const page: string[] = [];
  let bytes = 0;
  let next = from;
  while (next < items.length && page.length < limit) {
    const text = items[next]!.text();
    bytes += Buffer.byteLength(text);
    // A client refuses a page above its own cap, and then sees none of the items: only the first may be larger.
    if (bytes > limits.pageBytes && page.length > 0) break;
    page.push(text);
    next++;
  }
  const nextCursor =
    next < items.length
      ? `,"next_cursor":${JSON.stringify(encodeCursor({ after: items[next - 1]!.id, revision }))}`
      : "";
  return { items: page, revision, nextCursor };
}

function encodeCursor(cursor: Cursor): string {
  return Buffer.from(`${cursor.revision} ${cursor.after}`).toString("base64url");
}

/** @throws ProviderError invalid */
export function decodeCursor(text: string | undefined): Cursor | undefined {
  if (text === undefined) return undefined;
  const match = /^(\d{1,16}) ([-a-z0-9.]+)$/.exec(Buffer.from(text, "base64url").toString("latin1"));
  if (match === null) throw new ProviderError("invalid", "cursor is not one of this backend", { field: "cursor" });
  return { revision: Number(match[1]), after: match[2]! };
}
