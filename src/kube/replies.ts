/** What comes back from the API server, as text, JSON or an error. */
import type { Dispatcher } from "undici";
import { KubeApiError, type StatusDetails } from "./errors.ts";

export interface Reply {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: Dispatcher.ResponseData["body"];
}

/** The body's pieces as they come. `onPiece` is called for each. @throws the signal's reason on abort */
export async function* pieces(reply: Reply, signal: AbortSignal, onPiece: () => void): AsyncGenerator<Buffer> {
  for await (const piece of reply.body as AsyncIterable<Buffer>) {
    signal.throwIfAborted();
    onPiece();
    yield piece;
  }
}

/** The beginning of a text that is of interest to people only: no more than `maxBytes` of it. */
export async function readBeginning(chunks: AsyncIterable<Buffer>, maxBytes: number): Promise<string> {
  const kept: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of chunks) {
    kept.push(chunk);
    bytes += chunk.length;
    if (bytes >= maxBytes) break;
  }
  return Buffer.concat(kept).subarray(0, maxBytes).toString("utf8");
}

/** The reply's JSON without `managedFields`; undefined for an empty reply. @throws KubeApiError `Malformed` */
export function parseReply(what: string, text: string): unknown {
  if (text === "") return undefined;
  let reply: unknown;
  try {
    reply = JSON.parse(text);
  } catch (thrown) {
    throw new KubeApiError(`${what}: the reply is not JSON`, { status: 0, reason: "Malformed", cause: thrown });
  }
  dropManagedFields(reply);
  return reply;
}

/**
 * They are 40 % of a pod's bytes and no code here reads them. Assigning undefined keeps the object's fast shape; delete
 * would not.
 */
export function dropManagedFields(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  const { metadata, items } = value as { metadata?: { managedFields?: unknown } | null; items?: unknown };
  if (metadata?.managedFields !== undefined) metadata.managedFields = undefined;
  if (Array.isArray(items)) for (const item of items) dropManagedFields(item);
}

/** A reply whose status says that the request failed, as an error with the server's words. */
export function statusError(what: string, reply: Pick<Reply, "status" | "headers">, text: string): KubeApiError {
  let status: { message?: unknown; reason?: unknown; details?: StatusDetails } = {};
  try {
    const parsed: unknown = JSON.parse(text);
    // Only a Status says what the API server means: others on the way answer in JSON of their own.
    if (isStatus(parsed)) status = parsed;
  } catch {
    // Proxies and overload protection answer in plain text.
    status = { message: text.trim().slice(0, 512) };
  }
  const words = typeof status.message === "string" && status.message !== "" ? status.message : "no message";
  const reason = typeof status.reason === "string" && status.reason !== "" ? status.reason : `HTTP${reply.status}`;
  const details = status.details ?? undefined;
  return new KubeApiError(`${what}: ${reply.status} ${words}`, {
    status: reply.status,
    reason,
    details,
    retryAfterMs: retryAfterMs(reply.headers["retry-after"], details),
  });
}

function isStatus(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const { kind, apiVersion } = value as { kind?: unknown; apiVersion?: unknown };
  return kind === "Status" && apiVersion === "v1";
}

function retryAfterMs(header: string | string[] | undefined, details: StatusDetails | undefined): number | undefined {
  const seconds = Number(Array.isArray(header) ? header[0] : (header ?? details?.retryAfterSeconds));
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : undefined;
}
