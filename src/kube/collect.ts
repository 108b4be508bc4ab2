/**
 * One exchange of which the whole reply is kept. Of the requests that the agent makes nearly all are such: a stream and
 * its iterators for each would cost more than all the rest of the way through this process.
 */
import type { Dispatcher } from "undici";
import { onAbort } from "../util/abort.ts";
import { ReplyTooLargeError } from "./errors.ts";

/** A reply that has come to its end. */
interface Collected {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
}

interface CollectOptions {
  /** Ends it at any moment, though no connection was free yet. */
  signal: AbortSignal;
  /** The longest reply of a request that succeeded. */
  maxBytes: number;
  /** Of one that failed, no more than this is read. */
  maxFailureBytes: number;
  /** Method and path, for errors. */
  what: string;
  /** Called when status and headers have come. */
  onHeaders: (status: number, headers: Collected["headers"]) => void;
  /** Called for each piece of the body. */
  onPiece: () => void;
}

/** @throws ReplyTooLargeError; undici's errors; the signal's reason on abort */
export async function collect(
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  options: CollectOptions,
): Promise<Collected> {
  const { signal } = options;
  signal.throwIfAborted();
  const handler = new Collector(options);
  using _ = onAbort(signal, () => handler.fail(signal.reason));
  dispatcher.dispatch(request, handler);
  return await handler.reply;
}

class Collector implements Dispatcher.DispatchHandler {
  readonly #options: CollectOptions;
  readonly #settled = Promise.withResolvers<Collected>();
  readonly #chunks: Buffer[] = [];
  #bytes = 0;
  #status = 0;
  #headers: Collected["headers"] = {};
  #controller: Dispatcher.DispatchController | undefined;
  #failure: { reason: unknown } | undefined;

  constructor(options: CollectOptions) {
    this.#options = options;
  }

  get reply(): Promise<Collected> {
    return this.#settled.promise;
  }

  /** Ends the exchange, unless it is over. */
  fail(reason: unknown): void {
    this.#failure ??= { reason };
    this.#settled.reject(reason);
    this.#controller?.abort(reason as Error);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    // It was ended while it waited for a connection.
    if (this.#failure !== undefined) controller.abort(this.#failure.reason as Error);
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: Collected["headers"]): void {
    // An interim reply: the real one is to come.
    if (status < 200) return;
    this.#status = status;
    this.#headers = headers;
    this.#options.onHeaders(status, headers);
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#failure !== undefined) return;
    const { maxBytes, maxFailureBytes, onPiece, what } = this.#options;
    onPiece();
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#status > 299) {
      if (this.#bytes < maxFailureBytes) return;
      this.#finish(maxFailureBytes);
      this.fail(new Error("enough was read of it"));
    } else if (this.#bytes > maxBytes)
      this.fail(new ReplyTooLargeError(`${what}: the reply has more than ${maxBytes} bytes`));
  }

  onResponseEnd(): void {
    this.#finish(this.#bytes);
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#settled.reject(error);
  }

  #finish(bytes: number): void {
    const [first] = this.#chunks;
    const body = this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks);
    const text = body.toString("utf8", 0, Math.min(bytes, body.length));
    this.#settled.resolve({ status: this.#status, headers: this.#headers, text });
  }
}
