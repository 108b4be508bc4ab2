/**
 * Traces, as a collaborator: what a pod, a request or a machine's step has to do with the others, told to a collector.
 * Where nothing is traced it is absent, and nothing of what makes them (sdk-tracing.ts) is loaded.
 *
 * What a span says can be read by all who read traces: names, ids, counts and words of few, each cut to a length;
 * nothing of a pod's environment, files or commands, no credentials, and no texts of errors, which may quote them.
 */
import type { TraceContext } from "./trace-context.ts";

/** By OpenTelemetry's names, where it has one. */
export type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;

export interface SpanOptions {
  /** Default: it neither asks another program nor answers one. */
  kind?: "client" | "server" | undefined;
  /** Absent: the span begins a trace, which is sampled at the configured rate. Else it is sampled as its parent is. */
  parent?: TraceContext | undefined;
  /** What else it has to do with. */
  link?: TraceContext | undefined;
  attributes?: Attributes | undefined;
}

export interface Span {
  /** For those who work on for it. */
  readonly context: TraceContext;
  set(attributes: Attributes): void;
  /** @param type what kind of failure: a word of few */
  fail(type: string): void;
  end(): void;
}

export interface Tracing {
  begin(name: string, options: SpanOptions): Span;
  /** Work that is part of the span for as long as that goes on, with all that it begins meanwhile. */
  within<T>(span: Span, work: () => T): T;
  /** Of the span that the caller is part of, unless it has ended. */
  active(): TraceContext | undefined;
  /** Sends what is left, for two seconds at most. */
  close(): Promise<void>;
}

/** Does the work in a span, or without one where nothing is traced. */
export async function traced<T>(
  tracing: Tracing | undefined,
  name: string,
  options: SpanOptions,
  work: (span: Span | undefined) => T | Promise<T>,
): Promise<T> {
  if (tracing === undefined) return await work(undefined);
  const span = tracing.begin(name, options);
  try {
    return await tracing.within(span, () => work(span));
  } catch (thrown) {
    span.fail(failureType(thrown));
    throw thrown;
  } finally {
    span.end();
  }
}

/** The same as part of what the caller does: nothing is traced where that is not. */
export async function tracedStep<T>(
  tracing: Tracing | undefined,
  name: string,
  options: Omit<SpanOptions, "parent">,
  work: (span: Span | undefined) => T | Promise<T>,
): Promise<T> {
  const parent = tracing?.active();
  return await traced(parent && tracing, name, { ...options, parent }, work);
}

/** Our errors' codes, and the names of the others' classes. */
function failureType(thrown: unknown): string {
  if (!(thrown instanceof Error)) return "unknown";
  return "code" in thrown && typeof thrown.code === "string" ? thrown.code : thrown.name;
}
