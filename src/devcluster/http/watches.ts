/** The watch streams: one line of JSON per event, until the client, the time or a backlog ends them. */
import { minutesToMilliseconds } from "date-fns/minutesToMilliseconds";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";
import { apiVersionOf, storageName, type Kind } from "../kinds/kind.ts";
import type { ListOptions } from "../kinds/listing.ts";
import type { ObjectApi } from "../kinds/object-api.ts";
import { ApiStatusError, badRequest, forbiddenField, invalid } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { startWatch, type EventType, type WatchStart } from "../objects/watch.ts";
import { renderingOf, renderObject, type Rendering } from "./reply.ts";
import { listOptions, type KindRequest } from "./request.ts";

/** A watcher that lets this much pile up is cut off; it resumes from its last revision. */
const WATCH_BACKLOG = 32 * 1024 * 1024;
const DEFAULT_WATCH_MS = minutesToMilliseconds(30);

interface WatchesOptions {
  objects: ObjectApi;
  clock: Clock;
  random: Random;
  /** How often an idle watch that allows bookmarks gets one. */
  bookmarkIntervalMs: number;
}

export class Watches {
  readonly #options: WatchesOptions;
  readonly #open = new Set<() => void>();
  /** Every watcher of an object gets the same bytes, so they are made once. */
  readonly #serialized = new WeakMap<StoredObject, string>();

  constructor(options: WatchesOptions) {
    this.#options = options;
  }

  /** Ends every open watch, as a server that shuts down does. */
  close(): void {
    for (const end of this.#open) end();
  }

  /** Answers with a stream that goes on after this call. @throws ApiStatusError for options that cannot be served */
  serve(request: KindRequest): void {
    const { objects, clock, random } = this.#options;
    const { kind, query, response } = request;
    const rendering = renderingOf(request);
    const options = withName(listOptions(query), request.route.name);
    const filter = objects.filter(kind, request.route.namespace, options);
    const start = startOf(query, options);
    const wantsBookmarks = query.get("allowWatchBookmarks") === "true" || query.get("allowWatchBookmarks") === "1";

    response.writeHead(200, { "content-type": "application/json", "cache-control": "no-cache, private" });
    response.flushHeaders();
    const cleanups: (() => void)[] = [];
    let ended = false;
    const end = (abruptly = false) => {
      if (ended) return;
      ended = true;
      for (const cleanup of cleanups) cleanup();
      this.#open.delete(endGracefully);
      if (abruptly) response.destroy();
      else response.end();
    };
    const endGracefully = () => end();
    this.#open.add(endGracefully);
    response.on("close", endGracefully);

    const write = (type: string, json: string) => {
      response.write(`{"type":"${type}","object":${json}}\n`);
      if (response.writableLength > WATCH_BACKLOG) end(true);
    };
    const bookmark = (annotations?: Record<string, string>) =>
      write("BOOKMARK", JSON.stringify(bookmarkOf(kind, rendering, String(objects.storage.revision), annotations)));

    try {
      const deliver = this.#deliverer(kind, rendering, write);
      cleanups.push(startWatch(objects.storage, storageName(kind), filter, start, deliver));
    } catch (thrown) {
      // The stream is open already, so the failure travels in it, as an ERROR event.
      if (!(thrown instanceof ApiStatusError)) throw thrown;
      write("ERROR", JSON.stringify(thrown.body));
      end();
      return;
    }
    if (query.get("sendInitialEvents") === "true" && wantsBookmarks) bookmark({ "k8s.io/initial-events-end": "true" });

    const limit = Number(query.get("timeoutSeconds") ?? 0) * 1000 || DEFAULT_WATCH_MS * (1 + random());
    cleanups.push(clock.after(limit, endGracefully));
    if (!wantsBookmarks) return;
    let cancel = () => {};
    const schedule = () => {
      cancel = clock.after(this.#options.bookmarkIntervalMs, () => {
        schedule();
        bookmark();
      });
    };
    schedule();
    cleanups.push(() => cancel());
  }

  #deliverer(
    kind: Kind,
    rendering: Rendering,
    write: (type: string, json: string) => void,
  ): (type: EventType, object: StoredObject) => void {
    if (rendering.as === "object") return (type, object) => write(type, this.#serialize(object));
    let withColumns = true;
    return (type, object) => {
      write(type, JSON.stringify(renderObject(kind, object, rendering, this.#options.clock.now(), withColumns)));
      withColumns = false;
    };
  }

  #serialize(object: StoredObject): string {
    let json = this.#serialized.get(object);
    if (json === undefined) {
      json = JSON.stringify(object);
      this.#serialized.set(object, json);
    }
    return json;
  }
}

/** `watch` on a single object is a watch of the collection with its name as the selector. */
function withName(options: ListOptions, name: string | undefined): ListOptions {
  if (name === undefined) return options;
  return { ...options, fieldSelector: [options.fieldSelector, `metadata.name=${name}`].filter(Boolean).join(",") };
}

function startOf(query: URLSearchParams, options: ListOptions): WatchStart {
  const sendInitial = query.get("sendInitialEvents");
  const asked = options.resourceVersion ?? "";
  if (sendInitial !== null && options.resourceVersionMatch !== "NotOlderThan") {
    throw invalid({ group: "meta.k8s.io", kind: "ListOptions" }, "", [
      forbiddenField("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
    ]);
  }
  if (asked !== "" && !/^\d+$/.test(asked)) throw badRequest(`invalid resource version ${JSON.stringify(asked)}`);
  return {
    initial: sendInitial === null ? asked === "" || asked === "0" : sendInitial === "true",
    after: asked === "" || asked === "0" ? undefined : Number(asked),
  };
}

function bookmarkOf(
  kind: Kind,
  rendering: Rendering,
  resourceVersion: string,
  annotations: Record<string, string> | undefined,
): Json {
  const metadata = { resourceVersion, creationTimestamp: null, ...(annotations && { annotations }) };
  if (rendering.as !== "table") return { kind: kind.kind, apiVersion: apiVersionOf(kind), metadata };
  return {
    kind: "Table",
    apiVersion: "meta.k8s.io/v1",
    metadata: { resourceVersion },
    columnDefinitions: null,
    rows: [{ cells: [], object: { kind: "PartialObjectMetadata", apiVersion: "meta.k8s.io/v1", metadata } }],
  };
}
