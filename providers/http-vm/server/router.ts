/** How a request finds its endpoint, and what the endpoint gets. */
import type { IncomingMessage, ServerResponse } from "node:http";
import {
  type Clock,
  matchRoute,
  type Provider,
  ProviderError,
  type RoutePattern,
} from "../../../src/provider/kit/index.ts";
import { violation } from "../../../src/provider/contract/document.ts";
import type { AuditedCall, AuditedRoute } from "./audit.ts";
import type { ServerLimits } from "./options.ts";

export interface Exchange {
  request: IncomingMessage;
  response: ServerResponse;
  /** The decoded ids of the path, by the names that its pattern has for them. */
  params: Readonly<Record<string, string>>;
  query: URLSearchParams;
  requestId: string;
  /** Aborts when the caller hangs up or the server closes: for what only waits or reads. */
  signal: AbortSignal;
  /** Aborts when the server is at the end of its patience: for what changes something and should be finished. */
  workSignal: AbortSignal;
  /** Where the call is audited. */
  audited?: AuditedCall | undefined;
}

export interface RouteContext {
  provider: Provider;
  clock: Clock;
  limits: ServerLimits;
}

export type Endpoint = (context: RouteContext, exchange: Exchange) => Promise<void>;

export interface Route extends AuditedRoute {
  handle: Endpoint;
}

/**
 * The route for a request, and the decoded ids of its path.
 *
 * @throws ProviderError unsupported when the table has none, invalid when an id is not UTF-8
 */
export function findRoute<R extends RoutePattern>(
  routes: readonly R[],
  method: string | undefined,
  pathname: string,
): { route: R; params: Record<string, string> } {
  const match = matchRoute(routes, method ?? "", pathname);
  if (typeof match !== "object")
    throw new ProviderError("unsupported", `${method ?? "?"} ${pathname.slice(0, 200)} is not a route of this backend`);
  for (const [name, value] of Object.entries(match.params)) match.params[name] = decode(value);
  return match;
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch (thrown) {
    throw new ProviderError("invalid", "the path is not percent-encoded UTF-8", { cause: thrown });
  }
}

/** @throws ProviderError invalid */
export function checkedId(id: string | undefined, schema: "MachineId" | "Name", field: string): string {
  const found = violation("request", schema, id);
  if (found !== undefined) throw new ProviderError("invalid", `${field} ${found.message}`, { field });
  return id!;
}

/** @param method of a provider that may be declaring what it has no method for */
export function lacks(capability: string, method?: keyof Provider): ProviderError {
  const why = method === undefined ? "" : `: its provider has no ${method}`;
  return new ProviderError("unsupported", `this backend lacks the capability ${capability}${why}`);
}
