import type { Kube, KubeRequest, WatchEvent, WatchRequest } from "../../src/kube/kube.ts";
import { KubeApiError, type StatusDetails } from "../../src/kube/errors.ts";

/** A failure as the transport reports it. */
export function apiError(
  status: number,
  reason: string,
  extra: { retryAfterMs?: number; details?: StatusDetails } = {},
) {
  return new KubeApiError(`${status} ${reason}`, { status, reason, ...extra });
}

/** One open watch, fed by the test. */
export class WatchConnection {
  readonly request: WatchRequest;
  readonly #queue: (WatchEvent<unknown> | { fault: unknown } | "end")[] = [];
  #wake: (() => void) | undefined;
  closed = false;

  constructor(request: WatchRequest) {
    this.request = request;
    request.signal.addEventListener("abort", () => this.#wake?.(), { once: true });
  }

  send(...events: WatchEvent<unknown>[]): void {
    this.#push(...events);
  }
  end(): void {
    this.#push("end");
  }
  break(fault: unknown): void {
    this.#push({ fault });
  }

  #push(...entries: (WatchEvent<unknown> | { fault: unknown } | "end")[]): void {
    this.#queue.push(...entries);
    this.#wake?.();
  }

  async *events(): AsyncGenerator<WatchEvent<unknown>> {
    try {
      for (;;) {
        if (this.request.signal.aborted) throw this.request.signal.reason;
        const next = this.#queue.shift();
        if (next === undefined) await new Promise<void>((resolve) => (this.#wake = resolve));
        else if (next === "end") return;
        else if ("fault" in next) throw next.fault;
        else yield next;
      }
    } finally {
      this.closed = true;
    }
  }
}

/** A Kube whose answers a test scripts. It keeps every request and every watch. */
export class ScriptedKube implements Kube {
  readonly requests: KubeRequest[] = [];
  readonly watches: WatchConnection[] = [];
  /** Answers a request; may throw. */
  answer: (request: KubeRequest) => unknown = () => ({});
  /** Lets opening a watch fail. */
  onWatch: (watch: WatchConnection) => void = () => {};

  async request<T>(request: KubeRequest): Promise<T> {
    request.signal.throwIfAborted();
    this.requests.push({
      ...request,
      body: request.body === undefined ? undefined : JSON.parse(JSON.stringify(request.body)),
    });
    return (await this.answer(request)) as T;
  }

  async *watch<T>(request: WatchRequest): AsyncGenerator<WatchEvent<T>> {
    request.signal.throwIfAborted();
    const connection = new WatchConnection(request);
    this.watches.push(connection);
    this.onWatch(connection);
    request.onOpen?.();
    yield* connection.events() as AsyncGenerator<WatchEvent<T>>;
  }

  /** The newest watch. */
  get current(): WatchConnection {
    const newest = this.watches.at(-1);
    if (!newest) throw new Error("No watch was opened");
    return newest;
  }
}
