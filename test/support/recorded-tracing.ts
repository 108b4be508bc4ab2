/** Traces that are only remembered. */
import { AsyncLocalStorage } from "node:async_hooks";
import type { TraceContext } from "../../src/telemetry/trace-context.ts";
import type { Span, SpanOptions, Tracing } from "../../src/telemetry/tracing.ts";

interface RecordedSpan extends SpanOptions {
  name: string;
  context: TraceContext;
}

/** The context of the nth span of this trace. */
export const contextOf = (n: number): TraceContext => ({
  traceparent: `00-4bf92f3577b34da6a3ce929d0e0e4736-${n.toString(16).padStart(16, "0")}-01`,
});

export class RecordedTracing implements Tracing {
  readonly spans: RecordedSpan[] = [];
  readonly #active = new AsyncLocalStorage<Span>();

  begin(name: string, options: SpanOptions): Span {
    const context = contextOf(this.spans.length + 1);
    this.spans.push({ name, context, ...options });
    return { context, set: () => undefined, fail: () => undefined, end: () => undefined };
  }

  within<T>(span: Span, work: () => T): T {
    return this.#active.run(span, work);
  }

  active(): TraceContext | undefined {
    return this.#active.getStore()?.context;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
