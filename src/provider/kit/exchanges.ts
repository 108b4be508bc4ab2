/** What a run has asked the backend, call by call: a failure names the last one, and a trace shows them all. */

/** One request, and what came of it. */
export interface Exchange {
  method: string;
  /** With its query. */
  path: string;
  /** Undefined when no reply came. */
  status?: number | undefined;
  requestId?: string | undefined;
  durationMs: number;
  /** `namespace/name` of the pod whose machine it is about, if that is known. */
  pod?: string | undefined;
  /** Why no reply came. */
  error?: string | undefined;
}

/** The prefix of a check's ids, which stands in the path or in the label that is asked for. */
const OF_CHECK = /conf-[a-z0-9]{1,16}-\d{1,4}(?!\d)/;

export class ExchangeLog {
  readonly #last = new Map<string, Exchange>();
  readonly #onExchange: (exchange: Exchange) => void;

  constructor(onExchange: (exchange: Exchange) => void = () => {}) {
    this.#onExchange = onExchange;
  }

  /** @param check the prefix of the check's ids, for a request that does not name it */
  readonly record = (exchange: Exchange, check: string | undefined = OF_CHECK.exec(exchange.path)?.[0]): void => {
    if (check !== undefined) this.#last.set(check, exchange);
    this.#onExchange(exchange);
  };

  lastOf(check: string): Exchange | undefined {
    return this.#last.get(check);
  }
}

/** `PUT /v1/machines/a -> 201 (12 ms, request r-1)`. */
export function describeExchange({ method, path, status, requestId, durationMs, error }: Exchange): string {
  const outcome = status === undefined ? (error ?? "no reply") : String(status);
  return `${method} ${path} -> ${outcome} (${Math.round(durationMs)} ms${requestId === undefined ? "" : `, request ${requestId}`})`;
}
