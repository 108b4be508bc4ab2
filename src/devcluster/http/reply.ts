/** Answers: objects, lists and Statuses in the form that the client asked for. */
import { gzipSync } from "node:zlib";
import { sendReply } from "../../http/exchange.ts";
import { apiVersionOf, type Kind } from "../kinds/kind.ts";
import type { ListResult } from "../kinds/listing.ts";
import { partialMetadata, renderTable, type IncludeObject } from "../kubectl/table.ts";
import { badRequest, notAcceptable, type StatusBody } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import type { ApiRequest } from "./request.ts";

/** Below this a compressed answer is not worth it; the same threshold as kube-apiserver's. */
const GZIP_FROM = 128 * 1024;

type Exchange = Pick<ApiRequest, "message" | "response">;

/** The form of an answer: whole objects, kubectl's tables, or metadata alone. */
export type Rendering = { as: "object" } | { as: "table"; include: IncludeObject } | { as: "metadata" };

/** @param now milliseconds since the epoch, for the ages in a table */
export function renderObject(
  kind: Kind,
  object: StoredObject,
  rendering: Rendering,
  now: number,
  withColumns = true,
): Json {
  if (rendering.as === "table")
    return renderTable(kind.kind, [object], { now, include: rendering.include, withColumns });
  return rendering.as === "metadata" ? partialMetadata(object) : object;
}

/** @param now milliseconds since the epoch */
export function renderList(kind: Kind, list: ListResult, rendering: Rendering, now: number): Json {
  const { items, ...metadata } = list;
  switch (rendering.as) {
    case "table":
      return renderTable(kind.kind, items, { now, include: rendering.include, withColumns: true, listMeta: metadata });
    case "metadata":
      return {
        kind: "PartialObjectMetadataList",
        apiVersion: "meta.k8s.io/v1",
        metadata,
        items: items.map(partialMetadata),
      };
    case "object": {
      // Items of a typed list carry neither kind nor apiVersion.
      const bare = items.map(({ kind: _kind, apiVersion: _apiVersion, ...rest }) => rest);
      return { kind: `${kind.kind}List`, apiVersion: apiVersionOf(kind), metadata, items: bare };
    }
  }
}

/** Which form the client wants: the first in its Accept header that this server has. */
export function renderingOf({ message, query }: Pick<ApiRequest, "message" | "query">): Rendering {
  const accept = message.headers.accept ?? "*/*";
  for (const clause of accept.split(",")) {
    const [type = "", ...params] = clause.split(";").map((part) => part.trim());
    if (type !== "application/json" && type !== "*/*" && type !== "application/*" && type !== "application/yaml")
      continue;
    const as = params.find((p) => p.startsWith("as="))?.slice(3);
    if (as === undefined) return { as: "object" };
    if (!params.includes("g=meta.k8s.io") || !params.includes("v=v1")) continue;
    if (as === "Table") {
      const include = query.get("includeObject") || "Metadata";
      if (include !== "None" && include !== "Metadata" && include !== "Object")
        throw badRequest(`unrecognized includeObject value: ${include}`);
      return { as: "table", include };
    }
    if (as === "PartialObjectMetadata" || as === "PartialObjectMetadataList") return { as: "metadata" };
  }
  throw notAcceptable(["application/json", "application/yaml"]);
}

/** A Status that says that all went well. */
export const success = (code?: number): StatusBody => ({
  kind: "Status",
  apiVersion: "v1",
  metadata: {},
  status: "Success",
  ...(code !== undefined && { code }),
});

/** Sends a Status, of success or failure, under its own code. */
export function sendStatus({ message, response }: Exchange, body: StatusBody): void {
  const seconds = body.details?.retryAfterSeconds;
  if (seconds !== undefined) response.setHeader("retry-after", String(seconds));
  // The rest of a body that was too large is not worth reading.
  if (body.code === 413) response.setHeader("connection", "close");
  send({ message, response }, body.code ?? 200, body);
}

/** Sends a JSON document, compressed where that pays. */
export function send(
  { message, response }: Exchange,
  status: number,
  body: Json,
  contentType = "application/json",
): void {
  const text = `${JSON.stringify(body)}\n`;
  const headers: Record<string, string> = {
    "content-type": contentType,
    "cache-control": "no-cache, private",
    vary: "Accept, Accept-Encoding",
  };
  const compress = text.length > GZIP_FROM && /\bgzip\b/.test(message.headers["accept-encoding"] ?? "");
  const bytes = compress ? gzipSync(text, { level: 1 }) : Buffer.from(text);
  if (compress) headers["content-encoding"] = "gzip";
  sendReply(response, status, headers, bytes);
}
