/** Pages of CSI's lists: in the order of the ids, from a token of ours on. */
import { Code, ConnectError } from "@connectrpc/connect";
import { invalid } from "./errors.ts";

/** How a starting token of ours begins: the id of the last item follows. */
const AFTER = "after:";

/** @throws ConnectError for a token that is none of ours */
export function pageOf<T extends { id: string }>(
  items: readonly T[],
  { maxEntries, startingToken }: { maxEntries: number; startingToken: string },
): { page: T[]; nextToken: string } {
  if (maxEntries < 0) throw invalid("the number of entries is negative");
  if (startingToken !== "" && !startingToken.startsWith(AFTER))
    throw new ConnectError(`the starting token ${JSON.stringify(startingToken)} is none of ours`, Code.Aborted);
  const after = startingToken.slice(AFTER.length);
  const all = items.filter(({ id }) => id > after).toSorted((a, b) => (a.id < b.id ? -1 : 1));
  const page = maxEntries === 0 ? all : all.slice(0, maxEntries);
  const last = page.at(-1);
  return { page, nextToken: last !== undefined && page.length < all.length ? AFTER + last.id : "" };
}
