/** The list of machines, page by page: GET /v1/machines. */
import { bisect, ProviderError } from "../../../../src/provider/kit/index.ts";
import { Query, sendJson } from "../http.ts";
import type { Exchange, RouteContext } from "../router.ts";
import { machineJson, sureOf } from "../telling.ts";

interface Cursor {
  /** Last id of the page before. */
  after: string;
  /** Revision of the first page. */
  revision: number;
}

/** Pages in the order of the ids, so a page needs no memory of the one before but its last id. */
export async function listMachines(
  { provider, limits }: RouteContext,
  { response, query, signal }: Exchange,
): Promise<void> {
  const asked = new Query(query, ["label", "limit", "cursor", "include_deleted"]);
  const limit = Math.min(asked.count("limit", { min: 1, max: 10_000 }) ?? limits.pageItems, limits.pageItems);
  const cursor = decodeCursor(asked.text("cursor"));
  const list = await provider.getPods({
    signal,
    labels: asked.labels(),
    includeDeleted: asked.flag("include_deleted"),
  });
  const bodies = [
    ...list.items.map((machine) => ({ id: machine.id, text: () => machineJson(machine) })),
    ...(list.unknown ?? []).map((unknown) => ({ id: unknown.id, text: () => JSON.stringify(sureOf(unknown)) })),
  ];
  const items = bodies.sort((a, b) => (a.id < b.id ? -1 : 1));
  const from = cursor === undefined ? 0 : bisect(items.length, (index) => items[index]!.id > cursor.after);
  const revision = cursor?.revision ?? list.revision;

  const page: string[] = [];
  let bytes = 0;
  let next = from;
  while (next < items.length && page.length < limit) {
    const text = items[next]!.text();
    bytes += Buffer.byteLength(text);
    // A client refuses a page above its own cap, and then sees none of the machines: only the first may be larger.
    if (bytes > limits.pageBytes && page.length > 0) break;
    page.push(text);
    next++;
  }
  const nextCursor =
    next < items.length
      ? `,"next_cursor":${JSON.stringify(encodeCursor({ after: items[next - 1]!.id, revision }))}`
      : "";
  sendJson(response, 200, `{"items":[${page.join(",")}],"revision":${revision}${nextCursor}}`);
}

function encodeCursor(cursor: Cursor): string {
  return Buffer.from(`${cursor.revision} ${cursor.after}`).toString("base64url");
}

function decodeCursor(text: string | undefined): Cursor | undefined {
  if (text === undefined) return undefined;
  const match = /^(\d{1,16}) ([-a-z0-9.]+)$/.exec(Buffer.from(text, "base64url").toString("latin1"));
  if (match === null) throw new ProviderError("invalid", "cursor is not one of this backend", { field: "cursor" });
  return { revision: Number(match[1]), after: match[2]! };
}
