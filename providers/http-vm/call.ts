/** A call of the Machine API, its paths and queries, and what its failure means. */
import { ProviderError, type StreamOptions, tlsFault, type TraceContext } from "../../src/provider/kit/index.ts";
import type { CallKind } from "./pacing.ts";
import { plainText } from "./validate.ts";

export interface Call {
  method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  /** From `/v1` on, ids already encoded. */
  path: string;
  query?: URLSearchParams | undefined;
  body?: object | undefined;
  /** Only where there is nothing yet (`If-None-Match: *`). */
  ifAbsent?: boolean | undefined;
  signal: AbortSignal;
  /** What it is part of: taken when it is made, for it may be sent in the course of another. */
  trace?: TraceContext | undefined;
}

export function kindOf({ method, path }: Call): CallKind {
  if (path === "/v1/info") return "info";
  if (path === "/v1/capacity") return "capacity";
  if (path === "/v1/stats") return "stats";
  if (["/v1/machines", "/v1/volumes", "/v1/images"].includes(path)) return "list";
  switch (method) {
    case "PUT":
      return "create";
    case "PATCH":
      return "change";
    case "GET":
      return "read";
    case "POST":
    case "DELETE":
      return "stop";
  }
}

const TLS_SETTINGS = { ca: "provider.caFile", pair: "provider.certFile and provider.keyFile" };

/** Whatever happened on the way, the answer is not known. The URL is left out, and with it what a query may hold. */
export function asProviderError(thrown: unknown, call: Pick<Call, "method" | "path">): ProviderError {
  if (thrown instanceof ProviderError) return thrown;
  if (thrown instanceof Error && thrown.cause instanceof ProviderError) return thrown.cause;
  const text = tlsFault(thrown, TLS_SETTINGS) ?? (thrown instanceof Error ? thrown.message : String(thrown));
  return new ProviderError("unavailable", `${call.method} ${call.path} failed: ${plainText(text, 256)}`, {
    cause: thrown,
  });
}

export const POD_RANGES_PATH = "/v1/pod-ranges";
export const SERVICES_PATH = "/v1/services";
export const imagePath = (id: string): string => `/v1/images/${encodeURIComponent(id)}`;
export const volumePath = (id: string): string => `/v1/volumes/${encodeURIComponent(id)}`;
export const machinePath = (id: string): string => `/v1/machines/${encodeURIComponent(id)}`;
export const containerPath = (id: string, container: string): string =>
  `${machinePath(id)}/containers/${encodeURIComponent(container)}`;

export function labelQuery(labels: Record<string, string>): URLSearchParams {
  return new URLSearchParams(
    Object.entries(labels).map(([key, value]): [string, string] => ["label", `${key}=${value}`]),
  );
}

export function streamQuery({ stdin, stdout, stderr, tty }: StreamOptions): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, wanted] of Object.entries({ stdin, stdout, stderr, tty })) if (wanted) query.set(name, "true");
  return query;
}
