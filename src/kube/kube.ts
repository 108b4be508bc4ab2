/**
 * The API server as the rest of vmlet sees it. This folder holds all that speaks to it: transport and credentials,
 * lists and watches kept in stores, patches, events, leader election. Nothing in it knows of pods on machines.
 */
import type { SkippedItem } from "./list-decoder.ts";

/**
 * What the rest of vmlet needs of the API server: single requests and watches, nothing typed per resource.
 * `transport.ts` implements it over HTTP; simulations and tests put their own in its place.
 */
export interface KubeRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Absolute path without query: see `paths.ts`. */
  path: string;
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  /** Default `application/json`; a PATCH must say which kind it is (see `patch.ts`). */
  contentType?: string;
  /**
   * Of the object in the reply only its metadata is wanted. A server that can leaves out the rest: its `kind` is
   * `PartialObjectMetadata` then. It may send the whole object all the same. Of a collection that is a `list`: asked
   * for an object's, a server does what it is told, and answers 406.
   */
  metadataOnly?: boolean | "list";
  signal: AbortSignal;
  /** Limit for the whole exchange; default 30 s. */
  timeoutMs?: number;
  /** 429 is an answer to it, not overload: the caller hears of it at once, and nothing is repeated because of it. */
  once?: boolean;
  /** Called right before each time that it is sent; what it throws is what the request fails with. */
  guard?: () => void;
  /**
   * Each lane has connections and a rate of its own: nothing can delay a `lease`, only other reviews a `review`, and no
   * `event` a call.
   */
  lane?: "default" | "lease" | "review" | "event";
  /**
   * The reply is a list. Its items are judged one by one: one that is larger than any legal object is left out and
   * told. `timeoutMs` limits each silence, not the whole reply.
   */
  list?: { onSkipped: (item: SkippedItem) => void };
}

export type WatchEvent<T> =
  | { type: "ADDED" | "MODIFIED" | "DELETED"; object: T }
  | { type: "BOOKMARK"; object: { metadata: { resourceVersion: string; annotations?: Record<string, string> } } }
  | {
      type: "ERROR";
      object: { code?: number; reason?: string; message?: string; details?: { retryAfterSeconds?: number } };
    };

export type WatchRequest = Omit<
  KubeRequest,
  "method" | "body" | "contentType" | "timeoutMs" | "once" | "guard" | "lane" | "list" | "metadataOnly"
> & {
  /** Called when the server has accepted the watch. */
  onOpen?: () => void;
};

export interface Kube {
  /**
   * The reply's JSON, `managedFields` dropped.
   * @throws KubeApiError for any status but 2xx and for every transport fault
   */
  request<T>(request: KubeRequest): Promise<T>;
  /** One watch connection: ends when the server ends it, throws KubeApiError when it breaks. */
  watch<T>(request: WatchRequest): AsyncIterable<WatchEvent<T>>;
}
