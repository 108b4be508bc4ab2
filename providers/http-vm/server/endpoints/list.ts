/** The list of machines, page by page: GET /v1/machines. */
import { Query, sendJson } from "../http.ts";
import { decodeCursor, pageOf } from "../pages.ts";
import type { Exchange, RouteContext } from "../router.ts";
import { machineJson, sureOf } from "../telling.ts";

export async function listMachines(
  { provider, limits }: RouteContext,
  { response, query, signal }: Exchange,
): Promise<void> {
  const asked = new Query(query, ["label", "limit", "cursor", "include_deleted"]);
  const limit = asked.count("limit", { min: 1, max: 10_000 });
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
  const { items, revision, nextCursor } = pageOf(bodies, { limit, cursor, revision: list.revision, limits });
  sendJson(response, 200, `{"items":[${items.join(",")}],"revision":${revision}${nextCursor}}`);
}
