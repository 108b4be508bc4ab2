/** Replies that are lists: their items, and all pages of the list of machines. */
import {
  type CallOptions,
  isProviderError,
  type MachineList,
  type ProviderError,
} from "../../src/provider/kit/index.ts";
import type { Schemas } from "../../src/provider/contract/document.ts";
import { type Call, labelQuery } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import { InvalidReplyError } from "./invalid-reply.ts";
import type { Judge, Judged } from "./judge.ts";
import { parseItems, type Parsed } from "./json.ts";
import type { HttpVmLimits } from "./options.ts";
import { believe } from "./validate.ts";

/** A list with this many pages without an item is taken to be endless. */
const MAX_EMPTY_PAGES = 100;

export class MachineLists {
  readonly #client: MachineApiClient;
  readonly #judge: Judge;
  readonly #limits: HttpVmLimits;
  /** Fewer than `limits.pageItems` after a page that was too large. */
  #pageItems: number;

  constructor(client: MachineApiClient, judge: Judge, limits: HttpVmLimits) {
    this.#client = client;
    this.#judge = judge;
    this.#limits = limits;
    this.#pageItems = limits.pageItems;
  }

  /** All of it. @throws ProviderError */
  async read(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList> {
    const judged = new Map<string, Judged>();
    const cursors = new Set<string>();
    let revision: number | undefined;
    let emptyPages = 0;
    let chars = 0;
    for (let cursor: string | undefined; ;) {
      const page = await this.#page(options, cursor);
      // What happened while later pages were fetched is in the events after the first.
      revision = Math.min(revision ?? page.revision, page.revision);
      for (const item of page.items) this.#collect(item, options.labels, judged);
      chars += page.chars;
      if (judged.size > this.#limits.listItems || chars > this.#limits.listChars)
        throw this.#judge.refuse("size", `the list has ${judged.size} machines and ${chars} characters, and goes on`);
      cursor = page.next_cursor;
      if (cursor === undefined) break;
      if (page.items.length === 0) emptyPages++;
      if (cursors.has(cursor) || emptyPages > MAX_EMPTY_PAGES)
        throw this.#judge.refuse("cursor_loop", "the list's pages go in a circle, or on without end");
      cursors.add(cursor);
    }
    this.#pageItems = Math.min(this.#pageItems * 2, this.#limits.pageItems);
    const all = [...judged.values()];
    const unknown = all.flatMap((each) => each.unknown ?? []);
    return { items: all.flatMap(({ machine }) => machine ?? []), revision, ...(unknown.length > 0 && { unknown }) };
  }

  /** A page that is too large is asked for again with fewer machines on it: each of them may be of any legal size. */
  async #page(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
    cursor: string | undefined,
  ): Promise<{ items: Parsed[]; chars: number; revision: number; next_cursor?: string }> {
    const query = labelQuery(options.labels);
    query.set("limit", String(this.#pageItems));
    if (options.includeDeleted === true) query.set("include_deleted", "true");
    if (cursor !== undefined) query.set("cursor", cursor);
    try {
      return await readItems(
        this.#client,
        this.#judge,
        { method: "GET", path: "/v1/machines", query, signal: options.signal },
        "MachinePage",
      );
    } catch (thrown) {
      if (this.#pageItems === 1 || !isTooLarge(thrown)) throw thrown;
      this.#pageItems = Math.ceil(this.#pageItems / 4);
      return await this.#page(options, cursor);
    }
  }

  /** When a machine is listed twice, neither of the two can be believed. */
  #collect(item: Parsed, labels: Record<string, string>, into: Map<string, Judged>): void {
    const judged = this.#judge.machine(item, labels);
    if (judged === undefined) return;
    const { id } = judged.machine ?? judged.unknown;
    if (!into.has(id)) return void into.set(id, judged);
    this.#client.countInvalid("duplicate_id");
    into.set(id, { unknown: { id, reason: "the list has it twice" } });
  }
}

/**
 * Items of a reply that is a list, and what stands beside them.
 * @throws ProviderError when what stands beside them is invalid
 */
export async function readItems<N extends "MachinePage" | "PersistentVolumePage" | "StatsList">(
  client: MachineApiClient,
  judge: Judge,
  call: Call,
  schema: N,
): Promise<Omit<Schemas[N], "items"> & { items: Parsed[]; chars: number }> {
  const text = await client.text(call, "list");
  return judge.orRefuse(() => {
    const { envelope, items } = parseItems(text, "items");
    return { ...believe(schema, envelope), items, chars: text.length };
  });
}

/** True for a reply that was refused for its size. */
export function isTooLarge(thrown: unknown): thrown is ProviderError {
  return isProviderError(thrown) && thrown.cause instanceof InvalidReplyError && thrown.cause.reason === "size";
}
